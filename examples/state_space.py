"""A deep state-space model reads handwritten digits pixel by pixel, and is trained to classify them.

Each layer is a linear recurrent unit (Orvieto et al., 2023; S5 is a close relative): a complex state with a diagonal transition,
x[t] = a * x[t-1] + B u[t], between two matrices. A whole sequence is one ``jp.linear_recurrence`` along time, so is its gradient
(the same recurrence, reversed), and ``vmap`` makes a batch of them one kernel call.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

WIDTH, STATE, LAYERS, CLASSES, BATCH = 32, 32, 2, 10, 64
Params = dict[str, Any]


def initial(rng: np.random.Generator) -> Params:
    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[-2]), jnp.float32)

    def layer() -> Params:
        radius, phase = np.sqrt(rng.uniform(0.8, 0.998, STATE)), rng.uniform(0, np.pi / 2, STATE)
        eigenvalues = {"rate": jnp.float32(np.log(-np.log(radius))), "phase": jnp.float32(phase)}
        maps = {"b": normal(2, WIDTH, STATE), "c": normal(2, STATE, WIDTH), "gate": normal(WIDTH, 2 * WIDTH)}
        return {**eigenvalues, **maps, "skip": jnp.ones(WIDTH, jnp.float32)}

    return {"encode": normal(1, WIDTH), "layers": [layer() for _ in range(LAYERS)], "decode": normal(WIDTH, CLASSES)}


def unit(p: Params, u: jax.Array) -> jax.Array:
    """The linear recurrent unit on a sequence u [T, WIDTH]."""
    a = jnp.exp(jax.lax.complex(-jnp.exp(p["rate"]), p["phase"]))  # |a| < 1: stable, however it is trained
    b = jnp.sqrt(1 - jnp.abs(a) ** 2) * jax.lax.complex(u @ p["b"][0], u @ p["b"][1])
    x = jp.linear_recurrence(a, b)
    return x.real @ p["c"][0] - x.imag @ p["c"][1] + p["skip"] * u


def logits(p: Params, sequence: jax.Array) -> jax.Array:
    """[CLASSES] of one sequence [T]."""
    u = sequence[:, None] @ p["encode"]
    for layer in p["layers"]:
        value, gate = jnp.split(jax.nn.gelu(unit(layer, jax.nn.standardize(u))) @ layer["gate"], 2, axis=1)
        u = u + value * jax.nn.sigmoid(gate)
    return u.mean(0) @ p["decode"]


def loss(p: Params, x: jax.Array, labels: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(jax.vmap(logits, (None, 0))(p, x))
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], 1))


@jax.jit
def train(p: Params, m: Params, v: Params, t: jax.Array, rate: jax.Array, x: jax.Array, y: jax.Array) -> tuple[Params, ...]:
    """One step of Adam; m and v are the running means of the gradient and of its square."""
    g = jax.grad(loss)(p, x, y)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
    step = rate * jnp.sqrt(1 - 0.99**t) / (1 - 0.9**t)
    return jax.tree.map(lambda p, m, v: p - step * m / (jnp.sqrt(v) + 1e-8), p, m, v), m, v


def digits() -> tuple[np.ndarray, ...]:
    """1,797 digits of 8 x 8 pixels that come with scikit-learn: sequences [N, 64] and labels [N]; every fifth is for testing."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y, test = (x / 8 - 1).astype(np.float32), y.astype(np.int32), np.arange(len(y)) % 5 == 0
    return x[~test], y[~test], x[test], y[test]


def check(p: Params, u: jax.Array) -> None:
    """The unit against the recurrence itself, step by step."""
    a = np.exp(-np.exp(np.asarray(p["rate"])) + 1j * np.asarray(p["phase"]))
    x, expected = np.zeros(STATE), []
    for row in np.asarray(u):
        x = a * x + np.sqrt(1 - abs(a) ** 2) * (row @ (np.asarray(p["b"][0]) + 1j * np.asarray(p["b"][1])))
        expected.append((x @ (np.asarray(p["c"][0]) + 1j * np.asarray(p["c"][1]))).real + row * p["skip"])
    np.testing.assert_allclose(unit(p, u), expected, rtol=1e-3, atol=1e-4)


def main(epochs: int = 28) -> float:
    rng = np.random.default_rng(0)
    x, y, x_test, y_test = digits()
    p = initial(rng)
    check(p["layers"][0], jnp.asarray(rng.normal(size=(300, WIDTH)), jnp.float32))
    zeros = jax.tree.map(jnp.zeros_like, p)
    state, step, steps, start = (p, zeros, zeros), 0, epochs * (len(x) // BATCH), time.perf_counter()
    for _ in range(epochs):
        for batch in np.split(rng.permutation(len(x))[: len(x) // BATCH * BATCH], len(x) // BATCH):
            rate = 1e-2 * (1 + np.cos(np.pi * step / steps)) / 2
            step += 1
            state = train(*state, jnp.float32(step), jnp.float32(rate), x[batch], y[batch])
    classify = jax.jit(jax.vmap(functools.partial(logits, state[0])))
    accuracy = float(np.mean(np.argmax(classify(x_test), 1) == y_test))
    print(f"{step} steps on sequences of {x.shape[1]} pixels in {time.perf_counter() - start:.1f} s")
    print(f"{accuracy:.1%} of {len(y_test)} unseen digits are recognised")
    return accuracy


if __name__ == "__main__":
    main()
