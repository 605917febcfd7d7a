"""Many Python threads at once: kernels are compiled, traced and run from all of them, and every result is right.

A few seconds; ``JAXPRIMS_STRESS_SECONDS=60`` for a minute.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from references import BY_NAME, assert_close

import jaxprims as jp

SECONDS = float(os.environ.get("JAXPRIMS_STRESS_SECONDS", "4"))
THREADS = 8
Task = Callable[[], None]


def steady(number: int) -> Iterator[Task]:
    """One compiled function over and over, each thread its own: sizes that take one core, all cores, and a batch."""
    rng = np.random.default_rng(number)
    case = BY_NAME[("add", "max", "argmax", "saturating", "max5", "packed", "complex_mul", "add300")[number % 8]]
    n = (50, 3000, 400)[number % 3]
    values, index = case.sample(rng, n), rng.integers(-1, 9, n).astype(np.int32)
    f = jax.jit(lambda v, i: jp.reduce_by_index(v, i, 8, case.op, identity=case.given))
    wanted = references.reduce_by_index(values, index, 8, case.reference, case.identity)
    long = rng.integers(-1, 30, 300_000).astype(np.int32)
    count = jax.jit(lambda i: jp.genhist(lambda i: (i, 1), i, jp.Bins(29)))
    counted = np.bincount(long[(long >= 0) & (long < 29)], minlength=29)

    def run() -> None:
        assert_close(f(values, index), wanted, case.tolerance)
        if number % 2:
            np.testing.assert_array_equal(count(long), counted)

    while True:
        yield run


def compiling(number: int) -> Iterator[Task]:
    """A new operator, so a new kernel, every time; under jit, eagerly, and its gradient."""
    rng = np.random.default_rng(number)
    while True:
        c = int(rng.integers(1, 2**31))

        def run(c: int = c) -> None:
            m = np.uint32(c)
            values, index = references.bits(rng, 700), rng.integers(-1, 6, 700).astype(np.int32)
            op = lambda a, b: (a ^ m) + (b ^ m) ^ m  # noqa: E731
            got = jp.reduce_by_index(values, index, 5, op, identity=m)
            wanted = [np.bitwise_xor(np.sum(values[index == h] ^ m, dtype=np.uint32), m) for h in range(5)]
            np.testing.assert_array_equal(got, np.array(wanted, np.uint32))

        yield run


def differentiating(number: int) -> Iterator[Task]:
    x, index = jnp.linspace(0, 1, 50), np.arange(50, dtype=np.int32) % 7
    while True:

        def run() -> None:
            scale = np.float32(np.random.default_rng().uniform(1, 2))
            got = jax.grad(lambda x: jp.genhist(lambda i, x: (i, jnp.sin(x * scale)), (index, x), jp.Bins(7)).sum())(x)
            np.testing.assert_allclose(got, scale * np.cos(np.asarray(x) * scale), rtol=1e-5)

        yield run


@pytest.mark.dear
def test_threads() -> None:
    kinds = [steady] * 5 + [compiling] * 2 + [differentiating]
    failures: list[BaseException] = []
    rounds = [0] * THREADS
    start = threading.Barrier(THREADS)
    until = time.monotonic() + SECONDS

    def work(number: int) -> None:
        try:
            tasks = kinds[number](number)
            start.wait()
            for task in tasks:
                task()
                rounds[number] += 1
                if time.monotonic() > until or failures:
                    return
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(SECONDS + 300)
        assert not t.is_alive(), f"a thread hangs; rounds by thread: {rounds}"
    if failures:
        raise failures[0]
    assert min(rounds) >= 1, rounds


def test_the_first_call_from_many_threads() -> None:
    """All ask for the same new kernel at the same time."""
    index = np.arange(1000, dtype=np.int32) % 11
    start = threading.Barrier(THREADS)
    results: list[Any] = []
    seven = np.int32(7)

    def work() -> None:
        start.wait()
        results.append(np.asarray(jp.reduce_by_index(index, index, 11, lambda a, b: (a + b) ^ seven ^ seven, identity=0)))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == THREADS
    for r in results:
        np.testing.assert_array_equal(r, np.bincount(index, index, 11))
