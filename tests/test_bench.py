"""The benchmark suite's smoke run: the contestants agree, and the report has the shape that readers of it rely on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # bench is not installed

from bench import contestant, harness  # noqa: E402
from bench.cases import hist  # noqa: E402


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, env=os.environ)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("results")
    done = bench(
        "hist", "--quick", "--only", "sum by index, 100 bins|argmax pairs, 100 bins|paper 1: add.* 127 bins", "--out", str(out)
    )
    assert done.returncode == 0, done.stdout + done.stderr
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


def test_the_cases_are_the_papers() -> None:
    titles = [c.title for c in hist.cases(quick=False)]
    assert len(titles) == len(set(titles))
    assert sum(t.startswith("paper 1") for t in titles) == 12 * 2 * 3


def test_one_core_compares_with_the_sequential_loop(tmp_path: Path) -> None:
    done = bench("hist", "--quick", "--one-core", "--only", "50 million: sum by index, 100 bins", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "hist-one-core-quick.json").read_text())
    assert report["machine"]["cores"] == 1
    assert report["cases"][0]["contestants"].keys() <= {"jaxprims", "xla", "sequential", harness.LIMIT}
