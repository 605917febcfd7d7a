"""Pairs of a value and a position as one word: which operators are such an order, and that nothing changes by it, to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp

pytestmark = pytest.mark.usefixtures("strict")
ORDERS = list(itertools.product((True, False), repeat=3))
LAST = 2**31 - 1


def operator(largest: bool, first: bool, nan_wins: bool, place: int = 1) -> Callable[[Any, Any], Any]:
    """Of (value, position), or the other way round."""

    def op(a: Any, b: Any) -> Any:
        (v, i), (w, j) = (a[1 - place], a[place]), (b[1 - place], b[place])
        strange, other = jnp.isnan(v), jnp.isnan(w)
        alone = strange & ~other if nan_wins else other & ~strange
        mine = (v > w if largest else v < w) | alone | (((v == w) | (strange & other)) & (i < j if first else i > j))
        return tuple(jnp.where(mine, x, y) for x, y in zip(a, b, strict=True))

    return op


def worst(largest: bool, dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return -np.inf if largest else np.inf
    info = np.iinfo(dtype)
    return info.min if largest else info.max


def values(dtype: Any, n: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    if not jnp.issubdtype(dtype, jnp.floating):
        info = np.iinfo(dtype)
        return rng.choice(np.array([info.min, info.max, 0, 1, 2, 3], dtype), n)
    return rng.choice(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5, 1e-40], np.float32), n).astype(dtype)


def best(x: np.ndarray, ids: np.ndarray, bins: int, order: tuple[bool, bool, bool], start: tuple[Any, int]) -> list[Any]:
    """Sequentially, of each bin."""
    largest, first, nan_wins = order

    def key(v: Any, i: int) -> tuple[Any, ...]:
        number = float(v)
        nan = number != number
        return (nan == nan_wins) if nan or nan_wins else True, 0 if nan else number if largest else -number, -i if first else i

    found: list[Any] = [start] * bins
    for i, (v, k) in enumerate(zip(x, ids, strict=True)):
        found[k] = max(found[k], (v, i), key=lambda pair: key(*pair))
    return found


def bits(x: Any) -> Any:
    a = np.asarray(x)
    return np.where(a != a, 7, a.view(f"u{a.dtype.itemsize}"))


def packed(fn: Callable[..., Any], *args: Any) -> bool:
    (call,) = jp.explain(fn)(*args).calls
    (part,) = call.spec.bins
    return part.acc == ("s64",)


@pytest.mark.cover(2)
@pytest.mark.parametrize(
    ("order", "dtype"),
    [*((o, jnp.float32) for o in ORDERS), *zip(ORDERS, (jnp.bfloat16, jnp.int32, jnp.uint32, jnp.uint8) * 2, strict=True)],
)
def test_orders(order: tuple[bool, bool, bool], dtype: Any) -> None:
    n, bins = 700, 40
    x = values(dtype, n)
    ids = np.random.default_rng(3).integers(0, bins - 1, n).astype(np.int32)  # the last one stays empty
    for place, none in ((1, LAST if order[1] else -1), (0, -1), (1, 5)):
        neutral = (worst(order[0], dtype), none)

        def run(x: Any, ids: Any, place: int = place, neutral: tuple[Any, int] = neutral) -> Any:
            pair, identity = ((x, jp.positions), neutral) if place else ((jp.positions, x), neutral[::-1])
            got = jp.reduce_by_index(pair, ids, bins, operator(*order, place), identity=identity)
            return got if place else got[::-1]

        with pytest.MonkeyPatch.context() as patch:  # some of these are neutral for no element: that is what is wanted here
            patch.setattr("jaxprims.calls.histogram.warn_identity", lambda wrong: None)
            assert packed(run, x, ids)
            got = jax.tree.map(np.asarray, jax.jit(run)(x, ids))
        wanted = best(x, ids, bins, order, (np.array(neutral[0], dtype)[()], none))
        np.testing.assert_array_equal(got[1], [i for _, i in wanted])
        np.testing.assert_array_equal(bits(got[0]), bits(np.array([v for v, _ in wanted], dtype)))


@pytest.mark.cover(3)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("place", [0, 1])
def test_reductions_and_segments(order: tuple[bool, bool, bool], place: int) -> None:
    n = 3000
    x = values(np.float32, n)
    ids = np.sort(np.random.default_rng(3).integers(0, 30, n)).astype(np.int32)
    neutral = (worst(order[0], np.float32), -1)
    pair, identity = ((x, jp.positions), neutral) if place else ((jp.positions, x), neutral[::-1])
    op = operator(*order, place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxprims.calls.lanes.warn_identity", lambda wrong: None)
        runs = [
            (jp.segment_reduce(pair, ids, op, identity=identity, num_segments=32), ids, 32),
            (jax.tree.map(lambda r: r[None], jp.reduce(pair, op, identity=identity)), 0 * ids, 1),
        ]
    for got, of, bins in runs:
        got = jax.tree.map(np.asarray, got if place else got[::-1])
        wanted = best(x, of, bins, order, (np.float32(neutral[0]), -1))
        np.testing.assert_array_equal(got[1], [i for _, i in wanted])
        np.testing.assert_array_equal(bits(got[0]), bits(np.array([v for v, _ in wanted], np.float32)))


def first_if(mine: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: tuple(jnp.where(mine(*a, *b), x, y) for x, y in zip(a, b, strict=True))


SPELLINGS = {
    "larger or equal": first_if(lambda v, i, w, j: (v > w) | ((v >= w) & (i < j))),
    "chain": first_if(lambda v, i, w, j: jnp.where(v > w, True, jnp.where(v < w, False, i <= j))),
    "not smaller": first_if(lambda v, i, w, j: ~((v < w) | ((v <= w) & (j < i)))),
    "each": lambda a, b: (
        jnp.maximum(a[0], b[0]),
        jnp.where(a[0] == b[0], jnp.minimum(a[1], b[1]), jnp.where(a[0] > b[0], a[1], b[1])),
    ),
}  # fmt: skip
NONE = {
    "ties to the left": first_if(lambda v, i, w, j: v >= w),
    "position first of all": first_if(lambda v, i, w, j: (i < j) | ((i == j) & (v > w))),
    "by value alone": first_if(lambda v, i, w, j: v > w),
    "mixed": lambda a, b: (jnp.maximum(a[0], b[0]), jnp.minimum(a[1], b[1])),
}  # fmt: skip


@pytest.mark.parametrize("spelling", [*SPELLINGS, *NONE])
def test_spellings(spelling: str) -> None:
    op = (SPELLINGS | NONE)[spelling]
    ids = np.zeros(100, np.int32)

    def run(x: Any, ids: Any) -> Any:
        return jp.reduce_by_index((x, jp.positions), ids, 3, op, identity=(worst(True, x.dtype), LAST))

    assert packed(run, np.zeros(100, np.int32), ids) == (spelling in SPELLINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxprims.calls.histogram.warn_identity", lambda wrong: None)
        assert not packed(run, np.zeros(100, np.float32), ids)  # what they do with NaN is no order's


@pytest.mark.parametrize("none", [-2, -(2**31)])
def test_positions_that_do_not_fit_stay_as_they_are(none: int) -> None:
    def run(x: Any, ids: Any) -> Any:
        return jp.reduce_by_index((x, jp.positions), ids, 3, operator(True, False, True), identity=(worst(True, x.dtype), none))

    x, ids = np.array([4, 4, 1], np.int32), np.array([0, 0, 1], np.int32)
    assert not packed(run, x, ids)
    assert jax.tree.map(np.ndarray.tolist, jax.tree.map(np.asarray, run(x, ids))) == ([4, 1, -(2**31)], [1, 2, none])
