"""Registration of the custom calls with XLA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from ..specs import histogram, ordered, stencil, walk
from ..specs.kernel import KernelSpec
from .as_made import MORE_AXES, as_made
from .operations import shape_of

HISTOGRAM = f"jaxprims_hist_v{histogram.VERSION}"
"""The name carries the version: the persistent compilation cache knows nothing of this library's."""

GROUP = f"jaxprims_group_v{histogram.VERSION}"

SCAN, REDUCE, SEGMENTS = (f"jaxprims_{kind}_v{ordered.VERSION}" for kind in ordered.KINDS)

STENCIL = f"jaxprims_stencil_v{stencil.VERSION}"

STENCIL_REDUCE = f"jaxprims_stencil_reduce_v{ordered.VERSION}"

SCAN_CHAIN = f"jaxprims_scan_chain_v{ordered.VERSION}"

WALK = f"jaxprims_walk_v{walk.VERSION}"

HELD = "jaxprims_held_v1"

CUSTOM_CALL_TARGETS: tuple[str, ...] = (HISTOGRAM, GROUP, SCAN, REDUCE, SEGMENTS, STENCIL, STENCIL_REDUCE, SCAN_CHAIN, WALK, HELD)
"""The names of all custom calls of this library, for :func:`jax.export.export`, which has to be told what it may serialize. A
name carries a version, which changes with the meaning of a call's attributes: what was exported by another version is refused
by its name, not misread. The process that runs it has to import jaxprims."""

__test__ = {
    "CUSTOM_CALL_TARGETS": """
    >>> import jax, jax.numpy as jnp
    >>> import jaxprims as jp
    >>> allowed = [jax.export.DisabledSafetyCheck.custom_call(name) for name in jp.CUSTOM_CALL_TARGETS]
    >>> x = jnp.array([1, 2, 3])
    >>> jax.export.export(jax.jit(lambda x: jp.scan(x)), disabled_checks=allowed)(x).call(x).tolist()
    [1, 3, 6]
    """
}

_registered: set[tuple[str, str]] = set()


def register(call_target: str, handler: Any, platform: str) -> None:
    """Makes XLA know a handler, once: it refuses to be told again."""
    if (call_target, platform) not in _registered:
        _registered.add((call_target, platform))
        jax.ffi.register_ffi_target(call_target, handler, platform=platform)
        jax.ffi.register_ffi_target_as_batch_partitionable(call_target)


def lower_call(
    ctx: Any,
    call_target: str,
    operands: Sequence[Any],
    spec: KernelSpec | None,
    masks: Sequence[int],
    rank: int,
    plan: Sequence[int],
    workspace: jax.core.ShapedArray | None = None,
    aliases: dict[int, int] | None = None,
    elements: int = 0,
    **attributes: int | str | Sequence[int],
) -> Any:
    """A custom call whose results are those of ``ctx`` and, where one is wanted, a workspace, which is left out.

    ``masks``: the batch axes, of ``rank``, that each operand has; ``plan``: empty, or what is forced; ``elements``: so many
    operands, the first ones, have an axis of elements, which may be handed over as several axes.
    """
    wanted, codes = ctx.avals_out, list(masks)
    operands, avals = list(operands), list(ctx.avals_in)
    for k in set(range(elements)) - set(aliases or ()):
        operands[k], axes = as_made(ctx, operands[k], masks[k].bit_count())
        if axes > 1:
            avals[k] = avals[k].update(shape=shape_of(operands[k]))
            codes[k] += (axes - 1) << MORE_AXES
    ctx = ctx.replace(avals_in=avals)
    if workspace is not None:
        ctx = ctx.replace(avals_out=[*wanted, workspace])
    described: dict[str, Any] = {}
    if spec is not None:
        described = {
            "spec": spec.text,
            "key": np.int64(spec.key),
            "batch_rank": np.int64(rank),
            "masks": np.array(codes, np.int64),
            "plan": np.array(plan, np.int64),
        }
    numbers = {
        k: v if isinstance(v, str) else np.int64(v) if isinstance(v, int) else np.array(v, np.int64)
        for k, v in attributes.items()
    }
    results = jax.ffi.ffi_lowering(call_target, operand_output_aliases=aliases)(ctx, *operands, **described, **numbers)
    if rank:
        shard_batch(results, masks, rank)
    return results[: len(wanted)]


def shard_batch(results: Any, masks: Sequence[int], rank: int) -> None:
    """Tells both of XLA's partitioners that the leading batch axes of a call may be split over devices, each on its own.

    ``masks`` say which batch axes an operand has; one that has none is the same on every device.
    """
    ir = mlir.ir
    op = results[0].owner if hasattr(results[0], "owner") else results[0][0].owner
    ins, outs = ([ir.RankedTensorType(x.type) for x in xs] for xs in (op.operands, op.results))
    if not all(t.has_static_shape for t in (*ins, *outs)):  # exported for sizes to come: the rule would have to name them
        return
    if any(n >= 2**31 for t in (*ins, *outs) for n in t.shape):  # which no rule can name
        return
    dimensions: dict[Any, tuple[str, int]] = {}  # batch axes and others: their names, their sizes

    def dims(kind: str, number: int, batch: Sequence[int], shape: Sequence[int]) -> str:
        keys = [*batch, *((kind, number, d) for d in range(len(batch), len(shape)))]
        names = [dimensions.setdefault(key, (_letter(len(dimensions)), n))[0] for key, n in zip(keys, shape, strict=True)]
        return f"[{', '.join(names)}]"

    pairs = enumerate(zip(masks, ins, strict=True))
    before = ", ".join(dims("in", k, [a for a in range(rank) if m >> a & 1], t.shape) for k, (m, t) in pairs)
    after = ", ".join(dims("out", k, range(rank), t.shape) for k, t in enumerate(outs))
    sizes = ", ".join(f"{name}={n}" for name, n in dimensions.values())
    private = [name for key, (name, _) in dimensions.items() if not isinstance(key, int)]
    blocked = f" need_replication={{{', '.join(private)}}}" if private else ""
    with op.context:
        rule = f"#sdy.op_sharding_rule<({before})->({after}) {{{sizes}}}{blocked}, custom>"
        op.attributes["sdy.sharding_rule"] = ir.Attribute.parse(rule)
        if all(m == (1 << rank) - 1 for m in masks):
            op.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get({"num_batch_dims": ir.StringAttr.get(str(rank))})


def _letter(n: int) -> str:
    """Shardy's names of dimensions: i, j, ... z, then z_1, z_2, ..."""
    return chr(ord("i") + n) if n < 18 else f"z_{n - 17}"
