"""Pictures of a report. Colours are Okabe and Ito's, which the colour-blind can tell apart; markers differ too."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .harness import LIMIT, OURS

STYLE = {
    OURS: ("#d55e00", "o", "jaxprims"),
    "xla": ("#0072b2", "s", "XLA (jax.numpy, jax.ops)"),
    "xla: pad": ("#0072b2", "s", "XLA, padded slices"),
    "xla: slices": ("#0072b2", "p", "XLA, slices"),
    "xla: roll": ("#0072b2", "h", "XLA, rolls"),
    "xla: set": ("#0072b2", "d", "XLA, .at[].set"),
    "xla: window": ("#0072b2", "+", "XLA, reduce_window"),
    "xla: conv": ("#0072b2", "*", "XLA, conv"),
    "numpy": ("#56b4e9", "D", "NumPy"),
    "scipy": ("#332288", ">", "SciPy"),
    "numba": ("#882255", "8", "Numba, @stencil"),
    "torch": ("#cc79a7", "v", "PyTorch"),
    "boost": ("#e69f00", "P", "boost-histogram"),
    "native": ("#009e73", "^", "C++, OpenMP"),
    "sequential": ("#000000", "x", "C++, one loop"),
    "tbb": ("#117733", "<", "C++, TBB"),
    "futhark": ("#999999", "X", "Futhark, multicore"),
    "futhark loops": ("#999999", "+", "Futhark, a loop a segment"),
    "xla matmul": ("#0072b2", "1", "XLA, batched matmul"),
    "row-wise": ("#e69f00", "1", "jaxprims, row-wise"),
    "column-wise": ("#f0b070", "2", "jaxprims, column-wise"),
    "sequential rows": ("#a05000", "3", "jaxprims, sequential rows"),
    "floor": ("#555555", "_", "XLA, x * k alone"),
    "copy": ("#777777", "_", "numpy.copyto"),
    LIMIT: ("#bbbbbb", "|", "memory limit"),
}
RULES: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "savefig.bbox": "tight",
    "savefig.dpi": 160,
}

UNIT = "time, in multiples of reading inputs and writing results once (log)"


def overview(report: dict[str, Any], directory: Path, stem: str, leave_out: Sequence[str] = ()) -> Iterator[Path]:
    """A picture for each group of cases: a row for each case, a mark for each contestant, the time against the memory limit."""
    groups = [g for g in dict.fromkeys(c["group"] for c in report["cases"]) if g not in leave_out]
    for group in groups:
        path = directory / f"{stem}-{group.replace(' ', '-')}.png"
        if _dots(report, [c for c in report["cases"] if c["group"] == group], group, path):
            yield path


def _dots(report: dict[str, Any], cases: Sequence[dict[str, Any]], group: str, path: Path) -> bool:
    if not _can_plot():
        return False
    from matplotlib import pyplot as plt

    with plt.rc_context(RULES):
        present = [name for name in STYLE if name != LIMIT and any(name in c["contestants"] for c in cases)]
        rows = dict[str, dict[str, float]]()
        for case in cases:
            limit = case["contestants"][LIMIT]["best_s"]
            rows[case["name"]] = {n: case["contestants"][n]["best_s"] / limit for n in present if n in case["contestants"]}
        figure, axes = marks(rows, {n: STYLE[n] for n in present}, UNIT)
        for at, case in enumerate(cases):
            _beside(axes, at, _ratio_text(case))
        if any(c["ratios"] for c in cases):
            _beside(axes, -0.95, "jaxprims is faster by")
        axes.text(1, -0.6, " memory limit", fontsize=7, color="#555555", va="bottom", ha="center")
        save(figure, axes, _text(report, group), -0.62, path)
    return True


def marks(rows: Mapping[str, Mapping[str, float]], style: Mapping[str, tuple[str, str, str]], unit: str) -> tuple[Any, Any]:
    """A figure with a row of marks for each case: so many times ``unit`` for each contestant."""
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter

    figure, axes = plt.subplots(figsize=(9, 1.3 + 0.34 * len(rows)))
    for at, slower in enumerate(rows.values()):
        if slower:
            axes.plot([min(slower.values()), max(slower.values())], [at, at], color="#cccccc", linewidth=1, zorder=1)
        for name, value in slower.items():
            colour, marker, _ = style[name]
            axes.scatter(value, at, s=70 if name == OURS else 26, c=colour, marker=marker, zorder=3 if name == OURS else 2)
    for name, (colour, marker, label) in style.items():
        axes.scatter([], [], c=colour, marker=marker, s=70 if name == OURS else 26, label=label)
    axes.axvline(1, color="#555555", linewidth=1, linestyle=":")
    axes.set(xscale="log", ylim=(len(rows) - 0.5, -0.6), xlabel=unit)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.grid(axis="y", visible=False)
    figure.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(4, len(style)), bbox_transform=axes.transAxes)
    return figure, axes


def _beside(axes: Any, at: float, text: str) -> None:
    axes.annotate(text, (1.01, at), xycoords=("axes fraction", "data"), va="center", fontsize=8, annotation_clip=False)


def _ratio_text(case: dict[str, Any]) -> str:
    """How many times faster ours is than what a user of JAX has, and than the best of all the others."""
    ratios = {n: r for n, r in case["ratios"].items() if n not in ("sequential", "copy")}
    if not ratios:
        return ""
    best = min(ratios, key=lambda n: ratios[n])
    of_jax = sorted((n for n in ratios if n == "xla" or n.startswith("xla: ")), key=lambda n: ratios[n])
    names = dict.fromkeys([*of_jax[:1], best])
    return "   ".join(f"{ratios[n]:.3g} × {STYLE[n][2].split(' ')[0].rstrip(',')}" for n in names)


def lines(report: dict[str, Any], path: Path, group: str, x: str, panels: tuple[str, str]) -> Iterator[Path]:
    """Time per element against the parameter ``x``, both logarithmic; a panel for each pair of the parameters ``panels``."""
    cases = [c for c in report["cases"] if c["group"] == group]
    if not cases or not _can_plot():
        return
    from matplotlib import pyplot as plt

    columns, rows = ([*dict.fromkeys(c["params"][p] for c in cases)] for p in panels)
    with plt.rc_context(RULES):
        size = (3.4 * len(columns), 2.6 * len(rows))
        figure, grid = plt.subplots(len(rows), len(columns), figsize=size, sharex=True, sharey=True, squeeze=False)
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                axes = grid[i][j]
                inside = [c for c in cases if tuple(c["params"][p] for p in panels) == (column, row)]
                for name in STYLE:
                    known = [c for c in inside if name in c["contestants"]]
                    _line(axes, name, sorted((c["params"][x], c["contestants"][name]["ns_per_element"]) for c in known))
                axes.set(xscale="log", yscale="log")
                axes.set_title(f"{column}, {panels[1].replace('_', ' ')} {row}", fontsize=9)
        finish(figure, grid, x, "ns per element", _text(report, group), -0.5, path)
    yield path


def first_calls(report: dict[str, Any], path: Path, group: str, x: str) -> Iterator[Path]:
    """Seconds of a call against the parameter ``x``, both logarithmic."""
    cases = [c for c in report["cases"] if c["group"] == group]
    if not cases or not _can_plot():
        return
    from matplotlib import pyplot as plt

    with plt.rc_context(RULES):
        figure, grid = plt.subplots(figsize=(6, 3.6), squeeze=False)
        for name in STYLE:
            known = [c for c in cases if name in c["contestants"] and name != LIMIT]
            _line(grid[0][0], name, [(c["params"][x], c["contestants"][name]["median_s"]) for c in known])
        grid[0][0].set(xscale="log", yscale="log")
        finish(figure, grid, x, "seconds", _text(report, group), -0.6, path)
    yield path


def by_case(report: dict[str, Any], path: Path, group: str) -> Iterator[Path]:
    """Time per element of each case of a group, a line for each contestant: a level line is a robust contestant."""
    cases = [c for c in report["cases"] if c["group"] == group]
    if not cases or not _can_plot():
        return
    from matplotlib import pyplot as plt

    with plt.rc_context(RULES):
        figure, grid = plt.subplots(figsize=(9, 4.5), squeeze=False)
        for name in STYLE:
            known = [(i, c) for i, c in enumerate(cases) if name in c["contestants"]]
            _line(grid[0][0], name, [(i, c["contestants"][name]["ns_per_element"]) for i, c in known])
        names = [c["name"].replace(", axis", "\naxis") for c in cases]
        grid[0][0].set_xticks(range(len(cases)), names, rotation=40, ha="right", fontsize=8)
        grid[0][0].set(yscale="log")
        finish(figure, grid, "", "ns per element", _text(report, group), -1.5, path)
    yield path


def scaling(reports: dict[int, dict[str, Any]], path: Path) -> Iterator[Path]:
    """How many times faster than the sequential loop on one core, against the number of cores; a panel for each case."""
    base = {(c["group"], c["name"]): c for c in reports[min(reports)]["cases"] if "sequential" in c["contestants"]}
    if not base or not _can_plot():
        return
    from matplotlib import pyplot as plt

    columns = min(4, len(base))
    rows = -(-len(base) // columns)
    with plt.rc_context(RULES):
        size = (2.6 * columns, 2.4 * rows)
        figure, grid = plt.subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
        for axes, key in itertools.zip_longest(grid.flat, base):
            if key is None:
                axes.set_visible(False)
                continue
            loop = base[key]["contestants"]["sequential"]["best_s"]
            found = [(k, c) for k, r in sorted(reports.items()) for c in r["cases"] if (c["group"], c["name"]) == key]
            for name in STYLE:
                known = [(k, c) for k, c in found if name in c["contestants"] and name != "sequential"]
                _line(axes, name, [(k, loop / c["contestants"][name]["best_s"]) for k, c in known])
            axes.set_xticks(sorted(reports))
            axes.set_title(": ".join(key), fontsize=8)
        finish(figure, grid, "cores", "times the sequential loop", _text(reports[max(reports)], "scaling"), -0.6, path)
    yield path


def heat_map(report: dict[str, Any], path: Path, groups: Sequence[str], contestant: str) -> Iterator[Path]:
    """A row for each case's name, a column for each group: how many times faster than the contestant ours is. Those that are
    slower come first. No picture of a run that was without the contestant."""
    cells: dict[str, dict[str, float]] = {}
    for case in report["cases"]:
        if contestant in case["ratios"]:
            cells.setdefault(case["name"], {})[case["group"]] = case["ratios"][contestant]
    if not cells or not _can_plot():
        return
    from matplotlib import pyplot as plt
    from matplotlib.colors import LogNorm

    names = sorted(cells, key=lambda name: min(cells[name].values()))
    with plt.rc_context(RULES | {"axes.grid": False}):
        figure, axes = plt.subplots(figsize=(7.5, 0.6 + 0.165 * len(names)))
        table = [[cells[name].get(g, float("nan")) for g in groups] for name in names]
        axes.imshow(table, aspect="auto", cmap="RdBu", norm=LogNorm(0.1, 10))
        for row, name in enumerate(names):
            for column, g in enumerate(groups):
                if (ratio := cells[name].get(g)) is not None:
                    colour = "white" if not 0.25 < ratio < 4 else "black"
                    axes.text(column, row, f"{ratio:.2g}", ha="center", va="center", fontsize=6.5, color=colour)
        axes.set_xticks(range(len(groups)), groups)
        axes.set_yticks(range(len(names)), names, fontsize=6.5)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        save(figure, axes, _text(report, f"plain JAX's time over ours ({STYLE[contestant][2]})"), -0.25, path)
    yield path


def _line(axes: Any, name: str, points: Sequence[tuple[float, float]]) -> None:
    if points:
        (colour, marker, label), ours, limit = STYLE[name], name == OURS, name == LIMIT
        axes.plot(
            *zip(*points, strict=True), color=colour, label=label, markersize=4, zorder=3 if ours else 2,
            marker="" if limit else marker, linewidth=2.2 if ours else 1, linestyle=":" if limit else "-",
        )  # fmt: skip


def finish(figure: Any, grid: Any, x: str, y: str, text: str, inches: float, path: Path) -> None:
    """Labels, one legend for all panels, the caption; writes the file."""
    for axes in grid[-1]:
        axes.set_xlabel(x)
    for axes in grid[:, 0]:
        axes.set_ylabel(y)
    handles = {label: h for axes in grid.flat for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.tight_layout()
    if handles:
        columns = 5 if grid.size > 1 else 4
        figure.legend(handles.values(), handles.keys(), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns)
    save(figure, grid[-1][0], text, inches, path)


def save(figure: Any, axes: Any, text: str, inches: float, path: Path) -> None:
    """Writes the file, with ``text`` in small print so many inches under the lower left corner of ``axes``."""
    from matplotlib import pyplot as plt

    axes.annotate(
        text, (0, 0), xycoords="axes fraction", xytext=(0, 72 * inches), textcoords="offset points", fontsize=7, color="#555555"
    )
    figure.savefig(path)
    plt.close(figure)


def _text(report: dict[str, Any], group: str) -> str:
    """The machine and the versions."""
    machine, versions = report["machine"], report["versions"]
    listed = ", ".join(f"{n} {versions[n]}" for n in ("jax", "numpy", "torch", "futhark") if n in versions)
    return f"{group} · {machine['cpu']}, {machine['cores']} cores · {listed}"


def _can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None
