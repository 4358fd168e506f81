"""Bindings: a session over arrays that stay where they are, called again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sardonyx.errors import FeedError
from sardonyx.ops.feeds import shared_array
from sardonyx.runtime.live.live_model import LiveModel


class Binding:
    """Computes from its inputs into its outputs at each call; made by :meth:`Session.bind`.

    After an edit of the session it computes the edited model.

    Args:
        live: The model.
        inputs: What is read: arrays, or what speaks DLPack.
        outputs: Where outputs go, as far as there are arrays for them; memory of their own.
        run: Computes all outputs of the model from inputs by name.

    Attributes:
        inputs: The arrays that are read, by name: write new values into them.
        outputs: The arrays that are written, by name.

    Raises:
        FeedError: An array is not of the output's type and shape, not in one piece, must not be written, or lies where
            another does.
    """

    __slots__ = ("_call", "_live", "_run", "_version", "inputs", "outputs")

    def __init__(
        self,
        live: LiveModel,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        run: Callable[[Mapping[str, np.ndarray]], list[Any]],
    ) -> None:
        self._live = live
        self._run = run
        self.inputs = {name: _in_place(given, name) for name, given in inputs.items()}
        self.outputs = {name: _in_place(given, name) for name, given in outputs.items()}
        self._require_memory_of_their_own()
        self._bind()

    def _require_memory_of_their_own(self) -> None:
        """Kernels read inputs after they have begun to write outputs."""
        before = list(self.inputs.items())
        for name, array in self.outputs.items():
            if not array.flags.writeable:
                raise FeedError("the array for the output must not be written.", where=name)
            if met := next((other for other, each in before if np.may_share_memory(array, each)), None):
                raise FeedError(
                    f"the array for the output lies in the same memory as that of {met!r}.",
                    where=name,
                    remedy="Bind an array of its own.",
                )
            before.append((name, array))

    def _bind(self) -> None:
        version = self._live.version
        results = dict(zip((info.name for info in version.outputs), self._run(self.inputs), strict=True))
        for name, array in self.outputs.items():
            if name not in results:
                raise FeedError("the model has no such output.", where=name, remedy=f"It has: {', '.join(results)}.")
            if _form(array) != _form(results[name]):
                raise FeedError(
                    f"the output is {_form(results[name])}, and the array for it is {_form(array)}.", where=name
                )
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


def _in_place(given: Any, name: str) -> np.ndarray:
    """The array that is bound: it must be one that kernels read and write as it lies."""
    array = shared_array(given, name)
    if not (array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative):
        raise FeedError(
            "an array in one piece is needed to bind it, of numbers as this machine has them.",
            where=name,
            remedy="Use `numpy.ascontiguousarray`.",
        )
    return array


def _form(found: Any) -> str:
    """The type and the sizes of an output."""
    return f"{found.dtype}{list(found.shape)}" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"
