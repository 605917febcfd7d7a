"""The CUDA driver: kernels from cubins, launched one behind the other. Where the environment variable JAXPRIMS_CUDA_DRIVER names
another one, that one, as in jaxprims itself."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from ..contestant import Missing
from .launches import Launch

MULTIPROCESSORS, MAJOR, MINOR = 16, 75, 76
"""Numbers of a device's attributes."""


class _Config(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class Driver:
    """The first device and its primary context."""

    def __init__(self) -> None:
        name = os.environ.get("JAXPRIMS_CUDA_DRIVER") or "libcuda.so.1"
        try:
            self.library = ctypes.CDLL(name)
        except OSError as error:
            raise Missing(f"no CUDA driver ({error})") from error
        self.call("cuInit", 0)
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.context = ctypes.c_void_p()
        if hasattr(self.library, "cuDevicePrimaryCtxRetain"):
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.multiprocessors = self._attribute(MULTIPROCESSORS)
        self.arch = f"sm_{self._attribute(MAJOR)}{self._attribute(MINOR)}"

    def call(self, name: str, *args: Any) -> None:
        code = getattr(self.library, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: error {code}: {(text.value or b'').decode()}")

    def use(self) -> None:
        """Makes the context this thread's."""
        if self.context:
            self.call("cuCtxSetCurrent", self.context)

    def wait(self) -> None:
        """For all launches."""
        if hasattr(self.library, "cuCtxSynchronize"):
            self.call("cuCtxSynchronize")

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value


@functools.cache
def driver() -> Driver:
    return Driver()


class Kernels:
    """Kernels of one text. ``cubin``: of one of them."""

    def __init__(self, cubin: Callable[[str], bytes]) -> None:
        self.driver = driver()
        self.multiprocessors = self.driver.multiprocessors
        self._cubin = cubin
        self._loaded: dict[str, tuple[ctypes.c_void_p, bytes]] = {}

    def resident(self, kernel: str, threads: int) -> int:
        """Blocks of a kernel that are on the device at once."""
        blocks = ctypes.c_int()
        handle, of = self._handle(kernel), "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self.driver.call(of, ctypes.byref(blocks), handle, threads, ctypes.c_size_t(0))
        return max(1, blocks.value * self.multiprocessors)

    def prepared(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """Launches them in order, on the default stream."""
        made = []
        for launch in launches:
            config = _Config(launch.blocks, 1, 1, launch.threads, 1, 1, 0)
            words = (ctypes.c_int64 * len(launch.words))(*launch.words)
            parameters = (ctypes.c_void_p * 1)(ctypes.addressof(words))
            made.append((config, self._handle(launch.kernel), parameters, words))

        def run() -> None:
            for config, handle, parameters, _ in made:
                self.driver.call("cuLaunchKernelEx", ctypes.byref(config), handle, parameters, None)

        return run

    def _handle(self, name: str) -> ctypes.c_void_p:
        if name not in self._loaded:
            library, kernel, image = ctypes.c_void_p(), ctypes.c_void_p(), self._cubin(name)
            self.driver.call("cuLibraryLoadData", ctypes.byref(library), image, None, None, 0, None, None, 0)
            self.driver.call("cuLibraryGetKernel", ctypes.byref(kernel), library, name.encode())
            self._loaded[name] = kernel, image
        return self._loaded[name][0]
