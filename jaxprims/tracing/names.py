"""What a function's code names: globals, and what it reads of modules and classes. May it be something else at the next call?"""

from __future__ import annotations

import dataclasses
import dis
import functools
import sys
import types
from typing import Any

import jax.numpy as jnp

LIBRARIES = ("jax", "jaxprims", "numpy")
_CONSTANT_MODULES = frozenset((*LIBRARIES, "jaxlib", "ml_dtypes", "builtins", *sys.stdlib_module_names)) - {"__main__"}


class Unknown(Exception):
    """What a function computes with cannot be told from its code."""


@dataclasses.dataclass(frozen=True)
class Names:
    """What code names, that of functions inside it too: globals; variables, with what it reads of them (``a.b.c``), and those it
    uses otherwise (``a``, handed on)."""

    of_globals: tuple[str, ...]
    of_attributes: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]
    whole: frozenset[str]


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> Names:
    of_globals: set[str] = set()
    of_attributes: dict[str, set[tuple[str, ...]]] = {}
    whole: set[str] = set()
    path: list[str] = []
    for i in (*dis.get_instructions(code), None):
        if i is not None and i.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path.append(i.argval)
            continue
        if len(path) > 1:
            of_attributes.setdefault(path[0], set()).add(tuple(path[1:]))
        whole.update(path[:1] if len(path) == 1 else ())
        path = []
        if i is not None and i.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            of_globals.add(i.argval)
            path = [i.argval]
        elif i is not None and i.opname == "LOAD_DEREF":
            path = [i.argval]
        elif i is not None and i.opname == "IMPORT_NAME" and _first(i.argval) not in _CONSTANT_MODULES:
            raise Unknown
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names = names_of(inner)
            of_globals.update(names.of_globals)
            whole.update(names.whole)
            for root, paths in names.of_attributes:
                of_attributes.setdefault(root, set()).update(paths)
    attributes = tuple((root, tuple(sorted(paths))) for root, paths in sorted(of_attributes.items()))
    return Names(tuple(sorted(of_globals)), attributes, frozenset(whole))


def library(f: types.FunctionType) -> str:
    """Where its text is: what it says of itself may be another's (``functools.wraps``)."""
    return _first(f.__globals__.get("__name__"))


@functools.lru_cache(maxsize=256)
def _first(module: Any) -> str:
    return str(module).split(".")[0]


def is_of_libraries(f: types.FunctionType) -> bool:
    return library(f) in _CONSTANT_MODULES


@functools.lru_cache(maxsize=256)
def never_changes(x: types.ModuleType | type) -> bool:
    """Is this module, or class, of a library's?"""
    return _first(x.__name__ if type(x) is types.ModuleType else x.__module__) in _CONSTANT_MODULES


def is_fixed(f: Any) -> bool:
    """Is all that this function computes with in its code, or a library's?"""
    if isinstance(f, jnp.ufunc):
        return True
    if type(f) is not types.FunctionType or f.__closure__ or f.__defaults__ or f.__kwdefaults__:
        return False
    if library(f) in LIBRARIES:
        return True
    try:
        names = names_of(f.__code__).of_globals
    except Unknown:
        return False
    return all(_is_constant(f.__globals__[name]) for name in names if name in f.__globals__)


def _is_constant(x: Any) -> bool:
    if isinstance(x, (types.ModuleType, type)):
        return never_changes(x)
    if type(x) is types.FunctionType:
        return is_of_libraries(x)
    return isinstance(x, jnp.ufunc) or (callable(x) and _first(str(getattr(x, "__module__", ""))) in LIBRARIES)
