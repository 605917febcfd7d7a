"""The machine that kernels run on."""

from __future__ import annotations

import os


def cpu_threads(devices: int = 1) -> int:
    """Threads for a call that so many devices make at once: a share of the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // devices)
