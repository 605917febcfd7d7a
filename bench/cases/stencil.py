"""Stencils on 40 million cells: one step of many kinds, several steps, and gradients through them."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..contestant import Case, Inputs, Prepare, as_arrays, close, equal
from ..peers import arrays
from ..peers.native import native
from .scan.inputs import like, like_first, with_result

GROUP = "40 million"
STEPS = "several steps"
GRADIENTS = "gradients"

NINE = np.array([1, 8, 28, 56, 70, 56, 28, 8, 1], np.float32) / 256
FIVE = np.array([[0, 0.1, 0], [0.1, 0.6, 0.1], [0, 0.1, 0]], np.float32)
"""A step of heat: 0.1 times what the neighbours are warmer is added."""
FACE = np.array([[0, 0, 0], [0, 0.1, 0], [0, 0, 0]], np.float32)
SEVEN = np.stack([FACE, FIVE - 2 * FACE, FACE])

Shape = tuple[int, ...]


def cases(quick: bool) -> list[Case]:
    line, plane, cube = (20_000, (96, 130), (18, 20, 34)) if quick else (40_000_000, (6400, 6400), (342, 342, 342))
    half = (plane[0] // 2, plane[1] // 2)  # XLA remembers every step
    return [
        nine_points(line),
        moving_average(line),
        five_points_zeros(plane),
        five_points_wrap(plane),
        five_points_keep(plane),
        box(plane),
        largest(plane),
        convolution(plane),
        seven_points(cube),
        heat(plane, 10),
        heat(plane, 50),
        heat(cube, 10),
        life(plane, 20),
        gradient_of_one_step(plane),
        gradient_for_a_number(half, 10),
        gradient_for_a_field(half, 10),
    ]


def plots(report: dict[str, Any], directory: Path, stem: str) -> list[Path]:
    from .. import plots  # matplotlib is only needed here

    return list(plots.overview(report, directory, stem))


COPY = {"copy": arrays.numpy(lambda x, *rest: np.copyto(like(x), x))}


def case(group: str, name: str, shape: Shape, contestants: dict[str, Prepare], make: Any = None, **more: Any) -> Case:
    more = {"check": close(1e-5), "beside": COPY, **more}
    return Case(group, name, math.prod(shape), make or uniform(*shape), contestants, **more)


def uniform(*shape: int) -> Callable[[np.random.Generator], Inputs]:
    return lambda rng: {"x": rng.random(shape, np.float32)}


# --- what several cases need ----------------------------------------------------------------------------------------------


def total(terms: Any) -> Any:
    """Without the 0 that Python's sum begins with."""
    return functools.reduce(operator.add, terms)


def shifted(p: Any, radius: int, *offsets: int) -> Any:
    """What the cells that have all neighbours up to ``radius`` read at ``offsets``."""
    return p[tuple(slice(radius + o, n - radius + o) for o, n in zip(offsets, p.shape, strict=True))]


def around(p: Any) -> Any:
    """The sum of the neighbours along the axes, without the border."""
    unit = np.eye(p.ndim, dtype=int)
    return total(shifted(p, 1, *o) for axis in unit for o in (-axis, axis))


def warmed(p: Any) -> Any:
    """A step of heat, without the border."""
    inner = shifted(p, 1, *[0] * p.ndim)
    return inner + 0.1 * (around(p) - 2 * p.ndim * inner)


def heat_2d(t: Any) -> Any:
    return t[0, 0] + 0.1 * (t[-1, 0] + t[1, 0] + t[0, -1] + t[0, 1] - 4 * t[0, 0])


def heat_3d(t: Any) -> Any:
    near = t[-1, 0, 0] + t[1, 0, 0] + t[0, -1, 0] + t[0, 1, 0] + t[0, 0, -1] + t[0, 0, 1]
    return t[0, 0, 0] + 0.1 * (near - 6 * t[0, 0, 0])


def square(radius: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(-radius, radius + 1) for j in range(-radius, radius + 1)]


def slices(p: Any, radius: int) -> list[Any]:
    """What all cells read in the square around them, of a grid with a border that wide."""
    return [shifted(p, radius, *o) for o in square(radius)]


def convolved(x: Any, w: Any, padding: Any = "SAME") -> Any:
    """By lax.conv, which turns no weights around."""
    return lax.conv_general_dilated(x[None, None], w[None, None], (1,) * x.ndim, padding)[0, 0]


def scipy(fn: Callable[..., Any]) -> Prepare:
    """``fn(scipy.ndimage, *inputs, output)``."""

    def prepare(inputs: Inputs) -> Any:
        ndimage, (out,) = arrays.module("scipy.ndimage"), like_first(inputs)

        def call(*xs: Any) -> Any:
            fn(ndimage, *xs, out)
            return out

        return arrays.numpy(call)(inputs)

    return prepare


def cells_of_torch(fn: Callable[..., Any]) -> Prepare:
    """``fn(torch.nn.functional, grid, *others)``, the grid with a batch and a channel before its axes."""
    return arrays.torch(lambda t, x, *rest: fn(t.nn.functional, x[None, None], *rest)[0, 0])


# --- one step -------------------------------------------------------------------------------------------------------------


def nine_points(n: int) -> Case:
    def by_slices(p: jax.Array) -> Any:
        return total(w * p[k : k + n] for k, w in enumerate(NINE))

    contestants = {
        **native("nine_points", NINE.tolist(), outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.stencil(nine, x, boundary="constant")),
        "xla: pad": arrays.xla(lambda x: by_slices(jnp.pad(x, 4))),
        "xla: conv": arrays.xla(lambda x: jnp.convolve(x, NINE, "same")),
        "numpy": arrays.numpy(lambda x: np.convolve(x, NINE, "same")),
        "scipy": scipy(lambda ndimage, x, out: ndimage.correlate1d(x, NINE, output=out, mode="constant")),
        "torch": cells_of_torch(lambda f, x: f.conv1d(x, x.new_tensor(NINE)[None, None], padding=4)),
    }
    return case(GROUP, "nine points, 1-D, zeros beyond", (n,), contestants)


def nine(a: Any) -> Any:
    return total(w * a[k - 4] for k, w in enumerate(NINE))


def moving_average(n: int) -> Case:
    """Of 32 cells; the result is shorter."""
    size = 32

    def mean(a: Any) -> Any:
        return total(a[k] for k in range(size)) / size

    def window(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, np.float32(0), lax.add, (size,), (1,), "VALID") / size

    def scipy_valid(ndimage: Any, x: np.ndarray, out: np.ndarray) -> Any:
        return ndimage.uniform_filter1d(x, size, output=out)[size // 2 : n - size // 2 + 1]

    def shorter(inputs: Inputs) -> tuple[np.ndarray, ...]:
        return (like(inputs["x"])[: n - size + 1],)

    contestants = {
        **native("moving_average", outputs=shorter),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.stencil(mean, x, boundary="valid")),
        "xla: slices": arrays.xla(lambda x: total(x[k : n - size + 1 + k] for k in range(size)) / size),
        "xla: window": arrays.xla(window),
        "xla: conv": arrays.xla(lambda x: jnp.convolve(x, jnp.full(size, 1 / size, jnp.float32), "valid")),
        "numpy": arrays.numpy(lambda x: np.convolve(x, np.full(size, 1 / size, np.float32), "valid")),
        "scipy": arrays.numpy(lambda x, out: scipy_valid(arrays.module("scipy.ndimage"), x, out), with_result),
        "torch": cells_of_torch(lambda f, x: f.avg_pool1d(x, size, 1)),
    }
    return case(GROUP, "moving average of 32", (n,), contestants)


def five_points_zeros(shape: Shape) -> Case:
    contestants = {
        **native("five_points_zero", outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.stencil(heat_2d, x, boundary="constant")),
        "xla: pad": arrays.xla(lambda x: warmed(jnp.pad(x, 1))),
        "xla: conv": arrays.xla(lambda x: convolved(x, FIVE)),
        "numpy": arrays.numpy(lambda x: warmed(np.pad(x, 1))),
        "scipy": scipy(lambda ndimage, x, out: ndimage.correlate(x, FIVE, out, "constant")),
        "torch": cells_of_torch(lambda f, x: f.conv2d(x, x.new_tensor(FIVE)[None, None], padding=1)),
    }
    return case(GROUP, "five points, zeros beyond", shape, contestants)


def five_points_wrap(shape: Shape) -> Case:
    def rolled(xp: Any, x: Any) -> Any:
        return x + 0.1 * (xp.roll(x, 1, 0) + xp.roll(x, -1, 0) + xp.roll(x, 1, 1) + xp.roll(x, -1, 1) - 4 * x)

    contestants = {
        **native("five_points_wrap", outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.stencil(heat_2d, x, boundary="wrap")),
        "xla: roll": arrays.xla(lambda x: rolled(jnp, x)),
        "xla: pad": arrays.xla(lambda x: warmed(jnp.pad(x, 1, mode="wrap"))),
        "numpy": arrays.numpy(lambda x: rolled(np, x)),
        "scipy": scipy(lambda ndimage, x, out: ndimage.correlate(x, FIVE, out, "wrap")),
        "torch": arrays.torch(lambda t, x: rolled(t, x)),
    }
    return case(GROUP, "five points, around a torus", shape, contestants)


def five_points_keep(shape: Shape) -> Case:
    def numpy(x: np.ndarray, out: np.ndarray) -> np.ndarray:
        np.copyto(out, x)
        out[1:-1, 1:-1] = warmed(x)
        return out

    contestants = {
        **native("five_points_keep", outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.stencil(heat_2d, x, boundary="keep")),
        "xla: set": arrays.xla(set_inside),
        "xla: pad": arrays.xla(add_inside),
        "numpy": arrays.numpy(numpy, with_result),
        "numba": numba(1),
    }
    return case(GROUP, "five points, border kept", shape, contestants)


def set_inside(x: jax.Array) -> jax.Array:
    """A step of heat whose border stays, as most people write it."""
    return x.at[(slice(1, -1),) * x.ndim].set(warmed(x))


def add_inside(x: jax.Array) -> jax.Array:
    """The same as a sum of what changes."""
    inner = shifted(x, 1, *[0] * x.ndim)
    return x + jnp.pad(0.1 * (around(x) - 2 * x.ndim * inner), 1)


def box(shape: Shape) -> Case:
    """The mean of 5 x 5. NumPy and SciPy add along one axis, then along the other."""

    def mean(a: Any) -> Any:
        return total(a[o] for o in square(2)) / 25

    def window(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, np.float32(0), lax.add, (5, 5), (1, 1), "SAME") / 25

    def numpy(x: np.ndarray) -> np.ndarray:
        p = np.pad(x, 2)
        rows = total(p[k : k + x.shape[0]] for k in range(5))
        return total(rows[:, k : k + x.shape[1]] for k in range(5)) / 25

    contestants = {
        **native("box", outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.stencil(mean, x, boundary="constant")),
        "xla: pad": arrays.xla(lambda x: total(slices(jnp.pad(x, 2), 2)) / 25),
        "xla: window": arrays.xla(window),
        "xla: conv": arrays.xla(lambda x: convolved(x, jnp.full((5, 5), 1 / 25))),
        "numpy": arrays.numpy(numpy),
        "scipy": scipy(lambda ndimage, x, out: ndimage.uniform_filter(x, 5, out, "constant")),
        "torch": cells_of_torch(lambda f, x: f.avg_pool2d(x, 5, 1, 2)),
    }
    return case(GROUP, "mean of 5 × 5", shape, contestants)


def largest(shape: Shape) -> Case:
    """What is nearest beyond the border is inside the window as well."""

    def most(xp: Any, terms: Any) -> Any:
        return functools.reduce(xp.maximum, terms)

    def numpy(x: np.ndarray) -> np.ndarray:
        p = np.pad(x, 2, mode="edge")
        rows = most(np, (p[k : k + x.shape[0]] for k in range(5)))
        return most(np, (rows[:, k : k + x.shape[1]] for k in range(5)))

    contestants = {
        **native("largest", outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.stencil(lambda a: most(jnp, (a[o] for o in square(2))), x)),
        "xla: pad": arrays.xla(lambda x: most(jnp, slices(jnp.pad(x, 2, mode="edge"), 2))),
        "xla: window": arrays.xla(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (5, 5), (1, 1), "SAME")),
        "numpy": arrays.numpy(numpy),
        "scipy": scipy(lambda ndimage, x, out: ndimage.maximum_filter(x, 5, output=out, mode="nearest")),
        "torch": cells_of_torch(lambda f, x: f.max_pool2d(x, 5, 1, 2)),
    }
    return case(GROUP, "maximum of 5 × 5", shape, contestants, check=equal)


def convolution(shape: Shape) -> Case:
    """Its weights are an argument."""

    def make(rng: np.random.Generator) -> Inputs:
        return {"x": rng.random(shape, np.float32), "w": rng.standard_normal((3, 3), np.float32)}

    def weighted(p: Any, w: Any) -> Any:
        return total(w[i + 1, j + 1] * shifted(p, 1, i, j) for i, j in square(1))

    def ours(jp: Any, x: jax.Array, w: jax.Array) -> Any:
        return jp.stencil(lambda a: total(w[i + 1, j + 1] * a[i, j] for i, j in square(1)), x, boundary="constant")

    contestants = {
        **native("convolve", outputs=like_first),
        "jaxprims": arrays.jaxprims(ours),
        "xla: conv": arrays.xla(convolved),
        "xla: pad": arrays.xla(lambda x, w: weighted(jnp.pad(x, 1), w)),
        "numpy": arrays.numpy(lambda x, w: weighted(np.pad(x, 1), w)),
        "scipy": scipy(lambda ndimage, x, w, out: ndimage.correlate(x, w, out, "constant")),
        "torch": cells_of_torch(lambda f, x, w: f.conv2d(x, w[None, None], padding=1)),
    }
    return case(GROUP, "convolution of 3 × 3", shape, contestants, make)


def seven_points(shape: Shape) -> Case:
    contestants = {
        **native("seven_points", outputs=like_first),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.stencil(heat_3d, x, boundary="constant")),
        "xla: pad": arrays.xla(lambda x: warmed(jnp.pad(x, 1))),
        "xla: conv": arrays.xla(lambda x: convolved(x, SEVEN)),
        "numpy": arrays.numpy(lambda x: warmed(np.pad(x, 1))),
        "scipy": scipy(lambda ndimage, x, out: ndimage.correlate(x, SEVEN, out, "constant")),
        "torch": cells_of_torch(lambda f, x: f.conv3d(x, x.new_tensor(SEVEN)[None, None], padding=1)),
    }
    return case(GROUP, "seven points, 3-D, zeros beyond", shape, contestants)


# --- several steps ----------------------------------------------------------------------------------------------------------


def looped(step: Callable[..., Any], steps: int) -> Callable[..., Any]:
    return lambda x, *rest: lax.fori_loop(0, steps, lambda _, t: step(t, *rest), x)


def two_buffers(name: str, steps: int) -> dict[str, Prepare]:
    """The C++ and a second array for it, which is no part of the answer."""

    def outputs(inputs: Inputs) -> tuple[np.ndarray, ...]:
        return tuple(like(inputs["x"], k) for k in range(2))

    return {n: answered_by_first(p) for n, p in native(name, steps, outputs=outputs).items()}


def answered_by_first(prepare: Prepare) -> Prepare:
    def prepared(inputs: Inputs) -> Any:
        return dataclasses.replace(prepare(inputs), fetch=lambda r: as_arrays(r[0]))

    return prepared


def heat(shape: Shape, steps: int) -> Case:
    """The border is kept."""
    rank = len(shape)
    step = heat_2d if rank == 2 else heat_3d

    def numpy(x: np.ndarray, now: np.ndarray, then: np.ndarray) -> np.ndarray:
        np.copyto(now, x)
        np.copyto(then, x)
        for _ in range(steps):
            then[(slice(1, -1),) * rank] = warmed(now)
            now, then = then, now
        return now

    contestants = {
        **two_buffers(f"heat_{rank}d", steps),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.stencil(step, x, boundary="keep", steps=steps)),
        "xla: set": arrays.xla(looped(set_inside, steps)),
        "xla: pad": arrays.xla(looped(add_inside, steps)),
        "numpy": arrays.numpy(numpy, lambda x: (x, like(x, 0), like(x, 1))),
        **({"numba": numba(steps)} if rank == 2 else {}),
    }
    return case(STEPS, f"heat, {rank}-D, {steps} steps", shape, contestants, check=close(1e-4))


def numba(steps: int) -> Prepare:
    """A kernel by @stencil, in a parallel loop of steps over two buffers whose borders are the input's."""

    def prepare(inputs: Inputs) -> Any:
        library = arrays.module("numba")
        library.set_num_threads(arrays.threads())
        kernel = library.stencil(heat_2d)

        @library.njit(parallel=True)
        def run(x: Any, one: Any, other: Any) -> Any:
            kernel(x, out=one)
            for _ in range(steps - 1):
                kernel(one, out=other)
                one, other = other, one
            return one

        (x,) = inputs.values()
        buffers = [like(x, 0), like(x, 1)]

        def call(x: np.ndarray) -> Any:
            for b in buffers:  # which others have written to
                b[[0, -1]], b[:, [0, -1]] = x[[0, -1]], x[:, [0, -1]]
            return run(x, *buffers)

        return arrays.numpy(call)(inputs)

    return prepare


def life(shape: Shape, steps: int) -> Case:
    """Conway's, of one byte a cell, around a torus."""
    others = [o for o in square(1) if o != (0, 0)]

    def lives(near: Any, alive: Any) -> Any:
        return (near == 3) | ((near == 2) & (alive == 1))

    def ours(c: Any) -> Any:
        return lives(total(c[o] for o in others), c[0, 0]).astype(jnp.uint8)

    def rolled(xp: Any, x: Any) -> Any:
        return lives(total(xp.roll(x, o, (0, 1)) for o in others), x).astype(np.uint8)

    def padded(x: jax.Array) -> jax.Array:
        p = jnp.pad(x, 1, mode="wrap")
        return lives(total(shifted(p, 1, *o) for o in others), x).astype(jnp.uint8)

    def numpy(x: np.ndarray) -> np.ndarray:
        for _ in range(steps):
            x = rolled(np, x)
        return x

    contestants = {
        **two_buffers("life", steps),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.stencil(ours, x, boundary="wrap", steps=steps)),
        "xla: roll": arrays.xla(looped(functools.partial(rolled, jnp), steps)),
        "xla: pad": arrays.xla(looped(padded, steps)),
        "numpy": arrays.numpy(numpy),
    }
    make = lambda rng: {"x": rng.integers(0, 2, shape, np.uint8)}  # noqa: E731
    return case(STEPS, f"life, {steps} steps", shape, contestants, make, check=equal)


# --- gradients --------------------------------------------------------------------------------------------------------------


def gradient_of_one_step(shape: Shape) -> Case:
    """The sum of squares of a step that is not linear, and its gradient."""

    def loss(step: Callable[..., Any]) -> Callable[..., Any]:
        return jax.value_and_grad(lambda x: jnp.sum(step(x) ** 2))

    def burns(here: Any, near: Any) -> Any:
        return here + 0.1 * (near - 4 * here) + 0.2 * here * here * (1 - here)

    def ours(t: Any) -> Any:
        return burns(t[0, 0], t[-1, 0] + t[1, 0] + t[0, -1] + t[0, 1])

    def rolled(x: jax.Array) -> jax.Array:
        return burns(x, jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) + jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1))

    contestants = {
        "jaxprims": arrays.jaxprims(lambda jp, x: loss(lambda x: jp.stencil(ours, x, boundary="wrap"))(x)),
        "xla: roll": arrays.xla(loss(rolled)),
        "xla: pad": arrays.xla(loss(lambda x: burns(x, around(jnp.pad(x, 1, mode="wrap"))))),
    }
    return case(GRADIENTS, "of one step", shape, contestants, check=close(1e-3))


def conducted(x: jax.Array, d: jax.Array) -> jax.Array:
    """A step of heat, the border kept; ``d`` is a number or a field."""
    inside = d[1:-1, 1:-1] if d.ndim else d
    return x.at[1:-1, 1:-1].add(inside * (around(x) - 4 * x[1:-1, 1:-1]))


def conducted_padded(x: jax.Array, d: jax.Array) -> jax.Array:
    return x + d * jnp.pad(around(x) - 4 * x[1:-1, 1:-1], 1)


def gradient_through(ours: Callable[..., Any], name: str, shape: Shape, diffusivity: Shape, steps: int) -> Case:
    """How far the end is from a wanted one, and its gradient for the diffusivity."""

    def make(rng: np.random.Generator) -> Inputs:
        d = np.asarray(rng.uniform(0.05, 0.2, diffusivity), np.float32)
        return {"x": rng.random(shape, np.float32), "wanted": rng.random(shape, np.float32), "d": d}

    def gradient(end: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, wanted, d: jax.value_and_grad(lambda d: jnp.mean((end(x, d) - wanted) ** 2))(d)

    contestants = {
        "jaxprims": arrays.jaxprims(lambda jp, *args: gradient(functools.partial(ours, jp))(*args)),
        "xla: set": arrays.xla(gradient(looped(conducted, steps))),
        "xla: pad": arrays.xla(gradient(looped(conducted_padded, steps))),
    }
    return case(GRADIENTS, name, shape, contestants, make, check=close(1e-3))


def gradient_for_a_number(shape: Shape, steps: int) -> Case:
    def ours(jp: Any, x: jax.Array, d: jax.Array) -> Any:
        heat = lambda t: t[0, 0] + d * (t[-1, 0] + t[1, 0] + t[0, -1] + t[0, 1] - 4 * t[0, 0])  # noqa: E731
        return jp.stencil(heat, x, boundary="keep", steps=steps)

    return gradient_through(ours, f"for a captured number, {steps} steps of a quarter", shape, (), steps)


def gradient_for_a_field(shape: Shape, steps: int) -> Case:
    def ours(jp: Any, x: jax.Array, d: jax.Array) -> Any:
        heat = lambda t, d: t[0, 0] + d[0, 0] * (t[-1, 0] + t[1, 0] + t[0, -1] + t[0, 1] - 4 * t[0, 0])  # noqa: E731
        return jp.stencil(heat, x, boundary="keep", steps=steps, constants=d)

    return gradient_through(ours, f"for a field, {steps} steps of a quarter", shape, shape, steps)
