"""``fuse``: stencils whose cells other kernels combine."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exports import export
from fused import same
from fused_stencils import BIG, MODES, RNG, everywhere, kept, kinds, laplacian, rolled

import jaxprims as jp

__all__ = ["everywhere"]  # fixtures that every test uses


@pytest.mark.cover(4)
@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda u: jnp.sum(laplacian(u) ** 2), ["reduce of stencil"]),
        (lambda u: jnp.linalg.norm(jnp.diff(u, axis=0)), ["reduce of stencil"]),
        (lambda u: (lambda r: (jnp.sum(r * r), jnp.max(jnp.abs(r))))(rolled(u) - u), ["reduce of stencil"]),
        (lambda u: jnp.cumsum(rolled(u), 0), ["scan", "stencil"]),
        (lambda u: jnp.zeros(8).at[jnp.clip((laplacian(u) * 2).astype(jnp.int32), 0, 7)].add(1.0), ["histogram", "stencil"]),
        (lambda u: jnp.argmax(rolled(u)), ["reduce"]),  # of what XLA makes: the position is that of its greatest
        (lambda u: jnp.cumsum(rolled(u).ravel()), ["scan", "stencil"]),  # of the grid as one row, which is a reshape
    ],
)
def test_what_is_combined_is_a_stencil(fn: Any, expected: list[str]) -> None:
    assert kinds(fn, BIG) == expected
    same(jax.jit(fn)(BIG), jp.fuse(fn)(BIG), 1e-4)


WIDE = jnp.asarray(RNG.normal(size=(5, 9000)).astype(np.float32))  # rows longer than a piece of a reduction
PADDED: list[tuple[Any, Any]] = [(lambda u, m=m: jnp.sum((jnp.pad(u, 2, mode=m)[4:, 1:-3] - u) ** 2), BIG) for m in MODES]


@pytest.mark.cover(3)
@pytest.mark.parametrize(
    ("fn", "x"),
    [
        *PADDED,
        (lambda u: jnp.max(jnp.abs(jnp.roll(u, 3, 1) - jnp.roll(u, -1, 0))), WIDE),
        (lambda u: (lambda d: (jnp.min(d), jnp.sum(d * d), jnp.prod(1 + d * 1e-3)))(u[1:, 2:] - u[:-1, :-2]), WIDE),
        (lambda u: jnp.sum(jnp.sqrt(jnp.diff(u, axis=0)[:, 1:] ** 2 + jnp.diff(u, axis=1)[1:] ** 2 + 1e-6)), BIG),
        (lambda u: sum(jnp.mean(g * g) for g in jnp.gradient(u)[:1]), BIG),
        (lambda u: jnp.sum(jnp.gradient(u)[0] ** 2 + jnp.gradient(u)[1] ** 2), BIG),
        (lambda u: jnp.sum((kept(u) - u) ** 2), BIG),
        (lambda u: jnp.sum((u[1:] - u[:-1]) ** 2 * jnp.arange(179.0)[:, None] * jnp.arange(250.0)), BIG),
        (lambda u: jnp.sum(u[:, 1:] - 2 * u[:, :-1], 1), WIDE),
        (lambda u: jnp.argmax(u[:, 1:] - u[:, :-1], 1), WIDE),
        (lambda x: jnp.argmin(jnp.abs(x[2:] - x[:-2])), WIDE.reshape(-1)),
        (lambda u: jnp.sum(jnp.diff(u.reshape(25, 40, 15, 3), axis=1) ** 2, (1, 2, 3)), WIDE.reshape(-1)),
        (lambda u: jnp.sum(jnp.diff(u.reshape(75, 200, 3), axis=1) ** 2), WIDE.reshape(-1)),
        (lambda u: jnp.sum((u[1:] - u[:-1]) ** 2), BIG.astype(jnp.bfloat16)),
        (lambda u: jnp.sum(u[1:] ^ u[:-1]), (BIG * 9).astype(jnp.int8)),
        (lambda u: jnp.any((u[1:] > 0) != (u[:-1] > 0)), BIG),
        (lambda u: jnp.sum((u[1:] - 1j * u[:-1]) ** 2), BIG.astype(jnp.complex64)),
    ],
)
def test_reductions_of_stencils(fn: Any, x: Any) -> None:
    assert set(kinds(fn, x)) == {"reduce of stencil"}
    same(jax.jit(fn)(x), jp.fuse(fn)(x), 1e-4)
    assert jax.tree.map(str, jp.fuse(fn)(x)) == jax.tree.map(str, jax.jit(jp.fuse(fn))(x))


def test_reductions_of_stencils_of_doubles(x64: None) -> None:
    x = jnp.asarray(np.asarray(BIG, np.float64))
    fn = lambda u: (jnp.sum((rolled(u) - u) ** 2), jnp.max(laplacian(u)))  # noqa: E731
    assert set(kinds(fn, x)) == {"reduce of stencil"}
    same(jax.jit(fn)(x), jp.fuse(fn)(x), 1e-13)


def energy(u: Any, scale: Any) -> Any:
    return jnp.sum((scale * rolled(u) - u) ** 2)


@pytest.mark.dear
def test_reductions_of_stencils_transformed() -> None:
    batch = jnp.stack([BIG, BIG[::-1], BIG * 2])
    assert kinds(jax.vmap(energy, (0, None)), batch, 3.0) == ["reduce of stencil"]
    plain = jax.jit(energy)
    same(jax.vmap(plain, (0, 0))(batch, jnp.arange(3.0)), jax.vmap(jp.fuse(energy), (0, 0))(batch, jnp.arange(3.0)), 1e-4)
    same(jax.vmap(plain, (0, None))(batch, 3.0), jax.jit(jax.vmap(jp.fuse(energy), (0, None)))(batch, 3.0), 1e-4)
    same(jax.jvp(plain, (BIG, 3.0), (BIG, 1.0)), jax.jvp(jp.fuse(energy), (BIG, 3.0), (BIG, 1.0)), 1e-4)
    same(jax.grad(plain, (0, 1))(BIG, 3.0), jax.jit(jax.grad(jp.fuse(energy), (0, 1)))(BIG, 3.0), 1e-4, 1e-3)
    twice = lambda f: jax.jvp(jax.grad(f), (BIG, 3.0), (BIG, 0.0))  # noqa: E731
    same(twice(plain), twice(jp.fuse(energy)), 1e-4, 1e-3)


def test_reductions_of_stencils_elsewhere() -> None:
    """On GPUs, and over several devices, the grid is written; on its way to another process nothing is lost."""
    fn = jax.jit(jp.fuse(energy))
    assert "jaxprims_stencil_reduce" in fn.lower(BIG, 3.0).as_text()
    for_gpus = fn.trace(BIG, 3.0).lower(lowering_platforms=("cuda",)).as_text()
    assert "jaxprims_stencil_reduce" not in for_gpus and "jaxprims_stencil" in for_gpus and "jaxprims_reduce" in for_gpus
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.device_put(BIG, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
    same(fn(BIG, 3.0), fn(sharded, 3.0), 1e-4)
    text = export(fn)(BIG, 3.0).serialize()
    same(fn(BIG, 3.0), jax.export.deserialize(text).call(BIG, 3.0), 1e-7)
    explained = jp.explain(fn)(BIG, 3.0)
    assert "180 x 250 cells" in str(explained) and "reduce_sum of a stencil" in str(explained)


def test_what_others_want_too_is_made_twice_or_written() -> None:
    def both(u: Any) -> Any:
        d = u[1:] - u[:-1]
        return jnp.sum(d * d), jnp.cumsum(d, 0)

    assert "reduce of stencil" in kinds(both, BIG)
    same(jax.jit(both)(BIG), jp.fuse(both)(BIG), 1e-4)

    def dear(u: Any) -> Any:
        r = jnp.exp(rolled(u))
        return jnp.sum(r), r

    assert kinds(dear, BIG) == ["reduce", "stencil"]
    same(jax.jit(dear)(BIG), jp.fuse(dear)(BIG), 1e-4)


def test_differences_of_few_numbers_stay_in_their_reduction() -> None:
    x = jnp.asarray(RNG.normal(size=(40_000, 4)).astype(np.float32))

    def lengths(x: Any) -> Any:
        return jnp.sum(jnp.sum(jnp.diff(x, axis=1) ** 2, 1) * x[:, 0])

    assert kinds(lengths, x) == ["reduce"]
    same(jax.jit(lengths)(x), jp.fuse(lengths)(x), 1e-4)


def test_gradients_of_energies() -> None:
    def energy(u: Any) -> Any:
        return jnp.sum(jnp.diff(u, axis=0) ** 2) + jnp.sum(jnp.diff(u, axis=1) ** 2)

    expected = jax.jit(jax.value_and_grad(energy))(BIG)
    same(expected, jax.jit(jax.value_and_grad(jp.fuse(energy)))(BIG), 1e-4)
    same(expected, jp.fuse(jax.value_and_grad(energy))(BIG), 1e-4)


def test_all_pairs_are_no_stencil() -> None:
    """XLA makes the distances of all pairs in the loop that sums them: nothing is written."""

    def energy(x: Any) -> Any:
        return 0.5 * jnp.sum(1 / (jnp.sum((x[:, None] - x[None]) ** 2, -1) + 0.5))

    x = jnp.asarray(np.random.default_rng(5).normal(size=(1800, 3)).astype(np.float32))
    assert "stencil" not in str(jp.explain(jp.fuse(energy))(x))
    plain, ours = (jax.jit(f).lower(x).compile().memory_analysis().temp_size_in_bytes for f in (energy, jp.fuse(energy)))
    assert ours <= plain + x[:, 0].nbytes  # a sum for each row
    np.testing.assert_allclose(jp.fuse(energy)(x), jax.jit(energy)(x), rtol=1e-5)
