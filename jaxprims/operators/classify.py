"""What may be done with an operator: its name, neutral element, independent parts, derivative and atomic update.

An operator on a struct of S scalars (slots) is a Program of 2 S parameters, a's slots then b's, and S results.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ..ir.evaluate import NotEvaluable, evaluate, identical, same
from ..ir.normal_form import simplify
from ..ir.program import (
    COMPARE,
    Builder,
    Instr,
    Program,
    from_bits,
    is_float,
    itemsize,
    narrowed,
    neutral_bits,
    numpy_dtype,
    to_bits,
)
from .known import Known, rows

__all__ = [
    "atomic_class", "decisions", "derivative_class", "identity_of", "is_associative", "is_neutral", "parts", "recognise",
    "restrict", "simplify", "why_no_identity", "wrong_identity",
]  # fmt: skip


def _struct(op: Program) -> tuple[str, ...] | None:
    """The dtypes of the slots, if this is an operator on a struct at all."""
    dtypes = op.result_dtypes
    return dtypes if op.params == dtypes * 2 else None


# --- the name -----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def recognise(op: Program) -> str | None:
    """The operator's name, a row of :data:`~jaxprims.operators.known.KNOWN`, or None.

    Recognition is exact (see known.py): ``jnp.where(a > b, a, b)`` is ``max`` on integers, ``select_max`` on floats. A
    struct has a name if all of its independent parts have the same, on the same dtypes: a complex sum is ``add``, a complex
    product, one part of two slots, ``complex_mul``.
    """
    groups = parts(op) if _struct(op) else ()
    if len(groups) == 1:
        known = _match(op)
        return known.name if known else None
    named = {(recognise(part), part.params) for part in (restrict(op, group) for group in groups)}
    return named.pop()[0] if len(named) == 1 else None


@functools.lru_cache(maxsize=1024)
def _match(op: Program) -> Known | None:
    """The first row that fits an operator of one part."""
    dtypes = op.result_dtypes
    normal, made = simplify(op), decisions(op)
    for known in rows(dtypes):
        if known.match == "text":
            if normal.text in _texts(known, dtypes, _constants(normal) if known.bound else (None,)):
                return known
        elif made is not None and _agree(known.match, made, _reference(known, dtypes), dtypes):
            return known
    return None


def _constants(p: Program) -> tuple[int, ...]:
    return tuple(sorted({i.attr for i in p.body if i.op == "const" and i.dtype == p.params[0]}))


@functools.lru_cache(maxsize=1024)
def _texts(known: Known, dtypes: tuple[str, ...], bounds: tuple[int | None, ...]) -> frozenset[str]:
    """The row's normal forms; a scalar operator's with its arguments swapped as well."""
    programs = [known.program(dtypes, bound) for bound in bounds]
    if len(dtypes) == 1:
        programs += [swapped(p) for p in programs]
    return frozenset(simplify(p).text for p in programs)


def swapped(op: Program) -> Program:
    """(a, b) -> op(b, a)."""
    slots = len(op.results)
    b = Builder(op.params)
    return b.finish(b.inline(op, [b.arg((k + slots) % (2 * slots)) for k in range(2 * slots)]))


# --- operators that only decide -------------------------------------------------------------------------------------------

_DECIDES = frozenset({"arg", "select", "max", "min"}) | COMPARE
_LOGIC = frozenset({"and", "or", "xor", "not", "add", "mul", "const", "convert"})


def _only_decides(p: Program) -> bool:
    """True if all the Program can tell about its arguments is their order, and all it can return is one of them."""

    def decides(i: Instr) -> bool:
        return i.op in _DECIDES or (i.op in _LOGIC and i.dtype == "b1" and all(p.body[o].dtype == "b1" for o in i.operands))

    return len(p.params) <= 4 and all(decides(i) for i in p.body)


def _orders(params: Sequence[str]) -> list[np.ndarray]:
    """Arguments in every order that these parameters can have; floats also with NaN and both zeros."""
    samples = []
    for dtype in params:
        n = params.count(dtype)
        values: list[Any] = [False, True] if dtype == "b1" else list(range(1, n + 1))
        if is_float(dtype):
            values = [*values, 0.0, -0.0, np.nan]
        samples.append(np.array(values, numpy_dtype(dtype)))
    return [np.ravel(grid) for grid in np.meshgrid(*samples, indexing="ij")]


def _decisions(p: Program) -> list[np.ndarray]:
    return evaluate(p, _orders(p.params))


def decisions(op: Program) -> list[np.ndarray] | None:
    """What an operator returns for arguments in every order, floats also NaN and both zeros: all that there is to know of it, if
    it only decides; else None."""
    normal = simplify(op)
    return _decisions(normal) if _only_decides(normal) else None


@functools.lru_cache
def _reference(known: Known, dtypes: tuple[str, ...]) -> list[np.ndarray]:
    return _decisions(known.program(dtypes))


def _agree(match: str, got: list[np.ndarray], wanted: list[np.ndarray], dtypes: tuple[str, ...]) -> bool:
    if match == "order":
        return all(identical(g, w).all() for g, w in zip(got, wanted, strict=True))
    nan = np.any([a != a for a in _orders(dtypes * 2)], axis=0)
    return all((same(g, w) | nan).all() for g, w in zip(got, wanted, strict=True))


# --- structs ----------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def parts(op: Program) -> tuple[tuple[int, ...], ...]:
    """Groups of slots, in order, such that a group's results depend on its own slots of a and b alone."""
    slots = len(op.results)
    group, sources = list(range(slots)), op.sources()
    for slot, result in enumerate(op.results):
        joined = {group[k % slots] for k in sources[result]} | {group[slot]}
        group = [min(joined) if g in joined else g for g in group]
    return tuple(tuple(k for k in range(slots) if group[k] == g) for g in sorted(set(group)))


def restrict(op: Program, slots: tuple[int, ...]) -> Program:
    """The operator on these slots alone, in this order: one of its :func:`parts`, or several."""
    return narrowed(op, [*slots, *(s + len(op.results) for s in slots)], [op.results[s] for s in slots])


# --- what follows from the name ------------------------------------------------------------------------------------------------


def identity_of(op: Program, name: str | None) -> tuple[int, ...] | None:
    """The neutral element's bits, slot by slot; None unless every independent part has a known one.

    ``name`` is :func:`recognise`'s answer. The rule: ``e ⊙ x`` and ``x ⊙ e`` are x, bit for bit, any NaN for a NaN. Of operators
    that only decide it is proved, on every kind of value: ``jnp.where(a > b, a, b)`` on floats has none, since ``x ⊙ -inf`` is
    -inf where x is NaN; with a test for NaN it may have -inf, or NaN. Of arithmetic it is algebra's: a float sum's is 0.0 (so
    -0.0 alone sums to 0.0, as in ``jax.ops.segment_sum``).
    """
    groups = parts(op)
    if len(groups) == 1:
        known = _match(op) if name else None
        return _proved_identity(op, known) if known else None
    bits: dict[int, int] = {}
    for group in groups:
        part = restrict(op, group)
        found = identity_of(part, recognise(part))
        if found is None:
            return None
        bits.update(zip(group, found, strict=True))
    return tuple(bits[k] for k in range(len(op.results)))


def _proved_identity(op: Program, known: Known) -> tuple[int, ...] | None:
    dtypes, bits = op.result_dtypes, known.identity_bits(op.result_dtypes)
    if known.match == "text" or bits is None:
        return bits
    candidates = [bits, (to_bits(np.nan, dtypes[0]), *bits[1:])] if is_float(dtypes[0]) else [bits]
    return next((c for c in candidates if is_neutral(op, c)), None)


def is_neutral(op: Program, bits: tuple[int, ...], strictly: bool = True, of_nan: bool = True) -> bool:
    """Does an operator give x for x and this, on either side, for x of every kind? One that only decides: for every value.
    ``strictly``: a zero of the same sign for a zero; ``of_nan``: NaN for NaN."""
    dtypes = op.result_dtypes
    kinds = [k if of_nan else k[k == k] for k in map(_kinds_of, dtypes)]
    x = [np.ravel(v) for v in np.meshgrid(*kinds, indexing="ij")]
    e = [np.full(v.shape, from_bits(b, d), v.dtype) for v, b, d in zip(x, bits, dtypes, strict=True)]
    sides = (evaluate(op, [*e, *x]), evaluate(op, [*x, *e]))
    pairs = [(got, v) for side in sides for got, v in zip(side, x, strict=True)]
    return all((identical(got, v) if strictly else (got == v) | ((got != got) & (v != v))).all() for got, v in pairs)


def _kinds_of(dtype: str) -> np.ndarray:
    """Values of every kind: NaN, infinities, zeros, denormals and the like of both signs."""
    t = numpy_dtype(dtype)
    if dtype == "b1":
        return np.array([False, True])
    if not is_float(dtype):
        info = np.iinfo(t)
        return np.array(sorted({info.min, info.min + 1, max(-1, info.min), 0, 1, info.max - 1, info.max}), t)
    limits = ml_dtypes.finfo(t)
    sizes = np.array([np.nan, np.inf, 0.0, 1.0, limits.max, limits.smallest_normal, limits.smallest_subnormal], t)
    return np.concatenate([sizes, -sizes])


def why_no_identity(name: str | None) -> str:
    """What to tell about an operator of this name that has none."""
    if name is None or not name.startswith("select_"):
        return ""
    worst, plain = "-inf" if name.endswith("max") else "inf", name.removeprefix("select_")
    worst, other = (f"({worst}, the greatest index)", f"monoids.{plain}") if "arg" in name else (worst, f"jnp.{plain}imum")
    return f" ({worst} is neutral for all but NaN: give it if there is none, or take {other})"


def derivative_class(op: Program) -> str:
    """How the operator is differentiated: "add"; "mul"; "select" (the minimum's and maximum's family); "result" (by the
    element and the whole result alone: logaddexp, hypot); "arg" (a pair of value and index); else "general".

    A struct has a class if all of its independent parts have the same.
    """
    groups = parts(op) if _struct(op) else ()
    known = [_match(restrict(op, group)) for group in groups]
    classes = {k.derivative if k else "general" for k in known}
    if len(classes) != 1 or (classes == {"arg"} and len(groups) > 1):
        return "general"
    return classes.pop()


_HARDWARE = {
    "add": ("s32", "u32", "s64", "u64", "f16", "bf16", "f32", "f64"),
    **dict.fromkeys(("min", "max", "and", "or", "xor"), ("s32", "u32", "s64", "u64")),
}
"""The types of NVIDIA's atomic instructions for each operator. Their float minimum ignores NaN; XLA's does not."""


def atomic_class(op: Program, acc: tuple[str, ...]) -> str:
    """The class of an update of a bin on NVIDIA GPUs (Henriksen et al. 2020, III-B): "HDW", "CAS" or "XCG".

    HDW: one hardware atomic; CAS: a compare-and-swap loop on an element of one word, a struct packed in it; XCG: a
    lock. ``acc``: the dtypes in which the bins are kept. Independent
    parts of a struct are updated one by one, so the struct's class is the worst of theirs.
    """

    def of_part(group: tuple[int, ...]) -> str:
        name = recognise(restrict(op, group))
        if len(group) == 1 and name is not None and acc[group[0]] in _HARDWARE.get(name, ()):
            return "HDW"
        return "CAS" if 8 * sum(itemsize(acc[k]) for k in group) <= 64 else "XCG"

    return max((of_part(group) for group in parts(op)), key=("HDW", "CAS", "XCG").index)


# --- a wrong identity --------------------------------------------------------------------------------------------------------


def wrong_identity(op: Program, identity: tuple[int, ...]) -> str | None:
    """A sentence on a value x for which op(identity, x) is not x, or None; ``identity``: bits by slot.

    Only fair witnesses count: results of the operator, where it is associative, since many operators are monoids on
    some of the dtype's values (counts that are positive, sums under a bound). A NaN that the operator ignores is none, nor is
    a NaN that it makes of an infinity.
    """
    dtypes = _struct(op)
    if dtypes is None or identity == identity_of(op, recognise(op)):
        return None
    neutral = [np.asarray(from_bits(bits, d)) for bits, d in zip(identity, dtypes, strict=True)]
    try:
        x = _results(op, dtypes)
        got = evaluate(op, [*(np.broadcast_to(n, v.shape) for n, v in zip(neutral, x, strict=True)), *x])
        wrong = ~_close(got, x) & ~np.any([(v != v) & same(g, n) for g, v, n in zip(got, x, neutral, strict=True)], axis=0)
        wrong &= ~np.any([_infinite(v) & (g != g) for g, v in zip(got, x, strict=True)], axis=0)
        fair = _associative(op, dtypes, x) if wrong.any() else wrong
    except NotEvaluable:
        return None
    witnesses = np.flatnonzero(wrong & fair if fair[:_ORDINARY].any() else wrong)  # associative nowhere: all count
    if not witnesses.size:
        return None
    first = witnesses[0]
    shown = [_shown([v if v.ndim == 0 else v[first] for v in values]) for values in (neutral, x, got)]
    return f"op(identity, x) = {shown[2]} is not x = {shown[1]} for identity = {shown[0]}"


def _infinite(v: np.ndarray) -> np.ndarray:
    return np.abs(v) == np.inf if v.dtype.kind not in "biu" else np.zeros(v.shape, np.bool_)


_POSITIVE, _NEGATIVE = (1, 2, 3, 5, 7), (-11, -17, -29)  # no two of them add up to zero
_ORDINARY = 64  # samples of those
_EXTREME = ("least", "greatest", 0, 1, np.nan)


def _results(op: Program, dtypes: tuple[str, ...]) -> list[np.ndarray]:
    """What the operator gives on ordinary values and, if on one scalar, on extreme ones."""
    rng = np.random.default_rng(0)

    def ordinary(dtype: str) -> np.ndarray:
        values: tuple[Any, ...] = (False, True) if dtype == "b1" else _POSITIVE if dtype[0] == "u" else _POSITIVE + _NEGATIVE
        return rng.choice(np.array(values, numpy_dtype(dtype)), _ORDINARY)

    results = evaluate(op, [ordinary(d) for d in op.params])
    if len(dtypes) > 1:
        return results
    bits = {neutral_bits(v, dtypes[0]) for v in _EXTREME if v == v or is_float(dtypes[0])}
    extreme = np.array([from_bits(b, dtypes[0]) for b in sorted(bits)], numpy_dtype(dtypes[0]))
    pairs = np.meshgrid(extreme, extreme, indexing="ij")
    return [np.concatenate([results[0], *evaluate(op, [np.ravel(v) for v in pairs])])]


def _associative(op: Program, dtypes: tuple[str, ...], x: list[np.ndarray]) -> np.ndarray:
    """Where op(op(x, p), q) is op(x, op(p, q)) for some small positive p and q."""
    holds = np.ones(x[0].shape, np.bool_)
    for k in range(3):
        p, q = ([np.full(x[0].shape, _POSITIVE[(k + j) % 5] % 2 if d == "b1" else _POSITIVE[(k + j) % 5], numpy_dtype(d))
                 for d in dtypes] for j in (0, 2))  # fmt: skip
        holds &= _close(evaluate(op, [*evaluate(op, [*x, *p]), *q]), evaluate(op, [*x, *evaluate(op, [*p, *q])]))
    return holds


def is_associative(op: Program, slots: int) -> bool:
    """Is op(op(x, y), z) op(x, op(y, z)), up to rounding, for nearly all of some ordinary values? ``slots``: of x; what the
    operator takes beside x and y stays the same."""
    rng = np.random.default_rng(0)

    def ordinary(dtype: str, size: tuple[int, ...]) -> np.ndarray:
        values: tuple[Any, ...] = (False, True) if dtype == "b1" else _POSITIVE if dtype[0] == "u" else _POSITIVE + _NEGATIVE
        if dtype != "b1" and not is_float(dtype) and itemsize(dtype) <= 2:  # which is soon full
            most = np.iinfo(numpy_dtype(dtype)).max
            values += (most, most // 2, most // 3, most - 1)
        return rng.choice(np.array(values, numpy_dtype(dtype)), size) / (4 if is_float(dtype) else 1)

    x, y, z = ([ordinary(d, (_ORDINARY,)).astype(numpy_dtype(d)) for d in op.params[:slots]] for _ in range(3))
    more = [ordinary(d, (_ORDINARY,)).astype(numpy_dtype(d)) for d in op.params[2 * slots :]]
    try:
        left = evaluate(op, [*evaluate(op, [*x, *y, *more]), *z, *more])
        right = evaluate(op, [*x, *evaluate(op, [*y, *z, *more]), *more])
    except NotEvaluable:
        return False
    return bool(np.mean(_close(left, right)) > 0.95)


def _close(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> np.ndarray:
    """Where structs are equal: integers exactly, floats up to rounding."""

    def close(u: np.ndarray, v: np.ndarray) -> np.ndarray:
        if u.dtype.kind in "biu":
            return u == v
        tolerance = np.sqrt(np.float64(ml_dtypes.finfo(u.dtype).eps))
        wide_u, wide_v = u.astype(np.float64), v.astype(np.float64)
        with np.errstate(all="ignore"):
            return same(u, v) | (np.abs(wide_u - wide_v) <= tolerance * (1 + np.minimum(np.abs(wide_u), np.abs(wide_v))))

    return np.all([close(u, v) for u, v in zip(a, b, strict=True)], axis=0)


def _shown(values: Sequence[Any]) -> str:
    words = [str(v) for v in values]
    return words[0] if len(words) == 1 else f"({', '.join(words)})"
