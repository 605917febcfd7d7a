"""Calls on concrete arrays: compiled once, and kept for the next call that differs in its arrays' numbers only.

Without that, each eager call would trace the user's functions again, to find the kernel that it compiled before. A call is found
by its *form* (``forms``): its arguments, and what functions among them close over, without their arrays. Arrays are operands; so
are the floats of functions of an element, and those of operators from the second number on (with a known one an operator may be
recognised, or its identity), and integers from the second number on: unless a function computes with them alone, or asks what
they are (``bare_numbers``).
A call with a tracer of ``jit``'s, or with anything whose form is not known, is traced anew. With those of ``grad`` and ``vmap``
outside of ``jit`` it finds what was compiled, which JAX differentiates and batches once.

Most calls have nothing but arrays, small constants and functions of libraries for arguments. Those are found by these, without a
look at their form (:func:`_quick_key`): 2 microseconds, which is what a call of a function of ``jax.numpy`` takes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.monoid import Monoid
from ..arguments.positions import positions
from ..targets.plans import forced_plans
from .bare_numbers import computes
from .forms import CONCRETE, FLOATS, TRACERS, Arrays, Form, Unknown, at_once, filled, form_of, operand

MOST = 512
"""Calls that are kept, those used last, of those that were made several times."""

MOST_ONCE = 32
"""Those that were made once. JAX keeps the module that it lowered with each, more than a megabyte, and a program that makes
another operator for each call never comes back to one."""

OF_ELEMENTS = ("f", "map")
"""Parameters that are functions of an element."""

F = TypeVar("F", bound=Callable[..., Any])
_NUMBERS = FLOATS | {int}


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
        kind = type(x)  # the commonest kinds are told apart here: a call for each would take as long as all the rest
        key.append(kind)
        if kind in CONCRETE and (kind is not np.ndarray or x.dtype.isnative):
            arrays.append(x)
        elif kind in _BY_VALUE:
            key.append(x)
        elif kind in _BY_ADDRESS:
            key.append(id(x))
        elif not _known_quickly(x, kind, key, arrays):
            return None
    if kwargs:
        key.extend(kwargs)
    return tuple(key)


def _known_quickly(x: Any, kind: type, key: list[Any], arrays: list[Any]) -> bool:
    if kind is np.ndarray and not x.dtype.isnative:
        return False
    if kind in CONCRETE or kind is float or (kind in TRACERS and _stand_for_arrays(arrays)):  # operands, if found to be such
        arrays.append(x)
    elif kind in _BY_VALUE:
        key.append(x)
    elif kind in _BY_ADDRESS:
        key.append(id(x))
    elif kind is tuple:
        key.append(len(x))
        for item in x:
            key.append(type(item))
            if type(item) is tuple or not _known_quickly(item, type(item), key, arrays):
                return False
    else:
        return False
    return True


def _stand_for_arrays(arrays: list[Any]) -> bool:
    """Do tracers? That is asked for the first one of a call."""
    return any(type(x) in TRACERS for x in arrays) or at_once()


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
        form.append((k, operand(v, arrays) if k in operands else form_of(v, arrays)))
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
        if any(numbers) and computes(compiled.trace(*arrays).jaxpr.jaxpr, numbers, any(type(x) is int for x in arrays)):
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


def _of_arrays(function: Callable[..., Any], form: Form) -> Any:
    @jax.jit
    def compiled(*arrays: Any) -> Any:
        rest = iter(arrays)
        return function(**{k: filled(f, rest) for k, f in form})

    return compiled
