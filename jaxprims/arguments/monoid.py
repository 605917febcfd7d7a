"""``Monoid``: an operator and its neutral element."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Monoid:
    """An associative operator with its neutral element.

    Args:
      op: ``op(a, b) -> c`` on scalars, arrays or pytrees of them; ``c`` has the structure, shapes and dtypes of ``a`` and
        ``b``. It must be associative; :func:`reduce_by_index` and :func:`genhist` need it to be commutative as well.
      identity: of the same structure, with ``op(identity, x) == x == op(x, identity)``; numbers are broadcast to the
        elements' shapes and cast to their dtypes. None: known from the operator and the dtype, as for those in
        :class:`monoids`; where it is not known and needed, the function that needs it raises a ValueError.

    Wherever a jaxprims function takes ``op``, it takes a Monoid. It is also a plain function: ``monoid(a, b)`` is
    ``op(a, b)``. Two Monoids are equal if they are one object.

    Raises:
      TypeError: ``op`` is not callable.

    >>> import jaxprims as jp
    >>> import jax.numpy as jnp
    >>> saturating_sum = jp.Monoid(lambda a, b: jnp.minimum(a + b, 255), 0)
    >>> print(saturating_sum(jnp.uint32(200), jnp.uint32(100)))
    255
    """

    op: Callable[[Any, Any], Any]
    identity: Any = None

    def __post_init__(self) -> None:
        if not callable(self.op):
            raise TypeError(f"op must be a function of two values, got {self.op!r}")

    def __call__(self, a: Any, b: Any) -> Any:
        return self.op(a, b)

    def __reduce__(self) -> str | tuple[Any, ...]:
        name: str | None = vars(self).get("ready_made")  # a copy of one of these, or what is read from a pickle, is itself
        return (type(self), (self.op, self.identity)) if name is None else name


def as_monoid(op: Any, identity: Any = None) -> Monoid:
    """``op``, a Monoid or any callable, with ``identity``, as a Monoid.

    Raises:
      TypeError: ``op`` is not callable.
      ValueError: ``op`` is a Monoid with another identity than the one given.
    """
    if not callable(op):
        raise TypeError(f"op must be a Monoid or a function of two values, got {op!r}")
    if not isinstance(op, Monoid):
        return Monoid(op, identity)
    if op.identity is None:
        return op if identity is None else Monoid(op.op, identity)
    if identity is not None and not _same_identity(op.identity, identity):
        raise ValueError(f"identity={identity!r} differs from the identity of op, {op.identity!r}; give one of them")
    return op


def _same_identity(a: Any, b: Any) -> bool:
    if a is b:
        return True
    left, right = jax.tree.leaves(a), jax.tree.leaves(b)
    if jax.tree.structure(a) != jax.tree.structure(b) or any(isinstance(x, jax.core.Tracer) for x in left + right):
        return False
    return all(np.array_equal(x, y, equal_nan=np.asarray(x).dtype.kind in "fc") for x, y in zip(left, right, strict=True))
