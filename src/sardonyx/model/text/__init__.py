"""Lossless parser and printer of the ONNX text syntax; ``docs/reference/text.md`` lists extensions."""

from sardonyx.model.text.parser import parse
from sardonyx.model.text.printer import print_model
from sardonyx.model.text.sniff import sniff

__all__ = ["parse", "print_model", "sniff"]
