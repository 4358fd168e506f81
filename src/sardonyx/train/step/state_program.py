"""Programs over arrays that stay at the same addresses: the state of training, gradients and sums."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from sardonyx.compiler.call.native_entry import Entry
from sardonyx.compiler.call.tape_series import Series
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
        if bound is not None and bound.run(arguments):
            results, copies = bound.results, bound.copies
        else:
            results, copies = self._assigned(self.program.answer([*self._inputs, *arguments]))
        for own, array in copies:
            np.copyto(own, array)
        return results

    def _assigned(self, computed: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]:
        """Return the results ahead of the fixed ones, and destinations and sources of fixed ones that are elsewhere."""
        every = [computed[at] if isinstance(at, int) else at for at in self._distinct.positions]
        others = len(self._others)
        pairs = zip(self._results, every[others:], strict=True)
        return every[:others], [(own, array) for own, array in pairs if own is not array]

    def native(self, arguments: Sequence[np.ndarray]) -> NativeCall | None:
        """Return the native call for arguments of these sizes; None if calls need more than native code alone.

        The result is None for sizes that few calls had, too.

        Args:
            arguments: As of :meth:`run`; their sizes alone are read.
        """
        bound = self._binding(arguments)
        if bound is None or self.program.repeating or not Series.accepts(bound.entry):
            return None
        return NativeCall(bound.entry, bound.arguments, bound.results, bound.copies)

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
            bound = _Bound(self.program, self._inputs, arguments, self._targets, self._assigned)
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


class NativeCall(NamedTuple):
    """A native call of fixed arrays.

    Attributes:
        entry: The call.
        arguments: The arrays of the arguments after the fixed ones.
        results: The results ahead of the fixed ones.
        copies: Destinations and sources of the copies that follow the call.
    """

    entry: Entry
    arguments: list[np.ndarray]
    results: list[np.ndarray]
    copies: list[tuple[np.ndarray, np.ndarray]]


class _Bound:
    """A native call for one size of batch.

    Attributes:
        entry: The call.
        arguments: The arrays of its arguments.
        results: The results ahead of the fixed ones.
        copies: Destinations and sources of the copies that follow the call.
    """

    def __init__(
        self,
        program: Program,
        inputs: Sequence[np.ndarray],
        arguments: Sequence[np.ndarray],
        targets: Sequence[np.ndarray | None],
        assigned: Callable[[Sequence[np.ndarray]], tuple[list[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]],
    ) -> None:
        self.arguments = aligned_arrays((array.shape, array.dtype) for array in arguments)
        self.entry, computed = binding(program, [*inputs, *self.arguments], targets, trial=False)
        self.results, self.copies = assigned(computed)
        self._call: Callable[[], Any] = self.entry.call

    def run(self, arguments: Sequence[np.ndarray]) -> bool:
        """Return True if the native call has results; a call by steps names the reason if not."""
        for own, array in zip(self.arguments, arguments, strict=True):
            own[...] = array
        return self._call() is not None
