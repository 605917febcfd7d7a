"""The histograms under vmap, control flow, export and the persistent cache. Derivatives have a file of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from exports import called_elsewhere, export, run_python
from references import BY_NAME, INDEX, H, N, assert_close, histogram, sample, stack

import jaxprims as jp

CLASSES = (
    "add", "max", "mul", "logaddexp", "einstein", "mean_variance", "argmax", "complex_mul", "saturating", "packed", "max5",
    "circulant", "two_best", "add300",
)  # fmt: skip


# --- batching ------------------------------------------------------------------------------------------------------------


@pytest.mark.cover(3)
@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("name", CLASSES)
def test_vmap(name: str) -> None:
    """Of values, indices, both, dest, and nested with different axes: all as if each member were alone. Half of them for each
    operator, in turn; one compilation."""
    case, turn = BY_NAME[name], CLASSES.index(name) % 2
    f = histogram(case)
    values = [sample(case, N, seed) for seed in range(3)]
    index = [np.roll(INDEX, k) for k in range(3)]
    dests = [sample(case, H, 7 + seed) for seed in range(3)]
    last = jax.tree.map(lambda v: np.moveaxis(v, 0, -1), stack(*values))  # the batch axis is the last one

    @jax.jit
    def some(v: Any, last: Any, i: Any, d: Any) -> list[Any]:
        first = jax.tree.map(lambda x: x[0], v)
        every = [
            lambda: jax.vmap(f)(v),
            lambda: jax.vmap(f, (-1,))(last),
            lambda: jax.vmap(lambda i: f(first, i))(i),
            lambda: jax.vmap(f)(v, i),
            lambda: jax.vmap(lambda d: f(first, INDEX, d))(d),
            lambda: jax.vmap(f)(v, i, d),
            lambda: jax.vmap(lambda v: jax.vmap(lambda i: f(v, i))(i))(v),
            lambda: jax.vmap(lambda d: jax.vmap(lambda v, i: f(v, i, d))(v, i), out_axes=1)(d),
        ]
        return [call() for call in every[turn::2]]

    got = some(stack(*values), last, np.stack(index), stack(*dests))
    one = lambda v, i, d=None: references.reduce_by_index(v, i, H, case.reference, case.identity, d)  # noqa: E731
    wanted = [
        stack(*(one(v, INDEX) for v in values)),
        stack(*(one(v, INDEX) for v in values)),
        stack(*(one(values[0], i) for i in index)),
        stack(*(one(v, i) for v, i in zip(values, index, strict=True))),
        stack(*(one(values[0], INDEX, d) for d in dests)),
        stack(*map(one, values, index, dests)),
        stack(*(stack(*(one(v, i) for i in index)) for v in values)),
        stack(*(stack(*(one(v, i, d) for d in dests)) for v, i in zip(values, index, strict=True))),
    ]
    for g, w in zip(got, wanted[turn::2], strict=True):
        assert_close(g, w, case.tolerance)


@pytest.mark.usefixtures("strict")
def test_vmap_of_captured_arrays() -> None:
    """Tables that f and op look things up in: batched alone, with the elements, and at two levels."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 8, (3, N)).astype(np.int32)
    table, modulus = references.normal(rng, 2, 8), np.array([5, 7], np.int32)

    def f(x: jax.Array, table: jax.Array, modulus: jax.Array) -> Any:
        mod = lambda a, b: (a + b) % modulus  # noqa: E731
        bins = [jp.Bins(H, jnp.maximum), jp.Bins(H, mod, 0)]
        return jp.genhist(lambda x: [(x % jnp.int32(H), table[x]), (x % jnp.int32(3), x)], x, bins)

    alone = jax.jit(jax.vmap(f, (None, 0, 0)))(x[0], table, modulus)
    both = jax.jit(jax.vmap(jax.vmap(f, (None, 0, 0)), (0, None, None)))(x, table, modulus)
    for b in range(2):
        for a in range(3):
            best = references.reduce_by_index(table[b][x[a]], x[a] % H, H, np.maximum, -np.inf)
            total = references.reduce_by_index(x[a], x[a] % 3, H, lambda p, q, b=b: (p + q) % modulus[b], 0)
            assert_close((both[0][a, b], both[1][a, b]), (best, total))
        assert_close((alone[0][b], alone[1][b]), (both[0][0, b], both[1][0, b]))


@pytest.mark.usefixtures("strict")
def test_empty_batches() -> None:
    f = histogram(BY_NAME["add"])
    assert jax.vmap(f)(jnp.zeros((0, N))).shape == (0, H)
    assert jax.vmap(jax.vmap(f))(jnp.zeros((2, 0, N))).shape == (2, 0, H)
    assert jax.vmap(lambda v: jp.reduce_by_index(v, np.zeros(0, np.int32), H))(jnp.zeros((3, 0))).tolist() == [[0] * H] * 3


@pytest.mark.usefixtures("strict")
def test_control_flow_and_modes_of_jax() -> None:
    v = jnp.arange(10.0)
    f = histogram(BY_NAME["add"])
    wanted = references.reduce_by_index(v, INDEX, H, np.add, 0.0)

    def step(k: Any, bins: Any) -> Any:
        return jax.lax.cond(k % 2 == 0, lambda b: f(v, INDEX, b), lambda b: b, bins)

    assert_close(jax.jit(lambda: jax.lax.fori_loop(0, 4, step, jnp.zeros(H)))(), 2 * wanted)
    assert_close(jax.lax.map(f, jnp.stack([v, 2 * v]))[1], 2 * wanted)
    assert_close(jax.jit(lambda d, v: f(v, INDEX, d), donate_argnums=0)(jnp.ones(H), v), wanted + 1)
    assert jax.eval_shape(f, jax.ShapeDtypeStruct((N,), jnp.float32)) == jax.ShapeDtypeStruct((H,), jnp.float32)
    with jax.disable_jit():
        assert_close(f(v), wanted)
        assert_close(jax.grad(lambda v: f(v) @ jnp.arange(1.0, 5))(v), np.array([1, 2, 4, 1, 0, 2, 1, 4, 0, 2]))
        assert_close(jax.vmap(f)(jnp.stack([v, v]))[1], wanted)
    with jax.debug_nans(True):
        assert_close(jax.jit(f)(v), wanted)


# --- other processes --------------------------------------------------------------------------------------------------------


EXPORTED = ("add", "max", "mean_variance", "argmax", "complex_mul", "packed", "add300")


def exported(v: Any, i: Any, table: Any) -> Any:
    """Several kernels, one with a captured array, a batch and a gradient."""
    outs = [histogram(BY_NAME[name])(v[name], i) for name in EXPORTED]
    outs.append(jax.vmap(lambda k: jp.genhist(lambda i: (i + k, table[i]), i, jp.Bins(H)))(jnp.arange(3)))
    outs.append(jax.grad(lambda x: jp.reduce_by_index(x, i, H, references.einstein, identity=0.0).sum())(v["add"] / 10))
    return outs


def test_export(tmp_path: Path) -> None:
    """An exported function runs in a process that has never traced it: kernels are compiled on demand. Symbolic sizes too."""
    v = {name: sample(BY_NAME[name], N) for name in EXPORTED}
    table = jnp.arange(4.0)
    once = export(jax.jit(exported))(v, INDEX, table)
    n, b = jax.export.symbolic_shape("n, b")
    f = jax.jit(jax.vmap(lambda v, i: jp.reduce_by_index(v, i, H, jnp.maximum)))
    symbolic = export(f)(jax.ShapeDtypeStruct((b, n), jnp.float32), jax.ShapeDtypeStruct((b, n), jnp.int32))
    rng = np.random.default_rng(0)
    several = [
        (rng.standard_normal(shape).astype(np.float32), rng.integers(-1, 5, shape).astype(np.int32))
        for shape in ((1, 5), (3, 2000), (2, 1))
    ]
    (results,), maxima = called_elsewhere(tmp_path, (once, [(v, INDEX, table)]), (symbolic, several))
    for got, wanted in zip(results, jax.tree.leaves(jax.jit(exported)(v, INDEX, table)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    for (values, index), (got,) in zip(several, maxima, strict=True):
        for v, i, most in zip(values, index, got, strict=True):
            assert most.tolist() == [v[i == h].max(initial=-np.inf) for h in range(H)]


def test_export_is_refused_without_the_targets() -> None:
    with pytest.raises(ValueError, match="Cannot serialize code with custom calls"):
        jax.export.export(jax.jit(lambda v: jp.reduce_by_index(v, INDEX, H)))(jnp.ones(N))


def test_persistent_cache(tmp_path: Path) -> None:
    """An executable from the persistent compilation cache finds its kernels, in another process, with nothing compiled by XLA."""
    code = """
        import sys, numpy as np, jax, jax.numpy as jnp, jaxprims as jp
        from references import BY_NAME, einstein
        hits = []
        jax.monitoring.register_event_listener(lambda event, **kw: hits.append(event))
        @jax.jit
        def f(x, i):
            return (jp.reduce_by_index(x, i, 5, jnp.logaddexp), jp.reduce_by_index((x, jp.positions), i, 5, jp.monoids.argmax),
                    jax.grad(lambda x: jp.reduce_by_index(x, i, 5, einstein, identity=0.0).sum())(x / 100))
        rng = np.random.default_rng(0)
        x, i = rng.standard_normal(3000).astype(np.float32), rng.integers(-1, 6, 3000).astype(np.int32)
        out = f(x, i)
        print("/jax/compilation_cache/cache_hits" in hits, [float(jnp.sum(leaf)) for leaf in jax.tree.leaves(out)])
    """
    variables = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    first, second = (run_python(code, **variables).split(maxsplit=1) for _ in range(2))
    assert first[0] == "False" and second[0] == "True" and first[1] == second[1]


OF_WIDE_ARRAYS: dict[str, tuple[Any, Any]] = {
    "bins": (lambda x, i: jp.reduce_by_index(x, i, 5), lambda x, i: jax.ops.segment_sum(x, i, 5)),
    "segments": (lambda x, i: jp.segment_max(x, i, 5), lambda x, i: jax.ops.segment_max(x, i, 5)),
    "scan": (lambda x, i: jp.scan(x), lambda x, i: jnp.cumsum(x)),
    "reduction": (lambda x, i: jp.reduce(x), lambda x, i: jnp.sum(x)),
    "counts": (lambda x, i: jp.bincount(i, length=5), lambda x, i: jnp.bincount(i, length=5)),
    "histogram": (lambda x, i: jp.histogram(x, 4)[0], lambda x, i: jnp.histogram(x, 4)[0]),
    "stencil": (lambda x, i: jp.stencil(lambda a: a[0] * 2.0 - a[1], x, boundary="wrap"), lambda x, i: x * 2.0 - jnp.roll(x, -1)),
    "fused": (jp.fuse(lambda x, i: jnp.cumsum(jnp.sin(x))), lambda x, i: jnp.cumsum(jnp.sin(x))),
}


@pytest.mark.cover(2)
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")  # JAX's own, of what it takes likewise
@pytest.mark.parametrize("name", OF_WIDE_ARRAYS)
def test_arrays_that_outlive_enable_x64(name: str) -> None:
    """They are taken as the numbers that there are without it."""
    ours, plain = OF_WIDE_ARRAYS[name]
    rng = np.random.default_rng(0)
    numbers, places = rng.standard_normal(40_000), rng.integers(-1, 6, 40_000)
    if name == "counts":
        places = np.abs(places)
    with jax.enable_x64(True):
        x, i = jnp.asarray(numbers), jnp.asarray(places)
    for wrapped in (jax.jit, lambda f: f):
        got, wanted = (np.asarray(wrapped(f)(x, i)) for f in (ours, plain))
        assert got.dtype.itemsize == 4
        np.testing.assert_allclose(got, wanted, 1e-4, 1e-2)
