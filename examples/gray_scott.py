"""Gray and Scott's reaction and diffusion: two substances, of which one feeds on the other, make spots, stripes and mazes.

How fast one is fed and the other is removed differs from place to place: ``jp.positions`` gives each cell its coordinates, so the
picture is a map of patterns (Pearson, 1993). The feed grows downwards, the removal to the right. To the lower left the one that
feeds is everywhere, to the right it starves; between them one sees holes, mazes, worms, and spots that divide.

Run it with ``python examples/gray_scott.py``. It writes ``examples/out/gray_scott.png``.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

FEED, REMOVAL = (0.01, 0.08), (0.045, 0.068)  # from the first row to the last, from the first column to the last
SPREADS = (0.16, 0.08)

State = tuple[Any, Any]


def rates(rows: Any, columns: Any, side: int) -> State:
    """Of the cells' coordinates; around the torus they go up and down again."""
    up, right = (1 - abs(2 * x / side - 1) for x in (rows, columns))
    return FEED[0] + (FEED[1] - FEED[0]) * up, REMOVAL[0] + (REMOVAL[1] - REMOVAL[0]) * right


def spread(a: Any) -> Any:
    """What comes from the eight cells around: nearer ones give more."""
    near = a[-1, 0] + a[1, 0] + a[0, -1] + a[0, 1]
    far = a[-1, -1] + a[-1, 1] + a[1, -1] + a[1, 1]
    return 0.8 * near + 0.2 * far - 4 * a[0, 0]


def react(u: Any, v: Any, spread_u: Any, spread_v: Any, feed: Any, removal: Any) -> State:
    eaten = u * v * v
    return u + SPREADS[0] * spread_u - eaten + feed * (1 - u), v + SPREADS[1] * spread_v + eaten - (feed + removal) * v


@functools.partial(jax.jit, static_argnums=2)
def react_and_spread(u: jax.Array, v: jax.Array, steps: int) -> State:
    """Two float32 [side, side] after so many steps."""
    side = len(u)

    def cell(u: Any, v: Any, at: Any) -> State:
        row, column = (x.astype(jnp.float32) for x in at)
        return react(u[0, 0], v[0, 0], spread(u), spread(v), *rates(row, column, side))

    return tuple(jp.stencil(cell, (u, v, jp.positions), boundary="wrap", steps=steps))


def by_rolls(u: np.ndarray, v: np.ndarray, steps: int) -> State:
    class Rolled:
        def __init__(self, a: np.ndarray):
            self.a = a

        def __getitem__(self, offsets: Any) -> np.ndarray:
            return np.roll(self.a, [-o for o in offsets], (0, 1))

    rows, columns = np.indices(u.shape)
    feed, removal = rates(rows, columns, len(u))
    for _ in range(steps):
        u, v = react(u, v, spread(Rolled(u)), spread(Rolled(v)), feed, removal)
    return u, v


def drops(side: int) -> State:
    """Here and there a drop of the one that feeds."""
    v = np.zeros((side, side), np.float32)
    for i, j in np.random.default_rng(0).integers(0, side - 6, (side * side // 500, 2)):
        v[i : i + 6, j : j + 6] = 0.5
    return 1 - v, v


def draw(v: np.ndarray, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    half = len(v) // 2  # the rest is its mirror image, or nearly so
    figure, ax = plt.subplots(figsize=(8, 7.4), layout="constrained")
    ax.imshow(v[:half, :half], cmap="magma", extent=(*REMOVAL, FEED[1], FEED[0]), aspect="auto", interpolation="bilinear")
    ax.set(title="how much there is of the one that feeds", xlabel="removal", ylabel="feed")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(side: int = 1000, steps: int = 6000, plot: Path | None = Path(__file__).parent / "out" / "gray_scott.png") -> None:
    small = drops(60)
    for got, expected in zip(react_and_spread(*small, 50), by_rolls(*small, 50), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-4)
    u, v = react_and_spread(*drops(side), steps)
    assert bool(jnp.all((u >= 0) & (u <= 1) & (v >= 0) & (v <= 1)))
    print(f"{side} x {side} cells, {steps} steps: the one that feeds covers {float(jnp.mean(v > 0.1)):.0%}")
    if plot is not None:
        draw(np.asarray(v), plot)
        print(plot)


if __name__ == "__main__":
    main()
