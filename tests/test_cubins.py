"""The cubins on disk, and the compiler behind them."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxprims as jp
from jaxprims.primitives.ordered_call import call_spec, simple
from jaxprims.targets import kernel_cache as cubins
from jaxprims.targets.cuda import compiler as cuda_compiler
from jaxprims.targets.cuda import nvrtc
from jaxprims.targets.cuda import source as cuda_source
from jaxprims.targets.cuda.nvrtc import Compiled, Resources


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "jaxprims"


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


def test_what_is_written_is_read(folder: Path) -> None:
    name = cubins.name_of("source", "sm_90", "13.0")
    assert cubins.read(name) is None
    cubins.write(name, Compiled(b"\x7fELF\n\0", "log\n"))
    assert cubins.read(name) == Compiled(b"\x7fELF\n\0", "log\n")
    assert [p.name for p in folder.iterdir()] == [name]


def test_names_tell_everything_apart() -> None:
    names = {cubins.name_of(*x) for x in [("a", "b", "c"), ("ab", "", "c"), ("a", "b", "d"), ("a", "c", "c"), ("x", "b", "c")]}
    assert len(names) == 5


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:40] + b"?" + b[41:], lambda b: b"x" + b, lambda b: b[:20]]
)
def test_a_damaged_file_is_as_good_as_none(folder: Path, damage: Any) -> None:
    cubins.write("name", Compiled(b"image" * 100, "log"))
    (folder / "name").write_bytes(damage((folder / "name").read_bytes()))
    assert cubins.read("name") is None
    cubins.write("name", Compiled(b"image", "log"))
    assert cubins.read("name") == Compiled(b"image", "log")


def test_a_disk_that_cannot_be_written_costs_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cubins.write("name", Compiled(b"image", "log"))
    assert cubins.read("name") is None


def test_many_processes_at_once(folder: Path) -> None:
    """Each writes its own contents under one name, again and again: whatever is read is one of them, whole."""
    program = (
        "import sys; from jaxprims.targets import kernel_cache as cubins; from jaxprims.targets.cuda.nvrtc import Compiled\n"
        "mine = bytes([int(sys.argv[1])]) * 100_000\n"
        "for _ in range(50):\n"
        "    cubins.write('name', Compiled(mine, ''))\n"
        "    found = cubins.read('name')\n"
        "    assert found is not None and len(found.image) == 100_000 and len(set(found.image)) == 1\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, str(k)]) for k in range(3)]
    assert [p.wait() for p in running] == [0, 0, 0]
    assert len(list(folder.iterdir())) == 1


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
    assert cuda_compiler.image("scan", spec.text, "sm_90", "ScanRows") == b"image for sm_90"
    assert cuda_compiler.describe("scan", spec.text, "sm_90")["state_bytes"] == 4


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
