"""A few random programs under ``fuse``; ``python -m tests.random_programs`` makes many."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
import random_programs
from drawn import count

PROGRAMS = count(16)


@pytest.mark.cover(2)
@pytest.mark.parametrize("number", range(PROGRAMS))
def test_random_programs(number: int) -> None:
    p = random_programs.Program(seed=0, number=number, shapes=[(10,), (300,), (5000,), (12, 25), (64, 70), (1, 40), (0,)])
    wrong = random_programs.check(p)
    assert wrong is None, f"{p.mode} {p.dtype}{list(p.shape)}\n{p.text}\n{wrong}"


def test_differences_are_seen() -> None:
    whole, some = jnp.arange(9.0), jnp.linspace(0, 1, 8)
    assert random_programs.differs(whole, whole) is None
    assert random_programs.differs(whole.at[3].add(1), whole) is not None
    assert random_programs.differs(some * (1 + 1e-6), some) is None
    assert random_programs.differs(some + 1e-3, some) is not None
    assert random_programs.differs(some + 1e-3, some, [some + 1e-3]) is None
    assert random_programs.differs(some.at[2].set(jnp.nan), some) is not None
    assert random_programs.differs(jnp.arange(3).at[1].set(7), jnp.arange(3)) is not None
    assert random_programs.differs(jnp.float32(1), jnp.asarray(1.0)) is not None  # a weak type
