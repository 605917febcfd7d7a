"""OrderedSpec -> ``namespace spec`` of a kernel of the ordered family, as CUDA C++: all that its skeleton (cuda/kernels/ordered)
does not know itself."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.program import itemsize, register_bytes
from ...specs.elements import struct_of
from ...specs.ordered import KINDS, OrderedSpec
from .elements import (
    Elements,
    constants,
    function,
    in_wide_words,
    namespace,
    numbers,
    of_slots,
    operands,
    plus,
    returning,
    slots,
    struct,
    times,
    uniforms_parameter,
)
from .expr import Scalars, length
from .types import from_memory, memory_type, to_memory


def state_bytes(spec: OrderedSpec) -> int:
    """``sizeof(spec::State)``."""
    return struct_of(map(register_bytes, spec.state))[1]


def element_bytes(spec: OrderedSpec) -> tuple[int, int]:
    """Bytes of one element in memory: of all arrays, of all leaves."""
    read = sum(itemsize(a.dtype) * a.slots for a in spec.arrays)
    return read, sum(itemsize(t) * n for t, n in spec.leaves)


def generated(spec: OrderedSpec) -> str:
    """``namespace spec``."""
    return namespace(_lines(spec))


def _lines(spec: OrderedSpec) -> Iterator[str]:
    read, written = element_bytes(spec)
    sizes = {
        "Kind": KINDS.index(spec.kind), "Arrays": len(spec.arrays), "Uniforms": len(spec.uniforms), "Leaves": len(spec.leaves),
        "Slots": len(spec.state), "InBytes": read, "OutBytes": written, "OpLength": length(spec.op),
    }  # fmt: skip
    flags = {
        "Exclusive": spec.exclusive, "Reverse": spec.reverse, "Restarts": spec.restarts, "Across": spec.across,
        "HasIdentity": spec.identity is not None, "Commutes": spec.commutes,
        "Positions": any(a.slots == 0 for a in spec.arrays), "MayNotEnd": spec.op.may_not_end,
    }  # fmt: skip
    yield numbers("int", sizes)
    yield numbers("bool", flags)
    yield ""
    yield from struct("State", slots(spec.state))
    yield "constexpr int kStateBytes = sizeof(State);"
    n = len(spec.state)
    yield "template <class Fn>"
    yield f"JP_DEVICE State Each(const State& a, Fn fn) {{ return {of_slots('fn(a.s#)', n)}; }}"
    yield "JP_DEVICE State Choose(bool first, const State& a, const State& b) {"
    yield f"  return {of_slots('first ? a.s# : b.s#', n)};"
    yield "}"
    yield ""
    elements = Elements(spec.arrays, spec.f, spec.op, spec.finish)
    yield from elements.structs(spec.uniforms)
    yield from operands("Outs", "o", [(k, t) for k, (t, _) in enumerate(spec.leaves)], "")
    yield ""
    yield "JP_DEVICE State InitOf(const Operand* init, const i64* init_lane, const Member& m, i64 lane) {"
    for k, t in enumerate(spec.state):
        place = f"Place<const char>(init[{k}], m) + lane * init_lane[{k}]"
        yield f"  const auto i{k} = *reinterpret_cast<const {memory_type(t)}*>({place});"
    yield f"  return {{{', '.join(from_memory(f'i{k}', t) for k, t in enumerate(spec.state))}}};"
    yield "}"
    yield f"JP_DEVICE State Identity() {{ return {constants(spec.state, spec.identity)}; }}"
    yield ""
    u = uniforms_parameter(spec.op)
    yield from returning(f"JP_DEVICE State Op({u}, const State& a, const State& b)", spec.op, ["a", "b"], elements.kept)
    yield ""
    yield from _load(spec, elements)
    yield ""
    yield from _store(spec, elements.kept)


def _load(spec: OrderedSpec, elements: Elements) -> Iterator[str]:
    lines, results = elements.body()
    parameters = ", ".join([uniforms_parameter(spec.f), *elements.parameters])
    yield from function(f"JP_DEVICE State Map({parameters})", [*lines, f"  return {{{', '.join(results)}}};"])
    yield from elements.runs()
    if spec.kind == "scan":
        yield from elements.ahead()
    head = "const Arrays& in, const Uniforms& u, i64 first, i64 place"
    yield "template <int kRuns, int kCount>"
    yield f"JP_DEVICE void LoadRuns({head}, i64 step, State (&out)[kRuns][kCount]) {{"
    yield "  Run<kCount> runs[kRuns];"
    yield "  Read(in, first, step, runs);"
    yield "#pragma unroll"
    yield "  for (int r = 0; r < kRuns; ++r) {"
    yield "    const Run<kCount>& run = runs[r];"
    yield "    const i64 at = first + r * step, position = place + r * step;"
    yield "#pragma unroll"
    yield f"    for (int k = 0; k < kCount; ++k) out[r][k] = Map({', '.join(['u', *elements.args('at', 'position')])});"
    yield "  }"
    yield "}"
    yield "template <int kCount>"
    yield f"JP_DEVICE void Load({head}, State (&out)[kCount]) {{"
    yield "  State run[1][kCount];"
    yield "  LoadRuns(in, u, first, place, 0, run);"
    yield "#pragma unroll"
    yield "  for (int k = 0; k < kCount; ++k) out[k] = run[0][k];"
    yield "}"
    yield f"JP_DEVICE State LoadOne({head}) {{"
    yield "  State out[1];"
    yield "  Load(in, u, first, place, out);"
    yield "  return out[0];"
    yield "}"


def _store(spec: OrderedSpec, kept: Scalars) -> Iterator[str]:
    yield from struct("Result", slots(spec.finish.result_dtypes))
    u = uniforms_parameter(spec.finish)
    yield from returning(f"JP_DEVICE Result Finish({u}, const State& a)", spec.finish, ["a"], kept)
    yield "template <int kRuns, int kCount>"
    head = "const Outs& out, const Uniforms& u, i64 at"
    yield f"JP_DEVICE void StoreRuns({head}, i64 step, const State (&in)[kRuns][kCount]) {{"
    places, slot = [], 0
    for k, (t, n) in enumerate(spec.leaves):
        yield f"  {memory_type(t)} o{k}[kRuns][{times('kCount', n)}];"
        for s in range(n):
            value = to_memory(f"made.s{slot}", t)
            places.append(f"      o{k}[r][{plus(times('k', n), s)}] = {value};")
            slot += 1
    yield "#pragma unroll"
    yield "  for (int r = 0; r < kRuns; ++r) {"
    yield "#pragma unroll"
    yield "    for (int k = 0; k < kCount; ++k) {"
    yield "      const Result made = Finish(u, in[r][k]);"
    yield from places
    yield "    }"
    yield "  }"
    leaves = [(k, n) for k, (_, n) in enumerate(spec.leaves)]
    wide = [f"IsWide<{times('kCount', n)}>(out.o{k}, {times('at', n)})" for k, n in leaves]
    yield from in_wide_words(wide, [f"WriteRun<#>(out.o{k} + {times('(at + r * step)', n)}, o{k}[r]);" for k, n in leaves])
    yield "}"
    yield f"JP_DEVICE void StoreOne({head}, const State& s) {{"
    yield "  const State in[1][1] = {{s}};"
    yield "  StoreRuns(out, u, at, 0, in);"
    yield "}"
