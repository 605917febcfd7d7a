"""What compiles and runs kernels: a registry of targets, what all of them share, a folder for each."""
