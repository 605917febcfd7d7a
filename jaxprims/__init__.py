"""Data-parallel primitives with arbitrary operators inside JAX. See the README."""

from ._explain import Plan, PlannedCall, explain
from ._genhist import Bins, genhist, positions, reduce_by_index
from ._group import Offsets, group_by_index, race_factor
from ._monoid import Monoid, check_monoid, monoids
from ._warnings import FallbackWarning, IdentityWarning
from .primitives import hist_ad as _hist_ad
from .runtime.ffi import CUSTOM_CALL_TARGETS

__all__ = [
    "CUSTOM_CALL_TARGETS",
    "Bins",
    "FallbackWarning",
    "IdentityWarning",
    "Monoid",
    "Offsets",
    "Plan",
    "PlannedCall",
    "check_monoid",
    "explain",
    "genhist",
    "group_by_index",
    "monoids",
    "positions",
    "race_factor",
    "reduce_by_index",
]
del _hist_ad
