"""``Family``: what all primitives with kernels have in common, from the primitive's parameters to a target's call.

A family's primitive takes leading batch axes, of which each operand has those that its mask names (``batches``). Registering an
instance (``targets.registry.register_family``) is all that it takes to have it lowered on every target that serves it.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import mlir

from ..specs.problems import Problem
from ..targets.plans import AnyKernel, wants_kernel
from ..targets.target import Explanation, Target
from . import divided
from .batches import batched_alike, over_batch
from .tangents import taylor_by


@dataclasses.dataclass(frozen=True)
class Instead:
    """What is done where a target does a call by other primitives: a function of the operands, and why, in words."""

    function: Callable[..., Any]
    strategy: str
    reason: str


class Family(abc.ABC):
    """A family of calls. ``title``: in explanations; ``call_target``: the custom call's name."""

    def __init__(self, name: str, title: str, primitive: Primitive, call_target: str):
        self.name, self.title, self.primitive, self.call_target = name, title, primitive, call_target
        self.lowered = primitive
        self.standing: Primitive | None = None
        taylor_by(primitive, self.series)

    @abc.abstractmethod
    def problem(self, target: Target, avals: Sequence[Any], **params: Any) -> Problem:
        """The spec and the sizes of a call with operands of these avals."""

    @abc.abstractmethod
    def plain_one(self, *operands: Any, **params: Any) -> list[Any]:
        """An unbatched call in plain XLA."""

    def series_one(self, *operands: Any, **params: Any) -> list[Any]:
        """The same of operations whose Taylor series JAX knows."""
        return self.plain_one(*operands, **params)

    def attributes(self, problem: Any, **params: Any) -> dict[str, Any]:
        """What the handler is told beside the spec."""
        return {}

    def aliases(self, ctx: Any, **params: Any) -> dict[int, int]:
        """Results that may take the place of an operand."""
        return {}

    def normal(self, **params: Any) -> Callable[..., Any] | None:
        """The call in the form that kernels want, as a function of the operands; None if it has it."""
        return None

    def instead(self, target: Target, avals: Sequence[Any], in_loop: bool | None = False, **params: Any) -> Instead | None:
        """What is done instead of a kernel of the target's: what XLA does as well or better. ``in_loop``: in a loop's
        body; None where that is not known."""
        operation = self.operation(**params)
        return None if operation is None else self.left_to_xla(target, avals, operation, in_loop, **params)

    def left_to_xla(
        self, target: Target, avals: Sequence[Any], operation: str, in_loop: bool | None = False, **params: Any
    ) -> Instead | None:
        """Plain XLA, where the target says that this pays and no plan is forced."""
        if wants_kernel(params["call"].plans, target.name):
            return None
        problem = self.problem(target, avals, **params)
        why = target.xla_pays(problem, operation, in_loop) if problem.known else None
        return None if why is None else Instead(functools.partial(self.plain, **params), "plain XLA", why)

    def operation(self, **params: Any) -> str | None:
        """What XLA has one operation for that does the whole call, by the operator's name."""
        return None

    def unserved(self) -> tuple[str, str]:
        """(strategy, reason) where a target has no kernels of the family."""
        return "plain XLA", "there are no kernels of this family"

    def batch(self, avals: Sequence[Any], **params: Any) -> tuple[tuple[int, ...], int]:
        """The operands' masks, and the number of batch axes; a primitive without these parameters has none."""
        return tuple(params.get("masks", (0,) * len(avals))), params.get("rank", 0)

    def summary(self, problem: Any, explanation: Explanation, **params: Any) -> str:
        """What the call is, in a line."""
        return self.title

    def plain(self, *operands: Any, **params: Any) -> list[Any]:
        """The same in plain XLA."""
        return over_batch(functools.partial(self.plain_one, **params), *self.batch(operands, **params))(*operands)

    def series(self, *operands: Any, **params: Any) -> list[Any]:
        """``plain``, for ``jet``."""
        return over_batch(functools.partial(self.series_one, **params), *self.batch(operands, **params))(*operands)

    def over_devices(self, avals: Sequence[Any], count: int, **params: Any) -> str:
        """What it takes, in words, where several devices have parts of the elements."""
        layout = divided.layouts.get(self.primitive)
        return "the elements are gathered" if layout is None else divided.in_words(avals, layout(avals, **params), count)

    undivided: AnyKernel | None = None
    """What is done where XLA's partitioner would divide XLA's own operation and make it wrong, as a scatter (``reads``), or not
    know how: of reductions by a function that no collective has."""

    def whole(self, ctx: Any, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters with that, where XLA's partitioner is not told how the call is divided."""
        call = params.get("call")
        alone = divided.devices_of(ctx) == getattr(ctx.module_context.axis_context, "num_devices", 1)
        if call is None or self.undivided is None or alone or call.plans:
            return params
        return params | {"call": dataclasses.replace(call, plans=(self.undivided,))}

    def lower(self, ctx: Any, *operands: Any, target: Target, **params: Any) -> Any:
        params = self.whole(ctx, params)
        another = self.another_way(ctx, operands, target, **params)
        return self.to_kernel(ctx, operands, target, **params) if another is None else another()

    def another_way(
        self, ctx: Any, operands: Sequence[Any], target: Target, in_loop: bool | None = False, **params: Any
    ) -> Callable[[], Any] | None:
        """How the call is lowered where it is not, as it is, a kernel."""
        masks, rank = self.batch(ctx.avals_in, **params)
        count = divided.devices_of(ctx)
        layout = divided.layouts.get(self.primitive) if count > 1 else None
        if layout is not None:
            whole = lambda *xs: tuple(self.primitive.bind(*xs, **params))  # noqa: E731
            return lambda: divided.lower(ctx, operands, layout(ctx.avals_in, **params), whole, count)
        full = ((1 << rank) - 1,) * len(masks)
        if masks != full and getattr(ctx.module_context.axis_context, "num_devices", 1) > 1:
            # XLA's partitioner splits a batch over devices only where every operand has it; the copies are split with it.
            alike = functools.partial(batched_alike, masks=masks, rank=rank)
            function: Callable[..., Any] | None = lambda *xs: self.primitive.bind(*alike(xs), **(params | {"masks": full}))  # noqa: E731
        else:
            other = self.instead(target, ctx.avals_in, in_loop, **params)
            function = self.normal(**params) if other is None else other.function
        return None if function is None else lambda: mlir.lower_fun(function)(ctx, *operands)

    def to_kernel(self, ctx: Any, operands: Sequence[Any], target: Target, **params: Any) -> Any:
        """A call of the target's."""
        masks, rank = self.batch(ctx.avals_in, **params)
        problem = dataclasses.replace(self.problem(target, ctx.avals_in, **params), devices=divided.devices_at_once(ctx))
        target.compile(problem)
        attributes, aliases = self.attributes(problem, **params), self.aliases(ctx, **params)
        return target.lower(ctx, self.call_target, operands, problem, masks, rank, attributes, aliases)
