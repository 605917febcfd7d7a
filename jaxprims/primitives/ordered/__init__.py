"""Scans, reductions, segmented reductions and recurrences: calls that combine elements in order."""
