"""Numbers in words, for explanations."""

from __future__ import annotations


def bytes_in_words(n: int) -> str:
    for unit in ("bytes", "KB", "MB"):
        if n < 10_000:
            return f"{n} {unit}"
        n //= 1024
    return f"{n} GB"
