"""Cubins on disk, under ``$XDG_CACHE_HOME/jaxprims`` (else ``~/.cache``), named by a hash of all that they depend on.

Any number of processes may read and write: a file is written under another name and moved into place, which is atomic. A file
that is damaged, or of another format, is as good as none, and a disk that cannot be written costs time, not a result.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from .cuda.nvrtc import OPTIONS, Compiled

_MAGIC = b"jaxprims cubin 1\n"
_DIGEST = 16


def folder() -> Path:
    """Where cubins lie."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "jaxprims"


def name_of(source: str, arch: str, compiler: str) -> str:
    """A cubin's name: a hash of its source, architecture, compiler and options."""
    parts = (source, arch, compiler, repr(sorted(OPTIONS.items())))
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()


def read(name: str) -> Compiled | None:
    """The cubin of that name, if it is there and whole."""
    try:
        data = (folder() / name).read_bytes()
    except OSError:
        return None
    digest, body = data[len(_MAGIC) : len(_MAGIC) + _DIGEST], data[len(_MAGIC) + _DIGEST :]
    if not data.startswith(_MAGIC) or hashlib.blake2b(body, digest_size=_DIGEST).digest() != digest:
        return None
    length = int.from_bytes(body[:8], "little")
    return Compiled(body[8 + length :], body[8 : 8 + length].decode())


def write(name: str, compiled: Compiled) -> None:
    """Keeps a cubin."""
    log = compiled.log.encode()
    body = len(log).to_bytes(8, "little") + log + compiled.image
    with contextlib.suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder(), prefix=name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.blake2b(body, digest_size=_DIGEST).digest() + body)
            os.replace(temporary, folder() / name)
        except OSError:
            os.unlink(temporary)
            raise
