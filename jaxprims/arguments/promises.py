"""What arguments promise without being checked, and the checks for debugging."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

_checked_by = jax.make_user_context(None)  # in the keys of JAX's caches: what was traced without checks is traced again
_WAYS = ("raise", "checkify")


def debug_checks(by: str = "raise") -> AbstractContextManager[None]:
    """Checks, within a ``with`` block, the promises that arguments make: ids and indices that are said to ascend, offsets.

    Args:
      by: how a broken promise is told. ``"raise"``: ValueError, inside compiled functions ``jax.errors.JaxRuntimeError`` with its
        text, once the result is waited for. ``"checkify"``: by ``jax.experimental.checkify.check``, for functions that are
        called through ``checkify.checkify``.

    Returns:
      A context manager. Functions that were compiled outside of it are compiled again inside.

    Raises:
      ValueError: an unknown ``by``.

    Cost: one more read of the ids, and a call of Python for each checked call.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> with jp.debug_checks():
    ...     jp.segment_reduce(jnp.ones(4), jnp.array([0, 2, 1, 3]))
    Traceback (most recent call last):
    ...
    ValueError: segments must ascend, got 1 behind 2 at position 2
    """
    if not isinstance(by, str) or by not in _WAYS:
        raise ValueError(f"by must be one of {_WAYS}, got {by!r}")
    return _checked_by(by)


def promised_ascending(x: Any, name: str) -> None:
    """``x``, [N], is said to ascend; where checks are on, it is looked at."""
    by = _checked_by.value
    if by is None or x.shape[0] in (0, 1):
        return
    if not isinstance(x, jax.core.Tracer):
        _raise_unless_ascending(name, x)
    elif by == "checkify":
        checkify.check(jnp.all(x[1:] >= x[:-1]), f"{name} must ascend")
    else:
        jax.debug.callback(lambda x: _raise_unless_ascending(name, x), x)


def _raise_unless_ascending(name: str, x: Any) -> None:
    x = np.asarray(x)
    falls = np.flatnonzero(x[1:] < x[:-1])
    if falls.size:
        at = int(falls[0]) + 1
        raise ValueError(f"{name} must ascend, got {x[at]} behind {x[at - 1]} at position {at}")
