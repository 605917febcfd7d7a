"""Operators are recognised in whatever form they were written, and never taken for what they are not.

More random examples: ``JAXPRIMS_EXAMPLES=2000 pytest tests/test_classify.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

import jaxprims as jp
from jaxprims.arguments.monoids import monoids
from jaxprims.ir.evaluate import NotEvaluable, evaluate, identical
from jaxprims.ir.program import COMPARE, Builder, Program, from_bits, is_float, neutral_bits, numpy_dtype, to_bits
from jaxprims.operators.classify import (
    atomic_class,
    derivative_class,
    identity_of,
    parts,
    recognise,
    restrict,
    simplify,
    wrong_identity,
)
from jaxprims.operators.known import KNOWN
from jaxprims.tracing.lower import to_program

where = jnp.where
SAMPLE_KIND = {"a": "s16", "n": "f32", "f": "f32", "u": "u32", "i": "s32", "b": "b1"}


def traced(op, *dtypes, shape=()):
    """The Program of ``op`` on a scalar, or on a tuple of them."""
    avals = [jax.ShapeDtypeStruct(shape, d if d.startswith("complex") else numpy_dtype(d)) for d in dtypes]
    n = len(avals)

    def flat(*args):
        return jax.tree.leaves(op(*args) if n == 1 else op(args[:n], args[n:]))

    return to_program(jax.make_jaxpr(flat)(*avals, *avals).jaxpr)


def name_of(op, *dtypes):
    return recognise(traced(op, *dtypes))


def neutral_of(op, *dtypes):
    program = traced(op, *dtypes)
    bits = identity_of(program, recognise(program))
    return None if bits is None else tuple(from_bits(b, d) for b, d in zip(bits, program.result_dtypes, strict=True))


# --- names ----------------------------------------------------------------------------------------------------------------


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


# --- identities -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [k for k in KNOWN if k.identity], ids=lambda k: f"{k.name}-{k.kinds}")
def test_identities_are_neutral(known):
    dtypes = tuple(SAMPLE_KIND[k] for k in known.kinds)
    program = known.program(dtypes, 0xFFFFFF if known.bound else None)
    rng = np.random.default_rng(1)
    x = [rng.integers(0, 2 if d == "b1" else 9, 50).astype(numpy_dtype(d)) for d in dtypes]
    neutral = [np.full(50, from_bits(b, d)) for b, d in zip(known.identity_bits(dtypes), dtypes, strict=True)]
    for got in (evaluate(program, neutral + x), evaluate(program, x + neutral)):
        for g, v in zip(got, x, strict=True):
            np.testing.assert_allclose(g, v)


def test_neutral_bits():
    assert neutral_bits("least", "s8") == 0x80 and neutral_bits("greatest", "u16") == 0xFFFF
    assert neutral_bits("least", "f32") == 0xFF800000 and neutral_bits("ones", "b1") == 1
    assert neutral_bits("ones", "s64") == 2**64 - 1 and neutral_bits(1, "bf16") == 0x3F80


@pytest.mark.parametrize(
    ("op", "dtypes", "identity"),
    [
        (jnp.maximum, ["f32"], [0.0]),
        (jnp.maximum, ["s32"], [0]),
        (jnp.maximum, ["f32"], [-1e30]),
        (jnp.multiply, ["f32"], [0.0]),
        (jnp.add, ["s8"], [1]),
        (lambda a, b: a - b, ["s32"], [0]),
        (lambda a, b: a + b * b, ["f32"], [0.0]),
        (jnp.logical_and, ["b1"], [False]),
        (jnp.bitwise_and, ["u32"], [0]),
        (monoids.argmax, ["f32", "s32"], [0.0, 2**31 - 1]),
        (lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])), ["f32", "f32"], [0.0, 0.0]),
    ],
)
def test_wrong_identities(op, dtypes, identity):
    found = wrong_identity(traced(op, *dtypes), tuple(to_bits(x, d) for x, d in zip(identity, dtypes, strict=True)))
    assert found is not None and "op(identity, x) = " in found


def mean_and_variance(a, b):
    """Counts, means and sums of squares; no counts of zero meet anything but the identity."""
    (n, m, s), (k, w, t) = a, b
    total = jnp.maximum(n + k, 1)
    d = w - m
    return n + k, m + d * k / total, s + t + d * d * n * k / total


@pytest.mark.parametrize(
    ("op", "dtypes", "identity"),
    [
        (jnp.maximum, ["f32"], [-np.inf]),
        (jnp.add, ["f32"], [-0.0]),
        (jnp.fmax, ["f32"], [-np.inf]),  # ignores NaN
        (lambda a, b: where(a < b, b, a), ["f32"], [-np.inf]),
        (jnp.hypot, ["f32"], [0.0]),  # neutral among its results
        (lambda a, b: jnp.minimum(a + b, 100), ["u32"], [0]),
        (lambda a, b: jnp.gcd(a, b), ["s32"], [0]),
        (mean_and_variance, ["f32", "f32", "f32"], [0.0, 0.0, 0.0]),
        (monoids.affine, ["f32", "f32"], [1.0, 0.0]),
        (lambda a, b: jnp.maximum(a, b) + jnp.log1p(jnp.exp(-jnp.abs(a - b))), ["f32"], [-np.inf]),
    ],
)
def test_right_identities(op, dtypes, identity):
    assert wrong_identity(traced(op, *dtypes), tuple(to_bits(x, d) for x, d in zip(identity, dtypes, strict=True))) is None


# --- parts ----------------------------------------------------------------------------------------------------------------


def test_parts_and_restrict():
    def op(a, b):
        return a[0] + b[0], a[1] * b[3], jnp.maximum(a[2], b[2]), a[3] + b[1]

    program = traced(op, "f32", "s32", "s8", "s32")
    assert parts(program) == ((0,), (1, 3), (2,))
    assert recognise(restrict(program, (0,))) == "add"
    assert recognise(restrict(program, (2,))) == "max"
    assert restrict(program, (1, 3)).params == ("s32",) * 4
    assert restrict(program, (2, 0)).result_dtypes == ("s8", "f32")
    with pytest.raises(ValueError, match="depend on slot 3"):
        restrict(program, (1,))
    assert parts(traced(lambda a, b: (a[1], b[0]), "f32", "f32")) == ((0, 1),)


# --- classes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "dtypes", "bits", "wanted"),
    [
        (jnp.add, ["f32"], 64, "HDW"),
        (jnp.add, ["s8"], 64, "CAS"),
        (jnp.maximum, ["s32"], 64, "HDW"),
        (jnp.maximum, ["f32"], 64, "CAS"),  # the hardware's ignores NaN
        (lambda a, b: where(a > b, a, b), ["s32"], 64, "HDW"),
        (jnp.multiply, ["f32"], 64, "CAS"),
        (monoids.argmax, ["f32", "s32"], 64, "CAS"),
        (mean_and_variance, ["f32"] * 3, 64, "XCG"),
        (mean_and_variance, ["f32"] * 3, 128, "CAS"),
        (monoids.add, ["f32", "s32"], 64, "HDW"),
        (lambda a, b: (a[0] + b[0], a[1] * b[1]), ["f32", "f32"], 64, "CAS"),
        (jnp.add, ["complex64"], 64, "HDW"),
        (jnp.multiply, ["complex64"], 64, "CAS"),
    ],
)
def test_atomic_class(op, dtypes, bits, wanted):
    program = traced(op, *dtypes)
    assert atomic_class(program, program.result_dtypes, cas_bits=bits) == wanted


@pytest.mark.parametrize(
    ("op", "dtypes", "wanted"),
    [
        (jnp.add, ["f32"], "add"),
        (jnp.add, ["complex64"], "add"),
        (jnp.minimum, ["f32"], "select"),
        (jnp.fmax, ["f32"], "select"),
        (jnp.multiply, ["f32"], "mul"),
        (jnp.logaddexp, ["f32"], "result"),
        (jnp.hypot, ["f32"], "result"),
        (monoids.argmin, ["f32", "s32"], "arg"),
        (monoids.affine, ["f32", "f32"], "general"),
        (mean_and_variance, ["f32"] * 3, "general"),
    ],
)
def test_derivative_class(op, dtypes, wanted):
    assert derivative_class(traced(op, *dtypes)) == wanted


# --- properties ---------------------------------------------------------------------------------------------------------------

VALUES = {
    "f32": [0.0, -0.0, 1.0, -1.0, 2.5, 1e38, -3e38, 1e-40, np.inf, -np.inf, np.nan],
    "f16": [0.0, -0.0, 1.0, -2.5, 6e4, 6e-8, 1.001, np.inf, -np.inf, np.nan],
    "s32": [0, 1, -1, 7, -(2**31), 2**31 - 1],
    "u8": [0, 1, 2, 127, 128, 255],
    "b1": [False, True],
}
ARITHMETIC = ["add", "sub", "mul", "max", "min", "div"]
LOGICAL = ["and", "or", "xor"]


@st.composite
def programs(draw, deciding=False):
    """A Program of two arguments that mixes arithmetic, comparisons, selects and casts."""
    dtype = draw(st.sampled_from(["f32", "f16", "s32", "u8", "b1"]))
    b = Builder((dtype, dtype))
    values = {"b1": [], dtype: [b.arg(0), b.arg(1)]}

    def pick(d):
        return draw(st.sampled_from(values[d]))

    for _ in range(draw(st.integers(1, 9))):
        kinds = ["compare", "select", "minmax"] if deciding else ["compare", "select", "binary", "unary", "const", "wide"]
        kind = draw(st.sampled_from(kinds + ["logic"] * bool(values["b1"])))
        if kind == "compare":
            values["b1"].append(b.emit(draw(st.sampled_from(sorted(COMPARE))), "b1", pick(dtype), pick(dtype)))
        elif kind == "select" and values["b1"]:
            values[dtype].append(b.emit("select", dtype, pick("b1"), pick(dtype), pick(dtype)))
        elif kind == "minmax":
            values[dtype].append(b.emit(draw(st.sampled_from(["max", "min"])), dtype, pick(dtype), pick(dtype)))
        elif kind == "logic":
            op = draw(st.sampled_from([*LOGICAL, "not"]))
            values["b1"].append(b.emit(op, "b1", *(pick("b1") for _ in range(1 + (op != "not")))))
        elif kind == "binary":
            ops = LOGICAL if dtype == "b1" else ARITHMETIC if is_float(dtype) else ARITHMETIC + LOGICAL
            values[dtype].append(b.emit(draw(st.sampled_from(ops)), dtype, pick(dtype), pick(dtype)))
        elif kind == "unary":
            op = "not" if dtype == "b1" else draw(st.sampled_from(["neg", "abs"] + ["not"] * (not is_float(dtype))))
            values[dtype].append(b.emit(op, dtype, pick(dtype)))
        elif kind == "const":
            values[dtype].append(b.const(draw(st.sampled_from(VALUES[dtype])), dtype))
        elif kind == "wide" and dtype in ("f16", "u8", "b1"):
            wide = {"f16": "f32", "u8": "s32", "b1": "s32"}[dtype]
            op = draw(st.sampled_from(["add", "mul", "sub", "max"]))
            inner = b.emit(op, wide, b.emit("convert", wide, pick(dtype)), b.emit("convert", wide, pick(dtype)))
            values[dtype].append(b.emit("convert", dtype, inner))
    return b.finish([values[dtype][-1]])


def samples(program, extra=()):
    values = np.array([*VALUES[program.params[0]], *extra], numpy_dtype(program.params[0]))
    return [np.ravel(v) for v in np.meshgrid(values, values)]


@examples(80)
@given(programs())
def test_simplify_changes_no_result(program):
    args = samples(program)
    (wanted,), (got,) = evaluate(program, args), evaluate(simplify(program), args)
    assert identical(got, wanted).all()
    assert Program.parse(str(simplify(program))) == simplify(program)


@examples(80)
@given(programs(deciding=True))
def test_names_of_deciding_operators_are_exact(program):
    dtype = program.params[0]
    name = recognise(program)
    if name is None:
        return
    known = next(k for k in KNOWN if k.name == name and k.fits((dtype,)))
    args = samples(program)
    (got,), (wanted,) = evaluate(program, args), evaluate(known.program((dtype,)), args)
    if known.match == "numbers":
        numbers = ~(np.isnan(args[0]) | np.isnan(args[1]))
        assert np.array_equal(got[numbers], wanted[numbers])
    else:
        assert identical(got, wanted).all()


@examples(80)
@given(programs())
def test_names_survive_swapped_arguments(program):
    b = Builder(program.params)
    swapped = b.finish(b.inline(program, [b.arg(1), b.arg(0)]))
    assert recognise(program) == recognise(swapped)


@pytest.mark.parametrize(
    ("f", "dtype"),
    [
        (lambda a, b: (a // b, a % b, jax.lax.div(a, b), jax.lax.rem(a, b)), "s32"),
        (lambda a, b: (jax.lax.shift_left(a, b), jax.lax.shift_right_arithmetic(a, b), jax.lax.clz(a)), "s32"),
        (lambda a, b: (jax.lax.shift_right_logical(a, b), jax.lax.population_count(a), a.astype("float32")), "s32"),
        (lambda a, b: (a.astype("int32"), b.astype("uint8"), jnp.floor(a), jnp.round(a), jnp.sign(b)), "f32"),
        (lambda a, b: (jnp.maximum(a, b), jnp.minimum(a, b), jax.lax.nextafter(a, b), a > b, jnp.isfinite(a)), "f32"),
    ],
)
def test_the_interpreter_computes_what_xla_does(f, dtype):
    values = np.array(VALUES[dtype], numpy_dtype(dtype))
    values = values[~((np.abs(values) < 1e-38) & (values != 0))] if dtype == "f32" else values  # XLA flushes subnormals
    args = [np.ravel(v) for v in np.meshgrid(values, values)]
    wanted = f(*map(jnp.asarray, args))
    got = evaluate(to_program(jax.make_jaxpr(f)(args[0][0], args[1][0]).jaxpr), args)
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(g, np.asarray(w))


def test_the_interpreter_says_what_it_cannot():
    with pytest.raises(NotEvaluable, match="erf"):
        evaluate(traced(lambda a, b: jax.lax.erf(a), "f32"), [np.float32(1), np.float32(2)])
