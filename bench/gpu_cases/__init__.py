"""What is measured on a GPU, and what jaxprims shall reach: figure 7 and the tables of Henriksen et al. 2020, figures 4 and 5 of
Martín et al. 2012, scans, calls on little."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from .calls import applications, everyday, launch, programs
from .case import FULL, OURS, RACE_FACTORS, SMALL, Case
from .histograms import deterministic, figure_7, plans, sums
from .reductions import million_segments, reductions, segments
from .scans import scan_plans, scans


def groups(quick: bool) -> Iterator[tuple[str, Callable[[], list[Case]]]]:
    """In the order of their weight: what is measured when time runs out is the end of this list. A group's cases are made when it
    is its turn, and its inputs dropped after it."""
    s = SMALL if quick else FULL
    yield "launch", lambda: launch(s)
    yield "sum by index", lambda: sums(s)
    yield "scans", lambda: scans(s)
    yield "scan plans", lambda: scan_plans(quick)
    yield "segments, targets", lambda: million_segments(s)
    yield "everyday", lambda: everyday(quick)
    yield "whole programs", lambda: programs(quick)
    for rf in RACE_FACTORS:
        yield f"figure 7, race factor {rf}", functools.partial(figure_7, s, rf)
    yield "plans", lambda: plans(s)
    yield "deterministic", lambda: deterministic(s)
    yield "reductions", lambda: reductions(s)
    yield "segments", lambda: segments(s)
    yield "applications", lambda: applications(quick)


__all__ = ["OURS", "Case", "everyday", "groups", "programs"]
