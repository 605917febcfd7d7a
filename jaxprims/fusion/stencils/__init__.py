"""Stencils in plain code: what cells are made of, calls of the stencil family, loops of several steps, reductions of stencils."""
