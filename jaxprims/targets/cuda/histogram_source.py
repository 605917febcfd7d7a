"""HistogramSpec -> ``namespace spec`` of a histogram's kernels, as CUDA C++; what launcher and explanations have to know of it.

How a bin is updated (Henriksen et al. 2020, III-B): by one hardware atomic for each slot (HDW), by compare-and-swap on the whole
entry (CAS), or under a lock (XCG). One text serves every architecture: what differs asks
``kArch``, ten times the compute capability.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

from ...ir.program import Program, is_float, itemsize
from ...operators import classify
from ...specs.histogram import HistogramSpec, PartSpec
from ...specs.histogram_layout import leaf_of_slot, slot_offsets
from .elements import (
    Elements,
    constants,
    function,
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
from .expr import Scalars, length, statements
from .table import convert
from .types import HALVES, from_memory, memory_type, to_memory

ARCHES = (80, 90)
"""Where something changes."""

_WORDS = (4, 8, 16)


def atomic_of(bins: PartSpec, arch: int) -> str:
    """How an entry is updated on this architecture: "HDW", "CAS" or "XCG"."""
    if _hardware(bins, arch) is not None:
        return "HDW"
    return "CAS" if slot_offsets(bins)[1] <= (16 if arch >= 90 else 8) else "XCG"


def entry_bytes(bins: PartSpec, arch: int) -> int:
    """Bytes of one lane's entry in a table: a whole word where it is compared and swapped."""
    if atomic_of(bins, arch) != "CAS":
        return table_layout(bins)[2]
    return next(w for w in _WORDS if w >= slot_offsets(bins)[1])


def is_direct(bins: PartSpec, arch: int) -> bool:
    """Has a table the result's own layout, so that the result can be one?"""
    one = len(bins.leaves) == 1 and bins.finish is None and set(bins.acc) == {bins.leaves[0][0]}
    return one and entry_bytes(bins, arch) == itemsize(bins.acc[0]) * bins.slots


def cluster_trips(bins: PartSpec) -> int:
    """How many ways to another block's shared memory and back an update takes, for one to the L2 cache; 0: none is sure to happen
    as one. What 32 bits, compare-and-swap of 64 and sums of floats become makes that sure; for all else there may be no
    instruction, and the assembler's way around reads and writes. Of sums it is a read and a compare-and-swap, where L2 adds."""
    atomics = _hardware(bins, ARCHES[-1])
    if atomics is None:
        return int(atomic_of(bins, ARCHES[-1]) == "XCG" or entry_bytes(bins, ARCHES[-1]) <= 8)
    if not all(itemsize(a.word) <= 4 or a.adds_floats for a in atomics):
        return 0
    return 2 if any(a.adds_floats for a in atomics) else 1


def loops_in_shared(bins: PartSpec) -> bool:
    """Is an update in shared memory a loop, in which threads that meet in an entry take turns? There are instructions for
    integers of 32 bits alone."""
    atomics = _hardware(bins, ARCHES[-1])
    return atomics is None or any(itemsize(a.word) > 4 or a.adds_floats for a in atomics)


def hdw_name(bins: PartSpec, arch: int) -> str | None:
    """The operators of the hardware's atomics, as explanations show them ("add", "max, add"), or None."""
    atomics = _hardware(bins, arch)
    return None if atomics is None else ", ".join(dict.fromkeys(a.name for a in atomics))


def table_layout(bins: PartSpec) -> tuple[tuple[str, ...], list[int], int]:
    """The dtype and the place of each slot in a table's entry, and the entry's size: before it is made a whole word."""
    atomics = _hardware(bins, ARCHES[-1])
    stored = bins.acc if atomics is None else tuple(a.word for a in atomics)
    return stored, *slot_offsets(dataclasses.replace(bins, acc=stored))


@dataclasses.dataclass(frozen=True)
class _Atomic:
    """A slot's hardware atomic: the operator's name, the device's function, and the dtype that it works on. Small integers and
    booleans take a word of 32 bits, whose lowest bits are theirs."""

    name: str
    function: str
    word: str
    since: int = 0

    @property
    def adds_floats(self) -> bool:
        return self.name == "add" and is_float(self.word)


_LOGIC = {"add": "Or", "or": "Or", "max": "Or", "mul": "And", "and": "And", "min": "And", "xor": "Xor"}
_BITWISE = {"and": "And", "or": "Or", "xor": "Xor"}
_ORDER = {"min": "Min", "max": "Max"}


def _atomic(name: str | None, dtype: str) -> _Atomic | None:
    if name is None:
        return None
    bits = max(32, 8 * itemsize(dtype))
    if dtype == "b1":
        return _Atomic(name, f"Atomic{_LOGIC[name]}", "u32") if name in _LOGIC else None
    if name == "add":
        half = HALVES.get(dtype, "")
        word = dtype if is_float(dtype) else f"{dtype[0]}{bits}"
        return _Atomic(name, f"AtomicAdd{half}", word, 90 if dtype == "bf16" else 0)
    if is_float(dtype):
        return _Atomic(name, f"AtomicFloat{_ORDER[name]}", dtype) if name in _ORDER and dtype not in HALVES else None
    if name in _BITWISE:
        return _Atomic(name, f"Atomic{_BITWISE[name]}", f"u{bits}")
    return _Atomic(name, f"Atomic{_ORDER[name]}", f"{dtype[0]}{bits}") if name in _ORDER else None


@functools.lru_cache(maxsize=1024)
def _hardware(bins: PartSpec, arch: int) -> tuple[_Atomic, ...] | None:
    """By slot, if each has an atomic."""
    if any(len(group) > 1 for group in classify.parts(bins.op)):
        return None
    found = [_atomic(classify.recognise(classify.restrict(bins.op, (k,))), t) for k, t in enumerate(bins.acc)]
    atomics = tuple(a for a in found if a is not None and a.since <= arch)
    widened = tuple(a.word for a in atomics) != bins.acc
    if len(atomics) < len(found) or (widened and any(a.since for a in atomics)):  # a table's layout is the same everywhere
        return None
    return atomics


# --- the text -------------------------------------------------------------------------------------------------------------------


def generated(spec: HistogramSpec) -> str:
    """``namespace spec``."""
    return namespace(_lines(spec))


def _lines(spec: HistogramSpec) -> Iterator[str]:
    sizes = {
        "Arrays": len(spec.arrays), "Uniforms": len(spec.uniforms), "Parts": len(spec.bins), "RunItems": run_items(spec),
        "FLength": length(spec.f),
        "AllLeaves": sum(len(b.leaves) for b in spec.bins), "MaxLanes": max(b.lanes for b in spec.bins),
    }  # fmt: skip
    yield numbers("int", sizes)
    yield f"using Index = {'i64' if spec.index == 's64' else 'i32'};"
    yield "enum class Atomic { kHdw, kCas, kXcg };"
    yield ""
    elements = Elements(spec.arrays, spec.f, *(p for b in spec.bins for p in (b.op, b.finish, b.outer)))
    yield from elements.structs(spec.uniforms)
    for g, bins in enumerate(spec.bins):
        yield ""
        yield from _Part(bins, elements.kept).lines(g)
        if bins.value is not None and bins.given:  # what is the same for all lanes
            yield from struct(f"Common{g}", slots(_given(spec, g)))
    yield ""
    yield from _accessors(spec)
    yield ""
    yield from _evaluate(spec, elements)


def run_items(spec: HistogramSpec) -> int:
    """How many neighbouring elements are read at once: 16 bytes of the array with the widest scalars."""
    plain = [itemsize(a.dtype) for a in spec.arrays if a.slots == 1]
    widest = max(plain or [itemsize(a.dtype) * a.slots for a in spec.arrays if a.slots] or [4])
    items = 8
    while items > 1 and items * widest > 16:
        items //= 2
    return items


def _by_arch(value: Callable[[int], str]) -> str:
    """An expression of what may differ between architectures."""
    old, new = (value(arch) for arch in ARCHES)
    return old if old == new else f"kArch >= {ARCHES[1]} ? {new} : {old}"


class _Part:
    """``struct Part<g>``."""

    def __init__(self, bins: PartSpec, kept: Scalars):
        self.bins = bins
        self.kept = kept
        self.stored, self.offsets, self.size = table_layout(bins)
        self.atomics = _hardware(bins, ARCHES[-1])
        self.leaves = leaf_of_slot(bins)
        self.classes = {arch: atomic_of(bins, arch) for arch in ARCHES}

    def lines(self, g: int) -> Iterator[str]:
        yield f"struct Part{g} {{"
        for line in self._members():
            yield f"  {line}" if line and line[0] != "#" else line
        yield "};"

    def _members(self) -> Iterator[str]:
        bins = self.bins
        sizes = {"Updates": bins.updates, "Lanes": bins.lanes, "Slots": bins.slots, "Leaves": len(bins.leaves)}
        yield f"static {numbers('int', sizes)}"
        flags = {"Dest": bins.dest, "HasIdentity": bins.identity is not None, "MayNotEnd": bins.op.may_not_end}
        yield f"static {numbers('bool', flags)}"
        yield f"static constexpr Atomic kAtomic = {_by_arch(lambda arch: f'Atomic::k{self.classes[arch].capitalize()}')};"
        yield f"static constexpr int kEntryBytes = {_by_arch(lambda arch: str(entry_bytes(bins, arch)))};"
        sum_of_f32 = bins.acc == ("f32",) and hdw_name(bins, ARCHES[0]) == "add"
        yield f"static {numbers('bool', {'AddsF32': sum_of_f32, 'LoopsInShared': loops_in_shared(bins)})}"
        yield f"static constexpr bool kDirect = {_by_arch(lambda arch: str(is_direct(bins, arch)).lower())};"
        yield ""
        yield from struct("Value", slots(bins.acc))
        yield "template <class Fn>"
        yield f"static JP_DEVICE Value Each(const Value& a, Fn fn) {{ return {of_slots('fn(a.s#)', bins.slots)}; }}"
        yield f"static JP_DEVICE Value Identity() {{ return {constants(bins.acc, bins.identity)}; }}"
        yield from self._returning("Value", "Op", bins.op, {"Value": ["a", "b"]})
        yield ""
        yield from self._entries()
        yield from self._leaves_and_dest()

    def _returning(self, result: str, name: str, program: Program, parameters: dict[str, Sequence[str]]) -> list[str]:
        names = [(t, x) for t, xs in parameters.items() for x in xs]
        head = ", ".join([uniforms_parameter(program), *(f"const {t}& {x}" for t, x in names)])
        return returning(f"static JP_DEVICE {result} {name}({head})", program, [x for _, x in names], self.kept)

    # --- entries of a table -----------------------------------------------------------------------------------------------------

    def _entries(self) -> Iterator[str]:
        rows = list(zip(range(self.bins.slots), self.offsets, self.stored, self.bins.acc, strict=True))
        values = []
        for _, o, word, t in rows:
            value = from_memory(f"*reinterpret_cast<const {memory_type(word)}*>({plus('entry', o)})", word)
            values.append(convert(value, word, t))
        yield from function("static JP_DEVICE Value Read(const char* entry)", [f"  return {{{', '.join(values)}}};"])
        writes, updates = [], []
        for k, o, word, t in rows:
            value = to_memory(convert(f"a.s{k}", t, word), word)
            place = f"reinterpret_cast<{memory_type(word)}*>({plus('entry', o)})"
            if self.atomics is not None:
                updates.append(f"  {self.atomics[k].function}({place}, {value});")
                if "Float" in self.atomics[k].function:
                    value = f"Nan{'AboveAll' if self.atomics[k].name == 'max' else 'BelowAll'}({value})"
            writes.append(f"  *{place} = {value};")
        yield from function("static JP_DEVICE void Write(char* entry, const Value& a)", writes)
        if "CAS" in self.classes.values():
            yield from self._packing()
        if self.atomics is not None:
            yield from function("static JP_DEVICE void UpdateHdw(char* entry, const Value& a)", updates)
        yield ""

    def _packing(self) -> Iterator[str]:
        """The entry as one word; bits between slots are 0."""
        size = next(w for w in _WORDS if w >= self.size)
        half = "u32" if size == 4 else "u64"
        halves: list[list[str]] = [[] for _ in range(max(1, size // 8))]
        values = []
        for k, (o, t) in enumerate(zip(self.offsets, self.bins.acc, strict=True)):
            which, shift = divmod(o, 8)
            halves[which].append(_bits(f"a.s{k}", t, half) + (f" << {8 * shift}" if shift else ""))
            source = f"word.{('lo', 'hi')[which]}" if size == 16 else "word"
            values.append(_from_bits(f"{source} >> {8 * shift}" if shift else source, half, t))
        words = [" | ".join(parts) for parts in halves]
        packed = f"{{{', '.join(words)}}}" if size == 16 else words[0]
        yield f"using Word = u{8 * size};"
        yield from function("static JP_DEVICE Word Pack(const Value& a)", [f"  return {packed};"])
        yield from function("static JP_DEVICE Value Unpack(const Word& word)", [f"  return {{{', '.join(values)}}};"])

    # --- the result -------------------------------------------------------------------------------------------------------------

    def _leaves_and_dest(self) -> Iterator[str]:
        bins = self.bins
        dtypes = [(k, t) for k, (t, _) in enumerate(bins.leaves)]
        yield from operands("Outs", "o", dtypes, "", "static ")
        yield from operands("Dests", "d", dtypes if bins.dest else [], "const ", "static ")
        leaf_type = "Value"
        if bins.finish is not None:
            leaf_type = "Result"
            yield from struct("Result", slots([t for _, _, t, _ in self.leaves]))
            yield from self._returning("Result", "ToResult", bins.finish, {"Value": ["a"]})
            if bins.outer is not None:
                yield from self._returning("Result", "Outer", bins.outer, {"Result": ["a", "b"]})
        given = [from_memory(f"dests.d{k}[{_at(n, s)}]", t) for k, s, t, n in self.leaves]
        names = "const Dests& dests, i64 entry" if bins.dest else "const Dests&, i64"
        if bins.dest:
            yield f"static JP_DEVICE {leaf_type} Given({names}) {{ return {{{', '.join(given)}}}; }}"
        # what tables start from where the identity is not known
        start = "Given(dests, entry)" if bins.dest and bins.finish is None else "{}"
        used = bins.dest and bins.finish is None
        yield f"static JP_DEVICE Value FromDest({names if used else 'const Dests&, i64'}) {{ return {start}; }}"
        names = "const Outs& outs, const Dests& dests, const Uniforms& u, i64 entry, const Value& a, bool with_dest"
        yield f"static JP_DEVICE void Finish({names}) {{"
        yield f"  {leaf_type} r = {'a' if bins.finish is None else 'ToResult(u, a)'};"
        if bins.dest:
            yield f"  if (with_dest) r = {'Op' if bins.outer is None else 'Outer'}(u, Given(dests, entry), r);"
        for slot, (k, s, t, n) in enumerate(self.leaves):
            yield f"  outs.o{k}[{_at(n, s)}] = {to_memory(f'r.s{slot}', t)};"
        yield "}"


def _at(n: int, s: int) -> str:
    return plus(times("entry", n), s)


def _bits(value: str, dtype: str, half: str) -> str:
    """A scalar's bits, in a word of type ``half``."""
    bits = f"u{8 * itemsize(dtype)}"
    word = f"u8({value})" if dtype == "b1" else to_memory(value, dtype)
    word = word if memory_type(dtype) == bits else f"BitCast<{bits}>({word})"
    return word if bits == half else f"static_cast<{half}>({word})"


def _from_bits(word: str, half: str, dtype: str) -> str:
    """The inverse; bits above the scalar's are dropped."""
    bits = f"u{8 * itemsize(dtype)}"
    narrow = word if bits == half else f"static_cast<{bits}>({word})"
    return from_memory(narrow if memory_type(dtype) == bits else f"BitCast<{memory_type(dtype)}>({narrow})", dtype)


# --- f --------------------------------------------------------------------------------------------------------------------------


def _accessors(spec: HistogramSpec) -> Iterator[str]:
    parts = range(len(spec.bins))
    yield "template <int g> struct PartOf;"
    for g in parts:
        yield f"template <> struct PartOf<{g}> {{ using type = Part{g}; }};"
    yield "template <int g>"
    yield "using Part = typename PartOf<g>::type;"
    yield ""
    members = []
    for g, bins in enumerate(spec.bins):
        members += [f"Index i{g}[Part{g}::kUpdates]", f"Part{g}::Value v{g}[Part{g}::kUpdates]"]
        members += [f"Common{g} c{g}"] if bins.value is not None and bins.given else []
    yield from struct("Updates", members)
    for result, name, letter in (("Index", "IndexOf", "i"), ("const typename Part<g>::Value&", "ValueOf", "v")):
        yield "template <int g>"
        yield f"JP_DEVICE {result} {name}(const Updates& updates, int k) {{"
        for g in parts:
            yield f"  if constexpr (g == {g}) return updates.{letter}{g}[k];"
        yield "}"


def _given(spec: HistogramSpec, g: int) -> tuple[str, ...]:
    """The dtypes of what f gives for an update of a part, beside its index."""
    at = sum(b.updates * (1 + b.given) for b in spec.bins[:g]) + spec.bins[g].updates
    return spec.f.result_dtypes[at : at + spec.bins[g].given]


def _evaluate(spec: HistogramSpec, elements: Elements) -> Iterator[str]:
    lines, results = elements.body()
    stores, at = [], 0
    for g, bins in enumerate(spec.bins):
        stores += [f"  to.i{g}[{k}] = {results[at + k]};" for k in range(bins.updates)]
        at += bins.updates
        if bins.value is not None:
            stores += [f"  to.c{g} = {{{', '.join(results[at : at + bins.given])}}};"] if bins.given else []
            at += bins.given
            continue
        for k in range(bins.updates):
            stores.append(f"  to.v{g}[{k}] = {{{', '.join(results[at : at + bins.slots])}}};")
            at += bins.slots
    parameters = ", ".join([uniforms_parameter(spec.f), *elements.parameters, "Updates& to"])
    yield from function(f"JP_DEVICE void Map({parameters})", [*lines, *stores])

    rows = [(g, bins, bins.value) for g, bins in enumerate(spec.bins) if bins.value is not None]
    own = any(row.own for _, bins, _ in rows for row in bins.rows)
    captured = any(not row.own for _, bins, _ in rows for row in bins.rows)
    if rows:  # values of array-valued bins are made when it is their lane's turn
        head = [
            f"const Arrays&{' in' * own}",
            f"const Uniforms&{' u' * captured}",
            f"i64{' element' * own}",
            "int lane",
            "Updates& to",
        ]
        yield f"JP_DEVICE void ReadLane({', '.join(head)}) {{"
        for g, bins, value in rows:
            lines, results = statements(value, _lane(spec, g), "    ")
            guard = f"if (lane < {bins.lanes}) " if len(rows) > 1 else ""
            yield from [f"  {guard}{{", *lines, f"    to.v{g}[0] = {{{', '.join(results)}}};", "  }"]
        yield "}"

    yield from elements.runs()
    given = ", ".join(["u", *elements.args("element", "element"), "to[k]"])
    parameters = "const Arrays& in, const Uniforms& u, i64 element, const Run<kCount>& run, Updates (&to)[kCount]"
    yield "template <int kCount>"
    yield f"JP_DEVICE void EvaluateRun({parameters}, int{' lane' if rows else ''} = 0) {{"
    yield "#pragma unroll"
    yield "  for (int k = 0; k < kCount; ++k) {"
    yield f"    Map({given});"
    if rows:
        yield "    ReadLane(in, u, element + k, lane, to[k]);"
    yield "  }"
    yield "}"
    yield "JP_DEVICE void Evaluate(const Arrays& in, const Uniforms& u, i64 element, int lane, Updates& to) {"
    yield "  Run<1> run[1];"
    yield "  Read(in, element, 0, run);"
    yield "  Updates one[1];"
    yield "  EvaluateRun(in, u, element, run[0], one, lane);"
    yield "  to = one[0];"
    yield "}"


def _lane(spec: HistogramSpec, g: int) -> list[str]:
    """The arguments of a part's ``value``: what lies at ``lane`` in each row, and scalars."""
    bins, out, base = spec.bins[g], [], 0
    for row in bins.rows:
        name, dtype, start = f"u.u{row.number}", "", ""
        if row.own:
            array = spec.arrays[row.number]
            name, dtype, start = f"in.a{row.number}", array.dtype, f"element * {array.slots} + "
        else:
            dtype = spec.uniforms[row.number]
            if row.based:
                start = f"static_cast<i64>(to.c{g}.s{base}) + "
                base += 1
        for s in range(bins.slots):
            at = times("lane", bins.slots) if row.each == 1 else f"lane / {row.each}"
            out.append(from_memory(f"{name}[{plus(start + at, row.offset + s)}]", dtype))
    return out + [f"to.c{g}.s{k}" for k in range(base, bins.given)]
