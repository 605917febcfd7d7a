"""Functions with the signatures and results of those of JAX that they replace, built on ``api``."""
