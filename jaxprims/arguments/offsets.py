"""``Offsets``: segments as row pointers."""

from __future__ import annotations

from typing import Any

import jax
import jax.export

from .checks import as_array, check_index


@jax.tree_util.register_pytree_node_class
class Offsets:
    """Segments as row pointers (CSR): segment s is elements [offsets[s], offsets[s + 1]).

    Args:
      offsets: integers ``[num_segments + 1]``, ascending.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.Offsets(jnp.array([0, 2, 2, 5])).offsets.tolist()
    [0, 2, 2, 5]
    """

    def __init__(self, offsets: Any):
        self.offsets = as_array(offsets, "offsets")
        check_index(self.offsets.dtype, "offsets")
        if self.offsets.ndim != 1 or self.offsets.shape[0] == 0:
            raise ValueError(f"offsets must have shape [num_segments + 1], got {self.offsets.shape}")

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.offsets,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Offsets:
        out = object.__new__(cls)
        out.offsets = children[0]
        return out

    def __repr__(self) -> str:
        return f"Offsets({self.offsets!r})"


jax.export.register_pytree_node_serialization(
    Offsets, serialized_name="jaxprims.Offsets", serialize_auxdata=lambda _: b"", deserialize_auxdata=lambda _: None
)
