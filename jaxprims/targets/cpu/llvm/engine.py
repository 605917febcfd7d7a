"""LLVM as a compiler in the process: the machine it compiles for, the passes, and the linked machine code."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import threading
from collections.abc import Callable, Sequence

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from . import objects


@dataclasses.dataclass(frozen=True)
class Target:
    """The machine that kernels are compiled for."""

    cpu: str
    features: str
    vector_bytes: int  # of the widest registers: 64, 32 or 16
    half: bool  # converts between f16 and f32 in hardware
    half_arithmetic: bool = False  # and adds and multiplies them

    @property
    def x86(self) -> bool:
        return llvm.get_process_triple().startswith("x86_64")

    @property
    def fma(self) -> bool:
        """Whether it multiplies and adds with one rounding, in hardware."""
        return self.vector_bytes > 16 or not self.x86


def target() -> Target:
    """The machine this process runs on; ``JAXPRIMS_TARGET_CPU`` (``"x86-64-v3"``) names another one that it can run."""
    return _target(os.environ.get("JAXPRIMS_TARGET_CPU", ""))


def has_narrow_vectors() -> bool:
    """Are the widest of 32 bytes, or less?"""
    return target().vector_bytes <= 32


_SLOW = "sse4a"
"""AMD's own instructions on parts of a register: beside vectors of 32 bytes one takes some 50 ns (a Zen 3)."""

_LEVELS = {"x86-64": 1, "x86-64-v2": 2, "x86-64-v3": 3, "x86-64-v4": 4}


@functools.cache
def _target(cpu: str) -> Target:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if not llvm.get_process_triple().startswith("x86_64"):
        return Target(cpu or llvm.get_host_cpu_name(), "" if cpu else llvm.get_host_cpu_features().flatten(), 16, True)
    if cpu:
        level = _LEVELS.get(cpu, 1)  # of a processor whose registers are not known here: what all of them have
        return Target(cpu, f"-{_SLOW}", {4: 64, 3: 32}.get(level, 16), level >= 3)
    has = llvm.get_host_cpu_features()
    has[_SLOW] = False
    avx512 = all(has.get(f"avx512{part}") for part in ("f", "vl", "dq", "bw"))
    width = 64 if avx512 else 32 if has.get("avx2") and has.get("fma") else 16
    return Target(llvm.get_host_cpu_name(), has.flatten(), width, bool(has.get("f16c")), bool(has.get("avx512fp16")))


class Compiled:
    """Machine code in memory, for as long as this object lives."""

    def __init__(self, generate: Callable[[], str], where: Target, address: dict[str, int], library: llvm.ResourceTracker):
        self.address = address
        self._generate, self._where, self._library = generate, where, library

    @property
    def ir(self) -> str:
        """The LLVM IR, made anew: code that came from the disk never had any, and as text it is larger than the code."""
        return self._generate()

    def assembly(self) -> str:
        """The machine code as text."""
        text = self.ir
        with _lock:
            machine, _ = _jit(self._where)
            return machine.emit_assembly(_optimised(text, machine))


def module_of(name: str) -> ir.Module:
    """An empty one, for whatever machine."""
    module = ir.Module(name=name)
    module.triple = ""
    return module


_PACKED = "packed"

FEWEST_PACKED = 3
"""Scalars of a state that is stepped element by element from which on LLVM finds vectors among them: sums of 16 with a common
factor, or the three of a variance."""


def pack(module: ir.Module) -> None:
    """Says in the module that its scalars are worth packing into vectors, which takes LLVM a third as long again."""
    module.add_named_metadata(_PACKED, [ir.Constant(ir.IntType(1), 1)])


_lock = threading.RLock()
_serial = itertools.count()
_PASSES_LEVEL, _CODE_LEVEL = 1, 2  # level 2 of the passes takes half as long again for the same loops


def compile_ir(module: ir.Module | str, names: Sequence[str]) -> Compiled:
    """Compiles and links a module; ``names`` are the functions whose addresses are wanted.

    A symbol that is nowhere in the process raises RuntimeError. Safe to call from many threads.
    """
    text, where = str(module), target()
    return _linked(_emitted(text, where), names, lambda: text, where)


def compile_cached(key: Sequence[str], generate: Callable[[], ir.Module | str], names: Sequence[str]) -> Compiled:
    """Like :func:`compile_ir`, of what ``generate`` makes; or, without calling it, the machine code that was made of it before,
    by any process. ``key`` says all that it depends on beside the machine and the library."""
    where = target()
    name = objects.name_of(*key, "functions", *names, *_settings(where))
    known = objects.read(name) if name else None
    if known is not None:
        with contextlib.suppress(RuntimeError):  # a symbol is missing, or something else is wrong with it: it is made anew
            return _linked(known, names, lambda: str(generate()), where)
    made = _emitted(str(generate()), where)
    compiled = _linked(made, names, lambda: str(generate()), where)
    if name:
        objects.write(name, made)
    return compiled


@functools.cache
def _settings(where: Target) -> tuple[str, ...]:
    """What LLVM makes of IR depends on this, and so does the IR that is made for ``where``."""
    compiler = (llvmlite.__version__, llvm.llvm_version_info, _PASSES_LEVEL, _CODE_LEVEL)
    return repr(compiler), llvm.get_process_triple(), repr(where)


def _emitted(text: str, where: Target) -> objects.Object:
    with _lock:
        machine, _ = _jit(where)
        return objects.Object.of(machine.emit_object(_optimised(text, machine)))


def _linked(made: objects.Object, names: Sequence[str], generate: Callable[[], str], where: Target) -> Compiled:
    missing = [symbol for symbol in made.needs if not has_symbol(symbol)]
    if missing:  # the linker would tell, too, but not by which name, and not without a word on stderr
        raise RuntimeError(f"not in this process: {', '.join(missing)}")
    builder = llvm.JITLibraryBuilder().add_object_img(made.image).add_current_process()
    for name in names:
        builder.export_symbol(name)
    with _lock:
        library = builder.link(_jit(where)[1], f"jaxprims.{next(_serial)}")
    return Compiled(generate, where, {name: library[name] for name in names}, library)


def _optimised(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=_PASSES_LEVEL)
    tuning.loop_vectorization = True
    tuning.slp_vectorization = f"!{_PACKED} = " in text  # most kernels are written on vectors
    tuning.loop_unrolling = False  # a third of the time for nothing: what is worth unrolling was written so
    builder = llvm.create_pass_builder(machine, tuning)
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    _free(passes)
    return module


def _free(passes: llvm.ModulePassManager) -> None:
    """Frees a pass manager, 80 KB. Its class inherits an empty method before the one that would do it (llvmlite 0.50)."""
    dispose = getattr(llvm.NewPassManager, "_dispose", None)
    if dispose is not None:
        dispose(passes)
        passes.detach()  # so that an llvmlite that frees it itself does not do so again


@functools.cache
def _jit(where: Target) -> tuple[llvm.TargetMachine, llvm.LLJIT]:
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=where.cpu, features=where.features, opt=_CODE_LEVEL, reloc="pic", codemodel="small"
    )
    # JITLink lays a library's code and constants out in one piece of memory: no distance in it is ever too far
    return machine, llvm.create_lljit_compiler(machine, use_jit_link=True)


@functools.cache
def load_math_libraries() -> None:
    """Makes the C library's mathematics visible to compiled code, where it has any beyond the process's own."""
    for name in ("libm.so.6", "libmvec.so.1"):
        with contextlib.suppress(RuntimeError):
            llvm.load_library_permanently(name)


@functools.cache
def has_symbol(name: str) -> bool:
    """Whether compiled code may call ``name``."""
    load_math_libraries()
    return llvm.address_of_symbol(name) is not None


_ISA = {16: "b", 32: "d", 64: "e"}  # the x86 vector ABI's letters for SSE, AVX2 and AVX-512


def vector_function(name: str, dtype: str, width: int) -> str | None:
    """libmvec's function for ``width`` lanes of f32 or f64, or None if there is none on this machine."""
    size = width * (4 if dtype == "f32" else 8)
    where = target()
    if not where.x86 or size not in _ISA or size > where.vector_bytes:
        return None
    operands = "vv" if name in ("atan2", "pow") else "v"
    symbol = f"_ZGV{_ISA[size]}N{width}{operands}_{name}{'f' if dtype == 'f32' else ''}"
    return symbol if has_symbol(symbol) else None
