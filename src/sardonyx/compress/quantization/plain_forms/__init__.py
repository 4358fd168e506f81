"""Nodes with weights in forms that have integers: equal in exact arithmetic, written ahead of the placement."""

from sardonyx.compress.quantization.plain_forms.rewriting import write_plain_forms

__all__ = ["write_plain_forms"]
