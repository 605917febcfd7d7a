"""How many examples a property test draws: few, the same in every run. So many, others in every run:
``JAXPRIMS_EXAMPLES=2000 pytest tests/test_properties.py``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def count(few: int) -> int:
    return int(os.environ.get("JAXPRIMS_EXAMPLES", few))


def examples(few: int) -> settings:
    """A decorator for a property test."""
    n = count(few)
    return settings(max_examples=n, derandomize=n <= few, deadline=None, suppress_health_check=list(HealthCheck))
