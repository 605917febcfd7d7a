"""Builds what a run on a GPU needs beside the extension, before it is needed and on all cores: the compiled contestants, and the
kernels of the tests' short form and of the suite ``gpu``, which stay in jaxprims' cache on disk.

NVRTC compiles one kernel at a time in a process, so this takes many. None of it needs the GPU itself.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FUTHARK_SECONDS = 60


def architecture() -> str:
    """Of the first GPU; that of an H200 where none is seen."""
    try:
        command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
        text = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        return "sm_" + text.splitlines()[0].strip().replace(".", "")
    except (OSError, subprocess.SubprocessError, IndexError):
        return "sm_90"


def libraries() -> None:
    """CUB and Futhark; says what is there and what is not, and never fails."""
    from . import gpu_contestants
    from .contestant import Missing

    jobs: list[tuple[str, Callable[[str], object]]] = [
        *((f"CUB, {name}", lambda _, name=name: gpu_contestants.cub_library(name)) for name in ("ordered", "hist")),
        *((f"Futhark, {name}", lambda _, name=name: futhark_kernels(name)) for name in ("hist", "scan", "segment")),
    ]

    def build(job: tuple[str, Callable[[str], object]]) -> str:
        try:
            job[1](job[0])
            return f"{job[0]}: ready"
        except (Missing, RuntimeError, OSError, subprocess.SubprocessError) as error:
            return f"{job[0]}: {str(error)[:1000]}"

    with ThreadPoolExecutor(len(jobs)) as pool:
        for said in pool.map(build, jobs):
            print(said, flush=True)


def futhark_kernels(name: str) -> None:
    """In a process of its own, which can be stopped."""
    from . import gpu_contestants

    gpu_contestants.futhark_library(name)
    program = f"from bench.gpu_contestants import FutharkProgram; FutharkProgram({name!r}, compiling=True)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=FUTHARK_SECONDS)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-500:])


def functions() -> Iterator[tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]]:
    """What is called later, and what makes arguments of the same dtypes and ranks."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "gpu")]
    short_form = importlib.import_module("short_form")

    from . import gpu_cases
    from .gpu_contestants import jaxprims

    for call in short_form.calls().values():
        yield call.fn, functools.partial(tuple, call.args)
    groups = {name: make() for name, make in gpu_cases.groups(quick=True) if name not in ("applications", "plans")}
    groups |= {"everyday": gpu_cases.everyday(quick=False), "whole programs": gpu_cases.programs(quick=False)}
    for case in itertools.chain(*groups.values()):
        for prepare in case.contestants.values():
            if isinstance(prepare, jaxprims) and not prepare.plan:
                yield prepare.function(), functools.partial(_arguments, prepare, case)


def _arguments(prepare: Any, case: Any) -> tuple[Any, ...]:
    return tuple(prepare.converted(case.inputs()))


def kernels(k: int, of: int, arch: str) -> tuple[int, int]:
    """Compiles every ``of``-th function from the ``k``-th; how many were right, and how many not."""
    import jaxprims as jp

    right = wrong = 0
    for fn, args in list(functions())[k::of]:
        try:
            jp.compile_check(fn, *args(), target=arch, allow_spills=True)
            right += 1
        except Exception as error:  # whoever calls it later will say more
            wrong += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {str(error)[:300]} ({Path(where.filename).name}, line {where.lineno})"
            print(f"    kernels of {getattr(fn, '__name__', fn)}: {said}", flush=True)
    return right, wrong


def main() -> None:
    start, arch = time.monotonic(), architecture()
    os.environ |= {"JAX_PLATFORMS": "cpu", "BENCH_CUDA_ARCH": arch}
    workers = max(1, (os.cpu_count() or 1) - 2)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool, ThreadPoolExecutor(1) as beside:
        built = beside.submit(libraries)
        done = [pool.submit(kernels, k, workers, arch) for k in range(workers)]
        right, wrong = (sum(x) for x in zip(*(d.result() for d in done), strict=True))
        print(f"{right} functions' kernels compiled for {arch}, {wrong} not: {time.monotonic() - start:.0f} s", flush=True)
        built.result()
    print(f"ready after {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
