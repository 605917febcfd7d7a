"""What a call costs, everyday calls, whole programs, applications."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..gpu_contestants import Prepare, cupy, jaxprims, torch, xla
from ..gpu_measure import Arrays, Work, small_floats, uniform_ints
from .case import OURS, Case, Sizes
from .histograms import sum_contestants


def launch(s: Sizes) -> list[Case]:
    """Calls on 1,000 elements: only their cost counts."""
    n = 1000
    pair = functools.cache(lambda: (small_floats(12, n), uniform_ints(13, n, 100)))

    def case(name: str, contestants: Mapping[str, Prepare], inputs: Callable[[], tuple[jax.Array, ...]]) -> Case:
        return Case("launch", name, n, 0, inputs, contestants, 1e-5, alone=True)

    def walk() -> tuple[jax.Array, ...]:
        return pair()[:1]

    by_index = {k: v for k, v in sum_contestants(100).items() if k not in ("cub", "futhark")}
    cumsum: dict[str, Prepare] = {
        "torch": torch(lambda t, x: t.cumsum(x, 0)),
        OURS: jaxprims(lambda jp, x: jp.cumsum(x)),
        "xla": xla(jnp.cumsum),
        "cupy": cupy(lambda cp, x: cp.cumsum(x, dtype=cp.float32)),
    }
    total: dict[str, Prepare] = {
        "torch": torch(lambda t, x: t.sum(x)),
        OURS: jaxprims(lambda jp, x: jp.reduce(x)),
        "xla": xla(jnp.sum),
        "cupy": cupy(lambda cp, x: cp.sum(x)),
        "xla, x + 1": xla(lambda x: x + 1),
    }
    return [
        case("sum by index of 1,000", by_index, pair),
        case("cumsum of 1,000", cumsum, walk),
        dataclasses.replace(case("sum of 1,000", total, walk), unchecked=("xla, x + 1",)),
    ]


def everyday(quick: bool) -> list[Case]:
    """The calls of the suite ``everyday``, by jaxprims and by plain JAX."""
    from ..cases import everyday as calls

    def case(call: calls.Call, kind: str) -> Case:
        def inputs() -> tuple[jax.Array, ...]:
            return tuple(jax.device_put(a) for a in calls.inputs_of(call, kind, np.random.default_rng(20)).values())

        plain, ours = (calls.transformed(fn, kind) for fn in (call.plain, call.ours))
        both: dict[str, Prepare] = {"xla": xla(plain), OURS: jaxprims(lambda _, *xs: ours(*xs))}
        return Case("everyday", f"{kind}, {call.name}", 0, 0, inputs, both, 2e-2, check=_without_nan)

    def aborts(call: calls.Call, kind: str) -> bool:
        """Plain JAX 0.11.2's compiler ends the process, and with it the run."""
        return kind == calls.GRADIENT and "products" in call.name

    kinds = (calls.FORWARD, calls.GRADIENT, calls.BATCH, calls.LOOP)
    few = calls.CALLS[: 3 if quick else None]
    return [case(call, kind) for kind in kinds for call in few if kind in call.kinds and not aborts(call, kind)]


def programs(quick: bool) -> list[Case]:
    """Those of the suite ``fuse``, a million numbers each: ``jax.jit`` alone and of ``jp.fuse``. Of one that goes through them in
    a ``lax.scan``, for which plain JAX takes 11 microseconds a number, fewer."""
    from ..cases import fuse

    def case(p: fuse.Program, kind: str) -> Case:
        n = 50_000 if quick else 1_000_000
        given = p.inputs(np.random.default_rng(20), 50_000).values()
        if any(eqn.params.get("length", 0) > 1000 for eqn in jax.make_jaxpr(p.function)(*given).eqns):
            n = 20_000

        def inputs() -> tuple[jax.Array, ...]:
            return tuple(jax.device_put(a) for a in p.inputs(np.random.default_rng(20), n).values())

        plain = p.function if kind == fuse.FORWARD else fuse.gradient(p.function)

        def ours(jp: Any, *xs: jax.Array) -> Any:
            return jp.fuse(plain)(*xs)

        both: dict[str, Prepare] = {"xla": xla(plain), OURS: jaxprims(ours)}
        return Case("whole programs", f"{kind}, {p.name}", n, 0, inputs, both, 2e-2, check=_without_nan)

    few = fuse.PROGRAMS[: 3 if quick else None]
    kinds = (fuse.FORWARD, fuse.FUSED_GRADIENT)
    return [case(p, kind) for kind in kinds for p in few if kind == fuse.FORWARD or p.differentiable]


def _without_nan(answer: Arrays) -> Arrays:
    """An empty segment's mean is NaN for both."""
    return tuple(jnp.nan_to_num(a) for a in answer)


def applications(quick: bool) -> list[Case]:
    """Table III of Henriksen et al. 2020, those of the suite ``hist``: jaxprims and XLA, each call waited for."""
    from ..cases.hist import applications as hist_applications

    def adapted(case: Any) -> Case:
        host: dict[str, Any] = {}

        def inputs() -> tuple[jax.Array, ...]:
            host.update(case.make(np.random.default_rng(20)))
            return ()

        def from_host(prepare: Any) -> Prepare:
            def made(_: list[Arrays]) -> Work:
                run = prepare(host)
                return Work(lambda k: run.call(), lambda _: None, lambda r: tuple(jnp.asarray(a) for a in run.fetch(r)))

            return made

        both = {name: from_host(case.contestants[name]) for name in ("xla", OURS)}
        tolerance = 1e-3 if "saturating" not in case.name else 0.0
        return Case("applications", case.name, case.elements, 0, inputs, both, tolerance, dict(case.params))

    return [adapted(c) for c in hist_applications.cases(quick)]
