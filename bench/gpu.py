"""``python -m bench gpu``: everything that is measured on a GPU, within a budget of time.

Contestants that are not on the machine are left out; on a machine without a GPU jaxprims and XLA alone run, on the CPU, which
tries the suite and measures nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# Other libraries need memory too. Read when JAX is imported.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax

from . import gpu_contestants as contestants
from . import gpu_measure as measure
from . import gpu_report, report
from .contestant import Missing
from .gpu_cases import OURS, Case, groups
from .gpu_measure import Arrays, Work

WARM = ("xla", OURS)
"""Compiled in many threads before a group is measured."""


def main(args: argparse.Namespace) -> int:
    """Runs the suite; 1 if a contestant failed or gave an answer that differs from the others'."""
    effort = measure.QUICK if args.quick else measure.Effort()
    if args.list:
        for _, make in groups(args.quick):
            print("\n".join(c.title for c in make()))
        return 0
    start = time.monotonic()
    result = report.header("gpu", {"quick": args.quick, "only": args.only, "budget": args.budget}, {})
    result["machine"] |= measure.describe()
    result["versions"] |= contestants.versions()
    stem = "gpu-quick" if args.quick else "gpu"
    path = args.out / f"{stem}.json"
    result["memory"] = bandwidth(2**18 if args.quick else 2**28, effort)
    print(f"{result['machine']['device']}: " + ", ".join(f"{k} {v:.0f}" for k, v in result["memory"].items()), flush=True)
    result["cut_short"], result["reduction kernels"] = [], paper_2_kernels()
    for name, make in groups(args.quick):
        left = args.budget - (time.monotonic() - start)
        cases = [c for c in make() if not args.only or re.search(args.only, c.title)]
        if cases and left <= 0:
            result["cut_short"].append(f"{name}: all {len(cases)} cases")
            continue
        done = run_group(cases, effort, args.contestants.split(",") if args.contestants else None, start + args.budget)
        if len(done) < len(cases):
            result["cut_short"].append(f"{name}: {len(cases) - len(done)} of {len(cases)} cases")
        for case in done:
            judge(case, result["memory"])
            print(gpu_report.row(case), flush=True)
            result["cases"].append(case)
        seconds = time.monotonic() - start
        if cases:
            result.setdefault("groups", []).append({"name": name, "until_s": round(seconds, 1), "clocks": measure.clocks()})
            print(f"--- {name}: until {seconds:.0f} s; {measure.clocks()}", flush=True)
            report.write(result, args.out, stem)  # a run that is stopped leaves what it has
    if not result["cases"]:
        print(f"no case matches {args.only!r}")
        return 2
    result["verdicts"] = list(gpu_report.verdicts(result))
    report.write(result, args.out, stem)
    (args.out / f"{stem}.md").write_text(gpu_report.markdown(result))
    print(path)
    with contextlib.suppress(ImportError):
        from . import gpu_plots

        for plot in gpu_plots.plots(result, args.out, stem):
            print(plot)
    print(gpu_report.summary(result))
    return 1 if any(c["wrong"] for c in result["cases"]) else 0


def paper_2_kernels() -> dict[str, list[dict[str, Any]]]:
    """Table I of Martín et al. 2012: what the algorithms' kernels take."""
    if not measure.on_gpu():
        return {}
    x, i = jax.ShapeDtypeStruct((2**20,), jax.numpy.float32), jax.ShapeDtypeStruct((2**20,), jax.numpy.int32)
    out: dict[str, list[dict[str, Any]]] = {}
    try:
        jp, target = contestants.module("jaxprims"), measure.target()
        from .paper2 import contestant

        whole = lambda x: jp.reduce(x, jax.numpy.minimum)  # noqa: E731
        by_ids = lambda x, i: jp.segment_reduce(x, i, jax.numpy.minimum, num_segments=1000)  # noqa: E731
        specs = [contestant.spec_of(whole, x), contestant.spec_of(by_ids, x, i)]
        for name, algorithm in contestant.ALGORITHMS.items():
            kernels = [contestant.compiled(s, algorithm.kernel(s.kind), target).resources for s in specs]
            out[name] = [_figures(used.kernel, used) for resources in kernels for used in resources]
        plans = contestants.module("jaxprims.targets.plans")
        with plans.forced(plans.AnyKernel()):
            ours = jp.compile_check(whole, x, target=target, allow_spills=True)
            ours += jp.compile_check(by_ids, x, i, target=target, allow_spills=True)
        out[OURS] = [_figures(k.name, k) for name in ("ReduceBlocks", "SegmentsShort") for k in ours if k.name == name]
    except Exception as error:
        print(f"  kernels of Martín et al. 2012: {type(error).__name__}: {str(error)[:300]}")
        return {}
    return out


def _figures(name: str, used: Any) -> dict[str, Any]:
    return {"name": name, **{f: getattr(used, f) for f in ("registers", "shared_bytes", "stack_bytes", "spill_bytes")}}


def bandwidth(n: int, effort: measure.Effort) -> dict[str, float]:
    """Gigabytes a second: the best read of n float32, and the best copy (read and written bytes both counted)."""
    x = measure.uniform_floats(0, n)
    inputs = measure.copies((x,))
    makers = {
        "read, XLA": contestants.xla(lambda x: x.sum()),
        "read, kernel": contestants.plain("read_all", lambda x: [contestants.empty((1,), x.dtype)], lambda x: [len(x)]),
        "read, CUB": contestants.cub("ordered", "reduce_add", lambda x: [contestants.empty((), x.dtype)], lambda x: [len(x)]),
        "copy, XLA": contestants.xla(lambda x: x + 1),
        "copy, kernel": contestants.plain("copy_kernel", lambda x: [contestants.empty(x.shape, x.dtype)], lambda x: [len(x)]),
        "copy, engine": contestants.plain("copy_engine", lambda x: [contestants.empty(x.shape, x.dtype)], lambda x: [len(x)]),
        "copy, PyTorch": contestants.torch(lambda t, x: x.clone()),
    }
    works = {}
    for name, prepare in makers.items():
        try:
            works[name] = prepare(inputs)
        except Missing:
            continue
        except Exception as error:
            print(f"  {name}: {type(error).__name__}: {str(error)[:500]}")
    found = {}
    for name, seconds in measure.in_turn(works, effort).items():
        found[f"{name}, GB/s"] = (2 if name.startswith("copy") else 1) * x.nbytes / min(seconds) / 1e9
    for kind in ("read", "copy"):
        found[f"{kind}_GB_per_s"] = max(v for k, v in found.items() if k.startswith(kind))
    return found


def run_group(cases: Sequence[Case], effort: measure.Effort, only: Sequence[str] | None, deadline: float) -> list[dict[str, Any]]:
    """Those cases of a group that the time allows."""
    shared: dict[tuple[int, ...], tuple[Any, list[Arrays]]] = {}

    def inputs_of(case: Case) -> list[Arrays]:
        """Cases with the same arrays share their copies."""
        arrays = jax.block_until_ready(case.inputs())
        key = tuple(map(id, arrays))
        if key not in shared:
            shared[key] = arrays, measure.copies(arrays)
        return shared[key][1]

    def warm(job: tuple[Case, str, list[Arrays]]) -> Work | Exception:
        case, name, inputs = job
        try:
            work = case.contestants[name](inputs)
            work.wait(work.enqueue(0))
            return work
        except Exception as error:
            return error

    done: list[dict[str, Any]] = []
    size = 2 if any(c.bytes > 2**29 for c in cases) else 24
    for k in range(0, len(cases), size):
        part = cases[k : k + size]
        if time.monotonic() > deadline:
            break
        inputs = {c.title: inputs_of(c) for c in part}
        jobs = [
            (c, name, inputs[c.title])
            for c in part
            for name, prepare in c.contestants.items()
            if (only is None or name in only) and (name in WARM or isinstance(prepare, contestants.jaxprims))
        ]
        with ThreadPoolExecutor(min(12, os.cpu_count() or 1)) as pool:
            ready = dict(zip(((c.title, name) for c, name, _ in jobs), pool.map(warm, jobs), strict=True))
        for case in part:
            if time.monotonic() > deadline:
                break
            mine = {name: w for (title, name), w in ready.items() if title == case.title}
            done.append(run_case(case, inputs[case.title], mine, effort, only))
    shared.clear()
    return done


def run_case(
    case: Case, inputs: list[Arrays], ready: dict[str, Work | Exception], effort: measure.Effort, only: Sequence[str] | None
) -> dict[str, Any]:
    """Prepares, checks and times the contestants of a case; the result goes into the report as it is."""
    works: dict[str, Work] = {}
    missing: dict[str, str] = {}
    wrong: dict[str, str] = {}
    reference: tuple[str, Arrays] | None = None
    for name, prepare in case.contestants.items():
        if only is not None and name not in only:
            continue
        try:
            made = ready.get(name) or prepare(inputs)
            if isinstance(made, Exception):
                raise made
            result = made.enqueue(0)
            made.wait(result)
            if name not in case.unchecked:
                answer = case.check(made.answer(result))
                if reference is None:
                    reference = name, tuple(jax.numpy.copy(a) for a in answer)  # some write every result to the same memory
                elif why := measure.agree(reference[1], answer, case.rtol):
                    wrong[name] = f"does not agree with {reference[0]}: {why}"
            works[name] = made
        except Missing as reason:
            missing[name] = str(reason)
        except Exception as error:  # a contestant that fails must not end the run of the others
            wrong[name] = f"{type(error).__name__}: {str(error)[:1500]}"
            if name.startswith(OURS):
                traceback.print_exc()
    timed = {name: w for name, w in works.items() if name not in wrong}
    seconds = measure.in_turn(timed, effort)
    alone = {name: measure.alone(w) for name, w in timed.items()} if case.alone else {}
    for name, why in wrong.items():
        print(f"  {case.title}: {name} {why}")
    return {
        "group": case.group,
        "name": case.name,
        "elements": case.elements,
        "bytes": case.bytes,
        "params": dict(case.params),
        "contestants": {name: {"seconds": s, "alone_s": alone.get(name)} for name, s in seconds.items()},
        "reference": reference[0] if reference else "",
        "unchecked": list(case.unchecked),
        "missing": missing,
        "wrong": wrong,
        "plan": explained(case, inputs),
    }


def explained(case: Case, inputs: list[Arrays]) -> str:
    """What ``jaxprims.explain`` says of the plan."""
    ours = case.contestants[OURS]
    if not case.explained or not isinstance(ours, contestants.jaxprims):
        return ""
    try:
        explain = contestants.module("jaxprims").explain(ours.function(), target=measure.target())
        calls = explain(*ours.converted(inputs[0])).calls
        return "; ".join(f"{c.strategy} ({c.reason})" for c in calls)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def judge(case: dict[str, Any], memory: dict[str, float]) -> None:
    """Adds medians, bandwidths and ratios."""
    import statistics

    ours = statistics.median(case["contestants"][OURS]["seconds"]) if OURS in case["contestants"] else None
    for figures in case["contestants"].values():
        median = statistics.median(figures["seconds"])
        rate = case["bytes"] / median / 1e9
        figures |= {"median_s": median, "best_s": min(figures["seconds"]), "GB_per_s": rate}
        figures |= {"of_read": rate / memory["read_GB_per_s"], "of_copy": rate / memory["copy_GB_per_s"]}
        figures["ratio"] = median / ours if ours else None
