"""Stencils, and reductions of them."""
