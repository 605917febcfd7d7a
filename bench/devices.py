"""``python -m bench.devices [--elements N] [--write]``: calls whose elements are sharded over the devices of one process, or over
several processes with a device each (``jax.distributed``, collectives by gloo).

For each call, with jaxprims and in plain JAX: the bytes that a device receives, read from the compiled program and beside
the model of ``docs/devices.md``; times on one to eight devices, for as many elements in all (strong scaling) or on each device
(weak). Forced host devices, and processes, share the machine's cores: more of them than cores show what dividing costs, not what
it gains. What takes too long in plain JAX is not timed (a dash).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .processes import together

RESULT = Path(__file__).parent / "results" / "devices"
COUNTS = {"device": (1, 2, 4, 8), "process": (1, 2, 4)}
BINS, LARGE_BINS = 1000, 100_000
COLLECTIVE = re.compile(r"= (\(?.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")
TOO_LONG = 2.0


class Call(NamedTuple):
    name: str
    ours: Callable[..., Any]
    plain: Callable[..., Any]
    model: Callable[[int, int], float]
    """Bytes that each of D devices receives, of N elements."""


def calls() -> list[Call]:
    import jax
    import jax.numpy as jnp

    import jaxprims as jp

    def affine(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    def heat(t: Any) -> Any:
        padded = jnp.pad(t, 1, mode="wrap")
        return 0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:]

    return [
        Call(
            "sum by index",
            lambda x, i: jp.reduce_by_index(x, i, BINS),
            lambda x, i: jax.ops.segment_sum(x, i, BINS),
            lambda n, d: 2 * 4 * BINS * (d - 1) / d,
        ),
        Call(
            "maximum by index, 100,000 bins",
            lambda x, i: jp.segment_max(x, i * 100, LARGE_BINS),
            lambda x, i: jax.ops.segment_max(x, i * 100, LARGE_BINS),
            lambda n, d: 2 * 4 * LARGE_BINS * (d - 1) / d,
        ),
        Call(
            "histogram",
            lambda x, i: jp.histogram(x, 100, (-4.0, 4.0))[0],
            lambda x, i: jnp.histogram(x, 100, (-4.0, 4.0))[0],
            lambda n, d: 2 * 4 * 100 * (d - 1) / d,
        ),
        Call("sum", lambda x, i: jp.reduce(x), lambda x, i: jnp.sum(x), lambda n, d: 2 * 4 * (d - 1) / d),
        Call("argmax", lambda x, i: jp.argmax(x), lambda x, i: jnp.argmax(x), lambda n, d: 8 * (d - 1)),
        Call("cumulative sum", lambda x, i: jp.cumsum(x), lambda x, i: jnp.cumsum(x), lambda n, d: 4 * (d - 1)),
        Call(
            "affine scan",
            lambda x, i: jp.scan((x, x), affine)[1],
            lambda x, i: jax.lax.associative_scan(affine, (x, x))[1],
            lambda n, d: 8 * (d - 1),
        ),
        Call(
            "a step of heat",
            lambda x, i: jp.stencil(_blur, x, boundary="wrap"),
            lambda x, i: heat(x),
            lambda n, d: 2 * 4 * (d > 1),
        ),
    ]


def _blur(t: Any) -> Any:
    return 0.25 * t[-1] + 0.5 * t[0] + 0.25 * t[1]


def received(text: str, devices: int) -> float:
    """Bytes that the collectives of a compiled program bring to a device."""
    total = 0.0
    for shapes, kind in COLLECTIVE.findall(text):
        size = 0
        for dtype, dims in re.findall(r"(pred|[a-z]+\d+)\[([\d,]*)\]", shapes):
            bits = 8 if dtype == "pred" else int(re.sub(r"\D", "", dtype))
            size += bits // 8 * math.prod(int(d) for d in dims.split(",") if d)
        share = (devices - 1) / devices
        moved = {"all-reduce": 2 * share, "all-gather": share, "all-to-all": share, "reduce-scatter": devices - 1}
        total += size * moved.get(kind, 1.0)
    return total


def best(compiled: Any, arguments: list[Any]) -> float | None:
    """Seconds; None if once is too long, for one of the processes."""
    import jax
    from jax.experimental.multihost_utils import process_allgather

    times: list[float] = []
    for _ in range(12):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - start)
        if len(times) == 2 and process_allgather(times[1]).max() > TOO_LONG:
            return None
    return min(times[2:])


def measure(elements: int, unit: str, counts: Sequence[int]) -> list[dict[str, Any]]:
    """On so many devices. ``unit``: what each of them is, a device of this process or a process."""
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    rng = np.random.default_rng(0)
    x, i = rng.standard_normal(8 * elements).astype(np.float32), rng.integers(0, BINS, 8 * elements).astype(np.int32)
    rows: list[dict[str, Any]] = []
    for call in calls():
        for scaling, devices in [("strong", d) for d in counts] + [("weak", d) for d in counts if d > 1]:
            n = elements * (devices if scaling == "weak" else 1)
            mesh = Mesh(np.array(jax.devices()[:devices]), ("d",), axis_types=(AxisType.Auto,))
            place = NamedSharding(mesh, P("d"))
            placed = [jax.make_array_from_callback((n,), place, lambda at, a=a, n=n: a[:n][at]) for a in (x, i)]
            row: dict[str, Any] = {"call": call.name, "unit": unit, "scaling": scaling, "devices": devices, "elements": n}
            row["model_bytes"] = call.model(n, devices)
            for who, f in (("jaxprims", call.ours), ("xla", call.plain)):
                compiled = jax.jit(f).lower(*placed).compile()
                row[f"{who}_bytes"] = received(compiled.as_text(), devices) if devices > 1 else 0.0
                slow = any(r["call"] == call.name and r["devices"] > 1 and r[f"{who}_s"] is None for r in rows)
                row[f"{who}_s"] = None if slow else best(compiled, placed)
            rows.append(row)
            print(row, flush=True)
    return rows


def table(rows: list[dict[str, Any]], unit: str) -> str:
    def ms(s: float | None) -> str:
        return "-" if s is None else f"{1e3 * s:.2f}"

    counts, many = COUNTS[unit], unit + ("es" if unit[-1] == "s" else "s")
    most = counts[-1]
    columns = " | ".join(f"{d} {many if d > 1 else unit}" for d in counts)
    lines = [f"| call | {columns} | weak, {most} | bytes, {most} {many} | model | plain JAX |"]
    lines += ["|---|" + "---|" * (len(counts) + 4)]
    for name in dict.fromkeys(r["call"] for r in rows):
        mine = {(r["scaling"], r["devices"]): r for r in rows if r["call"] == name and r["unit"] == unit}
        times = [mine["strong", d] for d in counts] + [mine["weak", most]]
        cells = [f"{ms(r['jaxprims_s'])} / {ms(r['xla_s'])}" for r in times]
        cells += [f"{mine['strong', most][key]:,.0f}" for key in ("jaxprims_bytes", "model_bytes", "xla_bytes")]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def one_of_several(elements: int, address: str, processes: str, rank: str) -> None:
    """This process's part; the first one's last line has the rows."""
    import jax

    jax.distributed.initialize(coordinator_address=address, num_processes=int(processes), process_id=int(rank))
    rows = measure(elements, "process", [int(processes)])
    print(json.dumps(rows))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.devices", description=__doc__.partition("\n")[0])
    parser.add_argument("--elements", type=int, default=1 << 20)
    parser.add_argument("--write", action="store_true", help="into bench/results")
    parser.add_argument("--one-of", nargs=3, metavar=("ADDRESS", "PROCESSES", "RANK"), help="how it starts itself")
    args = parser.parse_args()
    if args.one_of:
        return one_of_several(args.elements, *args.one_of)
    rows: list[dict[str, Any]] = []
    for count in COUNTS["process"]:
        command = ["-m", "bench.devices", "--elements", str(args.elements), "--one-of"]
        rows += json.loads(together(command, count, os.environ, 600)[0].splitlines()[-1])
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={COUNTS['device'][-1]} " + os.environ.get("XLA_FLAGS", "")
    rows += measure(args.elements, "device", COUNTS["device"])
    text = f"Times in ms, jaxprims / plain JAX, {args.elements:,} float32 in all; of weak scaling, on each device.\n\n"
    text += table(rows, "device") + "\nOver processes with a device each:\n\n" + table(rows, "process")
    print(text)
    if args.write:
        RESULT.with_suffix(".json").write_text(json.dumps({"elements": args.elements, "rows": rows}, indent=1) + "\n")
        RESULT.with_suffix(".md").write_text("# Several devices\n\n" + text)
    return None


if __name__ == "__main__":
    main()
