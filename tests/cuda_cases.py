"""Specs of every kind for the CUDA generator, and one thread that stands in for a skeleton."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp
from jaxprims.ir import program as P
from jaxprims.ir.evaluate import evaluate
from jaxprims.specs.histogram import ArraySpec, HistogramSpec, PartSpec
from jaxprims.specs.ordered import OrderedSpec
from jaxprims.targets.cuda import histogram_source as cuda_hist_source
from jaxprims.targets.cuda import ordered_source as cuda_scan_source
from jaxprims.targets.cuda import source as cuda_source

N, H = 37, 7
monoids = jp.monoids


Case = tuple[Callable[..., Any], tuple[Any, ...]]


def case(f: Callable[..., Any], *args: Any) -> Case:
    return f, args


def a(*shape: int, t: Any = jnp.float32, n: int = N) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((n, *shape), t)


def last_nonzero(p: Any, q: Any) -> Any:
    return jnp.where(q == 0, p, q)


def matmul(p: Any, q: Any) -> Any:
    return jnp.einsum("ij,jk->ik", p, q)


def moments(p: Any, q: Any) -> Any:
    n = p[0] + q[0]
    delta, share = q[1] - p[1], q[0] / jnp.where(n == 0, 1, n)
    return n, p[1] + delta * share, p[2] + q[2] + delta * delta * p[0] * share


def sums(p: Any, q: Any) -> Any:
    return jax.tree.map(jnp.add, p, q)


def maxima_and_sums(p: Any, q: Any) -> Any:
    return p[0] + q[0], jnp.maximum(p[1], q[1]), p[2] | q[2]


def digits(p: Any, q: Any) -> Any:
    count = jax.lax.while_loop(lambda c: c[0] > 0, lambda c: (c[0] // 10, c[1] + 1), (q, jnp.int32(0)))[1]
    total = jax.lax.fori_loop(0, 3, lambda i, s: s + i * q, p)
    return jax.lax.cond(count > 2, lambda: total * count, lambda: p + q)


F16, BF16, F64, S32, S64, U8, B1, C64 = (
    jnp.float16, jnp.bfloat16, jnp.float64, jnp.int32, jnp.int64, jnp.uint8, jnp.bool_, jnp.complex64
)  # fmt: skip
EYE = np.eye(2, dtype=np.float32)


def ordered() -> dict[str, Case]:
    x = a()
    table = jax.ShapeDtypeStruct((32,), jnp.float32)

    def lookup(x: Any, w: Any) -> Any:
        return jp.scan(x, map=lambda v: v * w[jnp.clip(v.astype(S32), 0, 31)])

    return {
        "add": case(jp.scan, x),
        "affine": case(lambda x, y: jp.scan((x, y), monoids.affine), x, x),
        "matmul": case(lambda x: jp.scan(x, matmul), a(2, 2)),
        "bf16": case(jp.scan, a(t=BF16)),
        "f16": case(lambda x: jp.scan(x, jnp.multiply), a(t=F16)),
        "u8": case(jp.scan, a(t=U8)),
        "b1": case(lambda x: jp.scan(x, jnp.logical_xor), a(t=B1)),
        "s8": case(lambda x: jp.scan(x, last_nonzero), a(t=jnp.int8)),
        "f64": case(lambda x: jp.scan(x, jnp.maximum), a(t=F64)),
        "complex": case(lambda x: jp.scan(x, jnp.multiply), a(t=C64)),
        "tree": case(lambda *x: jp.scan(x, maxima_and_sums), x, a(t=S64), a(t=B1)),
        "side by side": case(jp.scan, a(3, t=BF16)),
        "across": case(jp.scan, a(16)),
        "init": case(lambda x, i: jp.scan(x, exclusive=True, init=i), x, jnp.float32(2)),
        "lookup": case(lookup, x, table),
        "positions": case(lambda x: jp.reduce((x, jp.positions), monoids.argmax), x),
        "positions of f64": case(lambda x: jp.reduce((x, jp.positions), monoids.argmin), a(t=F64)),
        "control": case(lambda x: jp.reduce(x, digits), a(t=S32)),
        "matmul of 3": case(lambda x: jp.reduce(x, matmul, axis=0, init=np.eye(3)), a(3, 3, t=F64)),
        "mean": case(
            lambda x, o: jp.segment_reduce(x, jp.Offsets(o), sums, map=lambda v: (v, S32(1)), identity=(np.float16(0), 0)),
            a(t=F16),
            jax.ShapeDtypeStruct((5,), S32),
        ),
    }


def by(op: Any, **more: Any) -> Callable[..., Any]:
    return lambda v, i, *d: jp.reduce_by_index(v, i, H, op, **more, **({"dest": d[0]} if d else {}))


def dest(*shape: int, t: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((H, *shape), t)


def of_one(v: Any, i: Any) -> Any:
    return i, (jnp.float32(1), v, v * 0)


def first_least(p: Any, q: Any) -> Any:
    """The lesser of two tuples."""
    key = lambda v: (v[0].astype(S32) * 2 + v[1]) * 256 + v[3]  # noqa: E731
    return jax.tree.map(lambda x, y: jnp.where(key(q) < key(p), y, x), p, q)


LAST = (np.uint8(255), np.bool_(True), np.float16(0), np.uint8(255))


def two_parts(p: Any) -> Any:
    return [(k := p[0].astype(S32), p[1]), (k, S32(1))]


def three_parts(v: Any, i: Any) -> Any:
    return [(i, v), (i % 3, v.astype(S32)), (i // 2, (v, v))]


def histograms() -> dict[str, Case]:
    x, i = a(), a(t=S32)
    start = (np.float32(0),) * 3
    bins = [jp.Bins(H, jnp.maximum), jp.Bins(3, jnp.bitwise_xor), jp.Bins(4, sums, identity=start[:2])]
    return {
        "add": case(by(jnp.add), x, i),
        "count": case(lambda i: jp.genhist(lambda k: (k, S32(1)), i, jp.Bins(H)), i),
        "max": case(by(jnp.maximum), x, i),
        "min of f64": case(by(jnp.minimum), a(t=F64), i),
        "product": case(by(jnp.multiply), x, i),
        "and": case(by(jnp.bitwise_and), a(t=S64), i),
        "max of s8": case(by(jnp.maximum), a(t=jnp.int8), i),
        "product of u16": case(by(jnp.multiply), a(t=jnp.uint16), i),
        "bf16": case(by(jnp.add), a(t=BF16), i),
        "bf16 product": case(by(jnp.multiply), a(t=BF16), i, dest(t=BF16)),
        "u8": case(by(jnp.add), a(t=U8), i),
        "b1": case(by(jnp.logical_or), a(t=B1), i),
        "saturating": case(by(lambda p, q: jnp.minimum(p + q, 5), identity=0), a(t=jnp.uint32), i),
        "argmax": case(lambda v, i: jp.reduce_by_index((v, jp.positions), i, H, monoids.argmax), x, i),
        "argmin of f64": case(lambda v, i: jp.reduce_by_index((v, jp.positions), i, H, monoids.argmin), a(t=F64), i),
        "moments": case(lambda *e: jp.genhist(of_one, e, jp.Bins(H, moments, identity=start)), x, i),
        "matmul": case(by(matmul), a(2, 2), i, dest(2, 2)),
        "small slots": case(lambda i, *v: by(first_least, identity=LAST)(v, i), i, *(a(t=t) for t in (U8, B1, F16, U8))),
        "captured": case(lambda v, i, most: by(lambda p, q: jnp.minimum(p + q, most), identity=0)(v, i), x, i, np.float32(5)),
        "dest": case(by(jnp.add), x, i, dest()),
        "complex product": case(by(jnp.multiply), a(t=C64), i),
        "lanes": case(by(jnp.add), a(40), i),
        "lanes of bf16": case(by(jnp.add), a(48, t=BF16), a(t=S64)),
        "lanes and dest": case(by(jnp.multiply), a(36, t=S32), i, dest(36, t=S32)),
        "rows": case(lambda h, w, s, i: jp.genhist(lambda w, s, i: (i, w * h[s]), (w, s, i), jp.Bins(H)), a(12, n=5), x, i, i),
        "products of rows": case(
            lambda h, s, i: jp.genhist(lambda s, i: (i, jnp.dot(h[s], h[i & 3])), (s, i), jp.Bins(H)), a(12, n=5), i, i
        ),
        "rows of several": case(
            lambda h, x, s, i: jp.genhist(
                lambda x, s, i: (i, jnp.maximum(x[:20], x[20:] - h[0]) * h[s]), (x, s, i), jp.Bins(H, jnp.multiply)
            ),
            a(20, n=3, t=S32), a(40, t=S32), i, i,
        ),
        "two parts": case(lambda p: jp.genhist(two_parts, p, [jp.Bins(H)] * 2), a(2)),
        "three parts": case(lambda *e: jp.genhist(three_parts, e, bins), x, i),
        "updates": case(
            lambda *e: jp.genhist(lambda v, i: (jnp.stack([i - 1, i, i + 1]), jnp.stack([v, 2 * v, v])), e, jp.Bins(H)), x, i
        ),
    }  # fmt: skip


CASES = {**{f"ordered {k}": v for k, v in ordered().items()}, **{f"histogram {k}": v for k, v in histograms().items()}}


@functools.cache
def spec_of(name: str) -> Any:
    f, args = CASES[name]
    with jax.enable_x64(True):
        return jp.explain(f)(*args).calls[0].spec


def bins_of(name: str) -> PartSpec:
    return spec_of(f"histogram {name}").bins[0]


# --- what stands in for a skeleton: one thread, element by element --------------------------------------------------------------

EXPORT = 'extern "C" __attribute__((visibility("default")))'

SCAN = """
namespace jp {
JP_DEVICE void Fold(const Call& call, i64 lane) {
  const Row row = RowOf(call, 0);
  const auto& u = row.uniforms;
  spec::State runs[1][4], total = spec::Identity();
  auto& s = runs[0];
  bool any = call.has_init;
  if (any) total = InitOf(call, row, lane);
  for (i64 i = 0; i < call.n; i += 4) {
    const int count = call.n - i < 4 ? static_cast<int>(call.n - i) : 4;
    if (count == 4 && !spec::kAcross) {
      spec::Load(row.arrays, u, i, i, s);
    } else {
      for (int k = 0; k < count; ++k) s[k] = spec::LoadOne(row.arrays, u, (i + k) * call.lanes + lane, i + k);
    }
    for (int k = 0; k < count; ++k) {
      alignas(8) char memory[4 * kStateWords];
      StoreState(memory, total);
      total = spec::Choose(any, spec::Op(u, LoadState(memory), s[k]), s[k]);
      any = true;
      s[k] = spec::Each(total, [](auto x) { return x; });
    }
    if (count == 4 && !spec::kAcross) {
      spec::StoreRuns(row.outs, u, i, 0, runs);
    } else {
      for (int k = 0; k < count; ++k) spec::StoreOne(row.outs, u, (i + k) * call.lanes + lane, s[k]);
    }
  }
}
static_assert(spec::kStateBytes == STATE_BYTES, "as Python has it");
}  // namespace jp
"""
SCAN_ON_HOST = EXPORT + "void fold(const jp::Call* call, jp::i64 lane) { jp::Fold(*call, lane); }\n"
SCAN_ON_DEVICE = """
namespace jp {
JP_KERNEL(fold, Call, 32, 1) {
  Fold(p, Lane());
  if (p.n < 0) {
    const spec::State s = StateUp(StateDown(StateXor(spec::Identity(), 1), 2), 3);
    spec::StoreOne(RowOf(p, 1).outs, RowOf(p, 1).uniforms, 0, StateFrom(s, 0));
  }
}
}  // namespace jp
"""

HIST = """
namespace jp {
struct Test {
  char* table;
  i64 n, bins[spec::kParts];
  Operand arrays[AtLeastOne(spec::kArrays)], uniforms[AtLeastOne(spec::kUniforms)];
  Operand outs[spec::kAllLeaves], dests[spec::kAllLeaves];
};
template <int g>
JP_DEVICE void Add(const spec::Uniforms& u, char* table, i64 bins, const spec::Updates& updates, int lane) {
  using P = spec::Part<g>;
  for (int k = 0; k < P::kUpdates; ++k) {
    const i64 index = spec::IndexOf<g>(updates, k);
    if (index < 0 || index >= bins || lane >= P::kLanes) continue;
    char* entry = table + (index * P::kLanes + lane) * P::kEntryBytes;
    if constexpr (P::kAtomic == spec::Atomic::kHdw) {
      P::UpdateHdw(entry, spec::ValueOf<g>(updates, k));
    } else if constexpr (P::kAtomic == spec::Atomic::kCas) {
      auto* word = reinterpret_cast<typename P::Word*>(entry);
      static_assert(sizeof(*word) == P::kEntryBytes, "an entry is a word");
      *word = P::Pack(P::Op(u, P::Unpack(*word), spec::ValueOf<g>(updates, k)));
    } else {
      P::Write(entry, P::Op(u, P::Read(entry), spec::ValueOf<g>(updates, k)));
    }
  }
}
template <int g = 0>
JP_DEVICE void Run(const Test& t, int leaf = 0) {
  using P = spec::Part<g>;
  static_assert(static_cast<int>(P::kAtomic) == ATOMIC[g] && P::kEntryBytes == ENTRY_BYTES[g] && P::kDirect == DIRECT[g], "");
  const Member m = {};
  const auto in = spec::ArraysOf(t.arrays, m);
  const auto u = spec::UniformsOf(t.uniforms, m);
  const auto outs = P::OutsOf(t.outs + leaf, m);
  const auto dests = P::DestsOf(t.dests + leaf, m);
  const i64 entries = t.bins[g] * P::kLanes;
  const auto entry = [&](i64 e) { return t.table + e * P::kEntryBytes; };
  for (i64 e = 0; e < entries; ++e) P::Write(entry(e), P::kHasIdentity ? P::Identity() : P::FromDest(dests, e));
  const i64 whole = t.n / spec::kRunItems * spec::kRunItems;
  for (i64 i = 0; i < whole; i += spec::kRunItems) {
    spec::Updates run[spec::kRunItems];
    spec::Run<spec::kRunItems> read[1];
    spec::Read(in, i, 0, read);
    spec::EvaluateRun(in, u, i, read[0], run);
    for (const auto& updates : run) Add<g>(u, t.table, t.bins[g], updates, 0);
  }
  for (i64 i = 0; i < t.n; ++i) {
    for (int lane = i < whole; lane < P::kLanes; ++lane) {
      spec::Updates one;
      spec::Evaluate(in, u, i, lane, one);
      Add<g>(u, t.table, t.bins[g], one, lane);
    }
  }
  for (i64 e = 0; e < entries; ++e) P::Finish(outs, dests, u, e, P::Read(entry(e)), P::kDest && P::kHasIdentity);
  if constexpr (g + 1 < spec::kParts) Run<g + 1>(t, leaf + P::kLeaves);
}
}  // namespace jp
"""
HIST_ON_DEVICE = "JP_KERNEL(run, jp::Test, 32, 1) { jp::Run(p); }\n"
HIST_ON_HOST = """
#include <stdlib.h>
struct Alone final : emulation::Thread {
  uint64_t Meet(emulation::Collective, uint32_t, uint64_t, int, int) override { return 0; }
  uint32_t ActiveLanes(int) override { return 1; }
  bool BlockBarrier(bool x, int) override { return x; }
  void NamedBarrier(int, int, int) override {}
  void ClusterBarrier(int) override {}
  void Switch(int) override {}
  void Copy(void*, const void*, int, int) override {}
  void CommitCopies() override {}
  void WaitForCopies(int) override {}
  void* InBlockOfCluster(void* p, int, int) override { return p; }
  void Plain(const void*, int, bool, const void*) override {}
  void Ordered(const void*, int, emulation::Order, int) override {}
  void Fenced() override {}
  bool IsShared(const void*) const override { return false; }
  void Fail(const char*, int) override { abort(); }
};
EXPORT void run(const jp::Test* t) {
  Alone thread;
  int64_t events = 0;
  thread.events = &events;
  emulation::current = &thread;
  jp::Run(*t);
}
""".replace("EXPORT", EXPORT)


class Operand(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 4))


def operands(arrays: Sequence[np.ndarray | None]) -> Any:
    return (Operand * max(1, len(arrays)))(*(Operand(None if v is None else v.ctypes.data) for v in arrays))


def generated(spec: OrderedSpec | HistogramSpec) -> str:
    """Without its skeleton."""
    text = cuda_source.histogram_source(spec) if isinstance(spec, HistogramSpec) else cuda_source.ordered_source(spec)
    return re.sub(r'#include "(ordered/(scan|reduce|segments)|histogram/hist)\.cuh"', "", text)


def harnessed(spec: OrderedSpec | HistogramSpec, arch: int = 90) -> str:
    """With what stands in for it, and with checks of what Python says of it."""
    if isinstance(spec, OrderedSpec):
        return generated(spec) + SCAN.replace("STATE_BYTES", str(cuda_scan_source.state_bytes(spec)))
    known = {
        "ATOMIC": [("HDW", "CAS", "XCG").index(cuda_hist_source.atomic_of(b, arch)) for b in spec.bins],
        "ENTRY_BYTES": [cuda_hist_source.entry_bytes(b, arch) for b in spec.bins],
        "DIRECT": [int(cuda_hist_source.is_direct(b, arch)) for b in spec.bins],
    }
    constants = "".join(f"constexpr int {k}[] = {{{', '.join(map(str, v))}}};\n" for k, v in known.items())
    return generated(spec) + constants + HIST


def values(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "b1":
        return rng.random(shape) < 0.5
    low = 0 if dtype[0] == "u" else -2
    return rng.integers(low, 4, shape).astype(P.numpy_dtype(dtype))


def inputs_of(arrays: Sequence[ArraySpec], lanes: int = 1) -> list[np.ndarray | None]:
    return [values(s.dtype, (N, lanes, s.slots), k) if s.slots else None for k, s in enumerate(arrays)]


def uniforms_of(spec: OrderedSpec | HistogramSpec) -> list[np.ndarray]:
    return [values(t, (64,), 50 + k) for k, t in enumerate(spec.uniforms)]


def f_of(spec: OrderedSpec | HistogramSpec, inputs: Sequence[np.ndarray | None], lane: int = 0) -> list[np.ndarray]:
    """f's results on all elements."""
    params: list[np.ndarray] = []
    for s, x in zip(spec.arrays, inputs, strict=True):
        params += [np.arange(N).astype(P.numpy_dtype(s.dtype))] if x is None else [x[:, lane, k] for k in range(s.params)]
    return run_program(spec.f, params, uniforms_of(spec))


def run_program(program: P.Program, args: Sequence[np.ndarray], uniforms: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.broadcast_to(r, np.shape(args[0])) for r in evaluate(program, args, uniforms)]
