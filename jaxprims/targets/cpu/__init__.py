"""CPUs: LLVM code generation, plans, the kernel table of ``cpu/``."""
