"""Monoids: an operator and its neutral element; ready-made ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Monoid:
    """An associative operator with its neutral element.

    Args:
      op: ``op(a, b) -> c`` on scalars, arrays or pytrees of them; ``c`` has the structure, shapes and dtypes of ``a`` and
        ``b``. It must be associative; :func:`reduce_by_index` and :func:`genhist` need it to be commutative as well.
      identity: of the same structure, with ``op(identity, x) == x == op(x, identity)``; numbers are broadcast to the
        elements' shapes and cast to their dtypes. None: known from the operator and the dtype, as for those in
        :data:`monoids`; where it is not known and needed, the function that needs it raises a ValueError.

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


def as_monoid(op: Any, identity: Any = None, *, name: str = "op") -> Monoid:
    """``op``, a Monoid or any callable, with ``identity``, as a Monoid.

    Raises:
      TypeError: ``op`` is not callable.
      ValueError: ``op`` is a Monoid with another identity than the one given.
    """
    if not callable(op):
        raise TypeError(f"{name} must be a Monoid or a function of two values, got {op!r}")
    if not isinstance(op, Monoid):
        return Monoid(op, identity)
    if op.identity is None:
        return op if identity is None else Monoid(op.op, identity)
    if identity is not None and not _same_identity(op.identity, identity):
        raise ValueError(f"identity={identity!r} differs from the identity of {name}, {op.identity!r}; give one of them")
    return op


def _same_identity(a: Any, b: Any) -> bool:
    if a is b:
        return True
    left, right = jax.tree.leaves(a), jax.tree.leaves(b)
    if jax.tree.structure(a) != jax.tree.structure(b) or any(isinstance(x, jax.core.Tracer) for x in left + right):
        return False
    return all(np.array_equal(x, y, equal_nan=np.asarray(x).dtype.kind in "fc") for x, y in zip(left, right, strict=True))


def _leafwise(name: str, f: Callable[[Any, Any], Any]) -> Monoid:
    def op(a: Any, b: Any) -> Any:
        return jax.tree.map(f, a, b)

    op.__name__ = op.__qualname__ = name
    return Monoid(op)


def _arg(name: str, better: Callable[[Any, Any], Any]) -> Monoid:
    def op(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
        (v, i), (w, j) = a, b
        v_nan, w_nan = jnp.not_equal(v, v), jnp.not_equal(w, w)
        tie = jnp.equal(v, w) | (v_nan & w_nan)
        first = better(v, w) | (v_nan & ~w_nan) | (tie & jnp.less(i, j))
        return jnp.where(first, v, w), jnp.where(first, i, j)

    op.__name__ = op.__qualname__ = name
    return Monoid(op)


def _affine(first: tuple[Any, Any], then: tuple[Any, Any]) -> tuple[Any, Any]:
    (a, b), (c, d) = first, then
    return jax.tree.map(jnp.multiply, c, a), jax.tree.map(lambda c, b, d: jnp.add(jnp.multiply(c, b), d), c, b, d)


class monoids:
    """Ready-made monoids, for every dtype on which their operation is defined; on pytrees, leaf by leaf.

    Their identity depends on the dtype, so ``monoids.max.identity`` is None: the functions that take ``op`` know it.

    ====================  ==========================================================  ========================================
    name                  operation                                                   identity
    ====================  ==========================================================  ========================================
    ``add``               ``a + b``; complex as well; ``or`` on booleans              0 (a float sum of -0.0 alone is 0.0)
    ``mul``               ``a * b``; complex as well; ``and`` on booleans             1
    ``min``, ``max``      the lesser, the greater; a NaN wins                         inf, -inf; an integer's extremes
    ``logical_and``       on booleans                                                 True
    ``logical_or``        on booleans                                                 False
    ``bitwise_and``       on integers and booleans                                    all ones
    ``bitwise_or``        on integers and booleans                                    0
    ``bitwise_xor``       on integers and booleans                                    0
    ``logaddexp``         ``log(exp(a) + exp(b))`` of floats                          -inf
    ``argmin``            the pair (value, index) of the least value                  (greatest value, greatest index)
    ``argmax``            the pair (value, index) of the greatest value               (least value, greatest index)
    ``affine``            pairs (a, b), the maps x -> a x + b: the first, then the    (1, 0)
                          second, ``(a2 a1, a2 b1 + b2)``; it does not commute
    ====================  ==========================================================  ========================================

    ``argmin`` and ``argmax``: equal values give the smaller index, and the first NaN wins, as in ``jax.numpy``.

    >>> import jaxprims as jp
    >>> a, b = jp.monoids.affine((2, 1), (3, 4))  # 3 (2 x + 1) + 4 = 6 x + 7
    >>> int(a), int(b)
    (6, 7)
    """

    add = _leafwise("add", jnp.add)
    mul = _leafwise("mul", jnp.multiply)
    min = _leafwise("min", jnp.minimum)
    max = _leafwise("max", jnp.maximum)
    logical_and = _leafwise("logical_and", jnp.logical_and)
    logical_or = _leafwise("logical_or", jnp.logical_or)
    bitwise_and = _leafwise("bitwise_and", jnp.bitwise_and)
    bitwise_or = _leafwise("bitwise_or", jnp.bitwise_or)
    bitwise_xor = _leafwise("bitwise_xor", jnp.bitwise_xor)
    logaddexp = _leafwise("logaddexp", jnp.logaddexp)
    argmin = _arg("argmin", jnp.less)
    argmax = _arg("argmax", jnp.greater)
    affine = Monoid(_affine)
