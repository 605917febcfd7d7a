"""How times on a GPU are taken: calls are enqueued one behind the other, then waited for.

The host's cost of a call is hidden as long as the GPU takes longer; what a call costs alone is measured too (``launch``). Calls
take turns among several copies of their inputs, so that no input is in the L2 cache when it is read again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Arrays = tuple[jax.Array, ...]
PEAK_BYTES = 128 * 2**20
"""Copies of the inputs that take turns are so large together: twice the largest L2."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A contestant with its inputs in place. ``enqueue(k)`` starts its k-th call, ``wait`` returns when that and all before are
    done, ``answer`` makes JAX arrays of what ``enqueue`` returned."""

    enqueue: Callable[[int], Any]
    wait: Callable[[Any], Any] = jax.block_until_ready
    answer: Callable[[Any], Arrays] = lambda result: tuple(jax.tree.leaves(result))


@dataclasses.dataclass(frozen=True)
class Effort:
    """``rounds`` of all contestants in turn, each a block of calls that takes ``block`` seconds or longer. Who needs more than
    ``patience`` for a call is timed once."""

    rounds: int = 5
    block: float = 8e-3
    patience: float = 0.25


QUICK = Effort(rounds=2, block=5e-4, patience=0.05)


def copies(arrays: Sequence[jax.Array]) -> list[Arrays]:
    """The arrays, and so many copies of them that they take turns in memory, not in a cache."""
    size = sum(a.nbytes for a in arrays)
    count = 1 if size > 4 * PEAK_BYTES else min(64, 1 + math.ceil(PEAK_BYTES / max(1, size)))
    return [tuple(arrays), *(tuple(jnp.copy(a) for a in arrays) for _ in range(count - 1))]


def block(work: Work, calls: int) -> float:
    """Seconds for each of ``calls`` calls, enqueued together."""
    result = None
    start = time.perf_counter()
    for k in range(calls):
        result = work.enqueue(k)
    work.wait(result)
    return (time.perf_counter() - start) / calls


def alone(work: Work, calls: int = 30) -> float:
    """Seconds from a call to its result, median: nothing else is under way."""
    return statistics.median(block(work, 1) for _ in range(calls))


def in_turn(works: Mapping[str, Work], effort: Effort) -> dict[str, list[float]]:
    """Seconds for a call of each, measured in turn, so that what disturbs the machine disturbs all of them."""
    first = {name: block(work, 1) for name, work in works.items()}
    first |= {name: block(works[name], 3) for name, s in first.items() if s <= effort.patience}
    calls = {name: min(2000, max(2, math.ceil(effort.block / max(s, 1e-6)))) for name, s in first.items()}
    seconds = {name: [s] if s > effort.patience else [] for name, s in first.items()}
    gc.disable()
    try:
        for turn in range(effort.rounds):
            waiting = [name for name, s in first.items() if s <= effort.patience]
            for name in waiting if turn % 2 == 0 else reversed(waiting):
                seconds[name].append(block(works[name], calls[name]))
    finally:
        gc.enable()
    return seconds


def agree(expected: Arrays, got: Arrays, rtol: float = 0.0) -> str:
    """What differs, empty if nothing does; compared on the device. ``rtol``: of the largest magnitude of an array."""
    if [e.shape for e in expected] != [g.shape for g in got]:
        return f"shapes {[g.shape for g in got]}, expected {[e.shape for e in expected]}"
    for k, (e, g) in enumerate(zip(expected, got, strict=True)):
        wrong, largest, first = (x.item() for x in _differences(e, g, rtol))
        if wrong:
            return f"result {k}: {wrong} of {e.size} differ, by {largest:.3g} at most, the first at {first}"
    return ""


@jax.jit
def _differences(e: jax.Array, g: jax.Array, rtol: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    e, g = (x.ravel().astype(jnp.float32) if x.dtype != jnp.int32 else x.ravel() for x in (e, g))
    if e.dtype != g.dtype:
        e, g = e.astype(jnp.float32), g.astype(jnp.float32)
    if e.dtype == jnp.int32:
        bad, by = e != g, jnp.abs(e - g).astype(jnp.float32)
    else:
        finite = jnp.where(jnp.isfinite(e), jnp.abs(e), 0)
        by = jnp.where(e == g, 0, jnp.abs(e - g))
        bad = ~(by <= rtol * jnp.max(finite, initial=0))
    return jnp.sum(bad), jnp.max(by, initial=0), jnp.argmax(bad)


# --- the machine -----------------------------------------------------------------------------------------------------------


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def target() -> str:
    """The GPU's architecture; "cpu" where there is none."""
    return "sm_" + re.sub(r"\D", "", str(jax.devices()[0].compute_capability)) if on_gpu() else "cpu"


def describe() -> dict[str, Any]:
    """The device, its driver and clocks; of a machine without a GPU, what stands in for it."""
    device = jax.devices()[0]
    found: dict[str, Any] = {"device": device.device_kind, "platform": device.platform}
    with contextlib.suppress(Exception):  # no jaxlib has all of them
        found["compute_capability"] = device.compute_capability
    with contextlib.suppress(Exception):
        found["multiprocessors"] = device.core_count
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        fields = "driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.limit"
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
        text = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.splitlines()
        if text:
            found |= dict(zip(fields.split(","), (x.strip() for x in text[0].split(",")), strict=False))
    return found


def clocks() -> str:
    """The multiprocessors' clock and the temperature, now."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    return ""


def uniform_ints(seed: int, n: int, high: int = 2**31 - 1) -> jax.Array:
    """Int32 in [0, high)."""
    return jax.block_until_ready(jax.random.randint(jax.random.key(seed), (n,), 0, high, jnp.int32))


def small_floats(seed: int, n: int) -> jax.Array:
    """Float32 integers in [-8, 8]: their sums are exact in any order as long as they stay under 2^24."""
    return jax.block_until_ready(jax.random.randint(jax.random.key(seed), (n,), -8, 9, jnp.int8).astype(jnp.float32))


def uniform_floats(seed: int, n: int) -> jax.Array:
    return jax.block_until_ready(jax.random.uniform(jax.random.key(seed), (n,), jnp.float32))


def to_numpy(arrays: Arrays) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(a) for a in arrays)
