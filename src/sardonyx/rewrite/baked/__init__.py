"""Repair of model parts baked from old input sizes."""

from sardonyx.rewrite.baked.repair import repair_baked_sizes

__all__ = ["repair_baked_sizes"]
