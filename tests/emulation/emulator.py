"""The emulated device without JAX: kernels written in a test, arrays of NumPy."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import toolchain

NO_SUCH_CLUSTER = 912


class LaunchError(RuntimeError):
    """The driver's words."""


class _Config(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


@functools.cache
def driver() -> ctypes.CDLL:
    library = ctypes.CDLL(str(toolchain.driver_library()))
    library.jp_emulation_launches.restype = ctypes.c_char_p
    return library


def launches() -> dict[str, int]:
    """How often each kernel ran so far."""
    lines = driver().jp_emulation_launches().decode().splitlines()
    return {name: int(count) for name, count in map(str.split, lines)}


def _check(result: int) -> None:
    if result:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        driver().cuGetErrorName(result, ctypes.byref(name))
        driver().cuGetErrorString(result, ctypes.byref(text))
        raise LaunchError(f"{(name.value or b'').decode()}: {(text.value or b'').decode()}")


class Module:
    """Kernels made from ``source``, which sees the names of ``device.cuh``."""

    def __init__(self, source: str, arch: str = "sm_90"):
        self.image = toolchain.compile_cubin(f'#include "device.cuh"\nusing namespace jp;\n{source}', arch).image
        self._library = ctypes.c_void_p()
        _check(driver().cuLibraryLoadData(ctypes.byref(self._library), self.image, None, None, 0, None, None, 0))

    def _kernel(self, name: str) -> ctypes.c_void_p:
        kernel = ctypes.c_void_p()
        _check(driver().cuLibraryGetKernel(ctypes.byref(kernel), self._library, name.encode()))
        return kernel

    def clusters(self, name: str, threads: int, cluster: int) -> int:
        """How many of so many blocks there can be at once."""
        attribute, found = _Attribute(id=4), ctypes.c_int()
        attribute.value[:3] = (cluster, 1, 1)
        config = _Config(cluster, 1, 1, threads, 1, 1, 0, None, ctypes.addressof(attribute), 1)
        result = driver().cuOccupancyMaxActiveClusters(ctypes.byref(found), self._kernel(name), ctypes.byref(config))
        if result != NO_SUCH_CLUSTER:
            _check(result)
        return found.value

    def launch(
        self, name: str, blocks: int, threads: int, words: Sequence[int | np.ndarray], *, shared: int = 0, cluster: int = 1
    ) -> None:
        """``words``: the parameter's members, each 8 bytes; of an array, where it lies."""
        kernel = self._kernel(name)
        if shared > 48 * 1024:
            _check(driver().cuKernelSetAttribute(8, shared, kernel, 0))
        attribute = _Attribute(id=4)
        attribute.value[:3] = (cluster, 1, 1)
        config = _Config(blocks, 1, 1, threads, 1, 1, shared)
        if cluster > 1:
            config.attributes, config.attribute_count = ctypes.addressof(attribute), 1
        parameter = (ctypes.c_int64 * len(words))(*(w.ctypes.data if isinstance(w, np.ndarray) else int(w) for w in words))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        _check(driver().cuLaunchKernelEx(ctypes.byref(config), kernel, parameters, None))


@contextmanager
def guarded(n: int, dtype: Any) -> Iterator[np.ndarray]:
    """An array that ends where memory ends: touching what lies behind fails the launch."""
    size = n * np.dtype(dtype).itemsize
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    guard = ctypes.c_void_p(address + pages)
    if libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    try:
        yield np.frombuffer(memory, dtype, n, pages - size)
    finally:
        libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE)
