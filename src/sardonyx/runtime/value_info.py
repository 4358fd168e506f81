"""What is declared of a session's inputs and outputs."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ops.graph import declared_type
from sardonyx.ops.signatures import type_text


class ValueInfo:
    """An input or output of a session.

    Attributes:
        name: Its name.
        type: Its type as the standard writes it: ``tensor(float)``, ``seq(tensor(int64))``.
        shape: Its sizes: a number, a text (symbol or expression), None where nothing is declared; None without a rank.
    """

    __slots__ = ("name", "shape", "type")

    def __init__(self, name: str, type: str, shape: list[int | str | None] | None) -> None:
        self.name = name
        self.type = type
        self.shape = shape

    @classmethod
    def of(cls, value: ir.Value) -> ValueInfo:
        """What is declared of a value."""
        declared = declared_type(value)
        shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
        return cls(value.name or "", "" if declared is None else type_text(declared), shape)

    def __repr__(self) -> str:
        return f"ValueInfo(name={self.name!r}, type={self.type!r}, shape={self.shape})"
