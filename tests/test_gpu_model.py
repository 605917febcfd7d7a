"""The GPU model reproduces Table I of paper 1, and its choices are possible ones on any device."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxprims.runtime.gpu_model import Choice, Device, Element, blocks_per_histogram, choose, global_, race_expansion, shared

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
