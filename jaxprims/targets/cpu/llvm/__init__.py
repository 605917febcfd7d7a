"""Programs to LLVM IR: the expression table, the machine, helpers over the IR builder."""
