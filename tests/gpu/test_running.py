"""How calls run on a GPU: in CUDA graphs, in loops, by many threads at once, and with the same bits every time."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import short_form

import jaxprims as jp

pytestmark = pytest.mark.usefixtures("gpu")

HERE = Path(__file__).parent
RNG = np.random.default_rng(4)
GRAPHS = "--xla_gpu_enable_command_buffer=+CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"


def bits(x: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(x)]


def in_graphs(program: str, folder: Path) -> str:
    """Runs a program in a process in which XLA makes CUDA graphs of custom calls, and dumps what it makes."""
    env = {
        **os.environ,
        "XLA_FLAGS": f"{GRAPHS} --xla_dump_to={folder}",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_graphs(tmp_path: Path) -> None:
    """All families in one executable, again and again with new inputs; the results are those of a loop."""
    said = in_graphs(
        """
        import jax, jax.numpy as jnp, numpy as np, jaxprims as jp, short_form

        rng = np.random.default_rng(0)
        at = short_form.offsets(rng.integers(0, 9, 1000))

        @jax.jit
        def every(x, i, u):
            y = jp.cumsum(x)
            return (y, jp.reduce(y * 2), jp.reduce_by_index(y, i, 300), jp.segment_reduce(x[: int(at[-1])], jp.Offsets(at)),
                    jp.reduce_by_index(u, i, 3000, short_form.saturate, identity=0), jp.reduce_by_index(u, i, 200_000))

        for k in range(20):
            x, i = short_form.integers(9000), short_form.indices(9000, 250)
            u = rng.integers(0, 2**21, 9000).astype(np.uint32)
            y, total, sums, segments, saturated, many = every(x, i, u)
            want = np.cumsum(x, dtype=np.int32)
            np.testing.assert_array_equal(y, want)
            np.testing.assert_array_equal(total, np.sum(want * 2, dtype=np.int32))
            np.testing.assert_array_equal(sums, short_form.by_sums(want, i, 300))
            np.testing.assert_array_equal(segments, short_form.folds(x[: at[-1]], at, np.add, 0).astype(np.int32))
            np.testing.assert_array_equal(
                saturated, np.minimum(short_form.by_sums(u.astype(np.int64), i, 3000), 2**24 - 1).astype(np.uint32))
            np.testing.assert_array_equal(many, short_form.by_sums(u, i, 200_000))
        print("right")
        """,
        tmp_path,
    )
    assert "right" in said
    thunks = "".join(p.read_text(errors="replace") for p in tmp_path.glob("*every*thunk_sequence*"))
    if thunks:  # the dump's name differs between versions of XLA
        assert "CommandBuffer" in thunks or "command_buffer" in thunks.lower(), thunks[:2000]


def test_graphs_in_a_loop(tmp_path: Path) -> None:
    """A while loop whose body is captured; the state goes round a thousand times."""
    said = in_graphs(
        """
        import jax, jax.numpy as jnp, numpy as np, jaxprims as jp

        def body(k, state):
            x, total = state
            x = jp.cumsum(x) & 0xff
            return x, total + jp.reduce_by_index(x, x & 7, 8)

        x = np.arange(2000, dtype=np.int32)
        got, total = jax.jit(lambda x: jax.lax.fori_loop(0, 1000, body, (x, jnp.zeros(8, jnp.int32))))(x)
        want, sums = x, np.zeros(8, np.int32)
        for k in range(1000):
            want = np.cumsum(want, dtype=np.int32) & 0xff
            np.add.at(sums, want & 7, want)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(total, sums)
        print("right")
        """,
        tmp_path,
    )
    assert "right" in said


def test_threads() -> None:
    """Many threads, each tracing, compiling and calling functions of its own; and one function called by all."""
    shared = jax.jit(lambda x: jp.reduce_by_index(x, x & 255, 256))

    def work(k: int) -> None:
        rng = np.random.default_rng(k)
        x = rng.integers(-1000, 1000, 20_000 + k).astype(np.int32)
        mine = jax.jit(lambda x: (jp.cumsum(x * (k + 1)), jp.reduce(x + k), jp.reduce_by_index(x, jnp.abs(x) % (k + 2), k + 2)))
        for _ in range(5):
            sums, total, by_index = mine(x)
            np.testing.assert_array_equal(sums, np.cumsum(x * (k + 1), dtype=np.int32))
            np.testing.assert_array_equal(total, np.sum(x + k, dtype=np.int32))
            np.testing.assert_array_equal(by_index, short_form.by_sums(x, np.abs(x) % (k + 2), k + 2))
            np.testing.assert_array_equal(shared(x), short_form.by_sums(x, x & 255, 256))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(32)))


def test_calls_in_flight() -> None:
    """Hundreds of calls enqueued before the first is waited for; donated inputs too."""
    step = jax.jit(lambda x: jp.scan(x, jnp.maximum, in_place=True) - 1, donate_argnums=0)
    x = short_form.integers(50_000)
    state = jnp.asarray(x)
    for _ in range(300):
        state = step(state)
    want = np.maximum.accumulate(x) - 300
    np.testing.assert_array_equal(np.asarray(state), want)


@pytest.mark.parametrize("n", [1000, 1_000_003])
def test_same_bits(n: int) -> None:
    """Scans, reductions and segments of floats: on every run, beside other work on the device too."""
    x, a = RNG.standard_normal(n).astype(np.float32), RNG.uniform(0.5, 1, n).astype(np.float32)
    at = short_form.offsets(RNG.integers(0, 300, n // 150))

    @jax.jit
    def every(x: Any, a: Any) -> Any:
        v = x[: int(at[-1])] if at[-1] <= n else jnp.resize(x, int(at[-1]))
        return (
            jp.cumsum(x),
            jp.scan((a, x), jp.monoids.affine),
            jp.cumlogsumexp(x),
            jp.reduce(x),
            jp.segment_reduce(v, jp.Offsets(at)),
            jp.cumsum(x[: n // 10 * 10].reshape(-1, 10), 0),
        )

    first = bits(every(x, a))
    noise = jax.jit(lambda m: m @ m)
    matrix = jnp.ones((1024, 1024))
    for _ in range(20):
        noise(matrix)
        assert bits(every(x, a)) == first


@pytest.mark.parametrize("bins", [3, 700, 60_000, 500_000])
def test_same_bits_of_histograms(bins: int) -> None:
    """Where it is asked for; and integers always."""
    n = 300_000
    x, i = RNG.standard_normal(n).astype(np.float32), short_form.indices(n, bins)
    f = jax.jit(lambda x, i: jp.reduce_by_index(x, i, bins, deterministic=True))
    first = f(x, i)
    np.testing.assert_allclose(first, short_form.by_sums(x, i, bins), rtol=1e-4, atol=1e-2)
    for _ in range(10):
        assert bits(f(x, i)) == bits(first)
