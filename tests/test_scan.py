"""``jp.scan`` against the definition: operators that do not commute, lengths, axes, options, dtypes, errors."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from references import DTYPES, affine, assert_close, matmul

import jaxprims as jp


def last(a: Any, b: Any) -> Any:
    """The last one that is not zero."""
    xp = jnp if isinstance(a, jax.Array) or isinstance(b, jax.Array) else np
    return xp.where(b == 0, a, b)


def joined(a: Any, b: Any) -> Any:
    """Two strings one behind the other: their length, their letters as digits, and the weight of the next digit (modulo 2^32)."""
    return a[0] + b[0], a[1] * b[2] + b[1], a[2] * b[2]


def everything(a: Any, b: Any) -> Any:
    """Several operators that do not commute, side by side."""
    return {
        "two": matmul(a["two"], b["two"]),
        "three": matmul(a["three"], b["three"]),
        "affine": affine(a["affine"], b["affine"]),
        "last": last(a["last"], b["last"]),
        "joined": joined(a["joined"], b["joined"]),
    }


def elements(n: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    turn = rng.standard_normal((n, 3, 3))
    return {
        "two": np.linalg.qr(rng.standard_normal((n, 2, 2)))[0].astype(np.float32) if n else np.zeros((0, 2, 2), np.float32),
        "three": (np.linalg.qr(turn)[0] if n else turn).astype(np.float32),
        "affine": (rng.uniform(-1, 1, n).astype(np.float32), rng.standard_normal(n).astype(np.float32)),
        "last": (rng.integers(1, 99, n) * (rng.random(n) < 0.3)).astype(np.int16),
        "joined": (np.ones(n, np.uint32), rng.integers(0, 5, n).astype(np.uint32), np.full(n, 5, np.uint32)),
    }


@pytest.mark.dear
def test_lengths() -> None:
    """Around those of vectors and of their multiples, and some between; operators that do not commute."""
    whole = elements(300)
    wanted = references.scan(whole, everything)
    run = jax.jit(lambda x: jp.scan(x, everything))
    around = {m + d for m in (0, 4, 8, 16, 32, 64, 128, 256) for d in (-1, 0, 1)} - {-1}
    for n in sorted(around | set(range(2, 301, 23))):
        cut = lambda v, n=n: v[:n]  # noqa: E731
        assert_close(run(jax.tree.map(cut, whole)), jax.tree.map(cut, wanted), 1e-4)


@pytest.mark.parametrize(("op", "reverse"), [(everything, False), (affine, True)])
@pytest.mark.dear
def test_long(op: Any, reverse: bool) -> None:
    """Several blocks; and a second run gives the same bits."""
    x = elements(70_001)
    x = x["affine"] if op is affine else x
    run = jax.jit(lambda x: jp.scan(x, op, reverse=reverse))
    got = run(x)
    assert_close(got, references.scan(x, op, reverse=reverse), 2e-3)
    for first, second in zip(jax.tree.leaves(got), jax.tree.leaves(run(x)), strict=True):
        assert np.asarray(first).tobytes() == np.asarray(second).tobytes()


OPTIONS = list(itertools.product((False, True), repeat=4))


@pytest.mark.cover(5)
@pytest.mark.parametrize(("exclusive", "reverse", "segments", "init"), OPTIONS)
def test_options(exclusive: bool, reverse: bool, segments: bool, init: bool) -> None:
    """Every combination, and every two of them with each of: matrices, pairs along an inner axis, scalars side by side."""
    n = 2000
    rng = np.random.default_rng(1)
    starts = rng.random(n) < 0.01 if segments else None
    two = elements(n)["two"]
    pairs = tuple(rng.uniform(-1, 1, (n, 3)).astype(np.float32) for _ in range(2))
    wide = rng.integers(-9, 9, (2, n, 33)).astype(np.int32)
    options = {"exclusive": exclusive, "reverse": reverse}
    x: Any
    x, op, axis, identity, start = (
        (two, matmul, 0, np.eye(2, dtype=np.float32), np.array([[1, 2], [3, 4]], np.float32)),
        (pairs, affine, 0, (np.float32(1), np.float32(0)), (np.arange(3, dtype=np.float32), np.float32(2))),
        (wide, last, 1, np.int32(0), np.int32(7)),
    )[(exclusive + reverse + 2 * segments + 2 * init) % 3]
    given: Any = {"init": start} if init else {"identity": identity}
    got = jp.scan(x, op, axis=axis, segment_starts=starts, **options, **given)
    assert_close(got, references.scan(x, op, axis, starts=starts, **options, **given), 1e-4)


@pytest.mark.cover(1)
@pytest.mark.parametrize("options", [{}, {"exclusive": True}, {"init": True}, {"init": True, "reverse": True}, {"starts": True}])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int16"])
@pytest.mark.dear
def test_leaves_whose_numbers_are_combined_in_several_ways(dtype: str, options: dict[str, bool]) -> None:
    """Sums of halves are wide, maxima of floats integers, and products neither: in one leaf, alone and side by side."""

    def each(a: Any, b: Any) -> Any:
        return jnp.stack([jnp.maximum(a[0], b[0]), a[1] + b[1], a[2] * b[2]])

    def plain(a: Any, b: Any) -> Any:
        return np.stack([np.maximum(a[..., 0], b[..., 0]), a[..., 1] + b[..., 1], a[..., 2] * b[..., 2]], -1)

    rng = np.random.default_rng(0)
    first = np.asarray([-99, 0, 1], np.float32).astype(dtype)
    for shape, op in (((300, 3), each), ((40, 2, 3), jax.vmap(each)), ((40, 70, 3), jax.vmap(each))):
        x = rng.integers(-2, 3, shape)
        x[..., 2] = np.where(rng.random(shape[:-1]) < 0.2, -1, 1)
        start = np.broadcast_to(first, shape[1:])
        starts = rng.random(shape[0]) < 0.1 if options.get("starts") else None
        given = {"init": start} if options.get("init") else {"identity": start}
        ways = {k: options.get(k, False) for k in ("exclusive", "reverse")}
        wide = x.astype(np.float32)
        want = references.scan(wide, plain, starts=starts, **ways, **{k: v.astype(np.float32) for k, v in given.items()})
        got = jp.scan(jnp.asarray(x, dtype), op, segment_starts=starts, **ways, **given)
        np.testing.assert_array_equal(np.asarray(got, np.float32), want)
        if not options:
            np.testing.assert_array_equal(np.asarray(jp.reduce(jnp.asarray(x, dtype), op, axis=0), np.float32), want[-1])
            cuts = jp.Offsets(np.array([0, 3, 3, shape[0]]))
            parts = jp.segment_reduce(jnp.asarray(x, dtype), cuts, op, identity=start)
            np.testing.assert_array_equal(np.asarray(parts[0], np.float32), want[2])


@pytest.mark.cover(6)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        *(((3, 4, 5, 6), axis) for axis in (0, 1, 2, 3, -2)),
        *(((2, 40, 3, 17), axis) for axis in (1, 3)),
        *(((1, 300, 1, 1), axis) for axis in (1, 2)),
        *(((20, 3, 2, 70), axis) for axis in (0, 2)),
        ((3, 1, 2, 2), 1),
    ],
)
def test_axes(shape: tuple[int, ...], axis: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-100, 100, shape).astype(np.int32)
    a, b = (rng.integers(-9, 9, shape).astype(np.int32) for _ in range(2))

    @jax.jit
    def run(x: Any, a: Any, b: Any) -> Any:
        lasts = jp.scan(x, last, axis=axis, exclusive=True, identity=0)
        return jp.scan(x, axis=axis), jp.scan((a, b), affine, axis=axis, reverse=True), lasts

    sums, maps, lasts = run(x, a, b)
    assert_close(sums, np.cumsum(x, axis, dtype=np.int32))
    assert_close(maps, references.scan((a, b), affine, axis, reverse=True))
    assert_close(lasts, references.scan(x, last, axis, exclusive=True, identity=np.int32(0)))


def test_elements_inside_slices() -> None:
    """Matrices in a batch before the axis, after it, and on both sides; leaves of different ranks."""
    rng = np.random.default_rng(0)
    m = np.linalg.qr(rng.standard_normal((3, 50, 4, 2, 2)))[0].astype(np.float32)
    assert_close(jp.scan(m, matmul, axis=1), references.scan(m, matmul, 1), 1e-4)
    assert_close(jp.scan(m[:, :, 0], matmul, axis=1), references.scan(m[:, :, 0], matmul, 1), 1e-4)
    assert_close(jp.scan(m[0], matmul, axis=0), references.scan(m[0], matmul, 0), 1e-4)
    assert_close(jp.scan(m, matmul, axis=0), references.scan(m, matmul, 0), 1e-4)
    a, b = m[0, :, 0], rng.standard_normal((50, 2)).astype(np.float32)
    maps = lambda p, q: (q[0] @ p[0], q[0] @ p[1] + q[1])  # noqa: E731
    assert_close(jp.scan((a, b), maps), references.scan((a, b), maps), 1e-4)


@pytest.mark.cover(4)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    """Sums, and in turn other operators, one of the user's among them; one along vectors and the other across them, in turn."""
    rng, turn = np.random.default_rng(0), DTYPES.index(dtype)
    t = jnp.dtype(dtype)
    x = (rng.integers(-4, 5, (3, 200, 21)) + (1j * rng.integers(-4, 5, (3, 200, 21)) if t.kind == "c" else 0)).astype(t)
    ops: list[Any] = [
        (lambda a, b: jnp.where(b == 0, a, b), lambda a, b: np.where(b == 0, a, b)),
        (jnp.maximum, np.maximum),
        (jnp.minimum, np.minimum),
    ]
    known = (jnp.logical_xor, np.logical_xor) if dtype == "bool" else (jnp.add, np.add)
    runs = [(*known, 1 + turn % 2), (*ops[0 if t.kind in "cb" else turn % 3], 1 + (turn + 1) % 2)]
    got = jax.jit(lambda x: [jp.scan(x, op, axis=axis) for op, _, axis in runs])(x)
    for y, (_, reference, axis) in zip(got, runs, strict=True):
        assert y.dtype == t
        assert_close(y, references.scan(x, reference, axis), 0.01 if t.itemsize == 2 and t.kind not in "iu" else None)


def test_not_a_number_and_infinity() -> None:
    x = np.array([1, np.inf, 2, -np.inf, 3, np.nan, 4], np.float32)
    for k in range(7):
        y = np.roll(np.tile(x, 9), k)
        for op, reference in ((jnp.add, np.add), (jnp.maximum, np.maximum), (jnp.multiply, np.multiply), (jnp.fmax, np.fmax)):
            assert_close(jp.scan(y, op), references.scan(y, reference))
        with np.errstate(all="ignore"):
            assert_close(jp.scan(y, jnp.logaddexp), references.scan(y, np.logaddexp))


def test_map_and_positions() -> None:
    """map runs in the kernel; positions are those in memory, also in reverse."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 100, 18)).astype(np.float32)
    weight = rng.standard_normal(100).astype(np.float32)
    for axis, reverse in ((0, False), (1, True), (2, False), (2, True)):
        n = x.shape[axis]
        w = jnp.asarray(weight[:n])
        along = np.arange(n).reshape([-1 if k == axis else 1 for k in range(3)])
        got = jp.scan((x, jp.positions), axis=axis, reverse=reverse, map=lambda v, i, w=w: v * v + w[i])
        assert_close(got, references.scan((x.astype(np.float64) ** 2 + weight[along]), np.add, axis, reverse=reverse), 1e-4)
        best, where = jp.scan((x, jp.positions), jp.monoids.argmax, axis=axis, reverse=reverse)
        assert_close(best, references.scan(x, np.maximum, axis, reverse=reverse))
        assert_close(np.take_along_axis(x, np.asarray(where), axis), np.asarray(best))
    rows = jp.scan(x, axis=1, map=lambda s: s.sum(-1))  # not lane by lane: XLA does it
    assert_close(rows, np.cumsum(x.sum(-1), 1), 1e-4)


def test_short_rows() -> None:
    """Many rows to a block, of lengths around a vector's."""
    rng = np.random.default_rng(0)
    for n in (1, 3, 8, 15, 16, 17, 33, 100, 257):
        x = rng.integers(-9, 9, (500, n)).astype(np.int32)
        a = rng.integers(-9, 9, (500, n)).astype(np.int32)
        assert_close(jp.scan(x, axis=1), np.cumsum(x, 1, dtype=np.int32))
        got = jp.scan((a, x), affine, axis=1, reverse=True, exclusive=True, identity=(1, 0))
        assert_close(got, references.scan((a, x), affine, 1, reverse=True, exclusive=True, identity=(np.int32(1), np.int32(0))))


def test_empty() -> None:
    assert jp.scan(jnp.zeros((0,))).shape == (0,)
    assert jp.scan(jnp.zeros((3, 0, 2)), axis=1, exclusive=True).shape == (3, 0, 2)
    assert jp.scan(jnp.zeros((3, 5, 0)), last, axis=1).shape == (3, 5, 0)
    assert jp.scan(jnp.zeros((0, 5)), axis=1, segment_starts=np.ones(5, bool), init=1.0).shape == (0, 5)


def test_identity() -> None:
    """A start value that is only known at run time, or differs from lane to lane."""
    x = jnp.arange(12.0).reshape(4, 3)
    f = jax.jit(lambda x, e: jp.scan(x, lambda a, b: a + b * 1.0 + 0.0, exclusive=True, identity=e))
    assert_close(f(x, jnp.zeros(())), references.scan(x, np.add, exclusive=True, identity=np.float32(0)))
    start = np.array([0.0, 0, -0.0], np.float32)
    assert_close(jp.scan(x, last, exclusive=True, identity=start), references.scan(x, last, exclusive=True, identity=start))
    with pytest.warns(jp.IdentityWarning, match="not op's neutral element"):
        jp.scan(x, jnp.add, exclusive=True, identity=1.0)


def test_fallback() -> None:
    """What kernels cannot express runs as plain XLA."""
    x = np.random.default_rng(0).standard_normal((3, 91, 91)).astype(np.float32) / 91
    with pytest.warns(jp.FallbackWarning, match="8281 scalars"):
        got = jp.scan(x, matmul, exclusive=True, init=np.eye(91, dtype=np.float32))
    assert_close(got, references.scan(x, matmul, exclusive=True, init=np.eye(91, dtype=np.float32)), 1e-3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"xs": jnp.zeros(3), "op": 3}, TypeError, "op must be a Monoid or a function of two values, got 3"),
        ({"xs": jnp.zeros(3), "axis": 1}, ValueError, r"axis 1 is out of range for xs with 1 axes"),
        ({"xs": jnp.zeros(3), "axis": 0.0}, TypeError, "axis must be an integer, got 0.0"),
        ({"xs": jnp.zeros(())}, ValueError, "every leaf needs an axis to go along, got a scalar"),
        ({"xs": (jnp.zeros(3), jnp.zeros(4)), "op": affine}, ValueError, r"one length along axis 0, got shapes \(3,\), \(4,\)"),
        ({"xs": []}, TypeError, "xs must hold at least one array"),
        ({"xs": jp.positions}, ValueError, "at least one array is needed to know the number of elements"),
        ({"xs": jnp.zeros(3), "op": lambda a, b: a > b}, TypeError, r"on float32\[\] it returned bool\[\]"),
        ({"xs": jnp.zeros(3), "op": lambda a, b: (a, b)}, TypeError, "op must return the structure of its arguments"),
        ({"xs": jnp.zeros(3), "op": last, "exclusive": True}, ValueError, "an exclusive scan needs identity= or init="),
        ({"xs": jnp.zeros(3), "exclusive": 1}, TypeError, "exclusive must be True or False, got 1"),
        ({"xs": jnp.zeros(3), "init": (0.0, 1.0)}, TypeError, "init must have the values' structure"),
        ({"xs": jnp.zeros(3), "init": jnp.zeros(2)}, ValueError, r"init must broadcast to a slice's shape \(\), got \(2,\)"),
        ({"xs": jnp.zeros(3, jnp.int32), "init": 0.5}, TypeError, "init must have the values' dtype, int32"),
        ({"xs": jnp.zeros(3), "segment_starts": [0, 1, 0]}, TypeError, "segment_starts must be booleans, got int32"),
        ({"xs": jnp.zeros(3), "segment_starts": [True]}, ValueError, r"segment_starts must have shape \(3,\), got \(1,\)"),
        ({"xs": jnp.zeros(3), "map": 1}, TypeError, "map must be a function of one element, got 1"),
        ({"xs": [object()]}, TypeError, "xs: object is not an array"),
    ],
)
def test_errors(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        jp.scan(arguments.pop("xs"), **arguments)


X4, IDS4 = np.arange(4, dtype=np.float32), np.array([0, 0, 1, 1])
LOST = {
    "tuple": (lambda: jp.segment_reduce((X4, X4), IDS4, num_segments=2), r"jax.tree.map\(jnp.add, a, b\), or that of jp.monoids"),
    "dict": (lambda: jp.reduce_by_index({"a": X4}, IDS4, 2, jnp.maximum), r"jnp.maximum combines arrays.*jp.monoids"),
    "argmax": (lambda: jp.reduce(X4, jp.monoids.argmax), r"argmax combines pairs.*write \(x, jp.positions\)"),
    "argmin": (lambda: jp.reduce_by_index(X4, IDS4, 2, jp.monoids.argmin), r"argmin combines pairs.*write \(x, jp.positions\)"),
    "op first": (lambda: jp.scan(jnp.add, X4), "xs must be arrays, got the function.*comes first, then op"),
    "op first, a reduction": (lambda: jp.reduce(lambda a, b: a, X4), "xs must be arrays, got the function.*first, then op"),
    "op first, segments": (
        lambda: jp.segment_reduce(jnp.add, X4, IDS4),
        "values must be arrays, got the function.*first, then op",
    ),
    "lax.scan's way": (lambda: jp.scan(lambda c, x: (c, x), 0.0, X4), r"jax.lax.scan\(f, init, xs\) for a loop with a carry"),
}


@pytest.mark.parametrize("case", LOST)
def test_errors_that_say_what_to_write(case: str) -> None:
    call, message = LOST[case]
    with pytest.raises(TypeError, match=message):
        call()


# --- jax.lax's own ------------------------------------------------------------------------------------------------------------


def same_as_lax(f: Any) -> None:
    def outcome(lax: Any) -> Any:
        try:
            leaves, tree = jax.tree.flatten(f(lax))
        except Exception as error:
            return type(error)
        return tree, [(jax.typeof(x), isinstance(x, jax.Array), np.asarray(x).tolist()) for x in leaves]

    assert outcome(jp) == outcome(jax.lax)


@pytest.mark.cover(4)
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
def test_weak_types_and_booleans(name: str) -> None:
    for x in (jnp.broadcast_to(jnp.asarray(v), 4) for v in (1.0, 2, 1j)):
        assert x.weak_type
        same_as_lax(lambda lax, x=x: getattr(lax, name)(x))
    same_as_lax(lambda lax: jax.jit(getattr(lax, name))(jnp.broadcast_to(jnp.asarray(1.0), 4)))
    same_as_lax(lambda lax: getattr(lax, name)(jnp.array([True, False])))


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
def test_floats_that_kernels_do_not_know(name: str, dtype: str) -> None:
    x = jnp.asarray([0.5, 2, 1, 4, 2, 0.5, 1, 2, 0.5]).astype(dtype)
    same_as_lax(lambda lax: getattr(lax, name)(x))


def test_products_of_floats_without_zero() -> None:
    """Of which ``associative_scan`` makes its padding."""
    x = jnp.asarray([0.5, 2, 1, 4, 2, 0.5, 1, 2, 0.5]).astype(jnp.float8_e8m0fnu)
    np.testing.assert_array_equal(jp.cumprod(x).astype(jnp.float32), np.cumprod(x.astype(jnp.float32)))


def test_axes_that_are_numbers_of_numpy() -> None:
    x = np.ones((2, 3), np.float32)
    for axis in (np.int8(-1), np.int64(1), np.uint8(0), np.int32(-2)):
        np.testing.assert_array_equal(jp.cumsum(x, axis), np.cumsum(x, axis))
    with pytest.raises(ValueError, match=r"axis must lie in \[-2, 2\), got -3"):
        jp.cumsum(x, np.int64(-3))


X23 = np.arange(6, dtype=np.float32).reshape(2, 3)
ASSOCIATIVE_SCANS = {
    "None in a tuple": lambda lax: lax.associative_scan(lambda a, b: (a[0] + b[0], None), (X23, None)),
    "None in a dict": lambda lax: lax.associative_scan(lambda a, b: {"x": a["x"] * b["x"], "n": a["n"]}, {"x": X23, "n": None}),
    "a list for a tuple": lambda lax: lax.associative_scan(lambda a, b: [a[0] + b[0], b[1]], (X23, X23)),
    **{
        f"axis {axis!r}": lambda lax, axis=axis: lax.associative_scan(jnp.add, X23, axis=axis)
        for axis in (jnp.asarray(1), np.asarray(1), np.int8(0), -1, True, 2, -3, 1.0, None, "a", np.array([1]))
    },
    "axis traced": lambda lax: jax.jit(lambda axis: lax.associative_scan(jnp.add, X23, axis=axis))(1),
    "weak": lambda lax: lax.associative_scan(jnp.add, jnp.broadcast_to(jnp.asarray(1.0), 4)),
    **{
        f"{shape}, {reverse}": lambda lax, x=x, reverse=reverse: lax.associative_scan(jnp.add, x, reverse=reverse)
        for shape in ((0,), (0, 3), (3, 0))
        for x, reverse in ((np.zeros(shape, np.float32), False), (jnp.zeros(shape), True))
    },
}


@pytest.mark.cover(14)
@pytest.mark.parametrize("case", ASSOCIATIVE_SCANS)
def test_associative_scan(case: str) -> None:
    same_as_lax(ASSOCIATIVE_SCANS[case])


@pytest.mark.parametrize("shape", [(300,), (300, 50)], ids=str)
def test_an_operator_on_the_bytes_of_a_number(shape: tuple[int, ...]) -> None:
    """A bitcast to another width has another axis."""
    x = np.random.default_rng(1).integers(-(2**31), 2**31, shape).astype(np.int32)

    def op(a: Any, b: Any) -> Any:
        parts = jnp.maximum(*(jax.lax.bitcast_convert_type(v, jnp.uint8) for v in (a, b)))
        return jax.lax.bitcast_convert_type(parts, jnp.int32)

    with pytest.warns(jp.FallbackWarning, match="bitcast_convert_type: to another width"):
        got = jp.scan(x, op)
    wanted = np.maximum.accumulate(x.view(np.uint8).reshape(300, -1), 0).view(np.int32).reshape(shape)
    np.testing.assert_array_equal(got, wanted)
