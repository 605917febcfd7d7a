"""OrderedSpec: which kernel of the ordered family (scan, reduction, segmented reduction) is wanted, as canonical text."""

from __future__ import annotations

import dataclasses
import functools
import re

from ..ir.check import check_program
from ..ir.program import Program
from .elements import ArraySpec, check_dtypes, check_identity, params_of, scalars_of
from .kernel import KernelSpec, register_kind, rows_of

VERSION = 2
"""Part of every spec; raised when the meaning of the text changes."""

KINDS = ("scan", "reduce", "segments")

_FLAGS = ("exclusive", "reverse", "restarts", "across", "commutes")


@dataclasses.dataclass(frozen=True, eq=False)
class OrderedSpec(KernelSpec):
    """A kernel that combines elements in their order along one axis.

    A *state* is what the operator combines, a struct of scalars (slots). ``f`` makes a state of one element (its parameters are
    the arrays', in order), ``op`` combines two, ``finish`` makes the result's slots of one, leaf after leaf. Captured arrays
    (uniforms) serve all three. ``identity`` is a state's bits.

    ``across``: the elements of many independent sequences lie side by side in memory (the axis is not the innermost one), and
    a vector runs across them; else a vector runs along the sequence.
    """

    kind: str  # scan, reduce, segments
    arrays: tuple[ArraySpec, ...]
    uniforms: tuple[str, ...]
    state: tuple[str, ...]  # dtype of each slot
    leaves: tuple[tuple[str, int], ...]  # of the result: dtype, and slots of one element
    identity: tuple[int, ...] | None
    f: Program  # arrays' parameters -> a state
    op: Program  # (a's slots, b's slots) -> a state, a before b
    finish: Program  # a state -> leaves' slots
    exclusive: bool = False  # scan: the result leaves its own element out
    reverse: bool = False  # from the last element to the first
    restarts: bool = False  # scan: an operand of flags says where the sequence starts anew
    across: bool = False
    commutes: bool = False  # the operator is known to

    @property
    def family(self) -> str:
        """The name of the family that it is a kernel of."""
        return self.kind

    @property
    def is_map(self) -> bool:
        """A scan whose operator keeps its second operand: each result is made of its own element."""
        n, kept = len(self.state), [(i.op, i.attr) for i in (self.op.body[r] for r in self.op.results)]
        return self.kind == "scan" and not self.exclusive and kept == [("arg", n + k) for k in range(n)]

    @property
    def operators(self) -> tuple[Program, ...]:
        return (self.op,)

    def check(self) -> None:
        if not self.arrays or not self.state or not self.leaves:
            raise ValueError("a call has arrays, states and results")
        check_dtypes([*self.uniforms, *self.state])
        results = scalars_of(self.leaves)
        params = params_of(self.arrays)
        if any(a.slots not in (0, a.params) for a in self.arrays):
            raise ValueError("f takes all slots of an array")
        check_program(self.f, params, self.state, self.uniforms, "f")
        check_program(self.op, self.state * 2, self.state, self.uniforms, "op")
        check_program(self.finish, self.state, results, self.uniforms, "finish")
        check_identity(self.identity, self.state)
        self.check_modes()

    def check_modes(self) -> None:
        if self.family != "scan" and (self.exclusive or self.restarts != (self.family == "segments")):
            raise ValueError("scans alone are exclusive, scans and segments alone restart")

    @functools.cached_property
    def text(self) -> str:
        rows = [f"{self.kind} {VERSION}"]
        rows += [f"array {a.dtype} {a.slots} {a.params}" for a in self.arrays]
        rows += [f"uniform {u}" for u in self.uniforms]
        rows += [f"state {' '.join(self.state)}"]
        rows += [f"leaf {dtype} {slots}" for dtype, slots in self.leaves]
        rows += ["identity none" if self.identity is None else f"identity {' '.join(map(hex, self.identity))}"]
        rows += ["is " + " ".join(name for name in _FLAGS if getattr(self, name))]
        for name in ("f", "op", "finish"):
            rows += [name, getattr(self, name).text]
        return "\n".join(rows)

    @staticmethod
    def parse(text: str) -> OrderedSpec:
        """The inverse of ``text``."""
        pieces = re.split(r"(?m)^(f|op|finish)$", text)
        rows = rows_of(pieces[0], VERSION)
        identity = rows("identity")[0]
        programs = {name: Program.parse(p.strip("\n")) for name, p in zip(pieces[1::2], pieces[2::2], strict=True)}
        return OrderedSpec(
            kind=text.split(maxsplit=1)[0],
            arrays=tuple(ArraySpec(dtype, int(slots), int(params)) for dtype, slots, params in rows("array")),
            uniforms=tuple(row[0] for row in rows("uniform")),
            state=tuple(rows("state")[0]),
            leaves=tuple((dtype, int(slots)) for dtype, slots in rows("leaf")),
            identity=None if identity == ["none"] else tuple(int(word, 16) for word in identity),
            f=programs["f"],
            op=programs["op"],
            finish=programs["finish"],
            **{name: name in rows("is")[0] for name in _FLAGS},
        )


for _kind in KINDS:
    register_kind(_kind, OrderedSpec.parse)
