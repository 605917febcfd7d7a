"""The histogram's kernel for CPUs."""
