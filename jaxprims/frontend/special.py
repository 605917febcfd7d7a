"""Functions that are no instruction, written in ``lax`` on real scalars; they are traced and lowered like the user's own."""

from __future__ import annotations

from collections.abc import Callable

from jax import Array


def _one_minus_square(x: Array) -> Array:
    return (1 + x) * (1 - x)


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "one_minus_square": _one_minus_square,
}
