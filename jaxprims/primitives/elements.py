"""What the static halves of all calls share: f, the arrays and positions that it runs on, operands taken one after the other."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax.extend.core import Var

from ..ir.evaluate import EXACT
from ..ir.program import Instr, is_float
from ..operators.traced import Traced, slots_of
from ..tracing.varying import axes_of, vary
from ..tracing.within import within
from .reads import on_elements

Element = tuple[tuple[int, ...], Any]
"""Shape and dtype of one element of an array."""


_as_they_are: contextvars.ContextVar[bool] = contextvars.ContextVar("operands as they are", default=False)


def operands_as_they_are(so: bool) -> AbstractContextManager[None]:
    """Calls that are traced inside read their operands: to make them in the kernel has been weighed."""
    return within(_as_they_are, so)


ROUNDED = frozenset(("add", "sub", "mul"))
"""What kernels and XLA round alike, but of halves; where one follows another, either may round once. Quotients XLA may write as
products."""

MOVED = (EXACT - ROUNDED - {"div", "sqrt"}) | {"arg", "const", "load"}
"""What rounds nothing."""


class Operands:
    """Operands, taken from the front."""

    def __init__(self, operands: Sequence[Any]):
        self.rest = list(operands)

    def take(self, n: int) -> list[Any]:
        taken, self.rest = self.rest[:n], self.rest[n:]
        return taken


@dataclasses.dataclass(frozen=True)
class ElementFunctionCall:
    """f of each element. ``positions``: for each of f's arguments the dtype if it is the element's own position, which is no
    operand, else None."""

    f: Traced
    positions: tuple[np.dtype | None, ...]
    as_they_are: bool = dataclasses.field(default_factory=_as_they_are.get, kw_only=True)

    @property
    def num_arrays(self) -> int:
        return sum(p is None for p in self.positions)

    @property
    def arguments(self) -> list[Var]:
        """f's variables that are operands: elements of arrays."""
        return [v for v, p in zip(self.f.jaxpr.invars, self.positions, strict=True) if p is None]

    def of_elements(self, avals: Sequence[Any], masks: Sequence[int], inner_rank: int = 0) -> tuple[Element, ...]:
        """Each argument of f, from the operands' avals: leading batch axes, the elements' axis, ``inner_rank`` more."""
        arrays = iter(zip(avals, masks, strict=True))
        out: list[Element] = []
        for position in self.positions:
            if position is not None:
                out.append(((), position))
            else:
                aval, mask = next(arrays)
                out.append((tuple(aval.shape[mask.bit_count() + 1 + inner_rank :]), np.dtype(aval.dtype)))
        return tuple(out)

    def on_all(self, arrays: Sequence[Any], captured: Sequence[Any], inner_rank: int = 0) -> list[Any]:
        """f on every element of an unbatched call, unfused: its results with a leading axis [N], and ``inner_rank`` more. What
        differentiation and plain XLA start from."""
        steps, axes, rest = arrays[0].shape[: 1 + inner_rank], axes_of(arrays), iter(arrays)
        full = [vary(jax.lax.broadcasted_iota(p, steps, 0), axes) if p is not None else next(rest) for p in self.positions]
        return list(mapped(on_elements(self.f, captured), 1 + inner_rank)(*full))

    def values(self, arrays: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
        """f on every element of an unbatched call."""
        return self.on_all(arrays, captured)

    @functools.cached_property
    def has_same_bits(self) -> bool:
        """Are f's values the same, to the last bit, whether XLA makes them or a kernel?"""
        if self.f.arrays is not None:
            return not self.f.jaxpr.eqns
        made = [i for i in self.f.program.body if i.op not in MOVED and is_float(i.dtype)]
        return not made or (len(made) == 1 and made[0].op in ROUNDED and made[0].dtype not in ("f16", "bf16"))

    def position_among(self, values: Sequence[Instr]) -> int | None:
        """Which of these values of f's is the element's own position, in 32 bits: the last, of several."""
        return max((k for k, value in enumerate(values) if self._is_narrow_position(value)), default=None)

    def _is_narrow_position(self, instr: Instr) -> bool:
        first = np.concatenate([[0], np.cumsum([slots_of(v.aval.shape, v.aval.dtype) for v in self.f.jaxpr.invars])])
        narrow = {int(k) for k, t in zip(first, self.positions, strict=False) if t == np.int32}
        return instr.op == "arg" and instr.attr in narrow


def mapped(fn: Callable[..., Any], depth: int) -> Callable[..., Any]:
    """``fn`` on elements, over ``depth`` leading axes."""
    for _ in range(depth):
        fn = jax.vmap(fn)
    return fn


def captured_dtypes(avals: Iterator[Any], n: int) -> tuple[np.dtype, ...]:
    """Of the next n operands."""
    return tuple(np.dtype(next(avals).dtype) for _ in range(n))
