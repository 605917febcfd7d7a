"""The user's functions: arguments in, checked calls out."""
