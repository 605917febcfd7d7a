"""What holds for the calls that a thread traces inside of a ``with``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """The variable has this value inside."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
