"""Random programs on rows: ``fuse`` gives what the function gives, and its derivatives; programs whose kernels would need each
other."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from meshes import assert_no_communication
from meshes import mesh as mesh_of

import jaxprims as jp
from jaxprims.fusion import pays
from jaxprims.fusion.call import Fused

UNARY: list[Callable[[Any], Any]] = [
    jnp.sin,
    jnp.tanh,
    jnp.negative,
    jnp.square,
    jax.nn.sigmoid,
    lambda v: jnp.exp(jnp.minimum(v, 2)),
]
BINARY: list[Callable[[Any, Any], Any]] = [jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, lambda p, q: p / (1 + q * q)]
STATISTICS: list[Callable[[Any], Any]] = [
    lambda x: x.sum(-1),
    lambda x: x.max(-1),
    lambda x: x.mean(-1),
    lambda x: x.var(-1),
    lambda x: jnp.sum(x > 0, -1) / x.shape[-1],
]


@pytest.fixture(autouse=True)
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pays, "FEWEST_IN_ROWS_AGAIN", 0)
    monkeypatch.setattr(pays, "SHORTEST_ROW_AGAIN", 0)


def of_rows(fn: Callable[..., Any], *args: Any) -> int:
    """How many kernels of rows it has."""
    found = Fused(jax.make_jaxpr(fn)(*args)).rewritten
    return sum(getattr(k.body.sites[0], "family", "") == "rows" for k in found.kernels)


def close(expected: Any, got: Any, tolerance: float) -> None:
    for e, g in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        assert (e.shape, e.dtype, e.weak_type) == (g.shape, g.dtype, g.weak_type)
        scale = float(np.abs(e).max(initial=0))
        np.testing.assert_allclose(np.asarray(g), np.asarray(e), rtol=0, atol=tolerance * max(scale, 1e-30))


def drawn(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    """A program on arrays of the same rows, of numbers for each row and for each column."""
    loops = [rng.choice([1, 2, 3, 5, 7, 9]) for _ in range(rng.choice([1, 1, 2, 3]))]
    shape, d = (*loops, row := rng.choice([2, 3, 7, 8, 13, 17, 33, 40])), row
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    some = tuple(rng.choice([1, n]) for n in shape)
    args: list[Any] = [jnp.asarray(numbers.normal(size=s)) for s in (shape, shape, (d,), some, (d, d))]
    args.append(jnp.asarray(numbers.random(shape) < 0.7))
    steps = [tuple(rng.random() for _ in range(4)) for _ in range(rng.randrange(4, 12))]

    def program(*xs: Any) -> list[Any]:
        *pool, matrix, mask = xs

        def one(at: float) -> Any:
            """Rather one of the last."""
            return pool[-1 - int(at * at * len(pool))]

        def pick(many: Sequence[Any], at: float) -> Any:
            return many[int(at * len(many))]

        for what, a, b, c in steps:
            x = jnp.broadcast_to(one(a), shape)
            kinds: list[Callable[[], Any]] = [
                lambda: jax.nn.softmax(x),
                lambda: (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 0.1),
                lambda: x - jax.nn.logsumexp(x, -1, keepdims=True),
                lambda: x / (1 + jnp.abs(x).sum(tuple(range(1 + int(b * (len(shape) - 1)), len(shape))), keepdims=True)),
                lambda: pick(STATISTICS, b)(x)[..., None],
                lambda: jnp.where(mask, x, -1e4),
                lambda: jnp.where(pick([jnp.less, jnp.equal], b)(*_places(shape)), x, 0.0),
                lambda: pick(UNARY, b)(one(a)),
                lambda: pick(BINARY, b)(one(a), one(c)),
                lambda: pick(BINARY, b)(x, one(c)),
                lambda: x @ matrix / d,
                lambda: x * pick([0.5, 1.0], b) + x.sum(0, keepdims=True) / 10,
            ]
            pool.append(pick(kinds, what)())
        return [pool[-1], pool[-2], pool[len(pool) // 2]]

    return program, args


def _places(shape: Sequence[int]) -> list[Any]:
    return [jax.lax.broadcasted_iota(np.int32, shape, len(shape) - k) for k in (1, 2)]


@pytest.mark.cover(2)
@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed: int) -> None:
    rng, made = random.Random(seed), 0
    with jax.enable_x64(True):
        while made < 2:
            program, args = drawn(rng)

            def loss(*xs: Any, program: Any = program, mask: Any = args[-1]) -> Any:
                return sum(jnp.sin(y).sum() for y in program(*xs, mask))

            if rng.random() < 0.5:
                program, args = jax.grad(loss, argnums=(0, 1, 2, 3)), args[:-1]
            if not of_rows(program, *args):
                continue
            made += 1
            close(jax.jit(program)(*args), jax.jit(jp.fuse(program))(*args), 1e-9)


# --- kernels that would need each other -----------------------------------------------------------------------------------------


X, Y, C = (jnp.asarray(np.random.default_rng(k).normal(size=s), jnp.float32) for k, s in enumerate([(24, 40), (24, 40), (600,)]))


def crossed(x: Any, y: Any) -> Any:
    p, q = jax.nn.softmax(x), jax.nn.softmax(y)
    return p * jax.nn.softmax(q @ q.T @ x), q * jax.nn.softmax(p @ p.T @ y)


def between_scans(x: Any, y: Any, c: Any) -> Any:
    p, first = jax.nn.softmax(x), jnp.cumsum(c * 2)
    return p + jax.nn.softmax(y + first[3]), p, first, jnp.cumsum(c * p[2, 3])


def before_an_epilogue(x: Any, y: Any, c: Any) -> Any:
    p, sums = jax.nn.softmax(x), jnp.cumsum(c)
    return sums * p[2, :1] + 1, p + jax.nn.softmax(y + sums[3])


@pytest.mark.parametrize("program", [crossed, between_scans, before_an_epilogue])
def test_kernels_that_would_need_each_other(program: Callable[..., Any]) -> None:
    args = (X, Y, C)[: program.__code__.co_argcount]
    assert of_rows(program, *args)
    close(jax.jit(program)(*args), jax.jit(jp.fuse(program))(*args), 1e-5)


@pytest.mark.dear
def test_a_long_chain_is_several_kernels() -> None:
    """None of which is made again by those behind it."""

    def chain(x: Any) -> Any:
        first = x
        for k in range(8):
            x = x + jax.nn.softmax(jnp.sin(x) + k)
            x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 0.1)
            first = x if k == 0 else first
        return x, first

    found = Fused(jax.make_jaxpr(chain)(X)).rewritten
    assert 1 < len(found.kernels) < 4
    assert max(len(k.body.taken) for k in found.kernels) < 200
    close(jax.jit(chain)(X), jax.jit(jp.fuse(chain))(X), 1e-4)


def test_what_nobody_wants_is_no_kernel() -> None:
    """The rows of one are in those of the other, which makes them again."""

    def nested(x: Any) -> Any:
        y = jax.nn.softmax(x.reshape(4, 6, 40))
        return y - y.mean((1, 2), keepdims=True)

    assert of_rows(nested, X) == 1
    close(jax.jit(nested)(X), jax.jit(jp.fuse(nested))(X), 1e-5)


@pytest.mark.parametrize("shape, axes", [((192, 40), P("x")), ((16, 64, 10), P("x")), ((3, 64, 40), P(None, "x"))], ids=str)
def test_rows_of_several_devices_stay_where_they_are(shape: tuple[int, ...], axes: Any) -> None:
    x = jax.device_put(jnp.resize(X, shape), jax.NamedSharding(mesh_of(8), axes))
    compiled = jax.jit(jp.fuse(jax.nn.softmax)).lower(x).compile()
    assert "jaxprims_scan" in compiled.as_text()
    assert_no_communication(compiled)
    close(jax.nn.softmax(x), compiled(x), 1e-5)


def test_sizes_that_are_not_known() -> None:
    """Of what a row is made of, too."""

    def f(x: Any) -> Any:
        return jax.nn.softmax(x.sum(0))

    assert of_rows(f, jax.ShapeDtypeStruct((*jax.export.symbolic_shape("n"), 24, 40), jnp.float32)) == 1


def test_masks_hide_what_is_infinite() -> None:
    """As in what XLA makes of a product with a mask."""

    def masked(x: Any, mask: Any) -> Any:
        return jnp.cumsum((x * mask.astype(x.dtype)).sum(-1)), x.max(-1, keepdims=True) * mask

    number = lambda x: jnp.cumsum(x @ (0.1 * jnp.eye(40)), 0)  # noqa: E731
    assert not [why for _, why in Fused(jax.make_jaxpr(number)(X)).rewritten.left if "a fault" in why]
    x = X.at[3, 5].set(jnp.inf).at[7, 8].set(jnp.nan)
    expected = jax.jit(masked)(x, jnp.isfinite(x))
    assert bool(jnp.isfinite(expected[0]).all())
    np.testing.assert_allclose(*(f(masked)(x, jnp.isfinite(x))[0] for f in (jax.jit, jp.fuse)), rtol=1e-4)

    tangents = jnp.ones_like(x).at[2, :].set(jnp.inf)
    slope = lambda x, t: jax.jvp(lambda x: x - x.max(-1, keepdims=True), (x,), (t,))[1]  # noqa: E731
    np.testing.assert_array_equal(*(f(slope)(X, tangents) for f in (jax.jit, jp.fuse)))
