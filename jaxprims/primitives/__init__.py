"""One file per jax primitive: abstract eval, batching, lowering; its derivatives and its plain-XLA form beside it.

Importing the package registers all of them with JAX.
"""

from .histogram import ad as histogram_ad
from .histogram import divided as histogram_divided
from .histogram import lowering as histogram_lowering
from .ordered import divided as ordered_divided
from .ordered import reduce_ad, scan_ad, segments
from .stencil import ad as stencil_ad
from .stencil import divided as stencil_divided
from .stencil import reduce_divided as stencil_reduce_divided

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
