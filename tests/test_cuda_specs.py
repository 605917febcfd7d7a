"""``namespace spec`` of representative specs: on the host, driven element by element by what stands in for a skeleton, against
their Programs; and what Python says of it (sizes, classes of atomics) against what C++ does."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cuda_cases import (
    CASES,
    HIST_ON_DEVICE,
    HIST_ON_HOST,
    SCAN_ON_DEVICE,
    SCAN_ON_HOST,
    H,
    N,
    bins_of,
    f_of,
    generated,
    harnessed,
    histograms,
    inputs_of,
    operands,
    ordered,
    run_program,
    spec_of,
    uniforms_of,
    values,
)
from expressions import assert_same
from test_cuda_codegen import CUDA, compiled

from jaxprims.ir import program as P
from jaxprims.specs.histogram import HistogramSpec, PartSpec
from jaxprims.specs.ordered import OrderedSpec
from jaxprims.targets.cuda import histogram_source as cuda_hist_source
from jaxprims.targets.cuda import nvrtc
from jaxprims.targets.cuda import ordered_source as cuda_scan_source
from jaxprims.targets.cuda import source as cuda_source


def assert_close(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """The same, up to the libraries' last digits in what is not exact."""
    if got.dtype.kind in "biu" or got.dtype.name == "bfloat16":
        assert_same(got, want, what, [])
    else:
        np.testing.assert_allclose(got, want, rtol=3e-6, atol=1e-6, err_msg=what)


@pytest.mark.cover(10)
@pytest.mark.parametrize("name", ordered())
def test_ordered(name: str) -> None:
    spec = spec_of(f"ordered {name}")
    lanes = 3 if spec.across else 1
    inputs, uniforms = inputs_of(spec.arrays, lanes), uniforms_of(spec)
    outs = [np.zeros((N, lanes, n), P.numpy_dtype(t)) for t, n in spec.leaves]
    init = [values(t, (lanes,), 90 + k) for k, t in enumerate(spec.state)]
    has_init = name in ("init", "matmul of 3", "across")
    library = compiled(harnessed(spec) + SCAN_ON_HOST)
    for lane in range(lanes):
        head = (ctypes.c_int64 * 9)(0, 1, 0, 0, 0, 0, N, lanes, has_init)
        lane_bytes = (ctypes.c_int64 * len(init))(*(v.itemsize for v in init))
        parts = [head, operands(inputs), operands([None]), operands(uniforms), operands(outs), operands(init), lane_bytes]
        library.fold(b"".join(bytes(part) for part in parts), ctypes.c_int64(lane))
        state = [v[lane] for v in init] if has_init else None
        fs = f_of(spec, inputs, lane)
        for i in range(N):
            element = [v[i] for v in fs]
            state = element if state is None else run_program(spec.op, [*state, *element], uniforms)
            got = [out[i, lane, s] for out in outs for s in range(out.shape[2])]
            for g, w in zip(got, run_program(spec.finish, state, uniforms), strict=True):
                assert_close(np.asarray(g), np.asarray(w, g.dtype), f"{name} at {i}")


def expected_part(
    spec: HistogramSpec, bins: PartSpec, h: int, index: Sequence[np.ndarray], rows: Any, dests: Any, lane: int
) -> Any:
    """The leaves' slots by bin, of one lane."""
    uniforms = uniforms_of(spec)
    given = [[d[e, lane, s] for d in dests for s in range(d.shape[2])] for e in range(h)] if bins.dest else None
    if bins.identity is None:
        assert given is not None
        table: Any = [list(row) for row in given]
    else:
        table = [[P.from_bits(x, t) for x, t in zip(bins.identity, bins.acc, strict=True)] for _ in range(h)]
    for i in range(N):
        for at, value in zip(index, rows, strict=True):
            if 0 <= at[i] < h:
                table[at[i]] = run_program(bins.op, [*table[at[i]], *(v[i] for v in value)], uniforms)
    out = [row if bins.finish is None else run_program(bins.finish, row, uniforms) for row in table]
    if given is not None and bins.identity is not None:
        out = [run_program(bins.outer or bins.op, [*d, *row], uniforms) for d, row in zip(given, out, strict=True)]
    return out


@pytest.mark.cover(17)
@pytest.mark.parametrize(
    ("name", "arch"), [*((name, 90) for name in histograms()), ("moments", 80), ("argmin of f64", 80), ("matmul", 80)]
)
def test_histograms(name: str, arch: int) -> None:
    spec = spec_of(f"histogram {name}")
    inputs, uniforms = inputs_of(spec.arrays), uniforms_of(spec)
    shapes = [(b, t, n) for b in spec.bins for t, n in b.leaves]
    outs = [np.zeros((H, b.lanes, n), P.numpy_dtype(t)) for b, t, n in shapes]
    dests = [values(t, (H, b.lanes, n), 70 + k) if b.dest else None for k, (b, t, n) in enumerate(shapes)]
    library = compiled(harnessed(spec, arch) + HIST_ON_HOST, f"sm_{arch}")
    memory = np.zeros(8 * 64 * H * 2, np.uint64)
    head = (ctypes.c_int64 * (1 + len(spec.bins)))(N, *[H] * len(spec.bins))
    where = ctypes.c_void_p(memory.ctypes.data + memory.ctypes.data % 16)
    parts = [where, head, operands(inputs), operands(uniforms), operands(outs), operands(dests)]
    library.run(b"".join(bytes(part) for part in parts))

    results, at, leaf = f_of(spec, inputs), 0, 0
    for bins in spec.bins:
        index = results[at : at + bins.updates]
        at += bins.updates
        rows = [results[at + k * bins.given : at + (k + 1) * bins.given] for k in range(bins.updates)]
        scalars = rows[0]
        at += bins.updates * bins.given
        mine, given = outs[leaf : leaf + len(bins.leaves)], dests[leaf : leaf + len(bins.leaves)]
        leaf += len(bins.leaves)
        for lane in range(bins.lanes):
            if bins.value is not None:
                rows = [run_program(bins.value, lane_of(bins, inputs, uniforms, scalars, lane), uniforms)]
            for e, row in enumerate(expected_part(spec, bins, H, index, rows, given, lane)):
                got = [out[e, lane, s] for out in mine for s in range(out.shape[2])]
                for g, w in zip(got, row, strict=True):
                    assert_close(np.asarray(g), np.asarray(w, g.dtype), f"{name}, bin {e}, lane {lane}")


def lane_of(bins: PartSpec, inputs: Any, uniforms: Any, scalars: Sequence[np.ndarray], lane: int) -> list[np.ndarray]:
    """What ``value`` is given: what lies at the lane in each row, and scalars."""
    out, bases = [], iter(scalars)
    for row in bins.rows:
        at = row.offset + lane * bins.slots + (next(bases) if row.based else np.zeros(N, int))
        for s in range(bins.slots):
            out.append(inputs[row.number][:, 0, at[0] + s] if row.own else uniforms[row.number][at + s])
    return [*out, *bases]


CLASSES = {
    "add": ("HDW", "HDW"), "max": ("HDW", "HDW"), "min of f64": ("HDW", "HDW"), "product": ("CAS", "CAS"), "and": ("HDW", "HDW"),
    "bf16": ("HDW", "HDW"), "u8": ("HDW", "HDW"), "b1": ("HDW", "HDW"), "argmax": ("HDW", "HDW"), "argmin of f64": ("XCG", "CAS"),
    "moments": ("XCG", "CAS"), "matmul": ("XCG", "CAS"), "complex product": ("CAS", "CAS"), "saturating": ("CAS", "CAS"),
}  # fmt: skip


def test_classes_of_atomics() -> None:
    for name, (old, new) in CLASSES.items():
        bins = bins_of(name)
        assert (cuda_hist_source.atomic_of(bins, 80), cuda_hist_source.atomic_of(bins, 90)) == (old, new), name
    bins = bins_of("moments")
    assert [cuda_hist_source.entry_bytes(bins, arch) for arch in (80, 90, 100)] == [12, 16, 16]
    bins = bins_of("u8")
    assert cuda_hist_source.entry_bytes(bins, 90) == 4 and not cuda_hist_source.is_direct(bins, 90)
    assert cuda_hist_source.hdw_name(bins_of("argmax"), 90) == "max" and cuda_hist_source.hdw_name(bins_of("product"), 90) is None
    assert cuda_hist_source.hdw_name(spec_of("histogram three parts").bins[2], 90) == "add"
    assert [cuda_hist_source.is_direct(bins_of(name), 90) for name in ("add", "lanes", "bf16")] == [True, True, False]


def halves(dtype: str) -> PartSpec:
    """A sum that stays in halves: so are the bins where it starts from dest."""
    b = P.Builder((dtype, dtype))
    op = b.finish([b.emit("add", dtype, b.arg(0), b.arg(1))])
    return PartSpec(1, 1, ((dtype, 1),), (dtype,), op, None, True)


def test_sums_of_halves() -> None:
    f16, bf16 = halves("f16"), halves("bf16")
    assert [cuda_hist_source.atomic_of(f16, arch) for arch in (80, 90)] == ["HDW", "HDW"]
    assert [cuda_hist_source.atomic_of(bf16, arch) for arch in (80, 90)] == ["CAS", "HDW"]
    assert [cuda_hist_source.entry_bytes(bf16, arch) for arch in (80, 90)] == [4, 2]
    assert [cuda_hist_source.is_direct(bf16, arch) for arch in (80, 90)] == [False, True]


def test_a_table_looks_the_same_everywhere() -> None:
    """A sum of u8 widens its slot, one of bf16 has an atomic only on new hardware: not together, then."""
    b = P.Builder(("bf16", "u8") * 2)
    op = b.finish([b.emit("add", t, b.arg(k), b.arg(k + 2)) for k, t in enumerate(("bf16", "u8"))])
    bins = PartSpec(1, 1, (("bf16", 1), ("u8", 1)), ("bf16", "u8"), op, None, True)
    assert [cuda_hist_source.atomic_of(bins, arch) for arch in (80, 90)] == ["CAS", "CAS"]


def test_text_is_a_function_of_the_spec() -> None:
    for name in CASES:
        spec = spec_of(name)
        again = type(spec).parse(spec.text)
        assert again == spec and generated(again) == generated(spec)


def test_text_is_readable() -> None:
    text = cuda_scan_source.generated(spec_of("ordered affine"))
    assert "  const float v4 = b.s0 * a.s0;\n" in text and "  return {v4, v6};\n" in text
    assert all(len(line) <= 130 for name in CASES for line in generated(spec_of(name)).splitlines())


def test_unknown_include() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        cuda_source.expanded('#include "nowhere.cuh"', [])


SOME = ["ordered affine", "ordered f16", "histogram argmin of f64", "histogram bf16", "histogram moments", "histogram u8"]


@pytest.mark.parametrize(("arch", "names"), [(80, SOME), (90, list(CASES)), (100, SOME)])
@pytest.mark.cover(2)
def test_nvrtc_compiles_every_spec(arch: int, names: Sequence[str]) -> None:
    pytest.importorskip("cuda.core")
    for name in names:
        spec = spec_of(name)
        kernel = SCAN_ON_DEVICE if isinstance(spec, OrderedSpec) else HIST_ON_DEVICE
        log = nvrtc.compile_cubin(cuda_source.expanded(harnessed(spec, arch) + kernel, CUDA), f"sm_{arch}").log
        assert "warning" not in log, (name, log)
