"""Plans forced upon calls, and what they are called in tables. The numbers are those of ``cuda/*_launch.h``."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

Plan = tuple[int, ...]

_plan: contextvars.ContextVar[Plan] = contextvars.ContextVar("plan", default=())


@contextlib.contextmanager
def forced(plan: Plan) -> Iterator[None]:
    """All calls that this thread traces inside run this plan."""
    _install()
    token = _plan.set(plan)
    try:
        yield
    finally:
        _plan.reset(token)


def _install() -> None:
    """Once: a call takes the plan of the thread that traces it, if that has one."""
    from jaxprims.api import genhist as _genhist
    from jaxprims.api import reduce as _reduce
    from jaxprims.api import scan as _scan

    if getattr(_genhist.bind, "takes_plans", False):
        return
    for module in (_genhist, _reduce, _scan):
        setattr(module, "bind", _with_plan(module.bind))  # noqa: B010
    by_runs = _reduce._by_runs  # traced once for each fold, so the fold has to know the plan
    setattr(_reduce, "_by_runs", lambda operands, **kw: by_runs(operands, **{**kw, "fold": _planned(kw["fold"])}))  # noqa: B010


def _planned(call: Any) -> Any:
    plan = _plan.get()
    return dataclasses.replace(call, plan=plan) if plan and hasattr(call, "plan") else call


def _with_plan(bind: Callable[..., Any]) -> Callable[..., Any]:
    def with_plan(*args: Any) -> Any:
        return bind(*map(_planned, args))

    with_plan.takes_plans = True  # type: ignore[attr-defined]
    return with_plan


TINY, SHARED, CLUSTER, GLOBAL = 1, 2, 3, 4
BLOCK = 1024
MOST_SHARED = 8 * 227 * 1024
"""More passes than eight would be needed beyond this."""
MOST_GLOBAL = 64 * 2**20


def histograms(bins: int, operator: str) -> dict[str, Plan]:
    """The fixed choices of Henriksen et al. 2020, as (space, M, S, K): in shared memory M = 1 and k times what a block's
    threads can use of so many bins, with as many passes as they need; in global memory M = 1, 4, 8, 16, 32 in one pass. And a
    cluster's shared memory."""
    size = bins * (8 if operator.startswith("argmax") else 4)
    shared = sorted({1, *(max(1, k * BLOCK // min(bins, BLOCK)) for k in (1, 3, 6, 9))})
    out: dict[str, Plan] = {f"shared, M = {m}": (SHARED, m, 0, 0) for m in shared if m * size <= MOST_SHARED}
    if 64 * 1024 <= size <= 16 * 200 * 1024:
        out["cluster"] = (CLUSTER, 1, 0, 0)
    out |= {f"global, M = {m}": (GLOBAL, m, 1, 0) for m in (1, 4, 8, 16, 32) if m == 1 or m * size <= MOST_GLOBAL}
    return out


REDUCTIONS: dict[str, Plan] = {
    "tree": (1,),
    "warp tree": (2,),
    "matrix": (3,),
    "persistent matrix": (4,),
    "producer-consumer": (5,),
}
"""The five algorithms of Martín et al. 2012."""

SEGMENTS: dict[str, Plan] = REDUCTIONS
"""Likewise of segments by sorted ids."""

PAPER_KERNELS = {
    "tree": ("ReduceTree", "SegmentsTree"),
    "warp tree": ("ReduceWarpTree", "SegmentsWarpTree"),
    "matrix": ("ReduceMatrix", "SegmentsMatrix"),
    "persistent matrix": ("ReduceMatrix", "SegmentsMatrix"),
    "producer-consumer": ("ReduceProducerConsumer", "SegmentsProducerConsumer"),
    "jaxprims": ("ReduceBlocks", "SegmentsShort"),
}
"""Which kernels the algorithms run, of the whole and of segments."""
