"""``fuse``: stencils of arrays that have fewer axes than the grid, or one cell along some."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from fused import same
from fused_stencils import CUBE, U, check, everywhere, inside
from jax import lax

import jaxprims as jp

__all__ = ["everywhere"]  # fixtures that every test uses


def test_arrays_with_fewer_axes() -> None:
    row, column = U[3], U[:, 4]
    check(lambda u, r: jnp.roll(u, 1, 0) * r + u, U, row)
    check(lambda u, c: (jnp.roll(u, 1, 0) + u) * c[:, None], U, column)
    check(lambda u: (jnp.roll(u, 1, 1) + u) * u[:, 3:4] - u[5, 6], U)
    check(lambda u, c: jnp.roll(u, 1, 1) * jnp.roll(c, 1)[:, None] - u * c[:, None], U, column, count=1)


def test_arrays_of_one_cell_along_an_axis() -> None:
    """Rows that read them are made together, whatever is read beyond."""
    w, planes, wide = CUBE[0, 0], CUBE[:, :1], jnp.tile(CUBE, (1, 3, 1))
    for shift in (1, -2):
        check(lambda a, w, k=shift: jnp.roll(a * w, k, 1) - jnp.roll(a, k, 0) * w, CUBE, w)
        check(lambda a, p, k=shift: jnp.roll(a, k, 1) * p + jnp.roll(a * p, (k, 1), (0, 2)), wide, planes)
    check(lambda a, w: jnp.pad(a * w, ((1, 0), (2, 0), (0, 0)), mode="edge")[:-1, :-2] + a * w, wide, w)
    check(lambda a, w: jnp.pad(a * w, ((1, 0), (2, 0), (0, 0)), constant_values=3)[:-1, :-2] + a * w, wide, w)
    steps = lambda a, w: lax.fori_loop(0, 4, lambda _, a: jnp.roll(a, 1, 1) * w + jnp.roll(a, 1, 0), a)  # noqa: E731
    assert any("stencil" in line for line in inside(steps, wide, w))
    same(jax.jit(steps)(wide, w), jp.fuse(steps)(wide, w), 1e-5)


def test_borders_of_small_arrays_are_written() -> None:
    def weighted(a: Any, w: Any) -> Any:
        return sum(jnp.roll(a, k, 1) * jnp.roll(w, k) for k in range(1, 4))

    found = check(weighted, jnp.tile(CUBE, (1, 3, 1)), CUBE[0, 0])
    assert len(found.leaves) == 4 and found.layout.beyond(2) == 0
    found = check(weighted, CUBE[:1, :1], CUBE[0, 0])  # of a grid that is as small
    assert len(found.leaves) == 2
