"""The orders of blocks of de Kluijver 2024 (3.1 to 3.3), each as a contestant.

The fourth, assisting, is what jaxprims itself takes where it cuts rows into blocks.
"""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

from ...contestant import Inputs, Prepare, Run, as_arrays
from ...peers import arrays

ORDERS = {"row-wise": 1, "column-wise": 2, "sequential rows": 3}
"""As in cpu/scan_plan.h."""


def in_orders(axis: int) -> dict[str, Prepare]:
    """Sums of integers along ``axis``."""
    return {name: arrays.wide(_in_order(order, axis)) for name, order in ORDERS.items()}


def _in_order(order: int, axis: int) -> Prepare:
    def prepare(inputs: Inputs) -> Run:
        jax, jp = arrays.module("jax"), arrays.module("jaxprims")
        scans = arrays.module("jaxprims.calls.scan")
        bind = scans.bind

        def forced(primitive: Any, fold: Any, *rest: Any) -> Any:
            return bind(primitive, dataclasses.replace(fold, plan=(order, -1, -1, -1, -1)), *rest)

        (x,) = map(arrays.on_device, inputs.values())
        with mock.patch.object(scans, "bind", forced):
            compiled = jax.jit(lambda x: jp.scan(x, axis=axis)).lower(x).compile()
        return Run(lambda: jax.block_until_ready(compiled(x)), as_arrays)

    return prepare
