"""The result of a compression: the model and its evidence."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Generic, TypeVar

import onnx_ir as ir

from sardonyx.model import save

Report = TypeVar("Report", covariant=True)


@dataclass(frozen=True)
class CompressionResult(Generic[Report]):
    """A compressed model, or the original if no other keeps the budget.

    Attributes:
        model: The model.
        report: The evidence.
    """

    model: ir.Model
    report: Report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file; see :func:`sardonyx.save`."""
        save(self.model, path)
