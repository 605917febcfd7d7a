"""``CpuFamily``: a family of calls on CPUs. The choices are the drivers' own (``cpu/*_plan.h``), asked for by name."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from ... import _cpu
from ..plans import Plan, plan_among
from ..target import Explanation
from . import compiler
from .machine import cpu_threads

FEW = "few elements: XLA's loop is done before a kernel is called"


class CpuFamily(abc.ABC):
    """What is asked of one."""

    name: ClassVar[str]

    def compile(self, problem: Any) -> None:
        """The variant of the kernel that a call will run; where that depends on sizes that are not known, a plain one."""
        compiler.compiled(problem.spec, self.planned(problem)["variant"] if problem.known else 0)

    def plan(self, problem: Any) -> Plan | None:
        """None where there is one way only."""
        return None

    @abc.abstractmethod
    def explain(self, problem: Any) -> Explanation: ...

    def xla_pays(self, problem: Any, operation: str, in_loop: bool | None) -> str | None:
        """As ``Target.xla_pays``."""
        return None

    def numbers(self, problem: Any) -> dict[str, Any]:
        """What a plan depends on, as ``cpu/planned.h`` reads it."""
        raise NotImplementedError

    def planned(self, problem: Any) -> dict[str, Any]:
        """The numbers of the plan that a call will run, and its workspace's bytes."""
        forced = plan_among(problem.plans, "cpu", self.name)
        numbers = () if forced is None else forced.numbers(problem)
        return _cpu.plan(self.name, self.numbers(problem), cpu_threads(problem.devices), numbers)
