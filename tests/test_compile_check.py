"""Every kind of GPU kernel, for every class of operator and every dtype, compiled where there is no GPU: none spills, none wants
more shared memory than a block has. And what ``compile_check`` says of bad arguments."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxpr_as_fun
from references import DTYPES

import jaxprims as jp
from jaxprims.targets.cuda import compiler, nvrtc
from jaxprims.targets.cuda.plans import StencilPlan
from jaxprims.targets.plans import forced

pytest.importorskip("cuda.core", reason="NVRTC is not installed")

TARGETS = ["sm_80", "sm_90", "sm_100"]
EVERYTHING = "JAXPRIMS_ALL_KERNELS" in os.environ
"""All cases for all targets take many minutes; else each is for one target, and a dtype has one case of the ordered family and
one of histograms: targets and cases in turn."""

N = 1_000_000
LONG = 100_000_000  # tiles wait in shared memory

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def array(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape or (N,), dtype)


IDS = array(jnp.int32)
F32 = array(jnp.float32)


def affine(a: Any, b: Any) -> Any:
    return a[0] * b[0], b[0] * a[1] + b[1]


def saturating(a: Any, b: Any) -> Any:
    return jnp.minimum(a + b, jnp.uint32(2**24 - 1))


def two_sums(a: Any, b: Any) -> Any:
    return a[0] + b[0], a[1] + b[1]


def moments(a: Any, b: Any) -> Any:
    """Count, mean and sum of squared deviations."""
    n = a[0] + b[0]
    share = b[0] / jnp.where(n > 0, n, 1)
    d = b[1] - a[1]
    return n, a[1] + d * share, a[2] + b[2] + d * d * a[0] * share


def scans(dtype: str) -> Iterator[Case]:
    x = array(dtype)
    yield lambda x: jp.scan(x, jnp.add), (x,)
    yield lambda x: jp.scan(x, jnp.multiply, exclusive=True, reverse=True), (x,)
    if not dtype.startswith("complex"):
        yield lambda x: jp.scan(x, jnp.maximum), (x,)
    yield lambda x: jp.scan(x, jnp.add, axis=0), (array(dtype, 1000, 1000),)
    yield lambda x: jp.scan(x, jnp.add, reverse=True), (array(dtype, LONG),)


def scans_by_operator() -> Iterator[Case]:
    flags = array(jnp.bool_)
    matrices = array(jnp.float32, N, 2, 2)
    yield lambda a, b: jp.scan((a, b), affine), (F32, F32)
    yield lambda a, b: jp.scan((a, b), affine, axis=0), (array(jnp.float32, 1000, 100), array(jnp.float32, 1000, 100))
    yield lambda x: jp.scan(x, lambda a, b: a @ b), (matrices,)
    yield lambda x: jp.scan(x, lambda a, b: a @ b), (array(jnp.float32, N, 4, 4),)
    yield lambda x: jp.scan(x, jnp.logaddexp), (F32,)
    yield lambda x: jp.scan((x, jp.positions), jp.monoids.argmax), (F32,)
    yield lambda x, f: jp.scan(x, jnp.add, segment_starts=f), (F32, flags)
    yield lambda x, f: jp.scan(x, jnp.add, segment_starts=f, reverse=True, exclusive=True), (F32, flags)
    yield (
        lambda x, i: jp.scan(x, jnp.add, init=i),
        (F32, jax.ShapeDtypeStruct((), jnp.float32)),
    )
    yield lambda x: jp.scan(x, saturating, identity=jnp.uint32(0)), (array(jnp.uint32),)
    yield lambda a, b: jp.linear_recurrence(a, b), (F32, F32)
    yield lambda a, b: jp.linear_recurrence(a, b), (array(jnp.complex64), array(jnp.complex64))
    yield lambda x, t: jp.scan(x, jnp.add, map=lambda v: t[jnp.clip(v.astype(int), 0, 9)]), (F32, array(jnp.float32, 10))
    yield jax.vmap(jp.cumsum), (array(jnp.float32, 100, 10_000),)


def long_scans_by_operator() -> Iterator[Case]:
    x = array(jnp.float32, LONG)
    init = jax.ShapeDtypeStruct((), jnp.float32)
    rows = array(jnp.float32, 7, LONG // 7 + 1)
    yield lambda x: jp.scan(x), (x,)
    yield lambda a, b: jp.scan((a, b), affine), (x, x)
    yield lambda x: jp.scan(x, exclusive=True, reverse=True), (array(jnp.float64, LONG),)
    yield lambda x: jp.scan(x), (array(jnp.complex128, LONG),)
    yield lambda x: jp.scan(x), (array(jnp.uint8, LONG),)
    yield lambda x: jp.scan(x, jnp.logaddexp), (x,)
    yield lambda x, f: jp.scan(x, segment_starts=f, reverse=True), (array(jnp.float64, LONG), array(jnp.bool_, LONG))
    yield lambda x, f, i: jp.scan(x, segment_starts=f, init=i, exclusive=True), (x, array(jnp.bool_, LONG), init)
    yield lambda x: jp.scan(x, lambda a, b: a @ b), (array(jnp.float32, LONG, 2, 2),)
    yield lambda x: jp.scan(x, lambda a, b: a @ b), (array(jnp.float32, LONG, 4, 4),)
    yield jax.vmap(lambda x: jp.scan(x)), (rows,)
    yield jax.vmap(lambda a, b: jp.scan((a, b), affine, exclusive=True, identity=(1.0, 0.0))), (rows, rows)
    yield lambda x: jp.scan((x, jp.positions), jp.monoids.argmax), (x,)
    yield lambda a, b: jp.linear_recurrence(a, b), (array(jnp.complex64, LONG), array(jnp.complex64, LONG))
    yield lambda n, m, s: jp.scan((n, m, s), moments), (x, x, x)


def reductions(dtype: str) -> Iterator[Case]:
    x = array(dtype)
    yield lambda x: jp.reduce(x, jnp.add), (x,)
    if not dtype.startswith("complex"):
        yield lambda x: jp.reduce(x, jnp.minimum), (x,)
    yield lambda x: jp.reduce(x, jnp.add, axis=0), (array(dtype, 1000, 1000),)


def reductions_by_operator() -> Iterator[Case]:
    yield lambda x: jp.reduce(x, lambda a, b: a @ b, axis=0), (array(jnp.float32, N, 2, 2),)
    yield lambda x: jp.reduce(x, jnp.logaddexp), (F32,)
    yield lambda a, b: jp.reduce((a, b), affine), (F32, F32)
    yield lambda n, m, s: jp.reduce((n, m, s), moments), (F32, F32, F32)
    yield jp.argmax, (F32,)
    yield lambda x: jp.argmin(x, axis=0), (array(jnp.float32, 1000, 1000),)
    yield lambda x: jp.reduce(x, saturating, identity=jnp.uint32(0)), (array(jnp.uint32),)


def segments(dtype: str) -> Iterator[Case]:
    x, offsets = array(dtype), array(jnp.int32, 1001)
    yield lambda x, o: jp.segment_reduce(x, jp.Offsets(o), jnp.add), (x, offsets)
    yield lambda x, i: jp.segment_reduce(x, i, jnp.add, num_segments=1000), (x, IDS)


def segments_by_operator() -> Iterator[Case]:
    offsets = jax.ShapeDtypeStruct((1001,), jnp.int32)
    yield (
        lambda x, o: jp.segment_reduce(x, jp.Offsets(o), lambda a, b: a @ b, identity=jnp.eye(2, dtype=jnp.float32)),
        (array(jnp.float32, N, 2, 2), offsets),
    )
    yield lambda a, b, o: jp.segment_reduce((a, b), jp.Offsets(o), affine, identity=(1.0, 0.0)), (F32, F32, offsets)
    yield lambda x, o: jp.segment_reduce(x, jp.Offsets(o), jnp.maximum), (array(jnp.float32, N, 64), offsets)
    yield lambda x, i: jp.segment_reduce(x, i, jnp.logaddexp, num_segments=1000), (F32, IDS)
    yield lambda x, i: jp.segment_argmax(x, i, 1000, indices_are_sorted=True), (F32, IDS)


def histograms(dtype: str) -> Iterator[Case]:
    x = array(dtype)
    yield lambda x, i: jp.reduce_by_index(x, i, 1000, jnp.add), (x, IDS)
    if not dtype.startswith("complex"):
        yield lambda x, i: jp.reduce_by_index(x, i, 1000, jnp.minimum), (x, IDS)
        yield lambda x, i, d: jp.reduce_by_index(x, i, 1000, jnp.maximum, dest=d), (x, IDS, array(dtype, 1000))
    yield lambda x, i: jp.reduce_by_index(x, i, 1000, jnp.multiply), (x, IDS)
    if jnp.dtype(dtype).kind in "iub":
        for op in (jnp.bitwise_and, jnp.bitwise_or, jnp.bitwise_xor):
            yield lambda x, i, op=op: jp.reduce_by_index(x, i, 1000, op), (x, IDS)


def histograms_by_operator() -> Iterator[Case]:
    yield (
        lambda x, i: jp.reduce_by_index(x, i, 1000, saturating, identity=jnp.uint32(0)),
        (array(jnp.uint32), IDS),
    )  # CAS, 32 bits
    yield lambda x, i: jp.reduce_by_index((x, jp.positions), i, 1000, jp.monoids.argmax), (F32, IDS)  # HDW, packed
    yield lambda x, p, i: jp.reduce_by_index((x, p), i, 1000, jp.monoids.argmin), (F32, IDS, IDS)  # CAS, 64 bits
    yield (
        lambda n, m, s, i: jp.reduce_by_index((n, m, s), i, 1000, moments, identity=(0.0, 0.0, 0.0)),
        (F32, F32, F32, IDS),
    )  # XCG, CAS of 128 bits from sm_90 on
    yield (
        lambda x, i: jp.reduce_by_index(x, i, 1000, lambda a, b: jnp.where(jnp.abs(a) > jnp.abs(b), a, b), identity=0.0),
        (array(jnp.float64), IDS),
    )
    yield lambda x, i: jp.reduce_by_index(x, i, 1000, jnp.add), (array(jnp.float32, N, 16), IDS)  # small vectors
    yield lambda x, i: jp.reduce_by_index(x, i, 1000, jnp.add), (array(jnp.float32, N, 128), IDS)  # lanes
    yield lambda x, i: jp.reduce_by_index(x, i, 1000, jnp.maximum), (array(jnp.bfloat16, N, 128), IDS)
    yield lambda x: jp.genhist(lambda v: ((v * 100).astype(int), 1), x, jp.Bins(100)), (F32,)
    yield (
        lambda x, i: jp.genhist(
            lambda v, k: ((k, v), (k % 10, (1, v))), (x, i), [jp.Bins(1000, jnp.maximum), jp.Bins(10, two_sums, (0, 0.0))]
        ),
        (F32, IDS),
    )
    yield lambda x: jp.genhist(lambda v: (jnp.arange(3), v * jnp.ones(3)), x, jp.Bins(100)), (F32,)
    yield lambda x, i: jp.reduce_by_index(x, i, 10_000_000, jnp.add), (F32, IDS)
    yield jax.vmap(lambda x, i: jp.reduce_by_index(x, i, 10)), (array(jnp.float32, 1000, 64), array(jnp.int32, 1000, 64))
    yield lambda x, i: jp.reduce_by_index(x, i, 1000, deterministic=True), (F32, IDS)
    yield lambda x: jp.histogram(x, 100)[0], (F32,)


def stencils(dtype: str) -> Iterator[Case]:
    x = array(dtype, 3000, 2000)
    if dtype == "bool":
        yield lambda x: jp.stencil(lambda a: a[-1, 0] ^ a[0, 1] ^ a[0, 0], x, steps=8), (x,)
    else:
        yield lambda x: jp.stencil(lambda a: a[-1, 0] + a[1, 0] + a[0, 1] * a[0, -1], x, steps=8, boundary="wrap"), (x,)


def stencils_by_function() -> Iterator[Case]:
    """Each with both kernels: one step, and, forced, several."""
    grid, solid, image = array(jnp.float32, 3000, 2000), array(jnp.float32, 200, 300, 400), array(jnp.uint8, 1080, 1920, 3)

    def both(f: Callable[..., Any], *args: Any, **options: Any) -> Iterator[Case]:
        xs = list(args)
        for depth in (1, 2):
            with forced(StencilPlan(depth)):
                called = functools.partial(jp.stencil, boundary="reflect", steps=2, **options)
                traced = jax.jit(lambda *xs, f=f, called=called: called(f, list(xs))).trace(*xs)
            yield jaxpr_as_fun(traced.jaxpr), args

    yield from both(lambda a: a[0, 0] + 0.1 * (a[-1, 0] + a[1, 0] + a[0, -1] + a[0, 1] - 4 * a[0, 0]), grid)
    yield from both(lambda a: sum(a[i, j, k] for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1)) / 27, solid)
    yield from both(lambda a: a[0] + 0.5 * (a[-1] + a[1] - 2 * a[0]), array(jnp.float32))
    yield from both(lambda u, v: (u[0, 0] - u[0, 1] * v[1, 0], v[0, 0] + u[0, -1] * v[-1, 0]), grid, grid)
    yield from both(lambda a: (a[-1, 0] >> 1) + (a[0, 1] >> 1), image, axes=(0, 1))
    yield from both(lambda a: a[-1] @ a[1], array(jnp.float32, N // 4, 2, 2), axes=0)
    yield lambda x: jp.stencil(lambda a: jnp.max(jnp.array([a[i, j] for i in range(-3, 4) for j in range(-3, 4)])), x), (grid,)
    yield lambda x: jp.stencil(lambda a, at: a[0, 1] * at[0] + at[1], (x, jp.positions), boundary="keep"), (grid,)
    yield lambda x, t: jp.stencil(lambda a: t[jnp.clip(a[1, 0].astype(int), 0, 9)], x), (grid, array(jnp.float32, 10))
    yield jax.grad(lambda x: jp.stencil(lambda a: a[0, 1] * a[-1, 0], x, boundary="constant").sum()), (grid,)


ORDERED = [scans, reductions, segments]
BY_OPERATOR = [
    scans_by_operator, long_scans_by_operator, reductions_by_operator, segments_by_operator, histograms_by_operator,
    stencils_by_function,
]  # fmt: skip


def compiled(cases: Iterable[Case], target: str) -> int:
    kernels = 0
    for fn, args in cases:
        found = jp.compile_check(fn, *args, target=target)
        assert found
        assert all(k.target == target and (k.registers or 0) > 0 and k.cubin for k in found)
        kernels += len(found)
    return kernels


@pytest.mark.cover(13)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str, x64: None, record_property: Any) -> None:
    k = DTYPES.index(dtype)
    targets, cases = (
        [TARGETS[k % 2]],
        [next(ORDERED[k % 3](dtype)), *itertools.islice(histograms(dtype), k // 2 % 2, k // 2 % 2 + 1), *stencils(dtype)],
    )
    if EVERYTHING:
        targets, cases = TARGETS, [case for family in (*ORDERED, histograms, stencils) for case in family(dtype)]
    record_property("GPU kernels compiled", sum(compiled(cases, target) for target in targets))


@pytest.mark.cover(7)
@pytest.mark.parametrize("first", range(len(TARGETS)))
@pytest.mark.parametrize("cases", BY_OPERATOR, ids=lambda f: f.__name__)
def test_operators(cases: Callable[[], Iterator[Case]], first: int, x64: None, record_property: Any) -> None:
    """Every third case for a target, others for the next one."""
    chosen = cases() if EVERYTHING else itertools.islice(cases(), first, None, len(TARGETS))
    record_property("GPU kernels compiled", compiled(chosen, TARGETS[first]))


def test_long_scans_wait() -> None:
    for rows, kernel in ((1, "ScanRowsWaiting"), (7, "ScanFlatWaiting")):
        found = jp.compile_check(jax.vmap(lambda x: jp.scan(x)), array(jnp.float32, rows, LONG // rows + 1), target="sm_90")
        assert [k.name for k in found] == [kernel]
        assert 32 * 1024 < found[0].shared_bytes <= 48 * 1024 and found[0].registers <= 128  # two blocks of a multiprocessor


def test_what_is_said_of_a_kernel() -> None:
    kernels = jp.compile_check(lambda x, i: jp.reduce_by_index(x, i, 100), F32, IDS)
    assert {(k.kind, k.operator, k.atomic, k.target) for k in kernels} == {("hist", "add", "HDW", "sm_90")}
    assert "registers" in str(kernels[0])
    assert "__global__" in kernels[0].source


def test_a_compiler_that_says_nothing_of_what_a_kernel_takes() -> None:
    """Of PTX, for an architecture that NVRTC does not know, and where its log is empty: the kernel is there all the same."""
    nothing = nvrtc.Compiled(b"PTX", "")
    with mock.patch.object(compiler, "cubin", lambda *args: nothing):
        kernels = jp.compile_check(lambda x: jp.scan(x, jnp.add), F32)
    assert kernels
    assert all((k.registers, k.shared_bytes, k.stack_bytes, k.spill_bytes) == (None,) * 4 and k.cubin == b"PTX" for k in kernels)
    assert str(kernels[0]).endswith("the compiler does not say what it takes")


def test_derivatives_have_kernels_too() -> None:
    kinds = {k.kind for k in jp.compile_check(jax.grad(lambda x: jp.cumlogsumexp(x)[-1]), F32)}
    assert "scan" in kinds


def test_fused_functions_have_kernels_too() -> None:
    @jp.fuse
    def summary(x: Any, i: Any) -> Any:
        nearest = jnp.argmin((x[:, None] - jnp.arange(4.0)) ** 2, 1)
        return jnp.zeros(4).at[nearest].add(x), jnp.sum(x * x), jnp.argmax(x)

    found = jp.compile_check(summary, jax.ShapeDtypeStruct((100_000,), jnp.float32), jax.ShapeDtypeStruct((100_000,), jnp.int32))
    assert {k.name for k in found} >= {"HistShared", "ReduceBlocks"}


def test_a_function_without_kernels() -> None:
    assert jp.compile_check(jnp.sin, F32) == []


@pytest.mark.parametrize(
    ("fn", "target", "error", "message"),
    [
        (3, "sm_90", TypeError, "fn must be a function, got 3"),
        (jp.cumsum, "hopper", ValueError, "target must be an architecture such as \"sm_90\", got 'hopper'"),
        (jp.cumsum, 90, ValueError, "target must be an architecture"),
        (jp.cumsum, "sm_10", RuntimeError, "does not compile for sm_10"),
    ],
)
def test_bad_arguments(fn: Any, target: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        jp.compile_check(fn, F32, target=target)
