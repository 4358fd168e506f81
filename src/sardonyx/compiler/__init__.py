"""The native engine: Core functions compiled through LLVM into programs of a few fused kernels."""
