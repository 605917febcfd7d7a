"""The kernels of scans, reductions and segmented reductions for CPUs."""
