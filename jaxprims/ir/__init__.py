"""Program: the typed scalar SSA form of a user's function, evaluated and simplified."""
