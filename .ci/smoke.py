"""Is an installed jaxprims whole? The README's code, and a derivative of each family, by a kernel.

Run where no compiler is, but with ``--compilers``: python .ci/smoke.py README.md
"""

import doctest
import os
import re
import shutil
import sys
import warnings
from pathlib import Path

found = [name for name in ("c++", "g++", "gcc", "cc", "clang++", "cmake", "ninja", "make") if shutil.which(name)]
assert "--compilers" in sys.argv or (not found and "CXX" not in os.environ), found

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import jaxprims as jp  # noqa: E402

warnings.simplefilter("error", jp.FallbackWarning)

assert "site-packages" in (jp.__file__ or ""), jp.__file__
text = Path(sys.argv[-1]).read_text()
session = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
test = doctest.DocTestParser().get_doctest(session, {}, "README", None, 0)
assert test.examples and not doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed

x, i = jnp.linspace(0.0, 1.0, 100_000), jnp.arange(100_000) % 300
for f in (
    lambda x: jp.reduce_by_index(x, i, 300, jnp.logaddexp),
    lambda x: jp.scan(x, jnp.logaddexp),
    lambda x: jp.reduce(x, jnp.logaddexp),
    lambda x: jp.segment_reduce(x, jp.Offsets(jnp.array([0, 10, 100_000])), jnp.maximum),
    lambda x: jp.stencil(lambda a: a[-1] * a[1], x, steps=3),
    jp.fuse(lambda x: (jnp.sum(jnp.sin(x)), jnp.max(x))),
):
    gradient = jax.jit(jax.grad(lambda x, f=f: sum(jnp.sum(y) for y in jax.tree.leaves(f(x)))))(x)
    assert jnp.isfinite(gradient).all()
print(f"Python {sys.version.split()[0]}, JAX {jax.__version__}, jaxprims {jp.__version__}: works")
