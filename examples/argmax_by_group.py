"""Where is each group's largest value? ``jp.positions`` stands for the elements' positions, which are never in memory.

Equal values give the first position and the first NaN wins, as in ``jnp.argmax``; an empty group gives the identity.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

GROUPS = 1000


@jax.jit
def largest(values: jax.Array, groups: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(float32 [GROUPS], int32 [GROUPS]): each group's largest value and its position."""
    return jp.reduce_by_index((values, jp.positions), groups, GROUPS, jp.monoids.argmax)


def main() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=1_000_000).astype(np.float32)
    groups = rng.integers(0, GROUPS, values.size, dtype=np.int32)
    value, position = largest(values, groups)
    order = np.lexsort((np.arange(values.size), -values, groups))  # by group, best first
    expected = order[np.searchsorted(groups[order], np.arange(GROUPS))]
    np.testing.assert_array_equal(position, expected)
    np.testing.assert_array_equal(value, values[expected])
    print(f"group 0: {value[0]:.3f} at position {position[0]}")

    # The derivative of a maximum goes to the element that attained it.
    gradient = jax.grad(lambda v: jnp.sum(largest(v, groups)[0]))(values)
    np.testing.assert_array_equal(np.flatnonzero(gradient), np.sort(expected))
    print(f"derivative: 1 at {int(gradient.sum())} positions, 0 elsewhere")


if __name__ == "__main__":
    main()
