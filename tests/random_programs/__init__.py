"""Random programs of plain JAX under ``jp.fuse``: ``python -m tests.random_programs --count 1000 --seed 1``.

A program is a text of a few lines, each an idiom (``idioms.py``) of what earlier lines made. It is fused, transformed, and
compared with plain JAX. How far floats may differ is found by running the plain program in double precision, and on numbers that
differ in their last bit; half of the programs have small integers for floats, which differ in nothing.
"""

from .program import Program
from .running import check, differs

__all__ = ["Program", "check", "differs"]
