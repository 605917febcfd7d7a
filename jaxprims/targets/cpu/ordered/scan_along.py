"""Scans whose vectors run along the row: ``scan`` of cpu/ordered_kernel.h, of which ``reduce`` is a call.

A vector is scanned by log steps: at step d = 1, 2, 4, ... a lane takes in what the lane d before it holds (Kogge and Stone).
Lanes without such a predecessor keep what they have, so no neutral element is needed. Between vectors goes a carry:

    output = (prefix ⊕ aggregate) ⊕ local,    aggregate = aggregate ⊕ the vector's last local

where the aggregate never takes in the prefix, so ``reduce`` leaves the same bits.

A restart is a bit for each lane. A lane may look d back if no restart lies in the d lanes up to it; windows twice as long are
two shifted ones, so a few shifts of one integer make the masks of all steps.
"""

from __future__ import annotations

from llvmlite import ir

from ....ir.work import instructions
from ....specs.ordered import OrderedSpec
from ..llvm.build import I64, PTR, declare
from ..llvm.math import MATH
from . import scan_logaddexp, scan_replicas
from .elements import vector_width
from .scan_base import Kernel
from .scan_log_steps import LogSteps
from .scan_map import Map
from .scan_sequential import Sequential
from .scan_short_rows import ShortRows
from .scan_tiles import Tile


def scan(module: ir.Module, spec: OrderedSpec, vector_bytes: int, periodic: bool = False, streams: bool = False) -> None:
    """Defines ``scan``. ``periodic``: of rows end to end, one every ``period`` elements, if :func:`runs_along_short_rows`.
    ``streams``: whole vectors of results, which must be aligned, are stored past the caches."""
    outer, given = declare(module, "scan", [PTR] * 7 + [I64], I64)
    b, args = declare(module, ALONG, [PTR] * 7 + [I64], I64, inner=True)
    _form(spec, vector_bytes, periodic)(b, spec, vector_bytes, args, periodic, streams).build()
    outer.ret(outer.call(b.function, given))


ALONG = "along"
"""The function that ``scan`` calls and, where it writes nothing, ``reduce``: most of the time to compile goes there."""


def runs_along_short_rows(spec: OrderedSpec, vector_bytes: int) -> bool:
    """Do vectors run along short rows that lie end to end? Not where a row in each lane costs less."""
    return spec.kind == "scan" and _form(spec, vector_bytes, periodic=True) is not Tile


def _form(spec: OrderedSpec, vector_bytes: int, periodic: bool) -> type[Kernel]:
    if spec.is_map:
        return Map
    if spec.op.may_not_end:
        return Sequential
    if not periodic and scan_logaddexp.applies(spec):
        return scan_logaddexp.LogAddExp
    if instructions(spec.op, _WEIGHTS) > (EXPENSIVE_ABREAST if periodic else EXPENSIVE) * len(spec.state):
        return Tile
    if vector_width(spec, vector_bytes) >= 2 * len(spec.state) and scan_replicas.of_one_scalar(spec, periodic):
        return scan_replicas.Replicas
    few = min(FEW, vector_width(spec, vector_bytes) // 4)
    if len(spec.state) > few:  # tiles of 8 lanes are as fast as one after the other, of fewer roundings in a row
        return Tile if few > 1 and len(spec.state) <= FEW else Sequential
    return ShortRows if periodic else LogSteps


FEW = 4
"""Slots of a state up to which vectors pay for cheap operators; fewer of them in short vectors."""

EXPENSIVE, EXPENSIVE_ABREAST = 10, 5
"""Instructions for each slot from which on an operator is worth two transpositions to be applied less often: twice for each
element, or, of short rows, once."""

_WEIGHTS = dict.fromkeys(MATH, 20) | {"div": 6, "rem": 8, "sqrt": 6, "load": 8, "pow": 60, "arg": 0, "const": 0, "item": 0}
"""In vector instructions."""
