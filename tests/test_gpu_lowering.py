"""GPUs where there is none: plans in words, lowering and export; and ``deterministic``, what it means and that it is asked for
properly."""

from __future__ import annotations

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exports import export

import jaxprims as jp
from jaxprims.targets.cpu.target import Cpu
from jaxprims.targets.cuda import compiler
from jaxprims.targets.cuda.plans import StencilPlan
from jaxprims.targets.plans import forced

N = 50_000_000
X = jax.ShapeDtypeStruct((N,), jnp.float32)
I = jax.ShapeDtypeStruct((N,), jnp.int32)  # noqa: E741


def call(fn: Any, *args: Any, target: str = "sm_90") -> Any:
    (planned,) = jp.explain(fn, target=target)(*args).calls
    return planned


@pytest.mark.parametrize(
    ("bins", "space"),
    [(1000, "shared memory;"), (192 * 1024, "shared memory of a cluster of blocks;"), (1_500_000, "global memory;")],
)
def test_where_subhistograms_lie(bins: int, space: str) -> None:
    planned = call(lambda x, i: jp.reduce_by_index(x, i, bins), I, I)
    assert planned.strategy.startswith(space)
    assert all(f"{name} = " in planned.strategy for name in ("M", "S", "C", "K", "race factor", "shared bytes", "grid"))
    assert planned.workspace_bytes > 0
    assert "HistShared" in planned.cuda()
    assert (planned.llvm(), planned.assembly()) == ("", "")
    assert f"{N} elements into {bins} bins; op add (HDW)" == planned.summary


def clustered(dtype: Any, op: Any = jnp.add, **options: Any) -> tuple[bool, bool]:
    """Is there a kernel for clusters, and is it chosen?"""
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct((N,), dtype)
        planned = call(lambda x, i: jp.reduce_by_index(x, i, 80_000, op, **options), x, I)
    reaches = "HistCluster" in compiler.kernels(planned.spec)
    assert reaches or "cluster of blocks" not in planned.strategy
    return reaches, "cluster of blocks" in planned.strategy


def test_clusters_are_for_updates_that_reach_other_blocks() -> None:
    """See docs/gpu.md: no instruction is known to do so of 64-bit integers and of 128 bits; sums of floats cost two trips."""
    for dtype in (jnp.int32, jnp.uint8):
        assert clustered(dtype) == (True, True), dtype
    for dtype in (jnp.float32, jnp.float64, jnp.float16):
        assert clustered(dtype) == (True, False), dtype
    assert clustered(jnp.float32, jnp.maximum) == (True, True)
    for dtype in (jnp.int64, jnp.uint64):
        assert clustered(dtype) == (False, False), dtype
    for dtype in (jnp.int64, jnp.float64):
        assert clustered(dtype, jnp.maximum) == (False, False), dtype


def test_tiny_histograms() -> None:
    x, i = jax.ShapeDtypeStruct((10_000, 64), jnp.float32), jax.ShapeDtypeStruct((10_000, 64), jnp.int32)
    assert "several histograms to a block" in call(jax.vmap(lambda x, i: jp.reduce_by_index(x, i, 10)), x, i).strategy


def test_the_class_depends_on_the_architecture() -> None:
    def moments(a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1], a[0] * b[1] + a[2] + b[2]

    def fn(x: Any, i: Any) -> Any:
        return jp.reduce_by_index((x, x, x), i, 100, moments, identity=(0.0, 0.0, 0.0))

    assert "(XCG)" in call(fn, X, I, target="sm_80").summary
    assert "(CAS)" in call(fn, X, I, target="sm_90").summary


@pytest.mark.parametrize(
    ("fn", "args", "words"),
    [
        (jp.cumsum, (X,), "single pass with look-back"),
        (jp.reduce, (X,), "in one pass"),
        (lambda x, i: jp.segment_reduce(x, i, num_segments=1000), (X, I), "balanced by elements"),
        (lambda x, i: jp.reduce_by_index(x, i, 9, deterministic=True), (X, I), "a segmented reduction of the elements, sorted"),
        (lambda i: jp.group_by_index(i, 9), (I,), "XLA's stable sort"),
    ],
)
def test_other_primitives(fn: Any, args: Any, words: str) -> None:
    assert words in call(fn, *args).strategy


HEAT = lambda a: a[0, 0] + 0.1 * (a[-1, 0] + a[1, 0] + a[0, -1] + a[0, 1] - 4 * a[0, 0])  # noqa: E731
PLATE = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)


@pytest.mark.dear
def test_steps_of_a_stencil() -> None:
    """One is a pass through memory; several share one where that is less work, unless memory is fast."""
    once, often = (call(lambda x, n=n: jp.stencil(HEAT, x, steps=n), PLATE) for n in (1, 12))
    assert once.strategy.startswith("a pass through memory; steps a launch = 1, tile on axis 0 = ")
    assert once.workspace_bytes == 0 and "StencilCells" in once.cuda()
    assert often.strategy.startswith("several steps in shared memory; steps a launch = ")
    assert often.workspace_bytes == 4 * 4096**2 + 256 and "StencilSteps" in often.cuda()
    shrinks = call(lambda x: jp.stencil(HEAT, x, steps=12, boundary="valid"), PLATE)
    assert shrinks.workspace_bytes == 2 * often.workspace_bytes
    (kernel,) = jp.explain(lambda x: jp.stencil(lambda a: sum(a[k] * x[k] for k in range(3000)), x), target="sm_90")(X).calls
    assert (kernel.strategy, kernel.reason) == ("plain XLA", "no kernels of functions so large")


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (StencilPlan(4, (28, 0, 120)), "steps a launch = 4, tile on axis 0 = 28, tile on axis 1 = 120, threads"),
        (StencilPlan(1, (24, 0, 64)), "steps a launch = 1, tile on axis 0 = 96, tile on axis 1 = 64, cells of a column = 24"),
        (StencilPlan(3, (4000, 0, 4000)), "steps a launch = 1, "),  # no block has so much shared memory
    ],
)
def test_plans_of_stencils_that_are_forced(plan: StencilPlan, words: str) -> None:
    with forced(plan):
        assert words in call(lambda x: jp.stencil(HEAT, x, steps=12), PLATE).strategy


def test_each_target_has_its_own_code() -> None:
    assert call(jp.cumsum, X, target="cpu").cuda() == ""
    assert "ScanRows" in call(jp.cumsum, X).cuda()
    assert call(jp.cumsum, X).llvm() == ""
    assert call(lambda x, i: jp.reduce_by_index(x, i, 9, deterministic=True), X, I).spec is None


def test_sizes_that_are_not_known() -> None:
    (n,) = jax.export.symbolic_shape("n")
    planned = call(jp.cumsum, jax.ShapeDtypeStruct((n,), jnp.float32))
    assert planned.strategy == "chosen when the call runs"


def test_an_unknown_target() -> None:
    with pytest.raises(
        ValueError, match=r"target must be 'cpu', one of sm_80, sm_90, sm_100, or a GPU of this machine, got 'sm_7'"
    ):
        jp.explain(jp.cumsum, target="sm_7")


def test_the_head_names_the_target() -> None:
    assert str(jp.explain(jp.cumsum, target="sm_100")(X)).startswith("1 jaxprims primitive, sm_100\n")


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8", "uint32"])
@pytest.mark.parametrize("dest", [False, True])
def test_by_segments_is_the_same(dtype: str, dest: bool) -> None:
    """What deterministic calls and sorted indices are on a GPU, here beside the histogram's kernel."""
    rng = np.random.default_rng(5)
    i = rng.integers(0 if dtype[0] == "u" else -3, 25, 1000).astype(dtype)
    x = rng.integers(-50, 50, (1000, 3)).astype(np.float32)
    start = np.ones((20, 3), np.float32) if dest else None
    for indices, is_sorted in ((i, False), (np.sort(i), True)):
        for op in (jnp.add, jnp.maximum):

            def fn(x: Any, i: Any, op: Any = op, is_sorted: bool = is_sorted) -> Any:
                return jp.reduce_by_index(x, i, 20, op, dest=start, indices_are_sorted=is_sorted, deterministic=True)

            with mock.patch.object(Cpu, "sorts", lambda self, sorted_indices, deterministic: True):
                given = jax.jit(fn)(x, indices)
            np.testing.assert_array_equal(given, jp.reduce_by_index(x, indices, 20, op, dest=start))
            np.testing.assert_array_equal(fn(x, indices), jp.reduce_by_index(x, indices, 20, op, dest=start))


def test_deterministic_is_a_flag() -> None:
    x, i = jnp.ones(3), jnp.zeros(3, int)
    with pytest.raises(TypeError, match="deterministic must be True or False, got 1"):
        jp.reduce_by_index(x, i, 2, deterministic=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="deterministic must be True or False, got None"):
        jp.genhist(lambda x: (0, x), x, jp.Bins(2), deterministic=None)  # type: ignore[arg-type]
    grad = jax.grad(lambda x: jp.genhist(lambda x: (0, x * x), x, jp.Bins(2), deterministic=True).sum())(x)
    assert grad.tolist() == [2.0, 2.0, 2.0]


def test_lowering_for_gpus_exports_without_one() -> None:
    """And the other half: both platforms in one artifact, sizes to come."""
    (n,) = jax.export.symbolic_shape("n")
    x, i = jax.ShapeDtypeStruct((n,), np.float32), jax.ShapeDtypeStruct((n,), np.int32)

    def f(x: Any, i: Any) -> Any:
        return (
            jp.cumsum(x),
            jp.reduce_by_index(x, i, 100),
            jp.reduce(x, jnp.maximum),
            jp.reduce_by_index(x, i, 9, deterministic=True),
            jp.stencil(lambda a: a[-1] - a[1], x, steps=3),
        )

    for platforms in (["cuda"], ["cpu", "cuda"]):
        exported = export(jax.jit(f), platforms=platforms)(x, i)
        again = jax.export.deserialize(exported.serialize())
        assert again.platforms == tuple(platforms)
    values, indices = np.arange(10, dtype=np.float32), np.arange(10, dtype=np.int32)
    np.testing.assert_array_equal(again.call(values, indices)[0], np.cumsum(values))
