"""``explain`` of scans, reductions and segmented reductions: their plans in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..primitives.ordered_call import OrderedCall, call_spec, sizes_of
from ..primitives.reduce import reduce_p
from ..primitives.scan import planned_scan, scan_p
from ..primitives.segments import segments_p
from ..specs.ordered import OrderedSpec
from ..targets.cpu.plan_ordered import reduce_plan, segments_plan
from . import explain_gpu as _explain_gpu

Words = tuple[str, str, int, int]
"""Strategy, reason, workspace in bytes, the kernel's variant."""

TITLES = {scan_p: "scan", reduce_p: "reduction", segments_p: "segmented reduction"}


def planned(eqn: Any, target: str = "cpu") -> tuple[str, str, Words, OrderedSpec]:
    """(primitive, summary, words, spec) of a call of the family."""
    call: OrderedCall = eqn.params["call"]
    masks, rank = eqn.params["masks"], eqn.params["rank"]
    avals = [v.aval for v in eqn.invars]
    spec = call_spec(call, avals, masks)
    sizes = sizes_of(call, spec, avals, masks, rank)
    name = call.operator.name or "unnamed"
    if sizes is None:
        words: Words = ("chosen when the call runs", "sizes are not known yet", 0, 0)
        return TITLES[eqn.primitive], f"op {name}", words, spec
    n, rows, lanes = sizes
    summary = f"{n} elements" + (f" in each of {rows} rows" if rows > 1 else "") + (f" of {lanes} lanes" if lanes > 1 else "")
    options = [w for w, on in (("exclusive", call.exclusive), ("reverse", call.reverse), ("restarts", call.cut == "flags")) if on]
    if call.kind == "segments":
        summary += f" into {call.num_segments} segments, by {call.cut}"
    summary += f"; op {name}" + (f" ({', '.join(options)})" if options else "")
    if target != "cpu":
        return TITLES[eqn.primitive], summary, (*_explain_gpu.ordered_words(call, spec, avals, masks, rank, target), -1), spec
    describe: Callable[..., Words] = {"scan": _scan, "reduce": _reduce, "segments": _segments}[call.kind]
    return TITLES[eqn.primitive], summary, describe(call, spec, avals, masks, n, rows, lanes), spec


def _threads(plan: Any) -> str:
    return f"{plan.threads} thread{'s' if plan.threads > 1 else ''}"


def _form(spec: OrderedSpec, slots: int) -> str:
    if spec.across:
        return "vectors run across the elements that lie side by side"
    return "vectors run along the row" + (f", elements are structs of {slots}" if slots > 1 else "")


def _scan(call: OrderedCall, spec: OrderedSpec, avals: Any, masks: Any, n: int, rows: int, lanes: int) -> Words:
    plan = planned_scan(call, spec, avals, masks, (n, rows, lanes))
    slots = len(spec.state)
    blocks = -(-n // plan.block)
    strategy = f"{_form(spec, slots)}; "
    workspace = 0
    if plan.periodic:
        strategy += "many short rows to a block, the scan restarts at each"
        reason = f"rows of {n} elements lie one behind the other"
    elif plan.order.name == "sequential_rows":
        strategy += "each row is scanned by one thread"
        reason = (
            "one thread" if plan.threads == 1 else "there are rows enough for all threads" if rows * lanes > 1 else "one block"
        )
    else:
        strategy += f"chained scan with look-back over {blocks} blocks of {plan.block}, {plan.order.name.replace('_', '-')} order"
        reason = "rows are long and few: threads share them"
        workspace = rows * -(-lanes // plan.strip) * blocks * (2 * -(-8 * slots * plan.strip // 64) * 64 + 64)
    if plan.stream:
        strategy += ", non-temporal stores"
    return f"{strategy}, {_threads(plan)}", reason, workspace, plan.variant


def _reduce(call: OrderedCall, spec: OrderedSpec, avals: Any, masks: Any, n: int, rows: int, lanes: int) -> Words:
    plan = reduce_plan(spec, n, rows, lanes, rows if not call.f.captured + call.captured else 1, call.init)
    slots = len(spec.state)
    if plan.periodic:
        how = "one scan through many short rows, of which the last elements are kept"
        return f"{_form(spec, slots)}; {how}, {_threads(plan)}", f"rows of {n} elements", 0, 1
    kept = "" if spec.commutes else ", in order"
    strategy = f"{_form(spec, slots)}; pieces of {plan.leaf}{kept}, combined in pairs of neighbours, {_threads(plan)}"
    reason = "the operator commutes: a piece may use several accumulators" if spec.commutes else "the operator need not commute"
    return strategy, reason, rows * lanes * -(-n // plan.block) * 8 * slots, 0


def _segments(call: OrderedCall, spec: OrderedSpec, avals: Any, masks: Any, n: int, rows: int, lanes: int) -> Words:
    plan = segments_plan(spec, n, rows, lanes, call.num_segments, *call.plan[:1])
    slots = len(spec.state)
    if spec.across:
        how = "each segment's elements one after the other"
    else:
        how = f"chunks of {plan.chunk}: one segmented scan, or, from {plan.long_run} elements a segment on, a reduction of each"
    strategy = f"{_form(spec, slots)}; {how}; {plan.tasks} tasks of equal size, {_threads(plan)}"
    reason = "tasks cut the elements, not the segments: one giant segment is as balanced as many small ones"
    return strategy, reason, rows * plan.tasks * lanes * 16 * slots, 0


FAMILY = frozenset(TITLES)
