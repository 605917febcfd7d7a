"""Scans, reductions and segmented reductions under vmap, control flow, donation, export and many threads."""

from __future__ import annotations

import itertools
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from exports import called_elsewhere, export, run_python
from references import affine, assert_close

import jaxprims as jp

N = 60


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.int32)


def rows(f: Any, *members: Any) -> Any:
    """f on each member alone."""
    outs = [f(*xs) for xs in zip(*members, strict=True)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *outs)


@pytest.mark.usefixtures("strict")
def test_vmap_of_scans() -> None:
    """Over leading, inner and last axes, of both leaves, of one, of flags and init; nested."""
    a, b = data(3, N, 5), data(3, N, 5, seed=1)
    starts = np.random.default_rng(0).random((3, N)) < 0.1
    one = lambda a, b: jp.scan((a, b), affine)  # noqa: E731
    wanted = rows(lambda a, b: references.scan((a, b), affine), a, b)
    assert_close(jax.jit(jax.vmap(one))(a, b), wanted)
    last = jax.jit(jax.vmap(one, -1, -1))(np.moveaxis(a, 0, -1), np.moveaxis(b, 0, -1))
    assert_close(jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), last), wanted)
    inner = jax.jit(jax.vmap(one, 1, 1))(np.moveaxis(a, 0, 1), np.moveaxis(b, 0, 1))
    assert_close(jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), inner), wanted)
    shared = rows(lambda b: references.scan((a[0], b), affine), b)
    assert_close(jax.jit(jax.vmap(one, (None, 0)))(a[0], b), shared)
    nested = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))(a, b)
    assert_close(jax.tree.map(lambda x: x[1], nested), rows(lambda b: references.scan((a[1], b), affine), b))

    flagged = lambda x, s: jp.scan(x, segment_starts=s, reverse=True)  # noqa: E731
    assert_close(jax.vmap(flagged)(a, starts), rows(lambda x, s: references.scan(x, np.add, starts=s, reverse=True), a, starts))
    assert_close(jax.vmap(flagged, (None, 0))(a[0], starts), rows(lambda s: flagged_reference(a[0], s), starts))
    init = data(4, 5, seed=3)
    begun = jax.vmap(lambda i: jp.scan(a[0], exclusive=True, init=i))(init)
    assert_close(begun, rows(lambda i: references.scan(a[0], np.add, exclusive=True, init=i), init))


def flagged_reference(x: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return references.scan(x, np.add, starts=starts, reverse=True)


@pytest.mark.usefixtures("strict")
def test_vmap_of_captured_arrays() -> None:
    x, modulus = data(N), np.array([5, 7, 11], np.int32)
    got = jax.jit(jax.vmap(lambda m: jp.scan(x, lambda a, b: (a + b) % m, map=lambda v: v % m)))(modulus)
    assert_close(got, np.stack([np.cumsum(x % m) % m for m in modulus]).astype(np.int32))


@pytest.mark.usefixtures("strict")
def test_vmap_of_reductions() -> None:
    x = data(3, N, 5)
    pairs = lambda x: jp.reduce((x, jp.positions), jp.monoids.argmax, axis=0)  # noqa: E731
    wanted = (x.max(1), x.argmax(1).astype(np.int32))
    assert_close(jax.jit(jax.vmap(pairs))(x), wanted)
    assert_close(jax.jit(jax.vmap(pairs, 1))(np.moveaxis(x, 0, 1)), wanted)
    assert_close(jax.vmap(jax.vmap(lambda x: jp.reduce(x, jnp.minimum)))(x), x.min(2))
    offsets = np.array([[0, 10, 10, 60], [0, 0, 59, 60], [0, 20, 40, 60]], np.int32)
    cut = lambda x, o: jp.segment_reduce(x, jp.Offsets(o), jnp.add)  # noqa: E731
    sums = lambda x, o: np.stack([x[p:q].sum(0) for p, q in itertools.pairwise(o)]).astype(np.int32)  # noqa: E731
    assert_close(jax.jit(jax.vmap(cut))(x, offsets), rows(sums, x, offsets))
    assert_close(jax.jit(jax.vmap(cut, (None, 0)))(x[0], offsets), rows(lambda o: sums(x[0], o), offsets))
    assert_close(jax.jit(jax.vmap(cut, (0, None)))(x, offsets[0]), rows(lambda x: sums(x, offsets[0]), x))


@pytest.mark.usefixtures("strict")
def test_control_flow_and_modes_of_jax() -> None:
    x = jnp.arange(1.0, 11.0)
    step = lambda k, x: jax.lax.cond(k % 2 == 0, lambda x: jp.scan(x) / x[-1], lambda x: x, x)  # noqa: E731
    got = jax.jit(lambda: jax.lax.fori_loop(0, 4, step, x))()
    once = np.cumsum(np.arange(1.0, 11)) / 10
    assert_close(got, np.cumsum(once) / once[-1], 1e-5)
    assert_close(jax.lax.map(jp.scan, jnp.stack([x, 2 * x]))[1], np.cumsum(2 * np.arange(1.0, 11)))
    assert jax.eval_shape(jp.scan, jax.ShapeDtypeStruct((N, 2), jnp.bfloat16)) == jax.ShapeDtypeStruct((N, 2), jnp.bfloat16)
    with jax.disable_jit():
        assert_close(jp.scan(x), np.cumsum(np.arange(1.0, 11)))
        assert_close(jp.reduce(x), np.float32(55))


def test_in_place() -> None:
    """A donated array's memory becomes the result's, without a copy; one that is still needed is copied."""
    n = 100_000
    x = data(n)
    f = jax.jit(lambda x: jp.scan(x, in_place=True), donate_argnums=0)
    compiled = f.lower(x).compile()
    assert "copy(" not in compiled.as_text()
    given = jnp.asarray(x)
    where = given.unsafe_buffer_pointer()
    got = f(given)
    assert got.unsafe_buffer_pointer() == where and given.is_deleted()
    assert_close(got, np.cumsum(x, dtype=np.int32))
    both = jax.jit(lambda a, b: jp.scan((a, b), affine, reverse=True, in_place=True), donate_argnums=(0, 1))
    a, b = data(n) % 3, data(n, seed=1)
    wanted = jax.jit(lambda a, b: jp.scan((a, b), affine, reverse=True))(a, b)
    assert_close(both(jnp.asarray(a), jnp.asarray(b)), jax.tree.map(np.asarray, wanted))
    kept = jax.jit(lambda x: (jp.scan(x, in_place=True), x * 2))(x)
    assert_close(kept, (np.cumsum(x, dtype=np.int32), x * 2))
    assert_close(jp.scan(given := jnp.asarray(x), in_place=True), np.cumsum(x, dtype=np.int32))
    assert_close(given, x)


@pytest.mark.cpu
@pytest.mark.strategies
@pytest.mark.dear
def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    """One core in another process against all of them here."""
    code = """
        import numpy as np, jax, jax.numpy as jnp, jaxprims as jp, hashlib
        x = jnp.asarray(np.random.default_rng(0).standard_normal(300_000), jnp.float32)
        offsets = jp.Offsets(jnp.asarray([0, 3, 3, 100_000, 100_001, 299_000, 300_000]))
        outs = [jp.scan(x), jp.scan(x, jnp.logaddexp, reverse=True), jp.scan(x.reshape(3, -1), axis=1, exclusive=True),
                jp.scan(x.reshape(-1, 3)), jp.scan(x.reshape(-1, 30)), jp.scan(x.reshape(-1, 10), axis=1),
                jp.reduce(x), jp.reduce(x.reshape(1000, -1), axis=0), jp.reduce(x, jnp.logaddexp), jp.segment_reduce(x, offsets)]
        hashes = [hashlib.md5(np.asarray(y).tobytes()).hexdigest() for y in outs]
    """
    here: dict[str, Any] = {}
    exec(textwrap.dedent(code), here)
    one_core = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" + textwrap.dedent(code) + "print(hashes)"
    assert run_python(one_core).strip() == str(here["hashes"])


@pytest.mark.cover(2)
@pytest.mark.cpu
@pytest.mark.strategies
@pytest.mark.parametrize("n", [3, 20, 33, 257, 1000, 5000])
@pytest.mark.parametrize("count", [5, 67])
def test_equal_rows_have_equal_bits(n: int, count: int) -> None:
    """But scans of short ones along the last axis (docs/semantics.md)."""
    row = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    x = jnp.asarray(np.tile(row, (count, 1)))
    outs = [jp.reduce(x, op, axis=1) for op in (jnp.add, jnp.logaddexp)]
    outs += [jp.reduce(x.T, op, axis=0) for op in (jnp.add, jnp.logaddexp)]
    outs += [jp.scan(x.T, op, axis=0).T for op in (jnp.add, jnp.logaddexp)]
    outs += [jax.vmap(jp.reduce)(x), jax.vmap(jp.scan, 1, 1)(x.T).T]
    if n > 256:
        outs += [jp.scan(x, op, axis=1) for op in (jnp.add, jnp.logaddexp)]
        outs += [jax.vmap(jp.scan)(x), jp.scan(x, axis=1, reverse=True), jp.scan((x, x), affine, axis=1)[1]]
    for k, y in enumerate(map(np.asarray, outs)):
        assert (y == y[:1]).all(), k


def calls(x: Any, offsets: Any) -> list[Any]:
    return [
        jp.scan(x, reverse=True),
        jp.scan((x, x), affine, init=(1.0, 2.0)),
        jp.reduce(x, jnp.maximum),
        jp.reduce((x, jp.positions), jp.monoids.argmin),
        jp.segment_reduce(x, jp.Offsets(offsets), jnp.minimum),
        jax.grad(lambda x: jnp.sum(jp.scan(x, jnp.multiply)))(x),
    ]


@pytest.mark.dear
def test_export(tmp_path: Path) -> None:
    """An exported function runs in a process that has never traced it; with symbolic sizes too."""
    x = np.random.default_rng(0).uniform(-1.1, 1.1, N).astype(np.float32)
    offsets = np.array([0, 7, 7, N], np.int32)
    fixed = export(jax.jit(calls))(x, offsets)
    b, n, d = jax.export.symbolic_shape("b, n, d")
    f = jax.jit(lambda x: [jp.scan(x, axis=1), jp.reduce(x, jnp.maximum, axis=1), jp.scan(x[0, :, 0])])
    symbolic = export(f)(jax.ShapeDtypeStruct((b, n, d), jnp.float32))
    shapes = (2, 100, 3), (1, 5000, 40), (3, 1, 1), (2, 9, 2)
    cubes = [data(*shape).astype(np.float32) for shape in shapes]
    (results,), several = called_elsewhere(tmp_path, (fixed, [(x, offsets)]), (symbolic, [(y,) for y in cubes]))
    for got, wanted in zip(results, jax.tree.leaves(calls(x, offsets)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    for y, (sums, most, first) in zip(cubes, several, strict=True):
        assert np.array_equal(sums, np.cumsum(y, 1)) and np.array_equal(most, y.max(1))
        assert np.array_equal(first, np.cumsum(y[0, :, 0]))


WITH_IDENTITY = {
    "reduce": lambda x, at: jp.reduce(x, lambda a, b: jnp.where(b == 0, a, b), axis=at, identity=0),
    "of any lane": lambda x, at: jp.reduce(x, lambda a, b: a * b, axis=at, identity=np.ones((1, 1), np.float32)),
    "exclusive": lambda x, at: jp.scan(x, lambda a, b: jnp.where(b == 0, a, b), axis=at, exclusive=True, identity=0),
    "pairs": lambda x, at: jp.scan((x, -x), affine, axis=at, exclusive=True, identity=(1, 0)),
    "segments": lambda x, at: jp.segment_reduce(x, jp.Offsets(jnp.array([0, 0, 1])), lambda a, b: a * b, identity=1),
    "gradient": lambda x, at: jax.grad(lambda x: jnp.sum(jp.reduce(x, lambda a, b: a * b, axis=at, identity=1) ** 2))(x),
}


@pytest.mark.parametrize("sizes", ["n, m, 3", "n, n, m", "2*n, 4, n", "3, n, 1"])
@pytest.mark.parametrize("name", WITH_IDENTITY)
def test_lanes_of_symbolic_number_and_an_identity(name: str, sizes: str) -> None:
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape(sizes), jnp.float32)
    for at in (0, 2):
        f = jax.jit(lambda x, at=at: WITH_IDENTITY[name](x, at))
        exported = export(f)(x)
        for n, m in (3, 2), (1, 5):
            y = data(*(eval(size, {"n": n, "m": m}) for size in sizes.split(",")), seed=n) / np.float32(4)
            assert_close(exported.call(y), jax.tree.map(np.asarray, f(y)))


@pytest.mark.dear
def test_many_threads() -> None:
    """Compiled and run from eight Python threads at once."""

    def work(number: int) -> None:
        x = data(20_000 + number, seed=number)
        for k in range(3):
            got = jax.jit(lambda x, k=k: (jp.scan(x + k), jp.reduce(x, jnp.maximum), jp.scan(x.reshape(-1, 1) * k)))(x)
            assert_close(got, (np.cumsum(x + k, dtype=np.int32), x.max(), np.cumsum(x * k, dtype=np.int32)[:, None]))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
