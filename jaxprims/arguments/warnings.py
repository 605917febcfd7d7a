"""The warnings that jaxprims gives."""

from __future__ import annotations

import contextvars
import sys
import warnings
from contextlib import AbstractContextManager

from ..tracing.within import within


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


class NoKernel(Exception):
    """What a :class:`FallbackWarning` would have said."""


_silent: contextvars.ContextVar[bool] = contextvars.ContextVar("silent", default=False)


def kernels_or_nothing() -> AbstractContextManager[None]:
    """Calls inside raise :class:`NoKernel` in place of falling back, and warn of nothing: nobody wrote them. For this thread
    alone, which warning filters are not."""
    return within(_silent, True)


def nothing_but_kernels() -> bool:
    """Is this inside of :func:`kernels_or_nothing`?"""
    return _silent.get()


def warn_user(message: str, category: type[Warning]) -> None:
    """Warns of the line of the user's that made the call, however deep inside JAX it is traced."""
    if _silent.get():
        if category is FallbackWarning:
            raise NoKernel(message)
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("jaxprims", "jax", "jaxlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
