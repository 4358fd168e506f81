"""Pruning: channels removed from all layers that share these channels, or weights set to zero by masks."""

from sardonyx.compress.pruning.prune import Pruned, PruningReport, prune

__all__ = ["Pruned", "PruningReport", "prune"]
