"""Directions in which an element moves as the result does: derivatives by (element, result), without what else is combined.

Let e be neutral, and e' near it. With t = a ⊕ r of an operator that associates and commutes, t ⊕ e' = (a ⊕ e') ⊕ r: what moves
a to a ⊕ e' moves t to t ⊕ e', whatever r is. So the derivative of t by a takes the tangent of a ⊕ e' to that of t ⊕ e'. These are
*fields*. With as many as an element has numbers, independent at a, every tangent of a is a sum of them, and so is what it does to
t. Where one number of e may be any (the mean of no elements), its derivative by that is a field as well: of Welford's operator,
(1, m' - m, ...) by the count, (0, 1 / n, ...) by the count and then by the mean m', and (0, 0, 1).

That fields are independent, and of which form, is found on samples. It holds everywhere where numbers that choose a branch, or
divide, are *counters*: sums of what is positive.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..ir.evaluate import NotEvaluable, evaluate
from ..ir.program import COMPARE, Program
from ..tracing.lower import Unsupported, to_program
from . import classify
from .operator import Operator, identity_leaves

MOST_LEAVES = 6
SAMPLES = 64

SMOOTH = frozenset("arg const add sub mul div neg exp exp2 expm1 log log1p sqrt rsqrt sin cos tanh logistic".split())
"""Operations that are smooth wherever they are finite."""

DECIDE = COMPARE | {"and", "or", "not", "xor", "is_finite"}


@dataclasses.dataclass(frozen=True)
class Field:
    """The derivative of x ⊕ e by leaf ``by`` of e, and of that by leaf ``along``. ``row``: the leaf of x that this field alone
    moves, of those that follow; ``moves``: all leaves that it moves."""

    by: int
    along: int | None
    row: int = -1
    moves: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Invariant:
    """``fields``, as many as there are leaves, each with a row that none of those before it moves. ``free``: leaves in which a
    neutral element may have any number; ``counters``: leaves that have to be positive in all elements."""

    fields: tuple[Field, ...]
    free: tuple[int, ...]
    counters: frozenset[int]


def vectors(operator: Operator, fields: Sequence[Field], x: Sequence[Any], free: dict[int, Any]) -> list[list[Any]]:
    """Of each field the tangents, by leaf, at the scalars ``x``; ``free``: the neutral element's numbers in these leaves."""
    neutral = [free.get(k, jnp.asarray(e)) for k, e in enumerate(identity_leaves(operator))]

    def moved(by: int, f: Callable[[list[Any]], list[Any]], at: list[Any]) -> list[Any]:
        one = jnp.ones_like(at[by])
        return jax.jvp(lambda y: f([*at[:by], y, *at[by + 1 :]]), (at[by],), (one,))[1]

    def result(at: list[Any]) -> list[Any]:
        return operator.traced([], *x, *at)

    out = []
    for field in fields:
        once = functools.partial(moved, field.by, result)
        out.append(once(neutral) if field.along is None else moved(field.along, once, neutral))
    return out


@functools.lru_cache(maxsize=512)
def invariant_of(operator: Operator) -> Invariant | None:
    """None where it has no such fields, or they are not known to be independent."""
    scalars = all(s == () and d in (np.float32, np.float64) for s, d in zip(operator.shapes, operator.dtypes, strict=True))
    simple = operator.lanes == 1 and not operator.large and operator.traced.captured == 0 and not operator.traced.has_rules
    if not (scalars and simple and operator.identity is not None and 1 < len(operator.shapes) <= MOST_LEAVES):
        return None
    try:
        return _Search(operator).found()
    except (Unsupported, NotEvaluable):
        return None


class _Search:
    """For one operator, on samples."""

    def __init__(self, operator: Operator):
        self.operator, self.n = operator, len(operator.shapes)
        self.identity = identity_leaves(operator)
        self.sums = [k for k in range(self.n) if _is_sum(operator.program, k)]
        rng = np.random.default_rng(0)
        self.x, self.other, self.any = ([self._sample(rng, k) for k in range(self.n)] for _ in range(3))

    def _sample(self, rng: np.random.Generator, k: int) -> np.ndarray:
        dtype = self.operator.dtypes[k]
        if k in self.sums:
            return rng.integers(1, 9, SAMPLES).astype(dtype)
        return rng.normal(size=SAMPLES).astype(dtype)

    def found(self) -> Invariant | None:
        chosen = _deciding(self.operator.program)
        if not all(np.isfinite(e) for e in self.identity):
            return None
        if chosen is None or not chosen <= set(self.sums):
            return None
        free = tuple(k for k in range(self.n) if k not in chosen and self._is_neutral([k]))
        if not self._is_neutral(free) or len(free) == self.n:
            return None
        fixed = [k for k in range(self.n) if k not in free]
        candidates = [Field(z, None) for z in fixed] + [Field(z, f) for z in fixed for f in free]
        at = self._values(candidates, free, self.x, self.any)
        fields = self._independent(candidates, at)
        if fields is None:
            return None
        counters = self._counters(fields, free)
        if counters is None or not self._agrees(fields, free):
            return None
        return Invariant(fields, free, frozenset(counters | chosen))

    def _is_neutral(self, free: Sequence[int]) -> bool:
        e = [
            a if k in free else np.broadcast_to(i, SAMPLES) for k, (a, i) in enumerate(zip(self.any, self.identity, strict=True))
        ]
        program = self.operator.program
        return all(_close(evaluate(program, both), self.x) for both in ([*self.x, *e], [*e, *self.x]))

    def _values(self, fields: Sequence[Field], free: Sequence[int], x: Sequence[Any], of_free: Sequence[Any]) -> np.ndarray:
        """[field, leaf, sample]."""

        def f(*args: Any) -> list[Any]:
            rows = vectors(self.operator, fields, args[: self.n], dict(zip(free, args[self.n :], strict=True)))
            return [y for row in rows for y in row]

        avals = [jax.ShapeDtypeStruct((), d) for d in (*self.operator.dtypes, *(self.operator.dtypes[k] for k in free))]
        program = to_program(jax.make_jaxpr(f)(*avals).jaxpr)
        out = evaluate(program, [*x, *(of_free[k] for k in free)])
        return np.stack([np.broadcast_to(y, SAMPLES) for y in out]).reshape(len(fields), self.n, SAMPLES)

    def _independent(self, candidates: Sequence[Field], at: np.ndarray) -> tuple[Field, ...] | None:
        """In an order in which each has a row that none of those before it moves."""
        if not np.isfinite(at).all():
            return None
        moves = [frozenset(k for k in range(self.n) if (at[j, k] != 0).any()) for j in range(len(candidates))]
        left, chosen = set(range(self.n)), []
        while left:
            single = next((j for j in range(len(candidates)) if len(moves[j] & left) == 1), None)
            if single is None:
                return None
            (row,) = moves[single] & left
            if (at[single, row] == 0).any():
                return None
            chosen.append(dataclasses.replace(candidates[single], row=row, moves=moves[single]))
            left.remove(row)
        return tuple(chosen)

    def _counters(self, fields: Sequence[Field], free: Sequence[int]) -> set[int] | None:
        """What each field's own row depends on; None if on other leaves than sums, or if it may be zero."""
        used: set[int] = set()
        diagonal = [(j, f.row) for j, f in enumerate(fields)]
        values = self._values(fields, free, self.x, self.any)
        for k in (*range(self.n), None):
            x, of_free = list(self.x), self.any
            if k is None:
                of_free = self.other
            else:
                x[k] = np.full_like(x[k], 1000) if k in self.sums else self.other[k]
            changed = self._values(fields, free, x, of_free)
            same = all((values[d] == changed[d]).all() for d in diagonal)
            if not same and (k is None or k not in self.sums or any((changed[d] == 0).any() for d in diagonal)):
                return None
            if not same and k is not None:
                used.add(k)
        return used

    def _agrees(self, fields: Sequence[Field], free: Sequence[int]) -> bool:
        """Is it the operator's derivative?"""
        program = self.operator.program
        t = evaluate(program, [*self.x, *self.other])
        if not _close(evaluate(program, [*self.other, *self.x]), t):
            return False
        at_x, at_t = self._values(fields, free, self.x, t), self._values(fields, free, t, t)
        n = self.n

        def jacobian(*args: Any) -> list[Any]:
            out: list[Any] = []
            for k in range(n):
                move = lambda y, k=k: self.operator.traced([], *args[:k], y, *args[k + 1 :])  # noqa: E731
                out += jax.jvp(move, (args[k],), (jnp.ones_like(args[k]),))[1]
            return out

        avals = [jax.ShapeDtypeStruct((), d) for d in self.operator.dtypes] * 2
        wanted = evaluate(to_program(jax.make_jaxpr(jacobian)(*avals).jaxpr), [*self.x, *self.other])
        for k in range(n):
            v: list[Any] = [np.ones(SAMPLES) if j == k else None for j in range(n)]
            parts = solved(fields, at_x, v)
            got = combined(fields, at_t, parts)
            every = [np.zeros(SAMPLES) if g is None else g for g in got]
            if not _close(every, [np.broadcast_to(w, SAMPLES) for w in wanted[k * n : (k + 1) * n]]):
                return False
        return True


def solved(fields: Sequence[Field], at: Any, v: Sequence[Any]) -> list[Any]:
    """How much of each field, whose tangents are ``at``, is in the tangents ``v``. None for zero, there and here."""
    rest, out = list(v), [None] * len(fields)
    for j in reversed(range(len(fields))):
        field = fields[j]
        if rest[field.row] is None:
            continue
        out[j] = rest[field.row] / at[j][field.row]
        for k in field.moves - {field.row}:
            move = at[j][k] * out[j]
            rest[k] = -move if rest[k] is None else rest[k] - move
        rest[field.row] = None
    return out


def combined(fields: Sequence[Field], at: Any, parts: Sequence[Any]) -> list[Any]:
    """The tangents that have so much of each field. None for zero."""
    out: list[Any] = [None] * len(fields)
    for j, (field, part) in enumerate(zip(fields, parts, strict=True)):
        for k in field.moves if part is not None else ():
            move = at[j][k] * part
            out[k] = move if out[k] is None else out[k] + move
    return out


def _close(got: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """In the precision of single numbers."""
    return all(np.allclose(g, w, rtol=2e-3, atol=2e-3) for g, w in zip(got, wanted, strict=True))


def _is_sum(program: Program, slot: int) -> bool:
    try:
        return classify.recognise(classify.restrict(program, (slot,))) == "add"
    except ValueError:
        return False


def _deciding(program: Program) -> set[int] | None:
    """The slots on which its branches depend; None where it is not smooth between them."""
    if any(i.op not in SMOOTH | DECIDE | {"select"} for i in program.body):
        return None
    made_of = zip(program.body, program.sources(), strict=True)
    return {k % len(program.results) for i, sources in made_of if i.op in DECIDE for k in sources}
