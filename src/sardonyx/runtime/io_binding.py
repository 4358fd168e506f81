"""Bindings: repeated calls of a session over fixed arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sardonyx.errors import FeedError
from sardonyx.ops.feeds import shared_array
from sardonyx.runtime.live.live_model import LiveModel


class Binding:
    """Calls over fixed arrays: each call reads the bound inputs and writes the bound outputs; see :meth:`Session.bind`.

    After an edit of the session, the binding computes the edited model.

    Args:
        live: The model.
        inputs: The inputs: arrays, or objects that support DLPack.
        outputs: Arrays for some of the outputs, in memory of their own; the binding allocates the others.
        run: Computes all outputs of the model from inputs by name.

    Attributes:
        inputs: The arrays that are read, by name: write new values into them.
        outputs: The arrays that are written, by name.

    Raises:
        FeedError: An array is not contiguous or not writable, differs in type or shape from the output, or overlaps
            another array.
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
        self.inputs = {name: _bindable(data, name) for name, data in inputs.items()}
        self.outputs = {name: _bindable(data, name) for name, data in outputs.items()}
        self._require_disjoint_memory()
        self._bind()

    def _require_disjoint_memory(self) -> None:
        # Kernels read inputs after the first outputs are written.
        before = list(self.inputs.items())
        for name, array in self.outputs.items():
            if not array.flags.writeable:
                raise FeedError("expected a writable array for the output, got a read-only one.", where=name)
            overlap = next((other for other, bound in before if np.may_share_memory(array, bound)), None)
            if overlap is not None:
                raise FeedError(
                    f"the array for the output shares memory with the array of {overlap!r}.",
                    where=name,
                    remedy="Bind a separate array.",
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
                    f"expected an array {_form(results[name])} for the output, got {_form(array)}.", where=name
                )
        arrays = {name: self.outputs.get(name, array) for name, array in results.items()}
        # A native call checks neither time nor iterations; the run above has checked the memory of these sizes.
        options = self._live.options
        is_unlimited = options.timeout is None and options.max_loop_iterations is None
        bound = version.bind(self.inputs, arrays) if is_unlimited else None
        self._call: Callable[[], bool | None] = lambda: None
        if bound is not None:
            entry, arrays = bound
            self._call = entry.call
        self.outputs, self._version = arrays, version

    def __call__(self) -> None:
        """Compute the outputs.

        Raises:
            ExecutionError: A node has no result for these values.
            ResourceError: A limit is passed.
            FeedError: An edit of the session changed the type or shape of an output.
        """
        if self._live.version is not self._version:
            self._bind()
        if self._call() is None:
            for array, result in zip(self.outputs.values(), self._run(self.inputs), strict=True):
                array[...] = result


def _bindable(data: Any, name: str) -> np.ndarray:
    """Return the array over this memory, if kernels can read and write the memory directly."""
    array = shared_array(data, name)
    if not (array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative):
        raise FeedError(
            "expected a contiguous, aligned array in native byte order.",
            where=name,
            remedy="Use `numpy.ascontiguousarray`.",
        )
    return array


def _form(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
