"""User's Python -> jaxpr -> :class:`~jaxprims.frontend.program.Program`, and what may be done with it."""
