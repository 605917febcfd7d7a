"""The operators that pattern matching knows, one row each: what they compute, their neutral element, their derivative's class.

A row's function is written once, on :class:`Expr`, for every dtype; a user's operator is matched with it (classify.py) by

``text``
    one normal form (normal_form.py);
``order``
    one decision table: both are made of comparisons, selects, minima and maxima alone, so the order of the arguments is all
    that they can tell apart, and they are one function if they agree on every order: NaN, ties and signed zeros included;
``numbers``
    the same for arguments that are no NaN, and up to the sign of zero.

A NaN makes ``max``, ``min``, ``argmax`` and ``argmin`` a NaN (the first one's index) as in ``jax.numpy``; ``fmax`` and ``fmin``
ignore it, as in ``jax.numpy``; the ``select_`` forms, ``jnp.where(a > b, a, b)`` in all its spellings, do with it what the
spelling says. On integers, without NaN, the plain names are the ones found.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..ir.program import Builder, Program, neutral_bits, numpy_dtype
from ..tracing.lower import to_program


@dataclasses.dataclass(frozen=True, eq=False)
class Expr:
    """A value of a Program being built, with Python's operators. A number becomes a constant of the other side's dtype."""

    b: Builder
    value: int

    @property
    def dtype(self) -> str:
        return self.b.dtype(self.value)

    def const(self, number: Any) -> Expr:
        return Expr(self.b, self.b.const(number, self.dtype))

    def apply(self, op: str, *others: Any, dtype: str | None = None) -> Expr:
        values = [o.value if isinstance(o, Expr) else self.const(o).value for o in others]
        return Expr(self.b, self.b.emit(op, dtype or self.dtype, self.value, *values))

    def __add__(self, other: Any) -> Expr:
        return self.apply("add", other)

    def __sub__(self, other: Any) -> Expr:
        return self.apply("sub", other)

    def __mul__(self, other: Any) -> Expr:
        return self.apply("mul", other)

    def __neg__(self) -> Expr:
        return self.apply("neg")

    def __and__(self, other: Expr) -> Expr:
        return self.apply("and", other)

    def __or__(self, other: Expr) -> Expr:
        return self.apply("or", other)

    def __xor__(self, other: Expr) -> Expr:
        return self.apply("xor", other)

    def __invert__(self) -> Expr:
        return self.apply("not")

    def __gt__(self, other: Expr) -> Expr:
        return self.apply("gt", other, dtype="b1")

    def __lt__(self, other: Expr) -> Expr:
        return self.apply("lt", other, dtype="b1")

    def equals(self, other: Expr) -> Expr:
        return self.apply("eq", other, dtype="b1")

    def is_nan(self) -> Expr:
        return self.apply("ne", self, dtype="b1")

    def where(self, yes: Expr, no: Any) -> Expr:
        """``yes`` where this b1 holds, else ``no``."""
        no = no if isinstance(no, Expr) else yes.const(no)
        return Expr(self.b, self.b.emit("select", yes.dtype, self.value, yes.value, no.value))


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """A row: ``function`` maps the slots of a, those of b, and one constant if ``bound``, to the result's slots."""

    name: str
    kinds: str  # a letter for each slot (one letter, one dtype): a any, n number, f float, u unsigned, i integer, b boolean
    function: Callable[..., Any]  # on Expr; if ``traced``, on JAX's arrays: what it traces to in the installed version
    identity: tuple[Any, ...] | None = None  # by slot: a number, or "least", "greatest", "ones"
    derivative: str = "general"
    match: str = "text"
    bound: bool = False
    traced: bool = False

    def fits(self, dtypes: Sequence[str]) -> bool:
        if len(dtypes) != len(self.kinds) or len(set(zip(dtypes, self.kinds, strict=True))) != len(set(self.kinds)):
            return False
        return all(d in _KINDS[k] for d, k in zip(dtypes, self.kinds, strict=True))

    def program(self, dtypes: tuple[str, ...], bound: int | None = None) -> Program:
        """The row as an operator on a struct of these dtypes; ``bound``: the constant's bits."""
        if self.traced:
            return _trace(self.function, dtypes)
        b = Builder(dtypes * 2)
        args = [Expr(b, b.arg(k)) for k in range(2 * len(dtypes))]
        if bound is not None:
            args.append(Expr(b, b.emit("const", dtypes[0], attr=bound)))
        results = self.function(*args)
        return b.finish([r.value for r in (results if isinstance(results, tuple) else (results,))])

    def identity_bits(self, dtypes: Sequence[str]) -> tuple[int, ...] | None:
        if self.identity is None:
            return None
        return tuple(neutral_bits(x, d) for x, d in zip(self.identity, dtypes, strict=True))


_FLOATS, _SIGNED, _UNSIGNED = ("f16", "bf16", "f32", "f64"), ("s8", "s16", "s32", "s64"), ("u8", "u16", "u32", "u64")
_KINDS = {
    "a": ("b1", *_FLOATS, *_SIGNED, *_UNSIGNED), "n": _FLOATS + _SIGNED + _UNSIGNED, "f": _FLOATS, "i": _SIGNED + _UNSIGNED,
    "u": _UNSIGNED, "b": ("b1",),
}  # fmt: skip


def _trace(function: Callable[..., Any], dtypes: tuple[str, ...]) -> Program:
    with jax.enable_x64("f64" in dtypes):
        avals = [jax.ShapeDtypeStruct((), numpy_dtype(d)) for d in dtypes * 2]
        return to_program(jax.make_jaxpr(function)(*avals).jaxpr)


def _max(a: Expr, b: Expr) -> Expr:
    return a.apply("max", b)


def _min(a: Expr, b: Expr) -> Expr:
    return a.apply("min", b)


def _arg(wins: Callable[[Any, Any], Any]) -> Callable[..., tuple[Expr, Expr]]:
    def function(v: Expr, i: Expr, w: Expr, j: Expr) -> tuple[Expr, Expr]:
        tie = v.equals(w) | (v.is_nan() & w.is_nan())
        first = wins(v, w) | (v.is_nan() & ~w.is_nan()) | (tie & (i < j))
        return first.where(v, w), first.where(i, j)

    return function


_argmax, _argmin = _arg(operator.gt), _arg(operator.lt)


def _logaddexp(a: Expr, b: Expr) -> Expr:
    d = a - b
    return d.is_nan().where(a + b, _max(a, b) + (-d.apply("abs")).apply("exp").apply("log1p"))


def _complex_mul(a: Expr, b: Expr, c: Expr, d: Expr) -> tuple[Expr, Expr]:
    return a * c - b * d, a * d + b * c


def _affine(a: Expr, b: Expr, c: Expr, d: Expr) -> tuple[Expr, Expr]:
    return c * a, c * b + d


def _complex_affine(*slots: Expr) -> tuple[Expr, ...]:
    a, b, c, d = (slots[k : k + 2] for k in range(0, 8, 2))
    scaled = _complex_mul(*c, *b)
    return *_complex_mul(*c, *a), scaled[0] + d[0], scaled[1] + d[1]


def _wrapping_sum(a: Expr, b: Expr) -> Expr:
    s = a + b
    return (s < a).where(a.const(np.iinfo(numpy_dtype(a.dtype)).max), s)


def _headroom(a: Expr, b: Expr) -> Expr:
    top = a.const(np.iinfo(numpy_dtype(a.dtype)).max)
    return (a > top - b).where(top, a + b)


def _logsumexp(a: Any, b: Any) -> Any:
    return jax.nn.logsumexp(jnp.stack([a, b]))


KNOWN = (
    Known("and", "b", lambda a, b: a & b, ("ones",), match="order"),
    Known("or", "b", lambda a, b: a | b, (0,), match="order"),
    Known("xor", "b", lambda a, b: a ^ b, (0,), match="order"),
    Known("max", "n", _max, ("least",), "select", "order"),
    Known("min", "n", _min, ("greatest",), "select", "order"),
    Known("fmax", "f", lambda a, b: ((a > b) | b.is_nan()).where(a, b), (np.nan,), "select", "order"),
    Known("fmin", "f", lambda a, b: ((a < b) | b.is_nan()).where(a, b), (np.nan,), "select", "order"),
    Known("select_max", "f", _max, ("least",), "select", "numbers"),
    Known("select_min", "f", _min, ("greatest",), "select", "numbers"),
    Known("argmax", "ai", _argmax, ("least", "greatest"), "arg", "order"),
    Known("argmin", "ai", _argmin, ("greatest", "greatest"), "arg", "order"),
    Known("select_argmax", "fi", _argmax, ("least", "greatest"), "arg", "numbers"),
    Known("select_argmin", "fi", _argmin, ("greatest", "greatest"), "arg", "numbers"),
    Known("add", "n", lambda a, b: a + b, (0,), "add"),
    Known("mul", "n", lambda a, b: a * b, (1,), "mul"),
    Known("and", "i", lambda a, b: a & b, ("ones",)),
    Known("or", "i", lambda a, b: a | b, (0,)),
    Known("xor", "i", lambda a, b: a ^ b, (0,)),
    Known("logaddexp", "f", _logaddexp, ("least",), "result"),
    Known("logaddexp", "f", jnp.logaddexp, ("least",), "result", traced=True),
    Known("logaddexp", "f", _logsumexp, ("least",), "result", traced=True),
    Known("logaddexp2", "f", jnp.logaddexp2, ("least",), "result", traced=True),
    Known("hypot", "f", lambda a, b: (a * a + b * b).apply("sqrt"), (0,), "result"),
    Known("hypot", "f", jnp.hypot, (0,), "result", traced=True),
    Known("complex_mul", "ff", _complex_mul, (1, 0)),
    Known("affine", "nn", _affine, (1, 0)),
    Known("complex_affine", "ffff", _complex_affine, (1, 0, 0, 0)),
    Known("saturating_add", "u", lambda a, b, top: _min(a + b, top), (0,), bound=True),
    Known("saturating_add", "u", _wrapping_sum, (0,)),
    Known("saturating_add", "u", _headroom, (0,)),
)
"""The first row that matches gives the name. A float sum's neutral element is 0.0 as in ``jax.ops.segment_sum``, although
-0.0 + 0.0 is 0.0; that of ``hypot`` and ``saturating_add`` is neutral among their results (not negative; at most the bound)."""


@functools.lru_cache
def rows(dtypes: tuple[str, ...]) -> tuple[Known, ...]:
    """The rows for a struct of these dtypes, in order."""
    return tuple(k for k in KNOWN if k.fits(dtypes))
