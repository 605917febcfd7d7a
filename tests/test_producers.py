"""What makes an operand goes into the kernel's loop: whatever it is, and whatever is made of it, results are those of the operand
made before."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import jaxprims as jp

N, F, BINS = 3000, 6, 40

Fn = Callable[..., Any]


def operands_of(fn: Fn, *args: Any) -> list[list[str]]:
    """Types of what each kernel reads."""
    text = jax.jit(fn).lower(*args).as_text()
    return [found.split(", ") for found in re.findall(r"custom_call @jaxprims[^\n]* : \(([^)]*)\) ->", text)]


def drawn(rng: np.random.Generator, leaves: list[Fn], depth: int) -> Fn:
    """A function of the leaves' arguments that goes number by number."""
    if depth == 0:
        return leaves[rng.integers(len(leaves))]
    a, b, c = (drawn(rng, leaves, depth - 1) for _ in range(3))
    number = float(rng.integers(-3, 4)) + 0.5
    makers: list[Fn] = [
        lambda *x: a(*x) + b(*x),
        lambda *x: a(*x) * b(*x) - number,
        lambda *x: jnp.where(a(*x) > b(*x), c(*x), number),
        lambda *x: jnp.clip(a(*x), -number if number > 0 else number, abs(number)),
        lambda *x: jnp.maximum(a(*x), b(*x)) / number,
        lambda *x: jnp.abs(a(*x)),
        lambda *x: (a(*x) > number).astype(jnp.float32) * b(*x),
        lambda *x: jax.jit(lambda p, q: jnp.minimum(p, q) * number)(a(*x), b(*x)),
        lambda *x: jax.nn.relu(a(*x)),
        lambda *x: a(*x).reshape(-1).reshape(a(*x).shape),
        lambda *x: jnp.exp(-jnp.abs(a(*x))) + b(*x),
        lambda *x: a(*x) ** 2,
    ]
    return makers[rng.integers(len(makers))]


def along(x: Any, axis: int) -> dict[str, Any]:
    return {
        "sum": jp.reduce(x, axis=axis),
        "max": jp.reduce(x, jnp.maximum, axis=axis),
        "own operator": jp.reduce(x, lambda a, b: jnp.where(a > b, a, b), axis=axis),
        "argmax": jp.argmax(x, axis=axis),
        "cumsum": jp.cumsum(x, axis=axis),
        "scan": jp.scan(x, jnp.minimum, axis=axis, reverse=True),
        "all": jp.reduce(x * 2),
    }


def by_index(x: Any, ids: Any) -> dict[str, Any]:
    return {
        "sum": jp.segment_sum(x, ids, BINS),
        "max": jp.segment_max(x + 1, ids + 1, BINS),
        "mean": jp.segment_mean(x, jnp.where(ids > 3, ids, -1), BINS),
        "sorted": jp.segment_sum(x, jnp.sort(ids), BINS, indices_are_sorted=True),
        "segments": jp.segment_reduce(x, jnp.sort(ids), num_segments=BINS),
        "count": jp.bincount(ids * 2, length=BINS),
    }


def agree(got: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        if name in ("argmax", "count"):
            np.testing.assert_array_equal(got[name], value, err_msg=name)
        else:
            most = float(np.abs(np.where(np.isfinite(value), value, 0)).max())
            np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-4 * most, err_msg=name)


@pytest.mark.cover(2)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.dear
def test_drawn_producers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, rows = rng.integers(-9, 9, (N, F)).astype(np.float32) / 4, rng.integers(-9, 9, N).astype(np.float32)
    ids = rng.integers(0, BINS, N).astype(np.int32)
    leaves: list[Fn] = [lambda x, r, s: x, lambda x, r, s: x, lambda x, r, s: r[:, None] + 0 * x, lambda x, r, s: s + 0 * x]
    leaves += [lambda x, r, s: jnp.broadcast_to(r[:, None], x.shape)]
    make = drawn(rng, leaves, 3)
    scalar = np.float32(0.75)
    # as XLA makes it within one function: division by a constant may become a product there
    y = np.asarray(jax.jit(lambda *a: make(*a))(x, rows, scalar))
    for axis in (0, 1):
        got = jax.jit(lambda *a: along(make(*a), axis))(x, rows, scalar)
        agree(got, jax.jit(lambda y: along(jax.lax.optimization_barrier(y), axis))(y))
    agree(jax.jit(lambda i, *a: by_index(make(*a), i))(ids, x, rows, scalar), jax.jit(by_index)(y, ids))
    agree(
        jax.jit(jax.vmap(lambda i, *a: by_index(make(*a)[:, 0], i), (None, 0, None, None)))(ids, np.stack([x, x]), rows, scalar),
        jax.jit(jax.vmap(by_index, (0, None)))(np.stack([y[:, 0]] * 2), ids),
    )


def test_nothing_is_written_before_the_kernel() -> None:
    x, w, ids = jnp.ones((N, F)), jnp.ones(N), jnp.zeros(N, jnp.int32)
    (read,) = operands_of(lambda x, w, i: jp.segment_sum(jnp.where(x > 0, x * w[:, None], 0.0), i, BINS), x, w, ids)
    assert {"tensor<3000x6xf32>", "tensor<3000xf32>", "tensor<3000xi32>"} <= set(read)
    assert [r for r in read if "3000" not in r] == ["tensor<f32>"] * (len(read) - 3)
    (read,) = operands_of(lambda x: jp.reduce((x.astype(jnp.float32) - 1) ** 2), jnp.ones((N, F), jnp.uint8))
    assert "tensor<18000xui8>" in read and "tensor<18000xf32>" not in read
    loop = lambda x: jax.lax.scan(lambda c, _: (jp.reduce(x + c) * 0, None), 0.0, length=3)[0]  # noqa: E731
    (read,) = operands_of(loop, jnp.ones(30_000))
    assert sorted(read) == ["tensor<30000xf32>", "tensor<f32>"]
    # a number for each long row
    (read,) = operands_of(lambda x, m: jp.reduce((x - m[:, None]) ** 2, axis=1), jnp.ones((40, N)), jnp.ones(40))
    assert "tensor<40xf32>" in read


GATHERS: dict[str, Fn] = {
    "index": lambda h, at: h[at],
    "take": lambda h, at: jnp.take(h, at, axis=0),
    "clip": lambda h, at: jnp.take(h, at, axis=0, mode="clip"),
    "of another": lambda h, at: (h * 2)[at + 1],
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", GATHERS)
@pytest.mark.parametrize("shape", [(70,), (70, F)])
def test_rows_of_a_table(name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    h = rng.normal(size=shape).astype(np.float32)
    at, ids = rng.integers(-90, 90, N).astype(np.int32), rng.integers(0, BINS, N).astype(np.int32)
    w = rng.normal(size=N).astype(np.float32)
    gather = GATHERS[name]
    spread = (lambda w: w[:, None]) if len(shape) == 2 else (lambda w: w)
    message = lambda h, at, w: jnp.nan_to_num(gather(h, at) * spread(w * 2))  # noqa: E731
    y = jax.jit(message)(h, at, w)
    ours = lambda h, at, w: by_index(message(h, at, w), ids)  # noqa: E731
    agree(jax.jit(ours)(h, at, w), jax.jit(by_index)(y, ids))
    (read,) = operands_of(lambda h, at, w: jp.segment_sum(gather(h, at) * spread(w), ids, BINS), h, at, w)
    assert f"tensor<{N}x{F}xf32>" not in read
    assert f"tensor<{'x'.join(map(str, shape))}xf32>" in read
    if len(shape) == 1:
        scanned = lambda h, at, w: along(message(h, at, w), 0)  # noqa: E731
        agree(jax.jit(scanned)(h, at, w), jax.jit(lambda y: along(y, 0))(y))
    batched = jax.jit(jax.vmap(lambda h, at: jp.segment_sum(gather(h, at) * 2, ids, BINS), (None, 0)))(h, np.stack([at, at + 1]))
    both = [jax.jit(lambda h, at: jp.segment_sum(gather(h, at) * 2, ids, BINS))(h, at + k) for k in (0, 1)]
    np.testing.assert_allclose(batched, np.stack(both), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axes", [(None, None, 0), (None, 0, None), (None, 0, 0), (0, None, 0), (None, None, 1), (0, 0, 0)])
def test_rows_of_a_captured_table_in_batches(axes: tuple[int | None, ...]) -> None:
    """The function reads a table that is made, whichever of its arrays have a batch."""
    rng = np.random.default_rng(6)
    given = [rng.normal(size=BINS).astype(np.float32), rng.integers(0, BINS, 300).astype(np.int32), rng.normal(size=300)]
    given = [x if k is None else np.stack([x, x[::-1]], k) for x, k in zip(given, axes, strict=True)]

    def call(h: Any, ids: Any, x: Any, kernel: bool = True) -> Any:
        table = jnp.sin(h) * 2
        if not kernel:
            return jax.ops.segment_sum(x * 3 * table[ids], ids, BINS)
        return jp.genhist(lambda i, v: (i, v * table[i]), (ids, x * 3), jp.Bins(BINS, jnp.add))

    got, want = (jax.jit(jax.vmap(functools.partial(call, kernel=k), axes))(*given) for k in (True, False))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_no_more_is_written_than_one_sum() -> None:
    """Two arrays with borders, which XLA makes, would be written in place of their sum."""

    def both(x: Any, y: Any) -> Any:
        return jp.scan(jnp.pad(x, (1, 0)) + jnp.pad(y, (0, 1)), jnp.add)

    x = jnp.arange(4096.0)
    assert operands_of(both, x, x) == [["tensor<4097xf32>"]]
    np.testing.assert_allclose(jax.jit(both)(x, x), jnp.cumsum(jnp.pad(x, (1, 0)) + jnp.pad(x, (0, 1))), rtol=1e-5)


@pytest.mark.strategies
def test_what_is_not_taken_in() -> None:
    x = jnp.ones((40, N))
    # sums of what XLA makes in the same loop are its own
    assert operands_of(lambda x: jp.reduce(jnp.exp(x), axis=1), x) == []
    assert operands_of(lambda x: jp.reduce(x[1:], axis=1), x) == []
    # an operator that it does not know has the exponentials from memory
    own = lambda a, b: jnp.where(a > b, a, b)  # noqa: E731
    assert operands_of(lambda x: jp.reduce(jnp.exp(x), own, axis=1), x) == [["tensor<40x3000xf32>"]]
    # sorted indices are read as they are
    ids = jnp.arange(N, dtype=jnp.int32)
    text = operands_of(lambda x, i: jp.segment_sum(x * 2, i + 1, BINS, indices_are_sorted=True), jnp.ones((N, F)), ids)
    assert text[0][0] == "tensor<3000xi32>"
    # three arrays for one
    four = lambda a, b, c, d: jp.reduce(a * b + c * d, own)  # noqa: E731
    assert operands_of(four, *[jnp.ones(N)] * 4) == [["tensor<3000xf32>"]]


def test_derivatives_and_devices() -> None:
    x, w = jnp.linspace(-1, 1, N * F).reshape(N, F), jnp.linspace(0, 1, N)
    ids = jnp.arange(N, dtype=jnp.int32) % BINS
    ours = lambda x, w: jp.reduce(jp.segment_sum(x * w[:, None] + 1, ids, BINS) ** 2)  # noqa: E731
    plain = lambda x, w: jnp.sum(jax.ops.segment_sum(x * w[:, None] + 1, ids, BINS) ** 2)  # noqa: E731
    for got, expected in zip(jax.jit(jax.grad(ours, (0, 1)))(x, w), jax.grad(plain, (0, 1))(x, w), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-2)
    mesh = jax.make_mesh((len(jax.devices()),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    sharded = jax.device_put(x[: N // 8 * 8], rows), jax.device_put(w[: N // 8 * 8], rows)
    total = jax.jit(lambda x, w: jp.reduce(x * w[:, None] + 1, axis=0))(*sharded)
    np.testing.assert_allclose(total, (sharded[0] * sharded[1][:, None] + 1).sum(0), rtol=1e-4)


def test_what_is_behind_a_mask() -> None:
    """A product with a mask is a choice, as in XLA: no NaN comes of an infinity that it hides."""
    x = jnp.ones((40, N)).at[:, 7].set(jnp.inf).at[:, 9].set(jnp.nan)
    for masked in (lambda x: x * (x < 5).astype(x.dtype), lambda x: jax.jit(lambda m: m.astype(x.dtype))(jnp.isfinite(x)) * x):
        plain = jax.jit(lambda x, f=masked: jnp.sum(f(x), 1))(x)
        np.testing.assert_array_equal(jax.jit(lambda x, f=masked: jp.reduce(f(x), axis=1))(x), plain)
        np.testing.assert_array_equal(jax.jit(lambda x, f=masked: jp.cumsum(f(x), 1))(x)[:, -1], plain)


def test_an_operand_that_a_function_made_of_something_else() -> None:
    """What was seen inside a function that is left as it is leaves no traces."""

    @jax.jit
    def sorted_and_moved(x: Any, y: Any) -> Any:
        return jnp.sort(x + y) * 2 + y

    def f(red: Fn) -> Fn:
        return lambda x, y: red(sorted_and_moved(x, y) * y + x)

    rng = np.random.default_rng(1)
    x, y = (jnp.asarray(rng.normal(size=20_000).astype(np.float32)) for _ in range(2))
    np.testing.assert_allclose(jax.jit(f(jp.reduce))(x, y), jax.jit(f(jnp.sum))(x, y), rtol=1e-3)
    np.testing.assert_allclose(jax.jit(f(jp.cumsum))(x, y), jax.jit(f(jnp.cumsum))(x, y), rtol=1e-3, atol=0.5)


def as_made_before(make: Fn, *args: Any) -> None:
    """To the bit: an operator that only chooses, of operands that are made before, and that are not."""

    def last(make: Fn) -> Fn:
        return lambda *args: jp.scan(make(*args), lambda a, b: jnp.where(b == 0, a, b))

    made_before = last(lambda *args: jax.lax.optimization_barrier(make(*args)))
    np.testing.assert_array_equal(jax.jit(last(make))(*args), jax.jit(made_before)(*args))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32"])
def test_indices_of_any_width(dtype: str) -> None:
    """A table may have more rows than the indices can say."""
    at = np.asarray(np.random.default_rng(2).integers(-100, 100, N)).astype(dtype)
    for mode in ("clip", "fill"):
        as_made_before(lambda h, at, m=mode: jnp.take(h, at, axis=0, mode=m) * 2, np.arange(300, dtype=np.int32), at)


def test_64_bits_for_a_part_of_the_function() -> None:
    def wide(x: Any) -> Any:
        with jax.enable_x64(True):
            return ((x.astype(jnp.int64) * 5 + (1 << 33)) // 7).astype(jnp.float32)

    x = np.arange(N, dtype=np.int32)
    as_made_before(wide, x)

    def total(x: Any) -> Any:
        with jax.enable_x64(True):
            return jp.reduce(x.astype(jnp.int64) << 30)

    assert int(jax.jit(lambda x: total(x * 2))(x)) == int(x.astype(np.int64).sum()) << 31


def test_constants_that_are_almost_alike(x64: None) -> None:
    for c in (1 + 1e-10, 1 + 1.1e-10, np.array(1 + 1e-12), np.array(1 + 2e-12)):
        scaled = jax.jit(lambda x, c=c: jp.scan(x * 3, jnp.maximum, map=lambda a: a * c))(np.ones(N))
        np.testing.assert_array_equal(scaled, 3 * float(c))


@pytest.mark.parametrize("op", [lambda a, b: a - b, lambda a, b: -a, lambda a, b: b + b, jnp.maximum])
def test_reductions_of_one_number_each(op: Fn) -> None:
    as_made_before(lambda x: jax.lax.reduce(x * 2, np.float32(1), op, (1,)) * 3, np.linspace(-1, 1, N, dtype=np.float32)[:, None])


SEVERAL: dict[str, Fn] = {
    "ordered callback": lambda x: io_callback(lambda x: x, jax.typeof(x), x, ordered=True),
    "callback": lambda x: jax.pure_callback(lambda x: x, jax.typeof(x), x, vmap_method="sequential"),
    "sort": lambda x: jax.lax.sort((x, x + 1), num_keys=1)[1],
    "branches": lambda x: jax.lax.cond(x[0] > 0, lambda x: (x[0], x * 2), lambda x: (x[1], x + 1), x)[1],
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda _, c: (c[1], c[0] * 2), (x, x + 1))[1],
    "random bits": lambda x: jax.lax.rng_bit_generator(jnp.zeros(4, np.uint32), x.shape, np.uint32)[1].astype(x.dtype) % 7 + x,
    "barrier": lambda x: jax.lax.optimization_barrier((x[1:], x))[1],
}


@pytest.mark.parametrize("name", SEVERAL)
def test_operations_of_several_results(name: str) -> None:
    """Among which are some that are no arrays: tokens, before what is ordered."""
    as_made_before(lambda x: SEVERAL[name](x * 2) * 3 + x, np.linspace(-1, 1, N, dtype=np.float32))


def test_long_chains_are_left() -> None:
    step = jax.jit(lambda a, b, x: a + b * x)

    def numbers(x: Any) -> Any:
        a, b = jnp.sort(x), jnp.sort(-x)
        for _ in range(40):
            a, b = step(a, b, x) / 2, a
        return a

    def reshaped(x: Any) -> Any:
        for _ in range(600):
            x = x.reshape(30, 100).reshape(N)
        return x * 2

    as_made_before(numbers, np.linspace(-1, 1, N, dtype=np.float32))
    as_made_before(reshaped, np.linspace(-1, 1, N, dtype=np.float32))
