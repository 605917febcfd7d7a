"""A Kalman filter in parallel, as a scan of small matrices (Särkkä and García-Fernández, 2021), and its noise found by gradient.

An element (A, b, C, η, J) stands for a stretch of time: p(state after | state before, measurements) has mean A·state + b and
covariance C, and the measurements' likelihood for the state before has the information vector η and matrix J. Two stretches
combine by an operator that is associative but does not commute; a prefix's b and C are the filtered mean and covariance.

The state is a position and a velocity; the coordinates of a track in the plane are filtered independently, under ``vmap``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

Element = tuple[jax.Array, ...]

# NumPy's in the check, JAX's in the filter: Any, since to checkers a NumPy array plus one of JAX's is NumPy's.
MOVES: Any = np.array([[1, 1], [0, 1]], np.float32)  # constant velocity
SHAKES: Any = np.array([[1 / 3, 1 / 2], [1 / 2, 1]], np.float32)  # covariance of what white acceleration adds
SEES: Any = np.array([1, 0], np.float32)  # a measurement: the position
EYE: Any = np.eye(2, dtype=np.float32)
START = EYE  # covariance of the first state, of mean 0
BLUR = np.float32(4)  # variance of a measured position


def inverse(m: jax.Array) -> jax.Array:
    (a, b), (c, d) = m
    return jnp.array([[d, -b], [-c, a]]) / (a * d - b * c)


def combine(first: Element, then: Element) -> Element:
    (a, b, c, eta, j), (a2, b2, c2, eta2, j2) = first, then
    d = inverse(EYE + c @ j2)
    e, f = a2 @ d, a.T @ d.T
    return e @ a, e @ (b + c @ eta2) + b2, e @ c @ a2.T + c2, f @ (eta2 - j2 @ b) + eta, f @ j2 @ a + j


def kalman_filter(positions: jax.Array, drive: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Means [N, 2] and covariances [N, 2, 2] of the state given the positions measured so far, float32 [N]; ``drive`` is the
    variance of the acceleration. Elements are made in the kernel, from each position and its number."""

    def element(position: jax.Array, number: jax.Array) -> Element:
        moves = jnp.where(number == 0, 0, MOVES)
        noise = jnp.where(number == 0, START, drive * SHAKES)
        spread = SEES @ noise @ SEES + BLUR
        gain, seen = noise @ SEES / spread, SEES @ moves / spread
        rest = EYE - jnp.outer(gain, SEES)
        return rest @ moves, gain * position, rest @ noise, seen * position, jnp.outer(seen, SEES @ moves)

    _, mean, covariance, _, _ = jp.scan((positions, jp.positions), combine, map=element)
    return mean, covariance


def surprise(positions: jax.Array, drive: jax.Array) -> jax.Array:
    """Minus the log-likelihood of the positions (but the first) for each of them, up to a constant."""
    mean, covariance = kalman_filter(positions, drive)
    predicted = (mean @ MOVES.T)[:-1, 0]
    variance = (MOVES @ covariance @ MOVES.T + drive * SHAKES)[:-1, 0, 0] + BLUR
    return jnp.mean((positions[1:] - predicted) ** 2 / variance + jnp.log(variance)) / 2


def sequential_filter(positions: np.ndarray, drive: float) -> tuple[np.ndarray, np.ndarray]:
    """The same, measurement after measurement, in float64."""
    mean, covariance, out = np.zeros(2), START.astype(np.float64), []
    for k, z in enumerate(positions.astype(np.float64)):
        if k:
            mean, covariance = MOVES @ mean, MOVES @ covariance @ MOVES.T + drive * SHAKES
        gain = covariance[:, 0] / (covariance[0, 0] + BLUR)
        mean, covariance = mean + gain * (z - mean[0]), covariance - np.outer(gain, covariance[0])
        out.append((mean, covariance))
    return np.array([m for m, _ in out]), np.array([c for _, c in out])


def main() -> None:
    n, drive, rng = 3000, 0.05, np.random.default_rng(0)
    shakes = np.linalg.cholesky(drive * SHAKES) @ rng.normal(size=(2, n, 2, 1))
    state, track = np.zeros((2, 2)), []
    for k in range(n):
        state = state @ MOVES.T + shakes[:, k, :, 0]
        track.append(state[:, 0])
    true = np.array(track).T  # [2, N]
    measured: Any = (true + rng.normal(0, np.sqrt(BLUR), true.shape)).astype(np.float32)

    mean, covariance = jax.jit(jax.vmap(kalman_filter, (0, None)))(measured, jnp.float32(drive))
    for z, m, c in zip(measured, mean, covariance, strict=True):
        expected_mean, expected_covariance = sequential_filter(z, drive)
        np.testing.assert_allclose(m, expected_mean, rtol=1e-6, atol=2e-2)
        np.testing.assert_allclose(c, expected_covariance, rtol=1e-5, atol=1e-5)
    off = [np.sqrt(np.mean((x - true) ** 2)) for x in (measured, mean[:, :, 0])]
    print(f"{n} measured positions are off by {off[0]:.2f}, filtered ones by {off[1]:.2f}")

    loss = jax.jit(jax.value_and_grad(lambda log: jnp.mean(jax.vmap(surprise, (0, None))(measured, jnp.exp(log)))))
    log = jnp.float32(0)
    slope = (loss(log + 0.1)[0] - loss(log - 0.1)[0]) / 0.2
    np.testing.assert_allclose(loss(log)[1], slope, rtol=0.02)
    for _ in range(40):
        log = log - 3 * loss(log)[1]
    np.testing.assert_allclose(jnp.exp(log), drive, rtol=0.25)
    print(f"variance of the acceleration by maximum likelihood: {jnp.exp(log):.3f}, the true one: {drive}")


if __name__ == "__main__":
    main()
