"""Scans: operators, shapes, the tables of de Kluijver 2024, calls so small that only their cost counts, and the first call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...contestant import Case
from . import headline, paper, shapes, small

SCALING = f"^{paper.GROUP}"
"""The cases that --scaling runs: the paper's tables 2 and 3, and its figures 8, 9 and 11."""


def cases(quick: bool) -> list[Case]:
    return [*headline.cases(quick), *shapes.cases(quick), *small.cases(quick), *paper.cases(quick)]


def verdicts(report: dict[str, Any]) -> Iterator[str]:
    yield from shapes.verdicts(report)


def plots(report: dict[str, Any], directory: Path, stem: str) -> list[Path]:
    from ... import plots  # matplotlib is only needed here

    return [
        *plots.overview(report, directory, stem, leave_out=(shapes.GROUP, small.FIRST_CALL)),
        *plots.by_case(report, directory / f"{stem}-shapes.png", shapes.GROUP),
        *plots.first_calls(report, directory / f"{stem}-first-call.png", small.FIRST_CALL, "length"),
    ]
