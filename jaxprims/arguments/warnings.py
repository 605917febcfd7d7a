"""The warnings that jaxprims gives."""

from __future__ import annotations

import sys
import warnings


class IdentityWarning(UserWarning):
    """The given ``identity`` is not neutral for the operator: ``op(identity, x)`` is not ``x`` for some value x.

    Given while tracing, where it is found by trying a few values. Bins that stay empty hold the identity, and every bin
    starts from it, so a wrong one gives wrong results. Of a monoid on some values only, such as a maximum of counts that starts
    from 0, it may be neutral for all there are: then ``warnings.simplefilter("ignore", jaxprims.IdentityWarning)``.

    >>> issubclass(IdentityWarning, UserWarning)
    True
    """


class FallbackWarning(UserWarning):
    """A function uses something that kernels cannot express, so the call runs as plain XLA: the same result, slower.

    The message names the primitive. ``warnings.simplefilter("error", FallbackWarning)`` makes it an error.

    >>> issubclass(FallbackWarning, UserWarning)
    True
    """


def warn_user(message: str, category: type[Warning]) -> None:
    """Warns of the line of the user's that made the call, however deep inside JAX it is traced."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("jaxprims", "jax", "jaxlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
