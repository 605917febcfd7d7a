"""Runs the test-suite on the emulated GPU: ``python -m pytest -p tests.emulation.plugin``.

XLA's CPU client takes the GPU's place: what is lowered for it is what would be lowered for CUDA, its custom calls are those of
the CUDA half, and that half's driver is the emulation. It must be the first to import jaxprims.

``JAXPRIMS_EMULATION_WAITS=1``: tiles of scans wait in shared memory wherever they are chained, not only in long sequences.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any
from unittest import mock

import jax
from jax.interpreters import mlir

from . import toolchain

as_long_as_it_runs = contextlib.ExitStack()


def install() -> None:
    """From now on this process's CPU is a GPU. Once more: does nothing."""
    if os.environ.get("JAXPRIMS_EMULATED") == str(os.getpid()):
        return
    if "jaxprims" in sys.modules:
        raise RuntimeError("the emulation must be installed before jaxprims is imported")
    os.environ["JAXPRIMS_EMULATED"] = str(os.getpid())
    os.environ["JAXPRIMS_CUDA_DRIVER"] = str(toolchain.driver_library())
    with mock.patch.object(jax.ffi, "register_ffi_target", lambda *args, **kwargs: None):  # their names are the emulation's
        import jaxprims
        from jaxprims import _cuda
    from jaxprims.primitives.histogram.group import group_p
    from jaxprims.targets import registry
    from jaxprims.targets.cuda.target import Cuda

    class Emulated(Cuda):
        """The CUDA half on the host."""

        platform = "cpu"

        def register(self, family: str, call_target: str) -> None:
            jax.ffi.register_ffi_target(call_target, _cuda.host_handler(family), platform="cpu")

    registry.register_target(Emulated())
    groups = registry.family_of(group_p)
    mlir.register_lowering(group_p, mlir.lower_fun(groups.plain, multiple_results=True), platform="cpu")
    assert jaxprims
    _compile_by_host()
    if "JAXPRIMS_EMULATION_WAITS" in os.environ:
        from jaxprims.targets.cuda.plans import ScanPlan
        from jaxprims.targets.plans import forced

        as_long_as_it_runs.enter_context(forced(ScanPlan(waits=True)))


def _compile_by_host() -> None:
    from jaxprims.targets import kernel_cache as cubins
    from jaxprims.targets.cuda import compiler as cuda_compiler
    from jaxprims.targets.cuda import nvrtc

    def compile_cubin(source: str, arch: str) -> Any:
        compiled = toolchain.compile_cubin(source, arch)
        return nvrtc.Compiled(compiled.image, compiled.log)

    cuda_compiler.skeleton_folders.insert(0, toolchain.HERE)
    nvrtc.compile_cubin = compile_cubin
    nvrtc.version = lambda: "emulation"
    cubins.read = lambda name: None  # the toolchain has a cache of its own
    cubins.write = lambda name, compiled: None


install()
