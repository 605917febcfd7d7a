"""CUDA C++ -> cubin, by NVRTC through ``cuda-core``. It needs neither a GPU nor a driver."""

from __future__ import annotations

import dataclasses
import functools
import io
import re
from typing import Any

OPTIONS: dict[str, Any] = {
    "std": "c++17",
    "fma": False,
    "device_as_default_execution_space": True,
    "ptxas_options": ["-v"],
    "diag_suppress": [128, 177, 550],
}
"""No contraction: arithmetic is the same as everywhere else. Constexpr functions need no marks. The verbose assembler reports
registers and spills; loops of no turn, unused constants and variables are the skeletons' nature."""


class Unavailable(ImportError):
    """NVRTC is not installed."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a kernel takes, as the assembler reports it: registers of a thread, bytes of static shared memory of a block, bytes of
    a thread's stack, and bytes spilled from registers to it."""

    kernel: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A cubin, and the compiler's log."""

    image: bytes
    log: str

    @functools.cached_property
    def resources(self) -> tuple[Resources, ...]:
        """Of each kernel."""
        return tuple(map(_resources, re.split(r"Compiling entry function ", self.log)[1:]))


def _resources(report: str) -> Resources:
    def number(pattern: str) -> int:
        found = re.search(pattern, report)
        return int(found.group(1)) if found else 0

    kernel = re.match(r"'(\w+)'", report)
    if kernel is None:
        raise ValueError(f"not an assembler's report: {report[:200]!r}")
    own = report[report.find(f"Function properties for {kernel.group(1)}") :]  # behind those of functions that were not inlined
    return Resources(
        kernel.group(1),
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes smem"),
        int(found.group(1)) if (found := re.search(r"(\d+) bytes stack frame", own)) else 0,
        sum(int(found.group(1)) for what in ("stores", "loads") if (found := re.search(rf"(\d+) bytes spill {what}", own))),
    )


@functools.cache
def version() -> str:
    """NVRTC's, as part of a cubin's name in caches. Raises :class:`Unavailable`."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as e:
        raise Unavailable("GPU kernels are compiled by NVRTC: pip install 'jaxprims[nvrtc]' (or [cuda12], [cuda13])") from e
    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def compile_cubin(source: str, arch: str) -> Compiled:
    """Compiles for one architecture, "sm_90" say. Raises :class:`Unavailable`, and RuntimeError with the compiler's words."""
    version()
    from cuda.core import Program, ProgramOptions

    log = io.StringIO()
    try:
        code = Program(source, "c++", ProgramOptions(arch=arch, **OPTIONS)).compile("cubin", logs=log)
    except Exception as e:
        raise RuntimeError(f"a kernel does not compile for {arch}: {e}") from e
    return Compiled(bytes(code.code), log.getvalue())
