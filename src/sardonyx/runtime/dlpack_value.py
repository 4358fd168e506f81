"""Tensors exchanged by DLPack, of every element type: inputs and results of sessions."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.base.dlpack import PROCESSOR, to_capsule
from sardonyx.ops.feeds import shared_array


class Value:
    """A tensor in main memory, shared with the object it is made of.

    Sessions accept values like arrays. Other libraries read values by DLPack without a copy, including bfloat16 and
    8-bit floats, which arrays of numpy cannot export.

    Args:
        data: An array, or an object with ``__dlpack__``.

    Raises:
        FeedError: The object is neither, or is not in main memory.

    Example:
        >>> (y,) = session.run(None, {"x": torch.ones(2, 3, dtype=torch.bfloat16)})
        >>> torch.from_dlpack(Value(y))
    """

    __slots__ = ("_array",)

    def __init__(self, data: Any) -> None:
        self._array: np.ndarray = data.numpy() if isinstance(data, Value) else shared_array(data, "data")

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type, of ``ml_dtypes`` if numpy has no such type."""
        return self._array.dtype

    def numpy(self) -> np.ndarray:
        """Return the array over the same memory."""
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return to_capsule(self._array, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return PROCESSOR

    def __repr__(self) -> str:
        return f"Value({self.dtype}{list(self.shape)})"
