"""One file per jax primitive: abstract eval, batching, lowering; its derivatives and its plain-XLA form beside it."""
