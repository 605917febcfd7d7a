"""``explain``: what a function's primitives will do, and why."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import Jaxpr, jaxprs_in_params

from ..arguments.warnings import FallbackWarning
from ..fusion.call import fused_of, fused_p
from ..primitives import transposed
from ..primitives.held import held_p
from ..primitives.transposed import transposed_p
from ..specs.kernel import KernelSpec
from ..targets.cpu.machine import cpu_threads
from ..targets.registry import family_of, target_at
from ..targets.target import Explanation, Target, bytes_in_words


@dataclasses.dataclass(frozen=True)
class PlannedCall:
    """One primitive of a function. ``strategy`` and ``reason`` say what is done and why; ``spec`` is the kernel's text; ``hint``
    says what would make the call faster, if anything is known; ``devices``, where there are several, what combining sharded
    elements takes."""

    primitive: str
    summary: str
    strategy: str
    reason: str
    workspace_bytes: int
    spec: KernelSpec | None = None
    variant: int = -1
    target: str = "cpu"
    hint: str = ""
    devices: str = ""

    def cuda(self) -> str:
        """The kernels' CUDA C++."""
        return self._code("cuda")

    def llvm(self) -> str:
        """The kernel's LLVM IR, before optimisation."""
        return self._code("llvm")

    def assembly(self) -> str:
        """The kernel's machine code, as text."""
        return self._code("assembly")

    def _code(self, language: str) -> str:
        return "" if self.spec is None else target_at(self.target).code(self.spec, self.variant, language)

    def __str__(self) -> str:
        lines = [f"{self.primitive}: {self.summary}", f"  strategy: {self.strategy}", f"  because: {self.reason}"]
        lines.append(f"  workspace: {bytes_in_words(self.workspace_bytes)}")
        if self.devices:
            lines.append(f"  sharded elements: {self.devices}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        if self.spec is not None:
            lines += ["  kernel:", *("    " + line for line in self.spec.text.splitlines())]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What :func:`explain` returns: the calls, and what could not be compiled; of functions in :func:`fuse`, a line for each of
    their reductions, scans and updates by index in ``sites``. ``print`` it."""

    calls: tuple[PlannedCall, ...]
    fallbacks: tuple[str, ...]
    threads: int
    target: str = "cpu"
    sites: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"{self.threads} threads" if self.target == "cpu" else self.target
        head = f"{len(self.calls)} jaxprims primitive{'s' if len(self.calls) != 1 else ''}, {where}"
        sites, left = (f"fuse: {s}" for s in self.sites), (f"plain XLA: {f}" for f in self.fallbacks)
        return "\n".join([head, *sites, *map(str, self.calls), *left])


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

    Cost: that of tracing ``fn``; nothing runs, and a kernel's code is made when it is asked for.

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
    target_at(target)

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
        sites: list[str] = []
        calls = tuple(_calls(closed.jaxpr, target, sites))
        return Plan(calls, tuple(fallbacks), cpu_threads(), target, tuple(sites))

    return explained


def _calls(jaxpr: Jaxpr, where: str, sites: list[str]) -> Iterator[PlannedCall]:
    """The jaxpr's calls; ``sites``: filled with what :func:`fuse` found."""
    target = target_at(where)
    for eqn in jaxpr.eqns:
        family = family_of(eqn.primitive)
        if family is not None and eqn.primitive is not held_p:  # which does nothing
            yield _planned(family, eqn, target, where)
        if eqn.primitive is transposed_p:
            form, avals = eqn.params["form"], [v.aval for v in eqn.invars]
            over = transposed.layout(avals, form)[0].communication
            for call in _calls(jax.make_jaxpr(form.whole)(*avals).jaxpr, where, sites):
                yield dataclasses.replace(call, devices=over if call.devices else "")
        if eqn.primitive is fused_p:
            fused = fused_of(eqn.params["jaxpr"])
            sites += fused.in_words()
            yield from _calls(fused.rewritten.closed.jaxpr, where, sites)
            continue  # its parameter is the function as it was written
        for inner in jaxprs_in_params(eqn.params):
            yield from _calls(inner, where, sites)


def _planned(family: Any, eqn: Any, target: Target, where: str) -> PlannedCall:
    avals = [v.aval for v in eqn.invars]
    problem = family.problem(target, avals, **eqn.params)
    if not target.serves(family.name):
        strategy, reason = family.unserved()
        summary = family.summary(problem, Explanation(strategy, reason), **eqn.params)
        return PlannedCall(family.title, summary, strategy, reason, 0, target=where)
    other = family.instead(target, avals, **eqn.params)
    taken = other is None or target.takes(problem)
    explanation = target.explain(problem) if taken else Explanation(other.strategy, other.reason)
    summary = family.summary(problem, explanation, **eqn.params)
    over = family.over_devices(avals, jax.device_count(), **eqn.params) if jax.device_count() > 1 else ""
    if other is not None:
        return PlannedCall(family.title, summary, other.strategy, other.reason, 0, target=where, devices=over)
    e, hint = explanation, _hint(eqn) if where == "cpu" else ""
    return PlannedCall(family.title, summary, e.strategy, e.reason, e.workspace_bytes, problem.spec, e.variant, where, hint, over)


FRESH_PAGES = 32 << 20
"""Bytes of a result from which on the GNU C library's allocator asks the system for it on every call."""


def _hint(eqn: Any) -> str:
    avals = [v.aval for v in eqn.outvars]
    sizes = [a.size * a.dtype.itemsize for a in avals if all(isinstance(d, int) for d in a.shape)]
    most = max(sizes, default=0)
    if most < FRESH_PAGES:
        return ""
    size = bytes_in_words(most)
    return f"a result of {size} is made of fresh pages on every call, unless jp.keep_freed_memory() was called: see there"
