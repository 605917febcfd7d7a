"""Makes programs, and compares what they give."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp
from jaxprims.targets.plans import AnyKernel, forced

from .functions import FUNCTIONS
from .program import DERIVATIVES, Program, Rng
from .transformations import transformed


def program(seed: int, number: int) -> tuple[Program, Rng, bool]:
    rng = np.random.default_rng([seed, number])
    x64 = bool(rng.random() < 0.25)
    with jax.enable_x64(x64), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformed(rng, FUNCTIONS[rng.integers(len(FUNCTIONS))](rng, x64)), rng, x64


def differ(got: Any, wanted: Any, tolerance: float) -> str | None:
    """How they do."""
    mine, other = jax.tree.leaves(got), jax.tree.leaves(wanted)
    if len(mine) != len(other):
        return f"{len(mine)} results for {len(other)}"
    for k, (g, w) in enumerate(zip(mine, other, strict=True)):
        if g.dtype == jax.dtypes.float0:
            continue
        if (g.shape, g.dtype) != (w.shape, w.dtype):
            return f"result {k} is {g.dtype}{g.shape}, not {w.dtype}{w.shape}"
        g, w = np.asarray(g), np.asarray(w)
        if not jnp.issubdtype(w.dtype, jnp.inexact):
            same = np.array_equal(g, w)
        else:
            eps = float(jnp.finfo(w.dtype).eps)
            wide = np.complex128 if w.dtype.kind == "c" else np.float64
            g, w = g.astype(wide), w.astype(wide)
            bound = np.abs(w[np.isfinite(w)]).max(initial=1)
            same = np.allclose(g, w, rtol=max(50 * eps, tolerance), atol=max(50 * eps, tolerance) * bound, equal_nan=True)
        if not same:
            return f"result {k}:\n{g}\nis not\n{w}"
    return None


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jp.IdentityWarning)
        warnings.simplefilter("ignore", jp.FallbackWarning)
        yield


def check(seed: int, number: int, draws: int) -> str | None:
    """Runs a program on so many draws of its arrays: what is wrong with it, if anything."""
    p, rng, x64 = program(seed, number)
    eager = not p.traceable or rng.random() < 0.15
    kernels = forced(AnyKernel()) if rng.random() < 0.7 else contextlib.nullcontext()
    with jax.enable_x64(x64), kernels, quietly():
        mine, plain = p.mine if eager else jax.jit(p.mine), jax.jit(p.plain)
        for k in range(1 if not p.traceable else draws):
            odd = p.odd if rng.random() < 0.3 and not any(word in p.text for word in DERIVATIVES) else ()
            arrays = [a.with_odd(rng, odd) for a in p.arrays]
            try:
                wanted = plain(*map(jnp.asarray, arrays))
                wrong = differ(mine(*map(jnp.asarray, arrays)), wanted, p.tolerance)
            except Exception:
                wrong = traceback.format_exc(limit=-6)
            if wrong:
                return f"--seed {seed} --only {number}: {'eager ' * eager}{p.text}, draw {k}\n{wrong}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_calls", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="calls")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=8, help="calls of each program")
    parser.add_argument("--only", type=int, help="the number of one program")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    args = parser.parse_args()
    flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=8"
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}"
    numbers = [args.only] if args.only is not None else range(-(-args.count // args.draws))
    begin, failed, done = time.monotonic(), 0, 0
    for number in numbers:
        wrong = check(args.seed, number, args.draws)
        done += 1
        if wrong:
            failed += 1
            print(f"\n{wrong}", flush=True)
        if number % 100 == 99:
            jax.clear_caches()
        if time.monotonic() - begin > args.seconds:
            break
    print(f"{done} programs, {done * args.draws} calls in {time.monotonic() - begin:.0f} s: {failed} failed")
    return bool(failed)
