"""Quantization schemes as data: integer types, and the elements with a common scale."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from sardonyx.errors import OptionError

Granularity = Literal["tensor", "channel", "block"]
"""Elements of a weight with a common scale: all, an output channel, or a block along the summed axis."""

QDQ_OPSET = 13
"""The first operator set with a scale per channel."""

BLOCK_OPSET = 21
"""The first operator set with 4-bit integers and a scale per block."""

WEIGHT_BITS = {"int8": 8, "int4": 4}
"""Bits of the types of weights."""

ACTIVATION_TYPE = ir.DataType.UINT8
ACTIVATION_LEVELS = 255


@dataclass(frozen=True)
class Scheme:
    """The numbers of a quantized model.

    Attributes:
        weights: The type of weights: ``"int8"`` or ``"int4"``.
        granularity: Elements of a weight with a common scale.
        block: Elements of a block along the summed axis, for ``granularity="block"``.
        symmetric: If True, 0 is the middle of the integers; else each scale has a zero point.
        reduced: If True, 8-bit weights use 7 bits, so that processors without VNNI never saturate 16-bit sums.
    """

    weights: str = "int8"
    granularity: Granularity = "channel"
    block: int = 32
    symmetric: bool = True
    reduced: bool = False

    def __post_init__(self) -> None:
        if self.weights not in WEIGHT_BITS:
            raise OptionError(f"expected one of {', '.join(WEIGHT_BITS)}, got {self.weights!r}.", where="weights")
        if self.granularity not in ("tensor", "channel", "block"):
            raise OptionError(
                f"expected 'tensor', 'channel' or 'block', got {self.granularity!r}.", where="granularity"
            )
        if self.block < 2:
            raise OptionError(f"expected at least 2 elements, got {self.block}.", where="block")

    @property
    def dtype(self) -> ir.DataType:
        """The element type of weights."""
        return ir.DataType[self.weights.upper() if self.symmetric else f"U{self.weights.upper()}"]

    @property
    def limit(self) -> int:
        """The largest magnitude of a symmetric weight; the largest integer of an asymmetric one."""
        bits = WEIGHT_BITS[self.weights] - (1 if self.reduced and self.weights == "int8" else 0)
        return (1 << (bits - 1)) - 1 if self.symmetric else (1 << bits) - 1

    def of_weight(self, sum_axis: int | None) -> Scheme:
        """Return the scheme of one weight: without a single summed axis for blocks, 4 bits are too few.

        Args:
            sum_axis: The axis of the sum of products; None for convolutions.
        """
        if self.weights == "int4" and self.granularity == "block" and sum_axis is None:
            return replace(self, weights="int8", granularity="channel", symmetric=True)
        return self

    @property
    def opset(self) -> int:
        """The operator set that the scheme needs."""
        return BLOCK_OPSET if self.weights == "int4" or self.granularity == "block" else QDQ_OPSET


@dataclass(frozen=True)
class Affine:
    """The map of an activation to unsigned 8-bit integers: ``q = round(x / scale) + zero_point``.

    Attributes:
        scale: The distance between neighbouring numbers.
        zero_point: The integer of 0.
    """

    scale: float
    zero_point: int

    @classmethod
    def of(cls, low: float, high: float) -> Affine:
        """Return the map whose integers span a range; 0 is always in the range, and exact."""
        low, high = min(float(low), 0.0), max(float(high), 0.0)
        scale = float(np.float32((high - low) / ACTIVATION_LEVELS))
        if scale < float(np.finfo(np.float32).tiny):  # A constant 0, or too small for a scale.
            return cls(1.0, 0)
        return cls(scale, int(np.clip(round(-low / scale), 0, ACTIVATION_LEVELS)))
