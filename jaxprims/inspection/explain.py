"""``explain``: what a function's primitives will do, and why."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr, jaxprs_in_params

from .. import _cpu
from ..arguments.warnings import FallbackWarning
from ..operators import classify
from ..primitives.group import group_p
from ..primitives.histogram import histogram_p
from ..primitives.histogram_call import HistogramCall, call_spec, elements_of
from ..specs.histogram import HistogramSpec
from ..specs.ordered import OrderedSpec
from ..targets.cpu import compiler
from ..targets.cpu import plan_histogram as planning
from ..targets.cpu.llvm import engine as llvm_engine
from ..targets.cuda import compiler as cuda_compiler
from ..targets.cuda import devices as gpu_devices
from ..targets.registry import CPU, CUDA
from . import explain_gpu as _explain_gpu
from .explain_ordered import FAMILY, planned


@dataclasses.dataclass(frozen=True)
class PlannedCall:
    """One primitive of a function. ``strategy`` and ``reason`` say what is done and why; ``spec`` is the kernel's text."""

    primitive: str
    summary: str
    strategy: str
    reason: str
    workspace_bytes: int
    spec: HistogramSpec | OrderedSpec | None = None
    variant: int = -1
    target: str = "cpu"

    def cuda(self) -> str:
        """The kernels' CUDA C++."""
        return "" if self.spec is None or self.target == "cpu" else cuda_compiler.source(self.spec)

    def _compiled(self) -> llvm_engine.Compiled | None:
        if self.spec is None or self.target != "cpu":
            return None
        if isinstance(self.spec, OrderedSpec):
            return compiler.compiled_scan(self.spec, self.variant)
        return compiler.compiled_hist(self.spec, self.variant)

    def llvm(self) -> str:
        """The kernel's LLVM IR, before optimisation."""
        compiled = self._compiled()
        return "" if compiled is None else compiled.ir

    def assembly(self) -> str:
        """The kernel's machine code, as text."""
        compiled = self._compiled()
        return "" if compiled is None else compiled.assembly()

    def __str__(self) -> str:
        lines = [f"{self.primitive}: {self.summary}", f"  strategy: {self.strategy}", f"  because: {self.reason}"]
        lines.append(f"  workspace: {_bytes(self.workspace_bytes)}")
        if self.spec is not None:
            lines += ["  kernel:", *("    " + line for line in self.spec.text.splitlines())]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What :func:`explain` returns: the calls, and what could not be compiled. ``print`` it."""

    calls: tuple[PlannedCall, ...]
    fallbacks: tuple[str, ...]
    threads: int
    target: str = "cpu"

    def __str__(self) -> str:
        where = f"{self.threads} threads" if self.target == "cpu" else self.target
        head = f"{len(self.calls)} jaxprims primitive{'s' if len(self.calls) != 1 else ''}, {where}"
        return "\n".join([head, *map(str, self.calls), *(f"plain XLA: {f}" for f in self.fallbacks)])


def explain(fn: Callable[..., Any], *, target: str = "cpu") -> Callable[..., Plan]:
    """How the jaxprims primitives in ``fn`` would run on this machine's CPU, or on a GPU.

    Args:
      fn: any function that ``jax.make_jaxpr`` can trace.
      target: "cpu", or a GPU's architecture: "sm_80", "sm_90", "sm_100", or that of a GPU of this machine, whose constants are
        then used. No GPU is needed.

    Returns:
      A function of ``fn``'s arguments (arrays or ``jax.ShapeDtypeStruct``) that returns a printable :class:`Plan`; each of its
      ``calls`` has ``strategy``, ``reason``, ``workspace_bytes``, and the kernel's code: ``llvm()`` and ``assembly()`` for the
      CPU, ``cuda()`` for GPUs.

    Raises:
      TypeError: ``fn`` is not callable. ValueError: an unknown target. What tracing ``fn`` raises.

    >>> import jax, jax.numpy as jnp
    >>> import jaxprims as jp
    >>> n = 1_000_000
    >>> values, indices = jax.ShapeDtypeStruct((n,), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.int32)
    >>> plan = jp.explain(lambda v, i: jp.reduce_by_index(v, i, 100))(values, indices)
    >>> print(plan.calls[0].summary)
    1000000 elements into 100 bins; op add (HDW)
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function, got {fn!r}")
    if target != "cpu":
        gpu_devices.device_of(target)

    def explained(*args: Any, **kwargs: Any) -> Plan:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            closed = jax.make_jaxpr(fn)(*args, **kwargs)
        fallbacks = []
        for w in caught:
            if issubclass(w.category, FallbackWarning):
                fallbacks.append(str(w.message))
            else:
                warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
        return Plan(tuple(_calls(closed.jaxpr, target)), tuple(fallbacks), planning.cpu_threads(), target)

    return explained


def _calls(jaxpr: Jaxpr, target: str) -> Iterator[PlannedCall]:
    for eqn in jaxpr.eqns:
        if eqn.primitive is histogram_p:
            yield _hist(eqn, target)
        elif eqn.primitive is group_p:
            yield _group(eqn, target)
        elif eqn.primitive in FAMILY:
            primitive, summary, (strategy, reason, workspace, variant), spec = planned(eqn, target)
            yield PlannedCall(primitive, summary, strategy, reason, workspace, spec, variant, target)
        for inner in jaxprs_in_params(eqn.params):
            yield from _calls(inner, target)


def _hist(eqn: Any, target: str) -> PlannedCall:
    call: HistogramCall = eqn.params["call"]
    masks, rank = eqn.params["masks"], eqn.params["rank"]
    avals = [v.aval for v in eqn.invars]
    spec = call_spec(call, avals, masks, CPU if target == "cpu" else CUDA)
    n = elements_of(call, avals, masks)
    batch = eqn.outvars[0].aval.shape[:rank]
    bins = [p.num_bins for p in call.parts]
    on_cpu = target == "cpu"
    kinds = [classify.atomic_class(b.op, b.acc) for b in spec.bins] if on_cpu else _explain_gpu.classes(spec, target)
    parts = []
    for p, b, kind in zip(call.parts, spec.bins, kinds, strict=True):
        vectorised = f", vectorised over {b.lanes} lanes" if b.lanes > 1 else ""
        parts.append(f"{n} elements into {p.num_bins} bins; op {p.operator.name or 'unnamed'} ({kind}{vectorised})")
    summary = "; ".join(parts) + (f" (a batch of {' x '.join(map(str, batch))})" if rank else "")
    if target != "cpu":
        strategy, reason, workspace = _explain_gpu.hist_words(call, spec, avals, masks, batch, target)
        kernel = None if CUDA.sorts(call.sorted, call.deterministic) else spec
        return PlannedCall("generalized histogram", summary, strategy, reason, workspace, kernel, target=target)
    problem = planning.problem_of(spec, n, bins, batch, call.sorted)
    plan = planning.plan_of(spec, n, bins, batch, call.sorted, call.plan)
    strategy, reason = _words(problem, plan)
    return PlannedCall(
        "generalized histogram",
        summary,
        strategy,
        reason,
        _cpu.workspace_bytes(problem, plan),
        spec,
        plan.variant,
    )


def _words(problem: Any, plan: Any) -> tuple[str, str]:
    table = (problem.bins + 1) * problem.bin_bytes
    if plan.soa:
        strategy = f"in place, S = {plan.ranges} bin range{'s' if plan.ranges > 1 else ''}, one for each thread"
        if problem.must_in_place:
            reason = "no identity is known: bins start from dest"
        elif problem.elements * problem.updates < problem.bins:
            reason = "few elements for many bins: only what is updated is touched"
        elif problem.sorted:
            reason = "the indices are sorted: each thread reads only its own elements"
        else:
            reason = f"subhistograms of {_bytes(table)} would not fit the last-level cache together"
    else:
        strategy = f"M = {plan.subhistograms} subhistograms, S = {plan.ranges}, C = {plan.copies} interleaved copies"
        reason = f"a subhistogram takes {_bytes(table * plan.copies)}"
        if problem.batch > 1 and plan.subhistograms == 1:
            reason += "; each thread uses one for one histogram of the batch after the other"
    return strategy + (", bins prefetched" if plan.prefetch else "") + f", {plan.threads} threads", reason


def _group(eqn: Any, target: str) -> PlannedCall:
    n, h = eqn.invars[0].aval.shape[-1], eqn.params["num_bins"]
    if target != "cpu":
        how = "XLA's stable sort, a histogram and a scan of the counts"
        return PlannedCall("group by index", f"{n} elements into {h} bins", how, "GPUs sort fast", 0, target=target)
    bytes_ = eqn.outvars[0].aval.dtype.itemsize
    return PlannedCall(
        "group by index",
        f"{n} elements into {h} bins",
        "stable counting sort",
        "the order of elements within a bin is wanted",
        bytes_ * max(h + 1, min(planning.cpu_threads() * (h + 1), 4 << 20)),
    )


def _bytes(n: int) -> str:
    for unit in ("bytes", "KB", "MB"):
        if n < 10_000:
            return f"{n} {unit}"
        n //= 1024
    return f"{n} GB"


__all__: Sequence[str] = ["Plan", "PlannedCall", "explain"]
