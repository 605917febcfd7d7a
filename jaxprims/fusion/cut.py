"""The cheapest cut of a graph whose edges have prices (Ford and Fulkerson 1956), and what it is for: to read a variable, or to
make it again."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

KEPT, READ = 6, 2
"""Additions that it takes to keep a byte: to write it, to read it, and to have memory for it; to read it alone."""

IN_CACHE = 2**20
"""Bytes of a program's arrays up to which a core's cache has them still when they are read."""


NEAR = 2**23
"""Bytes that one kernel reads and writes above which they come from memory, whose prefetchers follow one stream."""


class ByteAt(NamedTuple):
    """Additions that it takes to keep a byte, and to read it alone."""

    kept: float
    read: float


MEMORY, CACHE = ByteAt(KEPT, READ), ByteAt(1, 0.4)
"""Where a program's arrays lie."""


def byte_at(together: float) -> ByteAt:
    """If a program's arrays have so many."""
    return CACHE if together <= IN_CACHE else MEMORY


LAST_CACHE, KEPT_IN_LAST_CACHE = 2**24, 0.5
"""Bytes of a program's arrays up to which they stay in a processor's last cache, and memory is not asked for anew at each call;
and additions that it takes then to keep a byte."""


def kept_byte(together: float) -> float:
    """Additions that it takes to keep a byte, if a program's arrays have so many."""
    return KEPT_IN_LAST_CACHE if together <= LAST_CACHE else KEPT


LARGE = 2**13
"""What a size that is not known counts as."""


def count_of(sizes: Iterable[Any]) -> int:
    """The product of these sizes."""
    return math.prod(n if isinstance(n, int) else LARGE for n in sizes)


def bytes_of(v: Any) -> float:
    return float(count_of(v.aval.shape) * v.aval.dtype.itemsize)


def read_or_made(
    wanted: Sequence[Any],
    operands: Callable[[Any], Sequence[Any]],
    reading: Callable[[Any], float],
    making: Callable[[Any], float],
) -> tuple[list[Any], list[Any]]:
    """The cheapest way to have what is wanted, given the price of reading a variable and that of making it of its ``operands``
    (infinite if it cannot be made). A variable is two nodes: one is beyond the cut if it is made, the other if it is there."""
    edges: list[tuple[Any, Any, float]] = [((v, "there"), "wanted", math.inf) for v in dict.fromkeys(wanted)]
    todo, seen = list(wanted), set[Any]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        price = making(v)
        edges += [("begin", (v, "made"), price), ((v, "made"), (v, "there"), reading(v))]
        if price < math.inf:
            edges += [((x, "there"), (v, "made"), math.inf) for x in operands(v)]
            todo += operands(v)
    near = cheapest_cut(edges, "begin", "wanted")
    read, made = dict[Any, None](), dict[Any, None]()
    todo = list(wanted)[::-1]
    while todo:
        v = todo.pop()
        if (v, "made") in near:
            read[v] = None
        elif v not in made:
            made[v] = None
            todo += operands(v)
    return list(read), list(made)


def cheapest_cut(edges: Iterable[tuple[Hashable, Hashable, float]], source: Hashable, sink: Hashable) -> set[Any]:
    """The nodes on the source's side; of equal cuts that next to the source."""
    left: dict[Hashable, dict[Hashable, float]] = collections.defaultdict(lambda: collections.defaultdict(float))
    for a, b, price in edges:
        left[a][b] += price
        left[b][a] += 0.0
    while True:
        came = _reached(left, source, sink)
        if sink not in came:
            return set(came)
        path = [sink]
        while path[-1] != source:
            path.append(came[path[-1]])
        steps = list(zip(path[1:], path, strict=False))
        flow = min(left[a][b] for a, b in steps)
        for a, b in steps:
            left[a][b] -= flow
            left[b][a] += flow


def _reached(left: dict[Hashable, dict[Hashable, float]], source: Hashable, sink: Hashable) -> dict[Hashable, Hashable]:
    """From the source along edges with something left, as far as the sink: each node with the one before."""
    came, todo = {source: source}, collections.deque([source])
    while todo and sink not in came:
        a = todo.popleft()
        for b, price in left[a].items():
            if price > 0 and b not in came:
                came[b] = a
                todo.append(b)
    return came
