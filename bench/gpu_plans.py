"""Plans forced upon calls, and what they are called in tables."""

from __future__ import annotations

from jaxprims.targets.cuda.plans import HistogramPlan, ScanPlan

BLOCK = 1024
MOST_SHARED = 8 * 227 * 1024
"""More passes than eight would be needed beyond this."""
MOST_GLOBAL = 64 * 2**20

SCANS = {"waiting": ScanPlan(waits=True), "in registers": ScanPlan(waits=False)}
"""Where a chained tile is while it is not known what comes before it."""


def histograms(bins: int, operator: str) -> dict[str, HistogramPlan]:
    """The fixed choices of Henriksen et al. 2020, as plans: in shared memory M = 1 and k times what a block's
    threads can use of so many bins, with as many passes as they need; in global memory M = 1, 4, 8, 16, 32 in one pass. And a
    cluster's shared memory."""
    size = bins * (8 if operator.startswith("argmax") else 4)
    shared = sorted({1, *(max(1, k * BLOCK // min(bins, BLOCK)) for k in (1, 3, 6, 9))})
    out = {f"shared, M = {m}": HistogramPlan("shared", m) for m in shared if m * size <= MOST_SHARED}
    if 64 * 1024 <= size <= 16 * 200 * 1024:
        out["cluster"] = HistogramPlan("cluster", 1)
    out |= {f"global, M = {m}": HistogramPlan("global", m, 1) for m in (1, 4, 8, 16, 32) if m == 1 or m * size <= MOST_GLOBAL}
    return out
