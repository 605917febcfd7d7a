"""Benchmarks: ``python -m bench SUITE``. Each suite is one module (or package) in :mod:`bench.cases`."""
