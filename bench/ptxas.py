"""``python -m bench.ptxas [--targets sm_80,sm_90,sm_100] [--only PATTERN]``: what the assembler says of the main kernels.

Registers of a thread, bytes spilled to memory, static shared memory of a block and stack of a thread, for each kernel of some
twenty calls. It needs NVRTC (the extra ``nvrtc``), and neither a GPU nor a driver.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import jaxprims as jp
from jaxprims.targets.plans import AnyKernel, forced

TARGETS = ("sm_80", "sm_90", "sm_100")
N = 50_000_000


def _f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _s32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _saturate(a: Any, b: Any) -> Any:
    return jnp.minimum(a + b, jnp.uint32(0xFFFFFF))


def _merge(a: Any, b: Any) -> Any:
    """Count, mean and sum of squared deviations."""
    (n1, m1, s1), (n2, m2, s2) = a, b
    n, d = n1 + n2, m2 - m1
    w = n2 / jnp.maximum(n, 1.0)
    return n, m1 + d * w, s1 + s2 + d * d * n1 * w


def _heat(t: Any) -> Any:
    return t[0, 0] + 0.1 * (t[-1, 0] + t[1, 0] + t[0, -1] + t[0, 1] - 4 * t[0, 0])


def _by_index(op: Any = jnp.add, **options: Any) -> Callable[..., Any]:
    return lambda v, i: jp.reduce_by_index(v, i, 1000, op, **options)


def calls() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """By name: a function and what it is traced with."""
    x, i = _f32(N), _s32(N)
    triple = (x, x, x)
    offsets = _s32(N // 20 + 1)
    return {
        "sum by index": (_by_index(), (x, i)),
        "sum by index, i32": (_by_index(), (i, i)),
        "sum by index, bf16": (_by_index(), (jax.ShapeDtypeStruct((N,), jnp.bfloat16), i)),
        "maximum by index": (_by_index(jnp.maximum), (x, i)),
        "saturating sum by index": (_by_index(_saturate, identity=0), (jax.ShapeDtypeStruct((N,), jnp.uint32), i)),
        "argmax by index": (lambda v, i: jp.reduce_by_index((v, jp.positions), i, 1000, jp.monoids.argmax), (x, i)),
        "mean and variance by index": (_by_index(_merge, identity=(0.0, 0.0, 0.0)), (triple, i)),
        "sums of 16 by index": (_by_index(), (_f32(N // 16, 16), _s32(N // 16))),
        "histogram": (lambda v: jp.histogram(v, 100, (-4.0, 4.0))[0], (x,)),
        "histograms of a batch": (jax.vmap(lambda v, i: jp.reduce_by_index(v, i, 256)), (_f32(64, 200_000), _s32(64, 200_000))),
        "cumsum": (jp.cumsum, (x,)),
        "cumsum of a million": (jp.cumsum, (_f32(1_000_000),)),
        "cumsum of rows of 1,024": (lambda v: jp.cumsum(v, 1), (_f32(131_072, 1024),)),
        "cumsum of rows of 70,001": (lambda v: jp.cumsum(v, 1), (_f32(9_000, 70_001),)),
        "cumsum of f64": (jp.cumsum, (jax.ShapeDtypeStruct((N,), jnp.float64),)),
        "cumsum along axis 0": (jp.cumsum, (_f32(10_000, 5_000),)),
        "cumsum, restarting": (lambda v, s: jp.scan(v, segment_starts=s), (x, jax.ShapeDtypeStruct((N,), jnp.bool_))),
        "affine maps": (lambda a, b: jp.scan((a, b), jp.monoids.affine), (x, x)),
        "linear recurrence": (jp.linear_recurrence, (x, x)),
        "cumlogsumexp": (jp.cumlogsumexp, (x,)),
        "products of 3 × 3 matrices": (lambda m: jp.scan(m, lambda a, b: a @ b), (_f32(N // 9, 3, 3),)),
        "sum": (lambda v: jp.reduce(v), (x,)),
        "argmax": (lambda v: jp.argmax(v), (x,)),
        "sum along axis 0": (lambda v: jp.reduce(v, axis=0), (_f32(10_000, 5_000),)),
        "product of 2 × 2 matrices": (lambda m: jp.reduce(m, lambda a, b: a @ b, axis=0), (_f32(N // 4, 2, 2),)),
        "five points": (lambda v: jp.stencil(_heat, v), (_f32(4096, 4096),)),
        "five points, 12 steps": (lambda v: jp.stencil(_heat, v, steps=12), (_f32(1024, 1024),)),
        "segments by offsets": (lambda v, o: jp.segment_reduce(v, jp.Offsets(o), jnp.maximum), (x, offsets)),
        "segments by ids": (lambda v, i: jp.segment_reduce(v, i, jnp.maximum, num_segments=N // 20), (x, i)),
    }  # fmt: skip


def measured(targets: Sequence[str], only: str, say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """A row for each kernel of each call and target; a call that does not compile has one row that says why."""
    out: list[dict[str, Any]] = []
    for name, (fn, args) in calls().items():
        if only and not re.search(only, name):
            continue
        start = time.perf_counter()
        for target in targets:
            try:
                with jax.enable_x64(any(a.dtype == jnp.float64 for a in jax.tree.leaves(args))), forced(AnyKernel()):
                    kernels = jp.compile_check(fn, *args, target=target, allow_spills=True)
            except Exception as error:  # the others are wanted all the same
                out.append({"call": name, "target": target, "error": f"{type(error).__name__}: {str(error).strip()[:500]}"})
                say(f"{name}, {target}: {out[-1]['error'][:200]}")
                continue
            for k in kernels:
                out.append({
                    "call": name, "target": target, "kernel": k.name, "kind": k.kind, "operator": k.operator, "atomic": k.atomic,
                    "registers": k.registers, "spill_bytes": k.spill_bytes, "shared_bytes": k.shared_bytes,
                    "stack_bytes": k.stack_bytes, "cubin_bytes": len(k.cubin),
                })  # fmt: skip
        mine = [r for r in out if r["call"] == name and "error" not in r]
        worst = max((r["spill_bytes"] for r in mine), default=0)
        say(f"{name}: {len(mine)} kernels, {worst} bytes spilled at most, {time.perf_counter() - start:.1f} s")
    return out


def markdown(result: dict[str, Any]) -> str:
    """For each call a row for each kernel, with a cell for each target: registers, and what else there is."""
    rows, targets = result["kernels"], result["targets"]
    good = [r for r in rows if "error" not in r]
    spilled = [r for r in good if r["spill_bytes"]]
    lines = [
        "# Registers, shared memory and spills of the main kernels\n",
        f"{result['date']}; NVRTC {result['nvrtc']}, jax {result['jax']}. A cell: registers of a thread / bytes of static shared"
        " memory of a block; then bytes of stack and spilled bytes, where there are any.\n",
        f"{len(good)} kernels, {len(spilled)} with spills.\n",
        "| call | kernel | " + " | ".join(targets) + " |",
        "|" + "---|" * (2 + len(targets)),
    ]
    for call in dict.fromkeys(r["call"] for r in rows):
        first = True
        mine = [r for r in good if r["call"] == call]
        kinds = {f"{r['operator']}{' (' + r['atomic'] + ')' if r['atomic'] else ''}" for r in mine}
        for kernel in dict.fromkeys(r["kernel"] for r in mine):
            cells = [next((_cell(r) for r in mine if (r["kernel"], r["target"]) == (kernel, t)), "–") for t in targets]
            label = f"{call}: {', '.join(sorted(kinds))}" if first else ""
            lines.append(f"| {label} | {kernel} | " + " | ".join(cells) + " |")
            first = False
        for r in (r for r in rows if r["call"] == call and "error" in r):
            words = r["error"].splitlines()[0].replace("|", "/")[:150]
            lines.append(f"| {call} | {r['target']}: {words} |" + " – |" * len(targets))
    return "\n".join(lines) + "\n"


def _cell(r: dict[str, Any]) -> str:
    more = [f"{r['stack_bytes']} stack"] if r["stack_bytes"] else []
    more += [f"**{r['spill_bytes']} spilled**"] if r["spill_bytes"] else []
    return ", ".join([f"{r['registers']} / {r['shared_bytes']}", *more])


def main(argv: Sequence[str] | None = None) -> int:
    """1 if a kernel does not compile."""
    p = argparse.ArgumentParser(prog="python -m bench.ptxas", description=__doc__)
    p.add_argument("--targets", default=",".join(TARGETS))
    p.add_argument("--only", default="", metavar="PATTERN", help="calls whose name matches")
    p.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = p.parse_args(argv)
    from jaxprims.targets.cuda import nvrtc

    targets = args.targets.split(",")
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "nvrtc": nvrtc.version(),
        "jax": jax.__version__,
        "targets": targets,
        "kernels": measured(targets, args.only),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "ptxas.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "ptxas.md").write_text(markdown(result))
    print(args.out / "ptxas.md")
    return 1 if any("error" in r for r in result["kernels"]) else 0


if __name__ == "__main__":
    sys.exit(main())
