"""Spec -> a kernel's whole source, CUDA C++: headers of cuda/kernels/, ``namespace spec``, the skeleton of its kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ...specs.histogram import HistogramSpec
from ...specs.kernel import KernelSpec
from ...specs.ordered import OrderedSpec
from ...specs.stencil import StencilSpec
from . import histogram_source as histogram_spec
from . import ordered_source as ordered_spec
from . import stencil_source as stencil_spec


def ordered_source(spec: OrderedSpec) -> str:
    """The kernels of a spec of the ordered family; their includes are not expanded."""
    return _source(ordered_spec.generated(spec), ["ordered/ordered.cuh", f"ordered/{spec.kind}.cuh"])


def histogram_source(spec: HistogramSpec) -> str:
    """A histogram's kernels; their includes are not expanded."""
    return _source(histogram_spec.generated(spec), ["histogram/hist.cuh"])


def stencil_source(spec: StencilSpec) -> str:
    """A stencil's kernels; their includes are not expanded."""
    skeleton = "stencil/stencil_steps.cuh" if stencil_spec.is_alike(spec) else "stencil/stencil.cuh"
    return _source(stencil_spec.generated(spec), [skeleton], ["stencil_tiles.h"])


def _source(generated: str, skeleton: Sequence[str], before: Sequence[str] = ()) -> str:
    def includes(names: Sequence[str]) -> str:
        return "".join(f'#include "{name}"\n' for name in names)

    return f"{includes(['device.cuh', 'operands.cuh', 'math.cuh', *before])}\n{generated}\n{includes(skeleton)}"


_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)".*$')


def expanded(text: str, folders: Sequence[Path]) -> str:
    """The text with every file that it includes, of the first folder that has it, in place of the first line that does."""
    seen: set[str] = set()

    def lines(part: str) -> list[str]:
        out: list[str] = []
        for line in part.splitlines():
            include = _INCLUDE.match(line)
            if include is None:
                if line.strip() != "#pragma once":
                    out.append(line)
            elif (name := Path(include[1]).name) not in seen:
                seen.add(name)
                out += lines(_found(include[1], folders).read_text())
        return out

    return "\n".join(lines(text)) + "\n"


def _found(name: str, folders: Sequence[Path]) -> Path:
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{name} is in none of {', '.join(map(str, folders))}")


_KERNEL = re.compile(r"^JP_KERNEL\((\w+),", re.M)


def kernels_of(text: str) -> list[str]:
    """The names of the kernels in an expanded text."""
    return _KERNEL.findall(text)


def launched(spec: KernelSpec, kernels: Sequence[str]) -> list[str]:
    """Of a text's kernels those that calls of the spec may launch: some are for sequences side by side, the others for all else,
    one is for segments that may be empty, one for updates that reach other blocks' shared memory."""

    def may(kernel: str) -> bool:
        if isinstance(spec, HistogramSpec) and kernel == "HistCluster":
            return all(map(histogram_spec.cluster_trips, spec.bins))
        if not isinstance(spec, OrderedSpec) or kernel == "SegmentsBorders":
            return True
        if kernel == "SegmentsIdentity":
            return spec.identity is not None
        return ("Across" in kernel) == spec.across

    return list(filter(may, kernels))


def only(text: str, kernel: str) -> str:
    """The expanded text with one kernel of all: what no kernel calls costs the compiler next to nothing."""
    out, kept = [], 0
    for start in _KERNEL.finditer(text):
        end = _closed(text, text.index("{", start.end()))
        if start[1] != kernel:
            out.append(text[kept : start.start()])
            kept = end
    return "".join(out) + text[kept:]


def _closed(text: str, opened: int) -> int:
    """Behind the brace that closes the one at ``opened``."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(text, opened):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.end()
    raise ValueError("a kernel without an end")
