"""How well does each place conduct heat? Learned from a few pictures of the temperature, by gradient through 200 steps.

A plate conducts heat well in some places and badly in others. Three times it is heated somewhere else, and photographed after 50,
100, 150 and 200 steps, with some noise. The diffusivity of every cell is a parameter: ``jax.grad`` goes back through all steps to
the array of ``constants``, and Adam follows it.

The picture shows a temperature at the end, a blur in which no shape can be seen; the true diffusivity, a ring and a bar; the
learned one, which has both; and the loss, which ends at what the noise leaves.

Run it with ``python examples/heat_diffusivity.py``. It writes ``examples/out/heat_diffusivity.png``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

import jaxprims as jp

LEAST, MOST = 0.02, 0.24  # more than 1/4 would not be stable
SNAPSHOTS, BETWEEN = 4, 50
NOISE = 0.002


def conduct(heat: Any, diffusivity: Any) -> jax.Array:
    """Between neighbours flows their difference, times the mean of their diffusivities: what one loses the other gets."""
    flow = lambda o: (diffusivity[0, 0] + diffusivity[o]) / 2 * (heat[o] - heat[0, 0])  # noqa: E731
    return heat[0, 0] + sum(flow(o) for o in ((-1, 0), (1, 0), (0, -1), (0, 1)))


def snapshots(heat: ArrayLike, diffusivity: ArrayLike) -> jax.Array:
    """float32 [SNAPSHOTS, side, side]; nothing flows over the edge."""
    seen = []
    for _ in range(SNAPSHOTS):
        heat = jp.stencil(conduct, heat, boundary="edge", steps=BETWEEN, constants=diffusivity)
        seen.append(heat)
    return jnp.stack(seen)


def diffusivity(p: jax.Array) -> jax.Array:
    """Of a parameter for each cell, any number."""
    return LEAST + (MOST - LEAST) * jax.nn.sigmoid(p)


def learn(start: jax.Array, seen: jax.Array, rounds: int) -> tuple[jax.Array, list[float]]:
    """The diffusivity, and the loss in each round."""

    def loss(p: jax.Array) -> jax.Array:
        field = diffusivity(p)
        rough = jnp.mean(jnp.diff(p, axis=0) ** 2) + jnp.mean(jnp.diff(p, axis=1) ** 2)
        error = jax.vmap(snapshots, (0, None))(start, field) - seen
        return jnp.mean(error**2) / NOISE**2 + 0.1 * rough

    @jax.jit
    def adam(p: jax.Array, m: jax.Array, v: jax.Array, t: jax.Array) -> tuple[jax.Array, ...]:
        value, g = jax.value_and_grad(loss)(p)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        return value, p - 0.1 * m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.99**t)) + 1e-8), m, v

    p = m = v = jnp.zeros(start.shape[1:])
    losses = []
    for t in range(rounds):
        value, p, m, v = adam(p, m, v, jnp.float32(t + 1))
        losses.append(float(value))
    return diffusivity(p), losses


def plate(side: int) -> tuple[np.ndarray, np.ndarray]:
    """The true diffusivity: a ring and a bar; and three arrays of hot spots."""
    y, x = (np.indices((side, side)) + 0.5) / side
    ring = abs(np.hypot(x - 0.38, y - 0.4) - 0.2) < 0.07
    bar = (abs(x + y - 1.45) < 0.09) & (abs(x - y) < 0.55)
    true = np.where(ring | bar, 0.2, 0.06).astype(np.float32)
    rng = np.random.default_rng(0)
    spots = rng.random((3, 24, 2, 1, 1))
    heat = sum(np.exp(-((y - cy) ** 2 + (x - cx) ** 2) / 2 / 0.04**2) for cy, cx in spots.transpose(1, 2, 0, 3, 4))
    return true, np.asarray(heat, np.float32)


def check(heat: np.ndarray, field: np.ndarray) -> None:
    """No heat is lost, and the gradient is the slope in some direction."""
    end = jax.jit(snapshots)(heat, field)
    np.testing.assert_allclose(end.sum((1, 2)), heat.sum(), rtol=1e-3)
    along = np.random.default_rng(1).uniform(0, 0.01, field.shape).astype(np.float32)
    total = jax.jit(jax.value_and_grad(lambda d: jnp.mean(snapshots(heat, d) ** 2)))
    slope = (total(field + along)[0] - total(field - along)[0]) / 2
    np.testing.assert_allclose(jnp.vdot(total(field)[1], along), slope, rtol=0.02)


def draw(heat: np.ndarray, true: np.ndarray, found: np.ndarray, losses: list[float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(16, 4.2), layout="constrained")
    axes[0].imshow(heat, cmap="inferno")
    axes[0].set(title="temperature after 200 steps")
    for ax, field, title in ((axes[1], true, "true diffusivity"), (axes[2], found, "learned diffusivity")):
        image = ax.imshow(field, cmap="viridis", vmin=LEAST, vmax=MOST)
        ax.set(title=title)
    figure.colorbar(image, ax=axes[1:3], shrink=0.8)
    for ax in axes[:3]:
        ax.set(xticks=[], yticks=[])
    axes[3].semilogy(losses)
    axes[3].set(title="loss", xlabel="round", box_aspect=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(side: int = 64, rounds: int = 200, plot: Path | None = Path(__file__).parent / "out" / "heat_diffusivity.png") -> float:
    """Returns how well the learned diffusivity correlates with the true one."""
    true, heat = plate(side)
    check(heat[0], true)
    clean = np.asarray(jax.jit(jax.vmap(snapshots, (0, None)))(heat, true))
    seen = clean + np.random.default_rng(2).normal(0, NOISE, clean.shape).astype(np.float32)
    field, losses = learn(jnp.asarray(heat), jnp.asarray(seen), rounds)
    found = np.asarray(field)
    likeness = float(np.corrcoef(found.ravel(), true.ravel())[0, 1])
    print(f"{side} x {side} diffusivities from {seen.shape[0]} x {SNAPSHOTS} pictures, each of up to {SNAPSHOTS * BETWEEN} steps")
    print(f"the loss falls from {losses[0]:.3g} to {losses[-1]:.3g}; correlation with the true ones: {likeness:.3f}")
    if plot is not None:
        draw(clean[0, -1], true, found, losses, plot)
        print(plot)
    return likeness


if __name__ == "__main__":
    main()
