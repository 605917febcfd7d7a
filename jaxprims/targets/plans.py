"""Plans: how a target would run a call. Each target and family has a class of its own (``cpu/plans.py``, ``cuda/plans.py``).

A target makes them (``Target.plan``); tests and benchmarks may force others upon calls: ``with forced(plan): ...``.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

from ..specs.problems import Problem
from ..tracing.within import within


class Plan(Protocol):
    """A printable description of how a call is run."""

    target: ClassVar[str]
    family: ClassVar[str]

    def numbers(self, problem: Problem) -> tuple[int, ...]:
        """As the target's handler wants them for a plan that is forced."""


@dataclasses.dataclass(frozen=True)
class AnyKernel:
    """A kernel, planned as usual, also where XLA's own operation is faster: what tests of kernels force. ``on``: a target's name,
    if on others the faster one is wanted; "any"."""

    target: ClassVar[str] = "any"
    family: ClassVar[str] = "any"
    on: str = "any"

    def numbers(self, problem: Problem) -> tuple[int, ...]:
        return ()


_forced: contextvars.ContextVar[tuple[Plan, ...]] = contextvars.ContextVar("plans", default=())


def forced(*plans: Plan) -> AbstractContextManager[None]:
    """Calls that this thread traces inside run these plans, each on its target and for its family, as far as a problem allows."""
    return within(_forced, plans)


def forced_plans() -> tuple[Plan, ...]:
    """Those that calls are to take now."""
    return _forced.get()


def wants_kernel(plans: Sequence[Plan], target: str) -> bool:
    """Is a kernel wanted on this target, whatever is faster?"""
    return any(not isinstance(p, AnyKernel) or p.on in ("any", target) for p in plans)


def plan_among(plans: Sequence[Any], target: str, family: str) -> Any:
    """The one for this target and family, or None."""
    return next((p for p in plans if p.target == target and p.family == family), None)
