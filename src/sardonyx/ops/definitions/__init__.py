"""Operator definitions, one module per family."""
