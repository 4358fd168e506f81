"""Tensors that are handed around by DLPack, of every element type: what a session is fed and gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.base.dlpack import PROCESSOR, to_capsule
from sardonyx.ops.feeds import shared_array


class Value:
    """A tensor in the processor's memory, which it shares with what it was made of.

    Sessions take values as they take arrays. Whoever speaks DLPack takes them without a copy, bfloat16 and floats of 8
    bits too, which numpy's own arrays do not give.

    Args:
        data: An array, or what has ``__dlpack__``.

    Raises:
        FeedError: It is neither, or is not in the processor's memory.

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
        """The element type, one of ``ml_dtypes`` where numpy has none."""
        return self._array.dtype

    def numpy(self) -> np.ndarray:
        """The array over the same memory."""
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return to_capsule(self._array, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return PROCESSOR

    def __repr__(self) -> str:
        return f"Value({self.dtype}{list(self.shape)})"
