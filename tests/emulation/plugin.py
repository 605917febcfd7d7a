"""Runs the test-suite on the emulated GPU: ``python -m pytest -p tests.emulation.plugin``.

XLA's CPU client takes the GPU's place: what is lowered for it is what would be lowered for CUDA, its custom calls are those of
the CUDA half, and that half's driver is the emulation. It must be the first to import jaxprims.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any
from unittest import mock

import jax
from jax.interpreters import mlir

from . import toolchain


def install() -> None:
    """From now on this process's CPU is a GPU. Once more: does nothing."""
    if os.environ.get("JAXPRIMS_EMULATED") == str(os.getpid()):
        return
    if "jaxprims" in sys.modules:
        raise RuntimeError("the emulation must be installed before jaxprims is imported")
    os.environ["JAXPRIMS_EMULATED"] = str(os.getpid())
    os.environ["JAXPRIMS_CUDA_DRIVER"] = str(toolchain.driver_library())
    register = jax.ffi.register_ffi_target
    with mock.patch.object(jax.ffi, "register_ffi_target", lambda *args, **kwargs: None):
        from jaxprims.targets import ffi
    from jaxprims import _cpu, _cuda

    register(ffi.GROUP, _cpu.group_handler(), platform="cpu")
    for family, name in (("hist", ffi.HIST), ("scan", ffi.SCAN), ("reduce", ffi.REDUCE), ("segments", ffi.SEGMENTS)):
        register(name, getattr(_cuda, f"{family}_handler")(host=True), platform="cpu")
    _lower_on_cpu()
    _compile_by_host()


def _lower_on_cpu() -> None:
    from jaxprims.primitives import group, reduce, scan, segments
    from jaxprims.primitives import histogram as hist
    from jaxprims.targets import ffi
    from jaxprims.targets.registry import CUDA

    mlir.register_lowering(hist.histogram_p, functools.partial(hist._lower, target=CUDA), platform="cpu")
    ordered = (
        (scan.scan_p, ffi.SCAN, "scan"),
        (reduce.reduce_p, ffi.REDUCE, "reduce"),
        (segments.segments_p, ffi.SEGMENTS, "segments"),
    )
    for primitive, name, family in ordered:
        rule = functools.partial(scan._lower, primitive=primitive, name=name, family=family, target=CUDA)
        mlir.register_lowering(primitive, rule, platform="cpu")
    mlir.register_lowering(group.group_p, mlir.lower_fun(group._plain, multiple_results=True), platform="cpu")


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
