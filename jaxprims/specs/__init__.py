"""Which kernel is wanted, as canonical text: all that a target is told."""
