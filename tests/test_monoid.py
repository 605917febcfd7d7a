"""Monoids, the ready-made ones, and the check of the laws."""

import copy
import dataclasses
import operator
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxprims.arguments.monoid import Monoid, as_monoid
from jaxprims.arguments.monoids import monoids
from jaxprims.arguments.positions import positions
from jaxprims.arguments.warnings import FallbackWarning, IdentityWarning
from jaxprims.inspection.check_monoid import check_monoid

F32, S32, U32, B1 = (jax.ShapeDtypeStruct((), d) for d in ("float32", "int32", "uint32", "bool"))
C64 = jax.ShapeDtypeStruct((), "complex64")


def test_a_monoid_is_its_operator():
    m = Monoid(lambda a, b: a * b, 1)
    assert m(3, 4) == 12 and m.identity == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        m.identity = 2
    assert len({m, Monoid(m.op, 1)}) == 2
    with pytest.raises(TypeError, match=r"op must be a function of two values, got 3"):
        Monoid(3, 0)


def test_as_monoid():
    m = Monoid(jnp.add, 0)
    assert as_monoid(m) is m and as_monoid(m, 0) is m and as_monoid(m, np.int8(0)) is m
    assert as_monoid(jnp.add, 5).identity == 5 and as_monoid(jnp.add).identity is None
    assert as_monoid(monoids.max, -1).identity == -1
    assert as_monoid(Monoid(jnp.fmax, np.nan), np.nan).op is jnp.fmax
    for other in (1, (0,), [0, 0]):
        with pytest.raises(ValueError, match="differs from the identity of op"):
            as_monoid(m, other)
    with pytest.raises(ValueError, match="differs"):
        jax.jit(lambda x: as_monoid(m, x).identity)(0)
    with pytest.raises(TypeError, match="op must be a Monoid or a function"):
        as_monoid("add")


def test_copies_and_pickles():
    """A configuration that is copied, or sent to another process, has the same monoids and positions."""
    ready_made = [m for m in vars(monoids).values() if isinstance(m, Monoid)]
    assert len(ready_made) > 10
    for thing in [positions, *ready_made]:
        assert copy.copy(thing) is thing and copy.deepcopy([thing])[0] is thing
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(thing, protocol)) is thing
    for own in (Monoid(operator.add, 0), dataclasses.replace(monoids.add, identity=0), Monoid(monoids.max.op)):
        again = copy.deepcopy(own)
        assert type(again) is Monoid and again is not own and (again.op, again.identity) == (own.op, own.identity)
    again = pickle.loads(pickle.dumps(Monoid(operator.add, np.float32(3))))
    assert (again.op, again.identity, again(2, 3)) == (operator.add, 3, 5)


def test_warnings_are_user_warnings():
    assert issubclass(IdentityWarning, UserWarning) and issubclass(FallbackWarning, UserWarning)


@pytest.mark.parametrize(
    ("name", "reference", "dtype"),
    [
        ("add", np.add, "float32"),
        ("mul", np.multiply, "int32"),
        ("min", np.minimum, "float32"),
        ("max", np.maximum, "float32"),
        ("logical_and", np.logical_and, "bool"),
        ("logical_or", np.logical_or, "bool"),
        ("bitwise_and", np.bitwise_and, "uint8"),
        ("bitwise_or", np.bitwise_or, "int32"),
        ("bitwise_xor", np.bitwise_xor, "int32"),
        ("logaddexp", np.logaddexp, "float32"),
    ],
)
def test_elementwise(name, reference, dtype):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-5, 5, (3, 4)).astype(dtype) for _ in range(2))
    op = getattr(monoids, name)
    np.testing.assert_allclose(op(a, b), reference(a, b), rtol=1e-6)
    tree = op({"x": a, "y": (b,)}, {"x": b, "y": (b,)})
    np.testing.assert_allclose(tree["x"], reference(a, b), rtol=1e-6)
    assert tree["y"][0].dtype == dtype


@pytest.mark.parametrize("name", ["argmin", "argmax"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_arg(name, dtype):
    rng = np.random.default_rng(0)
    op, reference = getattr(monoids, name), getattr(np, name)
    for _ in range(20):
        x = rng.integers(0, 3, 8).astype(dtype)
        if dtype == "float32":
            x[rng.integers(0, 8, 2)] = np.nan
            x[x == 2] = -0.0
        pairs = [(v, np.int32(i)) for i, v in enumerate(x)]
        for k in rng.permutation(7):  # in any order
            j = k % (len(pairs) - 1)
            pairs[j : j + 2] = [op(pairs[j], pairs[j + 1])]
        (value, index), want = pairs[0], reference(x)
        assert int(index) == want
        np.testing.assert_array_equal(value, x[want])
    v, i = op((2.0, 1), (2.0, 0))  # Python's numbers
    assert (float(v), int(i)) == (2.0, 0)


def test_affine():
    a, b = monoids.affine((2.0, 1.0), (3.0, 4.0))
    assert (float(a), float(b)) == (6.0, 7.0)


@pytest.mark.parametrize(
    ("op", "like", "commutative"),
    [
        (monoids.add, F32, True),
        (monoids.add, (S32, {"z": C64}), True),
        (monoids.add, jax.ShapeDtypeStruct((3,), jnp.bfloat16), True),
        (monoids.mul, C64, True),
        (monoids.mul, jax.ShapeDtypeStruct((2, 2), "int8"), True),
        (monoids.min, F32, True),
        (monoids.max, U32, True),
        (monoids.max, B1, True),
        (monoids.logical_and, B1, True),
        (monoids.logical_or, B1, True),
        (monoids.bitwise_and, U32, True),
        (monoids.bitwise_or, S32, True),
        (monoids.bitwise_xor, S32, True),
        (monoids.logaddexp, F32, True),
        (monoids.logaddexp, np.float16(0), True),
        (monoids.argmin, (F32, S32), True),
        (monoids.argmax, (S32, S32), True),
        (monoids.argmax, (jnp.zeros(2), jnp.zeros(2, int)), True),
        (monoids.affine, (S32, S32), False),
        (monoids.affine, (F32, F32), False),
        (monoids.affine, (C64, C64), False),
    ],
)
def test_ready_made_monoids_keep_the_laws(op, like, commutative):
    check_monoid(op, None, like, commutative=commutative)


def mean_and_variance(a, b):
    (n, m, s), (k, w, t) = a, b
    total, d = jnp.maximum(n + k, 1), w - m
    return n + k, m + d * k / total, s + t + d * d * n * k / total


def test_operators_nobody_listed_keep_the_laws():
    check_monoid(jnp.gcd, 0, U32)
    check_monoid(lambda a, b: a | b, 0, 0)
    check_monoid(lambda a, b: a @ b, np.eye(2), jax.ShapeDtypeStruct((2, 2), "float32"), commutative=False)
    check_monoid(lambda a, b: jnp.where(jnp.abs(a) >= jnp.abs(b), a, b), 0, F32, commutative=False)
    check_monoid(lambda a, b: jnp.sin(jnp.arcsin(a) + jnp.arcsin(b)) * 0 + a + b, None, F32, values=np.linspace(-0.5, 0.5, 9))
    check_monoid(lambda a, b: jnp.minimum(a + b, 255), 0, U32, values=np.arange(256))
    counts = np.arange(1, 8)
    check_monoid(mean_and_variance, (0, 0, 0), (F32, F32, F32), values=(counts, counts * 0.5, counts * 2.0))


@pytest.mark.parametrize(
    ("op", "identity", "like", "commutative", "message"),
    [
        (
            lambda a, b: a - b,
            0,
            S32,
            True,
            r"op is not associative: op\(op\(x, y\), z\) = -?\d+, op\(x, op\(y, z\)\) = -?\d+, for x",
        ),
        (lambda a, b: (a + b) / 2, 0, F32, True, "op is not associative"),
        (lambda a, b: jnp.clip(a + b, -100, 100), 0, jnp.int32(0), True, "op is not associative"),
        (lambda a, b: jnp.where(a > b, a, a), 0, F32, True, "op is not commutative"),
        (monoids.affine, (1, 0), (S32, S32), True, r"op is not commutative: op\(x, y\) = \(-?\d+, -?\d+\)"),
        (jnp.maximum, 0, F32, True, r"identity is not neutral: op\(identity, x\) = 0.0, for identity = 0.0, x = -"),
        (jnp.maximum, -1e38, F32, True, r"x = -inf"),
        (jnp.minimum, 2**31 - 2, S32, True, "x = 2147483647"),
        (lambda a, b: b, 0, S32, False, r"identity is not neutral: op\(x, identity\) = 0"),
        (jnp.add, 1, U32, True, "identity is not neutral"),
        (jnp.maximum, -np.inf, S32, True, "identity -inf is no value of dtype int32"),
        (jnp.maximum, -1, U32, True, "identity -1 is no value of dtype uint32"),
        (monoids.argmax, (-np.inf, 0), (F32, S32), True, "identity is not neutral"),
    ],
)
def test_a_broken_law_is_shown(op, identity, like, commutative, message):
    with pytest.raises(ValueError, match=message):
        check_monoid(op, identity, like, commutative=commutative)


def test_check_monoid_names_what_is_wrong():
    with pytest.raises(TypeError, match="op must be a Monoid or a function"):
        check_monoid(0, 0, F32)
    with pytest.raises(TypeError, match=re.escape("op must return a value like its arguments, float32[]; it returned bool[]")):
        check_monoid(lambda a, b: a > b, 0, F32)
    with pytest.raises(TypeError, match="op must return"):
        check_monoid(lambda a, b: (a, b), 0, F32)
    with pytest.raises(TypeError, match="identity must have the structure of like"):
        check_monoid(monoids.add, 0, (F32, F32))
    for values in (np.zeros(0), 3.0, (np.zeros(3),)):
        with pytest.raises(ValueError, match="values must have"):
            check_monoid(jnp.add, 0, F32, values=values)


def test_check_monoid_without_a_known_identity():
    check_monoid(jnp.gcd, None, U32)
    check_monoid(lambda a, b: jnp.linalg.inv(jnp.linalg.inv(b) @ jnp.linalg.inv(a)) * 0 + a + b, None, jnp.eye(2))
