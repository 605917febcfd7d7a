"""CPUs as a target: kernels by LLVM, run by the drivers of ``cpu/``, whose workspaces are their own."""

from __future__ import annotations

from typing import Any

from ... import _cpu
from ...specs.kernel import KernelSpec
from ...specs.problems import HistogramProblem
from .. import ffi
from ..plans import Plan
from ..registry import register_target
from ..target import Explanation, Target
from . import compiler
from .family import CpuFamily
from .histogram.family import KERNELS as HISTOGRAM_KERNELS
from .histogram.family import Groups, Histograms
from .histogram.walk import KERNELS as WALK_KERNELS
from .histogram.walk import Walks
from .llvm.engine import target
from .ordered.family import KERNELS as ORDERED_KERNELS
from .ordered.family import LARGE_KERNELS, Reductions, ScanChains, Scans, Segments, StencilReductions
from .stencil.family import KERNELS as STENCIL_KERNELS
from .stencil.family import Stencils


class Cpu(Target):
    """The host."""

    name = "cpu"
    platform = "cpu"
    weighs_apart = True
    captures_identities = True
    contracts = True
    writes_rows = True

    def __init__(self) -> None:
        self.histograms = Histograms()
        ordered = Scans(), Reductions(), Segments(), ScanChains()
        every: list[CpuFamily] = [self.histograms, Groups(), *ordered, Stencils(), StencilReductions(), Walks()]
        self.families = {family.name: family for family in every}

    @property
    def vector_bytes(self) -> int:
        return target().vector_bytes

    def serves(self, family: str) -> bool:
        return family in self.families or family == "held"

    def at(self, where: str) -> Target | None:
        return self if where == "cpu" else None

    def register(self, family: str, call_target: str) -> None:
        ffi.register(call_target, _cpu.handler(family), "cpu")

    def compile(self, problem: Any) -> None:
        self.families[problem.family].compile(problem)

    def plan(self, problem: Any) -> Plan | None:
        return self.families[problem.family].plan(problem)

    def explain(self, problem: Any) -> Explanation:
        return self.families[problem.family].explain(problem)

    def xla_pays(self, problem: Any, operation: str, in_loop: bool | None = False) -> str | None:
        return self.families[problem.family].xla_pays(problem, operation, in_loop)

    def code(self, spec: KernelSpec, variant: int, language: str) -> str:
        if language not in ("llvm", "assembly"):
            return ""
        compiled = compiler.compiled(spec, variant)
        return compiled.ir if language == "llvm" else compiled.assembly()

    def forget(self) -> None:
        compiler.forget()

    def in_place(self, problem: HistogramProblem) -> bool:
        return self.histograms.in_place(problem)


compiler.kernels["hist"] = HISTOGRAM_KERNELS
compiler.kernels |= dict.fromkeys(("scan", "reduce", "segments"), ORDERED_KERNELS)
compiler.kernels |= dict.fromkeys(("large-scan", "large-reduce", "large-segments"), LARGE_KERNELS)
compiler.kernels["stencil"] = STENCIL_KERNELS
compiler.kernels["walk"] = WALK_KERNELS
CPU = Cpu()
register_target(CPU)
