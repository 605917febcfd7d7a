"""``KernelSpec``: which kernel is wanted, as canonical text.

The text is the custom call's attribute and (hashed) the kernel table's key: an executable that comes back from ``jax.export`` or
the persistent compilation cache in another process finds its kernel by compiling the text again. It holds no shapes but those of
one element, so one kernel serves every length and batch. Its first word is the spec's kind.
"""

from __future__ import annotations

import abc
import functools
import hashlib
from collections.abc import Callable

from ..ir.program import Program


class KernelSpec(abc.ABC):
    """What a target is told of a kernel. Two specs are equal when their texts are."""

    kind: str  # the text's first word

    @property
    def operators(self) -> tuple[Program, ...]:
        """What it combines with, of each part."""
        return ()

    @property
    @abc.abstractmethod
    def text(self) -> str:
        """The spec, in a form that :func:`parse` reads."""

    def check(self) -> None:
        """Raises ValueError unless its parts fit each other, so that kernels of it read and write no more than it says."""
        return

    @functools.cached_property
    def key(self) -> int:
        """By which kernel tables know it."""
        return key_of(self.text)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelSpec) and self.text == other.text


def key_of(text: str) -> int:
    """63 bits of a hash."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def rows_of(head: str, version: int) -> Callable[[str], list[list[str]]]:
    """Of the lines of a text before its first program, the words behind a first one. Raises ValueError where it is of another
    version."""
    rows = [line.split() for line in head.splitlines()]
    if rows[0][1:] != [str(version)]:
        raise ValueError(f"not a spec of version {version}: {' '.join(rows[0])!r}")
    return lambda name: [row[1:] for row in rows if row[0] == name]


_parsers: dict[str, Callable[[str], KernelSpec]] = {}


def register_kind(kind: str, parse: Callable[[str], KernelSpec]) -> None:
    """Texts that start with ``kind`` are read by ``parse``, which raises ValueError for what is not one."""
    _parsers[kind] = parse


@functools.lru_cache(maxsize=512)
def parse(text: str) -> KernelSpec:
    """The inverse of ``text``, which may have been edited or damaged. Raises ValueError."""
    kind = text.split(maxsplit=1)[0] if text.strip() else ""
    if kind not in _parsers:
        raise ValueError(f"not a kernel's spec: {text[:60]!r}")
    try:
        spec = _parsers[kind](text)
        spec.check()
        canonical = spec.text == text
    except Exception as e:  # whatever a parser does on what is no spec
        raise ValueError(f"not a kernel's spec: {e or type(e).__name__}") from e
    if not canonical:
        raise ValueError("not a kernel's spec: its text is not canonical")
    return spec
