"""Where XLA's own operation is the faster one on CPUs, as measured (``python -m bench everyday``)."""

from __future__ import annotations

from ...specs.problems import HistogramProblem, OrderedProblem, Problem

SMALL = 2048
"""Elements that XLA's loop, which is compiled into the program around it, has done before a kernel has been called."""

SMALL_IN_VECTORS = 16_384
"""The same where XLA's loop is one of vectors: sums of rows by index, reductions that it knows."""

SHORT_ROW = {"argmax": 32, "argmin": 32}
"""Elements of rows that XLA reduces row by row, and a kernel by a scan through all of them."""

SHORT_ROWS = 128
"""The same for the other operators."""


def xla_pays(problem: Problem, operation: str) -> str | None:
    """Why, in words; None where a kernel is faster. All sizes are known."""
    if isinstance(problem, HistogramProblem):
        return _scatter(problem, operation)
    return _reduction(problem, operation) if isinstance(problem, OrderedProblem) and problem.family == "reduce" else None


_FEW = "few elements: XLA's loop is done before a kernel is called"


def _scatter(problem: HistogramProblem, operation: str) -> str | None:
    lanes = problem.spec.bins[0].lanes
    if lanes > 1 and operation != "add":  # which XLA does number by number
        return None
    return _FEW if problem.n * problem.members * lanes <= (SMALL if lanes == 1 else SMALL_IN_VECTORS) else None


def _reduction(problem: OrderedProblem, operation: str) -> str | None:
    if operation == "logaddexp":
        return "a maximum and a sum of exponentials, one for each element"
    if problem.n * problem.lanes * problem.members <= (SMALL if operation in SHORT_ROW else SMALL_IN_VECTORS):
        return _FEW
    if problem.n <= SHORT_ROW.get(operation, SHORT_ROWS) and problem.members > 1 and problem.lanes == 1:
        return "short rows, each reduced by itself"
    return None
