"""The result of a quantization: the model and the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sardonyx.compress.evidence import CompressionResult, Evidence, OutputError
from sardonyx.compress.quantization.placement import FloatNode
from sardonyx.compress.quantization.scheme import Scheme
from sardonyx.compress.quantization.sensitivity import NodeError
from sardonyx.compress.quantization.targets import Form

Mode = Literal["static", "dynamic", "weights"]
"""Weights and activations with learned ranges, with ranges of each call, or weights alone."""


@dataclass(frozen=True)
class QuantizationReport:
    """The evidence of a quantization.

    Attributes:
        mode: The integers of the model.
        scheme: The scheme.
        form: The form of quantized nodes.
        target: The engine that the model is for.
        method: The method of rounding.
        calibration: The calibration method; empty without data.
        evidence: The samples, the errors of the outputs, the metric and the verdict.
        quantized: The number of nodes with integer weights.
        floats: Nodes with weights that stay in float, and the reasons.
        weight_bytes: Bytes of weights, before and after.
        opset: The operator set, before and after.
        notes: Sentences for the user.
        nodes: The error that each node causes alone, the worst first; empty unless requested.
    """

    mode: Mode
    scheme: Scheme
    form: Form
    target: str
    method: str
    calibration: str
    evidence: Evidence
    quantized: int
    floats: tuple[FloatNode, ...]
    weight_bytes: tuple[int, int]
    opset: tuple[int, int]
    notes: tuple[str, ...]
    nodes: tuple[NodeError, ...] = ()

    @property
    def samples(self) -> int:
        """The number of samples."""
        return self.evidence.samples

    @property
    def judged(self) -> str:
        """The samples that the errors are of; see :class:`Evidence`."""
        return self.evidence.judged

    @property
    def outputs(self) -> tuple[OutputError, ...]:
        """The errors of the float outputs, of the judged samples."""
        return self.evidence.outputs


class Quantized(CompressionResult[QuantizationReport]):
    """A quantized model."""
