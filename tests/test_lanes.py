"""Values of array-valued bins that f computes: found to be the same on every lane, and made lane by lane in the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from exports import export
from hypothesis import given
from hypothesis import strategies as st

import jaxprims as jp
from jaxprims.ir.lanes import Lanes, Row, lanes_of
from jaxprims.operators.traced import slots_of
from jaxprims.specs.kernel import parse
from jaxprims.tracing.lower import hoist, to_program

NODES, EDGES = 11, 57


def found(f: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = jnp.float32) -> Lanes | None:
    """Of f's only result, whose first axis is the lanes."""
    closed = hoist(jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct(s, dtype) for s in shapes)))[1]
    program, out = to_program(closed.jaxpr), closed.out_avals[0]
    slots = slots_of(out.shape[1:], out.dtype)
    return lanes_of(program, program.results, slots, tuple(slots_of(s, dtype) for s in shapes))


def test_own_rows_and_scalars() -> None:
    lanes = found(lambda x, w: jnp.maximum(w * x[:5] - x[5:], 0), (10,), ())
    assert lanes is not None
    assert set(lanes.rows) == {Row(True, 0, 0), Row(True, 0, 5)} and not lanes.bases and len(lanes.scalars) == 1
    assert [i.op for i in lanes.program.body].count("arg") == 3


def test_captured_rows() -> None:
    h, bias = jnp.zeros((7, 6)), jnp.zeros(6)
    lanes = found(lambda w, s: h[s.astype(int)] * w + bias, (), ())
    assert lanes is not None
    assert {(row.own, row.based) for row in lanes.rows} == {(False, True), (False, False)} and len(lanes.bases) == 1


@pytest.mark.cover(3)
@pytest.mark.parametrize(("heads", "features"), [(4, 4), (3, 16), (5, 3), (16, 2), (2, 40)])
def test_numbers_that_lanes_share(heads: int, features: int) -> None:
    """As those of one head do of its weight."""
    lanes = found(lambda w, x: (w[:, None] * x).reshape(-1), (heads,), (heads, features))
    assert lanes is not None and {(row.number, row.each) for row in lanes.rows} == {(0, features), (1, 1)}
    a = arrays(heads * features)
    w, h = a["x"][:, :heads], a["h"].reshape(NODES, heads, features)

    def messages(w: Any, h: Any, s: Any, t: Any) -> Any:
        return jax.ops.segment_sum(w[..., None] * h[s], t, NODES)

    np.testing.assert_array_equal(jax.jit(jp.fuse(messages))(w, h, a["s"], a["t"]), messages(w, h, a["s"], a["t"]))


def test_elements_of_several_scalars() -> None:
    assert found(lambda x: x[:, ::-1] * 2, (4, 2)) is not None
    assert found(lambda x: x * (1 + 2j), (6,), dtype=jnp.complex64) is not None


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[::-1],  # rows that run backwards
        lambda x: jnp.roll(x, 1),
        lambda x: x + jnp.arange(6),  # another constant for each lane
        lambda x: jnp.cumsum(x),
        lambda x: x.at[2].set(0),
        lambda x: jnp.where(jnp.arange(6) < 3, x, -x),
    ],
)
def test_lanes_that_differ(f: Callable[..., Any]) -> None:
    assert found(f, (6,)) is None


def arrays(features: int, dtype: Any = np.float32, edges: int = EDGES) -> dict[str, Any]:
    rng = np.random.default_rng(features)

    def some(*shape: int) -> Any:
        x = rng.integers(-3, 4, shape) + (1j * rng.integers(-3, 4, shape) if np.dtype(dtype).kind == "c" else 0)
        return jnp.asarray(x.astype(dtype))

    ends = {k: jnp.asarray(rng.integers(-2, NODES + 2, edges, dtype=np.int32)) for k in "st"}
    return {"h": some(NODES, features), "w": some(edges), "x": some(edges, 2 * features), "b": some(features), **ends}


CASES: dict[str, Callable[..., Any]] = {
    "messages": lambda h, b, w, s, x: w * h[s],
    "gated": lambda h, b, w, s, x: jnp.maximum(h[s] - x[: len(b)], b) * w + x[len(b) :],
    "ends": lambda h, b, w, s, x: (h[s] - h[0]) * h[-s] + b,
    "own": lambda h, b, w, s, x: x[: len(b)] * w * w,
    "heads": lambda h, b, w, s, x: jnp.repeat(x[: -(-len(b) // 4)], 4)[: len(b)] * h[s] + jnp.repeat(h[s, :2], len(b))[: len(b)],
}  # fmt: skip


def ours(name: str, op: Any = jnp.add) -> Callable[..., Any]:
    def f(h: Any, w: Any, x: Any, b: Any, s: Any, t: Any) -> Any:
        return jp.genhist(lambda w, s, t, x: (t, CASES[name](h, b, w, s, x)), (w, s, t, x), jp.Bins(NODES, op))

    return f


def plain(name: str, reduce: Any = jax.ops.segment_sum) -> Callable[..., Any]:
    def f(h: Any, w: Any, x: Any, b: Any, s: Any, t: Any) -> Any:
        return reduce(jax.vmap(lambda w, s, x: CASES[name](h, b, w, s, x))(w, s, x), jnp.where(t < 0, NODES, t), NODES)

    return f


@pytest.mark.cover(3)
@pytest.mark.parametrize("features", [2, 3, 24, 67])
@pytest.mark.parametrize("name", CASES)
def test_one_kernel(name: str, features: int) -> None:
    a = arrays(features)
    np.testing.assert_array_equal(jax.jit(ours(name))(**a), jax.jit(plain(name))(**a))
    np.testing.assert_array_equal(ours(name, jnp.maximum)(**a), jax.jit(plain(name, jax.ops.segment_max))(**a))
    calls = jp.explain(ours(name))(**a).calls
    assert len(calls) == 1 and calls[0].spec.bins[0].lanes == features


@pytest.mark.cover(4)
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int64, np.float16, jnp.bfloat16, np.float64, np.complex64])
def test_dtypes(x64: None, dtype: Any) -> None:
    a = arrays(9, dtype)
    op = jnp.logical_or if dtype == np.bool_ else jnp.add
    name = "own" if np.dtype(dtype).kind in "bc" else "messages"
    want = jax.jit(plain(name, jax.ops.segment_max if dtype == np.bool_ else jax.ops.segment_sum))(**a)
    got = jax.jit(ours(name, op))(**a)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(np.asarray(got, np.complex128), np.asarray(want, np.complex128))


@pytest.mark.parametrize("edges", [0, 1])
def test_few_edges(edges: int) -> None:
    a = arrays(5, edges=edges)
    np.testing.assert_array_equal(ours("messages")(**a), plain("messages")(**a))


@pytest.mark.dear
def test_transformations() -> None:
    a = arrays(6)
    batched = {k: (jnp.stack([v, v[::-1]]) if k in "hws" else v) for k, v in a.items()}
    axes = {k: 0 if k in "hws" else None for k in a}

    def each(f: Callable[..., Any]) -> list[Any]:
        call = lambda kw: f(**kw)  # noqa: E731
        loss = lambda v, r: (f(**v, **r) ** 2).sum()  # noqa: E731
        return [
            jax.vmap(call, (axes,))(batched),
            jax.vmap(jax.grad(loss), ({**dict.fromkeys("xb"), "h": 0, "w": 0}, {"s": 0, "t": None}))(
                {k: batched[k] for k in "hwxb"}, {k: batched[k] for k in "st"}
            ),
            jax.export.deserialize(export(jax.jit(call))(a).serialize()).call(a),
        ]

    for got, want in zip(each(jax.jit(ours("gated"))), each(jax.jit(plain("gated"))), strict=True):
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5), got, want)


@pytest.mark.parametrize("row", [f"0 {2**70} 1", f"0 {2**64 - 5} 1", "0 -1 1", "7 0 1"])
def test_rows_that_are_none(row: str) -> None:
    a = arrays(9)
    text = jp.explain(ours("messages"))(**a).calls[0].spec.text
    assert "\nrow captured 0 0 1 1\n" in text
    with pytest.raises(ValueError, match="there is no such row"):
        parse(text.replace("row captured 0 0 1 1", f"row captured {row} 1", 1))


@pytest.mark.parametrize("each", ["0", "-2"])
def test_lanes_that_share_nothing(each: str) -> None:
    text = jp.explain(ours("messages"))(**arrays(9)).calls[0].spec.text
    with pytest.raises(ValueError, match="may share numbers"):
        parse(text.replace("row captured 0 0 1 1", f"row captured 0 0 1 {each}", 1))


@examples(12)
@given(st.integers(2, 40), st.integers(1, 300), st.integers(1, 30), st.integers(0, 2**31))
def test_random_graphs(features: int, edges: int, nodes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    h = rng.integers(-5, 6, (nodes, features)).astype(np.float32)
    w = rng.integers(-5, 6, edges).astype(np.float32)
    s, t = rng.integers(0, nodes, (2, edges), dtype=np.int32)
    got = jp.genhist(lambda w, s, t: (t, w * jnp.asarray(h)[s]), (w, s, t), jp.Bins(nodes, jnp.add))
    want = np.zeros((nodes, features), np.float32)
    np.add.at(want, t, w[:, None] * h[s])
    np.testing.assert_array_equal(got, want)


@pytest.mark.cover(4)
@pytest.mark.strategies
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_rows_are_those_of_integers(name: str, dtype: str) -> None:
    """NaN wins, infinities and subnormal numbers keep their place; alone, and with what was there."""
    with jax.enable_x64(dtype == "float64"):
        rng = np.random.default_rng(3)
        few = np.array([0, 1, -1, np.inf, -np.inf, jnp.finfo(dtype).smallest_normal, jnp.finfo(dtype).max, 3, -7], dtype)
        rows = rng.choice(few, (500, 5))
        rows[::7, 3] = np.nan
        ids, dest = rng.integers(0, 40, 500), rng.choice(few, (40, 5))
        op, at = (jnp.maximum, np.maximum.at) if name == "max" else (jnp.minimum, np.minimum.at)
        for start in (None, dest):
            wanted = np.full((40, 5), {"max": -np.inf, "min": np.inf}[name]) if start is None else start.astype(float)
            at(wanted, ids, rows.astype(float))
            made = jax.jit(lambda rows, ids, start=start: jp.reduce_by_index(rows, ids, 40, op, dest=start))(rows, ids)
            assert made.dtype == dtype
            np.testing.assert_array_equal(np.asarray(made).astype(float), wanted)
