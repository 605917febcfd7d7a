"""Stencils on CPUs."""
