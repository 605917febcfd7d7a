"""A user's function, as a jaxpr, to a Program."""
