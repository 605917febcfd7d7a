"""Histograms on GPUs: the launcher's plans are possible ones on any device; the race factor that they go by."""

import numpy as np
import pytest
from drawn import examples
from hypothesis import assume, given
from hypothesis import strategies as st

import jaxprims as jp
from jaxprims import _cuda
from jaxprims.ir.program import Builder
from jaxprims.specs.stencil import StencilSpec
from jaxprims.targets.cuda import compiler

N = 50_000_000
K = 1024


@examples(25)
@given(st.sampled_from([1, 50, 3000]), st.sampled_from([1, 37, 400]), st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_race_factor(n, bins, used, seed):
    """As cuda/plans/hist_model.h has it (tests/cpp/hist_model_test.cc): of up to 8 groups of as many elements as bins."""
    index = np.random.default_rng(seed).integers(-1, used, n) % (bins + 1)
    size = min(n, bins)
    groups = min(8, n // size)
    starts = [(n - size) * k // max(1, groups - 1) for k in range(groups)]
    hit = np.mean([np.unique(row[row < bins]).size for row in (index[s : s + size] for s in starts)])
    np.testing.assert_allclose(max(1, size / max(1, hit)), jp.race_factor(index, bins), rtol=1e-6)


A100 = {
    "multiprocessors": 108, "threads_per_multiprocessor": 2048, "blocks_per_multiprocessor": 32, "shared_per_block": 163 * K,
    "shared_per_multiprocessor": 164 * K, "l2_bytes": 40 * K * K, "major": 8, "minor": 0,
}  # fmt: skip
H200 = {
    "multiprocessors": 132, "threads_per_multiprocessor": 2048, "blocks_per_multiprocessor": 32, "shared_per_block": 227 * K,
    "shared_per_multiprocessor": 228 * K, "l2_bytes": 50 * K * K, "major": 9, "minor": 0,
}  # fmt: skip
DEVICES = (A100, H200)
SPACES = ("tiny", "shared", "cluster", "global")
MOST = 64 * K * K


def part(atomic=0, direct=True, lanes=1, size=4, updates=1, identity=True, trips=1):
    return {
        "leaf_bytes": [size * lanes], "entry_bytes": size * lanes, "lanes": lanes, "updates": updates, "slots": 1,
        "dest": not identity, "identity": identity, "in_place": True, "table_bytes": size,
        "atomic": atomic, "direct": direct, "cluster_trips": trips, "slot_bytes": [size],
    }  # fmt: skip


def spec(*parts):
    return {
        "positions": [False, False], "in_bytes": 8, "index64": False, "map": False, "chooses": False,
        "f_length": 1, "work": 1, "parts": list(parts),
        "signature": {"arrays": [("s32", 1)], "uniforms": [], "leaves": [], "state": []},
    }  # fmt: skip


def plan(described, n, bins, members=1, forced=(), device=H200):
    sizes = {"n": n, "bins": bins, "members": members}
    numbers = dict(_cuda.explain("histogram", described, _cuda.DeviceInfo(**device), sizes, list(forced)))
    return {**numbers, "space": SPACES[numbers["space"]]}


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 40), st.integers(1, 50),
    st.one_of(st.just(()), st.lists(st.sampled_from([0, 0, 1, 3, 40, 9000, 2**40]), min_size=4, max_size=4)),
    st.sampled_from(["f32", "u8", "f64"]), st.sampled_from([A100, H200]),
)  # fmt: skip
def test_plans_of_stencils_are_possible(size, reach, steps, members, forced, dtype, device):
    """Every cell is some tile's, and a block has what it wants. Of no cells there is a plan, too."""
    rank = len(size)
    reads = tuple((0, tuple(k * (a == 0) for a in range(rank))) for k in (-reach, 0, reach))
    b = Builder((dtype,) * 3)
    spec = StencilSpec(rank, 1, ((dtype, 1),), reads, (), (), ((dtype, 1),), b.finish([b.arg(0)]))
    described = compiler.described(spec, 90)
    info = _cuda.DeviceInfo(**device)
    sizes = {"size": size, "wraps": [False] * rank, "members": members, "steps": steps}
    p = dict(_cuda.explain("stencil", described, info, sizes, list(forced)))
    assert 1 <= p["steps a launch"] <= min(steps, 16)
    tiles = [p[f"tile on axis {a}"] for a in range(rank)]
    assert min(tiles) >= 1
    assert p["blocks"] == members * np.prod([-(-n // t) for n, t in zip(size, tiles, strict=True)])
    wide = [t + 2 * p["steps a launch"] * reach * (a == 0) for a, t in enumerate(tiles)]
    bytes_ = 2 * np.prod(wide) * {"f32": 4, "u8": 1, "f64": 8}[dtype]
    several = p["steps a launch"] > 1
    most = device["shared_per_block"] - K - 16 * 64 * max(rank, 2)  # beside what a block knows of its steps
    assert (bytes_ <= p["shared bytes"] <= most) if several else p["shared bytes"] == 0
    names = _cuda.kernels("stencil", described, info, sizes, list(forced))
    assert names == ["StencilSteps" if several else "StencilCells"] * (p["blocks"] > 0)


def workspace(described, n, bins, members=1, devices=(), forced=()):
    infos = [_cuda.DeviceInfo(**device) for device in devices]
    sizes = {"n": n, "bins": bins, "members": members}
    return _cuda.workspace("histogram", described, sizes, infos, list(forced))


@pytest.mark.parametrize(
    ("n", "bins", "members", "space"),
    [
        (N, 31, 1, "shared"),
        (N, 48 * K, 1, "shared"),
        (N, 192 * K, 1, "cluster"),
        (N, 1536 * K, 1, "global"),
        (1000, 10**7, 1, "global"),  # few updates: no more is touched than they are
        (0, 100, 1, "global"),
        (100, 10, 1, "shared"),
        (100, 10, 100_000, "tiny"),
        (100_000, 100, 1000, "shared"),
    ],
)
def test_spaces(n, bins, members, space):
    assert plan(spec(part()), n, [bins], members)["space"] == space


def test_clusters_need_compute_capability_9():
    assert plan(spec(part()), N, [192 * K], device=A100)["space"] == "global"


def test_updates_that_do_not_reach_other_blocks_need_no_clusters():
    for parts, space in (([part(), part()], "cluster"), ([part(), part(trips=0)], "global")):
        for forced in ((), (3,)):
            assert plan(spec(*parts), N, [96 * K] * len(parts), forced=forced)["space"] == space


def test_two_trips_to_another_block_are_more_than_one_to_l2():
    """Sums of floats, unless a plan wants them in clusters."""
    for parts, space in (([part(trips=2)], "global"), ([part(), part(trips=2)], "global"), ([part(), part()], "cluster")):
        for forced, found in (((), space), ((3,), "cluster")):
            assert plan(spec(*parts), N, [192 * K // len(parts)] * len(parts), forced=forced)["space"] == found
    assert plan(spec(part(trips=2)), N, [80 * K])["space"] == "shared"  # in two passes, as where there are no clusters


@pytest.mark.parametrize("bins", [100, 12 * K, 40 * K])
def test_the_workspace_is_no_more_than_the_devices_take(bins):
    given = workspace(spec(part()), N, [bins], devices=DEVICES)[0]
    assert given <= min(132 * 4, 2 * 132 * 227 * K // (4 * bins)) * 4 * (bins + 64) + 16 * K + bins // 2
    for device in DEVICES:
        assert plan(spec(part()), N, [bins], device=device)["workspace bytes"] <= given
    assert given < workspace(spec(part()), N, [bins])[0] / 2


@examples(100)
@given(
    st.lists(st.tuples(st.deferred(lambda: parts), st.integers(0, 10**7)), min_size=1, max_size=2), st.integers(1, 10**9),
    st.integers(1, 10**4), st.one_of(st.just(()), st.tuples(st.just(0), st.integers(0, 9), st.just(0), st.integers(0, 9))),
    st.sampled_from(DEVICES),
)  # fmt: skip
def test_the_workspace_of_known_devices_suffices(parts, n, members, forced, device):
    """Nothing is smaller for it: alone, in a batch, or a part of a batch that is divided among devices."""
    described, bins = spec(*(p for p, _ in parts)), [h for _, h in parts]
    table = sum(-(-p["table_bytes"] * p["lanes"] * h // 256) * 256 for p, h in parts)
    assume(members * table < 2**50)
    given = workspace(described, n, bins, members, DEVICES, forced)[0]
    most = workspace(described, n, bins, members)[0]
    assert given <= most
    for some in {members, -(-members // 8), 1}:
        owns = [plan(described, n, bins, some, forced, device)]
        if owns[0]["race factor"] == 0:  # which takes all the room that there is, and chooses on the device
            given_too = (*forced, 0, 0, 0, 0)[:4]
            owns = [plan(described, n, bins, some, (*given_too, factor), device) for factor in (1, 8, 64)]
        for own in owns:
            once = 4 * own["locks"] + max(bins) + 4096  # the batch's, locks and what samples hit: fewer suffice
            assert min(own["workspace bytes"], some * most) - once <= some * given


def test_the_result_is_the_table_where_it_can_be():
    few = plan(spec(part()), 1000, [10**7])
    assert (few["M"], few["workspace bytes"]) == (1, 0)
    assert plan(spec(part(direct=False)), 1000, [10**7])["workspace bytes"] >= 4 * 10**7


def test_without_an_identity_there_is_one_table():
    p = plan(spec(part(identity=False)), N, [100])
    assert (p["space"], p["M"], p["race factor"]) == ("global", 1, 1)


def test_the_race_factor_is_sampled_where_it_matters():
    assert plan(spec(part()), N, [1536 * K])["race factor"] == 0
    assert plan(spec(part()), 100_000, [1536 * K])["race factor"] == 1
    sparse = plan(spec(part()), N, [1536 * K], forced=(4, 0, 0, 0, 1000))
    assert sparse["M"] > plan(spec(part()), N, [1536 * K], forced=(4, 0, 0, 0, 1))["M"]


def test_samples_cost_a_small_part_of_the_updates():
    """Three launches more, 7 us on an H200, where a million updates take 13."""
    assert plan(spec(part()), 10**6, [900 * K])["race factor"] == 1
    assert plan(spec(part()), 10**7, [900 * K])["race factor"] == 0


def test_passes_save_more_than_they_read_again():
    """Of few updates for bins that L2 does not hold each brings a line, whatever is done; XLA makes them in one pass."""
    assert plan(spec(part()), 10**6, [10**7])["S"] == 1
    assert plan(spec(part()), 10**8, [10**8])["S"] == 1
    assert plan(spec(part()), 10**8, [10**8])["race factor"] == 1
    assert plan(spec(part()), 5 * 10**6, [10**7])["S"] == 2
    assert plan(spec(part()), 10**6, [10**7], forced=(4, 0, 5))["S"] == 5


LOSERS = [(300_000, 32, 20_000), (10_000, 200, 1000), (4000, 512, 300), (120_000, 24, 5000), (30_000, 64, 10_000)]
"""Rows by index that were slower than XLA's scatter on an H200: of how many, their numbers, bins."""


@pytest.mark.parametrize(("n", "lanes", "bins"), LOSERS)
@pytest.mark.parametrize("trips", [1, 2])
@pytest.mark.parametrize("device", DEVICES)
def test_wide_rows_go_to_global_memory_as_they_are(n, lanes, bins, trips, device):
    """One atomic a number into the result: nothing else is filled, nothing combined, and all multiprocessors work."""
    p = plan(spec(part(lanes=lanes, trips=trips)), n, [bins], device=device)
    assert (p["space"], p["M"], p["S"], p["race factor"], p["workspace bytes"]) == ("global", 1, 1, 1, 0)
    assert p["grid"] >= 2 * device["multiprocessors"]


def test_wide_rows_into_few_bins_or_without_atomics_do_not():
    assert plan(spec(part(lanes=32)), N, [500])["space"] == "shared"
    assert plan(spec(part(lanes=32, atomic=1)), 10**6, [1000])["space"] == "shared"
    assert plan(spec(part(lanes=32)), 10**6, [1000], forced=(2,))["space"] == "shared"
    assert plan(spec(part(lanes=32)), 10**6, [1000], forced=(4, 3))["M"] == 3


@examples(100)
@given(st.integers(1, 10**6), st.sampled_from([1, 2, 4, 7, 16, 300]), st.integers(1, 2000), st.sampled_from(DEVICES))
def test_blocks_are_as_many_as_numbers_pay_for(n, lanes, bins, device):
    """Rows of 7 get as many as 7 times the elements, if there are as many rows."""
    for space in (2, 3):
        p = plan(spec(part(lanes=lanes)), n, [bins], forced=(space,), device=device)
        if p["space"] == "global":
            continue
        wanted = max(1, min(n, -(-n * lanes // (p["threads"] * p["cluster"]))))
        paid = max(1, 4 * n // bins)
        most = max(1, p["grid"] // p["K"] and device["multiprocessors"] * 2 // p["cluster"] // p["S"])
        assert p["K"] <= min(wanted, paid)
        if p["cluster"] == 1:
            assert p["K"] >= min(wanted, paid, most // 2)


@pytest.mark.parametrize("forced", [(2, 4, 0, 3), (2, 1, 5, 0), (3, 0, 0, 7, 0, 4), (4, 7, 3, 9)])
def test_forced(forced):
    p = plan(spec(part()), N, [10_000], forced=forced)
    assert p["space"] == SPACES[forced[0] - 1]
    for name, value in zip("MSK", forced[1:4], strict=True):
        assert value in (0, p[name])


parts = st.builds(
    part,
    atomic=st.integers(0, 2),
    direct=st.booleans(),
    lanes=st.sampled_from([1, 1, 3, 64, 1000]),
    size=st.sampled_from([2, 4, 8, 12, 64]),
    updates=st.sampled_from([1, 1, 3]),
    identity=st.sampled_from([True, True, False]),
)


@examples(100)
@given(
    st.lists(st.tuples(parts, st.integers(0, 10**7)), min_size=1, max_size=3), st.integers(0, 10**9), st.integers(1, 10**5),
    st.lists(st.integers(0, 9), max_size=4), st.sampled_from([A100, H200]),
)  # fmt: skip
def test_plans_are_possible(parts, n, members, forced, device):
    described, bins = spec(*(p for p, _ in parts)), [h for _, h in parts]
    table = sum(-(-p["table_bytes"] * p["lanes"] * h // 256) * 256 for p, h in parts)
    assume(members * table < 2**50 and (not forced or forced[0] <= 4))
    p = plan(described, n, bins, members, forced, device)
    assert min(p[name] for name in ("M", "S", "K", "grid", "threads", "cluster")) >= 1
    assert p["shared bytes"] <= device["shared_per_block"]
    assert p["grid"] % p["cluster"] == 0
    assert p["threads"] <= 1024
    given, per, _ = workspace(described, n, bins, members)
    assert per == 0
    assert p["workspace bytes"] <= given * members
    own = 0 if all(p["direct"] for p, _ in parts) else table * members
    locks = 4 * K * K if any(p["atomic"] == 2 for p, _ in parts) else 0
    assert p["workspace bytes"] <= own + MOST + 2 * table + locks + max(bins) + 4096


@examples(100)
@given(parts, st.integers(0, 10**7), st.integers(0, 10**6), st.integers(1, 100))
def test_the_workspace_holds_a_table_whatever_is_known(p, bins, n, members):
    table = 0 if p["direct"] else p["table_bytes"] * p["lanes"] * bins
    for n_, members_ in ((n, members), (-1, members), (n, -1), (-1, -1)):
        assert workspace(spec(p), n_, [bins], members_, DEVICES)[0] >= table + (256 if members_ < 0 else 0)
