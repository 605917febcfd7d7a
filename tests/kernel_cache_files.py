"""Entries of the cache of compiled kernels."""

from __future__ import annotations

from pathlib import Path

from jaxprims.targets import kernel_cache

NAME = kernel_cache.name_of("a kernel")


def files(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}
