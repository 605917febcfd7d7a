"""What a run on a GPU says: a line for each case, verdicts on what shall be reached, and tables in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from .gpu_cases import OURS
from .report import seconds

Result = dict[str, Any]

OTHERS = ("xla", "cub", "cupy", "torch", "torch bincount", "cupy bincount", "cuda.compute")
WITHIN = 1.05


def row(case: Result) -> str:
    """A case's line: median times, and in brackets how many times faster ours is."""
    cells = []
    for name, c in sorted(case["contestants"].items(), key=lambda item: item[0] != OURS):
        extra = f"{c['of_copy']:.0%} of copy" if name == OURS and case["bytes"] else ""
        extra = f"{c['ratio']:.2f}x" if name != OURS and c["ratio"] else extra
        cells.append(f"{name} {seconds(c['median_s'])}" + (f" ({extra})" if extra else ""))
    return f"{case['group']}: {case['name']}\n    " + " · ".join(cells)


# --- verdicts --------------------------------------------------------------------------------------------------------------


def verdicts(result: Result) -> Iterator[dict[str, Any]]:
    """What shall be reached: each with what was wanted, what was found, and whether that is enough (None: not measured)."""

    def found(group: str, name: str = "") -> list[Result]:
        return [c for c in result["cases"] if c["group"] == group and name in c["name"] and OURS in c["contestants"]]

    def verdict(what: str, wanted: float, got: list[float], at_least: bool = True) -> dict[str, Any]:
        value = (min(got) if at_least else max(got)) if got else None
        met = None if value is None else (value >= wanted if at_least else value <= wanted)
        return {"what": what, "wanted": wanted, "got": value, "met": met, "at_least": at_least}

    def times_best(cases: list[Result], others: tuple[str, ...]) -> list[float]:
        out = []
        for c in cases:
            ratios = [c["contestants"][o]["ratio"] for o in others if o in c["contestants"]]
            out += [min(ratios)] if ratios else []
        return out

    def of(cases: list[Result], figure: str) -> list[float]:
        return [c["contestants"][OURS][figure] for c in cases]

    sums = found("sum by index")
    yield verdict("f32 sum by index, 1 to 1,000 bins, times the best of XLA, CUB, CuPy, PyTorch", 2.0, times_best(sums, OTHERS))
    yield verdict("f32 sum by index, 1 to 1,000 bins, of read bandwidth", 0.85, of(sums, "of_read"))
    for operator in ("saturating add", "argmax"):
        yield verdict(
            f"{operator}, all bins and race factors, times CUB's sort and reduce", 3.0,
            times_best(found("figure 7", operator), ("cub",)),
        )  # fmt: skip
    for name in ("cumsum", "affine maps"):
        exact = [c for c in found("scans") if c["name"] == name]
        yield verdict(f"{name}, of copy bandwidth", 0.85, of(exact, "of_copy"))
    segments = found("segments of 20", "by offsets")
    yield verdict("2.5 million segments, times CUB's segmented reduction", 1.0, times_best(segments, ("cub",)))
    yield verdict(
        "the plan chosen, of the best fixed one's time", WITHIN, [r for c in plan_cases(result) for r in [_over(c)]], False
    )
    price = [c["contestants"]["deterministic"]["ratio"] for c in found("deterministic") if "deterministic" in c["contestants"]]
    yield verdict("deterministic sums, times the default's time", math.inf, price, False)


def plan_cases(result: Result) -> list[Result]:
    return [c for c in result["cases"] if c["group"] == "plans" and OURS in c["contestants"] and len(c["contestants"]) > 1]


def _over(case: Result) -> float:
    """Our time over the best fixed plan's."""
    fixed = [c["median_s"] for name, c in case["contestants"].items() if name != OURS]
    return case["contestants"][OURS]["median_s"] / min(fixed)


def verdict_line(v: dict[str, Any]) -> str:
    word = {None: "not measured", True: "met", False: "NOT MET"}[v["met"]]
    if v["got"] is None:
        return f"{word:13}{v['what']}: wanted {v['wanted']:g}"
    if math.isinf(v["wanted"]):
        return f"{'':13}{v['what']}: {v['got']:.3g}"
    return f"{word:13}{v['what']}: {v['got']:.3g}, wanted {'at least' if v['at_least'] else 'at most'} {v['wanted']:g}"


def summary(result: Result) -> str:
    """The verdicts; who was left out; who was wrong; what there was no time for."""
    lines = [verdict_line(v) for v in result["verdicts"]] + list(beside_plain(result))
    reasons: dict[str, str] = {}
    for case in result["cases"]:
        for name, why in case["missing"].items():
            reasons.setdefault(f"{name}: {why.splitlines()[0] if why else ''}", "")
    lines += [f"left out: {reason}" for reason in reasons]
    lines += [f"no time for {what}" for what in result.get("cut_short", [])]
    for case in result["cases"]:
        lines += [f"WRONG: {case['group']}: {case['name']}: {name} {why.splitlines()[0]}" for name, why in case["wrong"].items()]
    return "\n".join(lines)


def beside_plain(result: Result) -> Iterator[str]:
    """Of each group that is compared with plain JAX alone: how many are slower, and which."""
    for group in ("everyday", "whole programs"):
        cases = [c for c in result["cases"] if c["group"] == group and {OURS, "xla"} <= set(c["contestants"])]
        ratios = sorted((c["contestants"]["xla"]["ratio"], c["name"]) for c in cases)
        if ratios:
            below = [(r, name) for r, name in ratios if r < 0.95]
            mean = math.exp(sum(math.log(r) for r, _ in ratios) / len(ratios))
            yield f"{group}: {len(ratios)} calls, {len(below)} slower than plain JAX; geometric mean {mean:.2f}"
            yield from (f"{group}: {r:.2f}  {name}" for r, name in below)


# --- tables ----------------------------------------------------------------------------------------------------------------


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(r) + " |" for r in (head, ["---"] * len(head), *rows)) + "\n"


def markdown(result: Result) -> str:
    """All tables of a run."""
    machine, versions, memory = result["machine"], result["versions"], result["memory"]
    parts = [
        f"# {machine['device']}\n",
        f"{result['date']}; " + ", ".join(f"{k} {v}" for k, v in versions.items()) + ".\n",
        "; ".join(f"{k} {v:.0f}" for k, v in memory.items()) + ".\n",
        "Median times. In brackets: ours, the fraction of the bandwidth of a copy; others, their time over ours.\n",
        "## What shall be reached\n",
        table(["", "wanted", "got", ""], [_verdict_row(v) for v in result["verdicts"]]),
    ]
    for group in dict.fromkeys(c["group"] for c in result["cases"]):
        cases = [c for c in result["cases"] if c["group"] == group]
        maker = TABLES.get(group, _overview)
        if group == "reductions" and result.get("reduction kernels"):
            parts += ["## Martín et al. 2012, table I: its algorithms' kernels\n", _paper_2(result["reduction kernels"])]
        parts += [f"## {TITLES.get(group, group.capitalize())}\n", maker(cases)]
    notes = [line for line in summary(result).splitlines() if line.startswith(("left out", "no time", "WRONG"))]
    parts += ["## Notes\n", "\n".join(f"- {n}" for n in notes) + "\n"] if notes else []
    return "\n".join(parts)


def _paper_2(kernels: dict[str, list[Result]]) -> str:
    """Its table I: registers and static shared memory of the whole's kernels and of segments'."""
    rows = [[algorithm] for algorithm in kernels]
    for row in rows:
        for k in kernels[row[0]]:
            row += [k["name"], str(k["registers"]), str(k["shared_bytes"])]
    head = ["", "kernel", "registers", "shared bytes", "of segments", "registers", "shared bytes"]
    return table(head, [(row + ["–"] * len(head))[: len(head)] for row in rows])


def _verdict_row(v: dict[str, Any]) -> list[str]:
    word = {None: "not measured", True: "met", False: "**not met**"}[v["met"]]
    wanted = "–" if math.isinf(v["wanted"]) else f"{'≥' if v['at_least'] else '≤'} {v['wanted']:g}"
    return [v["what"], wanted, "–" if v["got"] is None else f"{v['got']:.3g}", "" if math.isinf(v["wanted"]) else word]


def _overview(cases: list[Result]) -> str:
    names = list(dict.fromkeys(n for c in cases for n in [OURS, *c["contestants"]] if n in c["contestants"]))
    return table(["", *names], [[c["name"], *(_cell(c, n) for n in names)] for c in cases])


def _cell(case: Result, name: str) -> str:
    c = case["contestants"].get(name)
    if c is None:
        return "wrong" if name in case["wrong"] else "–"
    if name == OURS:
        text = seconds(c["median_s"]) + (f" ({c['of_copy']:.0%})" if case["bytes"] else "")
    else:
        text = seconds(c["median_s"]) + (f" ({c['ratio']:.2f} ×)" if c["ratio"] else "")
    return text + (f", alone {seconds(c['alone_s'])}" if c.get("alone_s") else "")


def _by_operator(cases: list[Result]) -> str:
    """Table II of Henriksen et al. 2020: a row for each contestant, a column for each number of bins."""
    bins = sorted({c["params"]["bins"] for c in cases})
    rows = []
    for operator in dict.fromkeys(c["params"]["operator"] for c in cases):
        for rf in sorted({c["params"]["race_factor"] for c in cases}):
            mine = {
                c["params"]["bins"]: c for c in cases if (c["params"]["operator"], c["params"]["race_factor"]) == (operator, rf)
            }
            names = dict.fromkeys([OURS, *(n for c in mine.values() for n in c["contestants"])])
            for name in names:
                cells = [_short(mine[b], name) if b in mine else "–" for b in bins]
                rows.append([f"{operator}, race factor {rf}" if name == OURS else "", name, *cells])
    return table(["", "", *(f"{b:,}" for b in bins)], rows)


def _short(case: Result, name: str) -> str:
    c = case["contestants"].get(name)
    if c is None:
        return "wrong" if name in case["wrong"] else "–"
    return f"{c['median_s'] * 1e3:.3g} ms" if name == OURS else f"{c['ratio']:.1f} ×" if c["ratio"] else seconds(c["median_s"])


def _plans(cases: list[Result]) -> str:
    """Table I and figure 7 of Henriksen et al. 2020: what was chosen, and how it compares with the best fixed plan."""
    rows = []
    for c in cases:
        fixed = {n: f["median_s"] for n, f in c["contestants"].items() if n not in (OURS, "xla")}
        best = min(fixed, key=lambda n: fixed[n]) if fixed else ""
        ours = c["contestants"].get(OURS)
        over = f"{ours['median_s'] / fixed[best]:.3f}" if ours and best else "–"
        cells = [seconds(ours["median_s"]) if ours else "–", best, seconds(fixed[best]) if best else "–", over, c["plan"]]
        rows.append([c["name"], *cells])
    return table(["", "chosen", "best fixed plan", "its time", "chosen over best", "the plan chosen"], rows)


TABLES: dict[str, Callable[[list[Result]], str]] = {"figure 7": _by_operator, "plans": _plans, "scan plans": _plans}
TITLES = {
    "figure 7": "Henriksen et al. 2020, figure 7 and table II: 50 million integers",
    "plans": "Henriksen et al. 2020, table I: M and S",
    "reductions": "Martín et al. 2012, figure 4: reductions",
    "segments": "Martín et al. 2012, figure 5: segmented reductions by segment length",
    "applications": "Henriksen et al. 2020, table III: applications",
    "launch": "What a call costs",
    "everyday": "Calls of everyday sizes, beside plain JAX",
    "whole programs": "Whole programs of a million numbers, fused, beside plain JAX",
    "scan plans": "Scans: whether tiles wait in shared memory",
}
