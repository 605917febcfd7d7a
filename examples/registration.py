"""Image registration by mutual information (Henriksen et al. 2020, V-D 4): find the shift between a photograph and a copy of it.

The copy is shifted by a fraction of a pixel, and is a noisy negative: its grey levels cannot be subtracted from the photograph's,
but they still tell about each other. Mutual information says how much. It is a function of the joint histogram, into which every
pair of pixels makes 16 weighted updates (cubic B-spline weights, 4 for each image). The weights make it differentiable:
``jax.grad`` goes through the histogram and the interpolation of the copy to the shift, which climbs until they are registered.

Run it with ``make demo``, or ``python examples/registration.py``. It writes ``examples/out/registration.png``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import ndimage

import jaxprims as jp

LEVELS = 50  # of grey; 53 x 53 bins, as in the paper's table III
BINS = LEVELS + 3
MARGIN = 32  # pixels: the largest shift looked for, about
TRUE_SHIFT = (9.37, -13.64)


def weights(t: jax.Array) -> list[jax.Array]:
    """The four cubic B-spline weights at t in [0, 1): non-negative, of sum 1, twice differentiable from one t to the next."""
    u = 1 - t
    return [u * u * u / 6, (3 * t * t * (t - 2) + 4) / 6, (3 * u * u * (u - 2) + 4) / 6, t * t * t / 6]


# --- histograms ----------------------------------------------------------------------------------------------------------------


def updates(a: jax.Array, b: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """The 16 updates that one pair of grey levels in [0, 1] makes: indices (row, column) and weights."""
    x, y = a * (LEVELS - 1), b * (LEVELS - 1)
    i, j = jnp.floor(x), jnp.floor(y)
    row, column = (k.astype(jnp.int32) + np.arange(4, dtype=np.int32) for k in (i, j))
    weight = jnp.array([[v * w for w in weights(y - j)] for v in weights(x - i)])
    return (jnp.repeat(row, 4), jnp.tile(column, 4)), weight.ravel()


def joint_histogram(a: jax.Array, b: jax.Array) -> jax.Array:
    """The joint B-spline histogram of two images, float32 [BINS, BINS]. Neither indices nor weights are written to memory."""
    return jp.genhist(updates, (a.ravel(), b.ravel()), jp.Bins((BINS, BINS)))


def plain_joint_histogram(a: jax.Array, b: jax.Array) -> jax.Array:
    """The same in plain JAX: all updates in memory, and a scatter."""
    index, weight = jax.vmap(updates)(a.ravel(), b.ravel())
    return jnp.zeros((BINS, BINS), weight.dtype).at[index].add(weight)


def mutual_information(joint: jax.Array) -> jax.Array:
    """H(a) + H(b) - H(a, b), in bits."""

    def entropy(p: jax.Array) -> jax.Array:
        return -jnp.sum(p * jnp.log2(jnp.where(p > 0, p, 1)))

    p = joint / jnp.sum(joint)
    return entropy(jnp.sum(p, 0)) + entropy(jnp.sum(p, 1)) - entropy(p)


# --- images --------------------------------------------------------------------------------------------------------------------


def photographs() -> list[np.ndarray]:
    """Two photographs that come with scikit-learn, 427 x 640, as grey levels in [0, 1]."""
    from sklearn.datasets import load_sample_images

    return [(image @ [0.299, 0.587, 0.114] / 255).astype(np.float32) for image in load_sample_images().images]


def shifted_negative(image: np.ndarray, shift: Sequence[float]) -> np.ndarray:
    """``image`` moved by ``shift`` pixels, then as a negative with another gamma, and with noise."""
    moved = ndimage.shift(image.astype(np.float64), shift, order=5, mode="mirror")
    noise = np.random.default_rng(0).normal(0, 0.02, image.shape)
    return np.clip(1 - np.clip(moved, 0, 1) ** 0.7 + noise, 0, 1).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Level:
    """The two images at one scale of a pyramid: the fixed one without its margin, and the copy's B-spline coefficients."""

    scale: int
    fixed: jax.Array
    coefficients: jax.Array

    @staticmethod
    def make(image: np.ndarray, copy: np.ndarray, scale: int) -> Level:
        a, b = (ndimage.gaussian_filter(x, scale / 2)[::scale, ::scale] if scale > 1 else x for x in (image, copy))
        margin = MARGIN // scale
        fixed, coefficients = a[margin:-margin, margin:-margin], ndimage.spline_filter(b).astype(np.float32)
        return Level(scale, jnp.asarray(fixed), jnp.asarray(coefficients))

    def moved(self, shift: jax.Array) -> jax.Array:
        """The copy, shifted back by ``shift`` (in pixels of the whole image) by cubic B-spline interpolation."""
        whole = jnp.floor(shift / self.scale)
        part = shift / self.scale - whole
        height, width = self.fixed.shape
        start = whole.astype(jnp.int32) + (MARGIN // self.scale - 1)
        x: Any = jax.lax.dynamic_slice(self.coefficients, (start[0], start[1]), (height + 3, width + 3))
        x = sum(w * x[k : k + height] for k, w in enumerate(weights(part[0])))
        x = sum(w * x[:, k : k + width] for k, w in enumerate(weights(part[1])))
        return jnp.clip(x, 0, 1)

    def information(self, shift: jax.Array, histogram: Callable[..., jax.Array] = joint_histogram) -> jax.Array:
        """The mutual information of the photograph and the copy moved back by ``shift``."""
        return mutual_information(histogram(self.fixed, self.moved(shift)))


# --- registration --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Step:
    """Where the search was."""

    scale: int
    shift: np.ndarray


def climb(level: Level, shift: np.ndarray, step: float, tolerance: float) -> list[Step]:
    """Gradient ascent: a step along the gradient, longer after a success, halved where it does not go up."""
    objective = jax.jit(jax.value_and_grad(level.information))
    value, gradient = objective(jnp.asarray(shift))
    steps = []
    while step > tolerance:
        steps.append(Step(level.scale, shift))
        trial = (shift + step * np.asarray(gradient) / np.linalg.norm(gradient)).astype(np.float32)
        trial_value, trial_gradient = objective(jnp.asarray(trial))
        if trial_value > value:
            shift, value, gradient, step = trial, trial_value, trial_gradient, 1.5 * step
        else:
            step /= 2
    return [*steps, Step(level.scale, shift)]


def register(pyramid: Sequence[Level]) -> list[Step]:
    """From no shift; on the coarsest level first, which has the widest view, and on the finest to a thousandth of a pixel."""
    steps: list[Step] = []
    shift = np.zeros(2, np.float32)
    for level in pyramid:
        steps += climb(level, shift, step=level.scale / 2, tolerance=level.scale / (10 if level.scale > 1 else 1000))
        shift = steps[-1].shift
    return steps


def landscape(level: Level, shifts: np.ndarray) -> jax.Array:
    """The mutual information for all pairs of shifts in y and in x: one call makes all the histograms."""
    row = jax.vmap(lambda y, x: level.information(jnp.stack([y, x])), in_axes=(None, 0))
    return jax.jit(jax.vmap(row, in_axes=(0, None)))(shifts, shifts)


# --- the demo ------------------------------------------------------------------------------------------------------------------


def race(fns: Sequence[Callable[..., Any]], args: Sequence[Any], repeats: int) -> tuple[list[Any], list[float]]:
    """The functions' results and the least of their times in seconds, compiled; they take turns."""
    compiled = [jax.jit(fn) for fn in fns]
    results, seconds = [jax.block_until_ready(fn(*args)) for fn in compiled], [np.inf] * len(fns)
    for k in list(range(len(fns))) * repeats:
        start = time.perf_counter()
        jax.block_until_ready(compiled[k](*args))
        seconds[k] = min(seconds[k], time.perf_counter() - start)
    return results, seconds


def compare(first: np.ndarray, second: np.ndarray, finest: Level, repeats: int) -> None:
    """Prints each job's time beside plain JAX's, after checking that they agree."""
    x, y = jnp.asarray(first), jnp.asarray(second)
    shift = jnp.array([1.5, -2.5], jnp.float32)
    gradient = lambda histogram: jax.value_and_grad(lambda s: finest.information(s, histogram))  # noqa: E731
    jobs = {
        "intensity histogram, 256 bins": (
            lambda x: jp.histogram(x, 256, (0, 1))[0], lambda x: jnp.histogram(x, 256, (0, 1))[0], (x,)),
        f"joint B-spline histogram, {BINS} x {BINS} bins": (joint_histogram, plain_joint_histogram, (x, y)),
        "mutual information of a shift": (
            finest.information, lambda s: finest.information(s, plain_joint_histogram), (shift,)),
        "mutual information and its gradient": (gradient(joint_histogram), gradient(plain_joint_histogram), (shift,)),
    }  # fmt: skip
    print(f"{'':42}{'jaxprims':>10}{'plain JAX':>12}{'ratio':>8}")
    for name, (ours, plain, args) in jobs.items():
        (result, expected), (seconds, plain_seconds) = race((ours, plain), args, repeats)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-3), result, expected)
        print(f"{name:42}{1e3 * seconds:7.2f} ms{1e3 * plain_seconds:9.2f} ms{plain_seconds / seconds:7.1f}x")


def draw(image: np.ndarray, copy: np.ndarray, finest: Level, coarsest: Level, steps: Sequence[Step], path: Path) -> None:
    """The images, the joint histograms before and after, and the way up."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ink, accent = "#333333", "#c8452d"
    plt.rcParams.update({
        "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left", "text.color": ink, "axes.edgecolor": ink,
        "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink, "axes.linewidth": 0.6, "lines.linewidth": 1.2,
    })  # fmt: skip
    figure, axes = plt.subplots(2, 3, figsize=(12, 7.4), height_ratios=(2, 3), layout="constrained")
    for ax, pixels, title in ((axes[0, 0], image, "photograph"), (axes[0, 1], copy, "its copy: shifted, negative, noisy")):
        ax.imshow(pixels, cmap="gray", vmin=0, vmax=1)
        ax.set(title=title, xticks=[], yticks=[])

    ax, bits = axes[0, 2], jax.jit(finest.information)
    ax.plot([float(bits(jnp.asarray(s.shift))) for s in steps], "o-", color=accent, markersize=2.5)
    low = ax.get_ylim()[0]
    for scale in dict.fromkeys(s.scale for s in steps):
        first = next(k for k, s in enumerate(steps) if s.scale == scale)
        ax.axvline(first, color=ink, linewidth=0.4)
        ax.annotate(f"1/{scale}" if scale > 1 else "1/1", (first, low), (3, 3), textcoords="offset points", fontsize=8)
    ax.set(title="mutual information, by iteration and scale", xlabel="iteration", ylabel="bits, at full size", box_aspect=2 / 3)
    ax.spines[["top", "right"]].set_visible(False)

    for ax, shift, title in ((axes[1, 0], steps[0].shift, "before"), (axes[1, 1], steps[-1].shift, "after")):
        joint = joint_histogram(finest.fixed, finest.moved(jnp.asarray(shift)))
        title = f"joint histogram {title}: {float(mutual_information(joint)):.2f} bits"
        ax.imshow(np.log1p(joint), cmap="magma", origin="lower", interpolation="nearest")
        ax.set(title=title, xlabel="grey level of the copy", ylabel="of the photograph")
        ax.set(xticks=[0, BINS - 1], yticks=[0, BINS - 1], xticklabels=["0", "1"], yticklabels=["0", "1"])

    ax, reach = axes[1, 2], MARGIN - 2 * coarsest.scale
    shifts = np.linspace(-reach, reach, 25, dtype=np.float32)
    ax.contourf(shifts, shifts, landscape(coarsest, shifts), 24, cmap="Greys_r")
    ax.plot(*np.array([s.shift[::-1] for s in steps]).T, "o-", color=accent, markersize=2.5, linewidth=0.9)
    ax.plot(*TRUE_SHIFT[::-1], "+", color="black", markersize=14)
    ax.set(title="the way up; + is the true shift", xlabel="x (pixels)", ylabel="y (pixels)", aspect="equal")
    ax.invert_yaxis()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(
    images: Sequence[np.ndarray] | None = None,
    *,
    scales: Sequence[int] = (4, 2, 1),
    repeats: int = 15,
    plot: Path | None = Path(__file__).parent / "out" / "registration.png",
) -> np.ndarray:
    """Runs the demo on two grey images (default: the photographs) and returns the shift that it found."""
    first, second = photographs() if images is None else images
    height, width = first.shape
    print(f"two images of {height} x {width} pixels; 16 updates of the joint histogram for each pair; best of {repeats} runs\n")
    copy = shifted_negative(first, TRUE_SHIFT)
    pyramid = [Level.make(first, copy, scale) for scale in scales]
    compare(first, second, pyramid[-1], repeats)

    start = time.perf_counter()
    steps = register(pyramid)
    seconds = time.perf_counter() - start
    found = steps[-1].shift
    print(f"\ntrue shift       {TRUE_SHIFT[0]:9.4f} {TRUE_SHIFT[1]:9.4f}")
    print(f"recovered shift  {found[0]:9.4f} {found[1]:9.4f}   in {len(steps)} iterations, {seconds:.1f} s with compilation")
    before, after = (float(pyramid[-1].information(jnp.asarray(s.shift))) for s in (steps[0], steps[-1]))
    print(f"information      {before:.3f} bits before, {after:.3f} after")
    if plot is not None:
        draw(first, copy, pyramid[-1], pyramid[0], steps, plot)
        print(plot)
    return found


if __name__ == "__main__":
    error = np.abs(main() - TRUE_SHIFT).max()
    assert error < 0.05, f"not registered: {error} pixels off"
