"""What XLA compiles into the loop of a reduction that it does itself: the function that makes what is reduced.

A kernel's operands lie in memory. Where XLA's operation is nearly as fast, what it saves by that is more.
"""

from __future__ import annotations

from typing import Any

_LOOPS = (
    "all_ arg case cholesky cond conv_general convolution cum custom_call dot fft ffi if optimization_barrier random reduce rng "
    "scan scatter sort top_k triangular while"
).split()
"""How names of operations begin, JAX's and StableHLO's, whose results are memory."""


def is_fed(value: Any) -> bool:
    """Of a value in a module that is lowered."""
    owner: Any = getattr(value, "owner", None)
    owner = getattr(owner, "operation", owner)
    dialect, _, name = getattr(owner, "name", "").partition(".")
    if (dialect, name) == ("stablehlo", "reshape"):
        return is_fed(owner.operands[0])  # which moves nothing
    return (dialect in ("stablehlo", "chlo") and name != "constant" and is_cheap(name)) or (dialect, name) == ("func", "call")


def is_cheap(name: str) -> bool:
    """Of an operation."""
    return not name.startswith(tuple(_LOOPS))
