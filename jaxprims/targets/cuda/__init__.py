"""NVIDIA GPUs: CUDA C++ of the same specs, NVRTC, the launcher of ``cuda/``."""
