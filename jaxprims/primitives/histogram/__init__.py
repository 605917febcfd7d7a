"""Histograms, and grouping by index, which their derivatives need."""
