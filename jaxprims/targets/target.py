"""``Target``: everything that is asked of a platform with kernels."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import jax

from ..specs.kernel import KernelSpec
from ..specs.problems import HistogramProblem, Problem
from . import ffi
from .plans import Plan, plan_among


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A plan in words; what it takes beside operands and results; the kernel's variant; each operator's class, where there are
    several ways to update."""

    strategy: str
    reason: str
    workspace_bytes: int = 0
    variant: int = -1
    classes: tuple[str, ...] = ()


UNKNOWN_SIZES = Explanation("chosen when the call runs", "sizes are not known yet")


def bytes_in_words(n: int) -> str:
    for unit in ("bytes", "KB", "MB"):
        if n < 10_000:
            return f"{n} {unit}"
        n //= 1024
    return f"{n} GB"


class Target(abc.ABC):
    """A platform that kernels are compiled for. :func:`jaxprims.targets.registry.register_target` makes it known."""

    name: ClassVar[str]
    platform: str
    """XLA's name of it, for lowering."""
    captures_identities = False
    """May working copies start from an identity that is made of captured arrays, when the call runs?"""
    contracts = False
    """Do kernels round products and sums once, where a Program allows it (``ir.contraction``), as XLA does there?"""
    weighs_apart = False
    """Are histograms by operators that keep an extreme, and sums relative to it, faster as an extreme and then sums?"""
    fuses_reductions = False
    """Does XLA make what a reduction reads in its own loop, and several reductions of the same in one?"""
    writes_rows = False
    """Are histograms in which each element has a bin of its own written as maps? If not, they are plain XLA."""

    @property
    def vector_bytes(self) -> int | None:
        """Of the widest vectors; None where there are none."""
        return None

    @abc.abstractmethod
    def serves(self, family: str) -> bool:
        """Are there kernels for this family? If not, its calls are plain XLA here."""

    @abc.abstractmethod
    def at(self, where: str) -> Target | None:
        """The target as :func:`jaxprims.explain` names it, "cpu" or "sm_90" say; None if that is not this one. Raises ValueError
        for one of its own that is not known."""

    @abc.abstractmethod
    def register(self, family: str, call_target: str) -> None:
        """Makes XLA know the handlers of a family. Once more: does nothing."""

    @abc.abstractmethod
    def compile(self, problem: Any) -> None:
        """Compiles what can be compiled now, so that errors show when a function is compiled."""

    @abc.abstractmethod
    def plan(self, problem: Any) -> Plan | None:
        """How a call would be run, whose sizes must be known; None where there is one way only."""

    @abc.abstractmethod
    def explain(self, problem: Any) -> Explanation:
        """The plan in words."""

    def workspace(self, problem: Any) -> jax.core.ShapedArray | None:
        """The memory that a call wants beside its results, if XLA is to give it."""
        return None

    def lower(
        self,
        ctx: Any,
        call_target: str,
        operands: Any,
        problem: Problem,
        masks: tuple[int, ...],
        rank: int,
        attributes: dict[str, Any],
        aliases: dict[int, int] | None,
    ) -> Any:
        """The call's results in a module that is being lowered: by a handler's call of this name. ``masks``: the batch axes, of
        ``rank``, that each operand has."""
        plan, workspace = plan_among(problem.plans, self.name, problem.family), self.workspace(problem)
        numbers = () if plan is None else plan.numbers(problem)
        every = {**attributes, "devices": problem.devices}
        given = ctx, call_target, operands, problem.spec, masks, rank, numbers, workspace, aliases, problem.arrays
        return ffi.lower_call(*given, **every)

    @abc.abstractmethod
    def code(self, spec: KernelSpec, variant: int, language: str) -> str:
        """The kernel as text: "llvm" and "assembly", or "cuda"; empty where a target knows no such."""

    @abc.abstractmethod
    def forget(self) -> None:
        """Drops what is remembered of kernels in this process, so that the next call finds or compiles them anew. What
        executables point to stays."""

    def takes(self, problem: Any) -> bool:
        """Are there kernels for this problem of a family that is served?"""
        return True

    def xla_pays(self, problem: Any, operation: str, in_loop: bool | None = False) -> str | None:
        """Is XLA's own operation, which does the whole call, faster here than a kernel? Why, in words. ``in_loop``: in a loop's
        body; None where that is not known."""
        return None

    # --- what differs between targets in how histograms are made ------------------------------------------------------

    def in_place(self, problem: HistogramProblem) -> bool:
        """Would a histogram be made in the result's own arrays?"""
        return False

    def sorts(self, *, sorted_indices: bool, deterministic: bool) -> bool:
        """Is a histogram a segmented reduction here?"""
        return False
