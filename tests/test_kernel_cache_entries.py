"""What compilers keep on disk and find again: objects for CPUs, cubins."""

from __future__ import annotations

import ast
import concurrent.futures
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from kernel_cache_files import NAME, files

import jaxprims as jp
from jaxprims.primitives.ordered.call import call_spec, simple
from jaxprims.targets import kernel_cache
from jaxprims.targets.cpu import compiler
from jaxprims.targets.cpu.llvm import engine, objects
from jaxprims.targets.cuda import compiler as cuda_compiler
from jaxprims.targets.cuda import nvrtc
from jaxprims.targets.cuda import source as cuda_source
from jaxprims.targets.cuda.nvrtc import Compiled, Resources

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


@pytest.mark.cpu
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
