"""Edges in a photograph (Canny, 1986), as four stencils: blur, Sobel's slopes, their ridges, and what hangs on strong ones.

The last one takes many steps: a weak edge stays if a strong one is beside it, or one that has stayed.

The picture shows the photograph, how steep it is, the direction in which it rises as a colour, and the edges, a pixel wide: the
roofs' outlines, and little in the sky.

Run it with ``python examples/edge_detection.py``. It writes ``examples/out/edge_detection.png``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import ndimage

import jaxprims as jp

SOBEL = np.outer([1, 2, 1], [-1, 0, 1]) / 8
BLUR = np.exp(-(np.arange(-3, 4) ** 2) / 2 / 1.2**2)
BLUR /= BLUR.sum()
WEAK, STRONG = 0.03, 0.08
SQUARE = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]


def blurred(a: Any) -> Any:
    return sum(v * w * a[i - 3, j - 3] for i, v in enumerate(BLUR) for j, w in enumerate(BLUR))


def slopes(a: Any) -> tuple[Any, Any]:
    """Down and to the right."""
    down, right = (sum(k[i + 1, j + 1] * a[i, j] for i, j in SQUARE if k[i + 1, j + 1]) for k in (SOBEL.T, SOBEL))
    return down, right


def steepness(a: Any) -> tuple[Any, Any]:
    """How steep, and the direction: from 0 to 8, a turn."""
    down, right = slopes(a)
    return jnp.hypot(down, right), jnp.arctan2(down, right) * (4 / np.pi) % 8


def ridge(steep: Any, direction: Any) -> jax.Array:
    """uint8: 2 on a strong ridge, 1 on a weak one; a ridge is steeper than both neighbours across."""
    across = jnp.round(direction[0, 0]) % 4
    ways = [(0, 1), (1, 1), (1, 0), (1, -1)]
    most = [jnp.maximum(steep[i, j], steep[-i, -j]) for i, j in ways]
    highest = steep[0, 0] > jnp.select([across == k for k in range(4)], most)
    return (highest * ((steep[0, 0] > WEAK) + jnp.uint8(steep[0, 0] > STRONG))).astype(jnp.uint8)


def grown(edge: Any) -> jax.Array:
    """A weak ridge beside a strong one is strong."""
    near = jnp.max(jnp.stack([edge[o] for o in SQUARE]))
    return jnp.where((edge[0, 0] == 1) & (near == 2), jnp.uint8(2), edge[0, 0])


@jax.jit
def edges(image: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """How steep the image is, in which direction, and where its edges are (bool), each [height, width]."""
    steep, direction = jp.stencil(steepness, jp.stencil(blurred, image))
    ridges = jp.stencil(ridge, (steep, direction), boundary="constant")
    return steep, direction, jp.stencil(grown, ridges, boundary="constant", steps=64) == 2


def photograph() -> np.ndarray:
    """One that comes with scikit-learn, 427 x 640, as grey levels in [0, 1]."""
    from sklearn.datasets import load_sample_image

    return (load_sample_image("china.jpg") @ [0.299, 0.587, 0.114] / 255).astype(np.float32)


def check(image: np.ndarray) -> None:
    """The slopes are SciPy's."""
    for got, axis in zip(jax.jit(lambda x: jp.stencil(slopes, x))(image), (0, 1), strict=True):
        np.testing.assert_allclose(got, ndimage.sobel(image, axis, mode="nearest") / 8, atol=1e-5)


def draw(image: np.ndarray, steep: np.ndarray, direction: np.ndarray, found: np.ndarray, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(12, 8.4), layout="constrained")
    colours = plt.get_cmap("hsv")(direction / 8)[..., :3] * np.clip(steep / steep.max() * 3, 0, 1)[..., None]
    pictures = {"photograph": image, "steepness": np.sqrt(steep), "direction": colours, "edges": ~found}
    for ax, (title, pixels) in zip(axes.flat, pictures.items(), strict=True):
        ax.imshow(pixels, cmap="gray")
        ax.set(title=title, xticks=[], yticks=[])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(image: np.ndarray | None = None, plot: Path | None = Path(__file__).parent / "out" / "edge_detection.png") -> np.ndarray:
    """Returns where the edges are."""
    image = photograph() if image is None else image
    check(image)
    steep, direction, found = map(np.asarray, edges(image))
    print(f"{image.shape[0]} x {image.shape[1]} pixels, {found.mean():.1%} on edges; steepest {steep.max():.2f}")
    if plot is not None:
        draw(image, steep, direction, found, plot)
        print(plot)
    return found


if __name__ == "__main__":
    main()
