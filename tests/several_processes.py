"""One of several processes, each with two devices: ``several_processes.py address processes rank``."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxprims as jp


def affine(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[0] + b[1]


def calls(x: Any, i: Any) -> Any:
    few = jp.reduce_by_index(x, i, 40, jnp.logaddexp), jp.scan((x * 0.1 + 0.9, x), affine)[1]
    if jax.process_count() > 2:
        return few
    return (
        *few,
        jp.reduce_by_index((x, jp.positions), i, 40, jp.monoids.argmax),
        jp.reduce((x * 0.1 + 0.9, x), affine, identity=(1.0, 0.0)),
        jp.stencil(lambda a: a[-1] + 0.5 * a[0] - a[2], x, steps=3),
        jax.grad(lambda x: jnp.sum(jp.scan(x, jnp.logaddexp) ** 2))(x),
    )


def main(address: str, processes: int, rank: int) -> None:
    rng = np.random.default_rng(0)
    x, i = rng.standard_normal(24_000).astype(np.float32), rng.integers(0, 40, 24_000).astype(np.int32)
    jax.distributed.initialize(coordinator_address=address, num_processes=processes, process_id=rank)
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
    assert jax.device_count() == 2 * processes
    sharding = NamedSharding(mesh, P("d"))
    share = len(x) // processes
    placed = [jax.make_array_from_process_local_data(sharding, a[rank * share : (rank + 1) * share]) for a in (x, i)]
    got = jax.jit(calls)(*placed)
    wanted = jax.jit(calls)(*(jax.device_put(a, jax.local_devices()[0]) for a in (x, i)))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        for part in g.addressable_shards:
            np.testing.assert_allclose(np.asarray(part.data), np.asarray(w)[part.index], rtol=1e-3, atol=1e-4)
    print("the same", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
