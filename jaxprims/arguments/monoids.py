"""``monoids``: ready-made ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .monoid import Monoid


def _ready(name: str, op: Callable[[Any, Any], Any], doc: str) -> Monoid:
    op.__name__ = op.__qualname__ = name
    monoid = Monoid(op)
    object.__setattr__(monoid, "__doc__", doc)  # help(jp.monoids.add); doctest finds it by __test__
    object.__setattr__(monoid, "__module__", __name__)
    object.__setattr__(monoid, "ready_made", f"monoids.{name}")
    return monoid


def _leafwise(name: str, f: Callable[[Any, Any], Any], doc: str) -> Monoid:
    return _ready(name, lambda a, b: jax.tree.map(f, a, b), doc)


def _arg(name: str, better: Callable[[Any, Any], Any], doc: str) -> Monoid:
    def op(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
        if not isinstance(a, (tuple, list)) or len(a) != 2:
            raise TypeError(f"jp.monoids.{name} combines pairs (value, index): for values x write (x, jp.positions)")
        (v, i), (w, j) = a, b
        v_nan, w_nan = jnp.not_equal(v, v), jnp.not_equal(w, w)
        tie = jnp.equal(v, w) | (v_nan & w_nan)
        first = better(v, w) | (v_nan & ~w_nan) | (tie & jnp.less(i, j))
        return jnp.where(first, v, w), jnp.where(first, i, j)

    return _ready(name, op, doc)


def _affine(first: tuple[Any, Any], then: tuple[Any, Any]) -> tuple[Any, Any]:
    (a, b), (c, d) = first, then
    return jax.tree.map(jnp.multiply, c, a), jax.tree.map(lambda c, b, d: jnp.add(jnp.multiply(c, b), d), c, b, d)


class monoids:
    """Ready-made monoids, for every dtype on which their operation is defined; on pytrees, leaf by leaf.

    Their identity depends on the dtype, so ``monoids.max.identity`` is None: the functions that take ``op`` know it. Each has a
    documentation of its own: ``help(jp.monoids.max)``.

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
    """

    add = _leafwise(
        "add",
        jnp.add,
        """The sum, ``a + b``. Integers wrap; f16 and bf16 are summed in f32 and rounded once; of booleans it is ``or``.

        Identity: 0 of any integer, float and complex dtype, False. A float sum of -0.0 alone is therefore 0.0.

        >>> import jax.numpy as jnp
        >>> import jaxprims as jp
        >>> jp.reduce_by_index(jnp.array([1, 2, 3]), jnp.array([0, 2, 0]), 3, jp.monoids.add).tolist()
        [4, 0, 2]
        """,
    )
    mul = _leafwise(
        "mul",
        jnp.multiply,
        """The product, ``a * b``. Integers wrap; of booleans it is ``and``.

        Identity: 1 of any integer, float and complex dtype, True.

        >>> import jax.numpy as jnp
        >>> import jaxprims as jp
        >>> jp.scan(jnp.array([2.0, 3.0, 4.0]), jp.monoids.mul).tolist()
        [2.0, 6.0, 24.0]
        """,
    )
    min = _leafwise(
        "min",
        jnp.minimum,
        """The lesser value; a NaN wins, as in :func:`jax.numpy.minimum`. Integers, floats and booleans.

        Identity: inf of floats, the greatest value of an integer dtype (127 of int8), True.

        >>> import jax.numpy as jnp
        >>> import jaxprims as jp
        >>> jp.reduce_by_index(jnp.array([5.0, 2.0]), jnp.array([0, 0]), 2, jp.monoids.min).tolist()
        [2.0, inf]
        """,
    )
    max = _leafwise(
        "max",
        jnp.maximum,
        """The greater value; a NaN wins, as in :func:`jax.numpy.maximum`. Integers, floats and booleans.

        Identity: -inf of floats, the least value of an integer dtype (-128 of int8, 0 of uint8), False.

        >>> import jax.numpy as jnp
        >>> import jaxprims as jp
        >>> jp.reduce_by_index(jnp.array([5, 2], jnp.int8), jnp.array([0, 0]), 2, jp.monoids.max).tolist()
        [5, -128]
        """,
    )
    logical_and = _leafwise(
        "logical_and",
        jnp.logical_and,
        """Whether both are true; on booleans.

        Identity: True.

        >>> import jax.numpy as jnp
        >>> import jaxprims as jp
        >>> jp.scan(jnp.array([True, False, True]), jp.monoids.logical_and).tolist()
        [True, False, False]
        """,
    )
    logical_or = _leafwise(
        "logical_or",
        jnp.logical_or,
        """Whether one of them is true; on booleans.

        Identity: False.

        >>> import jax.numpy as jnp
        >>> import jaxprims as jp
        >>> jp.scan(jnp.array([False, True, False]), jp.monoids.logical_or).tolist()
        [False, True, True]
        """,
    )
    bitwise_and = _leafwise(
        "bitwise_and",
        jnp.bitwise_and,
        """``a & b``, on integers and booleans.

        Identity: all bits set, which is -1 of signed integers, the greatest value of unsigned ones (255 of uint8), True.

        >>> import jax.numpy as jnp
        >>> import jaxprims as jp
        >>> jp.reduce_by_index(jnp.array([6, 3], jnp.uint8), jnp.array([0, 0]), 2, jp.monoids.bitwise_and).tolist()
        [2, 255]
        """,
    )
    bitwise_or = _leafwise(
        "bitwise_or",
        jnp.bitwise_or,
        """``a | b``, on integers and booleans.

        Identity: 0, False.

        >>> import jax.numpy as jnp
        >>> import jaxprims as jp
        >>> int(jp.reduce(jnp.array([1, 4, 5]), jp.monoids.bitwise_or))
        5
        """,
    )
    bitwise_xor = _leafwise(
        "bitwise_xor",
        jnp.bitwise_xor,
        """``a ^ b``, on integers and booleans.

        Identity: 0, False.

        >>> import jax.numpy as jnp
        >>> import jaxprims as jp
        >>> int(jp.reduce(jnp.array([1, 4, 5]), jp.monoids.bitwise_xor))
        0
        """,
    )
    logaddexp = _leafwise(
        "logaddexp",
        jnp.logaddexp,
        """``log(exp(a) + exp(b))`` without overflow, as :func:`jax.numpy.logaddexp`; on floats.

        Identity: -inf.

        >>> import jax.numpy as jnp
        >>> import jaxprims as jp
        >>> jp.reduce_by_index(jnp.array([1000.0, 1000.0]), jnp.array([0, 0]), 2, jp.monoids.logaddexp)
        Array([1000.6932,      -inf], dtype=float32)
        """,
    )
    argmin = _arg(
        "argmin",
        jnp.less,
        """Of two pairs (value, index), the one of the lesser value; of equal values the smaller index; the first NaN wins.

        Values are integers, floats or booleans, indices integers.

        Identity: (inf, or an integer dtype's greatest value, or True; the index dtype's greatest value).

        >>> import jax.numpy as jnp
        >>> import jaxprims as jp
        >>> value, at = jp.reduce((jnp.array([3.0, 1.0, 1.0]), jp.positions), jp.monoids.argmin)
        >>> float(value), int(at)
        (1.0, 1)
        """,
    )
    argmax = _arg(
        "argmax",
        jnp.greater,
        """Of two pairs (value, index), the one of the greater value; of equal values the smaller index; the first NaN wins.

        Values are integers, floats or booleans, indices integers.

        Identity: (-inf, or an integer dtype's least value, or False; the index dtype's greatest value).

        >>> import jax.numpy as jnp
        >>> import jaxprims as jp
        >>> value, at = jp.reduce_by_index((jnp.array([3.0, 7.0, 7.0]), jp.positions), jnp.array([1, 1, 1]), 2, jp.monoids.argmax)
        >>> value.tolist(), at.tolist()
        ([-inf, 7.0], [2147483647, 1])
        """,
    )
    affine = _ready(
        "affine",
        _affine,
        """Of pairs (a, b), which stand for the maps x -> a x + b: the first, then the second. Associative; it does not commute.

        ``(a1, b1), (a2, b2) -> (a2 a1, a2 b1 + b2)``, on integers, floats and complex numbers; a and b may be pytrees alike.

        Identity: (1, 0), the map x -> x.

        >>> import jaxprims as jp
        >>> a, b = jp.monoids.affine((2, 1), (3, 4))  # 3 (2 x + 1) + 4 = 6 x + 7
        >>> int(a), int(b)
        (6, 7)
        """,
    )


__test__ = {f"monoids.{name}": m.__doc__ for name, m in vars(monoids).items() if isinstance(m, Monoid)}
