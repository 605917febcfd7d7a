"""A z-buffer: of all points that fall on a pixel, the nearest one's depth, colour and number, in one pass.

The bins are pixels, in two dimensions; a bin holds several values of different types, and the operator keeps the nearer point's.
Ties go to the lower number, so that the operator commutes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

HEIGHT, WIDTH = 48, 64

Fragment = tuple[jax.Array, jax.Array, jax.Array]  # depth, colour, number


def nearer(a: Fragment, b: Fragment) -> Fragment:
    first = (a[0] < b[0]) | ((a[0] == b[0]) & (a[2] < b[2]))
    return jax.tree.map(lambda x, y: jnp.where(first, x, y), a, b)


@jax.jit
def render(points: jax.Array, colours: jax.Array) -> Fragment:
    """(float32, uint8, int32), each [HEIGHT, WIDTH]: what is seen of points [N, 3] in the unit cube, along z."""

    def f(point: jax.Array, colour: jax.Array, number: jax.Array) -> tuple[tuple[jax.Array, jax.Array], Fragment]:
        x, y, z = point
        return ((y * HEIGHT).astype(int), (x * WIDTH).astype(int)), (z, colour, number)

    far = (jnp.inf, 0, jnp.iinfo(jnp.int32).max)
    return jp.genhist(f, (points, colours, jp.positions), jp.Bins((HEIGHT, WIDTH), nearer, identity=far))


def main() -> None:
    rng = np.random.default_rng(0)
    points = rng.random((20_000, 3), dtype=np.float32)
    colours = rng.integers(0, 256, 20_000, dtype=np.uint8)
    depth, colour, number = render(points, colours)
    row, column = (points[:, 1] * HEIGHT).astype(int), (points[:, 0] * WIDTH).astype(int)
    expected = np.full((HEIGHT, WIDTH), np.inf, np.float32)
    np.minimum.at(expected, (row, column), points[:, 2])
    np.testing.assert_array_equal(depth, expected)
    hit = np.isfinite(expected)
    np.testing.assert_array_equal(points[number[hit], 2], expected[hit])
    np.testing.assert_array_equal(colours[number[hit]], colour[hit])
    print(f"{len(points)} points on {HEIGHT} x {WIDTH} pixels: {int((~hit).sum())} stay empty, mean {depth[hit].mean():.3f}")


if __name__ == "__main__":
    main()
