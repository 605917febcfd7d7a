"""Calls on concrete arrays: compiled once, and kept for the next call that differs in its arrays' numbers only.

Without that, each eager call would trace the user's functions again, to find the kernel that it compiled before. A call is found
by its *form*: its arguments without their arrays. Of a function that is all that tracing it can see: its code, what it closes
over, the globals that it names (modules, and what ``jax.jit`` made of a function, are taken for constant). Arrays among that are
operands like the arguments' own; so are the floats of functions of an element, and those of operators from the second number on
(with a known one an operator may be recognised, or its identity): unless a function computes with them alone, which Python does
in double precision, or asks what they are. So are integers from the second number on, where a function only compares, adds and
multiplies them: a known one may be an exponent, an index, a number of steps.
A call with a tracer, or with anything whose form is not known, is traced anew.

Most calls have nothing but arrays, small constants and functions of libraries for arguments. Those are found by these, without a
look at their form (:func:`_quick_key`): 2 microseconds, which is what a call of a function of ``jax.numpy`` takes.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import operator
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, jaxprs_in_params

from ..arguments.bins import Bins
from ..arguments.monoid import Monoid
from ..arguments.positions import positions
from ..operators.operator import SameObject
from ..targets.plans import forced_plans
from ..tracing.jaxprs import CALLS, called

MOST = 512
"""Calls that are kept, those used last, of those that were made several times."""

MOST_ONCE = 32
"""Those that were made once. JAX keeps the module that it lowered with each, more than a megabyte, and a program that makes
another operator for each call never comes back to one."""

LARGEST_CONSTANT = 1024
"""Bytes of an array that is no operand, as an identity: the call is compiled for its numbers."""

OF_ELEMENTS = ("f", "map")
"""Parameters that are functions of an element."""

Form = tuple[Any, ...]
F = TypeVar("F", bound=Callable[..., Any])
_ARRAY: Form = ("array",)
_INTEGER: Form = ("array", int)
_FLOATS = frozenset((float, complex, np.float16, np.float32, np.float64, np.complex64, np.complex128))
_HANDED_ON = frozenset(("convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "copy", "stop_gradient", "pvary"))
_NUMBERS = _FLOATS | {int}
_TERMS = frozenset("add sub mul div max min eq ne lt le gt ge select_n broadcast_in_dim convert_element_type".split())
"""What may be done with an integer that is not known."""
_CONTROL = frozenset(("cond", "while", "scan"))
_LIBRARIES = ("jax", "jaxprims", "numpy")
_PLAIN = frozenset((type(None), bool, str, type, types.ModuleType, jnp.ufunc))
_CONSTANT = (type, np.dtype, np.ufunc, types.BuiltinFunctionType, jax.custom_jvp, jax.custom_vjp,
             type(positions), type(jax.jit(abs)), type(jnp.float32))  # fmt: skip


class Unknown(Exception):
    """The form of an argument is not known."""


class Arrays(list[Any]):
    """A call's operands. ``with_floats``, ``with_integers``: what functions close over is among them; ``of_operators``,
    ``integers``: there are floats of operators among them, integers."""

    with_floats = with_integers = False
    in_operator = False
    of_operators = integers = False


def kept(*operands: str, unless: Callable[[dict[str, Any]], bool] = lambda arguments: False) -> Callable[[F], F]:
    """Decorates a public function. ``operands``: the parameters that hold arrays to compute with; any other array has to be known
    when the call is traced, as an identity. ``unless``: the function must see its arguments' numbers."""

    def decorate(function: F) -> F:
        every = inspect.signature(function).parameters.values()
        names = [p.name for p in every if p.kind is p.POSITIONAL_OR_KEYWORD]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            arrays: list[Any] = []
            key = _quick_key(function, args, kwargs, arrays)
            known = _quick.get(key)
            if known is not None:
                try:
                    return known[0](*arrays)
                except Exception:
                    return function(*args, **kwargs)
            given = dict(zip(names, args, strict=False)) | kwargs
            if len(given) != len(args) + len(kwargs) or unless(given):
                return function(*args, **kwargs)
            try:
                return _called(function, given, operands, key, arrays)
            except Exception:  # no form; or numbers of an array that a function wants to see; or the caller's own error
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


_quick: dict[tuple[Any, ...] | None, tuple[Callable[..., Any], list[Any]]] = {}
"""Compiled calls by their quick keys, with what the keys have only the addresses of."""

_concrete = {np.ndarray}
"""Types of arrays that are no tracers, as they were met."""

_BY_VALUE = frozenset((type(None), bool, int, str))
_BY_ADDRESS = frozenset(
    (type, type(jnp.float32), type(positions), jnp.ufunc, Monoid, type(jax.jit(abs)), jax.custom_jvp, types.BuiltinFunctionType)
)


def _quick_key(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], arrays: list[Any]
) -> tuple[Any, ...] | None:
    """Equal for calls that differ in their arrays only, which are added to ``arrays``; None if only their forms can tell."""
    key: list[Any] = [function, forced_plans()]
    for x in (*args, *kwargs.values()) if kwargs else args:
        if not _known_quickly(x, key, arrays):
            return None
    key.extend(kwargs)
    return tuple(key)


def _known_quickly(x: Any, key: list[Any], arrays: list[Any]) -> bool:
    kind = type(x)
    key.append(kind)
    if kind in _concrete or kind is float:  # an operand, if it is found to be one
        arrays.append(x)
    elif kind in _BY_VALUE:
        key.append(x)
    elif kind in _BY_ADDRESS:
        key.append(id(x))
    elif kind is tuple:
        key.append(len(x))
        return all(type(item) is not tuple and _known_quickly(item, key, arrays) for item in x)
    else:
        return False
    return True


def forget() -> None:
    """The next calls are traced anew."""
    _quick.clear()
    _entry.cache_clear()
    with _lock:
        _once.clear()
        _again.clear()


def _called(
    function: Callable[..., Any],
    given: dict[str, Any],
    operands: Sequence[str],
    key: tuple[Any, ...] | None,
    quick: Sequence[Any],
) -> Any:
    """``quick``: the operands, if the key is right about them."""
    plans = forced_plans()
    failed: list[Entry] = []
    forms = [_arguments(given, operands, None, integers=True)]
    levels: Sequence[Sequence[str] | None] = (None, OF_ELEMENTS, ())
    for level in range(len(levels) + 1):
        if level > 0 and (level > 1 or forms[0][1].integers):
            forms.append(_arguments(given, operands, levels[level - 1]))
        elif level > 0:
            continue  # it was that
        form, arrays = forms[-1]
        entry = _entry(function, form, plans)
        if entry.wants_numbers or entry in failed:
            continue
        if arrays.of_operators or arrays.integers:
            known = [_entry(function, _arguments(given, operands, some)[0], plans) for some in levels]
            if not entry.calls or any(other is not entry and other.compiled is not None for other in known):
                entry.calls = max(entry.calls, 1)
                continue
        try:
            compiled = _compiled(entry, arrays)
            out = compiled(*arrays)
        except Exception:
            if not any(type(x) in _NUMBERS for x in arrays):
                raise
            failed.append(entry)
            continue
        for other in failed:
            other.wants_numbers = True  # as in `x if c > 0 else -x`
        if key is not None and entry.calls > 1 and len(quick) == len(arrays) and all(map(operator.is_, quick, arrays)):
            if len(_quick) >= MOST:
                _quick.clear()
            every = (x for v in given.values() for x in (v if type(v) is tuple else (v,)))
            _quick[key] = compiled, [x for x in every if type(x) in _BY_ADDRESS]
        return out
    raise Unknown


def _arguments(
    given: dict[str, Any], operands: Sequence[str], floats: Sequence[str] | None, integers: bool = False
) -> tuple[Form, Arrays]:
    """``floats``: the parameters that are functions whose floats are operands; None: all. ``integers``: those of all are."""
    arrays = Arrays()
    arrays.with_integers = integers
    form = []
    for k, v in given.items():
        arrays.with_floats = floats is None or k in floats
        arrays.in_operator = k not in OF_ELEMENTS
        form.append((k, _operand(v, arrays) if k in operands else _form(v, arrays)))
    return tuple(form), arrays


@dataclasses.dataclass(eq=False)
class Entry:
    """What is known of the calls of one form, for longer than what was compiled for them is kept."""

    function: Callable[..., Any]
    form: Form
    calls: int = 0  # no more than two are counted
    compiled: Callable[..., Any] | None = None
    wants_numbers: bool = False


@functools.lru_cache(maxsize=4 * MOST)
def _entry(function: Callable[..., Any], form: Form, plans: tuple[Any, ...]) -> Entry:
    return Entry(function, form)


_lock = threading.Lock()
_once: dict[Entry, None] = {}
"""Entries of calls that were made once, the last of them last."""
_again: dict[Entry, None] = {}
"""Those of the others, in the order of the calls."""


def _compiled(entry: Entry, arrays: Sequence[Any]) -> Callable[..., Any]:
    """What is compiled for calls of this form, of which one is made now."""
    compiled = entry.compiled
    if compiled is None:
        compiled = _of_arrays(entry.function, entry.form)
        numbers = [type(x) in _NUMBERS for x in arrays]
        if any(numbers) and _computes(compiled.trace(*arrays).jaxpr.jaxpr, numbers, any(type(x) is int for x in arrays)):
            raise Unknown  # of Python's numbers, with their precision
    with _lock:
        _once.pop(entry, None)
        _again.pop(entry, None)
        kept, most = (_again, MOST) if entry.calls else (_once, MOST_ONCE)
        if len(kept) >= most:
            oldest = next(iter(kept))
            oldest.compiled = None
            del kept[oldest]
        kept[entry] = None
        entry.calls = min(entry.calls + 1, 2)
        entry.compiled = compiled
    return compiled


def _computes(jaxpr: Jaxpr, numbers: Sequence[bool], integers: bool) -> bool:
    """Is anything computed of these arguments alone, or may be where a loop or a branch has them? ``integers``: some are, and
    nothing may be made of them but terms and factors."""
    alone = {v for v, is_number in zip(jaxpr.invars, numbers, strict=True) if is_number}
    for eqn in jaxpr.eqns:
        held = [v for v in eqn.invars if not isinstance(v, Literal)]
        if not alone.isdisjoint(held) and (eqn.primitive.name in _CONTROL or any(map(_branches, _functions(eqn)))):
            return True
        if integers and not alone.isdisjoint(held):
            if any(_uses(f, {v for v in f.constvars if v.aval.shape == ()}) for f in _functions(eqn)):
                return True
            if not all(v in alone for v in held) and eqn.primitive.name not in _TERMS and "call" not in eqn.params:
                inner = called(eqn) if eqn.primitive.name in CALLS else None
                if inner is None:
                    return True
        if held and all(v in alone for v in held):
            (x, *_), (y, *_) = held, eqn.outvars
            rounded = x.aval.dtype != y.aval.dtype and x.aval.dtype not in (np.float64, np.complex128)  # once more
            if jnp.issubdtype(x.aval.dtype, np.integer):
                rounded = rounded and not jnp.issubdtype(y.aval.dtype, np.inexact)  # a narrow integer may not hold it
            if eqn.primitive.name not in _HANDED_ON or rounded:
                return True
            alone.update(eqn.outvars)
        elif not alone.isdisjoint(held) and eqn.primitive.name in CALLS:
            inner = called(eqn)
            if inner is None or _computes(inner[0], [isinstance(v, Literal) or v in alone for v in eqn.invars], integers):
                return True
    return False


def _uses(f: Jaxpr, alone: set[Any]) -> bool:
    """Is any of these used otherwise than as a term or a factor?"""
    for eqn in f.eqns:
        held = [v in alone for v in eqn.invars if not isinstance(v, Literal)]
        if eqn.primitive.name in _HANDED_ON and all(held):
            alone.update(eqn.outvars)
        elif any(held) and eqn.primitive.name in CALLS:
            inner = called(eqn)
            if inner is None or _uses(inner[0], {a for a, v in zip(inner[0].invars, eqn.invars, strict=True) if v in alone}):
                return True
        elif any(held) and eqn.primitive.name not in _TERMS:
            return True
    return any(v in alone for v in f.outvars if not isinstance(v, Literal))


def _functions(eqn: JaxprEqn) -> list[Jaxpr]:
    """Those of a call of the library's: of its elements, and its operators."""
    call = eqn.params.get("call")
    parts = getattr(call, "parts", (call,))
    operators = [part.operator.traced for part in parts if hasattr(part, "operator")]
    return [f.jaxpr for f in (*([call.f] if hasattr(call, "f") else ()), *operators)]


def _branches(jaxpr: Jaxpr) -> bool:
    return any(e.primitive.name in _CONTROL or any(map(_branches, jaxprs_in_params(e.params))) for e in jaxpr.eqns)


def _of_arrays(function: Callable[..., Any], form: Form) -> Any:
    @jax.jit
    def compiled(*arrays: Any) -> Any:
        rest = iter(arrays)
        return function(**{k: _filled(f, rest) for k, f in form})

    return compiled


# --- forms --------------------------------------------------------------------------------------------------------------------


def _operand(x: Any, arrays: Arrays) -> Form:
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
    if isinstance(x, jax.Array):
        if isinstance(x, jax.core.Tracer):
            raise Unknown
        _concrete.add(type(x))
    elif not _is_numbers(x):
        raise Unknown
    arrays.append(x)
    return _ARRAY


def _library(f: Any) -> str:
    return (getattr(f, "__module__", None) or "").split(".")[0]


def _is_numbers(x: Any) -> bool:
    """Is it NumPy's, of numbers (those of ml_dtypes are dtypes that users registered)?"""
    return isinstance(x, (np.ndarray, np.generic)) and (x.dtype.kind in "biufc" or x.dtype.isbuiltin == 2)


def _form(x: Any, arrays: Arrays) -> Form:
    """Of any other argument: an array is part of its form."""
    kind = type(x)
    if kind in _PLAIN:
        return ("constant", x)
    if kind in (int, float, complex):
        return ("number", kind, repr(x))
    if kind in (tuple, list):
        return ("sequence", kind, tuple(_form(item, arrays) for item in x))
    if kind is Monoid:
        if _library(x.op) == "jaxprims":  # those of jp.monoids are found by who they are
            return ("constant", x)
        return ("monoid", _form(x.op, arrays), _form(x.identity, arrays))
    if kind is Bins:
        return ("bins", *(_form(item, arrays) for item in (x.num_bins, x.op, x.identity)), _operand(x.dest, arrays))
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
    if type(x) in _FLOATS and arrays.with_floats:
        arrays.append(x)
        arrays.of_operators |= arrays.in_operator
        return _ARRAY
    if type(x) is int and arrays.with_integers:
        arrays.append(x)
        arrays.integers = True
        return _INTEGER
    if type(x) not in _PLAIN and isinstance(x, (jax.Array, np.ndarray)):
        return _array(x, arrays)
    return _form(x, arrays)


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


def _filled(form: Form, arrays: Iterator[Any]) -> Any:
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
        return jax.tree.unflatten(rest[0], [_filled(f, arrays) for f in rest[1]])
    if kind == "sequence":
        return rest[0](_filled(f, arrays) for f in rest[1])
    if kind == "monoid":
        return Monoid(*(_filled(f, arrays) for f in rest))
    if kind == "bins":
        return Bins(*(_filled(f, arrays) for f in rest))
    if kind == "partial":
        names, held = rest[0], [_filled(f, arrays) for f in rest[1]]
        first = len(held) - len(names)
        function, *args = held[:first]
        return functools.partial(function, *args, **dict(zip(names, held[first:], strict=True)))
    code, namespace, cells, held, named = rest[0], rest[1].thing, rest[2], [_filled(f, arrays) for f in rest[3]], rest[4]
    values = {name: _filled(f, arrays) for name, f in named}
    changed = {name: values[name] for name, f in named if _has_arrays(f)}
    closure = tuple(types.CellType(x) for x in held[:cells])
    return types.FunctionType(code, namespace | changed if changed else namespace, code.co_name, tuple(held[cells:]), closure)


def _has_arrays(form: Any) -> bool:
    return form in (_ARRAY, _INTEGER) or (type(form) is tuple and any(_has_arrays(f) for f in form))
