"""Futhark's multicore backend, where its compiler is found (the variable FUTHARK, or PATH).

``futhark multicore --library`` gives C and a JSON manifest of its entry points; gcc makes a shared library of it, which is
called through ctypes. Inputs and outputs stay in Futhark's context, so that only the work is timed.
"""

from __future__ import annotations

import ctypes
import functools
import json
import shutil
from typing import Any

import numpy as np

from ..contestant import Answer, Inputs, Prepare, Run
from . import build
from .arrays import threads

_SCALARS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float, "f64": ctypes.c_double}
_DTYPES = {
    "i32": np.int32,
    "i64": np.int64,
    "u32": np.uint32,
    "u8": np.uint8,
    "bool": np.bool_,
    "f32": np.float32,
    "f64": np.float64,
}


class Program:
    """A compiled Futhark program and its context."""

    def __init__(self, name: str):
        self.library, manifest = _compiled(name)
        self.entries, self.types = manifest["entry_points"], manifest["types"]
        new_config = self._function("futhark_context_config_new", ctypes.c_void_p)
        self._config = ctypes.c_void_p(new_config())
        self.library.futhark_context_config_set_num_threads(self._config, threads())
        self.context = ctypes.c_void_p(self._function("futhark_context_new", ctypes.c_void_p)(self._config))

    def _function(self, name: str, result: Any = ctypes.c_int) -> Any:
        function = getattr(self.library, name)
        function.restype = result
        return function

    def check(self, code: int) -> None:
        if code:
            text = ctypes.c_char_p(self._function("futhark_context_get_error", ctypes.c_void_p)(self.context)).value
            raise RuntimeError(f"Futhark: {(text or b'').decode()}")

    def to_device(self, array: np.ndarray, kind: str) -> ctypes.c_void_p:
        array = np.ascontiguousarray(array, _DTYPES[self.types[kind]["elemtype"]])
        new = self._function(self.types[kind]["ops"]["new"], ctypes.c_void_p)
        return ctypes.c_void_p(new(self.context, ctypes.c_void_p(array.ctypes.data), *map(ctypes.c_int64, array.shape)))

    def to_numpy(self, value: Any, kind: str) -> np.ndarray:
        if kind in _SCALARS:
            return np.asarray(value.value, _DTYPES[kind])
        described = self.types[kind]
        shape_of = self._function(described["ops"]["shape"], ctypes.POINTER(ctypes.c_int64))
        shape = shape_of(self.context, value)[: described["rank"]]
        out = np.empty(shape, _DTYPES[described["elemtype"]])
        self.check(self._function(described["ops"]["values"])(self.context, value, ctypes.c_void_p(out.ctypes.data)))
        self.check(self.library.futhark_context_sync(self.context))
        return out

    def free(self, value: Any, kind: str) -> None:
        if kind not in _SCALARS and value:
            self._function(self.types[kind]["ops"]["free"])(self.context, value)

    def prepare(self, name: str, inputs: Inputs, extra: tuple[Any, ...]) -> Run:
        """The entry point ``name`` on the inputs, in order, and then the scalars ``extra``."""
        entry = self.entries[name]
        function = self._function(entry["cfun"])
        kinds = [p["type"] for p in entry["inputs"]]
        arrays = [(self.to_device(a, kind), kind) for a, kind in zip(inputs.values(), kinds, strict=False)]
        scalars = [_SCALARS[kind](value) for value, kind in zip(extra, kinds[len(arrays) :], strict=True)]
        outputs: list[tuple[Any, str]] = [(_SCALARS.get(p["type"], ctypes.c_void_p)(), p["type"]) for p in entry["outputs"]]
        arguments = [self.context, *(ctypes.byref(o) for o, _ in outputs), *(a for a, _ in arrays), *scalars]

        def release() -> None:
            for value, kind in outputs:
                self.free(value, kind)
                value.value = 0

        def call() -> None:
            release()  # of the call before: Futhark keeps the memory for the next one
            self.check(function(*arguments))
            self.check(self.library.futhark_context_sync(self.context))

        def fetch(_: None) -> Answer:
            return tuple(self.to_numpy(value, kind) for value, kind in outputs)

        def close() -> None:
            release()
            for value, kind in arrays:
                self.free(value, kind)
            self.library.futhark_context_clear_caches(self.context)

        return Run(call, fetch, close)


@functools.cache
def program(name: str) -> Program:
    return Program(name)


def futhark(name: str, *extra: Any, file: str = "hist") -> Prepare:
    """A contestant: the entry point ``name`` of ``bench/futhark/<file>.fut``."""
    return lambda inputs: program(file).prepare(name, inputs, extra)


def version() -> str:
    return _compiled("hist")[1]["version"].split("\n")[0].rstrip(".")


@functools.cache
def _compiled(name: str) -> tuple[ctypes.CDLL, dict[str, Any]]:
    compiler, gcc = build.tool("futhark", "FUTHARK"), build.tool("gcc")
    source, out = build.SOURCES / "futhark" / f"{name}.fut", build.folder("futhark")
    target, manifest = out / f"{name}.so", out / f"{name}.json"
    if not build.newer(target, source):
        copy = shutil.copy(source, out)
        build.run([compiler, "multicore", "--library", copy])
        build.run([gcc, "-O3", "-march=native", "-w", "-fPIC", "-shared", "-o", target, out / f"{name}.c", "-lpthread", "-lm"])
    return ctypes.CDLL(str(target)), json.loads(manifest.read_text())
