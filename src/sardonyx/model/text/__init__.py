"""The ONNX text syntax, both ways and without loss; ``docs/reference/text.md`` states what it adds to onnx's own."""

from sardonyx.model.text.parser import parse
from sardonyx.model.text.printer import print_model
from sardonyx.model.text.sniff import sniff

__all__ = ["parse", "print_model", "sniff"]
