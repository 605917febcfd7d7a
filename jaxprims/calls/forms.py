"""The form of a call's argument: all of it but its arrays (``kept``).

Of a function that is all that tracing it can see: its code, what it closes over, the globals that it names, and what it reads of
modules and classes among these (``settings.scale``); those of libraries, and what ``jax.jit`` made of a function, are taken for
constant. :func:`filled` is the way back.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.bins import Bins
from ..arguments.checks import lies_as_taken
from ..arguments.monoid import Monoid
from ..arguments.positions import positions
from ..operators.traced import SameObject
from ..tracing.names import LIBRARIES, Unknown, is_of_libraries, library, names_of, never_changes

LARGEST_CONSTANT = 1024
"""Bytes of an array that is no operand, as an identity: the call is compiled for its numbers."""

Form = tuple[Any, ...]
_ARRAY: Form = ("array",)
_INTEGER: Form = ("array", int)
FLOATS = frozenset((float, complex, np.float16, np.float32, np.float64, np.complex64, np.complex128))
_PLAIN = frozenset((type(None), bool, str, jnp.ufunc))
_CONSTANT = (type, np.dtype, np.ufunc, types.BuiltinFunctionType, jax.custom_jvp, jax.custom_vjp,
             type(positions), type(jax.jit(abs)), type(jnp.float32))  # fmt: skip

CONCRETE = {np.ndarray}
"""Types of arrays that are no tracers, as they were met."""

TRACERS: set[type] = set()
"""Types of tracers that stood for arrays."""


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


def _is_numbers(x: Any) -> bool:
    """Is it NumPy's, of numbers (those of ml_dtypes are dtypes that users registered)?"""
    return isinstance(x, (np.ndarray, np.generic)) and (x.dtype.kind in "biufc" or x.dtype.isbuiltin == 2) and lies_as_taken(x)


def form_of(x: Any, arrays: Arrays, inside: tuple[Any, ...] = ()) -> Form:
    """Of any other argument: an array is part of its form."""
    kind = type(x)
    if kind in _PLAIN:
        return ("constant", x)
    if kind is types.ModuleType or isinstance(x, type):
        return _whole(x, inside)
    if kind in (int, float, complex):
        return ("number", kind, repr(x))
    if kind in (tuple, list):
        return ("sequence", kind, tuple(form_of(item, arrays, inside) for item in x))
    if kind is Monoid:
        if (getattr(x.op, "__module__", None) or "").split(".")[0] == "jaxprims":  # those of jp.monoids are found by who they are
            return ("constant", x)
        return ("monoid", form_of(x.op, arrays), form_of(x.identity, arrays))
    if kind is Bins:
        return ("bins", *(form_of(item, arrays) for item in (x.num_bins, x.op, x.identity)), operand(x.dest, arrays))
    if kind is functools.partial:
        held = [x.func, *x.args, *x.keywords.values()]
        return ("partial", tuple(x.keywords), tuple(_held(item, arrays, inside) for item in held))
    if kind is types.FunctionType:
        return _function(x, arrays, ())
    if isinstance(x, _CONSTANT):
        of = getattr(x, "__self__", None)
        if isinstance(of, types.ModuleType | None) or (isinstance(of, type) and never_changes(of)):
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
    return form_of(x, arrays, inside)


def _function(f: types.FunctionType, arrays: Arrays, inside: tuple[Any, ...]) -> Form:
    if f in inside:  # it closes over itself
        raise Unknown
    if f.__closure__ is None and library(f) in LIBRARIES:
        return ("constant", f)
    inside = (*inside, f)
    cells, defaults = f.__closure__ or (), f.__defaults__ or ()
    own = dict(zip(f.__code__.co_freevars, [c.cell_contents for c in cells], strict=True))
    if f.__kwdefaults__ or "__name__" not in f.__globals__ or vars(f).keys() - {"__wrapped__"}:
        raise Unknown
    names = names_of(f.__code__)

    def of(name: str, x: Any) -> Form:
        read = name not in names.whole and (type(x) is types.ModuleType or isinstance(x, type))  # of it, and no more
        return ("constant", x) if read else _held(x, arrays, inside)

    held = (*(of(name, x) for name, x in own.items()), *(_held(x, arrays, inside) for x in defaults))
    values = ((name, f.__globals__.get(name)) for name in names.of_globals)
    named = tuple((name, of(name, x)) for name, x in values if not _is_one_of(x, inside))
    attributes = []
    for root, paths in names.of_attributes:
        x = own[root] if root in own else f.__globals__.get(root)
        if (type(x) is types.ModuleType or isinstance(x, type)) and not never_changes(x):
            attributes += [_attribute(x, path, inside) for path in paths]
    return ("function", f.__code__, SameObject(f.__globals__), len(cells), held, named, tuple(attributes))


def _whole(x: Any, inside: tuple[Any, ...]) -> Form:
    """Of a class, or a module, that code may read anything of: all that the class holds, and its functions compute with."""
    kind: Any = type(x)
    if never_changes(x) or _is_one_of(x, inside):
        return ("constant", x)
    if kind is types.ModuleType or not never_changes(kind):
        raise Unknown
    if issubclass(x, enum.Enum):
        return ("constant", x)
    inside, known = (*inside, x), Arrays()
    known.constants = True
    held = [(k, v) for c in x.__mro__ if not never_changes(c) for k, v in vars(c).items() if k not in _OF_EVERY_CLASS]
    return ("class", x, tuple((k, _member(v, known, inside)) for k, v in held))


_OF_EVERY_CLASS = frozenset(
    "__module__ __qualname__ __doc__ __dict__ __weakref__ __annotations__ __match_args__ __slots__ __orig_bases__ __parameters__"
    " __firstlineno__ __static_attributes__ __annotate_func__ __annotations_cache__ __dataclass_fields__ __dataclass_params__"
    " __abstractmethods__ _abc_impl _field_defaults".split()
)
_DESCRIPTORS = {types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType,
                type(vars(NamedTuple("Pair", [("a", int)]))["a"])}  # fmt: skip


def _member(x: Any, known: Arrays, inside: tuple[Any, ...]) -> Form:
    kind = type(x)
    if kind is staticmethod or kind is classmethod:
        x = x.__func__
        kind = type(x)
    if kind is property:
        return tuple(_member(f, known, inside) for f in (x.fget, x.fset, x.fdel))
    if kind in _DESCRIPTORS or (kind is types.FunctionType and is_of_libraries(x)) or _is_one_of(x, inside):
        return ("constant", x)
    return _held(x, known, inside)


def _is_one_of(x: Any, functions: tuple[Any, ...]) -> bool:
    return any(x is f for f in functions)


def _attribute(x: Any, path: tuple[str, ...], inside: tuple[Any, ...]) -> Form | None:
    """What a function reads at ``x.path`` of a module or a class: it may be something else at the next call."""
    for name in path:
        if type(x) is not types.ModuleType and not isinstance(x, type):
            break
        if never_changes(x):
            return None
        x = getattr(x, name, None)
    known = Arrays()
    known.constants = True
    return None if _is_one_of(x, inside) else _held(x, known, inside)


def filled(form: Form, arrays: Iterator[Any]) -> Any:
    """What has this form and the next of these arrays."""
    kind: str = form[0]
    rest: Any = form[1:]
    if kind == "array":
        return next(arrays)
    if kind in ("constant", "class"):
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
