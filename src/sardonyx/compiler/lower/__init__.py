"""Lowering: each group of a schedule becomes kernels and launches."""
