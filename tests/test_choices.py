"""Operators that give one of their arguments, whole: bins that seldom change are updated by a branch, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp
from jaxprims.ir.choices import replaces
from jaxprims.ir.evaluate import evaluate
from jaxprims.ir.program import Program
from jaxprims.specs.histogram_layout import Variant
from jaxprims.tracing.lower import to_program


def larger(a: Any, b: Any) -> Any:
    """The larger value, of equal ones the first position, as anyone writes it."""
    mine = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return jnp.where(mine, a[0], b[0]), jnp.where(mine, a[1], b[1])


def position_first(a: Any, b: Any) -> Any:
    mine = (a[1] > b[1]) | ((a[1] == b[1]) & (a[0] < b[0]))
    return jnp.where(mine, a[0], b[0]), jnp.where(mine, a[1], b[1])


def other_way(a: Any, b: Any) -> Any:
    theirs = ~(a[0] > b[0]) & ((a[0] < b[0]) | (b[1] < a[1]))
    return jnp.where(theirs, b[0], a[0]), jnp.where(theirs, b[1], a[1])


CHOOSE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "larger": (larger, (np.float32, np.int32)),
    "position first": (position_first, (np.int32, np.float32)),
    "the other way": (other_way, (np.float32, np.int32)),
    "maximum": (lambda a, b: (jnp.maximum(a[0], b[0]),), (np.int64,)),
    "minimum": (lambda a, b: (jnp.minimum(b[0], a[0]),), (np.uint8,)),
}
NOT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "each by itself": (lambda a, b: (jnp.maximum(a[0], b[0]), jnp.maximum(a[1], b[1])), (np.int32, np.int32)),
    "of two minds": (lambda a, b: (jnp.where(a[0] > b[0], a[0], b[0]), jnp.where(a[1] > b[1], a[1], b[1])), (np.int32, np.int32)),
    "crosswise": (lambda a, b: (jnp.where(a[0] > 0, a[0], b[1]), jnp.where(a[0] > 0, a[1], b[0])), (np.int32, np.int32)),
    "a sum": (lambda a, b: (a[0] + b[0],), (np.int32,)),
    "floats, of which NaN wins": (lambda a, b: (jnp.maximum(a[0], b[0]),), (np.float32,)),
}  # fmt: skip


def program(op: Callable[..., Any], dtypes: tuple[Any, ...]) -> Program:
    n, avals = len(dtypes), [jax.ShapeDtypeStruct((), np.dtype(d)) for d in dtypes] * 2
    return to_program(jax.make_jaxpr(lambda *xs: op(xs[:n], xs[n:]))(*avals).jaxpr)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CHOOSE)
def test_which_one(name: str) -> None:
    op, dtypes = CHOOSE[name]
    rng = np.random.default_rng(0)
    args = [rng.integers(0, 3, 500).astype(d) for d in dtypes * 2]
    for a in args:
        if a.dtype.kind == "f":
            a[rng.random(500) < 0.2] = np.nan
    found = replaces(program(op, dtypes))
    assert found is not None
    second = np.logical_and.reduce([evaluate(p, args)[0] for p in found])
    for k, result in enumerate(evaluate(program(op, dtypes), args)):
        np.testing.assert_array_equal(result, np.where(second, args[len(dtypes) + k], args[k]))


@pytest.mark.parametrize("name", NOT)
def test_not_known_to(name: str) -> None:
    assert replaces(program(*NOT[name])) is None


@pytest.mark.cover(7)
@pytest.mark.parametrize("name", ["larger", "position first", "the other way"])
@pytest.mark.parametrize(("n", "h"), [(3000, 3), (90_000, 3), (90_000, 20_000)])
def test_bins(name: str, n: int, h: int) -> None:
    """Some elements dropped, with ties."""
    op, dtypes = CHOOSE[name]
    rng = np.random.default_rng(1)
    values, index = rng.integers(0, 50, n).astype(np.float32), rng.integers(-1, h + 1, n).astype(np.int32)
    first = dtypes[0] == np.float32
    identity = (-np.inf, 2**31 - 1) if first else (2**31 - 1, -np.inf)

    def call(v: jax.Array, i: jax.Array) -> Any:
        return jp.reduce_by_index((v, jp.positions) if first else (jp.positions, v), i, h, op, identity=identity)

    best, position = np.full(h, -np.inf, np.float32), np.full(h, 2**31 - 1, np.int32)
    kept = np.flatnonzero((index >= 0) & (index < h))
    order = kept[np.lexsort((kept, -values[kept], index[kept]))]
    bins, at = np.unique(index[order], return_index=True)
    best[bins], position[bins] = values[order[at]], order[at]
    result = jax.jit(call)(values, index)
    np.testing.assert_array_equal(result[0 if first else 1], best)
    np.testing.assert_array_equal(result[1 if first else 0], position)


@pytest.mark.cpu
def test_takes_a_branch() -> None:
    """Where many elements come to a bin, and to none that is far away."""
    for op, n, h, branch in ((larger, 100_000, 10, True), (larger, 1000, 500, False), (larger, 10**9, 10**6, False)):
        given = jax.ShapeDtypeStruct((n,), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.int32)
        call = lambda v, i, h=h, op=op: jp.reduce_by_index((v, v.astype(int)), i, h, op, identity=(-np.inf, 2**31 - 1))  # noqa: E731
        (planned,) = jp.explain(call)(*given).calls
        assert Variant.decode(planned.variant).settled == branch
