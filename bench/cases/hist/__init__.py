"""Generalized histograms: the headline table, the figures of Henriksen et al. 2020, applications, batches, hard indices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...contestant import Case
from . import applications, headline, paper, shapes


def cases(quick: bool) -> list[Case]:
    return [*headline.cases(quick), *shapes.cases(quick), *applications.cases(quick), *paper.cases(quick)]


def plots(report: dict[str, Any], directory: Path, stem: str) -> list[Path]:
    from ... import plots  # matplotlib is only needed here

    return [
        *plots.overview(report, directory, stem, leave_out=(paper.GROUP,)),
        *plots.lines(report, directory / f"{stem}-bins.png", group=paper.GROUP, x="bins", panels=("operator", "race_factor")),
    ]
