"""``jp.stencil`` against its definition: boundaries, neighbourhoods, dtypes, cells, steps, plans, errors."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import assert_close, wide
from stencil_cells import NEAR, assert_same, floats, integers, mixed, wave, weighed
from stencil_reference import BOUNDARIES, stencil

import jaxprims as jp
from jaxprims.targets.plans import AnyKernel, forced

SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((1,), (2,), (3,), (5,), (17,), (70,)),
    2: ((1, 1), (1, 40), (40, 1), (2, 3), (3, 2), (9, 33)),
    3: ((1, 1, 1), (2, 3, 40), (5, 1, 19)),
    4: ((2, 3, 4, 18), (3, 1, 2, 5)),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("rank", NEAR)
def test_boundaries(rank: int) -> None:
    """Every one, mixed by axis, on grids that are smaller than the neighbourhood and larger."""
    f = NEAR[rank]
    modes = mixed(rank)
    cases = [(shape, b) for k, shape in enumerate(SHAPES[rank]) for b in (modes[:7] + modes[7 + k % 5 :: 5])]
    arrays = [integers(*shape) for shape in SHAPES[rank]]
    given = dict(zip(SHAPES[rank], arrays, strict=True))
    run = jax.jit(lambda xs: [jp.stencil(f, xs[SHAPES[rank].index(s)], boundary=b, fill_value=-7) for s, b in cases])
    for got, (shape, b) in zip(run(arrays), cases, strict=True):
        assert_same(got, *stencil(f, [given[shape]], b, fill=-7)) if got.size else assert_shape(got, f, given[shape], b)


def assert_shape(got: Any, f: Any, x: np.ndarray, boundary: Any) -> None:
    assert got.shape == stencil(f, [x], boundary)[0].shape and got.dtype == x.dtype


@pytest.mark.cover(4)
@pytest.mark.parametrize(
    "offsets",
    [
        ((5, 0),),
        ((-9, 2),),
        ((0, 13), (1, 0)),
        ((-25, 31), (25, 0), (0, -31)),
        tuple((i, j) for i in range(-3, 4) for j in range(4)),
    ],
)
def test_neighbourhoods(offsets: Any) -> None:
    """To one side only, far away, one cell alone, windows."""
    f, x = weighed(*offsets), integers(11, 37)
    run = jax.jit(lambda x: [jp.stencil(f, x, boundary=(b, c), steps=n) for b, c, n in cases])
    cases = [(b, c, 1 + k % 3) for k, (b, c) in enumerate(zip(BOUNDARIES, BOUNDARIES[3:] + BOUNDARIES[:3], strict=True))]
    for got, (b, c, n) in zip(run(x), cases, strict=True):
        assert_same(got, *stencil(f, [x], (b, c), steps=n))


@pytest.mark.cover(3)
@pytest.mark.parametrize("reads", [1, 3, 4, 5, 9])
def test_row_lengths(reads: int) -> None:
    """Around multiples of the vectors that are made together: four, three, two or one of them, by how long f is."""
    f, sizes = lambda a: sum(a[k] for k in range(reads)), [*range(reads, 40), 63, 64, 65, 66, 95, 97, 129, 200]
    xs = [integers(n) for n in sizes]
    got = jax.jit(lambda xs: [jp.stencil(f, x, boundary="valid") for x in xs])(xs)
    assert_same(got, [stencil(f, [x], "valid")[0] for x in xs])


DTYPES = (
    "bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
    "complex128",
)  # fmt: skip


@pytest.mark.cover(5)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    """Numbers so small that every dtype holds every result."""
    t, rng = jnp.dtype(dtype), np.random.default_rng(0)
    x = rng.integers(0, 4, (9, 41)).astype(t)
    f = (lambda a: a[-1, 0] ^ a[0, 1] ^ a[0, -2]) if dtype == "bool" else (lambda a: a[-1, 0] + a[0, 1] * a[0, -2])
    cases = [("constant", 1), ("edge", 1), ("keep", 1), (("wrap", "reflect"), 1), ("constant", 2), ("valid", 2)]
    run = jax.jit(lambda x: [jp.stencil(f, x, boundary=b, fill_value=1, steps=n) for b, n in cases])
    for got, (b, n) in zip(run(x), cases, strict=True):
        assert got.dtype == t
        (wanted,) = stencil(f, [wide(x)], b, fill=1, steps=n)
        assert_close(got, wanted, 0.02 if t.itemsize == 2 and t.kind not in "iu" else None)


def test_numbers_at_their_ends() -> None:
    """Integers wrap, maxima and minima are exact, NaN and infinity go where they are read and nowhere else."""
    x = np.array([[127, -128, 5, 0] * 9] * 3, np.int8)
    assert_same(jp.stencil(NEAR[2], x), *stencil(lambda a: NEAR[2](a).astype(np.int8), [x], "edge"))
    y = floats(5, 40)
    y[2, 7], y[3, 30], y[0, 0], y[4, 39] = np.nan, np.inf, -0.0, -np.inf
    near = lambda a: (jnp.maximum(a[0, -1], a[1, 0]), jnp.minimum(a[0, 1], a[-1, 0]), a[0, 0])  # noqa: E731
    plain = lambda a: (np.maximum(a[0, -1], a[1, 0]), np.minimum(a[0, 1], a[-1, 0]), a[0, 0])  # noqa: E731
    for b in BOUNDARIES[:6]:
        for got, wanted in zip(jp.stencil(near, y, boundary=b), stencil(plain, [y], b), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_several_arrays() -> None:
    """Each with a neighbourhood of its own, pytrees, constants, results of other dtypes and structures."""
    a, b, c = integers(6, 21), floats(6, 21), integers(6, 21, seed=1)

    def f(p: Any, q: Any, w: Any) -> Any:
        return {"less": p["a"][0, 1] < w[-1, 0], "sum": (q[1, 1] + q[0, -3], p["a"][2, 0] - p["c"][0, 0] * w[0, 4])}

    run = jax.jit(
        lambda a, b, c: [jp.stencil(f, ({"a": a, "c": c}, b), boundary=m, constants=c, fill_value=2) for m in BOUNDARIES[:6]]
    )
    for got, m in zip(run(a, b, c), BOUNDARIES, strict=False):
        less, added, product = stencil(
            lambda a, c, q, w: jax.tree.leaves(f({"a": a, "c": c}, q, w)), [a, c, b], m, fill=2, constants=[c]
        )
        assert set(got) == {"less", "sum"} and isinstance(got["sum"], tuple)
        assert_same((got["less"], got["sum"][1]), (less, product))
        assert_close(got["sum"][0], added)


def test_constants_and_steps() -> None:
    """Two arrays that change, and one that is read all the time; what is left out shrinks from step to step."""
    u, v, speed = (integers(13, 30, seed=k) for k in range(3))
    cases = [
        *((b, n) for b in BOUNDARIES for n in (1, 2, 5)),
        *(((a, b), 3) for a, b in itertools.permutations(BOUNDARIES[1:], 2)),
    ]
    run = jax.jit(lambda u, v, s: [jp.stencil(wave, (u, v), boundary=b, steps=n, constants=s, fill_value=3) for b, n in cases])
    for got, (b, n) in zip(run(u, v, speed), cases, strict=True):
        assert isinstance(got, tuple)
        wanted = stencil(wave, [u, v], b, steps=n, constants=[speed], fill=3)
        assert_same([np.asarray(g) for g in got], wanted)


@pytest.mark.cover(2)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((5, 17, 3), (0, 1)), ((4, 9, 11), (1, 2)), ((9, 3, 14), (0, 2)), ((9, 3, 14), (2, 0)), ((2, 8, 3, 9), (-1, 1)),
        ((6, 7, 70), (1, 0)), ((2, 5, 6, 2, 3), (1, 2)), ((5, 6, 1), (0, 1)), ((1, 5, 6), (2, 1)), ((7, 5, 8), (2, 0)),
    ],
)  # fmt: skip
def test_cells(shape: tuple[int, ...], axes: tuple[int, int]) -> None:
    """Axes that are no part of the grid, before it, between its axes and behind; lane by lane, and where f mixes numbers."""
    x = integers(*shape)
    cell = [n for a, n in enumerate(shape) if a not in [k % len(shape) for k in axes]]
    weights = integers(cell[-1], 2, seed=1) % 5
    lanes = lambda a: a[0, 1] * 3 + a[-2, 0]  # noqa: E731
    product = lambda a: a[0, 1] @ weights + (a[-1, 0]).sum(-1, keepdims=True, dtype=np.int32)  # noqa: E731
    total = lambda a: (a[1, 0] * a[0, -1])[..., 0]  # noqa: E731
    cases = list(zip((lanes, product, total, lanes), BOUNDARIES, (1, 1, 1, 4), strict=False))
    cases += [(lanes, b, 1 + k % 2) for k, b in enumerate(BOUNDARIES[4:])] + [(product, ("wrap", "valid"), 1)]
    run = jax.jit(lambda x: [jp.stencil(f, x, axes=axes, boundary=b, steps=n) for f, b, n in cases])
    if np.prod(cell) > 32:  # more than a kernel's struct
        cases = [c for c in cases if c[0] is lanes]
    first = np.moveaxis(x, axes, (0, 1))
    for got, (f, b, n) in zip(run(x), cases, strict=True):
        (wanted,) = stencil(f, [first], b, steps=n, rank=2)
        fits = all(-wanted.ndim <= a < wanted.ndim for a in axes)
        assert_same(got, np.ascontiguousarray(np.moveaxis(wanted, (0, 1), axes)) if fits else wanted)


def test_cells_of_some_arrays() -> None:
    """A grid of numbers beside a grid of slices; a norm over what a cell holds."""
    x, w = floats(6, 3, 19), floats(6, 19, seed=1)
    f = lambda a, v: (a[0, 1] - a[1, 0]) * v[0, 0]  # noqa: E731
    norm = lambda a: jnp.sqrt((a[0, 1] ** 2).sum()) + a[0, 0]  # noqa: E731
    got, normed = jax.jit(lambda x, w: (jp.stencil(f, (x, w), axes=(0, -1)), jp.stencil(norm, x, axes=(0, 2), steps=2)))(x, w)
    x64, w64 = np.moveaxis(wide(x), 2, 1), wide(w)
    (wanted,) = stencil(f, [x64, w64[..., None]], "edge", rank=2)
    assert_close(got, np.moveaxis(wanted, 2, 1), 1e-5)
    long = lambda a: np.sqrt((a[0, 1] ** 2).sum(-1, keepdims=True)) + a[0, 0]  # noqa: E731
    assert_close(normed, np.moveaxis(stencil(long, [x64], "edge", rank=2, steps=2)[0], 2, 1), 1e-5)


def test_positions() -> None:
    """The cell's coordinates: of the whole grid, also where cells are left out and in later steps."""
    x = integers(7, 5, 23)
    f = lambda a, at: a[-1, 0, 2] * at[2] + at[0] - 7 * at[1] * a[0, 1, 0]  # noqa: E731
    cases = [(b, n) for b in BOUNDARIES for n in (1, 2)] + [(("valid", "wrap", "keep"), 3), (("keep", "valid", "constant"), 2)]
    run = jax.jit(lambda x: [jp.stencil(f, (x, jp.positions), boundary=b, steps=n) for b, n in cases])
    for got, (b, n) in zip(run(x), cases, strict=True):
        assert_same(got, *stencil(f, [x], b, steps=n, places=True))
    lanes = lambda a, at: a[0] * at[0] + a[-1]  # noqa: E731
    got = jp.stencil(lanes, (x, jp.positions), axes=1)
    (wanted,) = stencil(lambda a, at: a[0] * at[0][:, None, None] + a[-1], [np.moveaxis(x, 1, 0)], "edge", rank=1, places=True)
    assert_same(got, np.ascontiguousarray(np.moveaxis(wanted, 0, 1)))
    told = lambda a, at: a[0, 1] * at[1] + a[-1, 0] * at[0]  # noqa: E731
    aside = lambda a, at: told(a, [p[..., None] for p in at])  # noqa: E731
    for n, b in itertools.product((1, 3, 5), BOUNDARIES):  # of lanes beside each other
        y = integers(6, 37, n)
        got = jp.stencil(told, (y, jp.positions), axes=(0, 1), boundary=b, steps=2)
        assert_same(got, *stencil(aside, [y], b, rank=2, steps=2, places=True))
    (alone,) = jp.stencil(lambda p, a: [p[0] * 10 + p[1]], [jp.positions, jnp.zeros((2, 3))])
    assert alone.tolist() == [[0, 1, 2], [10, 11, 12]]


@pytest.mark.cover(2)
@pytest.mark.parametrize("boundary", list(itertools.permutations(("valid", "keep", "wrap"))))
def test_nothing_is_left(boundary: Any) -> None:
    """After steps that leave out more cells than there are, beside axes that keep theirs; by a kernel and by XLA."""
    shrinking = boundary.index("valid")
    for n, steps in itertools.product((0, 1, 3, 5), (1, 2, 4)):
        shape = tuple(n if a == shrinking else 9 for a in range(3))
        (wanted,) = stencil(NEAR[3], [integers(*shape)], boundary, steps=steps)
        for plans in ((AnyKernel(),), ()):
            with forced(*plans):
                got = jp.stencil(NEAR[3], integers(*shape), boundary=boundary, steps=steps)
            assert_same(got, wanted)


# --- errors --------------------------------------------------------------------------------------------------------------------

GRID = np.zeros((3, 4), np.float32)
KEY = jax.random.key(0)


def near(a: Any) -> Any:
    return a[0, 1]


ERRORS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"f": 3}, TypeError, "f must be a function of a cell's neighbourhood, got 3"),
    ({"f": lambda a: ()}, TypeError, "f must return at least one number, got none"),
    ({"f": lambda a: None}, TypeError, "f's result: NoneType is not an array"),
    ({"f": lambda a: "x"}, TypeError, "f's result: str is not an array"),
    ({"f": lambda a: a[0, 0] + KEY}, TypeError, "key"),
    ({"f": lambda a: KEY}, TypeError, "f's results must be numbers, got key"),
    ({"f": lambda a: a}, TypeError, r"a view of xs, to be read at offsets such as view\[0, 0\]; it is no array itself"),
    ({"f": lambda a: jnp.sin(a)}, TypeError, "View|a view of xs"),
    ({"f": lambda a: np.sin(a)}, TypeError, "a view of xs"),
    ({"f": lambda a: sum(a)}, TypeError, "a view of xs"),
    ({"f": lambda a: a + 1.0}, TypeError, "unsupported operand"),
    ({"f": lambda a: a[0, 0] * a}, TypeError, "View|a view of xs"),
    ({"f": lambda a: a[0]}, ValueError, "offsets of xs must be 2 integers, .*, one for each axis of the grid, got 0"),
    ({"f": lambda a: a[0, 1.0]}, TypeError, r"offsets of xs must be 2 integers, .* known when f is traced, got \(0, 1.0\)"),
    ({"f": lambda a: a[True, 0]}, TypeError, r"offsets of xs must be 2 integers, .*, got \(True, 0\)"),
    ({"f": lambda a: a[0, a[0, 0].astype(int)]}, TypeError, "offsets of xs must be 2 integers"),
    ({"f": lambda a: a[0, :]}, TypeError, "offsets of xs must be 2 integers"),
    ({"f": lambda a: a[0, 1 << 30]}, ValueError, r"offsets of xs must be less than 2\^30, got \(0, 1073741824\)"),
    ({"f": lambda a, w: w[0], "constants": GRID}, ValueError, "offsets of constants must be 2 integers"),
    ({"xs": ()}, ValueError, r"xs must hold at least one array, got \(\)"),
    ({"constants": []}, ValueError, r"constants must hold at least one array, got \[\]"),
    ({"xs": {}}, ValueError, "xs: at least one array is needed to know the grid, got none"),
    ({"xs": jp.positions}, ValueError, "xs: at least one array is needed to know the grid, got none"),
    ({"constants": jp.positions}, TypeError, "constants must be arrays; positions are given among xs"),
    ({"xs": [None]}, TypeError, "xs: NoneType is not an array"),
    ({"xs": jax.random.split(KEY, (3, 4))}, TypeError, "xs must be numbers, got key"),
    ({"xs": np.zeros((3, 4), jax.dtypes.float0)}, TypeError, "xs"),
    ({"xs": (GRID, GRID[0])}, ValueError, r"the grid's shape where axes is not given, got shapes \(3, 4\), \(4,\)"),
    ({"constants": GRID[0]}, ValueError, r"constants: all arrays must have the grid's shape"),
    ({"xs": (GRID, GRID[:2])}, ValueError, r"xs: all arrays must have one grid, got grids \(3, 4\), \(2, 4\)"),
    ({"xs": 1.0}, ValueError, "axes must name at least one axis of the grid; xs without an axis have none"),
    ({"axes": ()}, ValueError, "axes must name at least one axis of the grid"),
    ({"axes": 1.0}, TypeError, "axes must be integers, got 1.0"),
    ({"axes": (0, True)}, TypeError, r"axes must be integers, got \(0, True\)"),
    ({"axes": 2}, ValueError, r"axes must be in range for xs of shape \(3, 4\), got 2"),
    ({"axes": (0, -3)}, ValueError, r"axes must be in range for xs of shape \(3, 4\)"),
    ({"axes": (1, -1)}, ValueError, r"axes must be different axes, got \(1, -1\)"),
    ({"xs": np.zeros((1,) * 16)}, ValueError, "axes: a grid has 15 axes at most, got 16"),
    ({"boundary": "mirror"}, ValueError, "boundary must be one of 'edge', 'wrap', .*'valid', 'keep', got 'mirror'"),
    ({"boundary": None}, ValueError, "boundary must be one of .*, got None"),
    ({"boundary": ("edge",)}, ValueError, r"boundary must be one for all axes or one for each of 2, got \('edge',\)"),
    ({"boundary": ("edge", ["wrap"])}, ValueError, r"boundary must be one of .*, got \['wrap'\]"),
    ({"boundary": "constant", "fill_value": "a"}, TypeError, "fill_value must be a number, got 'a'"),
    ({"boundary": "constant", "fill_value": None}, TypeError, "fill_value must be a number, got None"),
    ({"boundary": "constant", "fill_value": [0, 0]}, TypeError, r"fill_value must be a number, got \[0, 0\]"),
    ({"boundary": "constant", "fill_value": 1j}, ValueError, "fill_value must be a number that float32 can hold, got 1j"),
    ({"xs": GRID.astype(np.uint8), "boundary": "constant", "fill_value": -1}, ValueError, "that uint8 can hold, got -1"),
    ({"xs": GRID.astype(np.int8), "boundary": "constant", "fill_value": np.nan}, ValueError, "that int8 can hold, got nan"),
    ({"xs": GRID.astype(bool), "boundary": "constant", "fill_value": 2}, ValueError, "that bool can hold, got 2"),
    ({"steps": 1.5}, TypeError, "steps must be an integer, got 1.5"),
    ({"steps": True}, TypeError, "steps must be an integer, got True"),
    ({"steps": "1"}, TypeError, "steps must be an integer, got '1'"),
    ({"steps": -1}, ValueError, "steps must not be negative, got -1"),
    ({"steps": jnp.array(2.0)}, TypeError, "steps must be one integer"),
    ({"steps": jnp.arange(2)}, TypeError, "steps must be one integer"),
    ({"f": lambda a: (near(a), 1.0), "steps": 2}, TypeError, "a result for each of the 1 arrays of xs, .*, got 2"),
    ({"f": lambda a: near(a) > 0, "steps": 2}, TypeError, r"result 0 is bool\[\]; wanted float32\[\]"),
    ({"f": lambda a: jnp.stack([near(a)] * 2), "steps": 0}, TypeError, r"result 0 is float32\[2\]; wanted float32\[\]"),
    ({"f": lambda a: (near(a), near(a)), "boundary": "keep"}, TypeError, "which are cells that keep their value, got 2"),
    ({"f": lambda a: near(a) > 0, "boundary": ("keep", "edge")}, TypeError, "f's results must be like xs, for they are cells"),
    ({"axis_name": ("x", None, None)}, ValueError, "axis_name must be one name, .* for each of 2"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "message"), ERRORS)
def test_errors(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"f": lambda a, *_: near(a), "xs": GRID} | arguments
    with pytest.raises(error, match=message):
        jp.stencil(given.pop("f"), given.pop("xs"), **given)


def test_errors_under_jit() -> None:
    with pytest.raises(ValueError, match='steps must be known when the function is traced where boundary is "valid"'):
        jax.jit(lambda n: jp.stencil(near, GRID, boundary=("edge", "valid"), steps=n))(3)
    for n in (2.0, True, jnp.arange(2)):
        with pytest.raises(TypeError, match="steps must be one integer, got"):
            jax.jit(lambda n: jp.stencil(near, GRID, steps=n))(n)
    with pytest.raises(TypeError, match="fill_value must be a number that is known when the function is traced"):
        jax.jit(lambda v: jp.stencil(near, GRID, boundary="constant", fill_value=v))(1.0)

    def wrong(a: Any) -> Any:
        raise RuntimeError("from f")

    with pytest.raises(RuntimeError, match="from f") as e:
        jp.stencil(wrong, GRID)
    assert any("while tracing f" in note for note in e.value.__notes__)


def test_views_are_no_arrays() -> None:
    """Views say what they are; one that is kept when f has returned is of no use."""
    kept: list[Any] = []
    jax.jit(lambda x: jp.stencil(lambda a: kept.append(a) or a[0, 0], x))(GRID)  # type: ignore[func-returns-value]
    assert repr(kept[0]) == "a view of xs, to be read at offsets such as view[0, 0]"
    with pytest.raises(Exception, match=r"UnexpectedTracerError|leaked|traced"):
        jnp.asarray(kept[-1][0, 0]) + 1


@pytest.mark.cover(2)
@pytest.mark.parametrize("size", [6, 100_000])
@pytest.mark.parametrize("number", [0, 1.5, True, 2j])
def test_results_that_read_nothing(number, size):
    """Numbers of Python, alone and beside what is read; of no step's next one, and of one's."""
    x = jnp.arange(float(size))
    want = jnp.full(size, number)
    for run in (jp.stencil, jax.jit(jp.stencil, static_argnums=0)):
        got = run(lambda t: number, x)
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype
        both = run(lambda t: {"own": t[1], "number": number}, x)
        np.testing.assert_array_equal(both["number"], want)
        np.testing.assert_array_equal(both["own"][:-1], x[1:])
    assert jp.stencil(lambda t: number, x, boundary="valid").shape == x.shape
    np.testing.assert_array_equal(jax.vmap(lambda x: jp.stencil(lambda t: number, x))(jnp.stack([x, x])), jnp.stack([want, want]))
    if number in (0, 1.5):
        later = jp.stencil(lambda t: number, x, steps=3)
        np.testing.assert_array_equal(later, want)
        assert later.dtype == x.dtype
        assert not jax.grad(lambda x: jnp.sum(jp.stencil(lambda t: number, x).astype(float)))(x).any()
