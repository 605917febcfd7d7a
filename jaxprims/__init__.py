"""Data-parallel primitives with arbitrary operators inside JAX. See the README."""

from .api.genhist import genhist, reduce_by_index
from .api.group_by_index import group_by_index
from .api.linear_recurrence import linear_recurrence
from .api.memory import keep_freed_memory
from .api.race_factor import race_factor
from .api.reduce import reduce
from .api.scan import scan
from .api.segment_reduce import segment_reduce
from .api.stencil import stencil
from .arguments.bins import Bins
from .arguments.monoid import Monoid
from .arguments.monoids import monoids
from .arguments.offsets import Offsets
from .arguments.positions import positions
from .arguments.promises import debug_checks
from .arguments.warnings import FallbackWarning, IdentityWarning
from .dropins.jnp_argmax import argmax, argmin, nanargmax, nanargmin
from .dropins.jnp_cumulative import cumulative_prod, cumulative_sum, nancumprod, nancumsum
from .dropins.jnp_histogram import bincount, histogram, histogram2d, histogram_bin_edges, histogramdd
from .dropins.jraph_segment import (
    partition_softmax,
    segment_max_or_constant,
    segment_min_or_constant,
    segment_normalize,
    segment_variance,
)  # fmt: skip
from .dropins.lax_scans import associative_scan, cumlogsumexp, cummax, cummin, cumprod, cumsum
from .dropins.numpy_reduceat import reduceat
from .dropins.ops_segment import segment_max, segment_min, segment_prod, segment_sum
from .dropins.segment_exponentials import segment_logsumexp, segment_softmax
from .dropins.segment_statistics import segment_argmax, segment_argmin, segment_count, segment_mean, segment_var
from .fusion.fuse import fuse
from .inspection.check_monoid import check_monoid
from .inspection.compile_check import CompiledKernel, KernelError, compile_check
from .inspection.explain import Plan, PlannedCall, explain
from .targets.ffi import CUSTOM_CALL_TARGETS

__version__ = "0.1.0"  # pyproject.toml reads it here

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
    "cumulative_prod",
    "cumulative_sum",
    "debug_checks",
    "explain",
    "fuse",
    "genhist",
    "group_by_index",
    "histogram",
    "histogram2d",
    "histogram_bin_edges",
    "histogramdd",
    "keep_freed_memory",
    "linear_recurrence",
    "monoids",
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "partition_softmax",
    "positions",
    "race_factor",
    "reduce",
    "reduce_by_index",
    "reduceat",
    "scan",
    "segment_argmax",
    "segment_argmin",
    "segment_count",
    "segment_logsumexp",
    "segment_max",
    "segment_max_or_constant",
    "segment_mean",
    "segment_min",
    "segment_min_or_constant",
    "segment_normalize",
    "segment_prod",
    "segment_reduce",
    "segment_softmax",
    "segment_sum",
    "segment_var",
    "segment_variance",
    "stencil",
]
