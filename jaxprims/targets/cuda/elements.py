"""What all kernels' specs have in common, as CUDA C++: structs, the arrays, f on runs of neighbouring elements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ...ir.program import Program
from ...specs.histogram import ArraySpec
from .expr import Scalars, fixed_loads, loads, statements
from .table import convert
from .types import constant, from_memory, memory_type, register_type

MOST_READ = 16
"""Slots of an element that are read as a whole; of larger ones only what f uses is."""

WIDTH = 130


def namespace(lines: Iterable[str]) -> str:
    """``namespace spec`` of these lines, the long ones broken."""
    out = ["namespace spec {", "using namespace jp;", "", *lines, "", "}  // namespace spec", ""]
    return "\n".join(part for line in out for part in _broken(line))


def _broken(line: str) -> list[str]:
    """The line, or its pieces, each as long as may be."""
    out = [line]
    while len(out[-1]) > WIDTH and (places := [m.start() for m in re.finditer("(?<=[,|]) ", out[-1])]):
        indent = len(out[-1]) - len(out[-1].lstrip()) + (4 if len(out) == 1 else 0)
        at = max((place for place in places if place <= WIDTH), default=places[0])
        out[-1:] = [out[-1][:at], " " * indent + out[-1][at + 1 :]]
    return out


def numbers(kind: str, values: Mapping[str, int | bool]) -> str:
    return f"constexpr {kind} {', '.join(f'k{name} = {str(value).lower()}' for name, value in values.items())};"


def struct(name: str, members: Sequence[str]) -> list[str]:
    return [f"struct {name} {{", *(f"  {m};" for m in members), "};"] if members else [f"struct {name} {{}};"]


def slots(dtypes: Sequence[str]) -> list[str]:
    """A struct's members: a scalar in registers each."""
    return [f"{register_type(t)} s{k}" for k, t in enumerate(dtypes)]


def of_slots(template: str, count: int) -> str:
    """``{...}`` with the template for each slot, # being its number."""
    return f"{{{', '.join(template.replace('#', str(k)) for k in range(count))}}}"


def constants(dtypes: Sequence[str], bits: Sequence[int] | None) -> str:
    if bits is None:
        return "{}"
    return f"{{{', '.join(constant(t, x) for t, x in zip(dtypes, bits, strict=True))}}}"


def function(head: str, lines: Sequence[str], indent: str = "") -> list[str]:
    return [f"{indent}{head} {{", *(indent + line for line in lines), f"{indent}}}"]


def returning(head: str, program: Program, structs: Sequence[str], kept: Scalars) -> list[str]:
    """A function of structs that returns one."""
    n = len(program.params) // len(structs)
    lines, results = statements(program, [f"{x}.s{k}" for x in structs for k in range(n)], kept=kept)
    return function(head, [*lines, f"  return {{{', '.join(results)}}};"])


def in_wide_words(wide: Sequence[str], moves: Sequence[str]) -> list[str]:
    """Moves of every run, # being whether by wide words: all of them where all conditions hold, else none: by one branch."""
    lines = []
    for opening, are in ((f"if ({' && '.join(wide) or 'true'}) {{", "true"), ("} else {", "false")):
        lines += [f"  {opening}", "#pragma unroll", "    for (int r = 0; r < kRuns; ++r) {"]
        lines += [*(f"      {move.replace('#', are)}" for move in moves), "    }"]
    return [*lines, "  }"]


def times(value: str, n: int) -> str:
    return value if n == 1 else f"{value} * {n}"


def plus(value: str, n: int) -> str:
    return f"{value} + {n}" if n else value


def uniforms_parameter(*programs: Program | None) -> str:
    """A parameter for the captured arrays, without a name where none is read."""
    return f"const Uniforms&{' u' if any(p is not None and loads(p) for p in programs) else ''}"


def operands(
    name: str,
    letter: str,
    dtypes: Sequence[tuple[int, str]],
    const: str,
    static: str = "",
    kept: Sequence[tuple[int, int]] = (),
) -> list[str]:
    """A struct of pointers to a member's operands, (number, dtype) each, and the function that makes it. kept: scalars of them
    (number, place) that are members, too."""
    types = {k: f"{const}{memory_type(t)}" for k, t in dtypes}
    members = [f"{t}* {letter}{k}" for k, t in types.items()]
    members += [f"{memory_type(dict(dtypes)[k])} {letter}{k}_{at}" for k, at in kept]
    made = [f"Place<{t}>(operands[{k}], m)" for k, t in types.items()]
    made += [f"LoadConstant(Place<{types[k]}>(operands[{k}], m) + {at})" for k, at in kept]
    places = ", ".join(made)
    parameters = "const Operand* operands, const Member& m" if dtypes else "const Operand*, const Member&"
    return [
        *struct(name, members),
        *function(f"{static}JP_DEVICE {name} {name}Of({parameters})", [f"  return {{{places}}};"]),
    ]


class Elements:
    """The arrays, and f of neighbouring elements. The function's parameters are those of f's that it uses, ``x<number>``."""

    def __init__(self, arrays: Sequence[ArraySpec], f: Program, *others: Program | None):
        """others: the Programs that read captured arrays beside f."""
        self.arrays = arrays
        self.kept = fixed_loads([f, *(p for p in others if p is not None)])
        every = [(k, s) for k, a in enumerate(arrays) for s in range(a.params)]
        self.used = [(p, *every[p]) for p in sorted(f.used)]
        self.f = f

    def structs(self, uniforms: Sequence[str]) -> list[str]:
        arrays = [(k, a.dtype) for k, a in enumerate(self.arrays) if a.slots]
        return [
            *operands("Arrays", "a", arrays, "const "),
            *operands("Uniforms", "u", list(enumerate(uniforms)), "const ", kept=sorted(self.kept)),
        ]

    @property
    def parameters(self) -> list[str]:
        return [f"{register_type(self.f.params[p])} x{p}" for p, _, _ in self.used]

    def body(self) -> tuple[list[str], list[str]]:
        """f's statements and results."""
        return statements(self.f, [f"x{p}" for p in range(len(self.f.params))], kept=self.kept)

    def whole(self) -> dict[int, ArraySpec]:
        """The arrays whose elements are read as a whole, by number."""
        return {k: self.arrays[k] for _, k, _ in self.used if 0 < self.arrays[k].slots <= MOST_READ}

    def runs(self) -> list[str]:
        """``Run``: what is read of neighbouring elements; and ``Read``, which reads runs from memory's ``first`` on, each
        ``step``, a multiple of their length, behind the one before: all of them in wide words or none, and so by one branch."""
        whole = self.whole()
        members = [f"{memory_type(a.dtype)} a{k}[{times('kCount', a.slots)}]" for k, a in whole.items()]
        template, head = "template <int kCount>", "JP_DEVICE void Read("
        lines = [template, *struct("Run", members), "template <int kRuns, int kCount>"]
        if not whole:
            return [*lines, *function(f"{head}const Arrays&, i64, i64, Run<kCount> (&)[kRuns])", [])]
        wide = [f"IsWide<{times('kCount', a.slots)}>(in.a{k}, {times('first', a.slots)})" for k, a in whole.items()]
        moves = [f"ReadRun<#>(in.a{k} + {times('(first + r * step)', a.slots)}, run[r].a{k});" for k, a in whole.items()]
        parameters = "const Arrays& in, i64 first, i64 step, Run<kCount> (&run)[kRuns]"
        return [*lines, *function(f"{head}{parameters})", in_wide_words(wide, moves))]

    def ahead(self) -> list[str]:
        """``Ahead``: a warp asks for what will be read of the elements from ``first`` to before ``last``."""
        places = {k: [times(x, a.slots) for x in ("first", "last")] for k, a in self.whole().items()}
        body = [f"  AskFor(in.a{k}, {first}, {last});" for k, (first, last) in places.items()]
        parameters = "const Arrays& in, i64 first, i64 last" if body else "const Arrays&, i64, i64"
        return function(f"JP_DEVICE void Ahead({parameters})", body)

    def args(self, first: str, position: str) -> list[str]:
        """f's arguments for the ``k``-th element of ``run``, from memory's ``first`` on, at ``position`` along the axis."""
        args = []
        for _, k, s in self.used:
            a = self.arrays[k]
            if a.slots == 0:
                args.append(convert(f"{position} + k", "s64", a.dtype))
            elif a.slots > MOST_READ:
                args.append(from_memory(f"in.a{k}[{plus(f'({first} + k) * {a.slots}', s)}]", a.dtype))
            else:
                args.append(from_memory(f"run.a{k}[{plus(times('k', a.slots), s)}]", a.dtype))
        return args

    def uses(self, position: bool) -> bool:
        """Does f use an array, or a position?"""
        return any((self.arrays[k].slots == 0) == position for _, k, _ in self.used)
