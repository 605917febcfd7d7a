"""``positions``: each element's own."""

from __future__ import annotations


class _Positions:
    """Among values, arrays or xs: each element's own position. Made in the kernel, never in memory."""

    def __repr__(self) -> str:
        return "jp.positions"


positions = _Positions()
