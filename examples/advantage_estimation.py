"""Generalized advantage estimation (Schulman et al., 2015): a linear recurrence backwards in time; and the best λ, by gradient.

How much better an action was than expected is A[t] = δ[t] + γ λ (1 - done[t]) A[t+1], with δ[t] the error of one step; λ trades
the bias of the estimated values for variance. Here the true advantages are known, so gradient descent through the recurrence
finds the λ whose estimates come nearest to them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

STATES, STEPS, RUNS, GAMMA, ENDS = 20, 2000, 32, 0.97, 0.02


@jax.jit
def advantages(rewards: jax.Array, values: jax.Array, done: jax.Array, decay: jax.Array) -> jax.Array:
    """[T, runs], from rewards and ends of episodes [T, runs], estimated values [T + 1, runs] and λ."""
    goes_on = GAMMA * (1 - done)
    errors = rewards + goes_on * values[1:] - values[:-1]
    return jp.linear_recurrence(decay * goes_on, errors, reverse=True)


def advantages_by_loop(rewards: np.ndarray, values: np.ndarray, done: np.ndarray, decay: float) -> np.ndarray:
    out, following = np.zeros_like(rewards), np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        error = rewards[t] + GAMMA * (1 - done[t]) * values[t + 1] - values[t]
        following = out[t] = error + GAMMA * decay * (1 - done[t]) * following
    return out


def random_walks(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Rewards, states [T + 1], ends, all [T, runs], of walks on a ring whose states pay; the true values of the states; and the
    true advantages of the steps taken."""
    pays = rng.normal(size=STATES)
    neighbours = (np.roll(np.eye(STATES), 1, 1) + np.roll(np.eye(STATES), -1, 1)) / 2
    true = np.linalg.solve(np.eye(STATES) - GAMMA * (1 - ENDS) * neighbours, neighbours @ pays)
    steps, starts = rng.choice([-1, 1], (STEPS, RUNS)), rng.integers(0, STATES, RUNS)
    states = np.concatenate([starts[None], starts + np.cumsum(steps, 0)]) % STATES
    done = (rng.random((STEPS, RUNS)) < ENDS).astype(np.float64)
    expected = pays[states[1:]] + GAMMA * (1 - ENDS) * true[states[1:]] - true[states[:-1]]
    return pays[states[1:]], states, done, true, expected


def main() -> None:
    rng = np.random.default_rng(0)
    rewards, states, done, true, expected = random_walks(rng)
    values = (true + rng.normal(0, 2.0, STATES))[states]  # what a critic has learnt so far
    loop = advantages_by_loop(rewards, values, done, 0.9)
    np.testing.assert_allclose(advantages(*map(jnp.float32, (rewards, values, done, 0.9))), loop, rtol=1e-3, atol=1e-4)
    print(f"advantages of {rewards.size} steps, {int(done.sum())} episodes, as the loop's")

    def error(decay: jax.Array) -> jax.Array:
        return jnp.mean((advantages(*map(jnp.float32, (rewards, values, done)), decay) - expected.astype(np.float32)) ** 2)

    slope, decay = jax.jit(jax.grad(error)), jnp.float32(0.9)
    near = [np.mean((advantages_by_loop(rewards, values, done, 0.9 + h) - expected) ** 2) for h in (-1e-4, 1e-4)]
    np.testing.assert_allclose(slope(decay), (near[1] - near[0]) / 2e-4, rtol=1e-3)
    for _ in range(60):
        decay = jnp.clip(decay - 0.02 * slope(decay), 0, 1)
    grid = np.linspace(0, 1, 21)
    best = grid[np.argmin([np.mean((advantages_by_loop(rewards, values, done, g) - expected) ** 2) for g in grid])]
    np.testing.assert_allclose(decay, best, atol=0.04)
    at_zero, at_one, at_best = (error(jnp.float32(d)) for d in (0, 1, decay))
    print(f"squared error {at_zero:.2f} at λ = 0, {at_one:.2f} at 1, {at_best:.2f} at {decay:.3f}, found by descent")


if __name__ == "__main__":
    main()
