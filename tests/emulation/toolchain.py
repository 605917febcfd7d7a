"""g++ in place of NVRTC: kernels as shared libraries of the host, and the driver that runs them."""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import hashlib
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
PLANS = ROOT / "cuda" / "plans"

COMPILER = os.environ.get("CXX", "g++")
_COMMON = ["-shared", "-fPIC", "-ffp-contract=off", "-w"]
# What hardware punishes, or does otherwise than the host.
_UNDEFINED = "alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero,bool,float-cast-overflow"
# Shared memory is thread-local storage to the compiler, to be looked up where the running block's lies. No library of the
# sanitizer's: what it calls is in undefined.h. Not optimised: to compile a kernel takes longer than to run it a few times.
KERNEL_FLAGS = ["-std=c++17", "-O0", "-ftls-model=global-dynamic", "-fvisibility=hidden", "-fno-gnu-unique", *_COMMON]
KERNEL_FLAGS += [f"-fsanitize={_UNDEFINED}", "-fno-sanitize-recover=all", "-fno-rtti", "-fno-exceptions", "-nostdlib"]
KERNEL_FLAGS += ["-fstack-clash-protection"]  # a deep frame touches each page on its way: the guard page, before what lies below
ORDER_FLAGS = ["-DJP_CHECK_ORDER", "-fsanitize=thread", "-g1"]  # slow, so only where JAXPRIMS_EMULATION_ORDER is set
KERNEL_FLAGS += ["-D_GLIBCXX_INCLUDE_NEXT_C_HEADERS"]  # C's math.h: C++'s takes a quarter of a kernel's compilation
KERNEL_LIBRARIES = ["-lm", "-lc", "-lgcc"]
DRIVER_FLAGS = ["-std=c++20", "-O1", *_COMMON]
AT_ONCE = 2
_SPEC = "\nnamespace spec {"


@dataclasses.dataclass(frozen=True)
class Compiled:
    image: bytes
    log: str


class CompileError(RuntimeError):
    """The compiler's messages."""


def cache_folder() -> pathlib.Path:
    chosen = os.environ.get("JAXPRIMS_EMULATION_CACHE")
    folder = pathlib.Path(chosen) if chosen else pathlib.Path(tempfile.gettempdir()) / f"jaxprims-emulation-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def compile_cubin(source: str, arch: str) -> Compiled:
    """What stands in for ``jaxprims.targets.cuda.nvrtc.compile_cubin``: ``arch`` is known to the kernel, no more."""
    flags = [
        *KERNEL_FLAGS,
        *(ORDER_FLAGS if os.environ.get("JAXPRIMS_EMULATION_ORDER") else ()),
        f"-DJP_ARCH={int(arch.removeprefix('sm_').rstrip('a'))}",
        f"-I{HERE}",
        f"-I{PLANS}",
    ]
    headers = [(HERE / name).read_text() for name in ("device.cuh", "thread.h", "undefined.h", "order.h")]
    headers.append((PLANS / "host_device.h").read_text())
    same, spec, own = source.partition(_SPEC)
    if spec:  # what is before it is the same in all kernels of the library, and is compiled once
        head = _cached("head", [same, *headers], [*flags, "-x", "c++-header"], made=".h.gch")
        source = f'#include "{head.name.removesuffix(".gch")}"{spec}{own}'
    path = _cached("kernel", [source, *headers], flags, KERNEL_LIBRARIES)
    return Compiled(path.read_bytes(), "")


@functools.cache
def driver_library() -> pathlib.Path:
    """The driver, for the environment variable ``JAXPRIMS_CUDA_DRIVER``."""
    parts = [(HERE / name).read_text() for name in ("driver.cc", "grid.h", "fibers.h", "memory_order.h", "thread.h")]
    parts.append((ROOT / "cuda" / "launcher" / "driver.h").read_text())
    return _cached("driver", parts, [*DRIVER_FLAGS, f"-I{HERE}", f"-I{ROOT / 'cuda' / 'launcher'}"])


def _cached(
    what: str, known: Sequence[str], flags: Sequence[str], libraries: Sequence[str] = (), made: str = ".so"
) -> pathlib.Path:
    """Made from the first text; the others are those that it includes."""
    key = hashlib.sha256("\0".join([COMPILER, *flags, *known]).encode()).hexdigest()[:24]
    out = cache_folder() / f"{what}-{key}{made}"
    if out.exists():
        return out
    with _turn():
        if not out.exists():
            text = out.with_suffix("" if made == ".h.gch" else ".cc")  # stays: messages quote its lines
            _write(text, known[0].encode())
            fresh = out.with_suffix(f".{os.getpid()}{out.suffix}")
            command = [COMPILER, *flags, str(text), "-o", str(fresh), *libraries]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CompileError(f"{text}:\n{done.stderr}")
            fresh.rename(out)
    return out


def _write(path: pathlib.Path, data: bytes) -> None:
    fresh = path.with_suffix(f".{os.getpid()}.tmp")
    fresh.write_bytes(data)
    fresh.rename(path)


@contextmanager
def _turn() -> Iterator[None]:
    """At most :data:`AT_ONCE` compilers run on this machine, whatever number of processes test."""
    files = [(cache_folder() / f"turn-{k}").open("w") for k in range(AT_ONCE)]
    try:
        for file in files:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
        else:  # all are taken
            fcntl.flock(files[os.getpid() % AT_ONCE], fcntl.LOCK_EX)
        yield
    finally:
        for file in files:
            file.close()
