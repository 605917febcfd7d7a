"""What users hand over: monoids, bins, offsets, positions; checked here, with errors that name the argument."""
