"""Kernel templates: each emits the LLVM function of one kind of computation."""
