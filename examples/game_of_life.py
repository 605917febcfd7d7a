"""Conway's game of life around a torus, a byte for each cell, with an afterglow: 255 is alive, what is less died some steps ago.

The picture shows a random soup after 0, 100 and 2000 steps: bright cells live, and a glow is left where others were. In the end
most of the world is blocks and blinkers, which are small and have no glow; a few places still boil.

Run it with ``python examples/game_of_life.py``. It writes ``examples/out/game_of_life.png``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

AROUND = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
GLIDER = np.array([[0, 1, 0], [0, 0, 1], [1, 1, 1]], np.uint8) * 255


def cell(world: Any) -> jax.Array:
    here = world[0, 0]
    near = sum((world[o] == 255).astype(jnp.uint8) for o in AROUND)
    lives = (near == 3) | ((near == 2) & (here == 255))
    return jnp.where(lives, 255, here - here // 16 - (here > 0)).astype(jnp.uint8)


@functools.partial(jax.jit, static_argnums=1)
def life(world: jax.Array, steps: int) -> jax.Array:
    """uint8 [height, width] after so many steps."""
    return jp.stencil(cell, world, boundary="wrap", steps=steps)


def check() -> None:
    """A glider moves by a cell in four steps, so that it is back after four times the side; and a soup as by NumPy."""
    world = np.zeros((32, 32), np.uint8)
    world[4:7, 4:7] = GLIDER
    np.testing.assert_array_equal(np.asarray(life(world, 4 * 32)) == 255, world == 255)
    soup = np.random.default_rng(1).integers(0, 2, (40, 50), np.uint8) == 1
    expected = soup
    for _ in range(20):
        near = sum(np.roll(expected, o, (0, 1)).astype(int) for o in AROUND)
        expected = (near == 3) | ((near == 2) & expected)
    np.testing.assert_array_equal(np.asarray(life(np.uint8(255) * soup, 20)) == 255, expected)


def draw(worlds: dict[int, np.ndarray], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(worlds), figsize=(4 * len(worlds), 4.2), layout="constrained")
    for ax, (steps, world) in zip(axes, worlds.items(), strict=True):
        ax.imshow(world, cmap="magma", vmin=0, vmax=255, interpolation="nearest")
        ax.set(title=f"after {steps} steps", xticks=[], yticks=[])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(
    side: int = 400,
    times: Sequence[int] = (0, 100, 2000),
    plot: Path | None = Path(__file__).parent / "out" / "game_of_life.png",
) -> None:
    check()
    soup = np.uint8(255) * (np.random.default_rng(0).random((side, side)) < 0.3)
    worlds = {steps: np.asarray(life(soup, steps)) for steps in times}
    alive = ", ".join(f"{np.mean(world == 255):.1%} after {steps}" for steps, world in worlds.items())
    print(f"of {side} x {side} cells live {alive} steps")
    if plot is not None:
        draw(worlds, plot)
        print(plot)


if __name__ == "__main__":
    main()
