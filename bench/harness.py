"""Runs cases: contestants in turn, answers checked against each other, times and ratios from one and the same run."""

from __future__ import annotations

import dataclasses
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .contestant import Answer, Case, Inputs, Missing, Run
from .peers import native

OURS = "jaxprims"
LIMIT = "memory limit"
ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure: rounds of all contestants, until each has had ``seconds`` or ``rounds``, but ``at_least`` so many."""

    seconds: float = 0.7
    rounds: int = 25
    at_least: int = 3
    block: float = 1e-3
    """A call shorter than this is repeated, and the mean taken."""
    patience: float = 1.5
    """A contestant whose call takes longer than this is timed once."""
    again: int = 3
    """How often a case is measured again that misses what it shall reach, or reaches it by less than a tenth; all times count."""


QUICK = Effort(seconds=0.02, rounds=5, at_least=2, block=2e-4, again=0)


def timed(run: Run, repeat: int) -> float:
    """Seconds for each of ``repeat`` calls."""
    start = time.perf_counter()
    for _ in range(repeat):
        run.call()
    return (time.perf_counter() - start) / repeat


def round_robin(runs: Mapping[str, Run], effort: Effort) -> dict[str, list[float]]:
    """Seconds for a call of each contestant, measured in turn, so that what disturbs the machine disturbs all of them."""
    first = {name: timed(run, 1) for name, run in runs.items()}
    repeats = {name: max(1, math.ceil(effort.block / max(s, 1e-7))) for name, s in first.items()}
    seconds = {name: [s] if s > effort.patience else [] for name, s in first.items()}
    gc.disable()
    try:
        for turn in range(effort.rounds):
            waiting = [
                name
                for name, s in seconds.items()
                if first[name] <= effort.patience and (len(s) < effort.at_least or sum(s) * repeats[name] < effort.seconds)
            ]
            if not waiting:
                break
            for name in waiting if turn % 2 == 0 else reversed(waiting):
                seconds[name].append(timed(runs[name], repeats[name]))
    finally:
        gc.enable()
    return seconds


def run_case(case: Case, effort: Effort, only: Sequence[str] | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Prepares, checks and times the contestants of a case; the result goes into the report as it is."""
    inputs = {name: aligned(a) for name, a in case.make(np.random.default_rng(20)).items()}
    runs: dict[str, Run] = {}
    reference: tuple[str, Answer] | None = None
    answer: Answer | None = None
    missing: dict[str, str] = {}
    wrong: dict[str, str] = {}
    errors: dict[str, float] = {}
    exact = case.exact(inputs) if case.exact else None
    for name, prepare in case.contestants.items():
        if not wanted(name, only):
            continue
        run = None
        try:
            run = prepare(inputs)
            answer = run.fetch(run.call())
            if reference is None:
                reference = name, tuple(a.copy() for a in answer)  # contestants may share the memory of their results
            else:
                case.check(reference[1], answer)
            if exact is not None:
                errors[name] = relative_error(exact, answer)
            runs[name] = run
        except Missing as reason:
            missing[name] = str(reason)
        except AssertionError as error:
            wrong[name] = f"does not agree with {reference[0] if reference else 'itself'}: {str(error).strip()}"
        except Exception as error:  # a contestant that fails must not end the run of the others
            wrong[name] = f"{type(error).__name__}: {error}"
        if run is not None and name not in runs:
            run.close()
    output_bytes = sum(a.nbytes for a in reference[1]) if reference else 0
    reference = answer = None
    runs.update({name: prepare(inputs) for name, prepare in case.beside.items() if wanted(name, only)})
    runs[LIMIT] = native.memory_limit(inputs, output_bytes)
    seconds = round_robin(runs, effort)
    for _ in range(effort.again if in_doubt(case.targets, ratios(seconds)) else 0):
        for name, more in round_robin(runs, effort).items():
            seconds[name] += more
    for run in runs.values():
        run.close()
    for name, why in wrong.items():
        say(f"  {case.title}: {name} {why}")
    return {
        "group": case.group,
        "name": case.name,
        "elements": case.elements,
        "input_bytes": sum(a.nbytes for a in inputs.values()),
        "output_bytes": output_bytes,
        "params": dict(case.params),
        "contestants": {name: figures(s, case.elements, min(seconds[LIMIT])) for name, s in seconds.items()},
        "ratios": ratios(seconds),
        "targets": targets(case.targets, ratios(seconds)),
        "seconds_over": seconds_over(case.seconds_over, seconds),
        "errors": errors,
        "missing": missing,
        "wrong": wrong,
    }


def wanted(name: str, only: Sequence[str] | None) -> bool:
    """Whether a contestant takes part; "xla" stands for all of XLA's ways, such as "xla: pad"."""
    return only is None or name in only or name.split(":")[0] in only


def figures(seconds: Sequence[float], elements: int, limit: float) -> dict[str, Any]:
    best = min(seconds)
    return {
        "best_s": best,
        "median_s": statistics.median(seconds),
        "ns_per_element": best / elements * 1e9,
        "of_memory_limit": limit / best,
        "seconds": list(seconds),
    }


def ratios(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """How many times faster than each other contestant ours is, by best times; nothing where ours did not run."""
    if OURS not in seconds:
        return {}
    return {name: min(s) / min(seconds[OURS]) for name, s in seconds.items() if name not in (OURS, LIMIT)}


def targets(wanted: Mapping[str, float], got: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    return {n: {"wanted": w, "got": got[n], "met": got[n] >= w} for n, w in wanted.items() if n in got}


def in_doubt(wanted: Mapping[str, float], got: Mapping[str, float]) -> bool:
    return any(got[name] < 1.1 * least for name, least in wanted.items() if name in got)


def aligned(array: np.ndarray) -> np.ndarray:
    """The array at an address with which JAX takes it as it is: contestants share the input's memory."""
    if array.ctypes.data % ALIGNMENT == 0 and array.flags.c_contiguous:
        return array
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def seconds_over(wanted: Mapping[str, float], seconds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """What ours costs beyond other contestants, by median times."""
    if OURS not in seconds:
        return {}
    ours = statistics.median(seconds[OURS])
    got = {n: ours - statistics.median(seconds[n]) for n in wanted if n in seconds}
    return {n: {"wanted": wanted[n], "got": s, "met": s <= wanted[n]} for n, s in got.items()}


def relative_error(exact: Answer, got: Answer) -> float:
    """The largest difference in an array, in proportion to the largest magnitude in it."""
    pairs = [(e.astype(np.float64), g.astype(np.float64)) for e, g in zip(exact, got, strict=True)]
    return max(float(np.abs(g - e).max(initial=0) / (np.abs(e).max(initial=0) or 1)) for e, g in pairs)


def memory_bandwidth(megabytes: int, effort: Effort) -> dict[str, float]:
    """Gigabytes a second, with all threads: a read of one array; copies (read and written bytes both counted), by ordinary
    stores, which read a line before they write it, and by streaming ones."""
    source = np.ones(megabytes * 250_000, np.float32)
    target = np.empty_like(source)
    inputs: Inputs = {"source": source}
    runs = {"read": native.memory_limit(inputs, 0), "copy": native.copy(source, target), "stream": native.stream(source, target)}
    arrays = {"read": 1, "copy": 2, "stream": 2}
    return {f"{n}_GB_per_s": arrays[n] * source.nbytes / min(s) / 1e9 for n, s in round_robin(runs, effort).items()}
