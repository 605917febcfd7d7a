"""The families of calls and the targets that have kernels for them. Registering either is one call; they meet here."""

from __future__ import annotations

import functools
from typing import Any, Protocol

from jax.extend.core import Primitive
from jax.interpreters import mlir

from .operations import EACH
from .target import Target


class Family(Protocol):
    """A family of calls, as targets see it; ``primitives.family`` has what they share."""

    name: str
    primitive: Primitive
    lowered: Primitive
    """Which has a rule for each target: the primitive itself, or one to which that is lowered everywhere."""
    standing: Primitive | None
    """The same in a module for one platform, where each call may be lowered where it stands."""
    call_target: str
    """The custom call's name, which carries the version of its attributes' meaning."""

    def lower(self, ctx: Any, *operands: Any, target: Target, **params: Any) -> Any:
        """To a call of the target's."""

    def plain(self, *operands: Any, **params: Any) -> list[Any]:
        """The same in plain XLA."""


_families: dict[str, Family] = {}
_targets: dict[str, Target] = {}


def register_family(family: Family) -> None:
    """From now on the family's primitive is lowered to a kernel on every target that serves it, elsewhere to plain XLA."""
    _families[family.name] = family
    _lower_by(family, mlir.lower_fun(family.plain, multiple_results=True))
    for target in _targets.values():
        _connect(family, target)


def register_target(target: Target) -> None:
    """From now on every family that the target serves is lowered to its kernels on its platform; on one that another target
    has, in that one's place."""
    _targets[target.name] = target
    for family in _families.values():
        _connect(family, target)


def _connect(family: Family, target: Target) -> None:
    if target.serves(family.name):
        target.register(family.name, family.call_target)
        rule = functools.partial(family.lower, target=target)
        _lower_by(family, rule, platform=target.platform)


def _lower_by(family: Family, rule: Any, **on: str) -> None:
    mlir.register_lowering(family.lowered, rule, **on)
    if family.standing is not None:
        mlir.register_lowering(family.standing, rule, **on, **EACH)


def family_of(primitive: Primitive) -> Any:
    """The family whose primitive this is, or None."""
    return next((f for f in _families.values() if f.primitive is primitive), None)


def target_at(where: str) -> Target:
    """The target of that name: "cpu", or a GPU's architecture. Raises ValueError."""
    found = next((at for t in _targets.values() if (at := t.at(where)) is not None), None) if isinstance(where, str) else None
    if found is None:
        raise ValueError(f"target must be one of {', '.join(_targets)}, got {where!r}")
    return found
