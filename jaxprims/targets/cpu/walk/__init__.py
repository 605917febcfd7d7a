"""Walks on CPUs."""
