"""Data-parallel primitives with arbitrary operators inside JAX. See the README."""

from ._bins import Bins, positions
from ._compile_check import CompiledKernel, KernelError, compile_check
from ._cumulative import associative_scan, cumlogsumexp, cummax, cummin, cumprod, cumsum
from ._explain import Plan, PlannedCall, explain
from ._extremes import argmax, argmin
from ._genhist import genhist, reduce_by_index
from ._group import group_by_index, race_factor
from ._memory import keep_freed_memory
from ._monoid import Monoid, check_monoid, monoids
from ._numpy import bincount, histogram, histogram2d, histogramdd
from ._offsets import Offsets
from ._recurrence import linear_recurrence
from ._reduce import reduce, segment_reduce
from ._scan import scan
from ._segment import (
    segment_argmax,
    segment_argmin,
    segment_logsumexp,
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_softmax,
    segment_sum,
)
from ._warnings import FallbackWarning, IdentityWarning
from .primitives import hist_ad as _hist_ad
from .primitives import reduce_ad as _reduce_ad
from .primitives import scan_ad as _scan_ad
from .runtime.ffi import CUSTOM_CALL_TARGETS

__all__ = [
    "CUSTOM_CALL_TARGETS",
    "Bins",
    "CompiledKernel",
    "FallbackWarning",
    "IdentityWarning",
    "KernelError",
    "Monoid",
    "Offsets",
    "Plan",
    "PlannedCall",
    "argmax",
    "argmin",
    "associative_scan",
    "bincount",
    "check_monoid",
    "compile_check",
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "explain",
    "genhist",
    "group_by_index",
    "histogram",
    "histogram2d",
    "histogramdd",
    "keep_freed_memory",
    "linear_recurrence",
    "monoids",
    "positions",
    "race_factor",
    "reduce",
    "reduce_by_index",
    "scan",
    "segment_argmax",
    "segment_argmin",
    "segment_logsumexp",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_reduce",
    "segment_softmax",
    "segment_sum",
]
del _hist_ad, _reduce_ad, _scan_ad
