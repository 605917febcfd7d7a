"""Where XLA's own operation is the strategy on NVIDIA GPUs: which calls are, that lowering has it so, and the same results."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from lowering import strategies as strategies_on

import jaxprims as jp
from jaxprims.targets.cpu.target import Cpu
from jaxprims.targets.cuda import xla_pays
from jaxprims.targets.cuda.plans import HistogramPlan
from jaxprims.targets.cuda.target import CUDA
from jaxprims.targets.plans import AnyKernel, forced

pytestmark = pytest.mark.strategies
rng = np.random.default_rng(8)
PLAIN = "plain XLA"
strategies = functools.partial(strategies_on, target="sm_90")


def array(*shape: Any, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def ids(n: Any) -> jax.ShapeDtypeStruct:
    return array(n, dtype=jnp.int32)


def by_index(bins: int, op: Any = jnp.add) -> Callable[..., Any]:
    return lambda x, i: jp.reduce_by_index(x, i, bins, op)


def is_plain(fn: Callable[..., Any], *args: Any, target: str = "sm_90") -> bool:
    return set(strategies(fn, *args, target=target)) == {PLAIN}


def lowered(fn: Callable[..., Any], *args: Any) -> str:
    return str(jax.jit(lambda *xs: fn(*xs)).trace(*args).lower(lowering_platforms=("cuda",)).as_text())


def smoothed(x: Any) -> Any:
    return x[-1, 0] + x[0, 1] - x[0, 0]


SLOWER = [
    ((300_000, 32), 20_000, jnp.add), ((10_000, 200), 1000, jnp.maximum), ((4000, 512), 300, jnp.maximum),
    ((4000, 512), 300, jnp.add), ((120_000, 24), 5000, jnp.add), ((200_000,), 5000, jnp.maximum), ((200_000,), 5000, jnp.add),
    ((50_000, 4), 5000, jnp.maximum),
]  # fmt: skip
"""Of kernels on an H200, 0.23 to 0.63 of plain JAX's speed."""

FASTER = [(2**27, 1), (2**27, 100), (2**27, 1000), (2**27, 60_000)]
"""Sums on it: 850, 100, 42 and 3 times as fast as XLA's scatter."""


@pytest.mark.parametrize(("shape", "bins", "op"), SLOWER)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_what_was_slower_is_left_to_xla(shape: tuple[int, ...], bins: int, op: Any, target: str) -> None:
    assert is_plain(by_index(bins, op), array(*shape), ids(shape[0]), target=target)


@pytest.mark.parametrize(("n", "bins"), FASTER)
def test_what_was_faster_is_a_kernel(n: int, bins: int) -> None:
    assert not is_plain(by_index(bins), array(n), ids(n))
    assert not is_plain(lambda x: jp.scan(x), array(n))
    assert not is_plain(lambda x, o: jp.segment_reduce(x, jp.Offsets(o), jnp.maximum), array(n), ids(n // 20))
    assert not is_plain(lambda x, i: jp.segment_reduce(x, i, jnp.maximum, num_segments=n // 20), ids(n), ids(n))


@pytest.mark.parametrize(("bins", "nanoseconds"), [(1, 1.76), (100, 0.22), (1000, 0.09), (60_000, 0.0134)])
def test_the_time_of_a_scatter_is_what_was_measured(bins: int, nanoseconds: float) -> None:
    assert xla_pays.scatter_time(1000, 1, bins, 1) == pytest.approx(nanoseconds, rel=0.15)


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "scatter": (by_index(900), (array(5000), ids(5000)), "stablehlo.scatter"),
    "scatter of rows": (by_index(900, jnp.maximum), (array(5000, 32), ids(5000)), "stablehlo.scatter"),
    "many bins": (by_index(10**7), (array(10**6), ids(10**6)), "stablehlo.scatter"),
    "mapped": (
        lambda x, i: jp.genhist(lambda x, i: (i % 90, jnp.exp(x)), (x, i), jp.Bins(90)), (array(5000), ids(5000)),
        "stablehlo.scatter",
    ),
    "several, of many bins": (
        lambda x, i, j: jp.genhist(lambda x, i, j: ((i, jnp.abs(x)), (j, x)), (x, i, j), [jp.Bins(50_000)] * 2),
        (array(10**6), ids(10**6), ids(10**6)), "stablehlo.scatter",
    ),
    "into what is there": (
        lambda x, i, d: jp.reduce_by_index(x, i, 900, dest=d), (array(5000), ids(5000), array(900)), "stablehlo.scatter",
    ),
    "batch": (jax.vmap(by_index(90)), (array(8, 500), array(8, 500, dtype=jnp.int32)), "stablehlo.scatter"),
    "sum": (lambda x: jp.reduce(x), (array(10**7),), "stablehlo.reduce"),
    "columns": (lambda x: jp.reduce(x, jnp.maximum, axis=0), (array(1000, 1000),), "stablehlo.reduce"),
    "any": (lambda x: jp.reduce(x, jnp.logical_or), (array(10**6, dtype=jnp.bool_),), "stablehlo.reduce"),
    "argmax": (
        jax.vmap(lambda x: jp.reduce((x, jp.positions), jp.monoids.argmax)), (array(1000, 1000),), "stablehlo.reduce",
    ),
    "leaf by leaf": (
        lambda x: jp.reduce(
            (x, x), lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])), map=lambda x, y: (jnp.sin(x), y * x),
        ),
        (array(10**7),), "stablehlo.reduce",
    ),
    "gradient of a maximum": (
        lambda x: jax.grad(lambda x: jp.reduce(x, jnp.maximum) * jp.reduce(x, jnp.minimum))(x), (array(10**6),),
        "stablehlo.reduce",
    ),
    "logsumexp": (lambda x: jp.reduce(x, jnp.logaddexp, axis=1), (array(10**5, 10),), "stablehlo.reduce"),
    "few to scan": (lambda x: jp.scan(x, jnp.maximum), (array(4000),), "stablehlo.reduce_window"),
    "few exponentials": (lambda x: jp.scan(x, jnp.logaddexp, axis=1), (array(300, 7),), "stablehlo.reduce_window"),
    "a step of a stencil": (lambda x: jp.stencil(smoothed, x), (array(5000, 5000),), "stablehlo.slice"),
    "steps of a large grid": (lambda x: jp.stencil(smoothed, x, steps=3), (array(5000, 5000),), "stablehlo.while"),
    "short rows": (lambda x: jp.scan(x, jnp.maximum, axis=1), (array(10**5, 16),), "stablehlo.reduce_window"),
    "sorted integers": (
        lambda x, i: jp.segment_reduce(x, i, num_segments=3000), (ids(10_000), ids(10_000)), "stablehlo.scatter",
    ),
}  # fmt: skip


@pytest.mark.cover(11)
@pytest.mark.parametrize("name", CALLS)
def test_lowering(name: str) -> None:
    """XLA's operation and no custom call; a custom call where a kernel is forced, and of one plan."""
    fn, args, operation = CALLS[name]
    assert is_plain(fn, *args)
    text = lowered(fn, *args)
    assert operation in text and "custom_call @jaxprims" not in text
    for plan in (AnyKernel(), HistogramPlan("global")):
        with forced(plan):
            assert "custom_call @jaxprims" in lowered(fn, *args), plan


KERNELS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "many updates of few bins": (by_index(1000), (array(10**6), ids(10**6))),
    "halves": (by_index(900), (array(5000, dtype=jnp.float16), ids(5000))),
    "narrow integers": (by_index(900), (array(5000, dtype=jnp.uint8), ids(5000))),
    "a function": (
        lambda x, i: jp.reduce_by_index(x, i, 900, lambda a, b: a + b + a * b, identity=0.0), (array(5000), ids(5000)),
    ),
    "several": (
        lambda x, i: jp.genhist(lambda x, i: ((i, x), (i, x)), (x, i), [jp.Bins(90), jp.Bins(90, jnp.maximum)]),
        (array(5000), ids(5000)),
    ),
    "several, of few bins": (
        lambda x, i, j: jp.genhist(lambda x, i, j: ((i, jnp.abs(x)), (j, x)), (x, i, j), [jp.Bins(500)] * 2),
        (array(10**6), ids(10**6), ids(10**6)),
    ),
    "loops": (
        lambda x, i: jp.genhist(
            lambda x, i: (jax.lax.while_loop(lambda k: k > 90, lambda k: k // 2, i), x), (x, i), jp.Bins(90)
        ),
        (array(5000), ids(5000)),
    ),
    "leaves of which one has no operation": (
        lambda x: jp.reduce((x, x), lambda a, b: (a[0] + b[0], a[1] + b[1] + a[1] * b[1])), (array(1000),),
    ),
    "leaves that depend on each other": (lambda x: jp.reduce((x, x), jp.monoids.affine), (array(1000),)),
    "a reduction of what loops make": (
        lambda x: jp.reduce(x, map=lambda x: jax.lax.while_loop(lambda y: y > 1, lambda y: y / 2, x)), (array(1000),),
    ),
    "logsumexp": (lambda x: jp.reduce(x, jnp.logaddexp), (array(10**8),)),
    "cumlogsumexp": (lambda x: jp.cumlogsumexp(x), (array(1000),)),
    "a scan": (lambda x: jp.scan(x), (array(5000),)),
    "several steps": (lambda x: jp.stencil(smoothed, x, steps=3), (array(100, 100),)),
    "a step that is not cheap": (
        lambda x: jp.stencil(lambda w: sum(jnp.sin(w[k] + w[-k]) for k in range(9)), x), (array(10**6),),
    ),
    "longer rows": (lambda x: jp.scan(x, axis=1), (array(10**5, 17),)),
    "few, by any operator": (lambda x: jp.scan(x, lambda a, b: a + b + a * b), (array(10**5, 4),)),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_what_xla_is_slower_at_is_a_kernel(name: str) -> None:
    fn, args = KERNELS[name]
    assert PLAIN not in strategies(fn, *args)
    assert "custom_call @jaxprims" in lowered(fn, *args)


def test_the_same_bits_on_every_run_are_never_left_to_atomics() -> None:
    """Of sums of floats, and of maxima, whose zeros keep the first one's sign."""
    x, i = array(5000), ids(5000)
    for op in (jnp.add, jnp.maximum, jnp.multiply):
        for call in (
            lambda x, i, op=op: jp.reduce_by_index(x, i, 900, op, deterministic=True),
            lambda x, i, op=op: jp.reduce_by_index(x, i, 900, op, indices_are_sorted=True),
            lambda x, i, op=op: jp.segment_reduce(x, i, op, num_segments=900),
        ):
            assert "custom_call @jaxprims_segment" in lowered(call, x, i)
            assert PLAIN not in strategies(call, x, i)


def test_sizes_that_are_not_known_have_kernels() -> None:
    (n,) = jax.export.symbolic_shape("n")
    assert PLAIN not in strategies(by_index(900), array(n), ids(n))
    assert PLAIN not in strategies(lambda x: jp.reduce(x), array(n))


@examples(60)
@given(
    st.integers(1, 10**8), st.floats(0.001, 1), st.sampled_from([1, 3, 8, 40, 300]), st.integers(1, 10**7),
    st.sampled_from(["add", "maximum", "minimum", "multiply"]), st.sampled_from(["float32", "int32", "uint32"]),
)  # fmt: skip
def test_of_fewer_elements_xla_is_no_slower(n: int, part: float, lanes: int, bins: int, name: str, dtype: str) -> None:
    """What is left to XLA is so of fewer elements, too; and so it is of the time that it is calculated to take."""
    fewer, op = max(1, int(n * part)), getattr(jnp, name)
    of = [is_plain(by_index(bins, op), array(*((k, lanes)[: 1 + (lanes > 1)]), dtype=dtype), ids(k)) for k in (fewer, n)]
    assert of[0] or not of[1]
    times = [xla_pays.scatter_time(k * lanes, lanes, bins * lanes, 1) for k in (fewer, n)]
    assert times[0] <= times[1] <= xla_pays.scatter_time(n * lanes, lanes, lanes, 1)


@contextlib.contextmanager
def as_on_gpus() -> Iterator[None]:
    """XLA's operations here where they are the strategy there."""
    with (
        mock.patch.object(Cpu, "xla_pays", lambda self, problem, operation, in_loop=False: CUDA.xla_pays(problem, operation)),
        mock.patch.object(Cpu, "fuses_reductions", True),
    ):
        yield


SPECIAL = np.array([np.nan, -np.inf, np.inf, 0.0, 1e-3, -1e6, -np.nan], np.float32)
RESULTS: dict[str, Callable[..., Any]] = {
    **{
        f"{name} by index": lambda x, i, name=name: jp.reduce_by_index(x, i, 7, getattr(jnp, name))
        for name in ("add", "maximum", "minimum", "multiply")
    },
    "rows": lambda x, i: jp.reduce_by_index(jnp.stack([x, -x], 1), i, 7, jnp.maximum),
    "mapped": lambda x, i: jp.genhist(lambda x, i: (i // 2, 2 * x), (x, i), jp.Bins(3, jnp.add)),
    "clipped": lambda x, i: jp.reduce_by_index(x, i, 7, jnp.maximum, mode="clip"),
    "into what is there": lambda x, i: jp.reduce_by_index(x, i, 7, jnp.maximum, dest=jnp.arange(7.0)),
    "into nothing": lambda x, i: jp.reduce_by_index(x, i, 0),
    "maximum": lambda x, i: jp.reduce(x, jnp.maximum),
    "leaves": lambda x, i: jp.reduce(
        (jnp.where(jnp.isfinite(x), x, 0), i, x),
        lambda a, b: (a[0] + b[0], a[1] ^ b[1], jnp.minimum(a[2], b[2])),
        identity=(jnp.float32(0), jnp.int32(0), jnp.float32(jnp.inf)),
        map=lambda x, i, y: (2 * x, i + 1, x - y),
    )[::2],
    "logsumexp": lambda x, i: jp.reduce(x, jnp.logaddexp),
    "cumlogsumexp": lambda x, i: jp.cumlogsumexp(x),
    "step of a stencil": lambda x, i: jp.stencil(lambda w: w[-1] - w[1], x, boundary="reflect") if x.size > 1 else x,
    "minimum of rows": lambda x, i: jp.reduce(jnp.stack([x, -x]), jnp.minimum, axis=1),
    "argmin": lambda x, i: jp.reduce((x, jp.positions), jp.monoids.argmin)[1] if x.size else x,
    "sum of none": lambda x, i: jp.reduce(x[:0]),
    "scans": lambda x, i: jp.scan(jnp.stack([x, -x]), jnp.maximum),
    "sorted": lambda x, i: jp.segment_reduce(i * i, jnp.sort(i), jnp.maximum, num_segments=9),
}


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("n", [0, 1, 500])
def test_the_same_results(name: str, n: int) -> None:
    """Of what is not finite, indices out of range and no elements; and under transformations."""
    call = RESULTS[name]
    x = jnp.asarray(np.where(rng.random(n) < 0.1, rng.choice(SPECIAL, n), rng.normal(size=n)), jnp.float32)
    i = jnp.asarray(rng.integers(-3, 10, n), jnp.int32)
    with as_on_gpus():
        got = jax.jit(lambda x, i: call(x, i))(x, i), jax.vmap(call)(jnp.stack([x, x]), jnp.stack([i, i]))
    with forced(AnyKernel()):
        wanted = jax.jit(lambda x, i: call(x, i))(x, i), jax.vmap(call)(jnp.stack([x, x]), jnp.stack([i, i]))
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5), got, wanted)


@pytest.mark.cover(4)
@pytest.mark.parametrize(
    "name", ["add by index", "maximum by index", "mapped", "maximum", "scans", "leaves", "logsumexp", "cumlogsumexp"]
)
def test_derivatives(name: str) -> None:
    x, i = jnp.asarray(rng.normal(size=200), jnp.float32), jnp.asarray(rng.integers(-3, 10, 200), jnp.int32)

    def gradient() -> Any:
        return jax.jit(jax.grad(lambda x: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(RESULTS[name](x, i)))))(x)

    with as_on_gpus():
        got = gradient()
    with forced(AnyKernel()):
        np.testing.assert_allclose(got, gradient(), rtol=1e-5, atol=1e-5)
