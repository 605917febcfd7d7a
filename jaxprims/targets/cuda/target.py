"""NVIDIA GPUs as a target: kernels by NVRTC, run by the launcher of ``cuda/``.

The workspace is one more result of the call, so that nothing is allocated while a graph is captured.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ... import _cuda
from ...specs.kernel import KernelSpec
from ...specs.large import LargeSpec
from ...tracing.within import within
from .. import ffi
from ..registry import register_target
from ..target import UNKNOWN_SIZES, Explanation, Target
from . import compiler, devices
from .families import Histograms, Reductions, Scans, Segments, Stencils
from .xla_pays import xla_pays

_watchers: contextvars.ContextVar[tuple[list[Any], ...]] = contextvars.ContextVar("watchers", default=())


@contextlib.contextmanager
def watched() -> Iterator[list[Any]]:
    """Gets the problems of all calls that this thread lowers for GPUs inside."""
    problems: list[Any] = []
    with within(_watchers, (*_watchers.get(), problems)):
        yield problems


class Cuda(Target):
    """NVIDIA GPUs; of one architecture (``at``) where plans are wanted."""

    name = "cuda"
    platform = "cuda"
    fuses_reductions = True

    def __init__(self) -> None:
        self.device: _cuda.DeviceInfo | None = None
        self.families: dict[str, Any] = {f.name: f for f in (Histograms(), Scans(), Reductions(), Segments(), Stencils())}

    def serves(self, family: str) -> bool:
        return family in self.families or family == "held"

    def at(self, where: str) -> Target | None:
        if not where.startswith("sm_"):
            return None
        here = copy.copy(self)
        here.device = devices.device_of(where)
        return here

    def takes(self, problem: Any) -> bool:
        return not isinstance(problem.spec, LargeSpec) and self.families[problem.family].takes(problem)

    def register(self, family: str, call_target: str) -> None:
        ffi.register(call_target, _cuda.handlers(family), "CUDA")  # harmless where there is no GPU

    def compile(self, problem: Any) -> None:
        compiler.source(problem.spec)  # which kernels are compiled depends on the device
        for watcher in _watchers.get():
            watcher.append(problem)

    def kernels(self, problem: Any, arch: int) -> list[str]:
        """The names of the kernels that a call may launch on an architecture (90 for "sm_90"); all of its spec's where sizes are
        not known, or nothing is of the architecture."""
        if not problem.known or f"sm_{arch}" not in devices.KNOWN:
            return compiler.kernels(problem.spec)
        device = self.device or devices.device_of(f"sm_{arch}")
        return self.families[problem.family].kernels(problem, compiler.described(problem.spec, arch), device)

    def plan(self, problem: Any) -> Any:
        device = self.device or devices.default()
        return self.families[problem.family].plan(problem, device)

    def explain(self, problem: Any) -> Explanation:
        family, device = self.families[problem.family], self.device or devices.default()
        classes = family.classes(problem.spec, 10 * device.major + device.minor)
        if not problem.known:
            return dataclasses.replace(UNKNOWN_SIZES, classes=classes)
        strategy, reason = family.words(problem, family.plan(problem, device))
        workspace = self.workspace(problem)
        return Explanation(strategy, reason, 0 if workspace is None else math.prod(workspace.shape), classes=classes)

    def workspace(self, problem: Any) -> jax.core.ShapedArray | None:
        family = self.families[problem.family]
        found = [self._workspace(family, problem, arch) for arch in devices.ARCHITECTURES]
        base, per, every = (max(column) for column in zip(*found, strict=True))
        bytes_ = base + per * (problem.n // every + 1) if per else base
        return jax.core.ShapedArray((*problem.batch, bytes_), np.dtype(np.uint8))

    def _workspace(self, family: Any, problem: Any, arch: int) -> tuple[int, int, int]:
        return family.workspace(problem, compiler.described(problem.spec, arch), devices.planned_for(arch))

    def code(self, spec: KernelSpec, variant: int, language: str) -> str:
        return compiler.source(spec) if language == "cuda" else ""

    def forget(self) -> None:
        compiler.forget()

    def xla_pays(self, problem: Any, operation: str, in_loop: bool | None = False) -> str | None:
        return xla_pays(problem, operation, self.plan)  # in a loop's body, too, each turn is enqueued

    def sorts(self, *, sorted_indices: bool, deterministic: bool) -> bool:
        return sorted_indices or deterministic


CUDA = Cuda()
compiler.kinds |= {family.kind: family for family in CUDA.families.values()}
register_target(CUDA)
