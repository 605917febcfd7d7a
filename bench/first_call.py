"""``python -m bench.first_call [--rounds K] [--write]``: what the first call of a function costs, in milliseconds.

Cold: no kernel is on disk. Warm: another process has made it before. XLA: a function of plain JAX that does the like. Each is
measured in several processes, and the medians are shown. A process has run another function of plain JAX before, so that JAX has
started; it keeps nothing of XLA's on disk. The kernel's share is the time from its spec's text to code that can be called.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "first_call.json"
MODES = ("cold", "warm", "xla")

Case = tuple[str, Callable[..., Any], Callable[..., Any]]


def cases() -> list[Case]:
    """Name, with jaxprims, in plain JAX: functions of :func:`arguments`. The first pays for what a process does once."""
    import jax
    import jax.numpy as jnp

    import jaxprims as jp

    def affine(a: Any, b: Any) -> Any:
        return b[0] * a[0], b[0] * a[1] + b[1]

    def saturate(a: Any, b: Any) -> Any:
        return jnp.minimum(a + b, 255.0)

    def sums(x: Any, i: Any) -> Any:
        return jnp.zeros(31).at[i].add(x)

    return [
        ("a process's first", lambda x, i, rows: jp.reduce(x, jnp.minimum), lambda x, i, rows: jnp.min(x)),
        ("cumsum", lambda x, i, rows: jp.cumsum(x), lambda x, i, rows: jnp.cumsum(x)),
        ("scan logaddexp", lambda x, i, rows: jp.scan(x, jnp.logaddexp), lambda x, i, rows: jax.lax.cumlogsumexp(x)),
        ("scan of sines", lambda x, i, rows: jp.scan(x, jnp.add, map=jnp.sin), lambda x, i, rows: jnp.cumsum(jnp.sin(x))),
        (
            "scan, two-part operator",
            lambda x, i, rows: jp.scan((x, x), affine),
            lambda x, i, rows: jax.lax.associative_scan(affine, (x, x)),
        ),
        ("reduce max", lambda x, i, rows: jp.reduce(x, jnp.maximum), lambda x, i, rows: jnp.max(x)),
        ("argmax", lambda x, i, rows: jp.argmax(x), lambda x, i, rows: jnp.argmax(x)),
        (
            "segment_reduce",
            lambda x, i, rows: jp.segment_reduce(x, jp.Offsets(rows)),
            lambda x, i, rows: jax.ops.segment_sum(x, jnp.repeat(jnp.arange(4), jnp.diff(rows), total_repeat_length=1000), 4),
        ),
        ("reduce_by_index", lambda x, i, rows: jp.reduce_by_index(x, i, 31), lambda x, i, rows: sums(x, i)),
        (
            "reduce_by_index, own op",
            lambda x, i, rows: jp.reduce_by_index(x, i, 31, saturate, identity=0.0),
            lambda x, i, rows: jnp.minimum(sums(x, i), 255.0),
        ),
        ("histogram", lambda x, i, rows: jp.histogram(x, bins=10), lambda x, i, rows: jnp.histogram(x, bins=10)),
    ]


def arguments() -> list[Any]:
    """Elements, indices, row pointers."""
    import jax.numpy as jnp

    x, i = jnp.arange(1000, dtype=jnp.float32), jnp.arange(1000, dtype=jnp.int32)
    return [x, i * 7 % 31, jnp.array([0, 10, 10, 600, 1000], jnp.int32)]


def measure(mode: str) -> dict[str, list[float]]:
    """In this process: each case's first call, and its kernels' share."""
    import jax
    import jax.numpy as jnp

    from jaxprims.targets.cpu.llvm import engine as llvm_engine

    jax.block_until_ready(jax.jit(lambda x: jnp.sort(x) + 1)(jnp.arange(10.0)))
    engine: Any = llvm_engine
    inner, inside = engine.compile_cached, 0.0

    def timed(*args: Any) -> Any:
        nonlocal inside
        start = time.perf_counter()
        try:
            return inner(*args)
        finally:
            inside += time.perf_counter() - start

    engine.compile_cached = timed
    result, operands = {}, arguments()
    for name, ours, plain in cases():
        inside, start = 0.0, time.perf_counter()
        jax.block_until_ready(jax.jit(plain if mode == "xla" else ours)(*operands))
        result[name] = [1e3 * (time.perf_counter() - start), 1e3 * inside]
    return result


def in_process(mode: str, folder: str) -> dict[str, list[float]]:
    """:func:`measure` in a process of its own, with its kernels in ``folder``."""
    command = [sys.executable, "-m", "bench.first_call", "--measure", mode]
    environment = {**os.environ, "XDG_CACHE_HOME": folder}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def run(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Medians by case and mode: of the call, and of its kernels' share."""
    found: dict[str, list[dict[str, list[float]]]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for mode in MODES:
                found[mode].append(in_process(mode, folder))
    return {
        case: {mode: [statistics.median(r[case][k] for r in found[mode]) for k in (0, 1)] for mode in MODES}
        for case in found["cold"][0]
    }


def table(result: dict[str, dict[str, list[float]]]) -> str:
    """In words."""
    lines = [f"{'ms':25} {'cold':>6} {'kernel':>7}  {'warm':>6} {'kernel':>7}  {'XLA':>6}"]
    for case, modes in [*result.items(), ("median", medians(result))]:
        (cold, made), (warm, loaded), (xla, _) = (modes[mode] for mode in MODES)
        lines.append(f"{case:25} {cold:6.1f} {made:7.1f}  {warm:6.1f} {loaded:7.2f}  {xla:6.1f}")
    return "\n".join(lines)


def medians(result: dict[str, dict[str, list[float]]]) -> dict[str, list[float]]:
    """Over the cases."""
    return {mode: [statistics.median(c[mode][k] for c in result.values()) for k in (0, 1)] for mode in MODES}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.first_call", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="processes for each figure")
    parser.add_argument("--write", action="store_true", help=f"writes {RESULT.name} among the results")
    parser.add_argument("--measure", choices=MODES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return 0
    result = run(args.rounds)
    print(table(result))
    if args.write:
        import jax
        import llvmlite

        versions = {"jax": jax.__version__, "llvmlite": llvmlite.__version__, "python": platform.python_version()}
        about = {"rounds": args.rounds, "unit": "ms: [call, kernel's share]", "cores": os.cpu_count(), "versions": versions}
        RESULT.write_text(json.dumps({**about, "cases": result, "medians": medians(result)}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # an installed jaxprims first: the source tree may lack the compiled part
    sys.exit(main())
