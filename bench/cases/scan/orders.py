"""The orders of blocks of de Kluijver 2024 (3.1 to 3.3), each as a contestant.

The fourth, assisting, is what jaxprims itself takes where it cuts rows into blocks.
"""

from __future__ import annotations

from ...contestant import Inputs, Prepare, Run, as_arrays
from ...peers import arrays

ORDERS = {"row-wise": "row_wise", "column-wise": "column_wise", "sequential rows": "sequential_rows"}


def in_orders(axis: int) -> dict[str, Prepare]:
    """Sums of integers along ``axis``."""
    return {name: arrays.wide(_in_order(order, axis)) for name, order in ORDERS.items()}


def _in_order(order: str, axis: int) -> Prepare:
    def prepare(inputs: Inputs) -> Run:
        jax, jp = arrays.module("jax"), arrays.module("jaxprims")
        plans, cpu = arrays.module("jaxprims.targets.plans"), arrays.module("jaxprims.targets.cpu.plans")
        (x,) = map(arrays.on_device, inputs.values())
        with plans.forced(cpu.ScanPlan(order)):
            compiled = jax.jit(lambda x: jp.scan(x, axis=axis)).lower(x).compile()
        return Run(lambda: jax.block_until_ready(compiled(x)), as_arrays)

    return prepare
