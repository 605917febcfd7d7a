"""A thousand hostile calls: each is a TypeError or a ValueError whose message names the argument; none is taken, none crashes.

What a user's own function raises is raised as it is, with a note that names the function. A call is an ordinary one with one or
two of its arguments replaced; with two, either may be the one that is named.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp
from jaxprims.arguments.checks import NOTE

N = 6


class Rude(Exception):
    """The user's own exception."""


def forever(a: Any, b: Any = None) -> Any:
    return forever(a, b)


def rude(*args: Any) -> Any:
    raise Rude("no")


class Strange:
    """Claims to be an array."""

    shape = (N,)
    dtype = "strange"

    def __len__(self) -> int:
        return N


def strings() -> np.ndarray:
    return np.array(list("abcdef"))


INDEX = np.array([0, 1, 2, 0, -1, 7], np.int32)


@dataclasses.dataclass(frozen=True)
class Bad:
    """A replacement of one argument, and what the message has to contain (one of these)."""

    argument: str
    value: Any
    names: tuple[str, ...]
    label: str


def bad(argument: str, names: str, **values: Any) -> list[Bad]:
    return [Bad(argument, v, tuple(names.split("|")), k) for k, v in values.items()]


VALUES = bad(
    "values", "values",
    none=None, text="values", thing=object(), number=3.0, scalar=np.float32(1), empty=(), empty_dict={}, strings=strings(),
    objects=np.array([object()] * N), short=np.zeros(N - 1, np.float32), long=np.zeros(N + 1, np.float32), ragged=[[1.0], [1.0, 2.0]],
    two_lengths=(np.zeros(N, np.float32), np.zeros(N - 2, np.float32)), list_of_numbers=[1.0] * N, with_none=(np.zeros(N, np.float32), None),
    function=lambda: 0, set={1.0}, dates=np.zeros(N, "datetime64[s]"), strange=Strange(), records=np.zeros(N, [("a", "f4")]),
    keys=lambda: jax.random.split(jax.random.key(0), N), float0=np.zeros(N, jax.dtypes.float0), type=int, ellipsis=...,
)  # fmt: skip

INDICES = bad(
    "indices", "indices",
    none=None, text="indices", thing=object(), floats=INDEX.astype(np.float32), bools=INDEX > 0, complexes=INDEX.astype(np.complex64),
    rows=np.zeros((N, 1), np.int32), number=3, scalar=np.int32(1), short=INDEX[:-1], long=np.zeros(N + 1, np.int32), strings=strings(),
    objects=np.array([object()] * N), tuple=(INDEX, INDEX), dict={"i": INDEX}, list_of_floats=[0.0] * N, nan=[np.nan] * N, empty=[],
    keys=lambda: jax.random.split(jax.random.key(0), N), function=lambda: 0, strange=Strange(), ellipsis=..., float0=np.zeros(N, jax.dtypes.float0),
    positions=jp.positions,
)  # fmt: skip

NUM_BINS = bad(
    "num_bins", "num_bins",
    negative=-1, float=3.0, text="3", none=None, flag=True, numpy_flag=np.True_, astronomic=2**70, more_than_memory=2**48, list=[3], empty=(),
    negative_in_tuple=(-3,), float_in_tuple=(3.0,), array=np.array([3, 4]), complex=3j, nested=((3,),), thing=object(), numpy_float=np.float32(3),
    none_in_tuple=(None,), product=(2**24,) * 3,
)  # fmt: skip


def returns(value: Any) -> Callable[[Any, Any], Any]:
    return lambda a, b: value


def compare(a: Any, b: Any) -> Any:
    first = jax.tree.leaves(a)[0]
    if first > jax.tree.leaves(b)[0]:
        return a
    return b


def on_leaves(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: jax.tree.map(f, a, b)


OPS = bad(
    "op", "op",
    none=None, text="add", number=3, one_argument=lambda a: a, three_arguments=lambda a, b, c: a, no_arguments=lambda: 0, raises=rude,
    key_error=lambda a, b: {}["missing"], zero_division=lambda a, b: 1 // 0, stop=lambda a, b: next(iter(())), returns_none=returns(None),
    returns_text=returns("no"), returns_thing=returns(object()), returns_tuple=lambda a, b: (a, b, a), generator=lambda a, b: (x for x in (a, b)),
    changes_dtype=on_leaves(lambda a, b: a > b), to_complex=on_leaves(lambda a, b: a + 1j * b), to_half=on_leaves(lambda a, b: (a + b).astype(jnp.float16)),
    changes_shape=on_leaves(lambda a, b: jnp.stack([a, b])), drops_axis=on_leaves(lambda a, b: (a + b)[None]), nested=lambda a, b: [[a]],
    recursion=forever, if_on_tracer=compare, bool_of_tracer=on_leaves(lambda a, b: a if bool(jnp.any(a)) else b),
    to_float=on_leaves(lambda a, b: float(a) + b), to_int=on_leaves(lambda a, b: int(a.sum()) + b), to_numpy=on_leaves(lambda a, b: np.asarray(a) + b),
    numpy_loop=on_leaves(lambda a, b: np.sort(np.array(a)) + b), bad_shapes=on_leaves(lambda a, b: a.reshape(7, 9) + b),
    with_text=on_leaves(lambda a, b: a + "x"), with_thing=on_leaves(lambda a, b: a + object()), attribute=lambda a, b: a.nothing,
    index=on_leaves(lambda a, b: a[0, 0, 0, 0]), method=np.zeros(3).sum, klass=Strange, exception_class=Rude, list_method=[].append,
    wrong_jax_call=lambda a, b: jax.lax.add(a), unhashable=[1, 2], asserts=lambda a, b: (_ for _ in ()).throw(AssertionError("no")),
    exits=on_leaves(lambda a, b: a.item() + b), tolist=on_leaves(lambda a, b: a.tolist()), dict_result=lambda a, b: {"x": a},
    range_of=on_leaves(lambda a, b: sum((b for _ in range(a)), a)),
)  # fmt: skip

IDENTITIES = bad(
    "identity", "identity",
    text="zero", thing=object(), tuple=(0, 0, 0, 0), dict={"zero": 0}, none_inside=(None,), empty=(), matrix=np.zeros((9, 9)), complex=1j,
    strings=strings(), function=lambda: 0, ellipsis=..., objects=np.array([object()]), keys=lambda: jax.random.key(0), dates=np.datetime64("2020"),
)  # fmt: skip

DESTS = bad(
    "dest", "dest",
    text="dest", thing=object(), number=0.0, short=np.zeros(1, np.float32), matrix=np.zeros((9, 9), np.float32), tuple=(np.zeros(3),) * 5,
    halves=np.zeros(3, np.float16), flags=np.zeros(3, bool), complexes=np.zeros(3, np.complex64), strings=strings(), dict={"d": np.zeros(3)},
    none_inside=(None,), function=lambda: 0, strange=Strange(), keys=lambda: jax.random.split(jax.random.key(0), 3), empty=(),
)  # fmt: skip

OTHERS = [
    *bad("mode", "mode", text="clamp", none=None, number=0, upper="DROP", list=["drop"], flag=True, thing=object()),
    *bad("indices_are_sorted", "indices_are_sorted", text="yes", none=None, number=3, array=np.zeros(2, bool), thing=object()),
]


def f_index(index: Any) -> Callable[..., Any]:
    return lambda i, v: (index, v)


FUNCTIONS = bad(
    "f", "f",
    none=None, text="f", number=3, no_arguments=lambda: (0, 0), three_arguments=lambda a, b, c: (0, 0), raises=rude, recursion=forever,
    key_error=lambda i, v: {}[3], returns_none=lambda i, v: None, returns_index=lambda i, v: i, returns_three=lambda i, v: (i, v, v),
    returns_text=lambda i, v: "iv", returns_one=lambda i, v: (i,), returns_dict=lambda i, v: {"i": i, "v": v}, index_none=f_index(None),
    index_text=f_index("0"), index_float=f_index(0.0), index_flag=f_index(True), index_thing=f_index(object()), index_rows=f_index(np.zeros((2, 2), int)),
    index_pair=lambda i, v: ((i, i), v), index_list=lambda i, v: ([i, i], v), index_dict=lambda i, v: ({"i": i}, v), index_complex=f_index(1j),
    index_of_value=lambda i, v: (v, v), value_none=lambda i, v: (i, None), value_text=lambda i, v: (i, "v"), value_thing=lambda i, v: (i, object()),
    value_empty=lambda i, v: (i, ()), value_with_none=lambda i, v: (i, (v, None)), updates=lambda i, v: (jnp.stack([i, i]), jnp.stack([v, v, v])),
    no_updates=lambda i, v: (jnp.stack([i, i, i]), jnp.stack([v, v])), if_on_tracer=lambda i, v: (i, v) if v > 0 else (i, -v),
    to_int=lambda i, v: (int(i), v), to_numpy=lambda i, v: (np.asarray(i), v), range_of=lambda i, v: (sum(range(i)), v),
    captures_nonsense=lambda i, v: (i, v + object()), captures_text=lambda i, v: (i, v * "x"), bad_shapes=lambda i, v: (i, jnp.ones(3) @ jnp.ones(4)),
    key=lambda i, v: (i, jax.random.key(0)), generator=lambda i, v: (x for x in (i, v)), klass=Strange, unhashable=[1], asserts=rude,
    ufunc=jnp.add, index_strings=f_index(strings()), items=lambda i, v: (i.item(), v), value_dates=lambda i, v: (i, np.datetime64("2020")),
)  # fmt: skip

ARRAYS = bad(
    "arrays", "arrays",
    none=None, text="arrays", thing=object(), number=3.0, empty=(), empty_dict={}, strings=(strings(), strings()), scalars=(1, 2.0),
    two_lengths=(INDEX, np.zeros(N - 1, np.float32)), with_none=(INDEX, None), positions=jp.positions, only_positions=(jp.positions, jp.positions),
    objects=(INDEX, np.array([object()] * N)), mixed=(INDEX, 3.0), function=lambda: 0, set={1.0}, dates=(INDEX, np.zeros(N, "datetime64[s]")),
    strange=(INDEX, Strange()), ragged=(INDEX, [[1.0], [1.0, 2.0]]), float0=(INDEX, np.zeros(N, jax.dtypes.float0)),
)  # fmt: skip

BINS = bad(
    "bins", "bins",
    none=None, number=3, text="bins", thing=object(), empty=(), empty_list=[], dict={"a": jp.Bins(3)}, numbers=[3, 4], mixed=[jp.Bins(3), 3],
    nested=[[jp.Bins(3)]], klass=jp.Bins, generator=(jp.Bins(3) for _ in range(1)), set={3},
) + bad("bins", "f must return|f: num_bins|f's index", two=[jp.Bins(3)] * 2, three=(jp.Bins(3),) * 3, two_dimensions=jp.Bins((3, 3)))  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Ordinary:
    """A call that is right, with its arguments by name."""

    name: str
    arguments: Callable[[], dict[str, Any]]
    values: Any  # a value's structure: what identities and dests have to have

    def run(self, **changed: Any) -> Any:
        args = {**self.arguments(), **changed}
        if "f" in args:
            bins = args["bins"] if "bins" in args else jp.Bins(*(args[k] for k in ("num_bins", "op", "identity", "dest")))
            return jp.genhist(args["f"], args["arrays"], bins)
        return jp.reduce_by_index(**args)


def base(values: Any, op: Any, **more: Any) -> Callable[[], dict[str, Any]]:
    def arguments() -> dict[str, Any]:
        v = jax.tree.map(
            lambda shape: np.ones(shape, np.float32), values, is_leaf=lambda s: isinstance(s, tuple) and isinstance(s[0], int)
        )
        return {"values": v, "indices": INDEX, "num_bins": 3, "op": op, "identity": None, "dest": None, **more}

    return arguments


def of_f(f: Callable[..., Any]) -> Callable[[], dict[str, Any]]:
    return lambda: {
        "f": f, "arrays": (INDEX, np.ones(N, np.float32)), "num_bins": 3, "op": jnp.add, "identity": None, "dest": None,
    }  # fmt: skip


CALLS = (
    Ordinary("scalars", base((N,), jnp.add), 0),
    Ordinary("integers", lambda: {**base((N,), jnp.maximum)(), "values": np.arange(N, dtype=np.int8)}, 0),
    Ordinary("pairs", base([(N,), (N,)], lambda a, b: [a[0] + b[0], jnp.maximum(a[1], b[1])]), [0, 0]),
    Ordinary("fives", base((N, 5), jnp.minimum), 0),
    Ordinary("hundreds", base((N, 100), lambda a, b: a * b), 0),
    Ordinary("unknown operator", base((N,), lambda a, b: a + b + a * b * 0, identity=0.0, mode="clip"), 0),
)
FUNCTION_CALLS = (
    Ordinary("genhist", of_f(lambda i, v: (i, v)), 0),
    Ordinary("k updates", of_f(lambda i, v: (i + jnp.arange(2), v)), 0),
)


def hostile() -> Iterator[tuple[Ordinary, tuple[Bad, ...]]]:
    by_argument = [VALUES, INDICES, NUM_BINS, OPS, IDENTITIES, DESTS, OTHERS]
    for call in CALLS:
        for b in itertools.chain.from_iterable(by_argument):
            yield call, (b,)
    rng = np.random.default_rng(0)
    for first, second in itertools.combinations(by_argument, 2):  # two at once
        for _ in range(12):
            pair = first[rng.integers(len(first))], second[rng.integers(len(second))]
            yield CALLS[rng.integers(len(CALLS))], pair
    for call in FUNCTION_CALLS:
        for b in [*FUNCTIONS, *ARRAYS, *NUM_BINS, *OPS, *IDENTITIES, *DESTS, *BINS]:
            yield call, (b,)


def value_of(b: Bad) -> Any:
    """Keys are made late: making them starts JAX."""
    return b.value() if b.label == "keys" else b.value


@pytest.mark.filterwarnings("error")
@pytest.mark.dear
def test_hostile_calls() -> None:
    count, wrong = 0, []
    for call, replaced in hostile():
        count += 1
        names = re.compile("|".join(rf"\b{n}\b" for b in replaced for n in b.names))
        label = f"{call.name}: " + ", ".join(f"{b.argument}={b.label}" for b in replaced)
        try:
            call.run(**{b.argument: value_of(b) for b in replaced})
        except Exception as e:
            notes = [note for note in getattr(e, "__notes__", ()) if note.startswith(NOTE)]
            if not names.search("\n".join([str(e), *notes])):
                wrong.append(f"{label}: does not name it: {type(e).__name__}: {str(e)[:150]}")
            if not notes and not isinstance(e, (TypeError, ValueError)):
                wrong.append(f"{label}: {type(e).__module__}.{type(e).__name__}: {str(e)[:150]}")
        except BaseException as e:
            wrong.append(f"{label}: {type(e).__module__}.{type(e).__name__}: {str(e)[:150]}")
        else:
            wrong.append(f"{label}: was accepted")
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong)
    assert count >= 1000, count


def test_what_the_users_function_raises_is_kept() -> None:
    """Type and message, with a note that names the function; and the next call is as if nothing had been."""
    values = np.ones(N, np.float32)
    kept = Rude("one object, raised again and again")

    def again(*args: Any) -> Any:
        raise kept

    for name, run in (
        ("op", lambda op: jp.reduce_by_index(values, INDEX, 3, op)),
        ("op", lambda op: jp.genhist(lambda i, v: [(i, v)] * 2, (INDEX, values), [jp.Bins(3), jp.Bins(3, op)])),
        ("op", lambda op: jp.scan(values, op)),
        ("op", lambda op: jax.jit(lambda x: jp.segment_reduce(x, [0, 2, N], op))(values)),
        ("op", lambda op: jp.scan(values, lambda a, b: jp.reduce(jnp.stack([a, b]), op))),
        ("f", lambda f: jp.genhist(f, (INDEX, values), jp.Bins(3))),
        ("map", lambda f: jp.reduce((values, values), map=f)),
        ("fn", lambda fn: jp.associative_scan(fn, values)),
    ):
        for user, cause in (
            (rude, Rude),
            (again, Rude),
            (forever, RecursionError),
            (lambda a, b: a.missing, AttributeError),
            (lambda a, b: len(3), TypeError),
            (lambda a, b: a if a.sum() > 0 else b, jax.errors.TracerBoolConversionError),
        ):
            with pytest.raises(cause) as e:
                run(user)
            assert type(e.value) is cause
            (note,) = (note for note in e.value.__notes__ if note.startswith(NOTE))
            assert user is again or note.startswith(f"{NOTE} {name} on ")
        assert jp.reduce_by_index(values, INDEX, 3).tolist() == [2, 1, 1]


def test_under_transformations(filtered: None) -> None:
    """The same errors inside jit, vmap, grad and shard_map's tracing, where sizes and flags may be tracers."""
    values = jnp.ones(N)
    f = lambda v, i, h, op=jnp.add, **more: jp.reduce_by_index(v, i, h, op, **more)  # noqa: E731
    with pytest.raises(TypeError, match="num_bins must be known when the function is traced"):
        jax.jit(f)(values, INDEX, 3)
    with pytest.raises(TypeError, match="num_bins must be known"):
        jax.jit(lambda h: f(values, INDEX, (h, 2)))(3)
    with pytest.raises(TypeError, match="indices_are_sorted must be True or False"):
        jax.jit(lambda s: f(values, INDEX, 3, indices_are_sorted=s))(True)
    with pytest.raises(ValueError, match="mode must be one of"):
        jax.jit(lambda m: f(values, INDEX, 3, mode=m))(1)
    with pytest.raises(TypeError, match="indices must be integers, got float32"):
        jax.vmap(lambda i: f(values, i, 3))(jnp.zeros((2, N)))
    with pytest.raises(ValueError, match=r"indices must have shape \[N\]"):
        jax.vmap(lambda i: f(values, i, 3))(jnp.zeros((2, N, 1), int))
    with pytest.raises(ValueError, match="one length N"):
        jax.grad(lambda v: f(v, INDEX[:-1], 3).sum())(values)
    with pytest.raises(Rude):
        jax.grad(lambda v: f(v, INDEX, 3, rude).sum())(values)
    with pytest.raises(ValueError, match="identity must broadcast"):
        jax.jit(lambda e: f(values, INDEX, 3, identity=e))(np.zeros(4, np.float32))
    with pytest.raises(TypeError, match="identity must have dtype float32, got int32"):
        jax.jit(lambda e: f(values, INDEX, 3, identity=e))(0)
    with pytest.raises(TypeError, match="dest must have the values' dtype"):
        jax.jit(lambda d: f(values, INDEX, 3, dest=d))(np.zeros(3, np.int32))


def test_identities_that_their_dtype_cannot_hold() -> None:
    for dtype, identity in (
        ("int8", 300),
        ("int8", -129),
        ("uint8", -1),
        ("int32", 0.5),
        ("int32", np.nan),
        ("bool", 2),
        ("uint32", 2**32),
        ("int32", np.inf),
    ):
        values = np.zeros(N, dtype)
        with pytest.raises(TypeError, match="identity must be of dtype"):
            jp.reduce_by_index(values, INDEX, 3, lambda a, b: a | b if dtype == "bool" else a + b, identity=identity)
    with pytest.raises(ValueError, match="identity=1 differs from the identity of op"):
        jp.reduce_by_index(np.zeros(N, np.int32), INDEX, 3, jp.Monoid(jnp.add, 0), identity=1)
    with pytest.raises(ValueError, match=r"identity: bins may stay empty, and op's neutral element on float32\[\] is not known"):
        jp.reduce_by_index(np.zeros(N, np.float32), INDEX, 3, lambda a, b: a + b + a * b)
