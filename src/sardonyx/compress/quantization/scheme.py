"""Quantization schemes as data: narrow types, and the elements with a common scale."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.errors import OptionError

Granularity = Literal["tensor", "channel", "block"]
"""Elements of a weight with a common scale: all, an output channel, or a block along the summed axis."""

QDQ_OPSET = 13
"""The first operator set with a scale per channel."""

BLOCK_OPSET = 21
"""The first operator set with a scale per block."""


@dataclass(frozen=True)
class NarrowType:
    """A type of quantized numbers.

    Attributes:
        name: The name in schemes.
        dtype: The element type in models.
        numpy: The element type of arrays.
        bits: The bits of one number.
        low, high: The least and the greatest number.
        opset: The first operator set whose QuantizeLinear and DequantizeLinear have the type.
    """

    name: str
    dtype: ir.DataType
    numpy: np.dtype[Any]
    bits: int
    low: float
    high: float
    opset: int

    @property
    def is_float(self) -> bool:
        """True for 8-bit and 4-bit floats, which have neither zero points nor equal steps."""
        return self.dtype.is_floating_point()

    def nearest(self, numbers: np.ndarray) -> np.ndarray:
        """Return the nearest numbers of a type of floats, as float32."""
        clipped = np.clip(numbers, np.float32(self.low), np.float32(self.high))
        return np.asarray(clipped.astype(self.numpy), np.float32)


def _integer(name: str, opset: int, numpy: Any) -> NarrowType:
    bits = int(name.lstrip("uint"))
    high = (1 << bits) - 1 if name.startswith("u") else (1 << (bits - 1)) - 1
    return NarrowType(
        name, ir.DataType[name.upper()], np.dtype(numpy), bits, 0 if name.startswith("u") else -high - 1, high, opset
    )


def _float(name: str, dtype: ir.DataType, opset: int, numpy: Any, bits: int) -> NarrowType:
    high = float(ml_dtypes.finfo(numpy).max)  # type: ignore[no-untyped-call]
    return NarrowType(name, dtype, np.dtype(numpy), bits, -high, high, opset)


TYPES: Mapping[str, NarrowType] = {
    one.name: one
    for one in (
        _integer("int8", 13, np.int8),
        _integer("uint8", 13, np.uint8),
        _integer("int16", 21, np.int16),
        _integer("uint16", 21, np.uint16),
        _integer("int4", 21, ml_dtypes.int4),
        _integer("uint4", 21, ml_dtypes.uint4),
        _integer("int2", 25, ml_dtypes.int2),
        _integer("uint2", 25, ml_dtypes.uint2),
        _float("float8e4m3", ir.DataType.FLOAT8E4M3FN, 19, ml_dtypes.float8_e4m3fn, 8),
        _float("float8e5m2", ir.DataType.FLOAT8E5M2, 19, ml_dtypes.float8_e5m2, 8),
        _float("float4", ir.DataType.FLOAT4E2M1, 23, ml_dtypes.float4_e2m1fn, 4),
    )
}
"""The types of quantized numbers, by name."""

WEIGHT_TYPES = ("int8", "int16", "int4", "int2", "float8e4m3", "float8e5m2", "float4")
"""Types of weights; asymmetric integers are stored unsigned."""

ACTIVATION_TYPES = ("uint8", "int8", "uint16", "int16", "float8e4m3", "float8e5m2")


_FEWEST_IN_BLOCK = 8
"""Elements of the smallest block that replaces one that does not divide an axis: scales take as much as the weights."""


@dataclass(frozen=True)
class Scheme:
    """The numbers of a quantized model.

    Attributes:
        weights: The type of weights, one of ``WEIGHT_TYPES``.
        granularity: Elements of a weight with a common scale.
        block: Elements of a block along the summed axis, for ``granularity="block"``.
        symmetric: If True, 0 is the middle of the integers of weights; else each scale has a zero point, and the
            integers are unsigned.
        reduced: If True, 8-bit weights use 7 bits, so that processors without VNNI never saturate 16-bit sums.
        activations: The type of activations, one of ``ACTIVATION_TYPES``; not used for weights alone.
        symmetric_activations: If True, 0 is the middle of the integers of activations.
        exact_sums: If True, symmetric 8-bit weights have scales with which no sum of two products saturates 16 bits;
            see ``saturation.py``.
        whole_blocks: If True, the last block of an axis may not be shorter than the others.
    """

    weights: str = "int8"
    granularity: Granularity = "channel"
    block: int = 32
    symmetric: bool = True
    reduced: bool = False
    activations: str = "uint8"
    symmetric_activations: bool = False
    exact_sums: bool = False
    whole_blocks: bool = False

    def __post_init__(self) -> None:
        if self.weights not in WEIGHT_TYPES:
            raise OptionError(f"expected one of {', '.join(WEIGHT_TYPES)}, got {self.weights!r}.", where="weights")
        if self.activations not in ACTIVATION_TYPES:
            raise OptionError(
                f"expected one of {', '.join(ACTIVATION_TYPES)}, got {self.activations!r}.", where="activations"
            )
        if self.granularity not in ("tensor", "channel", "block"):
            raise OptionError(
                f"expected 'tensor', 'channel' or 'block', got {self.granularity!r}.", where="granularity"
            )
        if not isinstance(self.block, int) or self.block < 2:
            raise OptionError(f"expected at least 2 elements, got {self.block}.", where="block")
        if TYPES[self.weights].is_float and not self.symmetric:
            raise OptionError(f"weights of type {self.weights} have no zero point.", where="symmetric")

    @property
    def weight_type(self) -> NarrowType:
        """The type of stored weights."""
        return TYPES[self.weights if self.symmetric else f"u{self.weights}"]

    @property
    def activation_type(self) -> NarrowType:
        """The type of activations."""
        return TYPES[self.activations]

    @property
    def dtype(self) -> ir.DataType:
        """The element type of weights."""
        return self.weight_type.dtype

    @property
    def lowest(self) -> float:
        """The least number of a weight; symmetric integers leave the least integer out."""
        return -self.limit if self.symmetric else 0

    @property
    def limit(self) -> float:
        """The greatest number of a weight."""
        kind = self.weight_type
        if kind.is_float:
            return kind.high
        bits = kind.bits - (1 if self.reduced and self.weights == "int8" else 0)
        return max((1 << (bits - 1)) - 1, 1) if self.symmetric else (1 << bits) - 1

    @property
    def has_exact_sums(self) -> bool:
        """True if sums of two products must fit in 16 bits."""
        return self.exact_sums and self.weights == "int8" and self.symmetric and self.granularity != "block"

    def of_weight(self, sum_axis: int | None) -> Scheme:
        """Return the scheme of one weight: without a single summed axis for blocks, 4 bits are too few.

        Args:
            sum_axis: The axis of the sum of products; None for convolutions.
        """
        if self.weight_type.bits < 8 and self.granularity == "block" and sum_axis is None:
            return replace(self, weights="int8", granularity="channel", symmetric=True)
        return self

    def block_along(self, size: int | None) -> int:
        """Return the elements of a block along a summed axis; 0 for one scale of the whole axis.

        If all blocks must be whole, the block is the largest one up to :attr:`block` that divides the axis.

        Args:
            size: The elements of the axis; None without a single one.
        """
        if self.granularity != "block" or size is None or size <= self.block:
            return 0
        if not self.whole_blocks or size % self.block == 0:
            return self.block
        return next((block for block in range(self.block, _FEWEST_IN_BLOCK - 1, -1) if size % block == 0), 0)

    @property
    def opset(self) -> int:
        """The operator set that weights of the scheme need."""
        return max(self.weight_type.opset, BLOCK_OPSET if self.granularity == "block" else QDQ_OPSET)

    @property
    def activation_opset(self) -> int:
        """The operator set that activations of the scheme need."""
        return self.activation_type.opset


NAMED: Mapping[str, Mapping[str, Any]] = {
    "int8": {},
    "uint8": {"symmetric": False},
    "int16": {"weights": "int16", "activations": "uint16"},
    "uint16": {"weights": "int16", "activations": "uint16", "symmetric": False},
    "int4": {"weights": "int4", "granularity": "block", "symmetric": False},
    "uint4": {"weights": "int4", "granularity": "block", "symmetric": False},
    "int2": {"weights": "int2", "granularity": "block", "symmetric": False},
    "uint2": {"weights": "int2", "granularity": "block", "symmetric": False},
    "float8": {"weights": "float8e4m3", "activations": "float8e4m3", "symmetric_activations": True},
    "float8e4m3": {"weights": "float8e4m3", "activations": "float8e4m3", "symmetric_activations": True},
    "float8e5m2": {"weights": "float8e5m2", "activations": "float8e5m2", "symmetric_activations": True},
    "float4": {"weights": "float4", "granularity": "block"},
}
"""Schemes by name; ``wAaB`` (for example ``w8a16``, ``w4a8``) names the bits of weights and activations."""

WEIGHTS_ALONE = frozenset({"int4", "int2", "float4"})
"""Types whose named schemes quantize weights alone."""

_BITS = re.compile(r"w(2|4|8|16)a(8|16|32)")


def named_scheme(name: str, where: str = "scheme") -> tuple[Scheme, bool]:
    """Return the scheme of a name, and True if the name quantizes activations.

    Raises:
        OptionError: Unknown name.
    """
    if not isinstance(name, str):
        raise OptionError(f"expected a name or a Scheme, got {type(name).__name__}.", where=where)
    bits = _BITS.fullmatch(name)
    if bits is not None:
        weights, activations = bits.groups()
        narrow = int(weights) < 8 and activations == "32"
        return (
            Scheme(
                f"int{weights}", "block" if narrow else "channel", symmetric=not narrow,
                activations="uint8" if activations == "32" else f"uint{activations}",
            ),
            activations != "32",
        )  # fmt: skip
    options = NAMED.get(name)
    if options is None:
        raise OptionError(
            f"expected a Scheme or one of {', '.join(NAMED)}, w8a16 (bits of weights and activations), got {name!r}.",
            where=where,
        )
    scheme = Scheme(**options)
    return scheme, scheme.weights not in WEIGHTS_ALONE


@dataclass(frozen=True)
class Affine:
    """The map of an activation to quantized numbers: ``q = round(x / scale) + zero_point``.

    Attributes:
        scale: The distance between neighbouring integers; for floats the factor.
        zero_point: The number of 0.
        kind: The type.
    """

    scale: float
    zero_point: int
    kind: NarrowType = TYPES["uint8"]

    @classmethod
    def of(cls, low: float, high: float, kind: NarrowType = TYPES["uint8"], symmetric: bool = False) -> Affine:
        """Return the map whose numbers span a range; 0 is always in the range, and exact.

        Args:
            low: The least value.
            high: The greatest value.
            kind: The type.
            symmetric: If True, 0 is the middle of the numbers.
        """
        low, high = min(float(low), 0.0), max(float(high), 0.0)
        middle = 0 if kind.low < 0 else (int(kind.high) + 1) // 2
        if symmetric or kind.is_float:
            scale = float(np.float32(max(-low, high) / (kind.high - middle)))
        else:
            scale = float(np.float32((high - low) / (kind.high - kind.low)))
        if scale < float(np.finfo(np.float32).tiny):  # A constant 0, or too small for a scale.
            return cls(1.0, 0 if kind.low <= 0 and not symmetric else middle, kind)
        if symmetric or kind.is_float:
            return cls(scale, middle, kind)
        return cls(scale, int(np.clip(round(kind.low - low / scale), kind.low, kind.high)), kind)

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Return the values that the numbers of some values mean."""
        if self.kind.is_float:
            return self.kind.nearest(values / np.float32(self.scale)) * np.float32(self.scale)
        low, high = self.kind.low - self.zero_point, self.kind.high - self.zero_point
        return np.asarray(np.clip(np.rint(values / self.scale), low, high) * self.scale)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest value that a number means."""
        return (self.kind.low - self.zero_point) * self.scale, (self.kind.high - self.zero_point) * self.scale
