"""Bindings: a session over arrays that stay where they are, called again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sardonyx.compiler.entry import Entry


class Binding:
    """Computes from its inputs into its outputs at each call; made by :meth:`Session.bind`.

    Attributes:
        inputs: The arrays that are read, by name: write new values into them.
        outputs: The arrays that are written, by name.
    """

    __slots__ = ("_call", "_entry", "_slow", "inputs", "outputs")

    def __init__(
        self,
        entry: Entry | None,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
        slow: Callable[[Mapping[str, np.ndarray]], list[Any]],
    ) -> None:
        self._entry = entry
        self._call: Callable[[], bool | None] = entry.call if entry is not None else lambda: None
        self._slow = slow
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)

    def __call__(self) -> None:
        """Compute the outputs.

        Raises:
            ExecutionError: A node has no result for these values.
            ResourceError: A limit is passed.
        """
        if self._call() is None:
            for array, found in zip(self.outputs.values(), self._slow(self.inputs), strict=True):
                array[...] = found
