"""Inference requests of OpenVINO, and the memory that they read and write.

Setting a request's memory takes longer than copying a small value. Larger values are not copied if possible: an input
is read in place once its address repeats from call to call, and a result is a view of memory that the request reuses
after all views are released.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

_SMALL = 1 << 15
"""Bytes of a value up to which inputs and outputs are copied."""

_COPIED_IN = 1 << 17
"""Bytes of an input up to which a value at a changing address is copied."""

_IN_A_ROW = 8
"""Calls with an unchanged input address after which the request reads in place."""

_MOST_BUFFERS = 2
"""Buffers of an output: a caller that holds one result until the next needs two."""

_UNHELD = 3
"""References to an array without views: its :class:`_Memory`, the tensor there, and the counting call."""


class Expected(NamedTuple):
    """Shape and element type of an output; None if only the run determines them."""

    shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None


class _Source:
    """The input memory of a request.

    Args:
        request: OpenVINO's request.
        index: Index of the input.
        tensor: OpenVINO's class of tensors.
    """

    __slots__ = ("_address", "_copy", "_index", "_is_lent", "_request", "_row", "_shape", "_tensor")

    def __init__(self, request: Any, index: int, tensor: Any) -> None:
        self._request = request
        self._index = index
        self._tensor = tensor
        self._copy: np.ndarray | None = None
        self._is_lent = False
        self._shape: tuple[int, ...] | None = None
        self._address = self._row = 0

    def give(self, value: np.ndarray) -> None:
        """Let the request read a value: in place, or from a copy."""
        size, flags = value.nbytes, value.flags
        if size > _SMALL and flags.c_contiguous and flags.writeable:  # A condition of the binding.
            # OpenVINO holds the address without a reference, so the request runs only while the value exists.
            address, shape = value.__array_interface__["data"][0], value.shape
            again = address == self._address and shape == self._shape
            self._address, self._shape = address, shape
            self._row = self._row + 1 if again else 0
            if size > _COPIED_IN or self._row >= _IN_A_ROW:
                if not (again and self._is_lent):
                    self._read(value)
                    self._is_lent = True
                return
        copy = self._copy
        if copy is None or copy.shape != value.shape:
            # `ascontiguousarray` would make a vector of a scalar.
            copy = self._copy = value.copy()
            self._is_lent = True
        if self._is_lent:
            self._read(copy)
            self._is_lent = False
        copy[...] = value

    @property
    def copied_into(self) -> np.ndarray | None:
        """The memory into which values of the last shape are copied; None if values may be read in place."""
        copy = None if self._is_lent else self._copy
        return copy if copy is not None and copy.nbytes <= _SMALL else None

    def _read(self, array: np.ndarray) -> None:
        # OpenVINO knows one of numpy's equivalent types.
        tensor = self._tensor(array.view(np.dtype(array.dtype.str)), shared_memory=True)
        self._request.set_input_tensor(self._index, tensor)


class _Sink:
    """The output memory of a request, for an output of known size.

    Args:
        request: OpenVINO's request.
        index: Index of the output.
        expected: Shape and type of the output, both known.
        tensor: OpenVINO's class of tensors.

    Attributes:
        copied: The memory from which results are copied, always free; None if results are views.
    """

    __slots__ = ("_buffers", "_expected", "_index", "_request", "_tensor", "copied")

    def __init__(self, request: Any, index: int, expected: Expected, tensor: Any) -> None:
        self._request = request
        self._index = index
        self._expected = expected
        self._tensor = tensor
        self._buffers: list[_Memory] = []
        """The first is the one that the request writes."""
        self._make()
        array = self._buffers[0].array
        self.copied = array if array.nbytes <= _SMALL else None

    def ready(self) -> None:
        """Select memory without views for the next result."""
        buffers = self._buffers
        if buffers[0].is_free:
            return
        free = next((buffer for buffer in buffers if buffer.is_free), None)
        if free is None:
            self._make()
            return
        buffers.remove(free)
        buffers.insert(0, free)
        self._request.set_output_tensor(self._index, free.tensor)

    def result(self) -> np.ndarray:
        """Return the output, in memory that is not written while referenced."""
        return self._buffers[0].array.view() if self.copied is None else self.copied.copy()

    def _make(self) -> None:
        shape, dtype = self._expected
        assert shape is not None
        array = np.empty(shape, dtype)
        memory = _Memory(array, self._tensor(array, shared_memory=True))
        del self._buffers[_MOST_BUFFERS - 1 :]
        self._buffers.insert(0, memory)
        self._request.set_output_tensor(self._index, memory.tensor)


@dataclass(frozen=True, slots=True, eq=False)
class _Memory:
    """Memory for an output, and OpenVINO's tensor there."""

    array: np.ndarray
    tensor: Any

    @property
    def is_free(self) -> bool:
        """True if no view of the array exists; views hold a reference to the array."""
        return sys.getrefcount(self.array) == _UNHELD


class Request:
    """An inference request, which one thread runs at a time.

    Args:
        request: OpenVINO's request.
        indices: Indices of the inputs in OpenVINO's order.
        outputs: Shapes and types of the outputs.
        tensor: OpenVINO's class of tensors.

    Attributes:
        request: OpenVINO's request.
        infer: Runs the request to its end, in this thread.
    """

    def __init__(self, request: Any, indices: Sequence[int], outputs: Sequence[Expected], tensor: Any) -> None:
        self.request = request
        self._sources = [_Source(request, index, tensor) for index in indices]
        self._outputs = outputs
        self._sinks = [
            _Sink(request, i, output, tensor)
            if output.shape is not None and 0 not in output.shape and output.dtype is not None
            else None
            for i, output in enumerate(outputs)
        ]
        self._lent = [sink for sink in self._sinks if sink is not None and sink.copied is None]
        # If all values are small: the memory to copy results from and, from the second run on, to copy inputs into.
        self._from = [sink.copied for sink in self._sinks if sink is not None and sink.copied is not None]
        self._into: list[np.ndarray] = []
        # The base class's method skips the conversion of arguments and the naming of results.
        beneath: Any = super(type(request), request)
        self.infer = functools.partial(beneath.infer, {}, share_outputs=True, decode_strings=False)

    def prepare(self, values: Sequence[np.ndarray]) -> None:
        """Give the inputs, and memory for the outputs."""
        if self._into and self._are_copied(values):
            return
        for source, value in zip(self._sources, values, strict=True):
            source.give(value)
        for sink in self._lent:
            sink.ready()
        copies = [source.copied_into for source in self._sources]
        small = [copy for copy in copies if copy is not None]
        self._into = small if len(small) == len(copies) and not self._lent else []

    def _are_copied(self, values: Sequence[np.ndarray]) -> bool:
        for copy, value in zip(self._into, values, strict=True):
            if copy.shape != value.shape:
                return False
            copy[...] = value
        return True

    def results(self) -> list[np.ndarray]:
        """Return the outputs, in memory that is not written while referenced."""
        if len(self._from) == len(self._sinks):
            return [array.copy() for array in self._from]
        return [
            self._copied(i, expected.dtype) if sink is None else sink.result()
            for i, (sink, expected) in enumerate(zip(self._sinks, self._outputs, strict=True))
        ]

    def _copied(self, i: int, dtype: np.dtype[Any] | None) -> np.ndarray:
        output: np.ndarray = self.request.get_output_tensor(i).data
        return output.astype(output.dtype if dtype is None else dtype)
