"""``make gpu``: build, correctness, compute-sanitizer, the GPU tests and the benchmarks, one after the other, each in its time.

Unattended and without a network, on a machine with a GPU whose Python has what is needed; nothing is installed but the package
itself, where it lies. What is not on the machine is left out. All output goes to the screen and to ``gpu.log`` in the folder that
the variable OUT names (else bench/results), where the benchmarks' files are put as well. A table of the steps comes last; the
exit code is 1 if one of them failed.

GPU_SECONDS is the time for everything (530); ``--only build,tests`` runs some steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
SUMMARY = re.compile(
    r"^(.*\b\d+ (?:passed|failed|errors?)\b.*|short form: .*|(?:mem|race|sync|init)check: .*|compute-sanitizer: .*|"
    r"(?:met|NOT MET|not measured) .*|(?:everyday|whole programs): \d.*|left out: .*|no time for .*|WRONG: .*)$"
)
"""Lines that are said again at the end."""

ON_THE_CPU = (
    "artifacts", "bench", "chains", "classify", "compile_check", "cuda_codegen", "cuda_specs", "divided", "divided_by_name",
    "divided_derivatives", "divided_explicit", "divided_grids", "divided_uneven", "emulation", "emulation_calls",
    "emulation_faults", "equal_rows", "errors", "examples", "explicit_axes", "fold_walks", "gpu_plans", "huge", "kernel_cache",
    "layers", "llvm_expr", "llvm_loops", "lower", "lower_arrays", "ordered_sharding", "processes", "readme", "reduce_kernels",
    "registry", "sass", "scan_along", "scan_kernels", "sharding", "strategies", "tables", "threads", "xla_pays_histogram",
    "xla_pays_ordered", "xla_reduces",
)  # fmt: skip
"""Test files that say nothing about one GPU: they call the CPU's kernels, want several devices, or call nothing at all."""


@dataclasses.dataclass
class Step:
    """One program with its time; ``of_rest``: the part of what is left that it may take, if that is more. ``beside``: together
    with the one before, as neither measures anything."""

    name: str
    command: list[str]
    seconds: float
    of_rest: float = 0.0
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    fine: tuple[int, ...] = (0,)
    needs: str = ""
    beside: bool = False
    outcome: str = "not run"
    took: float = 0.0
    lines: list[str] = dataclasses.field(default_factory=list)


class Log:
    """The screen and a file."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.lock = file, threading.Lock()

    def say(self, line: str) -> None:
        with self.lock:
            print(line, flush=True)
            self.file.write(line + "\n")
            self.file.flush()


def steps(out: Path, quick: bool) -> list[Step]:
    jax_env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_PLATFORMS": "cuda,cpu", "PYTHONUNBUFFERED": "1"}
    on_gpu = {**jax_env, "JAXPRIMS_REQUIRE_GPU": "1"}
    workers = str(max(1, min(12, (os.cpu_count() or 1) // 2 - 1)))  # of two steps at once
    parallel = ["-n", workers, "--dist", "worksteal"] if _has("xdist") else []
    pytest = [PYTHON, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "-p", "no:benchmark", *parallel]
    rest = [f"--ignore=tests/test_{name}.py" for name in ON_THE_CPU] + ["--ignore=tests/emulation"]
    bench = [PYTHON, "-m", "bench", "gpu", "--out", str(out), *(["--quick"] if quick else [])]
    return [
        Step("build", build_command(), 120),
        Step("correctness", [PYTHON, "tests/gpu/short_form.py"], 60, env=on_gpu, needs="build"),
        Step("compute-sanitizer", [PYTHON, "tests/gpu/sanitizer.py", "--seconds", "105"], 115, env=jax_env, needs="correctness"),
        Step("GPU tests", [*pytest, "tests/gpu"], 115, env=on_gpu, needs="build", beside=True),
        Step("tests on the GPU", [*pytest, "-m", "not cpu", "--maxfail=100", "--ignore=tests/gpu", *rest, "tests"], 115,
             env={**on_gpu, "JAXPRIMS_CASES": "8"}, needs="build", beside=True),
        Step("bench", [*bench, "--budget", "{seconds}"], 150, of_rest=1.0, env=jax_env, needs="build"),
    ]  # fmt: skip


def _groups(chosen: Sequence[Step]) -> list[list[Step]]:
    """Each with those that run beside it."""
    groups: list[list[Step]] = []
    for step in chosen:
        if step.beside and groups:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def build_command() -> list[str]:
    """The extension beside the sources, by CMake alone, which needs nothing from an index; then kernels and contestants."""
    cmake = shutil.which("cmake") or str(Path(PYTHON).with_name("cmake"))
    folder, cores = "build/gpu", os.cpu_count() or 1
    generator = "-G Ninja " if shutil.which("ninja") else ""
    configure = f"{cmake} -S . -B {folder} {generator}-DPython_EXECUTABLE={PYTHON} -DCMAKE_BUILD_TYPE=Release"
    make = f"{cmake} --build {folder} --parallel {cores} && {cmake} --install {folder} --prefix ."
    return ["bash", "-c", f"set -e; {configure}; {make}; {PYTHON} -m bench.gpu_build"]


def run(step: Step, seconds: float, log: Log) -> None:
    """Its output line by line; asked to stop at the end of its time, then killed."""
    step.lines.clear()
    start = time.monotonic()
    command = [c.replace("{seconds}", f"{max(20.0, seconds - 25):.0f}") for c in step.command]
    log.say(f"=== {step.name}, at most {seconds:.0f} s: {' '.join(command)[:400]}")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path, **step.env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        for number, wait in ((signal.SIGINT, 12.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 0.0)):
            if process.poll() is None:
                _signal(process, number, everyone=number != signal.SIGINT)
                _wait(process, wait)

    timer = threading.Timer(seconds, stop)
    timer.start()
    assert process.stdout is not None
    for line in process.stdout:
        line = line.rstrip("\n")
        log.say(f"    {step.name + ': ' if step.beside else ''}{line[:2000]}")
        if SUMMARY.match(line):
            step.lines.append(line.strip("= "))
    code = process.wait()
    timer.cancel()
    step.took = time.monotonic() - start
    step.outcome = f"stopped after {seconds:.0f} s" if stopped.is_set() else "ok" if code in step.fine else f"FAILED ({code})"


def _signal(process: subprocess.Popen[str], number: signal.Signals, everyone: bool) -> None:
    try:
        if everyone:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    except ProcessLookupError:
        pass


def _wait(process: subprocess.Popen[str], seconds: float) -> None:
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.2)


def machine() -> list[str]:
    """What this runs on."""
    tries: list[tuple[str, Callable[[], str]]] = [
        (
            "GPU",
            lambda: _output(
                ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"]
            ),
        ),
        ("nvcc", lambda: _output(["nvcc", "--version"]).splitlines()[-1]),
        ("Python", lambda: f"{sys.version.split()[0]} at {PYTHON}, {os.cpu_count()} cores"),
    ]
    out = []
    for name, of in tries:
        try:
            out.append(f"{name}: {of()}")
        except (OSError, subprocess.SubprocessError, IndexError) as error:
            out.append(f"{name}: none ({error})")
    return out


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    p.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "bench" / "results"))
    p.add_argument("--seconds", type=float, default=float(os.environ.get("GPU_SECONDS") or 530))
    p.add_argument("--only", default="", help="steps, with commas between")
    p.add_argument("--quick", action="store_true", help="the benchmarks' smoke run")
    args = p.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    (ROOT / "build").mkdir(exist_ok=True)
    start = time.monotonic()
    wanted = args.only.split(",") if args.only else []
    chosen = [s for s in steps(args.out.resolve(), args.quick) if not wanted or s.name in wanted]
    with (args.out / "gpu.log").open("w") as file:
        log = Log(file)
        for line in machine():
            log.say(line)
        done: dict[str, Step] = {}
        for together in _groups(chosen):
            left = args.seconds - (time.monotonic() - start)
            threads = []
            for step in together:
                needed = done.get(step.needs)
                if needed is not None and not needed.outcome.startswith("ok"):
                    step.outcome = f"not run: {step.needs} {needed.outcome}"
                elif left < 15:
                    step.outcome = "not run: no time left"
                else:
                    seconds = min(left, max(step.seconds, step.of_rest * left))
                    threads.append(threading.Thread(target=run, args=(step, seconds, log)))
                    threads[-1].start()
                done[step.name] = step
            for thread in threads:
                thread.join()
        log.say("")
        for step in chosen:
            log.say(f"{step.name:20}{step.took:6.0f} s  {step.outcome}")
            for line in step.lines[-70:]:
                log.say(f"{'':30}{line[:200]}")
        log.say(f"{'all':20}{time.monotonic() - start:6.0f} s")
    return 0 if all(s.outcome == "ok" or s.outcome.startswith(("stopped", "not run: no time")) for s in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
