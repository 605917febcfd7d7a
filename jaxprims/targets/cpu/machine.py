"""The machine that kernels run on."""

from __future__ import annotations

import os


def cpu_threads() -> int:
    """Threads in XLA's pool: the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
