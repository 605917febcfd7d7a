"""From a spec to the text of the five algorithms' kernels, and what is launched of them: functions of sizes and addresses.

The kernels are skeletons beside jaxprims' own (``reduce_paper.cuh``, ``segments_paper.cuh``): operator, f and operands are those
of the spec, and what data-blocks leave is folded by jaxprims' kernels for that.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from jaxprims.specs.ordered import OrderedSpec
from jaxprims.targets.cuda import compiler, ordered_source, source

HERE = Path(__file__).parent
WARP, MAX_AXES, MOST_BLOCKS = 32, 4, 2**30
THREADS = 256
"""Of a block that folds matrices or partial states."""
PARTS_OF_BLOCK = 2048
"""Partial states that a block of ReduceParts folds: kPartsOfBlock of ``cuda/plans/reduce_tiles.h``."""


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """Its kernels. ``persistent``: as many blocks as are resident at once reduce all data-blocks."""

    reduction: str
    segments: str
    persistent: bool = False

    def kernel(self, kind: str) -> str:
        return self.reduction if kind == "reduce" else self.segments


ALGORITHMS = {
    "tree": Algorithm("ReduceTree", "SegmentsTree"),
    "warp tree": Algorithm("ReduceWarpTree", "SegmentsWarpTree"),
    "matrix": Algorithm("ReduceMatrix", "SegmentsMatrix"),
    "persistent matrix": Algorithm("ReduceMatrix", "SegmentsMatrix", persistent=True),
    "producer-consumer": Algorithm("ReduceProducerConsumer", "SegmentsProducerConsumer", persistent=True),
}
"""A tree over a data-block in shared memory; a tree in each warp, then one over the warps' results; 32 threads fold a row of a
matrix each, then a tree; the same by resident blocks; some warps load the next matrix while one folds the last."""


@dataclasses.dataclass(frozen=True)
class Call:
    """Addresses: of the arrays of ``n`` elements; of sorted ids, of so many bytes each; of the results; of the workspace."""

    n: int
    arrays: Sequence[int]
    outs: Sequence[int]
    workspace: int
    segments: int = 0
    ids: int = 0
    id_bytes: int = 4


@dataclasses.dataclass(frozen=True)
class Launch:
    """Words: the kernel's parameter, 8 bytes each."""

    kernel: str
    blocks: int
    threads: int
    words: tuple[int, ...]


class Device(Protocol):
    """What launches depend on."""

    multiprocessors: int

    def resident(self, kernel: str, threads: int) -> int:
        """Blocks of a kernel, of so many threads, that are on the device at once."""


@functools.lru_cache(maxsize=64)
def text(spec: OrderedSpec) -> str:
    """All kernels of a spec, those of the five algorithms among them."""
    if spec.across or spec.uniforms:
        raise ValueError("the algorithms are for elements that lie one behind the other, and for operators that capture nothing")
    size = ordered_source.state_bytes(spec)
    constants = f"constexpr int kTreeThreads = {tree_threads(size)}, kMatrixWidth = {matrix_width(size)};"
    name = {"reduce": "reduce_paper.cuh", "segments": "segments_paper.cuh"}[spec.kind]
    whole = f'{source.ordered_source(spec)}namespace jp {{\n{constants}\n}}\n#include "{name}"\n'
    return source.expanded(whole, [*compiler.skeleton_folders, HERE])


def tree_threads(state_bytes: int) -> int:
    """Threads of a block of the trees."""
    return 256 if state_bytes <= 32 else 64 if state_bytes <= 128 else 32


def matrix_width(state_bytes: int) -> int:
    """States in a row of a matrix, which has 32 rows: 32, while two matrices fit the shared memory."""
    return 32 if state_bytes <= 16 else 8 if state_bytes <= 64 else 4 if state_bytes <= 128 else 1


def data_block(algorithm: str, state_bytes: int) -> int:
    """Elements that are reduced together in shared memory."""
    trees = {"tree": 2, "warp tree": 4}
    if algorithm in trees:
        return trees[algorithm] * tree_threads(state_bytes)
    return WARP * matrix_width(state_bytes)


def threads_of(algorithm: str, state_bytes: int) -> int:
    """Threads of a block of the algorithm's kernel."""
    if algorithm in ("tree", "warp tree"):
        return tree_threads(state_bytes)
    return THREADS + (WARP if algorithm == "producer-consumer" else 0)


def workspace_bytes(spec: OrderedSpec, algorithm: str, n: int) -> int:
    """What all data-blocks leave, and of a reduction what blocks of ReduceParts make of that."""
    size = ordered_source.state_bytes(spec)
    parts = max(1, -(-n // data_block(algorithm, size)))
    if spec.kind == "reduce":
        return (parts + -(-parts // PARTS_OF_BLOCK)) * size
    return parts * (-(-2 * size // 8) * 8 + 16)  # PieceBytes of cuda/plans/segments_tiles.h


def launches(spec: OrderedSpec, algorithm: str, call: Call, device: Device) -> list[Launch]:
    """What the algorithm launches, in this order."""
    chosen, size = ALGORITHMS[algorithm], ordered_source.state_bytes(spec)
    kernel, threads, elements = chosen.kernel(spec.kind), threads_of(algorithm, size), data_block(algorithm, size)
    most = -(-call.n // elements)
    parts = max(1, min(device.resident(kernel, threads), most) if chosen.persistent else most)
    common = _call_words(spec, call)
    if spec.kind == "reduce":
        return _reduction(common, call.workspace, size, kernel, threads, parts, elements)

    def launch(kernel: str, threads: int, parts: int, blocks: int) -> Launch:
        words = (*common, call.segments, 1, int(call.id_bytes == 8), parts, call.workspace, 1, threads, 1)
        return Launch(kernel, min(blocks, MOST_BLOCKS), threads, words)

    out = []
    if spec.identity is not None:  # of segments without elements
        shares = max(1, min(-(-call.segments // (8 * THREADS)), 16 * device.multiprocessors))
        out.append(launch("SegmentsIdentity", THREADS, shares, shares))
    if call.n:
        out.append(launch(kernel, threads, parts, parts))
    if call.n and parts > 1:
        out.append(launch("SegmentsBorders", 256 if size <= 64 else 128, parts, 1))
    return out


def _reduction(
    common: Sequence[int], workspace: int, size: int, kernel: str, threads: int, parts: int, elements: int
) -> list[Launch]:
    """The algorithm's kernel, then what folds partial states until there is one."""

    def launch(kernel: str, threads: int, parts: int, read: int, written: int, number: int) -> Launch:
        words = (*common, parts, workspace + read * size, workspace + written * size, number, 1, 1, 1)
        return Launch(kernel, min(parts, MOST_BLOCKS), threads, words)

    out = [launch(kernel, threads, parts, 0, 0, elements)]
    count, read = parts, 0
    while count > 1:
        parts, written = -(-count // PARTS_OF_BLOCK), 0 if read else count
        out.append(launch("ReduceParts", THREADS, parts, read, written, count))
        count, read = parts, written
    return out


def _call_words(spec: OrderedSpec, call: Call) -> list[int]:
    """The words of ``Call`` (``cuda/kernels/ordered/ordered.cuh``), of no batch, one lane and no init."""
    given = iter(call.arrays)
    words = [0, 1, *[1] * MAX_AXES, call.n, 1, 0]
    words += _operands([next(given) if a.slots else 0 for a in spec.arrays])
    words += _operands([call.ids])
    words += _operands([])
    words += _operands(call.outs)
    words += _operands([0] * len(spec.state))
    return words + [0] * len(spec.state)


def _operands(addresses: Sequence[int]) -> list[int]:
    """Addresses, and no strides; at least one."""
    return [word for address in addresses or [0] for word in (address, *[0] * MAX_AXES)]
