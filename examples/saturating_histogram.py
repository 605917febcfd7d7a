"""A saturating histogram: counts in 8 bits that stop at 255 instead of wrapping (Parboil's histo; Henriksen et al. 2020, V-D).

The operator, a saturating sum of unsigned numbers, is nobody's built-in. It is associative because nothing is ever subtracted;
``jp.check_monoid`` tries the laws on many values.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp


def saturating_add(a: jax.Array, b: jax.Array) -> jax.Array:
    total = a + b
    return jnp.where(total < a, jnp.uint8(255), total)  # it wrapped


@jax.jit
def histogram(image: jax.Array) -> jax.Array:
    """uint8 [256]: how often each grey level in [0, 1) occurs, up to 255."""
    return jp.genhist(lambda x: ((x * 256).astype(int), jnp.uint8(1)), image.ravel(), jp.Bins(256, saturating_add, identity=0))


def main() -> None:
    jp.check_monoid(saturating_add, 0, jnp.uint8(0))
    image = np.random.default_rng(0).beta(2, 5, (996, 1024)).astype(np.float32)
    counts = histogram(image)
    expected = np.minimum(np.bincount((image * 256).astype(int).ravel(), minlength=256), 255)
    np.testing.assert_array_equal(counts, expected)
    print(f"saturating histogram of {image.size} pixels: {int((counts == 255).sum())} of 256 bins are full")


if __name__ == "__main__":
    main()
