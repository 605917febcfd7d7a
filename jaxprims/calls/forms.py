"""The form of a call's argument: all of it but its arrays (``kept``).

Of a function that is all that tracing it can see: its code, what it closes over, the globals that it names (modules, and what
``jax.jit`` made of a function, are taken for constant). :func:`filled` is the way back.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.bins import Bins
from ..arguments.monoid import Monoid
from ..arguments.positions import positions
from ..operators.traced import SameObject

LARGEST_CONSTANT = 1024
"""Bytes of an array that is no operand, as an identity: the call is compiled for its numbers."""

Form = tuple[Any, ...]
_ARRAY: Form = ("array",)
_INTEGER: Form = ("array", int)
FLOATS = frozenset((float, complex, np.float16, np.float32, np.float64, np.complex64, np.complex128))
_LIBRARIES = ("jax", "jaxprims", "numpy")
_PLAIN = frozenset((type(None), bool, str, type, types.ModuleType, jnp.ufunc))
_CONSTANT = (type, np.dtype, np.ufunc, types.BuiltinFunctionType, jax.custom_jvp, jax.custom_vjp,
             type(positions), type(jax.jit(abs)), type(jnp.float32))  # fmt: skip

CONCRETE = {np.ndarray}
"""Types of arrays that are no tracers, as they were met."""

TRACERS: set[type] = set()
"""Types of tracers that stood for arrays."""


class Unknown(Exception):
    """The form of an argument is not known."""


class Arrays(list[Any]):
    """A call's operands. ``with_floats``, ``with_integers``: what functions close over is among them; ``of_operators``,
    ``integers``: there are floats of operators among them, integers."""

    with_floats = with_integers = False
    in_operator = False
    of_operators = integers = False


def at_once() -> bool:
    """Is what is called now computed now? Not where a function is traced for ``jit``: any number is a tracer there. Tracers of
    ``grad`` and ``vmap`` outside of it stand for arrays."""
    with jax.transfer_guard("allow"):
        return not isinstance(jnp.asarray(0.0), jax.core.Tracer)


def operand(x: Any, arrays: Arrays) -> Form:
    """Of a pytree of arrays."""
    if isinstance(x, jax.Array):  # most are, and the tree of one need not be asked for
        return _array(x, arrays)
    leaves, tree = jax.tree.flatten(x, is_leaf=lambda x: x is None)
    return ("tree", tree, tuple(_leaf(leaf, arrays) for leaf in leaves))


def _leaf(x: Any, arrays: Arrays) -> Form:
    if x is None or x is positions:
        return ("constant", x)
    if type(x) is float:
        arrays.append(x)
        return _ARRAY
    if type(x) is int and x in (-1, 0, 1):  # no others: each would be compiled for
        return ("number", int, repr(x))
    return _array(x, arrays)


def _array(x: Any, arrays: Arrays) -> Form:
    if isinstance(x, jax.core.Tracer):
        if not at_once():
            raise Unknown
        TRACERS.add(type(x))
    elif isinstance(x, jax.Array):
        CONCRETE.add(type(x))
    elif not _is_numbers(x):
        raise Unknown
    arrays.append(x)
    return _ARRAY


def _library(f: Any) -> str:
    return (getattr(f, "__module__", None) or "").split(".")[0]


def _is_numbers(x: Any) -> bool:
    """Is it NumPy's, of numbers (those of ml_dtypes are dtypes that users registered)?"""
    return isinstance(x, (np.ndarray, np.generic)) and (x.dtype.kind in "biufc" or x.dtype.isbuiltin == 2)


def form_of(x: Any, arrays: Arrays) -> Form:
    """Of any other argument: an array is part of its form."""
    kind = type(x)
    if kind in _PLAIN:
        return ("constant", x)
    if kind in (int, float, complex):
        return ("number", kind, repr(x))
    if kind in (tuple, list):
        return ("sequence", kind, tuple(form_of(item, arrays) for item in x))
    if kind is Monoid:
        if _library(x.op) == "jaxprims":  # those of jp.monoids are found by who they are
            return ("constant", x)
        return ("monoid", form_of(x.op, arrays), form_of(x.identity, arrays))
    if kind is Bins:
        return ("bins", *(form_of(item, arrays) for item in (x.num_bins, x.op, x.identity)), operand(x.dest, arrays))
    if kind is functools.partial:
        held = [x.func, *x.args, *x.keywords.values()]
        return ("partial", tuple(x.keywords), tuple(_held(item, arrays) for item in held))
    if kind is types.FunctionType:
        return _function(x, arrays, ())
    if isinstance(x, _CONSTANT) and isinstance(getattr(x, "__self__", None), types.ModuleType | None):
        return ("constant", x)
    concrete = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    if (concrete or _is_numbers(x)) and x.nbytes <= LARGEST_CONSTANT:
        known = np.asarray(x)
        return ("numbers", known.dtype, known.shape, known.tobytes())
    raise Unknown


def _held(x: Any, arrays: Arrays, inside: tuple[Any, ...] = ()) -> Form:
    """Of what a function closes over."""
    if type(x) is types.FunctionType:
        return _function(x, arrays, inside)
    if type(x) in FLOATS and arrays.with_floats:
        arrays.append(x)
        arrays.of_operators |= arrays.in_operator
        return _ARRAY
    if type(x) is int and arrays.with_integers:
        arrays.append(x)
        arrays.integers = True
        return _INTEGER
    if type(x) not in _PLAIN and isinstance(x, (jax.Array, np.ndarray)):
        return _array(x, arrays)
    return form_of(x, arrays)


def _function(f: types.FunctionType, arrays: Arrays, inside: tuple[Any, ...]) -> Form:
    if f in inside:  # it closes over itself
        raise Unknown
    if f.__closure__ is None and _library(f) in _LIBRARIES:
        return ("constant", f)
    inside = (*inside, f)
    cells, defaults = f.__closure__ or (), f.__defaults__ or ()
    held = tuple(_held(x, arrays, inside) for x in (*(c.cell_contents for c in cells), *defaults))
    if f.__kwdefaults__ or "__name__" not in f.__globals__:
        raise Unknown
    return ("function", f.__code__, SameObject(f.__globals__), len(cells), held, _globals(f, arrays, inside))


def _globals(f: types.FunctionType, arrays: Arrays, inside: tuple[Any, ...]) -> Form:
    """The globals that a function names, but for itself."""
    values = ((name, f.__globals__.get(name)) for name in _names(f.__code__))
    return tuple((name, _held(x, arrays, inside)) for name, x in values if not (type(x) is types.FunctionType and x in inside))


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The globals that code names, and the functions inside it."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names.update(_names(inner))
    return tuple(sorted(names))


def filled(form: Form, arrays: Iterator[Any]) -> Any:
    """What has this form and the next of these arrays."""
    kind: str = form[0]
    rest: Any = form[1:]
    if kind == "array":
        return next(arrays)
    if kind == "constant":
        return rest[0]
    if kind == "number":
        return rest[0](rest[1])
    if kind == "numbers":
        dtype, shape, data = rest
        return np.frombuffer(data, dtype).reshape(shape)
    if kind == "tree":
        return jax.tree.unflatten(rest[0], [filled(f, arrays) for f in rest[1]])
    if kind == "sequence":
        return rest[0](filled(f, arrays) for f in rest[1])
    if kind == "monoid":
        return Monoid(*(filled(f, arrays) for f in rest))
    if kind == "bins":
        return Bins(*(filled(f, arrays) for f in rest))
    if kind == "partial":
        names, held = rest[0], [filled(f, arrays) for f in rest[1]]
        first = len(held) - len(names)
        function, *args = held[:first]
        return functools.partial(function, *args, **dict(zip(names, held[first:], strict=True)))
    code, namespace, cells, held, named = rest[0], rest[1].thing, rest[2], [filled(f, arrays) for f in rest[3]], rest[4]
    values = {name: filled(f, arrays) for name, f in named}
    changed = {name: values[name] for name, f in named if _has_arrays(f)}
    closure = tuple(types.CellType(x) for x in held[:cells])
    return types.FunctionType(code, namespace | changed if changed else namespace, code.co_name, tuple(held[cells:]), closure)


def _has_arrays(form: Any) -> bool:
    return form in (_ARRAY, _INTEGER) or (type(form) is tuple and any(_has_arrays(f) for f in form))
