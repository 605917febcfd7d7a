"""Compiled kernels on disk, and the compilers before and behind them."""

from __future__ import annotations

import ast
import concurrent.futures
import ctypes
import errno
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxprims as jp
from jaxprims.primitives.ordered_call import call_spec, simple
from jaxprims.targets import kernel_cache
from jaxprims.targets.cpu import compiler
from jaxprims.targets.cpu.llvm import engine, objects
from jaxprims.targets.cuda import compiler as cuda_compiler
from jaxprims.targets.cuda import nvrtc
from jaxprims.targets.cuda import source as cuda_source
from jaxprims.targets.cuda.nvrtc import Compiled, Resources


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "jaxprims"


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """What was logged during the test."""
    kernel_cache._log_once.cache_clear()
    with caplog.at_level(logging.WARNING, "jaxprims"):
        yield lambda: caplog.text
    kernel_cache._log_once.cache_clear()


NAME = kernel_cache.name_of("a kernel")
PARTS = [b"symbols", b"", b"machine code" * 3]


def files(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


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


# --- Objects for CPUs


IR = """
declare float @sinf(float)
define float @f(float %x) {
  %y = call float @sinf(float %x)
  %z = fadd float %y, 3.0
  ret float %z
}
"""


class Generator:
    """Makes IR, and counts how often."""

    def __init__(self, text: str = IR) -> None:
        self.text, self.calls = text, 0

    def __call__(self) -> str:
        self.calls += 1
        return self.text


def run(compiled: engine.Compiled, x: float, name: str = "f") -> float:
    return ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(compiled.address[name])(x)


def test_a_kernel_is_compiled_once(folder: Path) -> None:
    generate = Generator()
    first = engine.compile_cached(["kernel"], generate, ["f"])
    assert generate.calls == 1 and len(files(folder)) == 1
    second = engine.compile_cached(["kernel"], generate, ["f"])
    assert generate.calls == 1
    assert run(first, 0.0) == run(second, 0.0) == 3.0
    assert first.address != second.address  # the same code at two places
    assert second.ir == first.ir == IR
    assert "sinf" in second.assembly()
    assert generate.calls > 1


def test_an_object_says_what_it_needs(folder: Path) -> None:
    engine.compile_cached(["kernel"], Generator(), ["f"])
    (name,) = files(folder)
    known = objects.read(name)
    assert known is not None and known.needs == ("sinf",)
    assert known == objects.Object.of(known.image)


@pytest.mark.parametrize("image", [b"no object", b""])
def test_an_object_that_cannot_be_linked_is_made_anew(folder: Path, image: bytes) -> None:
    engine.compile_cached(["kernel"], Generator(), ["f"])
    (name,) = files(folder)
    kernel_cache.write(name, [b"", image])
    generate = Generator()
    assert run(engine.compile_cached(["kernel"], generate, ["f"]), 0.0) == 3.0 and generate.calls == 1
    assert run(engine.compile_cached(["kernel"], generate, ["f"]), 0.0) == 3.0 and generate.calls == 1


def test_an_object_that_needs_what_is_not_here_is_not_linked(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    engine.compile_cached(["kernel"], Generator(), ["f"])
    (name,) = files(folder)
    known = objects.read(name)
    assert known is not None
    kernel_cache.write(name, [b"sinf _ZGVeN99v_nothing", known.image])
    generate = Generator()
    engine.compile_cached(["kernel"], generate, ["f"])
    assert generate.calls == 1 and not capfd.readouterr().err  # the linker did not even see it
    assert objects.read(name) == known


def test_a_missing_symbol_is_an_error_and_nothing_is_kept(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no_such_function"):
            engine.compile_cached(["kernel"], Generator(IR.replace("sinf", "no_such_function")), ["f"])
    assert not folder.exists()


def test_what_is_no_elf_file_is_not_kept(folder: Path) -> None:
    other = objects.Object.of(b"\xcf\xfa\xed\xfe" + bytes(100))
    assert other.needs == ()
    objects.write(NAME, other)
    assert objects.read(NAME) is None


OTHERWISE: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "LLVM": lambda m: m.setattr(engine.llvm, "llvm_version_info", (99, 0, 0)),
    "llvmlite": lambda m: m.setattr(engine.llvmlite, "__version__", "99"),
    "jaxprims": lambda m: m.setattr(jp, "__version__", "99"),
    "C library": lambda m: m.setattr(objects, "_c_library", lambda: "glibc 9.9"),
    "sources": lambda m: m.setattr(objects, "_sources", lambda: "edited"),
    "passes": lambda m: m.setattr(engine, "_PASSES_LEVEL", 3),
    "code": lambda m: m.setattr(engine, "_CODE_LEVEL", 3),
    "triple": lambda m: m.setattr(engine.llvm, "get_process_triple", lambda: "riscv64-unknown-linux-gnu"),
    "cpu": lambda m: m.setattr(engine, "target", lambda: engine.Target("other", HOST.features, HOST.vector_bytes, HOST.half)),
    "features": lambda m: m.setattr(engine, "target", lambda: engine.Target(HOST.cpu, "+x", HOST.vector_bytes, HOST.half)),
    "vectors": lambda m: m.setattr(engine, "target", lambda: engine.Target(HOST.cpu, HOST.features, 128, HOST.half)),
    "half": lambda m: m.setattr(
        engine, "target", lambda: engine.Target(HOST.cpu, HOST.features, HOST.vector_bytes, not HOST.half)
    ),
    "JAXPRIMS_TARGET_CPU": lambda m: m.setenv("JAXPRIMS_TARGET_CPU", "x86-64" if engine.target().x86 else "generic"),
}
HOST = engine.target()


@pytest.mark.parametrize("what", OTHERWISE)
def test_what_machine_code_depends_on_is_in_its_name(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def name() -> str | None:
        engine._settings.cache_clear()
        asked: list[str] = []

        def read(name: str) -> None:
            asked.append(name)
            raise InterruptedError

        with monkeypatch.context() as m:
            m.setattr(objects, "read", read)
            with pytest.raises(InterruptedError):
                engine.compile_cached(["kernel"], Generator(), ["f"])
        return asked[0]

    before = name()
    assert name() == before
    OTHERWISE[what](monkeypatch)
    assert name() != before
    monkeypatch.undo()
    assert name() == before


def test_after_an_edit_of_the_sources_nothing_is_read_or_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.compile_cached(["kernel"], Generator(), ["f"])
    monkeypatch.setattr(objects, "sources_now", lambda: "edited")
    objects._sources.cache_clear()
    generate = Generator()
    try:
        for _ in range(2):
            engine.compile_cached(["kernel"], generate, ["f"])
    finally:
        objects._sources.cache_clear()
    assert generate.calls == 2 and len(files(folder)) == 1


def test_the_hash_of_the_sources_sees_edits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_PACKAGE", tmp_path)
    for part in objects.SOURCES:
        (tmp_path / part).mkdir(exist_ok=True)
    generator = tmp_path / "targets" / "cpu" / "llvm" / "generator.py"
    found = [objects.sources_now()]
    for text in ("a", "bb", "cc"):
        generator.write_text(text)
        os.utime(generator, ns=(0, len(found)))
        found.append(objects.sources_now())
    assert len(set(found)) == 4 and objects.sources_now() == found[-1]


def imported(path: Path) -> Iterator[Path]:
    """The package's modules that a module of it imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for module in (base, *(base / alias.name for alias in node.names)):
                yield from (p for p in (module.with_suffix(".py"), module / "__init__.py") if p.exists())


def test_the_hash_of_the_sources_is_of_all_that_generates() -> None:
    package = objects._PACKAGE
    starts = {package / "__init__.py", package / "targets" / "__init__.py"}  # they import all there is
    found = set(
        waiting := [p for part in ("histogram", "ordered", "llvm") for p in (package / "targets" / "cpu" / part).glob("*.py")]
    )
    while waiting:
        new = set(imported(waiting.pop())) - found - starts
        found |= new
        waiting += new
    assert {str(p.parent.relative_to(package)) for p in found} <= set(objects.SOURCES)


def test_many_threads_compile_and_load(folder: Path) -> None:
    texts = [IR.replace("3.0", f"{k}.0") for k in range(6)]

    def get(k: int) -> float:
        return run(engine.compile_cached([str(k % 6)], lambda: texts[k % 6], ["f"]), 0.0)

    for _ in range(2):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(get, range(24))) == [k % 6 for k in range(24)]
    assert len(files(folder)) == 6


def test_another_process_loads_what_this_one_compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, LLVM IR is neither made nor read, until somebody wants to see it. Of a length that no other test has, so that JAX
    has no executables of these calls yet."""
    monkeypatch.setattr(compiler, "_compiled", kept := {})
    compiler._forgotten.append(kept)  # executables point to its code
    calls = "jp.cumsum(x), jp.reduce_by_index(x, x.astype(int) % 3, 3), jp.reduce(x, jnp.logaddexp, map=jnp.sin)"
    mine = eval(calls, {"jp": jp, "jnp": jnp, "x": jnp.arange(4987.0) / 7})
    program = (
        "import jax.numpy as jnp, numpy as np, jaxprims as jp\n"
        "from jaxprims.targets.cpu.llvm import engine\n"
        "def never(*args): raise AssertionError('compiled')\n"
        "emitted, engine._emitted = engine._emitted, never\n"
        "x = jnp.arange(4987.0) / 7\n"
        f"for y in [{calls}]: print(np.asarray(y).tobytes().hex())\n"
        "call, = jp.explain(jp.cumsum)(x).calls\n"
        "assert 'define' in call.llvm() and len(call.assembly()) > 100\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [bytes(memoryview(y)).hex() for y in mine]


# --- Cubins


SPILLS = """ptxas info    : 16 bytes gmem
ptxas info    : Compiling entry function 'Scan' for 'sm_90'
ptxas info    : Function properties for Scan
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 37 registers, used 2 barriers, 16 bytes cumulative stack size, 48 bytes smem, 488 bytes cmem[0]
ptxas info    : Compiling entry function 'Combine' for 'sm_90'
ptxas info    : Function properties for __internal_trig_reduction_slowpathd
    40 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for Combine
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers
"""


LOG = SPILLS.replace("8 bytes spill stores, 4", "0 bytes spill stores, 0")


def test_what_the_assembler_reports() -> None:
    assert Compiled(b"", SPILLS).resources == (Resources("Scan", 37, 48, 16, 12), Resources("Combine", 12, 0, 0, 0))


def a_spec(op: Any = jnp.add) -> Any:
    fold = simple("scan", op, jnp.dtype("float32"))
    return call_spec(fold, [jax.ShapeDtypeStruct((10,), jnp.float32)], (0,))


def test_memory_then_disk_then_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_cubin(source: str, arch: str) -> Compiled:
        compiled.append(arch)
        return Compiled(f"image for {arch}".encode(), LOG)

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    monkeypatch.setattr(cuda_compiler, "_known", {})
    spec = a_spec()
    for arch in ("sm_80", "sm_90", "sm_90"):
        assert cuda_compiler.cubin(spec, arch, "ScanRows").image == f"image for {arch}".encode()
    assert compiled == ["sm_80", "sm_90"]
    monkeypatch.setattr(cuda_compiler, "_known", {})
    assert cuda_compiler.cubin(spec, "sm_90", "ScanRows").image == b"image for sm_90"
    assert compiled == ["sm_80", "sm_90"]
    monkeypatch.setattr(nvrtc, "version", lambda: "13.1")
    monkeypatch.setattr(cuda_compiler, "_known", {})
    cuda_compiler.cubin(spec, "sm_90", "ScanRows")
    assert compiled == ["sm_80", "sm_90", "sm_90"]
    assert cuda_compiler.image(spec.text, "sm_90", "ScanRows") == b"image for sm_90"
    assert cuda_compiler.describe(spec.text, "sm_90")["state_bytes"] == 4


def test_one_kernel_of_a_source() -> None:
    spec = a_spec()
    names = cuda_compiler.kernels(spec)
    assert len(names) > 1
    for name in names:
        assert cuda_source.kernels_of(cuda_source.only(cuda_compiler.source(spec), name)) == [name]


def test_many_threads_get_one_cubin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Barrier(8)

    def compile_cubin(source: str, arch: str) -> Compiled:
        return Compiled(str(threading.get_ident()).encode(), LOG)

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    monkeypatch.setattr(cuda_compiler, "_known", {})
    spec = a_spec(jnp.maximum)

    def get(_: int) -> bytes:
        start.wait()
        return cuda_compiler.cubin(spec, "sm_90", "ScanRows").image

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(get, range(8)))) == 1


def test_a_kernel_that_spills_is_compiled_again_with_more_registers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_cubin(source: str, arch: str) -> Compiled:
        one = source.startswith("#define JP_ONE_RESIDENT\n")
        return Compiled(b"one" if one else b"several", LOG if one else SPILLS)

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    monkeypatch.setattr(cuda_compiler, "_known", {})
    assert cuda_compiler.cubin(a_spec(), "sm_90", "ScanRows").image == b"one"


def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    nvrtc.version.cache_clear()
    monkeypatch.setattr(cuda_compiler, "_known", {})
    try:
        with pytest.raises(ImportError, match=r"pip install 'jaxprims\[nvrtc\]'"):
            jp.compile_check(jp.cumsum, jax.ShapeDtypeStruct((10,), jnp.float32))
    finally:
        nvrtc.version.cache_clear()
