"""How the primitives of the ordered family (scan, reduction, segmented reduction) are lowered to kernels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...specs.problems import OrderedProblem
from ...targets.operations import is_dear
from ...targets.target import Explanation, Target
from .. import producers
from ..batches import batch_shape
from ..family import Instead
from ..looking_back import LookingBack
from . import scan_xla
from .call import OrderedCall, call_spec, init_dtypes, sizes_along


class OrderedFamily(LookingBack):
    """What the three share."""

    def problem(self, target: Target, avals: Sequence[Any], **params: Any) -> OrderedProblem:
        call, masks, rank = params["call"], params["masks"], params["rank"]
        spec = call_spec(call, avals, masks)
        n, lanes = sizes_along(call, spec, avals, masks)
        first = call.num_arrays + bool(call.segmented_by)
        captured = masks[first : first + call.f.captured + call.captured]
        return OrderedProblem(
            spec,
            batch_shape(avals, masks, rank),
            call.plans,
            n,
            lanes,
            init=call.init,
            contiguous=not call.init and len(set(masks[:first])) == 1 and not any(captured),
            captured=bool(captured),
            num_segments=call.num_segments,
            ids=call.segmented_by == "ids",
            of_dear=call.of_dear,
        )

    def instead(self, target: Target, avals: Sequence[Any], in_loop: bool | None = False, **params: Any) -> Instead | None:
        if params["call"].operator.large and not target.takes(self.problem(target, avals, **params)):
            return Instead(functools.partial(self.plain, **params), "plain XLA", "no kernels of elements of so many scalars")
        return self.left_to_xla(target, avals, self.operation(**params) or "", in_loop, **params)

    def taken(self, ctx: Any, operands: Sequence[Any], **params: Any) -> producers.Taken | None:
        call: OrderedCall = params["call"]
        if call.operator.large:
            return None
        found = producers.taken(ctx, operands, call, params["masks"], call.inner_rank, bool(call.segmented_by))
        # what has no place of its own in memory cannot give it to a result
        return found and dataclasses.replace(found, call=dataclasses.replace(found.call, in_place=False))

    def _look_back(self, ctx: Any, *operands: Any, **params: Any) -> Any:
        if self.operation(**params) in scan_xla.STEPS and is_dear(ctx, operands[0]):
            params |= {"call": dataclasses.replace(params["call"], of_dear=True)}
        return super()._look_back(ctx, *operands, **params)

    def attributes(self, problem: Any, **params: Any) -> dict[str, Any]:
        call: OrderedCall = params["call"]
        flag = {"by": int(problem.ids)} if call.kind == "segments" else {"init": int(call.init)}
        return {"inner_rank": call.inner_rank, **flag}

    def aliases(self, ctx: Any, **params: Any) -> dict[int, int]:
        """Results that take the place of an array (which XLA copies before, if it is still needed)."""
        call: OrderedCall = params["call"]
        free = dict(enumerate(ctx.avals_in[: call.num_arrays])) if call.in_place and not call.operator.large else {}
        out: dict[int, int] = {}
        for r, aval in enumerate(ctx.avals_out):
            for k, a in free.items():
                if a.shape == aval.shape and a.dtype == aval.dtype:
                    out[k] = r
                    del free[k]
                    break
        return out

    def normal(self, **params: Any) -> Callable[..., Any] | None:
        """With init's leaves as states: sums of halves start from an f32."""
        call: OrderedCall = params["call"]
        if not call.init or call.init_is_state:
            return None
        dtypes = init_dtypes(call)
        params = params | {"call": dataclasses.replace(call, init_is_state=True)}

        def from_states(*xs: Any) -> Any:
            first = len(xs) - len(dtypes)
            states = [x.astype(t) for x, t in zip(xs[first:], dtypes, strict=True)]
            return self.primitive.bind(*xs[:first], *states, **params)

        return from_states

    def summary(self, problem: Any, explanation: Explanation, **params: Any) -> str:
        call: OrderedCall = params["call"]
        name = call.operator.name or "unnamed"
        if not problem.known:
            return f"op {name}"
        n, rows, lanes = problem.n, problem.members, problem.lanes
        summary = f"{n} elements" + (f" in each of {rows} rows" if rows > 1 else "") + (f" of {lanes} lanes" if lanes > 1 else "")
        if call.kind == "segments":
            summary += f" into {call.num_segments} segments, by {call.segmented_by}"
        restarts = call.segmented_by == "flags"
        options = [w for w, on in (("exclusive", call.exclusive), ("reverse", call.reverse), ("restarts", restarts)) if on]
        return summary + f"; op {name}" + (f" ({', '.join(options)})" if options else "")
