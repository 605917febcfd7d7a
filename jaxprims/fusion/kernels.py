"""What becomes a kernel: a body, traced with the library's own functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Var

from ..arguments.warnings import kernels_or_nothing
from ..calls.reduce import axes_at_once
from ..primitives.elements import operands_as_they_are
from ..tracing.jaxprs import value_of, variables
from . import loops
from .body import Body
from .epilogues import Finished
from .exact_loops import title
from .stencils.folded import Folded, folded
from .stencils.stencil import Stencil

_UNSEEN = ("broadcast_in_dim", "reshape", "squeeze", "convert_element_type")


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """Sites of one kernel: a function of the arrays that it reads and adds to."""

    body: Body | Stencil | Finished | Folded
    inputs: tuple[Var, ...]
    call: ClosedJaxpr

    @property
    def results(self) -> list[Var]:
        return [s.eqn.outvars[0] for s in self.body.sites]

    @property
    def made(self) -> set[int]:
        """The equations whose results these are."""
        return {s.index for s in self.body.sites}

    @property
    def inside(self) -> set[int]:
        """These equations, and those that are in it."""
        return self.made | self.body.taken

    def in_words(self) -> str:
        if isinstance(self.body, (Stencil, Folded)):
            return self.body.in_words()
        if isinstance(self.body, Finished):
            made = ", ".join(self.body.graph.eqns[k].primitive.name for k in self.body.inside)
            return f"{dataclasses.replace(self, body=self.body.scans).in_words()}; makes {made} of it"
        sites = self.body.sites
        names = ", ".join(title(s.eqn) for s in sites)
        inside = [title(self.body.graph.eqns[k]) for k in sorted(self.body.taken)]
        taken = ", ".join(dict.fromkeys(n for n in inside if n not in _UNSEEN))
        reads = ", ".join(v.aval.str_short(short_dtypes=True) for v in self.inputs)
        around = f"of {list(sites[0].sizes)} rows" if self.body.of_rows else f"over {list(sites[0].sizes)}"
        return f"{names} {around}: one kernel, reads {reads}" + (f"; takes in {taken}" if taken else "")


def kernel_of(body: Body) -> Kernel | str:
    """That of a body; why not, in words, where the library's kernels do not express it."""
    into = loops.targets(body)
    leaves = [v for v, _ in body.leaves]
    given = [x for x in into if x is not None]
    inputs = tuple(dict.fromkeys(variables((*leaves, *given))))

    def call(xs: Sequence[Any]) -> list[Any]:
        env = dict(zip(inputs, xs, strict=True))
        value = [None if x is None else value_of(x, env) for x in (*leaves, *into)]
        return loops.run(body, value[: len(leaves)], value[len(leaves) :])

    return kernel_from(body, inputs, call)


def with_stencil(kernel: Kernel) -> Kernel:
    """With the stencil that makes what it combines, if it is a reduction of one."""
    body = kernel.body
    if not isinstance(body, Body) or body.sites[0].family != "reduce" or not body.given:
        return kernel
    with axes_at_once():
        whole = kernel_of(body)
    found = folded(body, whole.call, whole.inputs) if isinstance(whole, Kernel) else None
    more = kernel if found is None else kernel_from(*found)
    return more if isinstance(more, Kernel) else kernel


def kernel_from(
    body: Body | Stencil | Finished | Folded, inputs: Sequence[Var], call: Callable[[Sequence[Any]], list[Any]]
) -> Kernel | str:
    """``call`` of ``inputs`` as the kernel of this body; why that cannot be, in words."""
    try:
        as_they_are = isinstance(body, Body) and (bool(body.cut) or body.of_rows)  # who makes what is compared has been said
        with kernels_or_nothing(), operands_as_they_are(as_they_are):
            closed = jax.make_jaxpr(lambda *xs: call(xs))(*(v.aval for v in inputs))
    except Exception as e:
        return f"no kernel: {e}".splitlines()[0][:200]
    wanted = [s.eqn.outvars[0].aval for s in body.sites]
    if [(a.shape, a.dtype, a.weak_type) for a in closed.out_avals] != [(a.shape, a.dtype, a.weak_type) for a in wanted]:
        return "no kernel: its results have other types"
    return Kernel(body, tuple(inputs), closed)
