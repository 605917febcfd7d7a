"""Whole functions: their reductions, histograms and scans found, with the producers taken in."""
