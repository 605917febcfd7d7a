"""A file that is larger than the memory it is allowed: chunk after chunk, each read while the one before is worked on.

``dest=`` and ``init=`` take what earlier chunks came to, so a state of a few kilobytes goes through the file: a histogram, mean
and variance by minute of the day, and the worst fall from a peak. Chunks are always the same ones, so a run that was stopped and
goes on from its saved state gives the same bits as one that was not.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

CHUNK, BINS, MINUTES = 1 << 20, 200, 1440


def joined(a: Any, b: Any) -> Any:
    """(count, mean, sum of squared differences) of two sets."""
    n = a[0] + b[0]
    share = jnp.where(n > 0, b[0] / jnp.maximum(n, 1), 0)
    apart = b[1] - a[1]
    return n, a[1] + apart * share, a[2] + b[2] + apart * apart * a[0] * share


def later(a: Any, b: Any) -> Any:
    """(highest, lowest, worst fall) of one stretch of time after another: this operator does not commute."""
    return jnp.maximum(a[0], b[0]), jnp.minimum(a[1], b[1]), jnp.maximum(jnp.maximum(a[2], b[2]), a[0] - b[1])


NOTHING = (
    jnp.zeros(BINS, jnp.int32),
    (jnp.zeros(MINUTES), jnp.zeros(MINUTES), jnp.zeros(MINUTES)),
    (-jnp.inf * jnp.ones(()), jnp.inf * jnp.ones(()), jnp.zeros(())),
)


@jax.jit
def taken_in(state: Any, chunk: jax.Array, first: jax.Array) -> Any:
    """The state, with one more chunk in it; ``first``: the minute of its first price."""
    counts, minutes, prices = state

    def pairs(x: Any, position: Any) -> Any:
        minute = (first + position) % MINUTES
        return (jnp.floor(x).astype(jnp.int32), 1), (minute, (1.0, x, 0.0))

    bins = jp.Bins(BINS, jnp.add, dest=counts), jp.Bins(MINUTES, joined, identity=(0.0, 0.0, 0.0), dest=minutes)
    counts, minutes = jp.genhist(pairs, (chunk, jp.positions), bins)
    return counts, minutes, jp.reduce(chunk, later, init=prices, map=lambda x: (x, x, 0.0 * x))


def chunks(path: Path, start: int) -> Iterator[tuple[int, np.ndarray]]:
    """Where each chunk begins, and its prices; the next one is read meanwhile."""
    total = path.stat().st_size // 4
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(np.fromfile, path, np.float32, CHUNK, offset=4 * start)
        for begin in range(start, total, CHUNK):
            now = ahead.result()
            ahead = pool.submit(np.fromfile, path, np.float32, CHUNK, offset=4 * (begin + CHUNK))
            yield begin, now


def run(path: Path, saved: Path, stop: int | None = None) -> Any:
    """From the saved state, if there is one, to the end, or until ``stop`` prices are read; the state is saved then."""
    start, state = 0, NOTHING
    if saved.exists():
        kept = np.load(saved)
        start = int(kept["read"])
        state = jax.tree.unflatten(jax.tree.structure(NOTHING), [jnp.asarray(kept[f"leaf{k}"]) for k in range(7)])
    total = path.stat().st_size // 4
    for begin, prices in chunks(path, start):
        if stop is not None and begin >= stop:
            leaves: dict[str, Any] = {f"leaf{k}": np.asarray(x) for k, x in enumerate(jax.tree.leaves(state))}
            np.savez(saved, read=begin, **leaves)
            break
        before, state = state, taken_in(state, prices, begin % MINUTES)
        jax.block_until_ready(before)  # or all chunks would wait in memory for their turn
        done = (begin + len(prices)) * 40 // total
        print(f"\r[{'#' * done}{' ' * (40 - done)}]", end="\n" if done == 40 else "", file=sys.stderr, flush=True)
    return state


def main(elements: int = 24 * CHUNK + 12_345) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, saved = Path(folder) / "prices.f32", Path(folder) / "state.npz"
        rng, level = np.random.default_rng(0), 100.0
        with path.open("wb") as file:
            for begin in range(0, elements, CHUNK):
                walk = level + np.cumsum(rng.normal(scale=0.004, size=min(CHUNK, elements - begin)))
                level = float(walk[-1])
                file.write(walk.astype(np.float32).tobytes())
        jax.block_until_ready(taken_in(NOTHING, np.full(CHUNK, 100, np.float32), 0))  # compiled
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        state = jax.block_until_ready(run(path, saved))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        size = path.stat().st_size / 2**20
        run(path, saved, stop=elements // 3)
        again = run(path, saved)
        assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(again), strict=True))
        counts, (number, mean, squares), (high, low, fall) = state
        assert int(counts.sum()) == elements == int(np.asarray(number, np.float64).sum()) and grown < size
        print(f"a file of {size:.0f} MB, with {grown:.0f} MB more memory; stopped and gone on: the same bits")
        common = int(counts.argmax())
        print(f"prices from {low:.2f} to {high:.2f}, most often {common} to {common + 1}, the worst fall {fall:.2f}")
        print(f"at minute 0: mean {mean[0]:.3f}, standard deviation {np.sqrt(squares[0] / number[0]):.3f}")


if __name__ == "__main__":
    main()
