"""Compiled kernels on disk: the store, whom it trusts, disks with faults, its size."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kernel_cache_files import NAME, files

from jaxprims.targets import kernel_cache


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """What was logged during the test."""
    kernel_cache._log_once.cache_clear()
    with caplog.at_level(logging.WARNING, "jaxprims"):
        yield lambda: caplog.text
    kernel_cache._log_once.cache_clear()


PARTS = [b"symbols", b"", b"machine code" * 3]


# --- The store


def test_what_is_written_is_read(folder: Path) -> None:
    assert kernel_cache.read(NAME) is None
    kernel_cache.write(NAME, PARTS)
    assert kernel_cache.read(NAME) == PARTS
    assert files(folder) == {NAME}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and stat.S_IMODE((folder / NAME).stat().st_mode) == 0o600
    kernel_cache.write(NAME, [b"other"])
    assert kernel_cache.read(NAME) == [b"other"]


def test_names_tell_everything_apart() -> None:
    parts = [
        ("a", "b", "c"),
        ("ab", "", "c"),
        ("a", "b", "d"),
        ("a", "c", "c"),
        ("x", "b", "c"),
        ("a", "b\0c"),
        ("a\0b", "c"),
        ("a",),
    ]
    assert len({kernel_cache.name_of(*x) for x in parts}) == len(parts)


def test_a_file_that_is_damaged_anywhere_is_as_good_as_none(folder: Path) -> None:
    """Every byte flipped, in the head, the checksum, the lengths and the contents; cut off behind every byte; and longer."""
    kernel_cache.write(NAME, PARTS)
    whole = (folder / NAME).read_bytes()
    damaged = [whole[:k] + bytes([whole[k] ^ 1 << k % 8]) + whole[k + 1 :] for k in range(len(whole))]
    damaged += [whole[:k] for k in range(len(whole))] + [whole + b"\0", b"x" + whole, bytes(len(whole))]
    for data in damaged:
        (folder / NAME).write_bytes(data)
        assert kernel_cache.read(NAME) is None
    kernel_cache.write(NAME, PARTS)
    assert kernel_cache.read(NAME) == PARTS


def test_a_file_under_another_name_is_not_taken(folder: Path) -> None:
    kernel_cache.write(NAME, PARTS)
    other = kernel_cache.name_of("another kernel")
    (folder / NAME).rename(folder / other)
    assert kernel_cache.read(other) is None


def test_where_kernels_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert kernel_cache.folder() == tmp_path / "xdg" / "jaxprims"
    for none in ("", "relative/path"):  # which the XDG standard wants ignored
        monkeypatch.setenv("XDG_CACHE_HOME", none)
        assert kernel_cache.folder() == tmp_path / "home" / ".cache" / "jaxprims"
    monkeypatch.setenv("HOME", "relative")
    assert kernel_cache.folder() is None
    kernel_cache.write(NAME, PARTS)
    assert kernel_cache.read(NAME) is None


def test_folders_are_made_where_they_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a" / "b"))
    kernel_cache.write(NAME, PARTS)
    assert kernel_cache.read(NAME) == PARTS


def test_without_a_home(tmp_path: Path) -> None:
    """Neither $HOME nor an entry in the passwd file, as containers with a number for a user have it."""
    program = (
        "import pwd\n"
        "def unknown(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = unknown\n"
        "import jax.numpy as jnp, jaxprims as jp\n"
        "from jaxprims.targets import kernel_cache\n"
        "assert kernel_cache.folder() is None\n"
        "assert jp.cumsum(jnp.arange(4)).tolist() == [0, 1, 3, 6]\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME")}
    subprocess.run([sys.executable, "-c", program], env=environment, cwd=tmp_path, check=True)
    assert not list(tmp_path.iterdir())


# --- Whom it trusts


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o720, 0o702, 0o777])
def test_a_folder_that_others_may_write_is_not_used(folder: Path, mode: int, logged: Callable[[], str]) -> None:
    kernel_cache.write(NAME, PARTS)
    folder.chmod(mode)
    assert kernel_cache.read(NAME) is None
    assert kernel_cache.read(NAME) is None
    kernel_cache.write(kernel_cache.name_of("new"), PARTS)
    assert files(folder) == {NAME}
    assert logged().count("others may write") == 1
    folder.chmod(0o755)
    assert kernel_cache.read(NAME) == PARTS


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_used(folder: Path, mode: int) -> None:
    kernel_cache.write(NAME, PARTS)
    (folder / NAME).chmod(mode)
    assert kernel_cache.read(NAME) is None
    kernel_cache.write(NAME, PARTS)  # takes its place
    assert kernel_cache.read(NAME) == PARTS


def test_what_another_user_owns_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch, logged: Callable[[], str]) -> None:
    kernel_cache.write(NAME, PARTS)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert kernel_cache.read(NAME) is None
    kernel_cache.write(kernel_cache.name_of("new"), PARTS)
    assert files(folder) == {NAME} and "another user" in logged()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_of_another_user_in_ones_own_folder_is_not_used(folder: Path) -> None:
    kernel_cache.write(NAME, PARTS)
    os.chown(folder / NAME, 12345, -1)
    assert kernel_cache.read(NAME) is None


def test_links_and_pipes_are_not_followed(folder: Path, tmp_path: Path) -> None:
    kernel_cache.write(NAME, PARTS)
    (folder / NAME).rename(tmp_path / "elsewhere")
    (folder / NAME).symlink_to(tmp_path / "elsewhere")
    assert kernel_cache.read(NAME) is None
    (folder / NAME).unlink()
    os.mkfifo(folder / NAME)
    assert kernel_cache.read(NAME) is None
    (folder / NAME).unlink()
    (folder / NAME).mkdir()
    assert kernel_cache.read(NAME) is None
    kernel_cache.write(NAME, PARTS)  # a folder cannot be replaced
    assert files(folder) == {NAME}


# --- Disks with faults


def test_a_disk_that_cannot_be_written_costs_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for base in (tmp_path / "file", Path("/proc/self")):  # no folder; a disk that is read-only for root, too
        monkeypatch.setenv("XDG_CACHE_HOME", str(base))
        kernel_cache.write(NAME, PARTS)
        assert kernel_cache.read(NAME) is None


def fails(code: int) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


def test_a_folder_that_became_read_only_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_cache.write(NAME, PARTS)
    os.utime(folder / NAME, (0, 0))
    for name in ("utime", "replace", "unlink"):
        monkeypatch.setattr(os, name, fails(errno.EROFS))
    monkeypatch.setattr(kernel_cache.tempfile, "mkstemp", fails(errno.EROFS))
    assert kernel_cache.read(NAME) == PARTS
    kernel_cache.write(kernel_cache.name_of("new"), PARTS)
    assert files(folder) == {NAME}


def test_a_full_disk_keeps_no_half_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_cache.write(NAME, PARTS)

    class Full:
        def __init__(self, handle: int, mode: str) -> None:
            self.file = os.fdopen(handle, mode)

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> None:
            self.file.write(data[:20])
            fails(errno.ENOSPC)()

    monkeypatch.setattr(kernel_cache, "open", Full, raising=False)
    kernel_cache.write(kernel_cache.name_of("new"), PARTS)
    kernel_cache.write(NAME, [b"new"])
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent))
    assert files(folder) == {NAME} and kernel_cache.read(NAME) == PARTS


def test_many_processes_at_once(folder: Path) -> None:
    """Each writes its own contents under one name again and again, and other names beyond what the folder may hold: whatever is
    read is what some process wrote, whole."""
    program = (
        "import sys; from jaxprims.targets import kernel_cache as cache\n"
        "mine, name = [b'log', bytes([int(sys.argv[1])]) * 100_000], cache.name_of('kernel')\n"
        "for k in range(40):\n"
        "    cache.write(name, mine)\n"
        "    cache.write(cache.name_of(str(k)), mine)\n"
        "    for found in cache.read(name), cache.read(cache.name_of(str(39 - k))):\n"
        "        assert found is None or len(found[1]) == 100_000 and len(set(found[1])) == 1\n"
    )
    environment = {**os.environ, "JAXPRIMS_CACHE_MB": "1.5"}
    running = [subprocess.Popen([sys.executable, "-c", program, str(k)], env=environment) for k in range(2)]
    assert [p.wait() for p in running] == [0, 0]
    assert not [name for name in files(folder) if name.endswith(".tmp")]
    assert sum(p.stat().st_size for p in folder.iterdir()) < 3e6


# --- Its size


@pytest.mark.parametrize(
    "megabytes, most", [("", 512e6), ("0", 0), ("1.5", 1.5e6), ("-1", 0), ("many", 512e6), ("inf", 512e6), ("nan", 512e6)]
)
def test_how_much_it_may_hold(megabytes: str, most: float, monkeypatch: pytest.MonkeyPatch, logged: Callable[[], str]) -> None:
    kernel_cache._limit.cache_clear()
    monkeypatch.setenv("JAXPRIMS_CACHE_MB", megabytes)
    assert kernel_cache.limit() == most
    assert ("is not a number" in logged()) == (megabytes in ("many", "inf", "nan"))


def test_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_cache.write(NAME, PARTS)
    monkeypatch.setenv("JAXPRIMS_CACHE_MB", "0")
    assert kernel_cache.read(NAME) is None
    kernel_cache.write(kernel_cache.name_of("new"), PARTS)
    assert files(folder) == {NAME}


def test_one_entry_does_not_take_the_place_of_all_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPRIMS_CACHE_MB", "1")
    kernel_cache.write(NAME, [bytes(200_000)])
    assert kernel_cache.read(NAME) is None


def aged(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_the_least_recently_used_go(folder: Path) -> None:
    names = [kernel_cache.name_of(str(k)) for k in range(10)]
    for k, name in enumerate(names):
        kernel_cache.write(name, [b"kernel"])
        aged(folder / name, 100_000 - 10_000 * k)
    others = ["README", "f" * 39, f"{names[0]}.txt"]
    for name in others:
        (folder / name).touch()
        aged(folder / name, 1e6)
    assert kernel_cache.read(names[0]) == [b"kernel"]  # used just now
    kernel_cache._evict(folder, 8 * kernel_cache._BLOCK)
    assert files(folder) == {names[0], *names[4:], *others}  # seven entries: 7/8 of what it may hold


def test_files_of_processes_that_died_go(folder: Path) -> None:
    kernel_cache.write(NAME, PARTS)
    for name, age in (("old", 10_000), ("young", 10)):
        (folder / f"{NAME}.{name}.tmp").touch()
        aged(folder / f"{NAME}.{name}.tmp", age)
    kernel_cache._evict(folder, 10**9)
    assert files(folder) == {NAME, f"{NAME}.young.tmp"}


def test_reading_marks_as_used_at_most_once_an_hour(folder: Path) -> None:
    kernel_cache.write(NAME, PARTS)
    for age, marked in ((1000, False), (5000, True)):
        aged(folder / NAME, age)
        kernel_cache.read(NAME)
        assert (time.time() - (folder / NAME).stat().st_mtime < 500) == marked


def test_what_it_holds_is_looked_at_rarely_and_stays_in_bounds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, evict = [], kernel_cache._evict

    def counted(where: Path, most: int) -> None:
        looked.append(len(files(where)))
        evict(where, most)

    monkeypatch.setattr(kernel_cache, "_evict", counted)
    monkeypatch.setenv("JAXPRIMS_CACHE_MB", "2.048")  # five hundred entries of a block
    for k in range(1500):
        kernel_cache.write(kernel_cache.name_of(str(k)), [b"kernel"])
    assert 48 <= len(looked) <= 192  # 96 on average
    assert 450 < max(looked) < 550


def test_eviction_by_another_process_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(4):
        kernel_cache.write(kernel_cache.name_of(str(k)), [b"kernel"])
    entries = list(kernel_cache._entries(folder))
    monkeypatch.setattr(kernel_cache, "_entries", lambda where: entries)
    for path, _ in entries:
        os.unlink(path)
    kernel_cache._evict(folder, 0)
    assert not files(folder)
