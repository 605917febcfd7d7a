"""The benchmark suite's smoke run: the contestants agree, and the report has the shape that readers of it rely on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # bench is not installed

from bench import contestant, harness  # noqa: E402
from bench.__main__ import main  # noqa: E402
from bench.cases import fuse, hist, reduce, scan, segment, stencil  # noqa: E402
from bench.peers import build  # noqa: E402

pytestmark = pytest.mark.strategies


@pytest.fixture(scope="module", autouse=True)
def unoptimised() -> Iterator[None]:
    """The native contestants, compiled for no speed, in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CMAKE_BUILD_TYPE", "Unoptimised")
        patch.setenv("BENCH_BUILD", str(ROOT / "build" / "bench-tests"))
        patch.setattr(build, "BUILD", ROOT / "build" / "bench-tests")
        yield


def bench(*arguments: str) -> None:
    assert main(arguments) == 0


def bench_alone(*arguments: str) -> None:
    """In a process of its own, which may take fewer cores."""
    done = subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("results")
    bench(
        "hist", "--quick", "--out", str(out),
        "--only", "sum by index, 100 bins|argmax pairs, 100 bins|Henriksen.*: add.* 127 bins",
    )  # fmt: skip
    return json.loads((out / "hist-quick.json").read_text())


def test_contestants_agree(report: dict[str, Any]) -> None:
    for case in report["cases"]:
        assert case["wrong"] == {}, case["name"]
        assert {"jaxprims", "xla", harness.LIMIT} <= case["contestants"].keys(), case["missing"]


def test_the_report_says_where_it_was_made(report: dict[str, Any]) -> None:
    assert report["suite"] == "hist"
    assert report["machine"]["cores"] >= 1
    assert {"python", "jax", "numpy"} <= report["versions"].keys()
    assert all(v > 0 for v in report["memory"].values())


def test_figures_are_of_one_run(report: dict[str, Any]) -> None:
    assert len(report["cases"]) == 4
    for case in report["cases"]:
        ours = case["contestants"]["jaxprims"]
        limit = case["contestants"][harness.LIMIT]
        for name, figures in case["contestants"].items():
            assert figures["best_s"] == min(figures["seconds"]) <= figures["median_s"]
            assert figures["of_memory_limit"] == pytest.approx(limit["best_s"] / figures["best_s"])
            if name not in ("jaxprims", harness.LIMIT):
                assert case["ratios"][name] == pytest.approx(figures["best_s"] / ours["best_s"])


def test_a_wrong_answer_is_reported_and_not_timed() -> None:
    def gives(answer: list[int]) -> contestant.Prepare:
        return lambda inputs: contestant.Run(lambda: answer)

    def missing(inputs: contestant.Inputs) -> contestant.Run:
        raise contestant.Missing("not here")

    contestants = {"a": gives([1, 2]), "b": gives([1, 2]), "c": gives([1, 3]), "d": missing}
    case = contestant.Case("g", "n", 2, lambda rng: {"x": np.ones(2, np.float32)}, contestants)
    said: list[str] = []
    got = harness.run_case(case, harness.QUICK, None, said.append)
    assert got["contestants"].keys() == {"a", "b", harness.LIMIT}
    assert got["missing"] == {"d": "not here"}
    assert list(got["wrong"]) == ["c"]
    assert "does not agree" in said[0]


@pytest.mark.parametrize(
    "suite, cases",
    [
        (
            "scan",
            "million: (cumsum($|, in|, seg)|affine)|shapes: (12,000 × 8|40 .*axis 0)|de Kluijver 2024: 4|first call: 1,000 ",
        ),
        ("reduce", "million: (sum|argmax|log|prod)|axes: sum, 200"),
        ("segment", "max, segments (of 3|one giant)|ids: far.* 20|applications"),
        ("stencil", "nine|kept|torus|maximum|convolution|seven|steps: |gradients"),
    ],
)
@pytest.mark.cover(1)
def test_the_ordered_family(suite: str, cases: str, tmp_path: Path) -> None:
    bench(suite, "--quick", "--only", cases, "--contestants", "jaxprims,numpy,native,sequential,floor", "--out", str(tmp_path))
    report = json.loads((tmp_path / f"{suite}-quick.json").read_text())
    assert len(report["cases"]) > 5
    for case in report["cases"]:
        assert {"jaxprims", harness.LIMIT} <= case["contestants"].keys(), case["missing"]
    if suite == "reduce":
        assert max(report["cases"][0]["errors"].values()) < 1e-4


def test_everyday_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain JAX's answers are ours; what is slower is listed."""
    bench("everyday", "--quick", "--only", "segment_max 100000x3|mean 50000x4|max 1000000|bincount 10000", "--out", str(tmp_path))
    said = capsys.readouterr().out
    assert re.search(r"\d calls, \d slower than plain JAX; geometric mean", said), said
    assert (tmp_path / "everyday-quick.png").exists()
    bench("everyday", "--quick", "--only", "bincount 10000", "--contestants", "jaxprims", "--out", str(tmp_path / "alone"))
    assert not (tmp_path / "alone" / "everyday-quick.png").exists()  # there is nothing to compare with


def test_calls_drawn_at_random(tmp_path: Path) -> None:
    bench("drawn", "--quick", "--out", str(tmp_path))
    assert (tmp_path / "drawn-quick.png").exists()


def test_the_cases_are_the_papers() -> None:
    for suite in (hist, scan, reduce, segment, stencil):
        titles = [c.title for c in suite.cases(quick=False)]
        assert len(titles) == len(set(titles))
    assert sum(c.group == "Henriksen et al. 2020" for c in hist.cases(quick=False)) == 12 * 2 * 3
    shapes = {c.name for c in scan.cases(quick=False) if c.group == "de Kluijver 2024"}
    assert {"4 × 25,000,000", "4,000 × 25,000", "10,000 × 10,000", "100,000 × 1,000", "100 × 100 × 100 × 100"} <= shapes


def test_the_readme_says_how_many_programs_there_are() -> None:
    programs = {case.name: len(case.contestants) for case in fuse.cases(quick=False) if case.group == "forward"}
    said = re.search(r"(\d+) whole programs .*, (\d+) of them by hand", (ROOT / "bench" / "README.md").read_text())
    assert said and [int(n) for n in said.groups()] == [len(programs), sum(n > 2 for n in programs.values())]


def test_what_a_call_costs_over_another() -> None:
    """And a contestant that is slow is timed once."""
    slow, fast = (contestant.Run(lambda s=s: time.sleep(s)) for s in (0.03, 0.001))
    seconds = harness.round_robin({"jaxprims": slow, "floor": fast}, harness.Effort(seconds=0.01, patience=0.02))
    assert len(seconds["jaxprims"]) == 1 < len(seconds["floor"])
    over = harness.seconds_over({"floor": 60.0, "xla": 1.0}, seconds)  # however busy the machine is
    assert over.keys() == {"floor"}
    assert over["floor"]["met"] and over["floor"]["got"] > 0.02


def test_scaling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which starts a process for each number of cores."""
    monkeypatch.chdir(ROOT)
    options = ["--only", "de Kluijver 2024: 4", "--contestants", "jaxprims,sequential", "--out", str(tmp_path)]
    bench("scan", "--quick", "--scaling", *options)
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("scan-*-cores-quick.json")]
    assert sorted(r["machine"]["cores"] for r in reports)[0] == 1


def test_one_core_compares_with_the_sequential_loop(tmp_path: Path) -> None:
    bench_alone("hist", "--quick", "--one-core", "--only", "50 million: sum by index, 100 bins", "--out", str(tmp_path))
    report = json.loads((tmp_path / "hist-one-core-quick.json").read_text())
    assert report["machine"]["cores"] == 1
    assert report["cases"][0]["contestants"].keys() <= {"jaxprims", "xla", "sequential", harness.LIMIT}
