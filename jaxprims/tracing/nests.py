"""Jaxpr -> ArrayProgram, for elements of too many scalars to be scalars one by one.

A value is not computed where it stands: it is a Program on views of arrays, which grows by elementwise operations and is moved by
slices, transposes and broadcasts. It becomes an array where it is reduced or multiplied, where it is a result, and where it would
be computed twice and that is not cheap.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import Jaxpr

from ..ir.arrays import INDEX, MOST_BYTES, MOST_TURNS, Access, ArrayProgram, Nest
from ..ir.program import Builder, Program, from_bits, itemsize
from .elementwise import NAMES, REAL, check_axes, elementwise
from .emit import Unsupported
from .jaxprs import CALLS, IDENTITIES, REDUCED_BY, called, interpret, variables
from .lowering import Lowering
from .parameters import check_parameters
from .values import Array, row_major, scalar_dtypes

_CHEAP = frozenset("arg const convert select add sub mul max min neg abs and or xor not eq ne lt le gt ge bitcast".split())
_FEW = 8
"""Cheap instructions that are rather repeated than kept."""


@dataclasses.dataclass(frozen=True)
class Value:
    """``body`` of one scalar of each view, for each position of ``shape``."""

    shape: tuple[int, ...]
    reads: tuple[Access, ...]
    body: Program

    @property
    def dtype(self) -> str:
        return self.body.result_dtypes[0]

    @property
    def plain(self) -> bool:
        """A view, nothing else?"""
        return len(self.reads) == 1 and self.reads[0].of != INDEX and self.body.body[self.body.results[0]].op == "arg"

    @property
    def dear(self) -> bool:
        work = [i for i in self.body.body if i.op not in ("arg", "const")]
        return len(work) > _FEW or any(i.op not in _CHEAP for i in work)

    def viewed(self, shape: Sequence[int], move: Callable[[Access], tuple[int, Sequence[int]]]) -> Value:
        """With other offsets and strides."""
        moved = ((r.of, *move(r)) for r in self.reads)
        return Value(tuple(shape), tuple(Access(of, offset, tuple(strides)) for of, offset, strides in moved), self.body)

    def permuted(self, order: Sequence[int]) -> Value:
        return self.viewed([self.shape[k] for k in order], lambda r: (r.offset, [r.strides[k] for k in order]))

    def broadcast(self, shape: Sequence[int], axes: Sequence[int]) -> Value:
        """``axes``: where the axes, some of size 1, are in ``shape``."""
        place = {a: k for k, a in enumerate(axes) if self.shape[k] != 1}
        spread = lambda r: [r.strides[place[a]] if a in place else 0 for a in range(len(shape))]  # noqa: E731
        return self.viewed(shape, lambda r: (r.offset, spread(r)))

    def sliced(self, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> Value:
        def move(r: Access) -> tuple[int, Sequence[int]]:
            first = sum(s * k for s, k in zip(r.strides, starts, strict=True))
            return r.offset + first, [s * k for s, k in zip(r.strides, steps, strict=True)]

        return self.viewed(shape, move)


def to_arrays(jaxpr: Jaxpr) -> ArrayProgram:
    """The program of an open jaxpr whose constvars are its captured arrays. Raises :class:`Unsupported`."""
    return _Nests(jaxpr).program


class _Nests:
    def __init__(self, jaxpr: Jaxpr):
        self.sizes: list[tuple[str, int]] = []
        self.nests: list[Nest] = []
        args = [self._given(v.aval) for v in jaxpr.invars]
        captured = [self._given(v.aval) for v in jaxpr.constvars]
        self.first, self.captured = len(self.sizes), len(args)
        results: list[int] = []
        for value in self.evaluate(jaxpr, captured, args):
            results.append(self._result(value, results))
        self.program = self._finished(results)

    # --- arrays and nests -----------------------------------------------------------------------------------------------------

    def _given(self, aval: Any) -> Value:
        if 0 in aval.shape or not all(isinstance(n, int) for n in aval.shape):
            raise Unsupported("parameter", f"an array of shape {tuple(aval.shape)}")
        return self._whole(self._array(_dtype(aval, "parameter"), tuple(aval.shape)), tuple(aval.shape))

    def _array(self, dtype: str, shape: tuple[int, ...]) -> int:
        self.sizes.append((dtype, math.prod(shape)))
        return len(self.sizes) - 1

    def _whole(self, of: int, shape: tuple[int, ...]) -> Value:
        return Value(shape, (Access(of, 0, row_major(shape)),), _passed(self.sizes[of][0]))

    def _nest(self, value: Value, inner: int, combine: str, write: Access) -> None:
        """Loops of one turn are left out, and neighbours that go on alike are one."""
        shape = value.shape
        if math.prod(shape) > MOST_TURNS:
            raise Unsupported("function", f"it goes through an array of shape {shape}")
        outer = len(shape) - inner
        accesses = [dataclasses.replace(write, strides=(*write.strides, *(0,) * inner)), *value.reads]
        loops: list[tuple[int, bool, tuple[int, ...]]] = []  # extent, reduced?, each access's stride
        for k, extent in enumerate(shape):
            strides = tuple(a.strides[k] for a in accesses)
            if extent == 1:
                continue
            if loops and loops[-1][1] == (k >= outer) and loops[-1][2] == tuple(s * extent for s in strides):
                loops[-1] = (loops[-1][0] * extent, k >= outer, strides)
            else:
                loops.append((extent, k >= outer, strides))
        count = sum(reduced for _, reduced, _ in loops)
        written, *reads = (
            dataclasses.replace(a, strides=tuple(s[j] for _, reduced, s in loops if j or not reduced))
            for j, a in enumerate(accesses)
        )
        self.nests.append(Nest(tuple(e for e, _, _ in loops), count, combine, written, tuple(reads), value.body))

    def kept(self, value: Value) -> Value:
        """As a view of an array."""
        if value.plain:
            return value
        return self._whole(self._written(value), value.shape)

    def _written(self, value: Value, inner: int = 0, combine: str = "none", dtype: str | None = None) -> int:
        """A new array that holds it, the last ``inner`` axes combined."""
        shape = value.shape[: len(value.shape) - inner]
        of = self._array(dtype or value.dtype, shape)
        self._nest(value, inner, combine, Access(of, 0, row_major(shape)))
        return of

    def _result(self, value: Value, taken: Sequence[int]) -> int:
        if value.plain and value.reads[0].of >= self.first and value.reads[0].of not in taken:
            of = value.reads[0].of
            if value.reads[0] == Access(of, 0, row_major(value.shape)) and self.sizes[of][1] == math.prod(value.shape):
                return of
        return self._written(value)

    def _finished(self, results: list[int]) -> ArrayProgram:
        """Without what no result needs."""
        wanted, nests = set(results), []
        for n in reversed(self.nests):
            if n.write.of in wanted:
                nests.append(n)
                wanted.update(r.of for r in n.reads)
        made = [k for k in range(self.first, len(self.sizes)) if k in wanted]
        if sum(itemsize(self.sizes[k][0]) * self.sizes[k][1] for k in made) > MOST_BYTES:
            raise Unsupported("function", "its arrays together are too large for a stack")
        number = {k: k for k in range(INDEX, self.first)} | {k: self.first + j for j, k in enumerate(made)}

        def renamed(a: Access) -> Access:
            return dataclasses.replace(a, of=number[a.of])

        final = [dataclasses.replace(n, write=renamed(n.write), reads=tuple(map(renamed, n.reads))) for n in reversed(nests)]
        params, uniforms = self.sizes[: self.captured], self.sizes[self.captured : self.first]
        arrays = tuple(self.sizes[k] for k in made)
        return ArrayProgram(tuple(params), tuple(uniforms), arrays, tuple(final), tuple(number[r] for r in results))

    # --- equations ------------------------------------------------------------------------------------------------------------

    def evaluate(self, jaxpr: Jaxpr, captured: Sequence[Value], args: Sequence[Value]) -> list[Value]:
        uses = collections.Counter(variables(itertools.chain(*(eqn.invars for eqn in jaxpr.eqns), jaxpr.outvars)))

        def bound(to: Sequence[Any], values: Sequence[Value]) -> list[Value]:
            return [self.kept(x) if x.dear and uses[v] > 1 else x for v, x in zip(to, values, strict=True)]

        def equation(eqn: Any, operands: list[Value]) -> list[Value]:
            return bound(eqn.outvars, self._equation(eqn, operands))

        given = bound(jaxpr.constvars, captured), bound(jaxpr.invars, args)
        return interpret(jaxpr, *given, equation, lambda atom: _constant(atom.val, atom.aval))

    def _equation(self, eqn: Any, operands: list[Value]) -> Sequence[Value]:
        name = eqn.primitive.name
        inner = called(eqn) if name in CALLS else None
        if inner is not None:
            body, consts = inner
            if any(np.ndim(c) for c in consts):
                raise Unsupported(name, "an array that its function holds")
            return self.evaluate(body, [_constant(c, v.aval) for c, v in zip(consts, body.constvars, strict=True)], operands)
        if eqn.effects:
            raise Unsupported(name, f"it has effects: {', '.join(sorted(map(str, eqn.effects)))}")
        if name in IDENTITIES:
            return operands
        check_parameters(eqn)
        for v in (*eqn.invars, *eqn.outvars):
            _dtype(v.aval, name)
            if 0 in v.aval.shape:
                raise Unsupported(name, "of an array without elements")
        if name in NAMES:
            return [self._elementwise(eqn, operands)]
        if name in REDUCED_BY:
            return [self._reduction(REDUCED_BY[name], operands[0], eqn.params["axes"])]
        rule = getattr(self, f"_do_{name}", None)
        if rule is None:
            raise Unsupported(name, "on an element of so many scalars")
        result = rule(eqn, *operands)
        return result if isinstance(result, list) else [result]

    def _elementwise(self, eqn: Any, operands: list[Value]) -> Value:
        check_axes(eqn)
        shape = tuple(eqn.outvars[0].aval.shape)
        spread = [v if v.shape == shape else v.broadcast(shape, range(len(v.shape))) for v in operands]
        reads = {r: t for v in spread for r, t in zip(v.reads, v.body.params, strict=True)}
        number = {r: k for k, r in enumerate(reads)}
        e = Lowering(tuple(reads.values()), lanes=shape)
        scalars = []
        for v, atom in zip(spread, eqn.invars, strict=True):
            (x,) = e.builder.inline(v.body, [e.builder.arg(number[r]) for r in v.reads])
            scalars.append(Array(np.dtype(atom.aval.dtype), (np.array(x, np.int64),)))
        return Value(shape, tuple(reads), e.builder.finish([elementwise(e, eqn, *scalars).scalar()]))

    def _reduction(self, how: str, x: Value, axes: Sequence[int]) -> Value:
        outer = [k for k in range(len(x.shape)) if k not in axes]
        of = self._written(x.permuted([*outer, *axes]), len(axes), how)
        return self._whole(of, tuple(x.shape[k] for k in outer))

    def _do_dot_general(self, eqn: Any, x: Value, y: Value) -> Value:
        """Sums of products; f16 and bf16 accumulate in f32, as XLA's do."""
        (x_sum, y_sum), (x_batch, y_batch) = eqn.params["dimension_numbers"]
        x_free = [k for k in range(len(x.shape)) if k not in (*x_sum, *x_batch)]
        y_free = [k for k in range(len(y.shape)) if k not in (*y_sum, *y_batch)]
        x = self.kept(x).permuted([*x_batch, *x_free, *x_sum])
        y = self.kept(y).permuted([*y_batch, *y_sum, *y_free])  # a vector runs along the free axes of y
        if x_free and y_free and y.reads[0].strides[-1] != 1 and y.shape[-1] > 1:
            y = self._whole(self._written(y), y.shape)
        b, f, s = len(x_batch), len(x_free), len(x_sum)
        g = len(y_free)
        batch, free, summed, others = x.shape[:b], x.shape[b : b + f], x.shape[b + f :], y.shape[b + s :]
        full = (*batch, *free, *others, *summed)
        x = x.broadcast(full, [*range(b + f), *range(b + f + g, b + f + g + s)])
        y = y.broadcast(full, [*range(b), *range(b + f + g, b + f + g + s), *range(b + f, b + f + g)])
        out = _dtype(eqn.outvars[0].aval, "dot_general")
        wide = "f32" if out in ("f16", "bf16") else out
        e = Lowering((x.dtype, y.dtype))
        product = REAL["mul"](e, {}, wide, *(e.convert(e.builder.arg(k), wide) for k in range(2)))
        products = Value(full, (*x.reads, *y.reads), e.builder.finish([product]))
        return self._whole(self._written(products, s, "or" if out == "b1" else "add", out), full[: b + f + g])

    def _do_broadcast_in_dim(self, eqn: Any, x: Value, *_: Value) -> Value:
        shape = eqn.outvars[0].aval.shape
        if x.dear and math.prod(shape) > math.prod(x.shape):
            x = self.kept(x)
        return x.broadcast(shape, eqn.params["broadcast_dimensions"])

    def _do_reshape(self, eqn: Any, x: Value, *_: Value) -> Value:
        shape = tuple(eqn.outvars[0].aval.shape)
        strides = {r: reshaped(x.shape, r.strides, shape) for r in x.reads}
        if any(s is None for s in strides.values()):
            return self._whole(self._written(x), shape)
        return x.viewed(shape, lambda r: (r.offset, strides[r] or ()))

    _do_squeeze = _do_expand_dims = _do_reshape

    def _do_transpose(self, eqn: Any, x: Value) -> Value:
        return x.permuted(eqn.params["permutation"])

    def _do_rev(self, eqn: Any, x: Value) -> Value:
        turned = [k in eqn.params["dimensions"] for k in range(len(x.shape))]
        return x.sliced([(n - 1) * t for n, t in zip(x.shape, turned, strict=True)], [1 - 2 * t for t in turned], x.shape)

    def _do_slice(self, eqn: Any, x: Value) -> Value:
        steps = eqn.params["strides"] or (1,) * len(x.shape)
        return x.sliced(eqn.params["start_indices"], steps, eqn.outvars[0].aval.shape)

    def _do_dynamic_slice(self, eqn: Any, x: Value, *starts: Value) -> Value:
        sizes, at = eqn.params["slice_sizes"], []
        for start, n, size in zip(starts, x.shape, sizes, strict=True):
            first = start.body.body[start.body.results[0]]
            if first.op != "const":
                raise Unsupported("dynamic_slice", "at a position that is computed, of an element of so many scalars")
            at.append(min(max(int(from_bits(first.attr, first.dtype)), 0), n - size))
        return x.sliced(at, (1,) * len(at), sizes)

    def _do_split(self, eqn: Any, x: Value) -> list[Value]:
        axis, out, at = eqn.params["axis"], [], 0
        for size in eqn.params["sizes"]:
            starts = [at if k == axis else 0 for k in range(len(x.shape))]
            out.append(x.sliced(starts, (1,) * len(starts), [size if k == axis else n for k, n in enumerate(x.shape)]))
            at += size
        return out

    def _do_iota(self, eqn: Any) -> Value:
        shape, axis = tuple(eqn.outvars[0].aval.shape), eqn.params["dimension"]
        e = Lowering(("s32",))
        body = e.builder.finish([e.convert(e.builder.arg(0), _dtype(eqn.outvars[0].aval, "iota"))])
        return Value(shape, (Access(INDEX, 0, tuple(int(k == axis) for k in range(len(shape)))),), body)

    def _do_concatenate(self, eqn: Any, *xs: Value) -> Value:
        return self._side_by_side(xs, eqn.params["dimension"], tuple(eqn.outvars[0].aval.shape))

    def _do_stack(self, eqn: Any, *xs: Value) -> Value:
        axis = eqn.params["axis"]
        rows = [x.broadcast((*x.shape[:axis], 1, *x.shape[axis:]), [k + (k >= axis) for k in range(len(x.shape))]) for x in xs]
        return self._side_by_side(rows, axis, tuple(eqn.outvars[0].aval.shape))

    def _side_by_side(self, xs: Sequence[Value], axis: int, shape: tuple[int, ...]) -> Value:
        of, at, strides = self._array(xs[0].dtype, shape), 0, row_major(shape)
        for x in xs:
            self._nest(x, 0, "none", Access(of, at * strides[axis], strides))
            at += x.shape[axis]
        return self._whole(of, shape)

    def _do_pad(self, eqn: Any, x: Value, filling: Value) -> Value:
        shape, strides = tuple(eqn.outvars[0].aval.shape), row_major(tuple(eqn.outvars[0].aval.shape))
        config = eqn.params["padding_config"]
        if any(min(low, high) < 0 for low, high, _ in config):
            raise Unsupported("pad", "by less than nothing, of an element of so many scalars")
        of = self._written(filling.broadcast(shape, ()))
        first = sum(low * s for (low, _, _), s in zip(config, strides, strict=True))
        steps = tuple((inside + 1) * s for (_, _, inside), s in zip(config, strides, strict=True))
        self._nest(x, 0, "none", Access(of, first, steps))
        return self._whole(of, shape)


def reshaped(shape: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """The strides of the same scalars in another shape; None where there are none."""
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    out: list[int] = []
    rest = list(new)
    while rest:
        mine = [rest.pop(0)]
        if mine[0] == 1:
            out.append(0)
            continue
        (size, stride), *old = old
        while math.prod(mine) != size:
            if math.prod(mine) < size:
                mine.append(rest.pop(0))
                continue
            (n, s), *old = old
            if stride != s * n:
                return None
            size, stride = size * n, s
        out += [stride * step for step in row_major(tuple(mine))]
    return out


def _dtype(aval: Any, name: str) -> str:
    parts = scalar_dtypes(aval.dtype, name)
    if len(parts) > 1:
        raise Unsupported(name, "complex numbers in an element of so many scalars")
    return parts[0]


def _passed(dtype: str) -> Program:
    b = Builder((dtype,))
    return b.finish([b.arg(0)])


def _constant(value: Any, aval: Any) -> Value:
    b = Builder(())
    number = b.finish([b.const(np.asarray(value).astype(aval.dtype).reshape(()), _dtype(aval, "literal"))])
    return Value((), (), number)
