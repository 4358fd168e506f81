"""Tensors, tracing, the interpreter and the verifier."""
