"""The algorithms as contestants: the same call as jaxprims', its operator compiled into their kernels."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp
from jaxprims.specs.ordered import OrderedSpec
from jaxprims.targets.cuda import nvrtc, source
from jaxprims.targets.plans import AnyKernel, forced

from ..contestant import Missing
from ..gpu_measure import Arrays, Work, on_gpu
from .driver import Kernels, driver
from .launches import ALGORITHMS, Call, launches, text, workspace_bytes

__all__ = ["ALGORITHMS", "algorithm", "compiled", "spec_of"]


def spec_of(fn: Callable[..., Any], *args: Any) -> OrderedSpec:
    """Of the one reduction, or segmented reduction, that ``fn`` is; which segments are empty may be a histogram beside it."""
    with forced(AnyKernel()):
        calls = jp.explain(fn, target="sm_90")(*args).calls
    specs = [call.spec for call in calls if isinstance(call.spec, OrderedSpec)]
    if len(specs) != 1:
        raise TypeError(f"not a reduction: {[call.summary for call in calls]}")
    return specs[0]


@functools.lru_cache(maxsize=64)
def compiled(spec: OrderedSpec, kernel: str, arch: str) -> nvrtc.Compiled:
    """One kernel of :func:`~bench.paper2.launches.text`."""
    return nvrtc.compile_cubin(source.only(text(spec), kernel), arch)


def algorithm(name: str, fn: Callable[..., Any], convert: Callable[..., Any] | None = None) -> Callable[[list[Arrays]], Work]:
    """``fn(jaxprims, *arrays)``, a reduction of the arrays or, by sorted ids, the last of them, a segmented reduction."""

    def prepare(inputs: list[Arrays]) -> Work:
        if not on_gpu() and "JAXPRIMS_CUDA_DRIVER" not in os.environ:
            raise Missing(f"{name}: no GPU")
        made = [tuple(convert(*x)) for x in inputs] if convert else inputs
        jax.block_until_ready(made)
        call = functools.partial(fn, jp)
        spec, shapes = spec_of(call, *made[0]), jax.eval_shape(call, *made[0])
        use = driver()
        use.use()
        kernels = Kernels(lambda kernel: compiled(spec, kernel, use.arch).image)
        n = jax.tree.leaves(made[0])[0].shape[0]
        outs = [jax.block_until_ready(jnp.zeros(s.shape, s.dtype)) for s in jax.tree.leaves(shapes)]
        workspace = jax.block_until_ready(jnp.zeros(workspace_bytes(spec, name, n), np.uint8))

        def prepared(arrays: Any) -> Callable[[], None]:
            *addresses, last = map(_address, jax.tree.leaves(arrays))
            if spec.kind == "reduce":
                given = Call(n, [*addresses, last], list(map(_address, outs)), _address(workspace))
            else:
                ids = jax.tree.leaves(arrays)[-1]
                results = list(map(_address, outs))
                given = Call(n, addresses, results, _address(workspace), outs[0].shape[0], last, ids.dtype.itemsize)
            return kernels.prepared(launches(spec, name, given, kernels))

        runs = [prepared(arrays) for arrays in made]
        keep = (made, workspace)  # alive as long as the addresses are used

        def enqueue(k: int) -> Any:
            runs[k % len(keep[0])]()
            return outs

        return Work(enqueue, lambda _: use.wait())

    return prepare


def _address(array: jax.Array) -> int:
    return ctypes.c_void_p(array.unsafe_buffer_pointer()).value or 0
