"""Operators are recognised in whatever form they were written, and never taken for what they are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from operators_traced import SAMPLE_KIND, traced, where

import jaxprims as jp
from jaxprims.arguments.monoids import monoids
from jaxprims.ir.evaluate import evaluate
from jaxprims.ir.program import Builder, from_bits, to_bits
from jaxprims.operators.classify import (
    derivative_class,
    identity_of,
    recognise,
    wrong_identity,
)
from jaxprims.operators.known import KNOWN


def name_of(op, *dtypes):
    return recognise(traced(op, *dtypes))


def neutral_of(op, *dtypes):
    program = traced(op, *dtypes)
    bits = identity_of(program, recognise(program))
    return None if bits is None else tuple(from_bits(b, d) for b, d in zip(bits, program.result_dtypes, strict=True))


@pytest.mark.parametrize("known", KNOWN, ids=lambda k: f"{k.name}-{k.kinds}")
def test_every_row_is_found(known):
    dtypes = tuple(SAMPLE_KIND[k] for k in known.kinds)
    found = recognise(known.program(dtypes, 0xFFFFFF if known.bound else None))
    plain = {"select_max": "max", "select_min": "min", "select_argmax": "argmax", "select_argmin": "argmin"}
    assert found == plain.get(known.name, known.name)  # a select_ row's function is the plain one; it matches more


@pytest.mark.parametrize("dtype", ["s8", "u16", "s32", "u32", "f16", "bf16", "f32"])
@pytest.mark.parametrize("name", ["add", "mul", "min", "max"])
def test_jax_numpy(name, dtype):
    op = getattr(monoids, name)
    assert name_of(op, dtype) == name
    assert name_of(lambda a, b: op(b, a), dtype) == name


@pytest.mark.parametrize(
    "op",
    [
        lambda a, b: where(a > b, a, b),
        lambda a, b: where(a >= b, a, b),
        lambda a, b: where(a < b, b, a),
        lambda a, b: where(a <= b, b, a),
        lambda a, b: where(b > a, b, a),
        lambda a, b: where(~(a <= b), a, b),
        lambda a, b: where((a > b) & (a >= b), a, b),
        lambda a, b: jax.lax.select(a > b, a, b),
        lambda a, b: jax.lax.cond(a > b, lambda: a, lambda: b),
        lambda a, b: where((a != a) | (a > b), a, b),  # NaN as in max, but not the zeros
        jax.jit(lambda a, b: where(a > b, a, b)),
    ],
)
def test_select_is_max_on_integers_only(op):
    assert name_of(op, "s32") == name_of(op, "u8") == "max"
    assert name_of(op, "f32") == name_of(op, "f16") == name_of(op, "bf16") == "select_max"
    assert neutral_of(op, "s32") == (np.iinfo(np.int32).min,)
    assert derivative_class(traced(op, "f32")) == "select"


NAN_RULES = {
    "plain": lambda a, b: False,
    "skips b": lambda a, b: b != b,
    "keeps a": lambda a, b: a != a,
    "skips b, keeps the first of two": lambda a, b: (b != b) & (a == a),
    "keeps either": lambda a, b: (a != a) & (b == b),
}


@pytest.mark.parametrize("nan", NAN_RULES)
@pytest.mark.parametrize("compare", ["__gt__", "__ge__", "__lt__", "__le__"])
def test_a_known_identity_is_neutral_for_every_value(nan, compare):
    """e ⊙ x and x ⊙ e are x, bit for bit, any NaN for a NaN; and where -inf, inf or NaN are such an e, one is known."""
    op = lambda a, b: where(getattr(a, compare)(b) | NAN_RULES[nan](a, b), a, b)  # noqa: E731
    for dtype in ("float32", "float16", "bfloat16"):
        t = jnp.dtype(dtype)
        limits = jnp.finfo(t)
        x = np.array([np.nan, np.inf, 0, 1, limits.max, limits.smallest_subnormal], t)
        x = np.concatenate([x, -x])

        def neutral(e, x=x, t=t):
            with np.errstate(invalid="ignore"):
                sides = [np.asarray(op(*pair)) for pair in ((np.full_like(x, e), x), (x, np.full_like(x, e)))]
            unsigned = f"u{t.itemsize}"
            return all(((y.view(unsigned) == x.view(unsigned)) | ((y != y) & (x != x))).all() for y in sides)

        known = neutral_of(op, {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype])
        assert (known is not None) == any(neutral(e) for e in (-np.inf, np.inf, np.nan))
        assert known is None or neutral(known[0])


def test_an_identity_hides_no_nan():
    op = lambda a, b: where((a >= b) | jnp.isnan(b), a, b)  # noqa: E731
    x, i = np.array([np.nan, np.nan, 1.0, np.nan], np.float32), np.array([0, 0, 1, 1])
    np.testing.assert_array_equal(jp.reduce_by_index(x, i, 2, op), [np.nan, 1.0])
    plain = lambda a, b: where(a > b, a, b)  # noqa: E731
    for call in (
        lambda: jp.reduce_by_index(x, i, 2, plain),
        lambda: jp.segment_reduce(x, i, plain, num_segments=2),
        lambda: jp.scan(x, plain, exclusive=True),
        lambda: jp.reduce(x[:0], plain),
    ):
        with pytest.raises(ValueError, match=r"identity.*-inf is neutral for all but NaN"):
            call()
    assert jp.reduce_by_index(x[2:3], i[2:3], 2, plain, identity=-np.inf).tolist() == [-np.inf, 1.0]
    counts = np.array([3, 4])
    for call in (
        lambda: jp.reduce_by_index(counts, counts - 3, 2, jnp.maximum, identity=0),
        lambda: jp.scan(counts, jnp.maximum, identity=0),
    ):
        with pytest.warns(jp.IdentityWarning, match=r"simplefilter\('ignore', jaxprims.IdentityWarning\) silences this"):
            call()


@pytest.mark.parametrize(
    ("op", "dtype", "name"),
    [
        (lambda a, b: b + a, "f32", "add"),
        (lambda a, b: a - (-b), "f32", "add"),
        (lambda a, b: a + b + 0, "s32", "add"),
        (lambda a, b: sum([a, b]), "s32", "add"),
        (lambda a, b: a + b + 0, "f32", None),  # -0.0 + -0.0 + 0.0 is 0.0
        (lambda a, b: (a + b).astype(a.dtype), "f32", "add"),
        (lambda a, b: (a.astype("float32") + b.astype("float32")).astype(a.dtype), "bf16", "add"),
        (lambda a, b: (a.astype("int32") * b.astype("int32")).astype(a.dtype), "u8", "mul"),
        (lambda a, b: a + b * 1, "f32", "add"),
        (lambda a, b: a - b, "f32", None),
        (lambda a, b: a + 2 * b, "s32", None),
        (lambda a, b: a, "s32", None),
        (lambda a, b: where(a > b, a + 1, b), "s32", None),
        (lambda a, b: where(jnp.abs(a) > jnp.abs(b), a, b), "s32", None),
        (lambda a, b: where(jnp.isnan(a), a, where(jnp.isnan(b), b, jnp.maximum(a, b))), "f32", "max"),
        (lambda a, b: jnp.stack([a, b]).max(), "f32", "max"),
        (lambda a, b: -jnp.maximum(-a, -b), "f32", None),
        (jnp.fmax, "f32", "fmax"),
        (jnp.fmin, "f16", "fmin"),
        (lambda a, b: where(a > b, b, a), "s16", "min"),
        (lambda a, b: ~(~a | ~b), "b1", "and"),
        (lambda a, b: a != b, "b1", "xor"),
        (lambda a, b: a * b, "b1", "and"),
        (lambda a, b: where(a, a, b), "b1", "or"),
        (lambda a, b: a == b, "b1", None),
        (lambda a, b: b & a, "u32", "and"),
        (lambda a, b: a | b, "s8", "or"),
        (lambda a, b: b ^ a, "s32", "xor"),
        (jnp.logaddexp, "f32", "logaddexp"),
        (lambda a, b: jnp.logaddexp(b, a), "bf16", "logaddexp"),
        (jnp.logaddexp2, "f32", "logaddexp2"),
        (lambda a, b: jax.nn.logsumexp(jnp.stack([a, b])), "f32", "logaddexp"),
        (lambda a, b: jnp.maximum(a, b) + jnp.log1p(jnp.exp(-jnp.abs(a - b))), "f32", None),  # NaN for two infinities
        (lambda a, b: jnp.sqrt(a**2 + b**2), "f32", "hypot"),
        (lambda a, b: jnp.sqrt(b * b + a * a), "f16", "hypot"),
        (jnp.hypot, "f32", "hypot"),
        (lambda a, b: jnp.minimum(a + b, 2**24 - 1), "u32", "saturating_add"),
        (lambda a, b: jnp.minimum(255, b + a), "u16", "saturating_add"),
        (lambda a, b: where(a + b < b, jnp.uint32(2**32 - 1), a + b), "u32", "saturating_add"),
        (lambda a, b: jnp.minimum(a + b, 2**24 - 1), "s32", None),  # not associative
        (lambda a, b: where(a > b, 1.0, 0.0), "f32", None),
        (lambda a, b: a > b, "f32", None),  # not of the arguments' dtype
    ],
)
def test_spellings(op, dtype, name):
    assert name_of(op, dtype) == name


def first_if(better):
    def op(a, b):
        first = better(*a, *b)
        return tuple(where(first, x, y) for x, y in zip(a, b, strict=True))

    return op


ARGMAX = {
    "flat": first_if(lambda v, i, w, j: (v > w) | ((v == w) & (i < j))),
    "last": first_if(lambda v, i, w, j: (v > w) | ((v == w) & (i <= j))),
    "nested": first_if(lambda v, i, w, j: where(v == w, i < j, v > w)),
    "swapped": first_if(lambda v, i, w, j: ~((w > v) | ((w == v) & (j < i)))),
    "apart": lambda a, b: (
        where(a[0] > b[0], a[0], b[0]),
        where(a[0] > b[0], a[1], where(b[0] > a[0], b[1], jnp.minimum(a[1], b[1]))),
    ),
    "branch": lambda a, b: jax.lax.cond((a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1])), lambda: a, lambda: b),
}


@pytest.mark.parametrize("op", ARGMAX.values(), ids=ARGMAX.keys())
def test_argmax_spellings(op):
    assert name_of(op, "s32", "s32") == name_of(op, "u8", "s32") == "argmax"
    assert name_of(op, "f32", "s32") == "select_argmax"
    assert neutral_of(op, "f32", "s32") is None  # it would hide a NaN
    assert neutral_of(op, "s16", "s32") == (-(2**15), 2**31 - 1)
    assert derivative_class(traced(op, "f32", "s32")) == "arg"


def test_argmax_as_in_jax_numpy():
    assert name_of(monoids.argmax, "f32", "s32") == name_of(monoids.argmax, "b1", "u8") == "argmax"
    assert name_of(monoids.argmin, "bf16", "s32") == "argmin"
    assert neutral_of(monoids.argmin, "f32", "s32") == (np.inf, 2**31 - 1)


@pytest.mark.parametrize(
    "better",
    [
        lambda v, i, w, j: v >= w,  # ties to the left
        lambda v, i, w, j: (v > w) | ((v == w) & (i > j)),  # ties to the larger index
        lambda v, i, w, j: (v > w) | (i < j),
        lambda v, i, w, j: v < w,
    ],
)
def test_no_argmax(better):
    assert name_of(first_if(better), "s32", "s32") is None
    assert name_of(first_if(better), "f32", "s32") is None


def test_structs():
    assert name_of(lambda a, b: (a[0] * b[0] - a[1] * b[1], a[1] * b[0] + a[0] * b[1]), "f32", "f32") == "complex_mul"
    assert name_of(monoids.affine, "f32", "f32") == name_of(monoids.affine, "u8", "u8") == "affine"
    assert name_of(lambda a, b: monoids.affine(b, a), "f32", "f32") is None  # the other order is another operator
    assert name_of(monoids.add, "f32", "f32") == "add"
    assert name_of(monoids.add, "f32", "s32") is None  # each part is, but not on the same dtype
    assert neutral_of(monoids.affine, "f32", "f32") == (1, 0)
    mixed = traced(lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1]), a[2] * b[2]), "f32", "s8", "f32")
    assert recognise(mixed) is None
    assert identity_of(mixed, None) == (0, 0x80, to_bits(1, "f32"))
    assert derivative_class(mixed) == "general"
    assert recognise(traced(jnp.maximum, "f32", shape=(5,))) == "max"


@pytest.mark.parametrize(("op", "name"), [(jnp.add, "add"), (jnp.multiply, "complex_mul"), (monoids.affine, "complex_affine")])
def test_complex(op, name):
    dtypes = ("complex64",) * (2 if name == "complex_affine" else 1)
    assert name_of(op, *dtypes) == name
    assert neutral_of(op, *dtypes) == {"add": (0, 0), "complex_mul": (1, 0), "complex_affine": (1, 0, 0, 0)}[name]


def test_64_bits():
    with jax.enable_x64(True):
        for dtype in ("f64", "s64", "u64"):
            assert name_of(jnp.maximum, dtype) == "max"
        assert name_of(jnp.logaddexp, "f64") == "logaddexp"
        assert name_of(jnp.hypot, "f64") == name_of(jnp.hypot, "f32") == "hypot"
        assert name_of(jnp.logaddexp2, "f32") == name_of(jnp.logaddexp2, "bf16") == "logaddexp2"
        assert name_of(lambda a, b: jax.nn.logsumexp(jnp.stack([a, b])), "f32") == "logaddexp"
        assert neutral_of(jnp.minimum, "s64") == (2**63 - 1,)
        assert name_of(jnp.multiply, "complex128") == "complex_mul"


def test_64_bits_by_hand():
    b = Builder(("f64", "f64"))
    assert recognise(b.finish([b.emit("atan2", "f64", b.arg(0), b.arg(1))])) is None


def test_an_operator_with_a_captured_array_or_a_loop():
    b = Builder(("s32", "s32"))
    loaded = b.emit("load", "s32", b.const(0, "s32"), attr=0)
    program = b.finish([b.emit("add", "s32", b.arg(0), b.emit("add", "s32", b.arg(1), loaded))])
    assert recognise(program) is None and wrong_identity(program, (0,)) is None
    doubling = Builder(("s32", "s32"))
    doubled = doubling.finish([doubling.emit("add", "s32", doubling.arg(1), doubling.arg(1))])
    b = Builder(("s32", "s32"))
    looped = b.emit("item", "s32", b.emit("loop", "tuple", b.arg(0), attr=(3, doubled)), attr=0)
    program = b.finish([b.emit("add", "s32", looped, b.arg(1))])
    assert recognise(program) is None
    assert [int(v) for v in evaluate(program, [np.int32(5), np.int32(1)])] == [41]
