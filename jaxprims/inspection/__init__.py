"""Looking inside: plans in words, kernels compiled without a GPU, the laws of a monoid."""
