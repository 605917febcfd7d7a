"""One file per jax primitive: abstract eval, batching, lowering; its derivatives and its plain-XLA form beside it.

Importing the package registers all of them with JAX.
"""

from . import (
    histogram_ad,
    histogram_divided,
    histogram_lowering,
    ordered_divided,
    reduce_ad,
    scan_ad,
    segments,
    stencil_ad,
    stencil_divided,
    stencil_reduce_divided,
)

__all__ = [
    "histogram_ad",
    "histogram_divided",
    "histogram_lowering",
    "ordered_divided",
    "reduce_ad",
    "scan_ad",
    "segments",
    "stencil_ad",
    "stencil_divided",
    "stencil_reduce_divided",
]
