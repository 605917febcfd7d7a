"""Pictures of a run on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from .gpu_cases import OURS
from .plots import RULES, finish, marks, save

Result = dict[str, Any]

STYLE = {
    OURS: ("#d55e00", "o", "jaxprims"),
    "xla": ("#0072b2", "s", "XLA"),
    "cub": ("#009e73", "^", "CUB"),
    "cub even": ("#66c2a5", "v", "CUB HistogramEven (counts)"),
    "cuda.compute": ("#117733", "<", "cuda.compute"),
    "torch": ("#cc79a7", "v", "PyTorch"),
    "torch bincount": ("#e6b3d3", "1", "PyTorch bincount"),
    "cupy": ("#56b4e9", "D", "CuPy"),
    "cupy bincount": ("#a6d8f3", "2", "CuPy bincount"),
    "futhark": ("#999999", "X", "Futhark, CUDA"),
    "by ids": ("#f0b070", "h", "jaxprims, by sorted ids"),
    "deterministic": ("#e69f00", "P", "jaxprims, deterministic"),
}
SHADES = ("#e69f00", "#f0e442", "#a05000", "#b2182b", "#762a83", "#5e3c99", "#80b1d3", "#8c510a", "#01665e", "#c51b7d")
MARKERS = "PX*ph<>d8H"


def plots(result: Result, directory: Path, stem: str) -> Iterator[Path]:
    groups: dict[str, list[Result]] = {}
    for c in result["cases"]:
        groups.setdefault(c["group"], []).append(c)
    with plt.rc_context(RULES):
        for group in ("figure 7", "plans"):
            if group in groups:
                yield _panels(result, groups[group], directory / f"{stem}-{group.replace(' ', '-')}.png", group)
        if "reductions" in groups:
            yield _against(result, groups["reductions"], "n", "elements", directory / f"{stem}-reductions.png")
        if "segments" in groups:
            yield _against(result, groups["segments"], "length", "length of a segment", directory / f"{stem}-segments.png")
        rest = [
            c for g, cs in groups.items() if g not in ("figure 7", "plans", "reductions", "segments") for c in cs if c["bytes"]
        ]
        if rest:
            yield _dots(result, rest, directory / f"{stem}-overview.png")


def _style(name: str, fixed: Sequence[str]) -> tuple[str, str, str]:
    if name in STYLE:
        return STYLE[name]
    k = fixed.index(name)
    return SHADES[k % len(SHADES)], MARKERS[k % len(MARKERS)], name


def _fixed(cases: Sequence[Result]) -> list[str]:
    """Contestants without a colour of their own: plans."""
    return list(dict.fromkeys(n for c in cases for n in c["contestants"] if n not in STYLE))


def _order(cases: Sequence[Result]) -> list[str]:
    known = [n for n in STYLE if any(n in c["contestants"] for c in cases)]
    return [*known, *_fixed(cases)]


def _line(axes: Any, name: str, points: Sequence[tuple[float, float]], fixed: Sequence[str]) -> None:
    if points:
        (colour, marker, label), ours = _style(name, fixed), name == OURS
        axes.plot(
            *zip(*sorted(points), strict=True), color=colour, marker=marker, label=label, markersize=4,
            linewidth=2.2 if ours else 1, zorder=3 if ours else 2,
        )  # fmt: skip


def _panels(result: Result, cases: Sequence[Result], path: Path, title: str) -> Path:
    """Milliseconds against the number of bins: a column for each operator, a row for each race factor."""
    columns = list(dict.fromkeys(c["params"]["operator"] for c in cases))
    rows = sorted({c["params"]["race_factor"] for c in cases})
    fixed = _fixed(cases)
    size = (3.3 * len(columns), 2.7 * len(rows))
    figure, grid = plt.subplots(len(rows), len(columns), figsize=size, sharex=True, sharey=True, squeeze=False)
    for i, rf in enumerate(rows):
        for j, operator in enumerate(columns):
            axes = grid[i][j]
            inside = [c for c in cases if (c["params"]["operator"], c["params"]["race_factor"]) == (operator, rf)]
            for name in _order(cases):
                points = [
                    (c["params"]["bins"], c["contestants"][name]["median_s"] * 1e3) for c in inside if name in c["contestants"]
                ]
                _line(axes, name, points, fixed)
            limit = [c["bytes"] / result["memory"]["read_GB_per_s"] / 1e6 for c in inside]
            if limit:
                axes.axhline(limit[0], color="#555555", linewidth=1, linestyle=":")
                axes.text(1, limit[0], "reading the input", fontsize=6, color="#555555", va="bottom", ha="right",
                          transform=axes.get_yaxis_transform())  # fmt: skip
            axes.set(xscale="log", yscale="log")
            axes.set_title(f"{operator}, race factor {rf}", fontsize=9)
    finish(figure, grid, "bins", "milliseconds", _text(result, title), -0.6, path)
    return path


def _against(result: Result, cases: Sequence[Result], x: str, label: str, path: Path) -> Path:
    """Gigabytes a second of what must be moved, against a parameter."""
    figure, grid = plt.subplots(figsize=(7, 4), squeeze=False)
    fixed = _fixed(cases)
    for name in _order(cases):
        points = [(c["params"][x], c["contestants"][name]["GB_per_s"]) for c in cases if name in c["contestants"]]
        _line(grid[0][0], name, points, fixed)
    read = result["memory"]["read_GB_per_s"]
    grid[0][0].axhline(read, color="#555555", linewidth=1, linestyle=":")
    grid[0][0].text(1, read, "read bandwidth", fontsize=7, color="#555555", va="bottom", ha="right",
                    transform=grid[0][0].get_yaxis_transform())  # fmt: skip
    grid[0][0].set(xscale="log", ylim=(0, None))
    finish(figure, grid, label, "GB/s", _text(result, cases[0]["group"]), -0.6, path)
    return path


def _dots(result: Result, cases: Sequence[Result], path: Path) -> Path:
    """A row for each case, a mark for each contestant: the time in multiples of a copy of as many bytes."""
    rows = {}
    for c in cases:
        limit = c["bytes"] / result["memory"]["copy_GB_per_s"] / 1e9
        rows[f"{c['group']}: {c['name']}"] = {n: other["median_s"] / limit for n, other in c["contestants"].items()}
    style = {name: _style(name, _fixed(cases)) for name in _order(cases)}
    figure, axes = marks(rows, style, "time, in multiples of copying as many bytes (log)")
    save(figure, axes, _text(result, ""), -0.62, path)
    return path


def _text(result: Result, title: str) -> str:
    listed = ", ".join(f"{n} {result['versions'][n]}" for n in ("jax", "torch", "cupy", "nvcc") if n in result["versions"])
    return " · ".join(x for x in (title, result["machine"]["device"], listed, result["date"][:10]) if x)
