"""Where XLA's own operation is the faster one on CPUs, as measured (``python -m bench everyday``)."""

from __future__ import annotations

from ...specs.problems import HistogramProblem, OrderedProblem, Problem

SMALL = 2048
"""Elements that XLA's loop, which is compiled into the program around it, has done before a kernel has been called."""

SHORT_ROW = 32
"""Elements of rows that XLA reduces row by row, and a kernel by a scan through all of them."""

FEW_PER_BIN = 8
"""Elements for each bin below which subhistograms cost more than they save."""


def xla_pays(problem: Problem, operation: str) -> str | None:
    """Why, in words; None where a kernel is faster. All sizes are known."""
    if isinstance(problem, HistogramProblem):
        return _scatter(problem, operation)
    return _reduction(problem, operation) if isinstance(problem, OrderedProblem) and problem.family == "reduce" else None


def _scatter(problem: HistogramProblem, operation: str) -> str | None:
    elements, lanes = problem.n * problem.members, problem.spec.bins[0].lanes
    if elements * lanes <= SMALL:
        return "few elements: XLA's loop is done before a kernel is called"
    if problem.n < FEW_PER_BIN * problem.bins[0] and not problem.batch and (lanes == 1 or operation == "add"):
        return "few elements for each bin"
    return None


def _reduction(problem: OrderedProblem, operation: str) -> str | None:
    elements = problem.n * problem.lanes * problem.members
    if operation == "logaddexp":
        return "a maximum and a sum of exponentials, one for each element"
    if elements <= SMALL:
        return "few elements: XLA's loop is done before a kernel is called"
    if problem.n <= SHORT_ROW and problem.members > 1 and problem.lanes == 1:
        return "short rows, each reduced by itself"
    return None
