"""``python -m bench SUITE [--quick] [--only PATTERN] [--cores K | --one-core | --scaling] [--out DIR]``."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

# Idle OpenMP threads must sleep, not spin, while the next contestant is timed. Read when libgomp is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from . import cases, harness, report
from .peers.arrays import module, threads

ONE_CORE = (harness.OURS, "xla", "sequential")
"""The contestants on one core: nothing shall be slower there than a sequential loop written by hand."""


def parser() -> argparse.ArgumentParser:
    suites = sorted(["gpu", *(m.name for m in pkgutil.iter_modules(cases.__path__) if not m.name.startswith("_"))])
    p = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks against every alternative on this machine.")
    p.add_argument("suite", choices=suites)
    p.add_argument("--quick", action="store_true", help="small inputs and few rounds: a smoke run, not a measurement")
    p.add_argument("--only", metavar="PATTERN", help="cases whose 'group: name' matches this regular expression")
    p.add_argument("--contestants", metavar="NAME,...", help="only these contestants")
    p.add_argument("--seconds", type=float, help="time for each contestant in each case (0.7)")
    p.add_argument("--one-core", action="store_true", help="on one core, against the sequential loop")
    p.add_argument("--cores", type=int, metavar="K", help="on K cores")
    p.add_argument(
        "--scaling", action="store_true", help="on 1, 2, 4, ... cores, a run for each (cases: the suite's choice, or --only)"
    )
    p.add_argument("--keep-memory", action="store_true", help="after jaxprims.keep_freed_memory(), which serves all contestants")
    p.add_argument("--append", action="store_true", help="keep an earlier run's other cases in the file")
    p.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="where the JSON and the plots go")
    p.add_argument("--list", action="store_true", help="print the cases' names, run nothing")
    p.add_argument("--budget", type=float, default=600.0, metavar="S", help="gpu: start no case after so many seconds")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a suite; 1 if a contestant failed or gave an answer that differs from the others'."""
    args = parser().parse_args(argv)
    if args.suite == "gpu":
        from . import gpu

        return gpu.main(args)
    suite = importlib.import_module(f".cases.{args.suite}", __package__)
    if args.scaling:
        return scaling(args, suite)
    chosen = [c for c in suite.cases(args.quick) if not args.only or re.search(args.only, c.title)]
    if args.one_core or args.cores or args.quick:  # what shall be reached is meant for the full sizes and all cores
        wanted = {"sequential": 1.0} if args.one_core and not args.quick else {}
        chosen = [dataclasses.replace(c, targets=wanted, seconds_over={}) for c in chosen]
    if args.list:
        print("\n".join(c.title for c in chosen))
        return 0
    if not chosen:
        print(f"no case matches {args.only!r}")
        return 2
    if args.keep_memory and not module("jaxprims").keep_freed_memory():
        print("malloc cannot be told to keep what is freed here")
        return 2
    effort = harness.QUICK if args.quick else harness.Effort()
    if args.seconds:
        effort = harness.Effort(seconds=args.seconds)
    only = args.contestants.split(",") if args.contestants else ONE_CORE if args.one_core else None
    options = {
        "quick": args.quick,
        "only": args.only,
        "one_core": args.one_core,
        "cores": args.cores,
        "keep_memory": args.keep_memory,
    }
    result = report.header(args.suite, options, harness.memory_bandwidth(4 if args.quick else 200, effort))
    bandwidth = ", ".join(f"{k.split('_')[0]} {v:.1f} GB/s" for k, v in result["memory"].items())
    print(f"{result['machine']['cpu']}, {threads()} cores; memory: {bandwidth}")
    if args.append:
        result["cases"] = report.cases(args.out, stem(args))
    for case in chosen:
        done = harness.run_case(case, effort, only, print)
        result["cases"] = report.placed(done, result["cases"])
        print(report.row(done), flush=True)
        path = report.write(result, args.out, stem(args))  # after each case: a run that is stopped leaves what it has
    report.show(result)
    for line in suite.verdicts(result) if hasattr(suite, "verdicts") else ():
        print(line)
    print(path)
    for plot in suite.plots(result, args.out, stem(args)):
        print(plot)
    return 1 if any(c["wrong"] for c in result["cases"]) else 0


def stem(args: argparse.Namespace) -> str:
    """What the files of a run are called."""
    cores = "-one-core" if args.one_core else f"-{args.cores}-cores" if args.cores else ""
    return args.suite + cores + ("-keep-memory" if args.keep_memory else "") + ("-quick" if args.quick else "")


def scaling(args: argparse.Namespace, suite: ModuleType) -> int:
    """The same cases in a process of its own for each number of cores, and a plot of all of them."""
    from . import plots

    counts = sorted({k for e in range(16) if (k := 2**e) < threads()} | {threads()})
    options = ["--only", args.only or getattr(suite, "SCALING", ""), "--out", str(args.out), *(["--quick"] if args.quick else [])]
    options += ["--seconds", str(args.seconds)] if args.seconds else []
    options += ["--contestants", args.contestants] if args.contestants else []
    options += ["--keep-memory"] if args.keep_memory else []
    code, reports = 0, dict[int, dict[str, Any]]()
    for k in counts:
        args.cores = k
        code |= subprocess.run([sys.executable, "-m", "bench", args.suite, "--cores", str(k), *options]).returncode
        reports[k] = json.loads((args.out / f"{stem(args)}.json").read_text())
    for plot in plots.scaling(reports, args.out / f"{args.suite}-scaling{'-quick' if args.quick else ''}.png"):
        print(plot)
    return code


def keep_cores(argv: Sequence[str]) -> None:
    """Starts again on fewer cores if the arguments ask for it, so that every thread pool counts no more than those."""
    args, _ = parser().parse_known_args(argv)
    wanted, mine = 1 if args.one_core else args.cores, sorted(os.sched_getaffinity(0))
    if wanted and wanted < len(mine):
        os.sched_setaffinity(0, mine[:wanted])
        os.execv(sys.executable, [sys.executable, "-m", "bench", *argv])


if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # an installed jaxprims first: the source tree may lack the compiled part
    keep_cores(sys.argv[1:])
    sys.exit(main())
