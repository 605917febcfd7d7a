"""Random calls of the public functions under random transformations, against plain JAX.

``python -m tests.random_calls --count 20000 --seed 1`` makes so many calls and prints those that differ, each with what makes it
again. A *program* is a function, its operator and options, shapes and dtypes, and the transformations around it; it is compiled
once and called on several draws of its arrays. Most numbers are small integers, so that sums are exact in any order.
"""

from .running import check, differ

__all__ = ["check", "differ"]
