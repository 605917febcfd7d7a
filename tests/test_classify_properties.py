"""Operators' identities, parts and classes; and random programs, of which nothing is said that is not so.

More of them: ``JAXPRIMS_EXAMPLES=2000 pytest tests/test_classify_properties.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from operators_traced import SAMPLE_KIND, traced, where

from jaxprims.arguments.monoids import monoids
from jaxprims.ir.evaluate import NotEvaluable, evaluate, identical
from jaxprims.ir.program import COMPARE, Builder, Program, from_bits, is_float, neutral_bits, numpy_dtype, to_bits
from jaxprims.operators.classify import (
    atomic_class,
    derivative_class,
    parts,
    recognise,
    restrict,
    simplify,
    wrong_identity,
)
from jaxprims.operators.known import KNOWN
from jaxprims.tracing.lower import to_program

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
    with pytest.raises(ValueError, match="depends on parameter 7"):
        restrict(program, (1,))
    assert parts(traced(lambda a, b: (a[1], b[0]), "f32", "f32")) == ((0, 1),)


# --- classes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "dtypes", "wanted"),
    [
        (jnp.add, ["f32"], "HDW"),
        (jnp.add, ["s8"], "CAS"),
        (jnp.maximum, ["s32"], "HDW"),
        (jnp.maximum, ["f32"], "CAS"),  # the hardware's ignores NaN
        (lambda a, b: where(a > b, a, b), ["s32"], "HDW"),
        (jnp.multiply, ["f32"], "CAS"),
        (monoids.argmax, ["f32", "s32"], "CAS"),
        (mean_and_variance, ["f32"] * 3, "XCG"),
        (monoids.add, ["f32", "s32"], "HDW"),
        (lambda a, b: (a[0] + b[0], a[1] * b[1]), ["f32", "f32"], "CAS"),
        (jnp.add, ["complex64"], "HDW"),
        (jnp.multiply, ["complex64"], "CAS"),
    ],
)
def test_atomic_class(op, dtypes, wanted):
    program = traced(op, *dtypes)
    assert atomic_class(program, program.result_dtypes) == wanted


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
