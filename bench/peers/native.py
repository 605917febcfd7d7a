"""The hand-written C++ of ``bench/native``: a sequential loop, or OpenMP with private tables. Also the memory limit."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from ..contestant import Inputs, Missing, Prepare, Run
from . import build
from .arrays import module, threads

SUFFIXES = importlib.machinery.EXTENSION_SUFFIXES


@functools.cache
def library() -> ModuleType:
    """The compiled module, built at the first call."""
    pybind11, cmake, out, source = module("pybind11"), build.tool("cmake"), build.folder("native"), build.SOURCES / "native"
    target = out / f"bench_native{SUFFIXES[0]}"
    if not build.newer(target, *source.iterdir()):
        where = {"Python_EXECUTABLE": sys.executable, "pybind11_DIR": pybind11.get_cmake_dir()}
        build.run([cmake, "-S", source, "-B", out, *(f"-D{k}={v}" for k, v in where.items())])
        build.run([cmake, "--build", out, "--parallel", str(threads())])
    spec = importlib.util.spec_from_file_location("bench_native", target)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


Outputs = Callable[[Inputs], tuple[np.ndarray, ...]]


def native(name: str, *extra: Any, outputs: Outputs | None = None) -> dict[str, Prepare]:
    """Two contestants: ``name`` of the module with a thread for each core, and as a sequential loop.

    It is called with the inputs, the ``outputs`` (arrays that it fills; made once), the extra arguments and the threads.
    """

    def prepare(inputs: Inputs, count: int) -> Run:
        fn, arrays = getattr(library(), name), tuple(inputs.values())
        if outputs is None:
            return Run(lambda: fn(*arrays, *extra, count))
        return _filling(lambda out: fn(*arrays, *out, *extra, count), outputs(inputs))

    return {"native": lambda inputs: prepare(inputs, threads()), "sequential": lambda inputs: prepare(inputs, 1)}


def tbb(name: str, outputs: Outputs) -> dict[str, Prepare]:
    """``name`` of the module: one of the C++ library's parallel algorithms, whose threads are TBB's."""

    def prepare(inputs: Inputs) -> Run:
        fn = getattr(library(), name, None)
        if fn is None:
            raise Missing("no TBB was found when bench/native was built (CMAKE_PREFIX_PATH may name its directory)")
        return _filling(lambda out: fn(*inputs.values(), *out), outputs(inputs))

    return {"tbb": prepare}


def _filling(fill: Callable[[tuple[np.ndarray, ...]], Any], out: tuple[np.ndarray, ...]) -> Run:
    def call() -> Any:
        fill(out)
        return out

    return Run(call)


def memory_limit(inputs: Inputs, output_bytes: int) -> Run:
    """Reads every input and writes as many bytes as the answer has, and does nothing else."""
    arrays, out, count = list(inputs.values()), np.empty(output_bytes, np.uint8), threads()
    try:
        touch = library().touch
    except Missing:  # NumPy on one core, which saturates memory on many machines
        words = [a.reshape(-1).view(np.int32) for a in arrays]

        def read_and_fill() -> None:
            for w in words:
                np.add.reduce(w, dtype=np.int32)
            out.fill(1)

        return Run(read_and_fill)
    return Run(lambda: touch(arrays, out, count))


def copy(source: np.ndarray, target: np.ndarray) -> Run:
    """Copies one array to another with all threads and ordinary stores."""
    return _copy("copy", source, target)


def stream(source: np.ndarray, target: np.ndarray) -> Run:
    """Copies one array to another with all threads and stores that pass the caches by."""
    return _copy("copy_streaming", source, target)


def _copy(name: str, source: np.ndarray, target: np.ndarray) -> Run:
    try:
        fn = getattr(library(), name)
    except Missing:
        return Run(lambda: np.copyto(target, source))
    count = threads()
    return Run(lambda: fn(source, target, count))
