"""Compiled kernels on disk, of all targets: under ``$XDG_CACHE_HOME/jaxprims`` (else ``~/.cache/jaxprims``), an entry a file.

An entry's name is a hash of all that its machine code depends on, so that nothing is ever out of date, only unused. The least
recently used are deleted when they take about ``JAXPRIMS_CACHE_MB`` megabytes (512; 0 switches the cache off).

What is read here is run. So nothing is taken that another user could have written: folder and file must belong to this process's
user and be writable by nobody else. A checksum finds what a full disk or a power failure left. Any number of processes may read,
write and delete at once: a file is written under another name and moved into place, which is atomic, and whoever has opened it
reads it to its end even if it is deleted. No fault of a disk costs more than the time to compile again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

_MAGIC = b"jaxprims kernel 2\n"
_DIGEST = 16
_HEAD = len(_MAGIC) + _DIGEST
_DEFAULT_MB = 512
_BLOCK = 4096  # what a small file takes on most disks
_TOUCH_AFTER = 3600.0  # seconds: how finely "recently used" is known, and how old a file is that nobody can still be writing
_OURS = re.compile(r"[0-9a-f]{40}(\.[^.]*\.tmp)?")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def folder() -> Path | None:
    """Where kernels lie; None if there is no such place.

    A relative path is as good as none: it would name another folder, perhaps another user's, wherever the process happens to be.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "jaxprims"
    try:
        home = Path.home()
    except RuntimeError:  # no $HOME, and a user without an entry in the passwd file, as containers have them
        return None
    return home / ".cache" / "jaxprims" if home.is_absolute() else None


def limit() -> int:
    """How many bytes all entries together may take."""
    return _limit(os.environ.get("JAXPRIMS_CACHE_MB", ""))


@functools.lru_cache(maxsize=8)
def _limit(megabytes: str) -> int:
    try:
        return max(0, int(float(megabytes or _DEFAULT_MB) * 1e6))
    except (ValueError, OverflowError):
        _log_once(f"JAXPRIMS_CACHE_MB={megabytes!r} is not a number; compiled kernels may take {_DEFAULT_MB} MB on disk")
        return int(_DEFAULT_MB * 1e6)


def name_of(*parts: str) -> str:
    """An entry's name: a hash of ``parts``, everything that its contents depend on."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)  # with lengths, so that no two lists of parts read the same
    return digest.hexdigest()


def read(name: str) -> list[bytes] | None:
    """What was written under ``name``; None if it is not there, not whole or not to be trusted."""
    where = folder()
    if not limit() or where is None:
        return None
    try:
        if not _trusted(where):
            return None
        # no link, which might lead to anything; and nothing that waits, as opening a pipe does
        handle = os.open(where / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            status = os.fstat(handle)  # of what was opened: a path may mean another file by now
            if not stat.S_ISREG(status.st_mode) or not _mine_alone(status):
                return None
            found = _unpacked(name, file.read())
            if found is not None:
                _touch(handle, status)
            return found
    except OSError:
        return None


def write(name: str, parts: Sequence[bytes]) -> None:
    """Keeps ``parts`` under ``name``, if that is possible."""
    data, where, most = _packed(name, parts), folder(), limit()
    if where is None or _on_disk(len(data)) > most // 8:  # one that takes the place of all others is not worth keeping
        return
    with contextlib.suppress(OSError):
        where.parent.mkdir(parents=True, exist_ok=True)
        where.mkdir(mode=0o700, exist_ok=True)
        if not _trusted(where):
            return
        _put(where, name, data)
        if _may_be_full(name, len(data), most):
            _evict(where, most)


def _put(where: Path, name: str, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=where, prefix=f"{name}.", suffix=".tmp")  # which no other user may read or write
    try:
        with open(handle, "wb") as file:
            file.write(data)  # not synced: after a power failure the checksum tells, and syncing takes longer than most kernels
        os.replace(temporary, where / name)
    except BaseException:
        os.unlink(temporary)  # half a file on a full disk, say
        raise


def _packed(name: str, parts: Sequence[bytes]) -> bytes:
    lengths = [len(parts), *map(len, parts)]
    body = b"".join([*(n.to_bytes(8, "little") for n in lengths), *parts])
    return _MAGIC + _checksum(name, body) + body


def _unpacked(name: str, data: bytes) -> list[bytes] | None:
    body = data[_HEAD:]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : _HEAD] != _checksum(name, body):
        return None
    count = int.from_bytes(body[:8], "little")
    parts, at = [], 8 * (count + 1)
    for k in range(1, count + 1):
        length = int.from_bytes(body[8 * k : 8 * k + 8], "little")
        parts.append(body[at : at + length])
        at += length
    return parts


def _checksum(name: str, body: bytes) -> bytes:
    """The name is part of it, so that a file that was renamed or copied is not taken for another kernel."""
    return hashlib.blake2b(body, digest_size=_DIGEST, key=name.encode()).digest()


def _trusted(where: Path) -> bool:
    """Whether nobody else can put files into the folder. Raises OSError if there is none."""
    status = os.stat(where)
    trusted = stat.S_ISDIR(status.st_mode) and _mine_alone(status)
    if not trusted:
        _log_once(f"{where} belongs to another user, or others may write to it: compiled kernels are not kept on disk")
    return trusted


def _mine_alone(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


@functools.lru_cache(maxsize=64)
def _log_once(message: str) -> None:
    logging.getLogger("jaxprims").warning(message)  # no Python warning: one that was made an error would cost a result


def _touch(handle: int, status: os.stat_result) -> None:
    """Marks a file as used. Disks do not keep the time of the last access any more, so it is the file's own time that is set,
    and not at every read."""
    if time.time() - status.st_mtime > _TOUCH_AFTER:
        with contextlib.suppress(OSError):  # one may well read what one cannot write
            os.utime(handle)


def _may_be_full(name: str, size: int, most: int) -> bool:
    """Whether to look now at what the folder holds: after every 32nd part of what it may hold, on average.

    Names are hashes, hence random numbers that cost nothing; so this needs no count that processes share, and many short
    processes that write one kernel each look as often as one that writes many.
    """
    return int(name[:8], 16) / 2**32 * most < 32 * _on_disk(size)


def _on_disk(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _evict(where: Path, most: int) -> None:
    """Deletes the least recently used entries until the others fill 7/8 of what they may, and what processes left that died."""
    left, now = most - most // 8, time.time()
    for path, status in sorted(_entries(where), key=lambda e: e[1].st_mtime, reverse=True):
        left -= _on_disk(status.st_size)
        abandoned = path.endswith(".tmp") and now - status.st_mtime > _TOUCH_AFTER
        if left < 0 or abandoned:
            with contextlib.suppress(OSError):  # another process may have deleted it
                os.unlink(path)


def _entries(where: Path) -> Iterable[tuple[str, os.stat_result]]:
    """The files that are the cache's; of others in the folder nothing is known."""
    with os.scandir(where) as listed:
        for entry in listed:
            if _OURS.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    yield entry.path, entry.stat(follow_symlinks=False)
