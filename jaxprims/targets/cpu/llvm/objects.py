"""Kernels' machine code as object files: what it depends on, what it needs of the process, and keeping it on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import struct
from pathlib import Path

from ... import kernel_cache

_PACKAGE = Path(__file__).parents[3]

_CPU = ("targets/cpu", "targets/cpu/histogram", "targets/cpu/llvm", "targets/cpu/ordered", "targets/cpu/stencil")
SOURCES = ("ir", "operators", "specs", "tracing", "targets", *_CPU)
"""The folders of the package whose modules have a part in making machine code of a spec's text."""


@dataclasses.dataclass(frozen=True)
class Object:
    """An object file, and the symbols that must be in the process where it is linked."""

    image: bytes
    needs: tuple[str, ...]

    @classmethod
    def of(cls, image: bytes) -> Object:
        """With what the file itself says that it needs."""
        return cls(image, undefined_symbols(image))


def sources_now() -> str:
    """A hash of the code generator's sources, by their sizes and times: reading them would take longer than loading a kernel."""
    digest = hashlib.blake2b(digest_size=16)
    for part in SOURCES:
        with contextlib.suppress(OSError), os.scandir(_PACKAGE / part) as listed:
            for entry in sorted((e for e in listed if e.name.endswith(".py")), key=lambda e: e.name):
                status = entry.stat()
                digest.update(f"{part}/{entry.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


_at_import = sources_now()


@functools.cache
def _sources() -> str | None:
    """The same, of the sources that this process has loaded; None if they were edited since, when nobody can tell.

    A process that runs on after an edit would otherwise file what the old generator made under the new one's name.
    """
    return _at_import if sources_now() == _at_import else None


@functools.cache
def _c_library() -> str:
    """The C library's version, which decides on the functions in libm and libmvec that code generation finds."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return ""


def name_of(*parts: str) -> str | None:
    """The name in the cache of what code generation makes of ``parts``, or None if that must not be kept."""
    from .... import __version__  # the package imports this module before it is complete

    sources = _sources()
    return sources and kernel_cache.name_of("object", __version__, sources, _c_library(), *parts)


def read(name: str) -> Object | None:
    """The object of that name, if it is on disk."""
    found = kernel_cache.read(name)
    if found is None or len(found) != 2:
        return None
    return Object(found[1], tuple(found[0].decode().split()))


def write(name: str, made: Object) -> None:
    """Keeps an object, if it is of a kind that tells what it needs."""
    if _is_elf(made.image):
        kernel_cache.write(name, [" ".join(made.needs).encode(), made.image])


_HEADER = struct.Struct("<40xQ10xHH2x")  # of an ELF file: where its section headers are, how long each is, and how many
_SECTION = struct.Struct("<4xI16xQQI12xQ")  # kind, offset, size, link, size of an entry
_SYMBOL = struct.Struct("<IBxH16x")  # name, binding, section
_SYMBOL_TABLE = 2
_MADE_BY_LINKER = ("_GLOBAL_OFFSET_TABLE_",)


def _is_elf(image: bytes) -> bool:
    """Of 64 bits, little-endian."""
    return image[:6] == b"\x7fELF\x02\x01"


def undefined_symbols(image: bytes) -> tuple[str, ...]:
    """The symbols that an ELF object expects elsewhere, among them those that LLVM itself put in (``memset``).

    None of an object of another kind: there the linker finds what is missing.
    """
    if not _is_elf(image):
        return ()
    start, size, count = _HEADER.unpack_from(image)
    sections = [_SECTION.unpack_from(image, start + k * size) for k in range(count)]
    found = []
    for kind, offset, length, link, entry in sections:
        if kind == _SYMBOL_TABLE:
            names = sections[link][1]
            for at in range(offset, offset + length, entry):
                name, _, section = _SYMBOL.unpack_from(image, at)
                if name and section == 0:
                    found.append(image[names + name : image.index(b"\0", names + name)].decode())
    return tuple(sorted(set(found) - set(_MADE_BY_LINKER)))
