"""From the user's pytrees, axes, identities and shards to the static half of a call and its operands."""
