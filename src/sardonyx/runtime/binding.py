"""Bindings: a session over arrays that stay where they are, called again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sardonyx.errors import FeedError
from sardonyx.runtime.live import Live


class Binding:
    """Computes from its inputs into its outputs at each call; made by :meth:`Session.bind`.

    After an edit of the session it computes the edited model.

    Args:
        live: The model.
        inputs: What is read.
        outputs: Where outputs go, as far as there are arrays for them.
        run: Computes all outputs of the model from inputs by name.

    Attributes:
        inputs: The arrays that are read, by name: write new values into them.
        outputs: The arrays that are written, by name.

    Raises:
        FeedError: An array is not of the output's type and shape.
    """

    __slots__ = ("_call", "_live", "_run", "_version", "inputs", "outputs")

    def __init__(
        self,
        live: Live,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
        run: Callable[[Mapping[str, np.ndarray]], list[Any]],
    ) -> None:
        self._live = live
        self._run = run
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)
        self._bind()

    def _bind(self) -> None:
        version = self._live.version
        results = dict(zip((info.name for info in version.outputs), self._run(self.inputs), strict=True))
        for name, array in self.outputs.items():
            if name not in results or (array.shape, array.dtype) != (results[name].shape, results[name].dtype):
                raise FeedError("the model gives no such array.", where=name)
        kept = {name: self.outputs.get(name, array) for name, array in results.items()}
        # The sizes are those of the run before, which kept to the limit on memory; others go on while loops run.
        options = self._live.options
        endless = options.timeout is None and options.max_loop_iterations is None
        bound = version.bind(self.inputs, kept) if endless else None
        self._call: Callable[[], bool | None] = lambda: None
        if bound is not None:
            entry, kept = bound
            self._call = entry.call
        self.outputs, self._version = kept, version

    def __call__(self) -> None:
        """Compute the outputs.

        Raises:
            ExecutionError: A node has no result for these values.
            ResourceError: A limit is passed.
            FeedError: The session was edited, and gives arrays of other types or shapes.
        """
        if self._live.version is not self._version:
            self._bind()
        if self._call() is None:
            for array, found in zip(self.outputs.values(), self._run(self.inputs), strict=True):
                array[...] = found
