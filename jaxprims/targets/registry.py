"""The platforms that kernels are compiled for. Primitives are lowered alike on all of them; what differs is asked of a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from .. import _cuda
from ..specs.histogram import HistogramSpec
from ..specs.ordered import OrderedSpec
from .cpu import compiler
from .cpu import plan_histogram as planning
from .cuda import compiler as cuda_compiler

Sizes = Sequence[Any]


class Target(Protocol):
    """What lowering asks of a platform. Sizes that are not known yet are symbols of ``jax.export``."""

    platform: str

    def in_place(self, spec: HistogramSpec, n: Any, bins: Sequence[int], sorted_indices: bool, plan: Sequence[int]) -> bool:
        """Would a histogram be made in the result's own arrays? ``plan``: empty, or forced."""

    def sorts(self, sorted_indices: bool, deterministic: bool) -> bool:
        """Is a histogram a segmented reduction here?"""

    def compile(self, spec: HistogramSpec | OrderedSpec, variant: Callable[[], int]) -> None:
        """Compiles what can be compiled now, so that errors show when a function is compiled. ``variant``: of the CPU's kernels,
        -1 if that is not known yet."""

    def workspace(self, family: str, spec: HistogramSpec | OrderedSpec, batch: Sizes, *sizes: Any) -> jax.core.ShapedArray | None:
        """The memory that a call of "hist" (N, bins), "scan", "reduce" (N, lanes) or "segments" (N, lanes, segments) wants beside
        its results."""


class Cpu:
    """LLVM; workspaces are the driver's."""

    platform = "cpu"

    def in_place(self, spec: HistogramSpec, n: Any, bins: Sequence[int], sorted_indices: bool, plan: Sequence[int]) -> bool:
        if plan:
            return bool(plan[3])
        return isinstance(n, int) and bool(planning.plan_of(spec, n, bins, (), sorted_indices).soa)

    def sorts(self, sorted_indices: bool, deterministic: bool) -> bool:
        return False

    def compile(self, spec: HistogramSpec | OrderedSpec, variant: Callable[[], int]) -> None:
        number = variant()
        if isinstance(spec, OrderedSpec):
            compiler.compiled_scan(spec, max(number, 0))
        elif number >= 0:
            compiler.compiled_hist(spec, number)

    def workspace(self, family: str, spec: HistogramSpec | OrderedSpec, batch: Sizes, *sizes: Any) -> jax.core.ShapedArray | None:
        return None


class Cuda:
    """NVRTC; the workspace is one more result, so that nothing is allocated while a graph is captured."""

    platform = "cuda"

    def in_place(self, spec: HistogramSpec, n: Any, bins: Sequence[int], sorted_indices: bool, plan: Sequence[int]) -> bool:
        return False

    def sorts(self, sorted_indices: bool, deterministic: bool) -> bool:
        return sorted_indices or deterministic

    def compile(self, spec: HistogramSpec | OrderedSpec, variant: Callable[[], int]) -> None:
        cuda_compiler.source(spec)  # which kernels are compiled depends on the device

    def workspace(self, family: str, spec: HistogramSpec | OrderedSpec, batch: Sizes, *sizes: Any) -> jax.core.ShapedArray | None:
        members = math.prod(batch)
        bound = getattr(_cuda, f"{family}_workspace")
        # An executable may run on another device than this machine's: enough for every architecture.
        found = [bound(cuda_compiler.described(spec, arch), *map(_known, sizes), _known(members)) for arch in (80, 90)]
        base, per, every = (max(column) for column in zip(*found, strict=True))
        bytes_ = base + per * (sizes[0] // every + 1) if per else base
        return jax.core.ShapedArray((*batch, bytes_), np.dtype(np.uint8))


def _known(size: Any) -> Any:
    """A size, or -1 where it is a symbol; lists of bins as they are."""
    return size if isinstance(size, (int, list)) else -1


CPU, CUDA = Cpu(), Cuda()
