"""What jax.numpy and its drop-ins give, or say."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

NAN, INF = np.nan, np.inf


def outcome(f):
    """What f returns, as comparable values, or the kind of error it raises."""
    try:
        result = f()
    except Exception as error:
        # JAX's errors about tracers are one kind: which of them it is changes between its versions
        return "TypeError" if isinstance(error, TypeError) else type(error).__name__
    leaves, tree = jax.tree.flatten(result)
    # NumPy knows no NaN in the dtypes that are JAX's own
    return tree, [(str(x.dtype), x.weak_type, x.shape, np.asarray(x, None if x.dtype.isbuiltin == 1 else float)) for x in leaves]


def assert_same(f, module=jnp):
    """f gives of this package what it gives of the module that it stands in for."""
    got, want = outcome(lambda: f(jp)), outcome(lambda: f(module))
    if isinstance(want, str):
        assert got == want
        return
    assert not isinstance(got, str), got
    assert got[0] == want[0]
    for g, w in zip(got[1], want[1], strict=True):
        assert g[:3] == w[:3]
        np.testing.assert_array_equal(g[3], w[3])


def assert_close(f, rtol=1e-5, eager=False):
    """For sums of floats in another order."""
    got, want = jax.jit(lambda: (() if eager else f(jp), f(jnp)))()
    got = f(jp) if eager else got
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol)


X = np.array([0, 1, 2, 3, 4], np.float32)


rng = np.random.default_rng(7)
