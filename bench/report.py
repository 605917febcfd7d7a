"""What surrounds the figures: the machine, the versions, the JSON file and the table on the screen."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .contestant import Missing
from .harness import LIMIT, OURS
from .peers import futhark
from .peers.arrays import threads

PACKAGES = ("jaxprims", "jax", "jaxlib", "llvmlite", "numpy", "torch", "boost-histogram", "pybind11")
COLUMNS = (
    OURS, "xla", "xla matmul", "xla: pad", "xla: slices", "xla: roll", "xla: set", "xla: window", "xla: conv",
    "numpy", "scipy", "numba", "torch", "boost", "native", "tbb", "sequential", "futhark", "futhark loops",
    "row-wise", "column-wise", "sequential rows", "floor", "copy", LIMIT,
)  # fmt: skip


def machine() -> dict[str, Any]:
    """The processor, its caches and how many cores this run may use."""
    info = _read("/proc/cpuinfo")
    fields: dict[str, str] = dict(re.findall(r"(?m)^([^\n:\t]+)\t*: (.*)$", info))
    caches = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level = _read(index / "type").strip(), _read(index / "level").strip()
        if kind != "Instruction":
            caches[f"L{level}"] = _read(index / "size").strip()
    features = [f for f in ("avx2", "avx512f", "asimd", "sve") if f in fields.get("flags", fields.get("Features", "")).split()]
    memory = re.search(r"MemTotal:\s+(\d+) kB", _read("/proc/meminfo"))
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "family": fields.get("cpu family"),
        "model": fields.get("model"),
        "features": features,
        "cores": threads(),
        "caches": caches,
        "memory_GB": round(int(memory.group(1)) / 1e6, 1) if memory else None,
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    with contextlib.suppress(Missing, RuntimeError):
        found["futhark"] = futhark.version()
    return found


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def header(suite: str, options: dict[str, Any], bandwidth: dict[str, float]) -> dict[str, Any]:
    return {
        "suite": suite,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": options,
        "machine": machine(),
        "versions": versions(),
        "memory": bandwidth,
        "cases": [],
    }


def write(report: dict[str, Any], directory: Path, stem: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{stem}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path


def cases(directory: Path, stem: str) -> list[dict[str, Any]]:
    """Those of the file, if there is one."""
    return json.loads(text)["cases"] if (text := _read(directory / f"{stem}.json")) else []


def placed(case: dict[str, Any], among: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases with this one in the place of its former self, or at the end."""
    others = [case if (c["group"], c["name"]) == (case["group"], case["name"]) else c for c in among]
    return others if any(c is case for c in others) else [*others, case]


def seconds(value: float) -> str:
    """Three significant digits, in a unit that suits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def row(case: dict[str, Any]) -> str:
    """A case's line: best times, and in brackets how many times faster ours is."""
    cells = []
    for name in COLUMNS:
        if name in case["contestants"]:
            cell = f"{name} {seconds(case['contestants'][name]['best_s'])}"
            cells.append(cell + (f" ({case['ratios'][name]:.2f}x)" if name in case["ratios"] else ""))
    errors = [f"{name} {error:.1e}" for name, error in case["errors"].items()]
    lines = [f"{case['group']}: {case['name']}", " · ".join(cells), *(["relative error: " + ", ".join(errors)] if errors else [])]
    return "\n    ".join(lines)


def summary(report: dict[str, Any]) -> Iterator[str]:
    """The targets, met or not; who was left out; who was wrong."""
    for case in report["cases"]:
        for name, t in case["targets"].items():
            verdict = "met" if t["met"] else "NOT MET"
            yield f"{verdict:8}{case['group']}: {case['name']}: {t['got']:.2f} x {name}, wanted {t['wanted']:g}"
        for name, t in case["seconds_over"].items():
            verdict, wanted = "met" if t["met"] else "NOT MET", seconds(t["wanted"])
            yield f"{verdict:8}{case['group']}: {case['name']}: {seconds(t['got'])} over {name}, wanted at most {wanted}"
    reasons = {name: why for case in report["cases"] for name, why in case["missing"].items()}
    for name, why in reasons.items():
        yield f"left out: {name}: {why}"
    for case in report["cases"]:
        for name, why in case["wrong"].items():
            yield f"WRONG: {case['group']}: {case['name']}: {name} {why}"


def show(report: dict[str, Any], say: Callable[[str], None] = print) -> None:
    for line in summary(report):
        say(line)
