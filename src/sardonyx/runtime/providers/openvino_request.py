"""Inference requests of OpenVINO, and the memory that they read and write.

To give a request other memory takes it longer than to copy what is small. Of what is larger nothing is copied where
that can be: an input is read where it lies, once it was seen to lie there call after call, and a result is a view of
memory that the request writes again when nobody holds any view of it any more.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

_SMALL = 1 << 15
"""Bytes of a value that is copied into and out of a request's own memory."""

_COPIED_IN = 1 << 17
"""Bytes of an input that is copied where it lies at another place in each call."""

_IN_A_ROW = 8
"""Values in a row that came at one address, after which a request is let read there."""

_KEPT = 2
"""Pieces of memory for an output that a request keeps: callers that hold one result until they have the next need two.
"""

_UNHELD = 3
"""References to an array that nobody holds but its :class:`_Memory`, the tensor there, and who counts them."""


class Expected(NamedTuple):
    """What an output is; of what only the run tells None."""

    shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None


class _Source:
    """Where a request reads an input.

    Args:
        request: OpenVINO's.
        place: The position of the input.
        tensor: OpenVINO's class of tensors.
    """

    __slots__ = ("_address", "_copy", "_is_lent", "_place", "_request", "_row", "_shape", "_tensor")

    def __init__(self, request: Any, place: int, tensor: Any) -> None:
        self._request = request
        self._place = place
        self._tensor = tensor
        self._copy: np.ndarray | None = None
        self._is_lent = False
        self._shape: tuple[int, ...] | None = None
        self._address = self._row = 0

    def give(self, value: np.ndarray) -> None:
        """Let a value be read: where it lies, or as a copy."""
        size, flags = value.nbytes, value.flags
        if size > _SMALL and flags.c_contiguous and flags.writeable:  # Its binding takes nothing else.
            # OpenVINO knows the address alone, and is asked to read there only while a value lies there.
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
        """The memory that values of the last one's shape are copied into; None where they may be read as they lie."""
        copy = None if self._is_lent else self._copy
        return copy if copy is not None and copy.nbytes <= _SMALL else None

    def _read(self, array: np.ndarray) -> None:
        # Of numpy's equal types OpenVINO knows one.
        tensor = self._tensor(array.view(np.dtype(array.dtype.str)), shared_memory=True)
        self._request.set_input_tensor(self._place, tensor)


class _Sink:
    """Where a request writes an output of known size.

    Args:
        request: OpenVINO's.
        place: The position of the output.
        expected: What is written there, all of it known.
        tensor: OpenVINO's class of tensors.

    Attributes:
        copied: The memory that results are copies of, which is always free; None where they are views.
    """

    __slots__ = ("_expected", "_kept", "_place", "_request", "_tensor", "copied")

    def __init__(self, request: Any, place: int, expected: Expected, tensor: Any) -> None:
        self._request = request
        self._place = place
        self._expected = expected
        self._tensor = tensor
        self._kept: list[_Memory] = []
        """That which the request writes to first."""
        self._make()
        array = self._kept[0].array
        self.copied = array if array.nbytes <= _SMALL else None

    def ready(self) -> None:
        """See to it that what is written next is where no view of before is."""
        kept = self._kept
        if kept[0].is_free:
            return
        free = next((each for each in kept if each.is_free), None)
        if free is None:
            self._make()
            return
        kept.remove(free)
        kept.insert(0, free)
        self._request.set_output_tensor(self._place, free.tensor)

    def result(self) -> np.ndarray:
        """What was written, in memory that nothing writes as long as somebody holds it."""
        return self._kept[0].array.view() if self.copied is None else self.copied.copy()

    def _make(self) -> None:
        shape, dtype = self._expected
        assert shape is not None
        array = np.empty(shape, dtype)
        made = _Memory(array, self._tensor(array, shared_memory=True))
        del self._kept[_KEPT - 1 :]
        self._kept.insert(0, made)
        self._request.set_output_tensor(self._place, made.tensor)


@dataclass(frozen=True, slots=True, eq=False)
class _Memory:
    """Memory for an output, and OpenVINO's tensor there."""

    array: np.ndarray
    tensor: Any

    @property
    def is_free(self) -> bool:
        """Whether nobody holds a result that is a view of it: whoever does holds the array, too."""
        return sys.getrefcount(self.array) == _UNHELD


class Request:
    """An inference request, which one thread runs at a time.

    Args:
        request: OpenVINO's.
        places: The positions of the inputs, as OpenVINO has them.
        outputs: What the outputs are.
        tensor: OpenVINO's class of tensors.

    Attributes:
        request: OpenVINO's.
        infer: Runs it to the end, in this thread.
    """

    def __init__(self, request: Any, places: Sequence[int], outputs: Sequence[Expected], tensor: Any) -> None:
        self.request = request
        self._sources = [_Source(request, place, tensor) for place in places]
        self._outputs = outputs
        self._sinks = [
            _Sink(request, i, each, tensor)
            if each.shape is not None and 0 not in each.shape and each.dtype is not None
            else None
            for i, each in enumerate(outputs)
        ]
        self._lent = [sink for sink in self._sinks if sink is not None and sink.copied is None]
        # Where all is small: what is copied from and, from the second run on, what is copied into.
        self._from = [sink.copied for sink in self._sinks if sink is not None and sink.copied is not None]
        self._into: list[np.ndarray] = []
        # Of the class beneath: it is given a dictionary and not what might become one, and gives none by names.
        beneath: Any = super(type(request), request)
        self.infer = functools.partial(beneath.infer, {}, share_outputs=True, decode_strings=False)

    def prepare(self, values: Sequence[np.ndarray]) -> None:
        """Give the inputs, and places for the outputs."""
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
        """The outputs, in memory that nothing writes as long as somebody holds it."""
        if len(self._from) == len(self._sinks):
            return [array.copy() for array in self._from]
        return [
            self._copied(i, each.dtype) if sink is None else sink.result()
            for i, (sink, each) in enumerate(zip(self._sinks, self._outputs, strict=True))
        ]

    def _copied(self, i: int, dtype: np.dtype[Any] | None) -> np.ndarray:
        found: np.ndarray = self.request.get_output_tensor(i).data
        return found.astype(found.dtype if dtype is None else dtype)
