"""What is wrong with an axis, a mesh axis, a boundary, data or ids is told by the name of the argument, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp

N = 6
X, IDS = jnp.arange(6.0), jnp.array([0, 0, 1, 2, 2, 3])

WRONG: dict[str, Any] = {
    "text": "abc", "thing": object(), "matrix": np.zeros((9, 9)), "flags": np.zeros(N, bool), "strings": np.array(list("abcdef")),
    "objects": np.array([object()] * N), "dates": np.zeros(N, "datetime64[s]"), "class": int, "set": {1.0}, "dict": {"a": 1},
    "ragged": [[1.0], [1.0, 2.0]], "bytes": b"x", "float0": np.zeros(N, jax.dtypes.float0), "ellipsis": ..., "function": abs,
    "monoid": jp.monoids.add, "positions": jp.positions, "bins": jp.Bins(3), "complex": 1j, "no integer": 2.5, "large": 2**70,
    "floats": np.zeros(2, np.float32),
}  # fmt: skip


def heat(t: Any) -> Any:
    return t[0] + t[1]


ORDERED: dict[str, Callable[..., Any]] = {
    "scan": lambda **k: jp.scan(X, **k),
    "reduce": lambda **k: jp.reduce(X, **k),
    "linear_recurrence": lambda **k: jp.linear_recurrence(X, X, **k),
    "reduceat": lambda **k: jp.reduceat(X, [0, 3], jnp.add, **k),
}
OVER_DEVICES: dict[str, Callable[..., Any]] = {
    "scan": ORDERED["scan"],
    "reduce": ORDERED["reduce"],
    "segment_reduce": lambda **k: jp.segment_reduce(X, IDS, num_segments=4, **k),
    "reduce_by_index": lambda **k: jp.reduce_by_index(X, IDS, 4, **k),
    "genhist": lambda **k: jp.genhist(lambda v: (0, v), X, jp.Bins(3), **k),
    "stencil": lambda **k: jp.stencil(heat, X, **k),
}
OF_SEGMENTS: dict[str, Callable[..., Any]] = {
    name: getattr(jp, f"segment_{name}") for name in ("mean", "var", "softmax", "logsumexp", "argmax", "variance", "normalize")
}


def refused(argument: str, wrong: dict[str, Any], calls: dict[str, Callable[..., Any]]) -> None:
    for call, run in calls.items():
        for label, value in wrong.items():
            try:
                run(**{argument: value})
            except (TypeError, ValueError) as e:
                assert re.search(rf"\b{argument}\b", str(e)), f"{call}({argument}={label}): {e}"
            else:
                pytest.fail(f"{call}({argument}={label}) was accepted")


def test_axes() -> None:
    refused("axis", WRONG | {"none": [None], "flag": True, "beyond": 1, "before": -2}, ORDERED)
    refused("axes", WRONG | {"flag": True, "beyond": 1, "twice": (0, -1)}, {"stencil": lambda **k: jp.stencil(heat, X, **k)})


def test_axes_that_are_traced() -> None:
    for run in ORDERED.values():
        with pytest.raises(TypeError, match="axis must be an integer that is known when the function is traced"):
            jax.jit(lambda a, run=run: run(axis=a))(0)


def test_mesh_axes() -> None:
    """Also numbers, which collectives would take for an array's own axes."""
    names = WRONG | {"zero": 0, "minus one": -1, "flag": True, "tuple": ("a", "b"), "numbers": (0, 1), "float": 1.5, "array": X}
    refused("axis_name", names, OVER_DEVICES)
    for run in OVER_DEVICES.values():
        assert run(axis_name=None) is not None


def test_boundaries() -> None:
    refused("boundary", WRONG | {"none": None, "two": ("edge", "edge")}, {"stencil": lambda **k: jp.stencil(heat, X, **k)})


def test_data_and_ids() -> None:
    given: dict[str, Any] = {"data": X, "segment_ids": IDS, "num_segments": 4}
    calls = {name: lambda f=f, **k: f(**given | k) for name, f in OF_SEGMENTS.items()}
    arrays = {k: v for k, v in WRONG.items() if k != "flags"} | {"none": None, "scalar": 1.0, "short": X[:-1]}
    refused("data", arrays, calls)
    refused("segment_ids", WRONG | {"none": None, "short": IDS[:-1], "floats": X}, calls)
    refused("num_segments", WRONG | {"flag": True, "negative": -1}, calls)


def test_flags_of_segments() -> None:
    """What is true or false is one, as of ``jax.ops``; an array is not."""
    given: dict[str, Any] = {"data": X, "segment_ids": IDS, "num_segments": 4}
    functions = OF_SEGMENTS | {"sum": jp.segment_sum, "count": lambda data, **k: jp.segment_count(**k)}
    calls = {name: lambda f=f, **k: f(**given | k) for name, f in functions.items()}
    refused("indices_are_sorted", {"several": np.array([True, False]), "of JAX": jnp.array([1, 2])}, calls)
    calls |= {
        name: lambda f=f, **k: jax.jit(lambda v: f(**given | k | {"indices_are_sorted": v}))(True) for name, f in calls.items()
    }
    refused("indices_are_sorted", {"traced": None}, calls)


def test_laws() -> None:
    calls = {"check_monoid": lambda **k: jp.check_monoid(**{"op": jnp.add, "identity": 0.0, "like": jnp.float32(0)} | k)}
    wrong = {"word": "word", "object": object(), "several": jnp.arange(3.0), "dict": {"k": 1}, "pair": (1, 2)}
    refused("identity", wrong, calls)
    refused("like", {"word": "word", "object": object(), "of words": {"k": "v"}, "none": None, "nothing": ()}, calls)
    refused("op", {"word": "word", "number": 5, "none": None}, calls)


def test_slices_that_overlap() -> None:
    calls = {"reduceat": lambda **k: jp.reduceat(**{"xs": X, "indices": [0, 2, 1], "op": jnp.add} | k)}
    refused("op", {"word": "word", "number": 5, "none": None}, calls)
    refused("indices", {"word": "word", "object": object(), "none": None, "floats": [0.5]}, calls)


def test_words_that_are_not_known() -> None:
    wrong = {"several": np.zeros(2), "word": "word", "none": None, "number": 3, "object": object()}
    refused("mode", wrong, {"reduce_by_index": OVER_DEVICES["reduce_by_index"]})
    refused("by", wrong, {"debug_checks": jp.debug_checks})
    refused("target", wrong, {"explain": lambda target: jp.explain(heat, target=target)((X, X))})
    refused("steps", {"of no dtype": 2**70, "wide": 2**31}, {"stencil": OVER_DEVICES["stencil"]})


def test_bytes_in_another_order() -> None:
    """Which what was compiled for such arrays in this machine's order would read as its own."""
    own = np.arange(N, dtype=np.int32)
    of_others = own.astype(own.dtype.newbyteorder())
    for argument, run in {
        "xs": jp.scan,
        "init": lambda v: jp.scan(np.zeros((3, N), np.int32), init=v),
        "values": lambda v: jp.reduce_by_index((v, v), IDS, 4, jp.monoids.add),
        "indices": lambda v: jp.reduce_by_index(X, v, 4),
        "dest": lambda v: jp.reduce_by_index(own, IDS, N, dest=v),
        "arrays": lambda v: jp.genhist(lambda v: (0, v), v, jp.Bins(1)),
    }.items():
        for _ in range(3):
            run(own)
        for _ in range(2):
            with pytest.raises(TypeError, match=rf"\b{argument}: ndarray is not an array"):
                run(of_others)


def test_masked_arrays() -> None:
    """Whose mask what was compiled for an array before would leave out. (Of histograms some of JAX's versions take them.)"""
    masked = np.ma.array(X, mask=X > 0)
    by_index, left = lambda v: jp.reduce_by_index(v, IDS, 4), lambda v: jp.stencil(lambda t: t[-1], v)
    for run in (jp.scan, jp.cumsum, by_index, left, lambda v: jp.segment_sum(v, IDS, 4), jp.fuse(jax.lax.cumsum)):
        for _ in range(3):
            run(np.asarray(X))
        for _ in range(2):
            with pytest.raises((TypeError, ValueError), match="masked arrays"):
                run(masked)


def test_more_groups_than_positions_tell_apart() -> None:
    with pytest.raises(ValueError, match="num_bins must fit the dtype of elements' numbers, int32, got 2147483648"):
        jp.group_by_index(IDS, 2**31)


def test_integers_that_no_dtype_holds() -> None:
    for argument, run in {
        "xs": lambda v: jp.scan((X, v)),
        "init": lambda v: jp.scan(X, init=v),
        "segment_starts": lambda v: jp.scan(X, segment_starts=v),
        "values": lambda v: jp.segment_reduce((X, v), IDS),
        "indices": lambda v: jp.group_by_index(v, 3),
        "a": lambda v: jp.linear_recurrence(v, X),
        "constants": lambda v: jp.stencil(lambda t, c: t[0], X, constants=v),
    }.items():
        with pytest.raises(TypeError, match=rf"\b{argument}: int is not an array: 1180591620717411303424"):
            run(2**70)
