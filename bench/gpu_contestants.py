"""The contestants on a GPU. Each makes a :class:`~bench.gpu_measure.Work` of the same JAX arrays, whose memory the others share
(by DLPack, or by their addresses)."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .contestant import Missing
from .gpu_measure import Arrays, Work, on_gpu
from .peers import build, futhark
from .peers.arrays import module

Prepare = Callable[[list[Arrays]], Work]


def need_gpu(who: str) -> None:
    if not on_gpu():
        raise Missing(f"{who}: no GPU")


# --- JAX -------------------------------------------------------------------------------------------------------------------


def xla(fn: Callable[..., Any], convert: Callable[..., Any] | None = None) -> Prepare:
    """``fn(*arrays)`` under jit; ``convert`` first makes of the inputs what it likes best, outside the timing."""

    def prepare(inputs: list[Arrays]) -> Work:
        made = [tuple(convert(*x)) for x in inputs] if convert else inputs
        compiled = jax.jit(lambda *xs: fn(*xs))
        return Work(lambda k: compiled(*made[k % len(made)]))

    return prepare


@dataclasses.dataclass(frozen=True)
class jaxprims:
    """``fn(jaxprims, *arrays)`` under jit, traced with a plan if one is given; ``convert`` as for :func:`xla`."""

    fn: Callable[..., Any]
    plan: Any = None
    convert: Callable[..., Any] | None = None

    def __call__(self, inputs: list[Arrays]) -> Work:
        jp = module("jaxprims")
        made = [self.converted(x) for x in inputs]
        compiled = jax.jit(lambda *xs: self.fn(jp, *xs))
        if self.plan is not None:
            with module("jaxprims.targets.plans").forced(self.plan):
                jax.block_until_ready(compiled(*made[0]))
        return Work(lambda k: compiled(*made[k % len(made)]))

    def converted(self, arrays: Arrays) -> Arrays:
        return tuple(self.convert(*arrays)) if self.convert else arrays

    def function(self) -> Callable[..., Any]:
        """Of the arrays, for those who ask about kernels and plans."""
        jp = module("jaxprims")
        return lambda *arrays: self.fn(jp, *arrays)


# --- PyTorch, CuPy ---------------------------------------------------------------------------------------------------------


def torch(fn: Callable[..., Any], convert: Callable[..., Any] | None = None) -> Prepare:
    """``fn(torch, *tensors)``; ``convert(torch, *tensors)`` as for :func:`xla`."""

    def prepare(inputs: list[Arrays]) -> Work:
        t = module("torch")
        need_gpu("PyTorch")
        if not t.cuda.is_available():
            raise Missing("this PyTorch has no CUDA")
        made = [tuple(t.from_dlpack(a) for a in x) for x in inputs]
        if convert:
            made = [tuple(convert(t, *x)) for x in made]
        t.cuda.synchronize()
        return Work(lambda k: fn(t, *made[k % len(made)]), lambda _: t.cuda.synchronize(), _from_dlpack)

    return prepare


def cupy(fn: Callable[..., Any], convert: Callable[..., Any] | None = None) -> Prepare:
    """``fn(cupy, *arrays)``; ``convert(cupy, *arrays)`` as for :func:`xla`."""

    def prepare(inputs: list[Arrays]) -> Work:
        cp = module("cupy")
        need_gpu("CuPy")
        made = [tuple(cp.from_dlpack(a) for a in x) for x in inputs]
        if convert:
            made = [tuple(convert(cp, *x)) for x in made]
        stream = cp.cuda.get_current_stream()
        stream.synchronize()
        return Work(lambda k: fn(cp, *made[k % len(made)]), lambda _: stream.synchronize(), _from_dlpack)

    return prepare


def _from_dlpack(result: Any) -> Arrays:
    parts = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(jnp.from_dlpack(_contiguous(p)) for p in parts)


def _contiguous(array: Any) -> Any:
    if hasattr(array, "contiguous"):
        return array.contiguous()
    return array if array.flags.c_contiguous else array.copy()


# --- CUB, compiled by nvcc -------------------------------------------------------------------------------------------------

ARCHITECTURES = os.environ.get("BENCH_CUDA_ARCH", "")


def nvcc() -> str:
    found = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if not found:
        raise Missing("no nvcc on this machine")
    return found


def _arch() -> str:
    if ARCHITECTURES:
        return ARCHITECTURES
    capability = str(getattr(jax.devices()[0], "compute_capability", "9.0"))
    return "sm_" + re.sub(r"\D", "", capability)


@functools.cache
def cub_library(name: str) -> ctypes.CDLL:
    """``bench/native/cub_<name>.cu``, built when its source has changed."""
    source = build.SOURCES / "native" / f"cub_{name}.cu"
    target = build.folder("cub") / f"cub_{name}-{_arch()}.so"
    if not build.newer(target, source, source.with_name("cub.h")):
        compiled = target.with_suffix(".tmp")
        options = ["-std=c++17", "-O3", f"-arch={_arch()}", "--shared", "-Xcompiler", "-fPIC,-fvisibility=hidden"]
        build.run([nvcc(), *options, "-o", compiled, source])
        compiled.replace(target)
    return ctypes.CDLL(str(target))


def address(array: jax.Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.unsafe_buffer_pointer())


def empty(shape: Sequence[int], dtype: Any) -> jax.Array:
    """Memory for a result of those who write through an address."""
    return jax.block_until_ready(jnp.zeros(shape, dtype))


def _check(code: int, name: str) -> None:
    if code:
        raise RuntimeError(f"CUB's {name}: CUDA error {code}")


def cub(
    library: str,
    name: str,
    outputs: Callable[..., list[jax.Array]],
    sizes: Callable[..., list[int]],
    convert: Callable[..., Any] | None = None,
    answer: Callable[..., Any] = lambda *outs: outs,
    clear: bool = False,
) -> Prepare:
    """An entry of ``bench/native/cub_<library>.cu``: temporary memory, inputs, ``outputs(*inputs)``, ``sizes(*inputs)``.

    ``answer`` makes of the outputs what the others return, outside the timing.
    """

    def prepare(inputs: list[Arrays]) -> Work:
        need_gpu("CUB")
        lib = cub_library(library)
        entry = getattr(lib, name)
        made = [tuple(jax.block_until_ready(x) for x in convert(*xs)) for xs in inputs] if convert else inputs
        outs = outputs(*made[0])
        numbers = [ctypes.c_int64(s) for s in sizes(*made[0])]
        wanted = ctypes.c_size_t(0)

        def arguments(k: int) -> list[Any]:
            return [*(address(a) for a in made[k % len(made)]), *(address(o) for o in outs), *numbers]

        _check(entry(None, ctypes.byref(wanted), *arguments(0)), name)
        temporary = empty((max(1, wanted.value),), np.uint8)
        calls = [[address(temporary), ctypes.byref(wanted), *arguments(k)] for k in range(len(made))]
        keep = (temporary, made)  # alive as long as the addresses are used

        def enqueue(k: int) -> Any:
            _check(entry(*calls[k % len(keep[1])]), name)
            return outs

        def wait(_: Any) -> None:
            _check(library_synchronize(), "synchronize")

        return Work(enqueue, wait, lambda o: tuple(jax.tree.leaves(answer(*o))))

    return prepare


def library_synchronize() -> int:
    return cub_library("ordered").synchronize()


def plain(name: str, outputs: Callable[..., list[jax.Array]], sizes: Callable[..., list[int]]) -> Prepare:
    """Like :func:`cub`, of an entry that wants no temporary memory."""

    def prepare(inputs: list[Arrays]) -> Work:
        need_gpu(name)
        entry = getattr(cub_library("ordered"), name)
        outs = outputs(*inputs[0])
        numbers = [ctypes.c_int64(s) for s in sizes(*inputs[0])]

        def enqueue(k: int) -> Any:
            _check(entry(*(address(a) for a in inputs[k % len(inputs)]), *(address(o) for o in outs), *numbers), name)
            return outs

        return Work(enqueue, lambda _: _check(library_synchronize(), "synchronize"))

    return prepare


# --- cuda.compute: CUB from Python -----------------------------------------------------------------------------------------


def compute(fn: Callable[..., Callable[[], Any]], answer: Callable[..., Any] = lambda *outs: outs) -> Prepare:
    """``fn(cuda.compute, cupy, *arrays)`` returns (a call, its results)."""

    def prepare(inputs: list[Arrays]) -> Work:
        need_gpu("cuda.compute")
        library, cp = module("cuda.compute"), module("cupy")
        made: list[Any] = [fn(library, cp, *(cp.from_dlpack(a) for a in x)) for x in inputs[:2]]
        stream = cp.cuda.get_current_stream()

        def enqueue(k: int) -> Any:
            call, outs = made[k % len(made)]
            call()
            return outs

        return Work(enqueue, lambda _: stream.synchronize(), lambda outs: tuple(jax.tree.leaves(answer(*_from_dlpack(outs)))))

    return prepare


# --- Futhark's CUDA backend ------------------------------------------------------------------------------------------------


class FutharkProgram(futhark.Program):
    """A program compiled by ``futhark cuda``, and its kernels by NVRTC, which takes long: once, into a file."""

    def __init__(self, name: str, compiling: bool = False):
        self.library, manifest = futhark_library(name)
        cache = _futhark_folder() / f"{name}.kernels"
        if not compiling and not cache.exists():
            raise Missing(f"Futhark's kernels of {name} were not compiled beforehand (python -m bench.gpu_build)")
        self.entries, self.types = manifest["entry_points"], manifest["types"]
        self._config = ctypes.c_void_p(self._function("futhark_context_config_new", ctypes.c_void_p)())
        self.library.futhark_context_config_set_cache_file(self._config, str(cache).encode())
        self.context = ctypes.c_void_p(self._function("futhark_context_new", ctypes.c_void_p)(self._config))
        error = self._function("futhark_context_get_error", ctypes.c_void_p)(self.context)
        if error:
            raise Missing(f"Futhark's CUDA backend: {(ctypes.c_char_p(error).value or b'').decode()[:300]}")

    def work(self, name: str, inputs: Arrays, extra: tuple[Any, ...]) -> Work:
        run = self.prepare(name, {str(k): np.asarray(a) for k, a in enumerate(inputs)}, extra)
        return Work(lambda _: run.call(), lambda _: None, lambda r: tuple(map(jnp.asarray, run.fetch(r))))


@functools.cache
def _futhark_program(name: str) -> FutharkProgram:
    return FutharkProgram(name)


def _futhark_folder() -> Path:
    folder = build.SOURCES / "build" / "futhark-cuda"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def futhark_library(name: str) -> tuple[ctypes.CDLL, dict[str, Any]]:
    """The C that ``futhark cuda`` made, of an earlier run or of another machine, is enough: its compiler need not be here."""
    source, out = build.SOURCES / "futhark" / f"{name}.fut", _futhark_folder()
    text, manifest, target = out / f"{name}.c", out / f"{name}.json", out / f"{name}.so"
    if not text.exists():
        shutil.copy(source, out)
        build.run([build.tool("futhark", "FUTHARK"), "cuda", "--library", out / f"{name}.fut"])
    if not build.newer(target, text):
        shim = build.SOURCES / "futhark" / "cuda13.h"
        options = ["-O2", "-w", "-fPIC", "-shared", f"-I{toolkit()}/include", "-include", str(shim)]
        build.run([build.tool("gcc"), *options, "-o", target, text, "-lm", "-lpthread"])
    for library in ("cuda", "cudart", "nvrtc"):
        _load_globally(library)
    return ctypes.CDLL(str(target)), json.loads(manifest.read_text())


def toolkit() -> Path:
    """The CUDA toolkit's folder."""
    places = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", *(str(p) for p in list(Path(nvcc()).resolve().parents)[1:2])]
    found = [Path(p) for p in places if p and (Path(p) / "include" / "cuda.h").exists()]
    if not found:
        raise Missing("no CUDA headers on this machine")
    return found[0]


def _load_globally(name: str) -> None:
    """One of CUDA's libraries, for those that were linked without it."""
    wheels = [p for folder in sys.path for p in sorted(Path(folder).glob(f"nvidia/*/lib/lib{name}.so.*"))]
    for path in (f"lib{name}.so.1", f"lib{name}.so.13", f"lib{name}.so", f"{toolkit()}/lib64/lib{name}.so", *map(str, wheels)):
        try:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
            return
        except OSError:
            continue
    raise Missing(f"lib{name} cannot be loaded")


def futhark_cuda(name: str, *extra: Any, file: str = "hist") -> Prepare:
    """The entry point ``name`` of ``bench/futhark/<file>.fut`` by Futhark's CUDA backend; each call waits for its end."""

    def prepare(inputs: list[Arrays]) -> Work:
        need_gpu("Futhark")
        return _futhark_program(file).work(name, inputs[0], extra)

    return prepare


def versions() -> dict[str, str]:
    """Of what takes part."""
    found: dict[str, str] = {}
    for name in ("jax", "jaxlib", "numpy", "torch", "cupy", "cuda.compute", "cuda.core"):
        try:
            found[name] = str(getattr(importlib.import_module(name), "__version__", "present"))
        except Exception:  # an installed library may not load on this machine
            continue
    try:
        text = subprocess.run([nvcc(), "--version"], capture_output=True, text=True).stdout
        found["nvcc"] = match.group(1) if (match := re.search(r"release ([\d.]+)", text)) else "present"
    except (Missing, OSError):
        pass
    return found
