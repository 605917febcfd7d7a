"""The cheapest cut of a graph whose edges have prices (Ford and Fulkerson 1956)."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable
from typing import Any


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
