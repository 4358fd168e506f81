"""Programs over arrays that stay at the same addresses: the state of training, gradients and sums."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from sardonyx.compiler.direct_call import binding, planned_bytes
from sardonyx.compiler.pipeline import without_reshaped_results
from sardonyx.compiler.program import Program
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import UnsupportedError

_BINDINGS = 8
"""Sizes of batches with a native call of their own; other sizes allocate their results."""

_USES = 3
"""Calls of one size before the size gets a native call of its own."""

_LARGE_RESULTS = 1 << 23
"""Bytes of results from which the first call of a size is a native call of its own, so that nothing is copied."""


class StateProgram:
    """A compiled function whose first arguments are fixed arrays, and whose last results are written to fixed arrays.

    Args:
        function: The function: fixed and other arguments, to other and fixed results.
        inputs: The arrays of the first arguments; a call reads what they contain then.
        results: The arrays of the last results. An array may be one of ``inputs``: a call replaces its contents, in
            place if the kernels permit.
        threads: Number of threads; None for all processors of the process.
        bind_at_once: If True, the first call of a size is a native call of its own already.

    Attributes:
        program: The compiled function.
    """

    def __init__(
        self,
        function: Function,
        inputs: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        threads: int | None = None,
        *,
        bind_at_once: bool = False,
    ) -> None:
        self._others = others = len(function.results) - len(results)
        function = without_reshaped_results(function, others)
        positions = {id(array): i for i, array in enumerate(inputs)}
        pairs = [(positions[id(array)], others + i) for i, array in enumerate(results) if id(array) in positions]
        self.program = Program.compile(function, threads=threads, in_place=pairs)
        self._inputs = list(inputs)
        self._results = [
            array.reshape(_shape(value)) if array.shape != _shape(value) else array
            for array, value in zip(results, function.results[others:], strict=True)
        ]
        permitted = {
            j: is_permitted for (_, j), is_permitted in zip(pairs, self.program.overwritable(pairs), strict=True)
        }
        self._written = [
            array if permitted.get(j, True) else np.empty_like(array) for j, array in enumerate(self._results, others)
        ]
        self._uses: Counter[tuple[Any, ...]] = Counter()
        self._bound: OrderedDict[tuple[Any, ...], _Bound] = OrderedDict()
        self._may_bind = self.program.in_one
        self._is_large = bind_at_once or sum(array.nbytes for array in self._results) >= _LARGE_RESULTS

    def run(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Write the fixed results, and return the others; later calls may overwrite them.

        Args:
            arguments: The arguments after the fixed ones.

        Raises:
            SardonyxError: The arguments do not fit, or have no result; fixed results are unchanged.
        """
        bound = self._binding(arguments)
        if bound is not None and (results := bound.run(arguments)) is not None:
            new = self._written
        else:
            every = self.program.answer([*self._inputs, *arguments])
            results, new = every[: self._others], every[self._others :]
        for own, array in zip(self._results, new, strict=True):
            if own is not array:
                np.copyto(own, array)
        return results

    def planned_bytes(self, arguments: Sequence[np.ndarray]) -> int | None:
        """Return the bytes of the values of a call, with results, by its plan; None if interpreted parts have no plan.

        Args:
            arguments: As of :meth:`run`; their sizes alone are read.
        """
        return planned_bytes(self.program, [*self._inputs, *arguments])

    def _binding(self, arguments: Sequence[np.ndarray]) -> _Bound | None:
        if not self._may_bind:
            return None
        key = tuple([array.shape for array in arguments])
        bound = self._bound.get(key)
        if bound is not None:
            self._bound.move_to_end(key)
            return bound
        self._uses[key] += 1
        if self._uses[key] < _USES and not self._is_large:
            return None
        try:
            bound = _Bound(self.program, self._inputs, arguments, self._written, self._others)
        except UnsupportedError:  # Calls of this program need more than native code: every call allocates its results.
            self._may_bind = False
            return None
        self._bound[key] = bound
        if len(self._bound) > _BINDINGS:
            self._bound.popitem(last=False)
        self._uses[key] = 0
        return bound


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return cast("tuple[int, ...]", value.type.shape)


class _Bound:
    """A native call for one size of batch."""

    def __init__(
        self,
        program: Program,
        inputs: Sequence[np.ndarray],
        arguments: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        others: int,
    ) -> None:
        self._arguments = [np.array(array, copy=True, order="C") for array in arguments]
        targets = [*[None] * others, *results]
        entry, every = binding(program, [*inputs, *self._arguments], targets, trial=False)
        self._call: Callable[[], Any] = entry.call
        self._results = every[:others]

    def run(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Return the results; None if the native call has no result, and a call by steps names the reason."""
        for own, array in zip(self._arguments, arguments, strict=True):
            own[...] = array
        return None if self._call() is None else self._results
