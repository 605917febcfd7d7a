"""Operators with loops that end only for what is in the data: no kernel evaluates them on other values, or on other pairs."""

from __future__ import annotations

import faulthandler
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp
from jaxprims.ir.evaluate import MAX_ITERATIONS, NotEvaluable, evaluate
from jaxprims.tracing.lower import to_program


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """A kernel that hangs cannot be interrupted."""
    faulthandler.dump_traceback_later(240, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def forever_if(wrong: Any, x: Any) -> Any:
    """x; a loop that never ends where ``wrong``."""
    return jax.lax.while_loop(lambda c: wrong & (c[1] == c[1]), lambda c: (c[0] + 1, c[1]), (x, x))[0]


def joined(a: Any, b: Any) -> Any:
    """Ranges [first, last] that follow each other; it ends on no others. Associative, and far from commutative."""
    return a[0], forever_if(a[1] + 1 != b[0], b[1])


def union(a: Any, b: Any) -> Any:
    """Of disjoint sets (bits) of one owner; 0 is the empty set. It ends on no others."""
    wrong = (a != 0) & (b != 0) & (((a & b & 0xFFFFFF) != 0) | ((a >> 24) != (b >> 24)))
    return forever_if(wrong, a | b)


@pytest.mark.cover(1)
@pytest.mark.parametrize("dtype", ["int32", "float32", "complex64"])
def test_loops_of_a_batch(dtype: str) -> None:
    """Under ``vmap`` a condition is one of each member: the loop goes on for those that do, and leaves the others alone."""

    def doubled(a: Any, b: Any) -> Any:  # as often as a says
        k, x = jax.lax.while_loop(lambda c: c[0] < a, lambda c: (c[0] + 1, c[1] * 2), (0, jnp.stack([b, b])))
        return x[0] + k.astype(dtype)

    def greater(a: Any, b: Any) -> Any:
        return jax.lax.while_loop(lambda c: c < a, lambda c: c + 1, b)

    x = np.random.default_rng(0).integers(-5, 7, (21, 2, 3))
    each, op = (jax.vmap(jax.vmap(f)) for f in (doubled, greater))
    y = jnp.asarray(x, dtype)
    want = np.asarray(jax.vmap(each)(x, y))
    np.testing.assert_allclose(jp.reduce((x, y), axis=0, map=each), want.sum(0), rtol=1e-6)
    got = jp.genhist(lambda i, k, v: (i, each(k, v)), (np.arange(21) % 2, x, y), jp.Bins(2, jnp.add))
    np.testing.assert_allclose(got, [want[::2].sum(0), want[1::2].sum(0)], rtol=1e-6)
    np.testing.assert_allclose(jp.stencil(lambda k, v: each(k[0], v[0]), (x, y), axes=0), want)
    np.testing.assert_array_equal(jp.scan(x, op), np.maximum.accumulate(x))
    ids = np.arange(21) % 4
    got = jp.reduce_by_index(x, ids, 4, op, identity=np.full((2, 3), -9))
    np.testing.assert_array_equal(got, [x[ids == k].max(0) for k in range(4)])


@pytest.mark.parametrize("n", [1, 3, 16, 37, 5000])
def test_ordered_calls(n: int) -> None:
    i = np.arange(n, dtype=np.int32)
    x = (i, i)
    first, last = jax.jit(lambda x: jp.scan(x, joined))(x)
    assert (np.asarray(first) == 0).all() and (np.asarray(last) == i).all()
    assert [int(v) for v in jp.reduce(x, joined)] == [0, n - 1]
    first, last = jp.scan(x, joined, exclusive=True, init=(jnp.int32(-5), jnp.int32(-1)))
    assert (np.asarray(first) == -5).all() and (np.asarray(last) == i - 1).all()
    back = (i[::-1].copy(),) * 2
    assert (np.asarray(jp.scan(back, joined, reverse=True)[1])[::-1] == i).all()


def test_segments() -> None:
    """Pairs across a boundary do not fit together."""
    sizes = np.array([1, 40, 2, 3, 1, 17, 8, 9, 300, 1, 1, 5])
    ends = np.cumsum(sizes)
    begins = ends - sizes
    starts = np.zeros(ends[-1], bool)
    starts[begins] = True
    i = (np.arange(ends[-1]) - np.repeat(begins, sizes)).astype(np.int32) + 1000 * np.repeat(np.arange(len(sizes)), sizes).astype(
        np.int32
    )
    got = jp.scan((i, i), joined, segment_starts=starts)
    np.testing.assert_array_equal(got[1], i)
    np.testing.assert_array_equal(got[0], i[np.repeat(begins, sizes)])
    got = jp.segment_reduce((i, i), jp.Offsets(np.concatenate([[0], ends]).astype(np.int32)), joined, identity=(0, 0))
    np.testing.assert_array_equal(got[0], i[begins])
    np.testing.assert_array_equal(got[1], i[ends - 1])


def test_rows_side_by_side_and_one_behind_the_other() -> None:
    rows = np.arange(11)[:, None] + 1000 * np.arange(13)
    for axis, x in ((1, rows), (0, rows.T.copy())):
        i = x.astype(np.int32)
        got = jax.vmap(lambda i: (jp.scan((i, i), joined)[1], jp.reduce((i, i), joined)[1]), in_axes=axis, out_axes=(axis, 0))(i)
        np.testing.assert_array_equal(got[0], i)
        np.testing.assert_array_equal(got[1], i.max(1 - axis))


@pytest.mark.parametrize("order", ["runs", "mixed"])
def test_histograms(order: str) -> None:
    """Every element of a bin is another bit; those that are dropped fit nowhere, each other least."""
    rng = np.random.default_rng(0)
    bins = np.repeat(np.arange(40, dtype=np.int32), 24)
    values = (bins << 24) | (1 << np.tile(np.arange(24), 40)).astype(np.int32)
    dropped = np.full(60, 99, np.int32)
    bins, values = np.concatenate([bins, dropped]), np.concatenate([values, np.arange(60, dtype=np.int32) % 7 + 1])
    if order == "mixed":
        at = rng.permutation(len(bins))
        bins, values = bins[at], values[at]
    got = jp.reduce_by_index(values, bins, 40, union, identity=0)
    np.testing.assert_array_equal(got, (np.arange(40) << 24) + 2**24 - 1)
    np.testing.assert_array_equal(jp.reduce(values[bins == 3], jp.Monoid(union, 0)), (3 << 24) + 2**24 - 1)


def test_elements_of_a_type() -> None:
    x = np.array([-128, -1], np.int8)
    assert int(jp.reduce(jnp.array([1, 2]), lambda a, b: jax.lax.while_loop(lambda c: c == a, lambda c: c * 1, b))) == 2
    np.testing.assert_array_equal(jp.scan(x, jnp.gcd), jax.lax.associative_scan(jnp.gcd, x))


def test_trial_values_give_up() -> None:
    """What is tried while tracing has a limit for all loops together, however they are nested."""

    def nested(a: Any, b: Any) -> Any:
        turn = lambda c: jax.lax.while_loop(lambda d: d < 1000, lambda d: d + 1, c * 0) + c - 999  # noqa: E731
        return jax.lax.while_loop(lambda c: c < 1000, turn, a * 0) + b

    for op in (nested, lambda a, b: forever_if(a == a, b)):
        program = to_program(jax.make_jaxpr(op)(jnp.int32(1), jnp.int32(1)).jaxpr)
        with pytest.raises(NotEvaluable, match="iterations"):
            evaluate(program, [np.arange(4, dtype=np.int32)] * 2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert jp.reduce_by_index(jnp.array([5]), jnp.array([7]), 2, op, identity=0).tolist() == [0, 0]
    assert MAX_ITERATIONS < 1e5
