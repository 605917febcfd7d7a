"""The contestants that are Python array libraries: jaxprims and XLA (both under jit), NumPy, PyTorch, boost-histogram."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from ..contestant import Answer, Inputs, Missing, Prepare, Run, as_arrays


def threads() -> int:
    """Cores this process may use; every contestant gets as many threads."""
    return len(os.sched_getaffinity(0))


def module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{name} cannot be imported ({error})") from error


def on_device(array: np.ndarray) -> Any:
    """A JAX array in the same memory, if it lies as JAX wants it."""
    jax = module("jax")
    return jax.block_until_ready(jax.device_put(array, may_alias=True))


def xla(fn: Callable[..., Any], convert: Callable[..., Any] | None = None) -> Prepare:
    """``fn(*inputs)`` on JAX arrays, under jit; ``convert`` first makes of the inputs what it likes best, outside the timing."""

    def prepare(inputs: Inputs) -> Run:
        jax = module("jax")
        compiled = jax.jit(fn)
        arrays = [on_device(a) for a in (convert(*inputs.values()) if convert else inputs.values())]
        return Run(lambda: jax.block_until_ready(compiled(*arrays)), lambda r: as_arrays(jax.tree.leaves(r)))

    return prepare


def eager(fn: Callable[..., Any]) -> Prepare:
    """``fn(*inputs)`` on JAX arrays, with no jit around it."""

    def prepare(inputs: Inputs) -> Run:
        jax = module("jax")
        arrays = [on_device(a) for a in inputs.values()]
        return Run(lambda: jax.block_until_ready(fn(*arrays)), lambda r: as_arrays(jax.tree.leaves(r)))

    return prepare


def xla_in_place(fn: Callable[..., Any]) -> Prepare:
    """``fn(x)`` under jit, its argument donated: every call but the first works on the result of the one before."""

    def prepare(inputs: Inputs) -> Run:
        jax, jnp = module("jax"), module("jax.numpy")
        compiled = jax.jit(fn, donate_argnums=0)
        (array,) = inputs.values()
        state = [jax.block_until_ready(jnp.array(array, copy=True))]

        def call() -> Any:
            state[0] = jax.block_until_ready(compiled(state[0]))
            return state[0]

        return Run(call, lambda r: (np.array(r, copy=True),), state.clear)

    return prepare


def jaxprims(fn: Callable[..., Any], convert: Callable[..., Any] | None = None) -> Prepare:
    """``fn(jaxprims, *inputs)`` on JAX arrays, under jit."""
    return lambda inputs: xla(_ours(fn), convert)(inputs)


def jaxprims_in_place(fn: Callable[..., Any]) -> Prepare:
    """``fn(jaxprims, x)`` under jit, its argument donated."""
    return lambda inputs: xla_in_place(_ours(fn))(inputs)


def _ours(fn: Callable[..., Any]) -> Callable[..., Any]:
    jp = module("jaxprims")
    if not hasattr(jp, "genhist"):
        raise Missing("jaxprims is not built")
    return lambda *arrays: fn(jp, *arrays)


def wide(prepare: Prepare) -> Prepare:
    """The contestant with JAX's 64-bit types, which are off by default."""

    def prepare_wide(inputs: Inputs) -> Run:
        jax = module("jax")
        with jax.enable_x64(True):
            run = prepare(inputs)

        def call() -> Any:
            with jax.enable_x64(True):
                return run.call()

        return dataclasses.replace(run, call=call)

    return prepare_wide


def numpy(fn: Callable[..., Any], convert: Callable[..., Any] | None = None) -> Prepare:
    """``fn(*inputs)`` on NumPy arrays; ``convert`` first makes of them what NumPy likes best, outside the timing."""

    def prepare(inputs: Inputs) -> Run:
        arrays = convert(*inputs.values()) if convert else tuple(inputs.values())
        return Run(lambda: fn(*arrays))

    return prepare


def torch(fn: Callable[..., Any], convert: Callable[..., Any] | None = None, compiled: bool = False) -> Prepare:
    """``fn(torch, *inputs)`` on CPU tensors; ``convert`` as for :func:`numpy`. ``compiled``: by ``torch.compile``."""

    def prepare(inputs: Inputs) -> Run:
        library = module("torch")
        library.set_num_threads(threads())
        function = functools.partial(fn, library)
        function = library.compile(function) if compiled else function
        tensors = tuple(library.from_numpy(a) for a in (convert(*inputs.values()) if convert else inputs.values()))

        def call() -> Any:
            with library.inference_mode():
                return function(*tensors)

        return Run(call, _tensors_as_arrays)

    return prepare


def _tensors_as_arrays(result: Any) -> Answer:
    return as_arrays([t.numpy() for t in (result if isinstance(result, tuple | list) else [result])])


def boost(fn: Callable[..., Any]) -> Prepare:
    """``fn(boost_histogram, threads, *inputs)`` -> an array."""

    def prepare(inputs: Inputs) -> Run:
        library, count = module("boost_histogram"), threads()
        return Run(lambda: fn(library, count, *inputs.values()))

    return prepare
