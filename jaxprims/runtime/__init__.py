"""What happens around a kernel: compiling it, registering it with XLA, planning, explaining."""
