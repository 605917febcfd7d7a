"""The form of a call's argument: all of it but its arrays (``kept``).

Of a function that is all that tracing it can see: its code, what it closes over, the globals that it names, and what it reads of
modules and classes among these (``settings.scale``); those of libraries, and what ``jax.jit`` made of a function, are taken for
constant. :func:`filled` is the way back.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import sys
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
_CONSTANT_MODULES = frozenset((*_LIBRARIES, "jaxlib", "ml_dtypes", "builtins", *sys.stdlib_module_names)) - {"__main__"}
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
    ``integers``: there are floats of operators among them, integers. ``constants``: nothing is."""

    with_floats = with_integers = False
    in_operator = False
    of_operators = integers = False
    constants = False


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
    if arrays.constants:
        return form_of(x, arrays)
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
    if isinstance(x, enum.Enum):
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
    closed_over = [c.cell_contents for c in cells]
    held = tuple(_held(x, arrays, inside) for x in (*closed_over, *defaults))
    if f.__kwdefaults__ or "__name__" not in f.__globals__:
        raise Unknown
    names, own = _names(f.__code__), dict(zip(f.__code__.co_freevars, closed_over, strict=True))
    values = ((name, f.__globals__.get(name)) for name in names.of_globals)
    named = tuple((name, _held(x, arrays, inside)) for name, x in values if not _is_one_of(x, inside))
    read = []
    for root, paths in names.of_attributes:
        x = own[root] if root in own else f.__globals__.get(root)
        if (type(x) is types.ModuleType or isinstance(x, type)) and not _never_changes(x):
            read += [_attribute(x, path, inside) for path in paths]
    return ("function", f.__code__, SameObject(f.__globals__), len(cells), held, named, tuple(read))


def _is_one_of(x: Any, functions: tuple[Any, ...]) -> bool:
    return any(x is f for f in functions)


@functools.lru_cache(maxsize=256)
def _never_changes(x: Any) -> bool:
    """Is this module, or class, of a library's?"""
    name = x.__name__ if type(x) is types.ModuleType else x.__module__
    return str(name).split(".")[0] in _CONSTANT_MODULES


def _attribute(x: Any, path: tuple[str, ...], inside: tuple[Any, ...]) -> Form | None:
    """What a function reads at ``x.path`` of a module or a class: it may be something else at the next call."""
    for name in path:
        if type(x) is not types.ModuleType and not isinstance(x, type):
            break
        if _never_changes(x):
            return None
        x = getattr(x, name, None)
    known = Arrays()
    known.constants = True
    return None if _is_one_of(x, inside) else _held(x, known, inside)


@dataclasses.dataclass(frozen=True)
class Names:
    """What code names, that of functions inside it too: globals; variables, with what it reads of them (``a.b.c``)."""

    of_globals: tuple[str, ...]
    of_attributes: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> Names:
    of_globals: set[str] = set()
    of_attributes: dict[str, set[tuple[str, ...]]] = {}
    path: list[str] = []
    for i in (*dis.get_instructions(code), None):
        if i is not None and i.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path.append(i.argval)
            continue
        if len(path) > 1:
            of_attributes.setdefault(path[0], set()).add(tuple(path[1:]))
        path = []
        if i is not None and i.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            of_globals.add(i.argval)
            path = [i.argval]
        elif i is not None and i.opname == "LOAD_DEREF":
            path = [i.argval]
        elif i is not None and i.opname == "IMPORT_NAME" and i.argval.split(".")[0] not in _CONSTANT_MODULES:
            raise Unknown
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names = _names(inner)
            of_globals.update(names.of_globals)
            for root, paths in names.of_attributes:
                of_attributes.setdefault(root, set()).update(paths)
    return Names(tuple(sorted(of_globals)), tuple((root, tuple(sorted(paths))) for root, paths in sorted(of_attributes.items())))


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
