"""The GPU model reproduces Table I of Henriksen et al. 2020; its choices, and the launcher's plans by it, are possible."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import jaxprims as jp
from jaxprims import _cuda
from jaxprims.targets.cuda.model import Choice, Device, Element, blocks_per_histogram, choose, global_, race_expansion, shared

N = 50_000_000
K = 1024
ELEMENTS = {"HDW": Element((4,), "HDW"), "CAS": Element((4,), "CAS"), "XCG": Element((8,), "XCG")}

SHARED_BINS = (31, 127, 505, 2 * K, 6 * K, 12 * K, 24 * K, 48 * K)
SHARED = {
    "HDW": "396,1 96,1 24,1 6,1 2,1 1,1 1,2 1,4",
    "CAS": "396,1 96,1 24,1 6,1 2,1 1,1 1,2 1,4",
    "XCG": "132,1 32,1 8,1 2,1 1,2 1,3 1,6 1,12",
}
GLOBAL_BINS = (12 * K, 24 * K, 48 * K, 192 * K, 384 * K, 768 * K, 1536 * K)
GLOBAL = {
    ("HDW", 1): "23,1 11,1 5,1 1,1 1,1 1,2 1,3",
    ("HDW", 63): "69,1 34,1 17,1 4,1 2,1 1,1 1,1",
    ("CAS", 1): "46,1 23,1 11,1 2,1 1,1 1,2 1,3",
    ("CAS", 63): "138,1 69,1 34,1 8,1 4,1 2,1 1,1",
    ("XCG", 1): "15,1 7,1 3,1 1,1 1,2 1,3 1,5",
    ("XCG", 63): "69,1 34,1 17,1 4,1 2,1 1,1 1,1",
}


def table(choices):
    return " ".join(f"{c.subhistograms},{c.passes}" for c in choices)


@pytest.mark.parametrize("atomic", SHARED)
def test_table_1_shared(atomic):
    assert table(shared(Device(), N, h, ELEMENTS[atomic]) for h in SHARED_BINS) == SHARED[atomic]


@pytest.mark.parametrize(("atomic", "race_factor"), GLOBAL)
def test_table_1_global(atomic, race_factor):
    assert table(global_(Device(), N, h, ELEMENTS[atomic], race_factor) for h in GLOBAL_BINS) == GLOBAL[atomic, race_factor]


def test_table_1_has_58_entries():
    # the table prints HDW and CAS in shared memory as one row
    entries = 2 * len(SHARED_BINS) + len(GLOBAL) * len(GLOBAL_BINS)
    assert entries == 58


def test_sizes():
    assert [e.size for e in ELEMENTS.values()] == [4, 4, 12]
    assert [e.average_size for e in ELEMENTS.values()] == [4, 4, 6]
    assert Element((4, 4), "XCG").average_size == 4  # a tuple of arrays: section III-D, item 3
    assert Element((4, 4), "CAS").average_size == 4


def test_race_expansion():
    d = Device()
    assert race_expansion(d, 1, ELEMENTS["CAS"]) == 1
    assert race_expansion(d, 63, ELEMENTS["CAS"]) == 0.75 * 63 / 16
    assert race_expansion(d, 63, Element((64,), "XCG")) == 0.75 * 63 / (64 / 34)
    assert race_expansion(d, 63, Element((256,), "XCG")) == 0.75 * 63  # a bin wider than a line wastes nothing


@pytest.mark.parametrize(("atomic", "last"), [("HDW", 3), ("CAS", 4), ("XCG", 6)])
def test_switch_from_shared_to_global(atomic, last):
    element = ELEMENTS[atomic]
    fit = Device().shared_bytes // element.size
    at, past = (choose(Device(), N, h, element) for h in (last * fit, last * fit + 1))
    assert (at.space, at.passes) == ("shared", last)
    assert past.space == "global"


def test_an_element_larger_than_shared_memory_goes_to_global():
    huge = Element((64 * K,), "XCG")
    assert choose(Device(), N, 10, huge).space == "global"
    with pytest.raises(ValueError, match="shared memory"):
        shared(Device(), N, 10, huge)


def test_batches():
    d = Device()
    assert [blocks_per_histogram(d, n) for n in (1, 2, 3, 68, 69, 10**6)] == [68, 34, 23, 1, 1, 1]
    for n in range(1, 200):
        assert blocks_per_histogram(d, n) * n * d.block >= d.threads


def test_cas_width():
    assert Device().cas_bytes == 8
    assert dataclasses.replace(Device(), compute_capability=(9, 0)).cas_bytes == 16
    assert dataclasses.replace(Device(), compute_capability=(10, 0)).cas_bytes == 16


devices = st.builds(
    Device,
    shared_bytes=st.sampled_from([16 * K, 48 * K, 99 * K, 227 * K]),
    l2_bytes=st.sampled_from([K * K, 6 * K * K, 50 * K * K]),
    l2_line=st.sampled_from([32, 64, 128]),
    threads=st.sampled_from([2048, 69_632, 270_336]),
    block=st.sampled_from([256, 512, 1024]),
)
elements = st.builds(
    Element,
    parts=st.lists(st.sampled_from([1, 2, 4, 8, 16, 100]), min_size=1, max_size=4).map(tuple),
    atomic=st.sampled_from(["HDW", "CAS", "XCG"]),
)


@given(devices, elements, st.integers(1, 2**40), st.integers(1, 2**40), st.floats(1, 1e6))
def test_choices_are_possible(device, element, n, bins, race_factor):
    for c in (
        shared(device, n, bins, element),
        global_(device, n, bins, element, race_factor),
        choose(device, n, bins, element, race_factor),
    ):
        assert isinstance(c, Choice)
        assert c.subhistograms >= 1
        assert c.passes >= 1
        assert c.cooperation_level >= 1
        assert c.passes * c.chunk >= bins  # every bin is in some pass
        if c.space == "shared":
            assert c.subhistograms * c.chunk * element.size <= device.shared_bytes
            assert c.subhistograms <= device.block
        else:
            assert c.subhistograms * c.cooperation_level <= max(1, min(device.threads, n))


@given(elements, st.integers(1, 10**7))
def test_a_sparser_histogram_gets_no_more_passes(element, bins):
    few, many = (global_(Device(), N, bins, element, rf) for rf in (1.0, 63.0))
    assert many.passes <= few.passes


# --- the race factor ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([1, 50, 3000]), st.sampled_from([1, 37, 400]), st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_race_factor_is_that_of_the_library(n, bins, used, seed):
    index = np.random.default_rng(seed).integers(-1, used, n) % (bins + 1)
    size, groups = _cuda.race_group_size(n, bins), _cuda.race_groups(n, bins)
    starts = [_cuda.race_start(n, size, groups, k) for k in range(groups)]
    hit = [np.unique(row[row < bins]).size for row in (index[s : s + size] for s in starts)]
    np.testing.assert_allclose(_cuda.race_factor(size, groups, sum(hit)), jp.race_factor(index, bins), rtol=1e-6)


# --- the launcher's plans -----------------------------------------------------------------------------------------------------

A100 = {
    "multiprocessors": 108, "threads_per_multiprocessor": 2048, "blocks_per_multiprocessor": 32, "shared_per_block": 163 * K,
    "shared_per_multiprocessor": 164 * K, "l2_bytes": 40 * K * K, "major": 8, "minor": 0,
}  # fmt: skip
H200 = {
    "multiprocessors": 132, "threads_per_multiprocessor": 2048, "blocks_per_multiprocessor": 32, "shared_per_block": 227 * K,
    "shared_per_multiprocessor": 228 * K, "l2_bytes": 50 * K * K, "major": 9, "minor": 0,
}  # fmt: skip
SPACES = ("tiny", "shared", "cluster", "global")
MOST = 64 * K * K


def part(atomic=0, direct=True, lanes=1, size=4, updates=1, identity=True):
    return {
        "leaf_bytes": [size * lanes], "entry_bytes": size * lanes, "lanes": lanes, "updates": updates, "slots": 1,
        "dest": not identity, "identity": identity, "in_place": True, "table_bytes": size,
        "atomic": atomic, "direct": direct, "slot_bytes": [size],
    }  # fmt: skip


def spec(*parts):
    return {"positions": [False, False], "uniforms": 0, "in_bytes": 8, "index64": False, "f_length": 1, "parts": list(parts)}


def plan(described, n, bins, members=1, forced=(), device=H200):
    numbers = dict(_cuda.explain_hist(described, _cuda.DeviceInfo(**device), n, bins, members, list(forced)))
    return {**numbers, "space": SPACES[numbers["space"]]}


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
    given, per, _ = _cuda.hist_workspace(described, n, bins, members)
    assert per == 0
    assert p["workspace bytes"] <= given * members
    own = 0 if all(p["direct"] for p, _ in parts) else table * members
    locks = 4 * K * K if any(p["atomic"] == 2 for p, _ in parts) else 0
    assert p["workspace bytes"] <= own + MOST + 2 * table + locks + max(bins) + 4096


@given(parts, st.integers(0, 10**7), st.integers(0, 10**6), st.integers(1, 100))
def test_the_workspace_holds_a_table_whatever_is_known(p, bins, n, members):
    table = 0 if p["direct"] else p["table_bytes"] * p["lanes"] * bins
    for n_, members_ in ((n, members), (-1, members), (n, -1), (-1, -1)):
        assert _cuda.hist_workspace(spec(p), n_, [bins], members_)[0] >= table + (256 if members_ < 0 else 0)
