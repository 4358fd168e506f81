"""The clamp: treatment of numbers outside the useful range of a 16-bit float.

All float16 converters share the rule: a magnitude strictly between 0 and the smallest positive value becomes the
smallest positive value, a finite magnitude above the largest finite value becomes the largest finite value. The sign
is preserved, and 0, NaN and infinities are unchanged. So no weight silently turns into 0 (a division by a small
epsilon stays finite) or into an infinity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from sardonyx.errors import OptionError

_NUMPY_TYPES: dict[ir.DataType, np.dtype[np.generic]] = {
    ir.DataType.FLOAT16: np.dtype(np.float16),
    ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
_BLOCK = 1 << 20


def normal_range(dtype: ir.DataType) -> tuple[float, float]:
    """Return the smallest normal and the largest finite magnitude of a 16-bit type."""
    limits = ml_dtypes.finfo(_NUMPY_TYPES[dtype])  # type: ignore[no-untyped-call]
    return float(limits.smallest_normal), float(limits.max)


@dataclass(frozen=True)
class ClippedTensor:
    """A tensor in which the clamp changed elements.

    Attributes:
        name: Name of the tensor; for a tensor in an attribute, the name of the node's first output.
        raised: Number of elements raised to ± the smallest positive value.
        lowered: Number of elements lowered to ± the largest finite value.
        smallest: The smallest magnitude above 0 in the original tensor.
        largest: The largest finite magnitude in the original tensor.
    """

    name: str
    raised: int
    lowered: int
    smallest: float
    largest: float


@dataclass(frozen=True)
class Clamp:
    """The limits of the clamp, and the 16-bit type of the result.

    Raises:
        OptionError: A limit is negative or NaN, the limits cross, or the type cannot represent ``max_finite_val``.
    """

    dtype: ir.DataType
    min_positive_val: float
    max_finite_val: float

    def __post_init__(self) -> None:
        _, largest = normal_range(self.dtype)
        if not 0 <= self.min_positive_val < np.inf:
            raise OptionError(
                f"expected a magnitude, got {self.min_positive_val}",
                where="min_positive_val",
                remedy="Give a number ≥ 0; 0 disables this limit.",
            )
        if not self.min_positive_val <= self.max_finite_val <= largest or self.max_finite_val == 0:
            raise OptionError(
                f"expected a number between min_positive_val ({self.min_positive_val}) and the largest finite "
                f"{self.dtype.name.lower()} ({largest:.6g}), got {self.max_finite_val}",
                where="max_finite_val",
                remedy="Larger numbers would become infinite.",
            )

    def apply(self, array: NDArray[np.floating]) -> NDArray[np.generic]:
        """Clamp ``array`` (any shape, float32 or float64) and round to nearest, ties to even."""
        result = np.empty(array.shape, _NUMPY_TYPES[self.dtype])
        flat = result.reshape(-1)
        for start, block in _blocks(array):
            magnitude = np.abs(block)
            small, large = self._outside(magnitude)
            if small.any() or large.any():
                limit = np.where(small, block.dtype.type(self.min_positive_val), block.dtype.type(self.max_finite_val))
                block = np.where(small | large, np.copysign(limit, block), block)
            flat[start : start + block.size] = block.astype(flat.dtype)
        return result

    def clipped(self, name: str, array: NDArray[np.floating]) -> ClippedTensor | None:
        """Return the clamp's changes of ``array``; None if ``apply`` only rounds."""
        raised = lowered = 0
        smallest, largest = np.inf, 0.0
        for _, block in _blocks(array):
            magnitude = np.abs(block)
            small, large = self._outside(magnitude)
            raised += int(np.count_nonzero(small))
            lowered += int(np.count_nonzero(large))
            finite = magnitude[np.isfinite(magnitude) & (magnitude > 0)]
            smallest = min(smallest, float(finite.min(initial=np.inf)))
            largest = max(largest, float(finite.max(initial=0.0)))
        if not raised and not lowered:
            return None
        return ClippedTensor(name, raised, lowered, smallest, largest)

    def tensor(self, tensor: ir.TensorProtocol, name: str | None = None) -> ir.LazyTensor:
        """Return the tensor as 16-bit floats, computed on first access: weights stay on disk until then."""

        def contents() -> ir.TensorProtocol:
            return ir.Tensor(self.apply(tensor.numpy()), dtype=self.dtype, name=name or tensor.name)

        shape = tensor.shape if isinstance(tensor.shape, ir.Shape) else ir.Shape(tensor.shape.numpy())
        return ir.LazyTensor(contents, self.dtype, shape, name=name or tensor.name, doc_string=tensor.doc_string)

    def _outside(self, magnitude: NDArray[np.floating]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        kind = magnitude.dtype.type
        small = (magnitude > 0) & (magnitude < kind(self.min_positive_val))
        large = (magnitude > kind(self.max_finite_val)) & np.isfinite(magnitude)
        return small, large


def default_clamp(dtype: ir.DataType, min_positive_val: float | None, max_finite_val: float | None) -> Clamp:
    """Return the clamp with these limits; None selects the type's default.

    The defaults are 1e-7 and 1e4 for float16, as in other converters; for bfloat16, with the range of float32, 0 and
    the largest number.
    """
    least, most = (1e-7, 1e4) if dtype == ir.DataType.FLOAT16 else (0.0, normal_range(dtype)[1])
    return Clamp(
        dtype,
        least if min_positive_val is None else min_positive_val,
        most if max_finite_val is None else max_finite_val,
    )


def _blocks(array: NDArray[np.floating]) -> Iterator[tuple[int, NDArray[np.floating]]]:
    """Yield the array in order, in blocks that bound temporaries to a few megabytes."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        yield start, flat[start : start + _BLOCK]
