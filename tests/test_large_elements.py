"""Scans and reductions whose elements are arrays of many scalars: matrices, filters, chains of states."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from exports import called_elsewhere, export
from jax.extend.core import ClosedJaxpr
from references import assert_close, normal, wide

import jaxprims as jp
from jaxprims.calls.mapped import mapped
from jaxprims.ir.arrays import ArrayProgram, check_arrays
from jaxprims.specs.kernel import parse
from jaxprims.specs.large import LargeSpec
from jaxprims.targets.cpu.plans import ScanPlan
from jaxprims.targets.plans import forced
from jaxprims.tracing.nests import to_arrays


@pytest.fixture(autouse=True)
def no_fallbacks() -> Iterator[None]:
    """And products of matrices that an XLA of GPUs makes are as exact as their dtype."""
    with warnings.catch_warnings(), jax.default_matmul_precision("highest"):
        warnings.simplefilter("error", jp.FallbackWarning)
        yield


Make = Callable[[np.random.Generator, int], Any]


@dataclasses.dataclass(frozen=True)
class Case:
    op: Callable[[Any, Any], Any]
    make: Make
    tolerance: float = 2e-4

    def sample(self, n: int, seed: int = 0) -> Any:
        return self.make(np.random.default_rng(seed), n)


def matrices(d: int, dtype: Any = np.float32) -> Make:
    return lambda rng, n: (rng.standard_normal((n, d, d)) / d**0.5).astype(dtype)


def kalman(a: Any, b: Any) -> Any:
    (f, u, p), (g, v, q) = a, b
    return g @ f, g @ u + v, g @ p @ g.T + q


def log_product(a: Any, b: Any) -> Any:
    return jax.scipy.special.logsumexp(a[:, :, None] + b[None], axis=1)


def max_plus(a: Any, b: Any) -> Any:
    return jnp.max(a[:, :, None] + b[None, :, :], axis=1)


def blocks(a: Any, b: Any) -> Any:
    """The product of the blocks on the diagonal."""
    first, second = a[:2, :2] @ b[:2, :2], a[2:, 2:] @ b[2:, 2:]
    return jnp.pad(first, ((0, 4), (0, 4))) + jnp.pad(second, ((2, 0), (2, 0)))


def soft_max(a: Any, b: Any) -> Any:
    top = jnp.maximum(a["top"], b["top"])
    p, q = jnp.exp(a["top"] - top), jnp.exp(b["top"] - top)
    return {"top": top, "sum": p * a["sum"] + q * b["sum"], "mean": p * a["mean"] + q * b["mean"]}


def soft_max_sample(rng: np.random.Generator, n: int) -> Any:
    return {"top": normal(rng, n), "sum": np.ones(n, np.float32), "mean": normal(rng, n, 33)}


CASES = {
    "6x6": Case(jnp.matmul, matrices(6)),
    "8x8": Case(jnp.matmul, matrices(8)),
    "9x9 f64": Case(jnp.matmul, matrices(9, np.float64), 1e-11),
    "17x17": Case(jnp.matmul, matrices(17)),
    "turned": Case(lambda a, b: (b.T @ a.T).T, matrices(7)),
    "modular": Case(lambda a, b: (a @ b) % 97, lambda rng, n: rng.integers(0, 97, (n, 6, 6)).astype(np.int32), 0),
    "boolean": Case(lambda a, b: jnp.any(a[:, :, None] & b[None], 1), lambda rng, n: rng.random((n, 6, 6)) < 0.2, 0),
    "bf16": Case(jnp.matmul, lambda rng, n: jnp.asarray(matrices(6)(rng, n), jnp.bfloat16), 6e-2),
    "f16": Case(jnp.matmul, matrices(6, np.float16), 2e-2),
    "kalman": Case(
        kalman, lambda rng, n: (matrices(5)(rng, n) / 2, normal(rng, n, 5), matrices(5)(rng, n)), 1e-3
    ),
    "log product": Case(log_product, lambda rng, n: normal(rng, n, 7, 7)),
    "max plus": Case(max_plus, lambda rng, n: rng.integers(-9, 9, (n, 6, 6)).astype(np.float32), 0),
    "soft max": Case(soft_max, soft_max_sample),
    "rows": Case(lambda a, b: jnp.stack([a[k] @ b for k in range(6)]), matrices(6)),
    "blocks": Case(blocks, lambda rng, n: np.asarray(jax.vmap(blocks)(*matrices(6)(rng, 2 * n).reshape(2, n, 6, 6)))),
    "joined": Case(
        lambda a, b: jnp.concatenate([a[:20] + b[:20], jnp.maximum(a[20:].reshape(4, 5).T, b[20:].reshape(4, 5).T).T.ravel()]),
        lambda rng, n: normal(rng, n, 40),
    ),
}  # fmt: skip


def wanted_scan(case: Case, xs: Any, **options: Any) -> Any:
    """One after the other."""
    op = jax.jit(case.op)
    exact = jax.tree.map(lambda x: x if x.dtype.itemsize != 2 else x.astype(jnp.float32), xs)
    return references.scan(exact, lambda a, b: jax.tree.map(np.asarray, op(a, b)), **options)


def close(case: Case, got: Any, wanted: Any) -> None:
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        g, w = np.asarray(g).astype(np.float64), np.asarray(w).astype(np.float64)
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=case.tolerance, atol=case.tolerance * max(1.0, float(np.abs(w).max(initial=0))))


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", CASES)
def test_scan_and_reduce(name: str, x64: None) -> None:
    case = CASES[name]
    xs = case.sample(37)
    wanted = wanted_scan(case, xs)
    close(case, jax.jit(lambda xs: jp.scan(xs, case.op))(xs), wanted)
    close(case, jp.reduce(xs, case.op, axis=0), jax.tree.map(lambda x: x[-1], wanted))
    backwards = jax.jit(lambda xs: jp.scan(xs, case.op, reverse=True))(xs)
    close(case, backwards, wanted_scan(case, xs, reverse=True))


@pytest.mark.cover(2)
@pytest.mark.parametrize("n", [0, 1, 2, 255, 257, 1300])
def test_lengths(n: int) -> None:
    case = CASES["8x8"]
    x = case.sample(n)
    close(case, jp.scan(x, jnp.matmul), wanted_scan(case, x) if n else x)
    got = jp.reduce(x, jnp.matmul, axis=0, identity=np.eye(8, dtype=np.float32))
    close(case, got, wanted_scan(case, x)[-1] if n else np.eye(8))


def test_blocks_and_threads() -> None:
    """Whoever scans which block: the same bits."""
    case = CASES["kalman"]
    xs = case.sample(3000)
    out = jax.jit(lambda xs: jp.scan(xs, kalman))(xs)
    close(case, out, wanted_scan(case, xs))
    block = jp.explain(lambda xs: jp.scan(xs, kalman))(xs).calls[0]
    assert "elements are arrays" in block.strategy
    for order in ("assisting", "row_wise", "column_wise", "sequential_rows"):
        for threads in (1, 2, 7):
            with forced(ScanPlan(order, None, threads=threads)):
                again = jax.jit(lambda xs, _=(order, threads): jp.scan(xs, kalman))(xs)
            for a, b in zip(out, again, strict=True):
                assert np.array_equal(a, b)


def test_exclusive_and_init() -> None:
    case = CASES["6x6"]
    x, start = case.sample(50), normal(np.random.default_rng(1), 6, 6)
    for reverse in (False, True):
        for exclusive in (False, True):
            got = jp.scan(x, jnp.matmul, init=start, exclusive=exclusive, reverse=reverse)
            close(case, got, wanted_scan(case, x, init=start, exclusive=exclusive, reverse=reverse))
    eye = np.eye(6, dtype=np.float32)
    close(case, jp.scan(x, jnp.matmul, exclusive=True, identity=eye), wanted_scan(case, x, identity=eye, exclusive=True))
    close(case, jp.reduce(x, jnp.matmul, axis=0, init=start), wanted_scan(case, x, init=start)[-1])
    xs, first = CASES["kalman"].sample(40), jax.tree.map(lambda v: v[0], CASES["kalman"].sample(1, seed=5))
    close(CASES["kalman"], jp.scan(xs, kalman, init=first), wanted_scan(CASES["kalman"], xs, init=first))
    with pytest.raises(ValueError, match="identity is not known"):
        jp.scan(x, jnp.matmul, exclusive=True)


def test_restarts() -> None:
    case = CASES["8x8"]
    x = case.sample(700)
    starts = np.random.default_rng(2).random(700) < 0.05
    for options in ({}, {"reverse": True}, {"init": np.eye(8, dtype=np.float32) * 2}):
        got = jp.scan(x, jnp.matmul, segment_starts=starts, **options)
        close(case, got, wanted_scan(case, x, starts=starts, **options))


@pytest.mark.parametrize("by", ["ids", "offsets"])
def test_segments(by: str) -> None:
    """Empty ones, short ones, and one that spans several tasks."""
    case = CASES["8x8"]
    x, eye = case.sample(3000), np.eye(8, dtype=np.float32)
    offsets = np.array([0, 0, 3, 3, 10, 11, 2900, 3000, 3000])
    prefixes = wanted_scan(case, x, starts=np.isin(np.arange(3000), offsets))
    wanted = np.stack([prefixes[hi - 1] if hi > lo else eye for lo, hi in itertools.pairwise(offsets)])
    cut = jp.Offsets(jnp.asarray(offsets)) if by == "offsets" else jnp.asarray(np.repeat(np.arange(8), np.diff(offsets)))
    got = jax.jit(lambda x: jp.segment_reduce(x, cut, jnp.matmul, identity=eye, num_segments=8))(x)
    close(case, got, wanted)


def test_batches_and_axes() -> None:
    """Batch axes before the elements' axis, behind it, and from vmap; all of them lanes of one kernel."""
    case = CASES["6x6"]
    x = case.sample(60).reshape(3, 20, 6, 6)
    rows = np.stack([wanted_scan(case, r) for r in x])
    close(case, jp.scan(x, jnp.matmul, axis=1), rows)
    close(case, jp.scan(np.swapaxes(x, 0, 1), jnp.matmul), np.swapaxes(rows, 0, 1))
    close(case, jax.vmap(lambda r: jp.scan(r, jnp.matmul))(x), rows)
    close(case, jax.vmap(lambda r: jp.scan(r, jnp.matmul), in_axes=1, out_axes=1)(np.swapaxes(x, 0, 1)), np.swapaxes(rows, 0, 1))
    close(case, jax.vmap(lambda r: jp.reduce(r, jnp.matmul, axis=0))(x), rows[:, -1])
    close(case, jp.reduce(x, jnp.matmul, axis=(0, 1)), wanted_scan(case, x.reshape(60, 6, 6))[-1])
    donated = jax.jit(lambda x: jp.scan(x, jnp.matmul, axis=1, in_place=True), donate_argnums=0)
    close(case, donated(jnp.array(x)), rows)
    start = normal(np.random.default_rng(1), 3, 6, 6)
    got = jax.vmap(lambda r, s: jp.scan(r, jnp.matmul, init=s))(x, start)
    close(case, got, np.stack([wanted_scan(case, r, init=s) for r, s in zip(x, start, strict=True)]))
    got = jax.vmap(lambda s: jp.scan(x[0], jnp.matmul, init=s))(start)
    close(case, got, np.stack([wanted_scan(case, x[0], init=s) for s in start]))


def test_captured_arrays() -> None:
    """Vectors that the operator captures, batched too, and computed from traced ones."""
    rng = np.random.default_rng(0)
    x, cost = normal(rng, 30, 48), rng.uniform(1, 2, (2, 48)).astype(np.float32)
    got = jax.jit(jax.vmap(lambda c: jp.scan(x, lambda a, b: a + b - jnp.log(c))))(cost)
    for c, g in zip(cost, got, strict=True):
        close(CASES["8x8"], g, references.scan(x, lambda a, b: a + b - np.log(c)))
    table = jnp.asarray(normal(rng, 6, 6))  # a product in another metric
    y = CASES["6x6"].sample(20)
    close(
        CASES["6x6"],
        jp.scan(y, lambda a, b: a @ table @ b),
        references.scan(y, lambda a, b: a @ wide(table) @ b),
    )


def test_map() -> None:
    """What is combined is made in the kernel: products of rotations from angles; positions."""
    rng = np.random.default_rng(0)
    u, v, scale = normal(rng, 40, 6), normal(rng, 40, 6), np.float32(0.1)
    case = CASES["6x6"]
    made = np.eye(6, dtype=np.float32) + scale * u[:, :, None] * v[:, None, :]
    make = lambda u, v: jnp.eye(6) + scale * jnp.outer(u, v)  # noqa: E731
    close(case, jax.jit(lambda u, v: jp.scan((u, v), jnp.matmul, map=make))(u, v), wanted_scan(case, made))
    close(case, jp.reduce((u, v), jnp.matmul, axis=0, map=make), wanted_scan(case, made)[-1])
    scaled = made * (np.arange(40, dtype=np.float32)[:, None, None] % 3 + 1)
    got = jp.scan((made, jp.positions), jnp.matmul, map=lambda m, k: m * (k % 3 + 1).astype(jnp.float32).ravel()[0])
    close(case, got, wanted_scan(case, scaled))


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", ["kalman", "log product"])
@pytest.mark.dear
def test_derivatives(name: str) -> None:
    """Of scans and reductions, in both modes, against those of XLA's scan."""
    case = CASES[name]
    xs = jax.tree.map(lambda x: x * 0.5, case.sample(9))
    weights = jax.tree.map(lambda x: normal(np.random.default_rng(1), *x.shape), xs)

    def loss(ours: bool, reduces: bool) -> Callable[[Any], Any]:
        def f(xs: Any) -> Any:
            if ours:
                out = jp.reduce(xs, case.op, axis=0) if reduces else jp.scan(xs, case.op)
            else:
                out = jax.lax.associative_scan(jax.vmap(case.op), xs)
                out = jax.tree.map(lambda x: x[-1], out) if reduces else out
            kept = jax.tree.map(lambda w: w[-1], weights) if reduces else weights
            return sum(jnp.sum(w * x) for w, x in zip(jax.tree.leaves(kept), jax.tree.leaves(out), strict=True))

        return f

    for reduces in (False, True):
        tangents = jax.tree.map(lambda x: normal(np.random.default_rng(2), *x.shape), xs)

        def both(xs: Any, tangents: Any, ours: bool, reduces: bool = reduces) -> Any:
            f = loss(ours, reduces)
            return jax.grad(f)(xs), jax.jvp(f, (xs,), (tangents,))[1]

        got, wanted = (jax.jit(both, static_argnums=2)(xs, tangents, ours) for ours in (True, False))
        close(case, got[0], wanted[0])
        np.testing.assert_allclose(got[1], wanted[1], rtol=2e-3, atol=2e-3)


def test_segments_have_derivatives() -> None:
    x, ids = CASES["6x6"].sample(12) * 0.7, jnp.asarray([0] * 5 + [2] * 7)
    eye = np.eye(6, dtype=np.float32)
    ours = lambda x: jnp.sum(jp.segment_reduce(x, ids, jnp.matmul, identity=eye, num_segments=3) ** 2)  # noqa: E731
    product = lambda x: jax.lax.associative_scan(jnp.matmul, x)[-1]  # noqa: E731
    plain = lambda x: jnp.sum(product(x[:5]) ** 2) + jnp.sum(product(x[5:]) ** 2)  # noqa: E731
    close(CASES["6x6"], *(jax.jit(jax.grad(f))(x) for f in (ours, plain)))


def test_higher_derivatives() -> None:
    x = CASES["6x6"].sample(5) * 0.5
    second = lambda scan: jax.jit(jax.hessian(lambda t: jnp.sum(scan(x * t)[-1] ** 2)))(1.0)  # noqa: E731
    got, wanted = second(lambda x: jp.scan(x, jnp.matmul)), second(lambda x: jax.lax.associative_scan(jnp.matmul, x))
    np.testing.assert_allclose(got, wanted, rtol=1e-3)


def test_fallbacks() -> None:
    """What a kernel of large elements cannot express runs as plain XLA."""
    x = CASES["6x6"].sample(9)
    for op, why in (
        (lambda a, b: jnp.sort(a, 1) * 0 + a @ b, "sort"),
        (lambda a, b: jax.lax.fori_loop(0, 2, lambda _, c: c * 1.0, a) @ b, "scan"),
        (lambda a, b: (a @ (b + 0j)).real, "complex"),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.warns(jp.FallbackWarning, match=why):
                got = jp.scan(x, op)
        close(CASES["6x6"], got, wanted_scan(CASES["6x6"], x))


def spec_of(case: Case) -> LargeSpec:
    spec = jp.explain(lambda xs: jp.scan(xs, case.op))(case.sample(3)).calls[0].spec
    assert isinstance(spec, LargeSpec)
    return spec


def test_texts() -> None:
    """Specs come back from their texts; damaged ones are refused."""
    for case in CASES.values():
        spec = spec_of(case)
        assert parse(spec.text) == spec and spec.text == spec_of(case).text
    text = spec_of(CASES["8x8"]).text
    for old, new in (
        ("read 0 0", "read 0 1"), ("read 0 0", "read 5 0"), ("write 2 0", "write 0 0"), ("8 8 8", "8 8 9"), ("kept 0", "kept 1"),
        ("part f32 64", "part f32 65"), ("nest add", "nest sub"), ("made f32 64", "made f32 6400000"), ("results 2", "results 0"),
        ("array f32 64", "array f32 63"), ("nest add 1", "nest add 4"), ("mul f32 %0 %1", "mul f64 %0 %1"),
    ):  # fmt: skip
        assert old in text
        with pytest.raises(ValueError, match="not a kernel's spec"):
            parse(text.replace(old, new, 1))


def test_texts_of_maps() -> None:
    def in_rows(x: Any) -> Any:
        return mapped(lambda row: (row - jnp.max(row), jnp.max(row)), [x], rows=4)

    (call,) = jp.explain(in_rows)(jnp.ones((9, 40))).calls
    text = call.spec.text
    assert parse(text) == call.spec and call.spec.together == 4
    for old, new in (
        ("together 4", "together 0"), ("together 4", "together 5"), ("together 4\n", ""), ("together 4", "together -4"),
        ("together 4", "together a"), ("together 4", "together 40000"), ("is ", "is reverse"), ("array f32 40", "array f32 0"),
        ("part f32 40", "part f32 160"),
    ):  # fmt: skip
        assert old in text
        with pytest.raises(ValueError, match="not a kernel's spec"):
            parse(text.replace(old, new, 1))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_batches_of_what_is_made_together(axis: int) -> None:
    x = normal(np.random.default_rng(0), 37, 3, 60)
    row = lambda r: (r - jnp.max(r)) * r[::-1]  # noqa: E731
    x = jnp.moveaxis(x, 1, axis)
    got = jax.jit(jax.vmap(lambda x: mapped(lambda r: (row(r),), [x], rows=16)[0], in_axes=axis))(x)
    np.testing.assert_array_equal(got, jax.vmap(jax.vmap(row), in_axes=axis)(x))


def arrays_of(op: Callable[..., Any], *shapes: tuple[int, ...]) -> ArrayProgram:
    closed: ClosedJaxpr = jax.make_jaxpr(op)(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))
    p = to_arrays(closed.jaxpr)
    check_arrays(p, p.params, None, "program")
    assert ArrayProgram.parse(p.text) == p
    return p


def test_views_are_no_loops() -> None:
    """Slices, transposes, broadcasts and reshapes take no time; elementwise operations are one loop; what is not used is gone."""
    p = arrays_of(lambda a: (a.reshape(2, 2, 6).T[::2, 1:] * 2 + 1)[::-1] * jnp.arange(3.0)[:, None, None], (4, 6))
    assert len(p.nests) == 1
    assert len(arrays_of(lambda a, b: a @ b, (8, 8), (8, 8)).nests) == 1
    assert len(arrays_of(lambda a, b: (a + b, a @ b)[0], (8, 8), (8, 8)).nests) == 1
    p = arrays_of(max_plus, (8, 8), (8, 8))
    assert len(p.nests) == 1 and p.nests[0].extents == (8, 8, 8)
    p = arrays_of(lambda a: jnp.exp(a) / jnp.sum(jnp.exp(a)), (64,))
    assert sum("exp" in n.body.text for n in p.nests) == 2  # JAX traces both
    p = arrays_of(lambda a: (lambda e: e / jnp.sum(e))(jnp.exp(a)), (64,))
    assert sum("exp" in n.body.text for n in p.nests) == 1


@pytest.mark.dear
def test_other_processes(tmp_path: Path) -> None:
    """An exported function finds its kernel by the spec's text."""
    x = CASES["8x8"].sample(300)
    f = jax.jit(lambda x: jp.scan(x, jnp.matmul))
    (((got,),),) = called_elsewhere(tmp_path, (export(f)(x), [(x,)]))
    assert np.array_equal(got, f(x))


def test_gpus_have_none() -> None:
    x = CASES["8x8"].sample(3)
    (call,) = jp.explain(lambda x: jp.scan(x, jnp.matmul), target="sm_90")(x).calls
    assert call.strategy == "plain XLA" and "scalars" in call.reason
    lowered = jax.jit(lambda x: jp.scan(x, jnp.matmul)).trace(x).lower(lowering_platforms=("cuda",))
    assert "custom_call" not in lowered.as_text()


def test_positions_beside_arrays() -> None:
    """A leaf of positions has the others' shape; of elements that are no numbers XLA makes it, however small they are."""
    x = normal(np.random.default_rng(0), 9, 2, 2)
    got = jp.scan((x, jp.positions), jnp.matmul, map=lambda m, k: m * (k % 3))
    scaled = x * (np.arange(9, dtype=np.float32) % 3)[:, None, None]
    assert_close(got, references.scan(scaled, np.matmul), 1e-5)
