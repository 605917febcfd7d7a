"""Operators that keep an extreme and sums relative to it, as an "online softmax" does: (m, s) of two is m = max(m1, m2) and
s = s1 * w(m1, m) + s2 * w(m2, m), with any number of sums, and w = exp(x - m), say.

Where w(x, m) * w(m, n) is w(x, n), the elements' sums can be made after the extreme M, each number weighed once, by w(x, M).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..ir.evaluate import NotEvaluable, evaluate
from ..ir.normal_form import simplify
from ..ir.program import Builder, Instr, Program, from_bits, numpy_dtype

KNOWN = frozenset(
    "arg const add sub mul div neg abs max min exp exp2 expm1 eq ne lt le gt ge and or not is_finite select".split()
)
"""What a weight is made of."""


@dataclasses.dataclass(frozen=True)
class Weighted:
    """``top``: the slot of the extreme, a "max" or "min" by ``name``; the others are sums. ``weight``: (x, extreme) -> w."""

    top: int
    name: str
    weight: Program


@functools.lru_cache(maxsize=512)
def weighted(op: Program) -> Weighted | None:
    """None for other operators, and where the weights are not known to multiply."""
    n, types = len(op.results), set(op.params)
    if n < 2 or op.params != op.result_dtypes * 2 or types not in ({"f32"}, {"f64"}):
        return None
    normal = simplify(op)
    args = {i.attr: v for v, i in enumerate(normal.body) if i.op == "arg"}
    for top, result in enumerate(normal.results):
        i = normal.body[result]
        if i.op in ("max", "min") and len(args) == 2 * n and set(i.operands) == {args[top], args[n + top]}:
            weights = [w for k in range(n) if k != top for w in _weights(normal, args, k, top)]
            if None not in weights and len(set(weights)) == 1 and _multiplies(weights[0], i.op):
                return Weighted(top, i.op, weights[0])
    return None


def _weights(p: Program, args: dict[int, int], slot: int, top: int) -> list[Any]:
    """Those of both arguments, where the slot is a sum of products with them."""
    n, total = len(p.results), p.body[p.results[slot]]
    if total.op != "add":
        return [None]
    out = []
    for side in (0, n):
        factors = [f for v in total.operands if p.body[v].op == "mul" for f in (p.body[v].operands, p.body[v].operands[::-1])]
        found = [w for a, w in factors if a == args[slot + side]]
        out.append(_weight(p, found[0], args[top + side], p.results[top]) if len(found) == 1 else None)
    return out


def _weight(p: Program, value: int, x: int, top: int) -> Program | None:
    """The value as a function of the extreme and one argument's; None if it is of anything else."""
    t = p.params[0]
    b = Builder((t, t))
    made: dict[int, int] = {x: b.arg(0), top: b.arg(1)}

    def make(v: int) -> int | None:
        i = p.body[v]
        if v not in made:
            operands = [make(o) for o in i.operands]
            if i.op == "arg" or i.op not in KNOWN or None in operands:
                return None
            made[v] = b.emit(i.op, i.dtype, *(o for o in operands if o is not None), attr=i.attr)
        return made[v]

    result = make(value)
    return None if result is None else simplify(b.finish([result]))


def _multiplies(weight: Program, name: str) -> bool:
    """On samples: is w(x, x) 1, and w(x, m) * w(m, n) what w(x, n) is? Or not finite: then results depend on the order. And is
    w(x, m) 1 where x is next to m? It is not of an operator that counts the elements equal to the extreme, which two passes,
    each of which makes the elements, may not find equal."""
    t = numpy_dtype(weight.params[0])
    numbers = np.concatenate([np.random.default_rng(0).normal(size=12) * 4, [0, 1, -1, np.inf, -np.inf]])
    x, m, n = (v.ravel().astype(t) for v in np.meshgrid(numbers, numbers, numbers))
    ordered = (x <= m) & (m <= n) if name == "max" else (x >= m) & (m >= n)
    x, m, n = x[ordered], m[ordered], n[ordered]
    try:
        beside = np.nextafter(m, t.type(-np.inf if name == "max" else np.inf))
        w = [evaluate(weight, pair)[0] for pair in ((x, m), (m, n), (x, n), (m, m), (beside, m))]
    except NotEvaluable:
        return False
    with np.errstate(all="ignore"):
        two = w[0] * w[1]
    one = (np.isclose(w[3], 1) & np.isclose(w[4], 1, rtol=1e-3)) | ~np.isfinite(m)
    return bool(one.all() and (np.isclose(two, w[2], rtol=1e-4, atol=1e-12) | ~np.isfinite(two)).all())


def on_arrays(weight: Program, x: Any, top: Any) -> Any:
    """A weight of JAX's arrays of one shape."""

    def made(i: Instr, operands: list[Any]) -> Any:
        match i.op:
            case "const":
                return jnp.full_like(x, from_bits(i.attr, i.dtype), dtype=numpy_dtype(i.dtype))
            case "select":
                return jnp.where(*operands)
            case "and" | "or" | "not":
                return getattr(lax, f"bitwise_{i.op}")(*operands)
        return getattr(lax, i.op)(*operands)

    return weight.run((x, top), made)[0]
