"""``jp.reduce``, ``jp.argmax`` and ``jp.argmin`` against the definition and ``jax.numpy``."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy_outcomes
import pytest
import references
from exports import export
from references import DTYPES, assert_close
from test_scan import affine, elements, everything, last, matmul

import jaxprims as jp
from jaxprims.targets.plans import AnyKernel, forced


def reduced(x: Any, op: Any, axis: int = 0, **options: Any) -> Any:
    """The definition: the last of all prefixes."""
    return jax.tree.map(lambda v: np.take(v, -1, axis), references.scan(x, op, axis, **options))


LENGTHS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 255, 257, 300, 1023, 1024, 1025, 2049]


def test_lengths() -> None:
    """Operators that do not commute."""
    whole = elements(LENGTHS[-1])
    prefixes = references.scan(whole, everything)
    run = jax.jit(lambda x: jp.reduce(x, everything, axis=0))
    for n in LENGTHS:
        assert_close(run(jax.tree.map(lambda v: v[:n], whole)), jax.tree.map(lambda v: v[n - 1], prefixes), 1e-3)


def test_sums_lose_no_more_than_short_ones() -> None:
    """Few numbers are added one after the other. Of equal ones each addition may err the same way."""
    errors = []
    with forced(AnyKernel()):
        for number in np.linspace(0.1, 1, 20, dtype=np.float32):
            x = np.full(2**15, number)
            errors.append(abs(float(jp.reduce(x)) / (float(number) * len(x)) - 1))
    assert np.mean(errors) < 10 * 2**-24


@pytest.mark.dear
def test_long() -> None:
    """Several blocks; and a second run gives the same bits."""
    x = elements(70_001)
    run = jax.jit(lambda x: jp.reduce(x, everything, axis=0))
    got = run(x)
    assert_close(got, reduced(x, everything), 2e-3)
    for first, second in zip(jax.tree.leaves(got), jax.tree.leaves(run(x)), strict=True):
        assert np.asarray(first).tobytes() == np.asarray(second).tobytes()


SETS = [axes for k in range(5) for axes in itertools.combinations(range(4), k)]


@pytest.mark.cover(2)
@pytest.mark.parametrize(("shape", "sets"), [((3, 4, 5, 6), SETS), ((7, 3, 70, 2), SETS[5::3]), ((2, 30, 1, 37), SETS[6::4])])
def test_sets_of_axes(shape: tuple[int, ...], sets: Any) -> None:
    """Any of them, in any order, counted from either end; the order of elements is row-major. Each set meets two of
    the four operators."""
    rng = np.random.default_rng(0)
    x = rng.integers(-99, 99, shape).astype(np.int32)
    sparse = (x * (rng.random(shape) < 0.2)).astype(np.int32)
    maps = tuple(rng.integers(-9, 9, shape).astype(np.int32) for _ in range(2))

    @functools.partial(jax.jit, static_argnums=(3, 4))
    def run(x: Any, sparse: Any, maps: Any, axis: Any, keep: bool) -> Any:
        options = {"axis": axis, "keepdims": keep}
        if keep:
            return jp.reduce(maps, affine, **options), jp.reduce(sparse, last, init=5, **options)
        return jp.reduce(x, **options), jp.reduce((x, jp.positions), jp.monoids.argmax, **options)

    for k, axes in enumerate(sets):
        keep = (k + len(axes)) % 2 == 0
        flat = lambda v: np.moveaxis(v, axes, range(len(axes))).reshape(-1, *np.delete(shape, axes))  # noqa: E731
        got = run(x, sparse, maps, axes[::-1] if keep else tuple(a - 4 for a in axes), keep)
        if keep:
            pairs, lasts = got
            assert_close(pairs, jax.tree.map(lambda y: np.expand_dims(y, axes), reduced(jax.tree.map(flat, maps), affine)))
            np.testing.assert_array_equal(lasts, np.expand_dims(reduced(flat(sparse), last, init=np.int32(5)), axes))
        else:
            sums, (best, at) = got
            np.testing.assert_array_equal(sums, x.sum(axes, dtype=np.int32))
            np.testing.assert_array_equal(best, x.max(axes) if axes else x)
            np.testing.assert_array_equal(at, flat(x).argmax(0))


def test_one_axis_and_all() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for axis in (None, 0, 1, 2, -1, -2, -3, [0, 2], np.int64(1)):
        want = np.sum(x, axis=tuple(axis) if isinstance(axis, list) else axis)
        for keep in (False, True):
            got = jp.reduce(x, axis=axis, keepdims=keep)
            assert got.shape == np.sum(x, axis=tuple(axis) if isinstance(axis, list) else axis, keepdims=keep).shape
            np.testing.assert_array_equal(np.reshape(np.asarray(got), want.shape), want)
    assert jp.reduce(jnp.float32(3), init=4.0) == 7
    assert jp.reduce(3, keepdims=True).shape == ()
    assert jp.reduce(x, map=lambda v: jnp.stack([v, 2 * v])).tolist() == [276, 552]
    assert jp.reduce(x, map=lambda v: jnp.stack([v, 2 * v]), keepdims=True).shape == (1, 1, 1, 2)


def test_elements_inside_slices() -> None:
    """Matrices in a batch before the axis, after it, on both sides; axes of the matrices on the wrong side; other ranks."""
    m = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 50, 4, 2, 2)))[0].astype(np.float32)
    for axis in (0, 1, 2):
        assert_close(jp.reduce(m, matmul, axis=axis), reduced(m, matmul, axis), 1e-4)
    both = np.moveaxis(m, 2, 1).reshape(3 * 4, 50, 2, 2)
    assert_close(jp.reduce(m, matmul, axis=(0, 2)), reduced(both, matmul), 1e-4)
    assert_close(jp.reduce(m.reshape(150, 4, 2, 2), matmul, axis=(0, 1)), reduced(m.reshape(-1, 2, 2), matmul), 1e-4)
    rows_first = np.moveaxis(m, -2, 0)  # [2, 3, 50, 4, 2]: an element's first axis lies before those that are reduced
    assert_close(jp.reduce(rows_first[:, 0, :, 0], matmul, axis=1), reduced(m[0, :, 0], matmul), 1e-4)
    rows_first = rows_first[:, :, :, 0].swapaxes(2, 3)  # [2, 3, 2, 50]
    assert_close(jp.reduce(rows_first, matmul, axis=(1, 3)), reduced(m[:, :, 0].reshape(-1, 2, 2), matmul), 1e-4)
    a, b = m[0, :, 0], m[1, :, 0, 0]
    maps = lambda p, q: (q[0] @ p[0], q[0] @ p[1] + q[1])  # noqa: E731
    assert_close(jp.reduce((a, b), maps, axis=0), reduced((a, b), maps), 1e-4)
    short, long = m[0, 0, 0], m[:, 0, :2, 0]  # [2, 2] and [3, 2, 2]: along their last but one axis
    got = jp.reduce((short, long), lambda p, q: (p[0] + q[0], p[1] * q[1]), axis=-2)
    assert_close(got, (short.sum(0), long.prod(1)), 1e-5)


OPERATORS = (
    (jnp.multiply, np.multiply, 1),
    (jnp.maximum, np.maximum, 1),
    (jnp.minimum, np.minimum, 1),
    (last, last, 1),
    (last, last, 2),
)


@pytest.mark.cover(8)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str, x64: None) -> None:
    """Sums; the other operators in turn."""
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 4, (3, 259, 2)).astype(jnp.dtype(dtype))
    calls = ((jnp.add, np.add, 1), OPERATORS[DTYPES.index(dtype) % 5])

    @jax.jit
    def run(x: Any) -> Any:
        return [jp.reduce(x, op, axis=axis) for op, _, axis in calls], [jp.reduce(x[:, :0], op, axis=1) for op in NEUTRAL]

    got, empty = run(x)
    for y, (_, reference, axis) in zip(got, calls, strict=True):
        assert y.dtype == x.dtype
        assert_close(y, reduced(x, reference, axis).astype(references.wide(x).dtype))
    for y, neutral in zip(empty, NEUTRAL.values(), strict=True):
        assert (np.asarray(y) == np.asarray(neutral, x.dtype)).all()


NEUTRAL = {jnp.add: 0, jnp.multiply: 1}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_sums_are_as_good_as_numpys(dtype: str) -> None:
    """A plain loop in the dtype would stop growing."""
    x = jnp.asarray(np.random.default_rng(0).random((2, 3, 40_000)), dtype)
    exact = np.asarray(x, np.float64).sum((0, 2))
    np.testing.assert_allclose(np.asarray(jp.reduce(x, axis=(0, 2)), np.float64), exact, rtol=float(jnp.finfo(dtype).eps))


def test_map() -> None:
    """In the kernel, with captured arrays and positions; on slices that it mixes, too; results of another structure."""
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((50, 8)).astype(np.float32), rng.standard_normal(50).astype(np.float32)

    @jax.jit
    def run(x: Any, weights: Any) -> Any:
        return (
            jp.reduce((x, jp.positions), axis=0, map=lambda v, i: v * weights[i] if v.ndim == 0 else v * weights[i[0]]),
            jp.reduce((weights, jp.positions), jp.monoids.add, map=lambda v, i: {"s": v, "n": 1 + 0 * i}),
            jp.reduce(x, axis=0, map=lambda row: jnp.sort(row)),
            jp.reduce(x, axis=(0, 1), map=jnp.square, init=1.0),
        )

    weighted, counted, mixed, squares = run(x, weights)
    assert_close(weighted, (x * weights[:, None]).sum(0), 1e-5)
    assert_close(counted, {"s": weights.sum(), "n": np.int32(50)}, 1e-5)
    assert_close(mixed, np.sort(x, 1).sum(0), 1e-5)
    assert_close(squares, 1 + np.square(x).sum(), 1e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_map_that_mixes_few_numbers_is_in_the_kernel(axis: int) -> None:
    """These are one element, which nobody writes; many, or along an axis in front, are XLA's."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((300, 200, 3)).astype(np.float32) for _ in range(2))

    def run(x: Any, y: Any) -> Any:
        return jp.reduce((x, y), jp.monoids.add, axis=axis, map=jnp.cross), jp.scan(
            (x, y), jp.monoids.max, axis=axis, map=jnp.cross
        )

    total, largest = jax.jit(run)(x, y)
    assert_close(total, np.cross(x, y).sum(axis), 1e-4)
    assert_close(largest, np.maximum.accumulate(np.cross(x, y), axis), 1e-5)
    long = [v.reshape(-1, 3) for v in (x, y)]
    summed = jax.jit(lambda x, y: jp.reduce((x, y), jp.monoids.add, axis=0, map=jnp.cross)).lower(*long).compile()
    assert summed.memory_analysis().temp_size_in_bytes < x.nbytes / 50
    assert_close(summed(*long), np.cross(*long).sum(0), 1e-4)


def test_empty() -> None:
    for shape, axis, want in (
        ((0,), None, ()),
        ((3, 0, 2), 1, (3, 2)),
        ((0, 3), (0, 1), ()),
        ((0, 0), 0, (0,)),
        ((4, 0), 0, (0,)),
    ):
        x = np.zeros(shape, np.float32)
        got = jp.reduce(x, jnp.maximum, axis=axis)
        assert got.shape == want
        assert (np.asarray(got) == -np.inf).all()
        assert (np.asarray(jp.reduce(x, last, axis=axis, init=3)) == 3).all()
    two = np.zeros((4, 0, 2, 2), np.float32)
    eye = np.eye(2, dtype=np.float32)
    assert_close(jp.reduce(two, matmul, axis=1, identity=eye), np.broadcast_to(eye, (4, 2, 2)))
    assert jax.jit(lambda i: jp.reduce(two[0], matmul, axis=0, identity=i))(eye).tolist() == eye.tolist()


def test_batches() -> None:
    """vmap: outside, inside, of captured arrays, of init, of any part of the operands; of a vmap."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 30, 5)).astype(np.float32), rng.standard_normal(4).astype(np.float32)
    for d in range(3):
        assert_close(jax.vmap(lambda v: jp.reduce(v, axis=0), d)(x), np.moveaxis(x, d, 0).sum(1), 1e-5)
        assert_close(jax.vmap(jax.vmap(lambda v: jp.reduce(v, jnp.maximum), 0), d)(x), np.moveaxis(x, d, 0).max(2))
    weigh = lambda v, w: jp.reduce(v, lambda a, b: a + b * jnp.abs(w) / jnp.abs(w), axis=0, map=lambda v: v * w, init=w)  # noqa: E731
    for v, dims in ((x[0], (None, 0)), (x, (0, 0))):
        assert_close(jax.vmap(weigh, dims)(v, w), (v * w[:, None, None]).sum(1) + w[:, None], 1e-4)
    a, b = x[:, :, 0], x[0, :, 0]
    want = np.stack([np.stack(reduced((a[k], b), affine)) for k in range(4)])
    assert_close(jnp.stack(jax.vmap(lambda a: jp.reduce((a, b), affine))(a), 1), want, 1e-4)
    at = jax.vmap(lambda v: jp.reduce((v, jp.positions), jp.monoids.argmax)[1], in_axes=2)(x)
    np.testing.assert_array_equal(at, np.moveaxis(x, 2, 0).reshape(5, -1).argmax(1))


def test_operators_without_a_kernel() -> None:
    x = jnp.asarray(np.random.default_rng(0).integers(0, 99, (4, 11, 3)), np.float32)
    greatest = lambda a, b: jax.lax.approx_max_k(jnp.concatenate([a, b], -1), 3)[0]  # noqa: E731
    with pytest.warns(jp.FallbackWarning, match="op cannot be compiled"):
        got = jp.reduce(x, greatest, axis=1, init=50.0)
    np.testing.assert_array_equal(got, np.sort(np.concatenate([x.reshape(4, -1), np.full((4, 3), 50)], 1))[:, :-4:-1])
    with pytest.warns(jp.FallbackWarning):
        y = jp.reduce(jnp.arange(40).reshape(40).astype(jnp.int4), axis=0)
    assert y.dtype == jnp.int4


ERRORS: dict[str, tuple[Any, type, str]] = {
    "axis out of range": (lambda x: jp.reduce(x, axis=2), ValueError, "axis 2 is out of range for xs with 2 axes"),
    "axis twice": (lambda x: jp.reduce(x, axis=(0, -2)), ValueError, "names an axis twice"),
    "axis no integer": (lambda x: jp.reduce(x, axis=(0, 1.0)), TypeError, "axis must be an integer, got 1.0"),
    "shapes differ": (
        lambda x: jp.reduce((x, x.T), jp.monoids.add),
        ValueError,
        r"xs must have one shape, got shapes \(2, 3\), \(3, 2\)",
    ),
    "lengths differ": (lambda x: jp.reduce((x, x.T), jp.monoids.add, axis=0), ValueError, "one length along axis 0"),
    "keepdims": (lambda x: jp.reduce(x, keepdims=1), TypeError, "keepdims must be True or False, got 1"),
    "no elements": (lambda x: jp.reduce(x[:0], last, axis=0), ValueError, "needs identity= or init="),
    "init": (lambda x: jp.reduce(x, init=np.float64(1) * np.zeros(5)), ValueError, "init must broadcast to a slice's shape"),
    "structure": (lambda x: jp.reduce(x, lambda a, b: (a, b)), TypeError, "op must return the structure of its arguments"),
    "dtype": (lambda x: jp.reduce(x, lambda a, b: a.astype(int)), TypeError, "op must keep shape and dtype"),
    "nothing": (lambda x: jp.reduce(()), TypeError, "xs must hold at least one array"),
    "op": (lambda x: jp.reduce(x, 3), TypeError, "op must be a Monoid or a function of two values"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str) -> None:
    call, kind, message = ERRORS[case]
    with pytest.raises(kind, match=message):
        call(np.zeros((2, 3), np.float32))


# --- argmax and argmin --------------------------------------------------------------------------------------------------------

NAMES = ("argmax", "argmin")


def assert_same(name: str, *args: Any, **options: Any) -> None:
    numpy_outcomes.assert_same(lambda m: getattr(m, name)(*args, **options))


NARROW = [*(d for d in DTYPES if "64" not in d and "128" not in d), "complex64", "int4", "float8_e4m3fn"]


@pytest.mark.cover(7)
@pytest.mark.parametrize(("name", "dtype"), [*(("argmax", d) for d in NARROW), *(("argmin", d) for d in NARROW[::3])])
def test_positions_of_extremes(name: str, dtype: str) -> None:
    """Ties, every kind of number, one axis and all; of some, every axis."""
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 5, (3, 65, 4)).astype(jnp.dtype(dtype))
    if NARROW.index(dtype) % 2:
        assert_same(name, x)
    else:
        assert_same(name, -x if dtype in ("float16", "float32") else x, axis=1, keepdims=True)
    if dtype in ("float32", "bool") and name == "argmax":
        assert_same(name, x, 0)
        assert_same(name, x, -1)


@pytest.mark.parametrize("name", NAMES)
def test_positions_of_64_bits(name: str, x64: None) -> None:
    for dtype in ("int64", "uint64", "float64", "complex128", "int32"):
        x = np.random.default_rng(0).integers(0, 5, (3, 65)).astype(dtype)
        assert_same(name, x, *([1] if dtype in ("int64", "float64", "int32") else []))
    assert_same(name, jnp.asarray([2**63 - 1, -(2**63), 2**63 - 1, -(2**63)]))


ODD: dict[str, tuple[Any, ...]] = {
    "NaN": (np.array([1, np.nan, 3, np.nan], np.float32),),
    "NaN, later": (np.array([3] * 40 + [np.nan] + [7] * 40, np.float32),),
    "infinities": (np.array([-np.inf, np.inf, np.inf, -np.inf], np.float32),),
    "zeros of both signs": (np.array([0.0, -0.0, 0.0], np.float32),),
    "zeros of both signs, negative first": (np.array([-0.0, 0.0], np.float32),),
    "empty": (np.zeros(0),),
    "empty axis": (np.zeros((3, 0)), 1),
    "empty other axis": (np.zeros((3, 0)), 0),
    "scalar": (5.0,),
    "scalar, axis": (5.0, 0),
    "axis out of range": (np.zeros((3, 2)), 2),
    "axis no integer": (np.zeros((3, 2)), 1.5),
    "list": ([1, 2, 3],),
    "text": ("abc",),
    "out": (np.zeros(3), None, np.zeros(3)),
    "NumPy axis": (np.arange(6).reshape(2, 3), np.int32(1)),
}


@pytest.mark.cover(26)
@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("name", NAMES)
def test_odd_arguments(name: str, case: str) -> None:
    assert_same(name, *ODD[case])


@pytest.mark.parametrize("name", NAMES)
def test_positions_under_transformations(name: str, strict: None) -> None:
    x = np.random.default_rng(0).standard_normal((5, 70, 3)).astype(np.float32)
    ours, theirs = getattr(jp, name), getattr(np, name)
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda v: ours(v, 0), 1))(x), theirs(x, 0))
    np.testing.assert_array_equal(jax.vmap(ours, 2)(x), theirs(x.reshape(350, 3), 0))
    assert jax.grad(lambda v: v.ravel()[ours(v)])(x).sum() == 1


def test_long_positions() -> None:
    """Many blocks; the greatest is where the last block ends, or the first begins."""
    x = np.random.default_rng(0).standard_normal(300_001).astype(np.float32)
    for at in (0, 150_000, 300_000):
        y = x.copy()
        y[at] = 100
        assert int(jp.argmax(y)) == at
    assert int(jp.argmax(y.reshape(-1, 1), axis=0)[0]) == at
    assert math.prod(jp.argmax(np.tile(y[:3000], (3, 1)).T, axis=0).shape) == 3


@pytest.mark.cover(2)
@pytest.mark.strategies
@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8"])
def test_logic_of_rows_and_columns(dtype: str) -> None:
    """Where XLA's own operation is the strategy, and where a kernel is: the same."""
    rng = np.random.default_rng(2)
    for shape, axis in (((9000, 10), 1), ((40, 3), 0), ((70_000,), 0), ((3, 5, 7), 1), ((2, 40_000), 1)):
        x = rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
        for op, ufunc in ((jnp.bitwise_and, np.bitwise_and), (jnp.bitwise_or, np.bitwise_or), (jnp.bitwise_xor, np.bitwise_xor)):
            got = jax.jit(lambda x, op=op, axis=axis: jp.reduce(x, op, axis=axis))(x)
            assert got.dtype == x.dtype
            np.testing.assert_array_equal(got, ufunc.reduce(x, axis=axis))


@pytest.mark.cover(7)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 15, 17, 300, 4095, 4096, 4097, 9000, 70_001])
def test_logaddexp_by_chunks(n: int, dtype: str) -> None:
    """A maximum, then exponentials below it: what infinities, NaN and far-off numbers do, wherever they lie."""
    rng = np.random.default_rng(n)
    with jax.enable_x64(dtype == "float64"), forced(AnyKernel()):
        run = jax.jit(lambda x: jp.reduce(x, jnp.logaddexp))
        mapped = jax.jit(lambda x, s: jp.reduce(x, jnp.logaddexp, map=lambda v: v * s))
        rows = jax.jit(lambda x: jp.reduce(x, jnp.logaddexp, axis=1))
        for odd in ([], [np.inf], [-np.inf], [np.nan], [np.inf, -np.inf], [np.nan, np.inf], [-1e30, 1e30], [80.0, -80.0]):
            x = rng.normal(size=n).astype(dtype)
            x[rng.integers(0, n, len(odd))] = odd
            with np.errstate(all="ignore"):
                exact = np.logaddexp.reduce(x.astype(np.float64))
                scaled = np.logaddexp.reduce(x.astype(np.float64) * -0.5)
            np.testing.assert_allclose(run(x), exact, 1e-5, 1e-5)
            np.testing.assert_allclose(mapped(x, np.array(-0.5, dtype)), scaled, 1e-5, 1e-5)
            np.testing.assert_allclose(rows(np.stack([x, x])), [exact] * 2, 1e-5, 1e-5)
        assert run(np.full(n, -np.inf, dtype)) == -np.inf


@pytest.mark.cover(4)
@pytest.mark.parametrize(
    "shape", [(90, 2, 81), (70, 5, 300), (3, 8, 5000), (1, 9, 455), (1, 9, 456), (2, 60, 68), (1, 2, 500_001)]
)
def test_few_steps_side_by_side(shape: tuple[int, ...]) -> None:
    """Many reductions in one call of a kernel, whose states are never in memory; also where each has numbers of its own."""
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with forced(AnyKernel()):
        for op, numpys in ((jnp.add, np.add), (jnp.maximum, np.maximum), (jnp.logaddexp, np.logaddexp)):
            run = jax.jit(functools.partial(jp.reduce, op=op, axis=1))
            np.testing.assert_allclose(run(x), numpys.reduce(x, axis=1), 1e-4, 1e-4)
        scaled = jax.vmap(lambda s, x: jp.reduce(x, op=jnp.add, map=lambda x: x * s, axis=0))
        scale = np.arange(shape[0], dtype=np.float32)
        np.testing.assert_allclose(jax.jit(scaled)(scale, x), (x * scale[:, None, None]).sum(1), 1e-4, 1e-3)
        composed = jax.jit(lambda a, b: jp.reduce((a, b), affine, axis=1)[1])
        slope, expected = np.tanh(x), x[:, 0]
        for k in range(1, shape[1]):
            expected = slope[:, k] * expected + x[:, k]
        np.testing.assert_allclose(composed(slope, x), expected, 1e-3, 1e-3)
    nan = x.copy()
    nan[0, 1, :5] = np.nan
    with forced(AnyKernel()):
        np.testing.assert_array_equal(jax.jit(lambda x: jp.reduce(x, jnp.maximum, axis=1))(nan), nan.max(1))


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 17, 100])
def test_logaddexp_side_by_side(n: int, dtype: str) -> None:
    """Of rows and columns, several at a time: the greatest exponent and a sum below it, which is not rounded before the end."""
    rng = np.random.default_rng(n)
    with jax.enable_x64(dtype == "float64"), forced(AnyKernel()):
        x = rng.normal(size=(n, 70))
        for k, odd in enumerate(([np.inf], [-np.inf], [np.nan], [np.inf, -np.inf], [np.inf] * 2, [-1e4, 1e4], [80.0, -80.0])):
            x[rng.permutation(n)[: len(odd)], k] = odd[:n]
        x[:, -1] = -np.inf
        x = np.asarray(x.astype(jnp.dtype(dtype)))
        with np.errstate(all="ignore"):
            exact = np.logaddexp.reduce(x.astype(np.float64))
        tolerance = max(1e-6, float(jnp.finfo(dtype).eps))
        for axis, given in ((0, x), (1, x.T.copy())):
            got = jax.jit(lambda x, axis=axis: jp.reduce(x, jnp.logaddexp, axis=axis))(given)
            assert got.dtype == x.dtype
            np.testing.assert_allclose(np.asarray(got, np.float64), exact, tolerance, tolerance)
        ids = np.repeat(np.arange(70), n)
        got = jp.segment_reduce(x.T.ravel(), ids, jnp.logaddexp, num_segments=70)
        np.testing.assert_allclose(np.asarray(got, np.float64), exact, tolerance, tolerance)


@pytest.mark.filterwarnings("ignore::jaxprims.IdentityWarning")
@pytest.mark.parametrize("n", [3, 500, 70_001])
def test_logaddexp_of_nothing_is_its_identity(n: int) -> None:
    """A large negative number in place of -inf is what empty segments hold, whichever strategy it is."""
    x, ids = jnp.zeros(n), jnp.zeros(n, jnp.int32)
    monoid = jp.Monoid(jnp.logaddexp, -1e30)
    for by in (ids, jp.Offsets(jnp.array([0, n, n]))):
        got = jp.segment_reduce(x, by, monoid, **({"num_segments": 2} if by is ids else {}))
        np.testing.assert_allclose(got, [np.log(n), -1e30], rtol=1e-5)


LOST = [(100, 48), (1000, 8), (600, 12), (3000, 20), (2, 3000), (4, 5000), (60, 30)]


@pytest.mark.cover(3)
@pytest.mark.parametrize("shape", LOST)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_nan_is_kept_however_a_maximum_is_made(shape: tuple[int, int], dtype: str) -> None:
    """By a kernel or by XLA, whose own maxima lose them among some thousands of floats: alone, of what is made, in loops,
    differentiated. Every shape along both axes, every dtype along both."""
    axis = (LOST.index(shape) + ["float32", "float16", "bfloat16"].index(dtype)) % 2
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(jnp.dtype(dtype))
    rows = np.moveaxis(x, axis, 1)
    rows[np.arange(len(rows)), rng.integers(0, rows.shape[1], len(rows))] = rng.choice([np.nan, -np.nan], len(rows))
    for op in (jnp.maximum, jnp.minimum, *[jnp.logaddexp] * (dtype == "float32")):
        one = lambda x: jp.reduce(x, op, axis=axis)  # noqa: E731
        ways = {
            "jit": one,
            "of what is made": lambda x: one(jnp.sin(x)),
            "mapped": lambda x: jp.reduce(x, op, axis=axis, map=lambda v: v + 1),
            "in a loop": lambda x: jax.lax.map(one, x[None] + 1)[0],
            "differentiated": lambda x: jax.vjp(one, jnp.cos(x))[0],  # of other elements: not the first once more
        }
        got = jax.jit(lambda x: {name: way(x) for name, way in ways.items()})(x) | {"eager": one(jnp.asarray(x))}
        for name, y in got.items():
            assert np.isnan(y).all(), (op, name)


def test_symbolic_sizes_beside_known_ones() -> None:
    """Of several devices' axes the longest is reduced first, if it is known which that is."""
    (n,) = jax.export.symbolic_shape("n")
    fn = jax.jit(lambda x: jp.reduce(x, axis=(0, 1)))
    exported = export(fn)(jax.ShapeDtypeStruct((n, 40), jnp.float32))
    assert exported.call(jnp.ones((7, 40))) == 280


@pytest.mark.strategies
@pytest.mark.parametrize("op", [jnp.add, jnp.multiply, jnp.maximum, jnp.logaddexp], ids=lambda op: op.__name__)
@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_short_rows_in_batches_of_symbolic_size(op: Any, axis: int) -> None:
    """What is made otherwise for few numbers is not, of a number that nobody knows."""
    (n,) = jax.export.symbolic_shape("n")
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(jp.reduce(x, op, axis=axis)))))
    x = jnp.asarray(np.random.default_rng(0).uniform(0.5, 2, (7, 5) if axis else (5, 7)), jnp.float32)
    exported = export(gradient)(jax.ShapeDtypeStruct((n, 5) if axis else (5, n), jnp.float32))
    np.testing.assert_allclose(exported.call(x), gradient(x), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("n", [8, 25, 60])
def test_extremes_of_rows_keep_nan_and_the_signs_of_zeros(n: int, dtype: str) -> None:
    """Rows that are compared side by side: beside such that have none, and in the last group, which is not full."""
    rng = np.random.default_rng(n)
    x = np.array(jnp.asarray(rng.normal(size=(83, n)), dtype))
    x[3, n - 1], x[50, 2] = np.nan, -np.nan
    x[8:30] = np.where(rng.random((22, n)) < 0.5, 0.0, -0.0)
    x[12:16] = np.array([-0.0, 0.0, 0.0, -0.0])[:, None]
    x[40:48], x[64:80] = np.abs(x[40:48]), -np.abs(x[64:80])
    x[41, 3], x[61, 3], x[66, 3], x[67, 4:6] = 0.0, 0.0, -0.0, [0.0, -0.0]
    got = jax.jit(lambda x: (jp.reduce(x, jnp.maximum, axis=1), jp.reduce(x, jnp.minimum, axis=1)))(x)
    for y, extreme, every in zip(got, (np.max, np.min), (np.all, np.any), strict=True):
        want = extreme(x.astype(np.float64), axis=1)
        np.testing.assert_array_equal(np.asarray(y, np.float64), want)
        signs = every(np.signbit(x) | (x != 0), axis=1) if every is np.all else every(np.signbit(x) & (x == 0), axis=1)
        np.testing.assert_array_equal(np.signbit(np.asarray(y))[want == 0], signs[want == 0])
