"""Stencils that XLA's own loops make faster on CPUs, as measured (``python -m bench stencil``, ``everyday``)."""

from __future__ import annotations

import math

from ....ir.program import itemsize
from ....specs.problems import StencilProblem
from ....specs.stencil import WIDEST, is_short_row
from .kernel import vector_width

SMALL_GRID, SMALL_GRID_OF_STEPS, SMALL_GRID_KEPT = 65_536, 6144, 32_768
"""Bytes of a grid that XLA has made, in one step or in each of several, before a kernel's tiles are laid out; in each of several
where the border is kept, so that nothing is padded."""

SMALL_ROW = 131_072
"""Bytes of a grid of one axis, likewise, in one step."""

SMALL_MEMBER = 256
"""Cells of a member of a batch, all steps together, that XLA has made while a kernel turns to the next member: lines that are all
read alike are one grid (``primitives/stencil/primitive.py``), others are not."""


def xla_pays(problem: StencilProblem, operation: str) -> str | None:
    """Why, in words; None where a kernel is faster. All sizes are known."""
    several = SMALL_GRID_KEPT if operation == "kept" else SMALL_GRID_OF_STEPS
    spec = problem.spec
    cell = spec.unit * max(itemsize(dtype) * slots for dtype, slots in spec.leaves)
    one = SMALL_ROW if spec.rank == 1 and problem.members == 1 else SMALL_GRID
    if problem.members * math.prod(problem.size) * cell <= (one if problem.steps == 1 else several):
        return "few cells: XLA's loop is done before a kernel's tiles are laid out"
    if problem.members > 1 and math.prod(problem.size) * problem.steps <= SMALL_MEMBER:
        return "small members of a batch: XLA makes them all in one loop"
    offsets, around = [o[-1] for _, o in spec.reads], problem.steps > 1 and problem.wraps[-1:] == (True,)
    return "short rows" if is_short_row(problem.size[-1], spec.unit, offsets, vector_width(spec, WIDEST), around) else None
