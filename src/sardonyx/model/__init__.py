"""Models in and out of files: load, save, external data, text forms, checking, opset and IR versions."""

from sardonyx.model.load import from_proto, load
from sardonyx.model.save import save, to_proto

__all__ = ["from_proto", "load", "save", "to_proto"]
