"""Reading what compute-sanitizer says; and the short form without it."""

from __future__ import annotations

import sanitizer
import short_form

CLEAN = """========= COMPUTE-SANITIZER
2 calls on NVIDIA H200
    1.5 s  scan add: ok
    2.0 s  reduce add: ok
short form: 2 of 2 right
========= ERROR SUMMARY: 0 errors
"""
BAD = """========= COMPUTE-SANITIZER
2 calls on NVIDIA H200
========= Invalid __global__ write of size 4 bytes
=========     at Scan+0x1f0
=========     by thread (31,0,0) in block (2,0,0)
=========
    1.5 s  scan add: ok
    2.0 s  reduce add: FAILED: AssertionError: x
========= ERROR SUMMARY: 3 errors
"""
RACE = """========= COMPUTE-SANITIZER
1 calls on NVIDIA H200
========= Error: Race reported between Write access at Reduce+0x100
=========     and Read access at Reduce+0x200 [64 hazards]
=========
    0.9 s  reduce add: ok
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_clean() -> None:
    found = sanitizer.parse("memcheck", CLEAN)
    assert found.clean and found.errors == 0 and (found.right, found.calls) == (2, 2) and not found.reports


def test_errors() -> None:
    found = sanitizer.parse("memcheck", BAD)
    assert not found.clean and found.errors == 3 and (found.right, found.calls) == (1, 2)
    assert "Scan+0x1f0" in found.reports[0]


def test_races() -> None:
    found = sanitizer.parse("racecheck", RACE)
    assert found.errors == 1 and len(found.reports) == 1 and "Race reported" in found.reports[0]
    assert sanitizer.parse("racecheck", RACE.replace("1 hazard displayed", "0 hazards displayed")).errors == 0


def test_a_run_that_was_stopped() -> None:
    found = sanitizer.parse("synccheck", CLEAN.split("short form")[0], "stopped after 9 s")
    assert not found.clean and found.errors is None and "stopped" in str(found)


def test_the_short_form_is_right_on_any_platform() -> None:
    """A few of its calls: on a GPU, all of them run in another file."""
    assert short_form.main("hist add i32, 50 bins|scan add|segments, short") == 0
