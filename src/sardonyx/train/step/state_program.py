"""Programs over arrays that stay at the same addresses: the state of training, gradients and sums."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from sardonyx.compiler.direct_call import binding, planned_bytes
from sardonyx.compiler.pipeline import without_reshaped_results
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.alignment import aligned_arrays, aligned_empty
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.graph import function as distinct_function
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

    Results may repeat, and may be constants.

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
        others = len(function.results) - len(results)
        function = without_reshaped_results(function, others)
        self._inputs = list(inputs)
        self._distinct = _DistinctResults(function)
        self._others = self._distinct.positions[:others]
        self._results = [
            array.reshape(_shape(value)) if array.shape != _shape(value) else array
            for array, value in zip(results, function.results[others:], strict=True)
        ]
        owners: dict[int, int] = {}
        for i, position in enumerate(self._distinct.positions[others:]):
            if isinstance(position, int):
                owners.setdefault(position, i)
        indices = {id(array): i for i, array in enumerate(inputs)}
        pairs = [(indices[id(results[i])], position) for position, i in owners.items() if id(results[i]) in indices]
        self.program = Program.compile(self._distinct.function, threads=threads, in_place=pairs)
        permitted = {
            j: is_permitted for (_, j), is_permitted in zip(pairs, self.program.overwritable(pairs), strict=True)
        }
        self._targets: list[np.ndarray | None] = [None] * len(self._distinct.function.results)
        for position, i in owners.items():
            own = self._results[i]
            self._targets[position] = own if permitted.get(position, True) else aligned_empty(own.shape, own.dtype)
        self._copied_bytes = sum(x.nbytes for i, x in enumerate(self._results) if i not in owners.values())
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
        every = None if bound is None else bound.run(arguments)
        if every is None:
            every = self.program.answer([*self._inputs, *arguments])
        for own, position in zip(self._results, self._distinct.positions[len(self._others) :], strict=True):
            array = every[position] if isinstance(position, int) else position
            if own is not array:
                np.copyto(own, array)
        return [every[position] if isinstance(position, int) else position for position in self._others]

    def planned_bytes(self, arguments: Sequence[np.ndarray]) -> int | None:
        """Return the bytes of the values of a call, with results, by its plan; None if interpreted parts have no plan.

        Args:
            arguments: As of :meth:`run`; their sizes alone are read.
        """
        planned = planned_bytes(self.program, [*self._inputs, *arguments])
        return None if planned is None else planned + self._copied_bytes

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
            bound = _Bound(self.program, self._inputs, arguments, self._targets)
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


class _DistinctResults:
    """The distinct computed results of a function.

    Results repeat: branches that a sum joins have equal gradients, so that their biases have. Others are constants.
    A native call of fixed arrays writes each result once.

    Args:
        inner: The function.

    Attributes:
        function: The function of the distinct results.
        positions: For each result of ``inner`` the position of its value in the results of ``function``, or a constant.
    """

    def __init__(self, inner: Function) -> None:
        computed = [value for value in dict.fromkeys(inner.results) if not value.is_constant]
        numbers = {value: number for number, value in enumerate(computed)}
        self.function = distinct_function(inner.name, inner.inputs, computed, inner.level)
        self.positions: list[int | np.ndarray] = [
            np.array(value.known) if value.is_constant else numbers[value] for value in inner.results
        ]


class _Bound:
    """A native call for one size of batch."""

    def __init__(
        self,
        program: Program,
        inputs: Sequence[np.ndarray],
        arguments: Sequence[np.ndarray],
        targets: Sequence[np.ndarray | None],
    ) -> None:
        self._arguments = aligned_arrays((array.shape, array.dtype) for array in arguments)
        entry, self._results = binding(program, [*inputs, *self._arguments], targets, trial=False)
        self._call: Callable[[], Any] = entry.call

    def run(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Return the results; None if the native call has no result, and a call by steps names the reason."""
        for own, array in zip(self._arguments, arguments, strict=True):
            own[...] = array
        return None if self._call() is None else self._results
