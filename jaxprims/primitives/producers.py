"""What makes a call's operands, number by number, goes into the kernel's loop.

XLA makes what it reduces in the loop that reduces it; before a custom call it would write it to memory. A lowering sees the
operations of the module that have made its operands: back through those that go number by number, through reshapes and functions
that are called, to what is in memory. These become operands of the kernel, and f begins with the operations. Only cheap ones do:
what XLA may have to write all the same, for something else, is made once more.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from ..operators.traced import Traced, traced_alike
from ..targets.operations import (
    Frame,
    NotTaken,
    dtype_of,
    function_of,
    gathers_rows,
    in_loop,
    ir,
    is_made,
    masked,
    reshapes,
    resolved,
    returned,
    shape_of,
)
from ..tracing.jaxprs import capturing, structs
from ..tracing.lower import Unsupported
from ..tracing.varying import axes_of
from .captured_rows import read_by_rows, with_rows
from .elements import ElementFunctionCall

MOST_READ, MOST_MADE, WIDEST = 2, 32, 1024
"""Arrays that are read in place of one; operations; numbers of an element, each of which is an instruction of f's."""

MADE_AGAIN, FEW_MADE, MADE_AGAIN_IN_LOOP = 32, 2**20, 8
"""Operations in place of one number of a table, which is written once and read for each element; operations that are done before
XLA's threads have met, which in a loop are not called."""

QUOTIENT = 8
"""Operations that take as long as a quotient."""

MOST_LOOKED_AT = 192
"""Values, whether they are taken in then or not: what takes many turns is left, so that no lowering takes long or goes deep."""

SHORT_ROW = 256
"""Elements to a row up to which rows are not read one by one, as numbers of their own want it."""


@dataclasses.dataclass(frozen=True)
class Taken:
    """The call with what makes its operands. ``avals``: the operands', whose shapes may differ from the values'."""

    operands: list[Any]
    avals: list[Any]
    masks: tuple[int, ...]
    call: Any


def taken(
    ctx: Any,
    operands: Sequence[Any],
    call: ElementFunctionCall,
    masks: Sequence[int],
    inner_rank: int = 0,
    others: int = 0,
    as_they_are: int = 0,
) -> Taken | None:
    """The call with what makes its arrays; None if that is nothing, or not to be taken in. ``others``: operands between the
    arrays and what f captures; ``as_they_are``: so many arrays in front are wanted in memory."""
    n, avals, first = call.num_arrays, ctx.avals_in, call.num_arrays + others
    captured = range(first, first + call.f.captured)
    if axes_of(avals) or not any(is_made(ctx, operands[k]) for k in (*range(as_they_are, n), *captured)):
        return None
    reading = _Reading(ctx, call, inner_rank)
    try:
        each = zip(operands[:n], avals[:n], masks[:n], range(n), strict=True)
        made = [reading.operand(x, a, m, k < as_they_are) for x, a, m, k in each]
        tables = {k - first: t for k in captured if (t := reading.table(k - first, operands[k], avals[k], masks[k])) is not None}
        return reading.call_of(made, tables, operands, masks, first)
    except (NotTaken, Unsupported):
        return None


@dataclasses.dataclass
class _Element:
    """The numbers of one element, while f is traced."""

    arrays: Sequence[Any]
    captured: Sequence[Any]
    made: dict[Any, Any] = dataclasses.field(default_factory=dict)
    at: Any = None  # of a row of a table: which


Made = Callable[[_Element], Any]


@dataclasses.dataclass(frozen=True)
class _Read:
    """An operand of the kernel."""

    value: Any
    shape: tuple[int, ...]
    mask: int


@dataclasses.dataclass(frozen=True)
class _Form:
    """Of values: all of them, and those of one element."""

    shape: tuple[int, ...]
    element: tuple[int, ...]


class _Reading:
    """Backwards from the arrays of a call."""

    def __init__(self, ctx: Any, call: ElementFunctionCall, inner_rank: int):
        self.ctx, self.call, self.inner_rank = ctx, call, inner_rank
        self.arrays: dict[_Read, int] = {}
        self.captured: dict[_Read, int] = {}
        self.elements: list[tuple[int, ...]] = []
        self.steps = self.work = self.looked_at = 0

    def operand(self, value: Any, aval: Any, mask: int, as_it_is: bool) -> Made:
        self.mask, self.known, self.of_table = mask, dict[Any, Made](), False
        shape = tuple(aval.shape)
        if not all(isinstance(n, int) for n in shape) or math.prod(shape) <= 1:
            raise NotTaken
        self.batch = mask.bit_count()
        whole = _Form(shape, shape[self.batch + 1 + self.inner_rank :])
        if math.prod(whole.element) > WIDEST:
            raise NotTaken
        return self._array(value, whole, whole) if as_it_is else self._value(value, None, whole)

    def table(self, k: int, value: Any, aval: Any, mask: int) -> Made | None:
        """Of an array that f captures and reads by rows: what makes them, a row at a time. None if it stays as it is."""
        known = self.arrays and aval.ndim and all(isinstance(n, int) for n in aval.shape)
        if mask or not known or not is_made(self.ctx, value) or not read_by_rows(self.call.f.jaxpr, k):
            return None
        read, before = next(iter(self.arrays)), self._state()
        elements = read.shape[read.mask.bit_count()]
        self.mask, self.known, self.of_table, self.batch = 0, dict[Any, Made](), True, 0
        try:
            rows = self._value(value, None, _Form(tuple(aval.shape), tuple(aval.shape[1:])))
            again, numbers = (self.work - before[4]) * elements * math.prod(aval.shape[1:]), math.prod(aval.shape)
            if again <= (MADE_AGAIN_IN_LOOP * numbers if in_loop() else FEW_MADE + MADE_AGAIN * numbers):
                return rows
        except NotTaken:
            pass
        self._restore(before)
        return None

    def _state(self) -> Any:
        return dict(self.arrays), dict(self.captured), self.elements[:], self.steps, self.work, dict(self.known)

    def _restore(self, state: Any) -> None:
        self.arrays, self.captured, self.elements, self.steps, self.work, self.known = state

    def _value(self, value: Any, frame: Frame | None, form: _Form) -> Made:
        """Of a value that has this form, reshaped, or is a single number."""
        value, frame = resolved(value, frame)
        key = (value, frame, form)
        if key not in self.known:
            self.looked_at += 1
            if self.looked_at > MOST_LOOKED_AT:
                raise NotTaken
            self.known[key] = _once(self._made(value, frame, form))
        return self.known[key]

    def _made(self, value: Any, frame: Frame | None, form: _Form) -> Made:
        shape = shape_of(value)
        alone = math.prod(shape) == 1
        if frame is None and (alone or isinstance(value.owner, ir.Block)):
            return self._read(value, shape, form)
        op = value.owner.operation
        if op.name == "func.call" and (inside := returned(self.ctx, value, frame)) is not None:
            before = self._state()
            try:
                return self._value(*inside, form)
            except NotTaken:  # it is an operand as it is
                self._restore(before)
        elif reshapes(op):
            return self._value(op.operands[0], frame, form)
        elif op.name == "stablehlo.broadcast_in_dim":
            return self._broadcast(op, shape, frame, form)
        elif op.name == "stablehlo.constant" and alone:
            return self._read(op.clone().results[0], (), form)
        elif op.name == "stablehlo.gather" and (rows := self._gathered(op, shape, frame, form)) is not None:
            return rows
        elif (function := masked(self.ctx, op, frame) or function_of(op)) is not None:
            self._step(QUOTIENT if op.name == "stablehlo.divide" else 1)
            read = [self._value(x, frame, form) for x in op.operands]
            return lambda element: function(*(x(element) for x in read))
        if frame is not None:
            raise NotTaken
        return self._read(value, shape, form)

    def _step(self, work: int = 1) -> None:
        self.steps, self.work = self.steps + 1, self.work + work
        if self.steps > MOST_MADE:
            raise NotTaken

    def _read(self, value: Any, shape: tuple[int, ...], form: _Form) -> Made:
        if math.prod(shape) == 1:
            return self._captured(_Read(value, (), 0), form)
        if math.prod(shape) != math.prod(form.shape):
            raise NotTaken
        return self._array(value, form, form)

    def _array(self, value: Any, form: _Form, wanted: _Form) -> Made:
        if self.of_table:
            row = self._row(_Read(value, form.shape, 0), lambda element: element.at)
            return lambda element: jnp.broadcast_to(row(element), wanted.element)
        k = self.arrays.setdefault(_Read(value, form.shape, self.mask), len(self.arrays))
        if k == len(self.elements):
            self.elements.append(form.element)
        return lambda numbers: jnp.broadcast_to(numbers.arrays[k], wanted.element)

    def _captured(self, read: _Read, form: _Form) -> Made:
        k = self.captured.setdefault(read, len(self.captured))
        return lambda numbers: jnp.broadcast_to(numbers.captured[k], form.element)

    def _broadcast(self, op: Any, shape: tuple[int, ...], frame: Frame | None, form: _Form) -> Made:
        """Of a number; an axis more; of a number for each element, or for each of the batch."""
        source = op.operands[0]
        inner, axes = shape_of(source), list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
        if math.prod(inner) == 1 or (math.prod(inner) == math.prod(shape) and axes == sorted(axes)):
            return self._value(source, frame, form)
        mine = [a for a, n in zip(axes, inner, strict=True) if n != 1]
        same = next((k for k, (a, b) in enumerate(zip(shape, form.shape, strict=False)) if a != b), len(form.shape))
        if mine != sorted(mine) or mine[-1] >= same:
            raise NotTaken
        each = self._each(form)
        if each is not None and [a for a, n in enumerate(each.shape) if n != 1] == mine:
            number = self._value(source, frame, each)
            return lambda element: jnp.broadcast_to(number(element), form.element)
        source, frame = resolved(source, frame)
        if frame is not None or mine[-1] >= self.batch or form.shape[self.batch] <= SHORT_ROW:
            raise NotTaken
        bits = [b for b in range(self.mask.bit_length()) if self.mask >> b & 1]
        return self._captured(_Read(source, tuple(form.shape[a] for a in mine), sum(1 << bits[a] for a in mine)), form)

    def _each(self, form: _Form) -> _Form | None:
        """A number for each element."""
        return None if self.inner_rank and not self.of_table else _Form(form.shape[: self.batch + 1], ())

    def _gathered(self, op: Any, shape: tuple[int, ...], frame: Frame | None, form: _Form) -> Made | None:
        """Rows of a table, one for each element, by its index, which is brought into range."""
        table, frame_of_table = resolved(op.operands[0], frame)
        each = self._each(form)
        if frame_of_table is not None or each is None or self.of_table or shape != form.shape or not gathers_rows(op):
            return None
        read = _Read(table, shape_of(table), 0)
        if read.shape[1:] != form.element or 0 in read.shape:
            return None
        self._step()
        return self._row(read, self._value(op.operands[1], frame, each))

    def _row(self, read: _Read, index: Made) -> Made:
        k = self.captured.setdefault(read, len(self.captured))

        def row(element: _Element) -> Any:
            at = index(element)
            last = min(read.shape[0] - 1, jnp.iinfo(at.dtype).max)
            at = jax.lax.clamp(at.dtype.type(0), at, at.dtype.type(last)).astype(np.int32 if last < 2**31 else np.int64)
            return jax.lax.dynamic_index_in_dim(element.captured[k], at, keepdims=False)

        return row

    def call_of(
        self, made: Sequence[Made], tables: dict[int, Made], operands: Sequence[Any], masks: Sequence[int], first: int
    ) -> Taken:
        """The call whose f begins with what makes its operands. ``first``: the first one of those that f captures."""
        n, avals = self.call.num_arrays, self.ctx.avals_in
        arrays, captured = (
            [jax.core.ShapedArray(r.shape, dtype_of(r.value)) for r in reads] for reads in (self.arrays, self.captured)
        )
        left = [*(k for k in range(first, len(operands)) if k - first not in tables)]
        new = (*(r.mask for r in self.arrays), *masks[n:first], *(r.mask for r in self.captured), *(masks[k] for k in left))
        every = functools.reduce(operator.or_, masks)
        size = lambda a: math.prod(a.shape) * a.dtype.itemsize  # noqa: E731
        few = sum(map(size, arrays)) <= MOST_READ * sum(map(size, avals[:n]))
        written = [
            sum(size(a) for x, a in each if is_made(self.ctx, x))
            for each in (zip((r.value for r in self.arrays), arrays, strict=True), zip(operands[:n], avals[:n], strict=True))
        ]  # by XLA, for the kernel to read
        no_more = written[0] <= written[1]
        if not (arrays and few and no_more and self.steps) or functools.reduce(operator.or_, new) != every:
            raise NotTaken
        read = [[self._as_operand(r) for r in reads] for reads in (self.arrays, self.captured)]
        return Taken(
            [*read[0], *operands[n:first], *read[1], *(operands[k] for k in left)],
            [*arrays, *avals[n:first], *captured, *(avals[k] for k in left)],
            new,
            dataclasses.replace(
                self.call,
                f=self._function_of(made, tables),
                positions=(None,) * len(arrays) + tuple(p for p in self.call.positions if p is not None),
            ),
        )

    def _as_operand(self, read: _Read) -> Any:
        if shape_of(read.value) == read.shape:
            return read.value
        avals = [jax.core.ShapedArray(shape, dtype_of(read.value)) for shape in (shape_of(read.value), read.shape)]
        ctx = self.ctx.replace(avals_in=avals[:1], avals_out=avals[1:])
        return mlir.lower_fun(lambda x: jax.lax.reshape(x, read.shape), multiple_results=False)(ctx, read.value)[0]

    def _function_of(self, made: Sequence[Made], tables: dict[int, Made]) -> Traced:
        call = self.call
        numbers = [jax.ShapeDtypeStruct(() if r.mask else r.shape, dtype_of(r.value)) for r in self.captured]
        left = [k for k in range(call.f.captured) if k not in tables]
        before = structs(call.f.jaxpr.constvars[k] for k in left)
        elements = [jax.ShapeDtypeStruct(shape, dtype_of(r.value)) for shape, r in zip(self.elements, self.arrays, strict=True)]
        places = [jax.ShapeDtypeStruct((), p) for p in call.positions if p is not None]

        def f(numbers: Any, before: Any, elements: Any, places: Any) -> Any:
            element, values, at = _Element(elements, numbers), iter(made), iter(places)
            given = [next(values)(element) if p is None else next(at) for p in call.positions]
            if not tables:
                return call.f(before, *given)
            row_of = {k: functools.partial(_row_at, row, elements, numbers) for k, row in tables.items()}
            return with_rows(call.f.jaxpr, dict(zip(left, before, strict=True)), row_of, given)

        with jax.enable_x64(True):  # the operations have been traced with whatever types there are
            jaxpr = jax.make_jaxpr(f)(numbers, before, elements, places).jaxpr
        n = len(numbers) + len(before)
        if jaxpr.constvars:
            raise NotTaken
        return traced_alike(capturing(jaxpr, n))


def _row_at(row: Made, elements: Any, numbers: Any, index: Any) -> Any:
    return row(_Element(elements, numbers, at=index))


def _once(made: Made) -> Made:
    def once(element: _Element) -> Any:
        if once not in element.made:
            element.made[once] = made(element)
        return element.made[once]

    return once
