"""Conversion of a model to another operator set, newer or older, and to another IR version."""

from sardonyx.rewrite.opset.convert import convert_opset
from sardonyx.rewrite.opset.decompose import decompose

__all__ = ["convert_opset", "decompose"]
