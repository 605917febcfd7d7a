"""A tank of water seen from above: waves come from the left, and pass through two gaps in a wall.

Two arrays, the height and how fast it rises, are stepped together; the wall is in a third one, which does not change: the square
of the waves' speed, 0 inside the wall. The tank's sides reflect, as ``boundary="symmetric"`` does.

The picture shows the train of waves before the wall, at it, and behind, where rings from both gaps meet: they leave rays of high
waves, and calm water between them. What was not let through runs back.

Run it with ``python examples/wave_tank.py``. It writes ``examples/out/wave_tank.png``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxprims as jp

SPEED = 0.5  # cells in a step
LENGTH = 16  # of a wave, in cells


def move(height: Any, rise: Any, speed: Any) -> tuple[Any, Any]:
    """A cell's height and rise after a step: it is drawn to the mean of its neighbours."""
    near = height[-1, 0] + height[1, 0] + height[0, -1] + height[0, 1]
    faster = rise[0, 0] + speed[0, 0] * (near - 4 * height[0, 0])
    return height[0, 0] + faster, faster


@functools.partial(jax.jit, static_argnums=3)
def waves(height: jax.Array, rise: jax.Array, speed: jax.Array, steps: int) -> tuple[jax.Array, jax.Array]:
    return tuple(jp.stencil(move, (height, rise), boundary="symmetric", steps=steps, constants=speed))


def tank(side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Height and rise of waves that go to the right, and the square of their speed."""
    y, x = np.indices((side, 3 * side // 2))
    wall = (abs(x - side // 2) < 3) & (abs(abs(y - side / 2) - side / 10) > 5)

    def train(x: np.ndarray) -> np.ndarray:
        return np.sin(2 * np.pi * x / LENGTH) * np.exp(-(((x - side / 4) / (side / 12)) ** 2))

    height, speed = train(x.astype(np.float64)), SPEED**2 * ~wall
    return height.astype(np.float32), (height - train(x + SPEED)).astype(np.float32), speed.astype(np.float32)


def energy(height: np.ndarray, rise: np.ndarray, speed: np.ndarray) -> float:
    """What steps keep, but for a little to and fro."""
    free = speed > 0
    bent = sum(np.sum(np.diff(height, axis=axis) ** 2, dtype=np.float64) for axis in (0, 1))
    return float(np.sum(rise[free] ** 2, dtype=np.float64) / SPEED**2 + bent)


def by_numpy(height: np.ndarray, rise: np.ndarray, speed: np.ndarray, steps: int) -> np.ndarray:
    for _ in range(steps):
        p = np.pad(height, 1, mode="symmetric")
        rise = rise + speed * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * height)
        height = height + rise
    return height


def draw(heights: dict[int, np.ndarray], speed: np.ndarray, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(heights), figsize=(5 * len(heights), 3.7), layout="constrained")
    for ax, (steps, height) in zip(axes, heights.items(), strict=True):
        ax.imshow(np.where(speed > 0, height, np.nan), cmap="RdBu", vmin=-0.5, vmax=0.5)
        ax.set(title=f"after {steps} steps", xticks=[], yticks=[], facecolor="#333333")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(
    side: int = 400,
    times: Sequence[int] = (0, 300, 750),
    plot: Path | None = Path(__file__).parent / "out" / "wave_tank.png",
) -> None:
    start = tank(side)
    np.testing.assert_allclose(waves(*start, 40)[0], by_numpy(*start, 40), atol=1e-4)
    states = {steps: [np.asarray(a) for a in waves(*start, steps)] for steps in times}
    energies = [energy(height, rise, start[2]) for height, rise in states.values()]
    np.testing.assert_allclose(energies, energies[0], rtol=0.05)
    behind = np.sum(states[times[-1]][0][:, side // 2 + 3 :] ** 2) / np.sum(start[0] ** 2)
    print(f"{side} x {3 * side // 2} cells, {times[-1]} steps: the energy stays within {np.ptp(energies) / energies[0]:.1%}")
    print(f"{behind:.1%} of the squared height has come through the gaps")
    if plot is not None:
        draw({steps: state[0] for steps, state in states.items()}, start[2], plot)
        print(plot)


if __name__ == "__main__":
    main()
