"""``genhist`` and ``reduce_by_index`` on every dtype of value and index, and on the numbers at their ends."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import references
from expressions import X86
from references import assert_close

import jaxprims as jp
from jaxprims.targets.cpu.llvm import engine
from jaxprims.targets.plans import AnyKernel, forced

pytestmark = pytest.mark.usefixtures("strict")

INT_MIN, INT_MAX = -(2**31), 2**31 - 1


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# --- dtypes --------------------------------------------------------------------------------------------------------------

REAL = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32")
WIDE = ("int64", "uint64", "float64")


def sample_of(dtype: str, n: int) -> np.ndarray:
    if dtype == "bool":
        return rng().integers(0, 2, n).astype(bool)
    if "complex" in dtype:
        return (rng().integers(-2, 3, n) + 1j * rng().integers(-2, 3, n)).astype(dtype)
    if "int" in dtype:
        info = np.iinfo(dtype)
        return rng().integers(info.min, info.max, n, dtype, endpoint=True)
    return rng().integers(-4, 5, n).astype(jnp.dtype(dtype))


def check_dtype(dtype: str) -> None:
    """Recognised operators and one more of each kind, all in one kernel; of those on integers, some in turn."""
    n, h = 300, 6
    values, index = sample_of(dtype, n), rng().integers(-1, h + 1, n).astype(np.int32)
    kind = "b" if dtype == "bool" else "c" if "complex" in dtype else "i" if "int" in dtype else "f"
    ops: list[tuple[Any, Any]] = {
        "b": [(jnp.logical_or, np.logical_or), (jnp.logical_and, np.logical_and), (jnp.not_equal, np.not_equal)],
        "i": [(jnp.add, np.add), (jnp.multiply, np.multiply), (jnp.minimum, np.minimum), (jnp.maximum, np.maximum),
              (jnp.bitwise_and, np.bitwise_and), (jnp.bitwise_or, np.bitwise_or), (jnp.bitwise_xor, np.bitwise_xor)],
        "f": [(jnp.add, np.add), (jnp.minimum, np.minimum), (jnp.maximum, np.maximum)],
        "c": [(jnp.add, np.add)],
    }[kind]  # fmt: skip
    if kind == "i":
        ops = ops[(*REAL, *WIDE).index(dtype) % 2 :: 2]
    got = jp.genhist(lambda i, v: [(i, v)] * len(ops), (index, values), [jp.Bins(h, op) for op, _ in ops])
    for g, (_, reference) in zip(map(np.asarray, got), ops, strict=True):
        assert g.dtype == dtype
        inside = (index >= 0) & (index < h)
        wide = references.wide(values)
        for b in range(h):
            mine = wide[inside & (index == b)]
            wanted = reference.reduce(mine, dtype=mine.dtype) if mine.size else None
            if wanted is not None:
                np.testing.assert_allclose(references.wide(g[b]), wanted, rtol=1e-2 if dtype == "bfloat16" else 1e-6)


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", ["bool", *REAL, "complex64"])
def test_dtypes(dtype: str) -> None:
    check_dtype(dtype)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", [*WIDE, "complex128", "float16"])
def test_dtypes_x64(dtype: str) -> None:
    check_dtype(dtype)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_sums_accumulate_in_float32(dtype: Any) -> None:
    """4,096 ones: in bfloat16 a running sum would stop at 256, in float16 at 2,048."""
    for n, h in ((4096, 5), (60_000, 1)):
        index = np.zeros(n, np.int32)
        got = np.asarray(jp.reduce_by_index(np.ones(n, dtype), index, h))
        assert got.dtype == dtype and float(got[0]) == float(dtype(min(n, 65504) if dtype == jnp.float16 else n))
        with_dest = np.asarray(jp.reduce_by_index(np.ones(n, dtype), index, 5, dest=np.full(5, 2, dtype)))
        assert float(with_dest[0]) == float(dtype(n + 2)) and float(with_dest[4]) == 2
    for lanes in (3, 64) if dtype == jnp.float16 else (33, 256):
        rows = np.ones((4096, lanes), dtype)
        rows[:, 1] = 2
        got = np.asarray(jp.reduce_by_index(rows, np.arange(4096, dtype=np.int32) % 2, 2, dest=np.ones((2, lanes), dtype)))
        assert got.dtype == dtype and got[:, :3].tolist() == [[float(dtype(x)) for x in (2049, 4097, 2049)]] * 2


@pytest.mark.cover(2)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("cpu", ["", *(["x86-64", "x86-64-v3"] if X86 else [])])
def test_every_length_on_vectors_of_every_width(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What phase two does while vectors are computed, and what it has left at the end, are each update once."""
    host = engine.target()
    own = {"": 1, "x86-64": 2, "x86-64-v3": 4}[cpu]  # a kernel of each processor's own
    update = [lambda i, v: (i, v + 1), lambda i, v: (i, v + 2), lambda i, v: (i, v + 4)][own // 2]
    monkeypatch.setenv("JAXPRIMS_TARGET_CPU", cpu)
    if engine.target().vector_bytes > host.vector_bytes:
        pytest.skip("not this machine's")
    for dtype in (np.float64, np.float32, np.int16):
        for n in (65, 68, 71, 74, 93, 100, 580):
            index = rng().integers(-1, 41, n).astype(np.int32)
            values = np.arange(n, dtype=dtype)
            wanted = np.zeros(40)
            np.add.at(wanted, index[(index >= 0) & (index < 40)], (values.astype(float) + own)[(index >= 0) & (index < 40)])
            with forced(AnyKernel()):
                got = jp.genhist(update, (index, values), jp.Bins(40))
            assert got.dtype == dtype and got.tolist() == wanted.tolist(), (dtype, n)


def test_specials_of_floats() -> None:
    """NaN, infinities and signed zeros go through max, min and add as through jax.numpy's reductions."""
    values = np.array([np.nan, 1, np.inf, 2, -np.inf, np.inf, -0.0, 0.0, -0.0, -0.0], np.float32)
    index = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4], np.int32)
    for name in ("max", "min", "sum"):
        op = {"max": jnp.maximum, "min": jnp.minimum, "sum": jnp.add}[name]
        got = np.asarray(jp.reduce_by_index(values, index, 5, op))
        wanted = [getattr(jnp, name)(values[index == h]) for h in range(5)]
        np.testing.assert_array_equal(got, np.array(wanted))
        if name != "sum":
            np.testing.assert_array_equal(np.signbit(got), np.signbit(np.array(wanted)))
    # where() is not maximum: its result depends on the order of NaN, and where the NaN comes first it is lost
    lost = jp.reduce_by_index(values[:2], index[:2], 1, lambda a, b: jnp.where(a > b, a, b), identity=-jnp.inf)
    assert float(lost[0]) == 1


# --- indices ---------------------------------------------------------------------------------------------------------------


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("mode", ["drop", "clip", "wrap"])
def test_modes(mode: str, dtype: str) -> None:
    """Every mode and index dtype; extremes, and more bins than the dtype has values."""
    info = np.iinfo(dtype)
    extremes = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 6, 7, 8]
    index = np.concatenate([np.array([e for e in extremes if info.min <= e <= info.max]), rng().integers(0, 9, 50)]).astype(dtype)
    values = np.arange(len(index), dtype=np.int32)
    for h in {8: (7, 300), 16: (1,), 32: (7,)}[info.bits]:
        got = jp.reduce_by_index(values, index, h, mode=mode)
        assert_close(got, references.reduce_by_index(values, index, h, np.add, 0, mode=mode))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_modes_x64(dtype: str) -> None:
    """Indices that would be in range, were they cut to 32 bits."""
    info = np.iinfo(dtype)
    index = np.array([0, 3, 2**32, 2**32 + 3, 2**31, info.max, info.min, info.max - 2**32 + 1, 2**63 - 1], dtype)
    values = np.arange(1, 10, dtype=np.int64)
    for mode in ("drop", "clip", "wrap"):
        for h in (5, (5,)):
            given = index if h == 5 else (index,)
            got = jp.reduce_by_index(values, given, h, mode=mode)
            assert_close(got, references.reduce_by_index(values, given, h, np.add, 0, mode=mode))
    got = jp.genhist(lambda i, v: (i + jnp.asarray(0, dtype), v), (index, values), jp.Bins(5))
    assert_close(got, references.reduce_by_index(values, index, 5, np.add, 0))


@pytest.mark.parametrize("mode", ["drop", "clip", "wrap"])
def test_bins_of_several_dimensions(mode: str) -> None:
    """A pair that is out of range in one dimension is not in range in the flattened bins."""
    n, sizes = 400, (3, 4, 5)
    index = tuple(rng().integers(-2, s + 2, n).astype(d) for s, d in zip(sizes, ("int32", "int8", "int16"), strict=True))
    index[0][:3] = INT_MIN, INT_MAX, 2**30  # products of these wrap around
    values = references.normal(rng(), n, 2)
    for h, given in ((sizes, index), (sizes[:2], index[:2]), (sizes[:1], index[:1])):
        got = jp.reduce_by_index(values, given, h, mode=mode)
        assert_close(got, references.reduce_by_index(values, given, h, np.add, 0.0, mode=mode))
    dest = references.normal(rng(), 3, 4, 2)
    got = jp.reduce_by_index(values, index[:2], sizes[:2], jnp.maximum, dest=dest)
    assert_close(got, references.reduce_by_index(values, index[:2], sizes[:2], np.maximum, dest=dest))


def test_a_float_that_becomes_an_index() -> None:
    """Conversion saturates, NaN gives 0: never undefined."""
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.9, -0.5, 3e9], np.float32)
    got = jp.genhist(lambda x: (x.astype(jnp.int32), 1), x, jp.Bins(4))
    assert got.tolist() == [2, 0, 1, 0]  # NaN and -0.5, then 2.9
    large = jp.genhist(lambda x: (x.astype(jnp.int32) - (INT_MAX - 3), 1), x, jp.Bins(4))
    assert large.tolist() == [0, 0, 0, 3]


def test_no_bins_and_no_elements() -> None:
    index = np.array([0, -1, 5], np.int32)
    for mode in ("drop", "clip", "wrap"):
        assert jp.reduce_by_index(np.ones(3, np.float32), index, 0, mode=mode).shape == (0,)
        assert jp.reduce_by_index(np.ones((3, 2), np.float32), (index, index), (3, 0), mode=mode).shape == (3, 0, 2)
    empty, none = np.zeros(0, np.float32), np.zeros(0, np.int32)
    assert jp.reduce_by_index(empty, none, 0).shape == (0,)
    assert jp.reduce_by_index(empty, none, 3).tolist() == [0, 0, 0]
    assert jp.reduce_by_index(empty, none, 3, jnp.minimum).tolist() == [np.inf] * 3
    assert jp.reduce_by_index(empty, none, 2, dest=np.array([4, 5], np.float32)).tolist() == [4, 5]
    assert jp.reduce_by_index(np.ones((5, 0), np.float32), np.zeros(5, np.int32), 3).shape == (3, 0)
    assert jp.reduce_by_index(np.ones((5, 2, 0, 3), np.float32), np.zeros(5, np.int32), 3, jnp.maximum).shape == (3, 2, 0, 3)


SIZES = ((0, 3), (70, 4), (70_000, 3), (70_000, 50_000), (70_000, 200))


@pytest.mark.parametrize(("dtype", "sizes"), [("int32", SIZES), ("int16", SIZES[1::3]), ("uint32", SIZES[2::2])])
def test_sorted(dtype: str, sizes: Any) -> None:
    for n, h in sizes:
        index = np.sort(rng().integers(0 if dtype == "uint32" else -2, min(h + 2, 30_000), n)).astype(dtype)
        values = rng().integers(-9, 9, n).astype(np.int32)
        got = jp.reduce_by_index(values, index, h, indices_are_sorted=True)
        np.testing.assert_array_equal(got, jp.reduce_by_index(values, index, h))
        inside = (index >= 0) & (index < h)
        np.testing.assert_array_equal(got, np.bincount(index[inside].astype(np.int64), values[inside], h))
