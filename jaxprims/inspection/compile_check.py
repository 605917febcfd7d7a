"""``compile_check``: a function's kernels for a GPU, compiled where there is none."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from ..operators import classify
from ..specs.kernel import KernelSpec
from ..targets.cuda import compiler as cuda_compiler
from ..targets.cuda.nvrtc import Resources
from ..targets.cuda.target import CUDA, watched

STATIC_SHARED = 48 * 1024
"""Static shared memory that a block may have on every architecture."""


@dataclasses.dataclass(frozen=True)
class CompiledKernel:
    """One kernel of a call: its name, the ``kind`` of call, the operator's name and atomic class ("" where none is used), the
    architecture, and what it takes: registers of a thread; bytes of static shared memory of a block, of a thread's stack, and
    spilled from registers. None where the compiler does not say, as of an architecture that NVRTC does not know: the driver
    assembles PTX for it."""

    name: str
    kind: str
    operator: str
    atomic: str
    target: str
    registers: int | None
    shared_bytes: int | None
    stack_bytes: int | None
    spill_bytes: int | None
    cubin: bytes = dataclasses.field(repr=False)
    source: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        atomic = f" ({self.atomic})" if self.atomic else ""
        used = "the compiler does not say what it takes"
        if self.registers is not None:
            memory = f"{self.shared_bytes} bytes shared, {self.stack_bytes} stack, {self.spill_bytes} spilled"
            used = f"{self.registers} registers, {memory}"
        return f"{self.target} {self.kind} {self.operator}{atomic}: {self.name}: {used}"


class KernelError(RuntimeError):
    """A kernel that compiles and should not be run: :func:`compile_check` says why."""


def compile_check(fn: Callable[..., Any], *args: Any, target: str = "sm_90", allow_spills: bool = False) -> list[CompiledKernel]:
    """Lowers ``fn`` for NVIDIA GPUs and compiles its kernels. No GPU and no driver are needed, only NVRTC (the extra ``nvrtc``).

    Args:
      fn: any function that ``jax.jit`` takes; jitted or not.
      args: its arguments, arrays or ``jax.ShapeDtypeStruct``.
      target: the architecture, "sm_80", "sm_90", "sm_100" ...
      allow_spills: do not raise for kernels that spill.

    Returns:
      The kernels that ``fn``'s calls of these sizes may launch, each once. A call that is plain XLA on GPUs has none.

    Raises:
      ImportError: NVRTC is not installed. TypeError: ``fn`` is not callable. ValueError: not an architecture. RuntimeError: a
      kernel does not compile, spills registers, or wants more shared memory than a block has; what tracing ``fn`` raises.

    Cost: one compilation for each different kernel, some tenths of a second; none for those in the cache on disk.

    >>> import jax, jax.numpy as jnp
    >>> import jaxprims as jp
    >>> x = jax.ShapeDtypeStruct((1_000_000,), jnp.float32)
    >>> kernels = jp.compile_check(jp.cumsum, x, target="sm_90")  # doctest: +SKIP
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function, got {fn!r}")
    if not isinstance(target, str) or not re.fullmatch(r"sm_\d{2,3}[af]?", target):
        raise ValueError(f'target must be an architecture such as "sm_90", got {target!r}')
    arch = int(re.sub(r"\D", "", target))
    jitted = fn if hasattr(fn, "trace") else jax.jit(fn)
    traced = jitted.trace(*args).jaxpr
    evaluate = jaxpr_as_fun(traced)
    given = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in traced.in_avals]
    with watched() as problems:  # a function of its own, since what was lowered before is not lowered again
        jax.jit(lambda *xs: evaluate(*xs)).trace(*given).lower(lowering_platforms=("cuda",))
    wanted = dict.fromkeys((p.family, p.spec, name) for p in problems for name in CUDA.kernels(p, arch))
    kernels = []
    for family, spec, name in wanted:
        compiled = cuda_compiler.cubin(spec, target, name)
        classes = CUDA.families[family].classes(spec, arch)
        for used in compiled.resources or (None,):  # of PTX, and where the compiler's log is empty, nothing is known
            kernels.append(_kernel(spec, name, classes, target, used, compiled.image))
            _check(kernels[-1], allow_spills)
    return kernels


def _kernel(
    spec: KernelSpec, name: str, classes: tuple[str, ...], target: str, used: Resources | None, image: bytes
) -> CompiledKernel:
    operator = ", ".join(classify.recognise(op) or "unnamed" for op in spec.operators)
    atomic = ", ".join(classes)
    return CompiledKernel(
        used.kernel if used else name,
        spec.kind,
        operator,
        atomic,
        target,
        used.registers if used else None,
        used.shared_bytes if used else None,
        used.stack_bytes if used else None,
        used.spill_bytes if used else None,
        image,
        cuda_compiler.source(spec),
    )


def _check(kernel: CompiledKernel, allow_spills: bool) -> None:
    if kernel.spill_bytes and not allow_spills:
        raise KernelError(f"a kernel spills registers: {kernel}")
    if (kernel.shared_bytes or 0) > STATIC_SHARED:
        raise KernelError(f"a kernel wants more than {STATIC_SHARED} bytes of static shared memory: {kernel}")
