"""The state of modules in Python: attributes, containers and buffers, as they were before a call.

A program may count its calls, remember values or build a table when it is first called. Every capture and every answer
of the proof begins with the state that the caller's module has, and leaves it.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

MOST_VALUES = 200_000
"""Maximum number of containers and objects whose contents are remembered, the closest to the module first."""

MOST_BYTES = 1 << 30
"""Maximum size of the parameters that are copied during the first call, to find those that the call writes to."""

_OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)


class State:
    """The state of a module, restored in place: the attributes remain the caller's own objects.

    Parameters that a call writes to are part of it from the call that is watched. Variables of functions and of
    classes, and objects without ``__dict__`` are not.

    Args:
        module: The module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._dicts: list[tuple[Any, dict[Any, Any]]] = []
        self._sequences: list[tuple[Any, list[Any]]] = []
        self._sets: list[tuple[Any, set[Any]]] = []
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        # Aliases of the values: a parameter's `data` may be replaced.
        self._parameters = [
            (value, data)
            for value in module.parameters()
            if not is_lazy(value) and type(data := value.data) is torch.Tensor and data.layout == torch.strided
        ]
        # The values themselves, so that no other object has the identity of one that was seen.
        seen: dict[int, Any] = {}
        queue: deque[Any] = deque((module, *module.buffers()))
        while queue and len(seen) < MOST_VALUES:
            value = queue.popleft()
            if id(value) not in seen and _has_contents(value):
                seen[id(value)] = value
                queue.extend(self._remember(value))

    def _remember(self, value: Any) -> list[Any]:
        """Remember the contents of a value, and return them."""
        if isinstance(value, torch.Tensor):
            self._tensors.append((value, value.detach().clone()))
            return []
        if isinstance(value, np.ndarray):
            self._arrays.append((value, value.copy()))
            return []
        if isinstance(value, (set, frozenset, tuple)):
            if isinstance(value, set):
                self._sets.append((value, set(value)))
            return list(value)
        if isinstance(value, (list, deque)):
            self._sequences.append((value, list(value)))
            return list(value)
        entries = value if isinstance(value, dict) else vars(value)
        self._dicts.append((entries, dict(entries)))
        return list(entries.values())

    def restore(self) -> None:
        """Restore whatever changed."""
        for entries, before in self._dicts:
            if not _are_same(list(entries), list(before)) or not _are_same(entries.values(), before.values()):
                entries.clear()
                entries.update(before)
        for sequence, elements in self._sequences:
            if not _are_same(sequence, elements):
                sequence.clear()
                sequence.extend(elements)
        for members, known in self._sets:
            if members != known:
                members.clear()
                members.update(known)
        for parameter, data in self._parameters:
            if _form(parameter) != _form(data):
                parameter.data = data
        with torch.no_grad():
            for tensor, values in self._tensors:
                if tensor.shape != values.shape or not torch.equal(tensor, values):
                    tensor.data = tensor.data if tensor.shape == values.shape else values.clone()
                    tensor.copy_(values)
        for array, numbers in self._arrays:
            if array.flags.writeable and not np.array_equal(array, numbers):
                array[...] = numbers

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Remember the parameters that are written to inside of the ``with`` statement, and restore the state."""
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        size = 0
        for _, data in self._parameters:
            needed = data.numel() * data.element_size()
            if size + needed <= MOST_BYTES:
                size += needed
                copies.append((data, data.clone()))
        try:
            yield
        finally:
            self._tensors += [(data, values) for data, values in copies if not torch.equal(data, values)]
            self.restore()

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore the state after the ``with`` statement."""
        try:
            yield
        finally:
            self.restore()


def _has_contents(value: Any) -> bool:
    """Return True for containers, tensors and arrays, and objects of programs with attributes."""
    if isinstance(value, torch.Tensor):
        return type(value) is torch.Tensor and value.layout == torch.strided and value.device.type == "cpu"
    if isinstance(value, (np.ndarray, list, tuple, dict, set, frozenset, deque, torch.nn.Module)):
        return True
    if isinstance(value, _OPAQUE) or not hasattr(type(value), "__dict__") or not hasattr(value, "__dict__"):
        return False
    # A logger, a lock or a stream of Python belongs to the whole process.
    package = type(value).__module__.partition(".")[0]
    return package == "__main__" or package not in {*sys.stdlib_module_names, "torch", "numpy"}


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the memory that a tensor reads, and how it reads it."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _are_same(first: Any, second: Any) -> bool:
    """Return True if two collections hold the same objects in the same order."""
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))
