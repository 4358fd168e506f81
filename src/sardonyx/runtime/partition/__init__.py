"""Partition of a model over several providers."""
