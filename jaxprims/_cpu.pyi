"""What Python sees of the C++ half (``cpu/module.cc``)."""

import enum
from collections.abc import Sequence
from typing import Any, Final

def histogram_handler() -> Any: ...
def group_handler() -> Any: ...
def add_histogram(key: int, spec: str, described: dict[str, Any]) -> bool: ...
def add_histogram_variant(key: int, variant: int, update: int, fill: Sequence[int], combine: Sequence[int]) -> None: ...
def has_histogram_variant(key: int, variant: int, /) -> bool: ...
def scan_handler() -> Any: ...
def reduce_handler() -> Any: ...
def segments_handler() -> Any: ...
def add_ordered(key: int, spec: str, described: dict[str, Any]) -> bool: ...
def add_ordered_variant(key: int, variant: int, scan: int, reduce: int, combine: int, finish: int, runs: int = 0) -> None: ...
def has_ordered_variant(key: int, variant: int, /) -> bool: ...

class Machine:
    threads: int
    l1: int
    l2: int
    l3: int
    def __init__(self, threads: int) -> None: ...

class HistProblem:
    elements: int
    batch: int
    bins: int
    bin_bytes: int
    updates: int
    slots: int
    work: int
    lanes: int
    in_place: bool
    sorted: bool
    must_in_place: bool
    map: bool
    chooses: bool
    @property
    def few(self) -> bool: ...

class HistPlan:
    subhistograms: int
    ranges: int
    copies: int
    soa: bool
    prefetch: bool
    wide: Final[bool]
    threads: Final[int]
    variant: Final[int]

def make_plan(problem: HistProblem, machine: Machine) -> HistPlan: ...
def forced(
    problem: HistProblem, plan: HistPlan, subhistograms: int, ranges: int, copies: int, soa: bool, prefetch: bool
) -> HistPlan: ...
def workspace_bytes(problem: HistProblem, plan: HistPlan) -> int: ...

class ScanProblem:
    n: int
    rows: int
    lanes: int
    in_bytes: int
    leaf_bytes: list[int]
    slots: int
    work: int
    across: bool
    large: bool
    map: bool
    reverse: bool
    in_place: bool
    contiguous: bool
    aligned: bool

class ScanOrder(enum.Enum):
    assisting = 0
    row_wise = 1
    column_wise = 2
    sequential_rows = 3
    any_order = 4

class ScanPlan:
    order: Final[ScanOrder]
    block: Final[int]
    strip: Final[int]
    rows_per_task: Final[int]
    periodic: Final[bool]
    stream: Final[bool]
    threads: Final[int]
    variant: Final[int]

def make_scan_plan(problem: ScanProblem, machine: Machine) -> ScanPlan: ...
def forced_scan(
    problem: ScanProblem, machine: Machine, order: int, block: int, periodic: int, stream: int, threads: int
) -> ScanPlan: ...
def scan_workspace_bytes(problem: ScanProblem, plan: ScanPlan) -> int: ...

class ReduceProblem:
    n: int
    rows: int
    joined: int
    lanes: int
    leaf_bytes: list[int]
    slots: int
    work: int
    state_bytes: int
    across: bool
    init: bool

class ReducePlan:
    periodic: Final[bool]
    leaf: Final[int]
    block: Final[int]
    strip: Final[int]
    grain: Final[int]
    threads: Final[int]

def of_stencil(problem: ReduceProblem, reads: int) -> None: ...
def make_reduce_plan(problem: ReduceProblem, machine: Machine) -> ReducePlan: ...
def reduce_workspace_bytes(problem: ReduceProblem, plan: ReducePlan) -> int: ...

class SegmentsProblem:
    n: int
    segments: int
    members: int
    lanes: int
    leaf_bytes: list[int]
    slots: int
    work: int
    state_bytes: int
    across: bool

class SegmentsPlan:
    items: Final[int]
    tasks: Final[int]
    chunk: Final[int]
    strip: Final[int]
    grain: Final[int]
    threads: Final[int]

def make_segments_plan(problem: SegmentsProblem, machine: Machine) -> SegmentsPlan: ...
def segments_workspace_bytes(problem: SegmentsProblem, plan: SegmentsPlan) -> int: ...
def keep_freed_memory() -> bool: ...
def walk_handler() -> Any: ...
def scan_chain_handler() -> Any: ...
def add_walk(key: int, spec: str, described: dict[str, Any]) -> bool: ...
def add_walk_variant(key: int, variant: int, walk: int) -> None: ...
def stencil_handler() -> Any: ...
def stencil_reduce_handler() -> Any: ...
def add_stencil(key: int, spec: str, described: dict[str, Any]) -> bool: ...
def add_stencil_kernel(key: int, row: int, cell: int) -> None: ...

class StencilProblem:
    size: list[int]
    widest: list[int]
    wraps: list[int]
    halo: list[int]
    members: int
    steps: int
    unit: int
    array_bytes: list[int]
    leaf_bytes: list[int]
    changed: int
    work: int
    width: int
    span: list[int]

class StencilPlan:
    depth: Final[int]
    tile: Final[list[int]]
    stream: Final[bool]
    threads: Final[int]

def make_stencil_plan(problem: StencilProblem, machine: Machine) -> StencilPlan: ...
def forced_stencil(
    problem: StencilProblem, plan: StencilPlan, depth: int, first: int, middle: int, inner: int, stream: int
) -> StencilPlan: ...
def stencil_workspace_bytes(problem: StencilProblem, plan: StencilPlan) -> int: ...
