"""Programs that replace their state: each call reads one set of arrays and writes the other."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.direct_call import binding
from sardonyx.compiler.program import Program
from sardonyx.core.eval.run_context import RunContext
from sardonyx.core.ir.graph import Function
from sardonyx.errors import UnsupportedError

_BINDINGS = 8
"""Sizes of batches with a native call of their own; other sizes allocate their results."""

_USES = 3
"""Calls of one size before the size gets a native call of its own."""


class StateProgram:
    """A compiled function whose first arguments are state, and whose last results are the new state.

    A call that does not end well leaves the state unchanged: the new state is in the other set of arrays until
    :meth:`commit`.

    Args:
        function: The function: state and other arguments, to other results and the new state.
        state: The initial state.
        threads: Number of threads; None for all processors of the process.

    Attributes:
        program: The compiled function.
    """

    def __init__(self, function: Function, state: Sequence[np.ndarray], threads: int | None = None) -> None:
        self.program = Program.compile(function, threads=threads)
        self._state = [np.array(array, copy=True, order="C") for array in state]
        self._next: list[np.ndarray] = []
        self._count = len(self._state)
        self._uses: Counter[tuple[Any, ...]] = Counter()
        self._bound: OrderedDict[tuple[Any, ...], _Bound] = OrderedDict()
        self._sets: tuple[list[np.ndarray], list[np.ndarray]] | None = None
        self._active = 0
        self._may_bind = self.program.in_one

    @property
    def state(self) -> list[np.ndarray]:
        """The current state; later calls may overwrite the arrays."""
        return self._state

    def replace_state(self, state: Sequence[np.ndarray]) -> None:
        """Set the state to copies of arrays of the same types and shapes."""
        for own, array in zip(self._state, state, strict=True):
            np.copyto(own, array)

    def run(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the results other than the state for the current state; :meth:`commit` makes the new state current.

        Raises:
            SardonyxError: The arguments do not fit, or have no result.
        """
        key = tuple((array.shape, array.dtype.str) for array in arguments)
        bound = self._binding(key, arguments)
        if bound is not None and (results := bound.run(self._active, arguments)) is not None:
            assert self._sets is not None
            self._next = self._sets[1 - self._active]
            return results
        results = self.program.run([*self._state, *arguments], RunContext())
        others = len(results) - self._count
        self._next = results[others:]
        return results[:others]

    def commit(self) -> None:
        """Make the state of the last run current."""
        if self._sets is None:
            self._state = [
                array if array.flags.owndata and array.flags.writeable else array.copy() for array in self._next
            ]
            return
        target = self._sets[1 - self._active]
        if self._next is not target:
            for own, array in zip(target, self._next, strict=True):
                np.copyto(own, array)
        self._active = 1 - self._active
        self._state = target

    def _binding(self, key: tuple[Any, ...], arguments: Sequence[np.ndarray]) -> _Bound | None:
        if not self._may_bind:
            return None
        if key in self._bound:
            self._bound.move_to_end(key)
            return self._bound[key]
        self._uses[key] += 1
        if self._uses[key] < _USES:
            return None
        if self._sets is None:
            self._sets = (self._state, [np.empty_like(array) for array in self._state])
        try:
            self._bound[key] = _Bound(self.program, self._sets, arguments, self._active)
        except UnsupportedError:  # Calls of this program need more than native code: every call allocates its results.
            self._may_bind = False
            return None
        if len(self._bound) > _BINDINGS:
            self._bound.popitem(last=False)
        self._uses[key] = 0
        return self._bound[key]


class _Bound:
    """Native calls for one size of batch, in both directions between two sets of state."""

    def __init__(
        self,
        program: Program,
        sets: tuple[list[np.ndarray], list[np.ndarray]],
        arguments: Sequence[np.ndarray],
        active: int,
    ) -> None:
        self._arguments = [np.array(array, copy=True, order="C") for array in arguments]
        others = len(program.function.results) - len(sets[0])
        self._calls: list[Callable[..., Any]] = [lambda: None, lambda: None]
        self._results: list[list[np.ndarray]] = [[], []]
        for source in (active, 1 - active):
            if source != active:
                for own, array in zip(sets[source], sets[active], strict=True):
                    np.copyto(own, array)
            entry, results = binding(program, [*sets[source], *self._arguments], [*[None] * others, *sets[1 - source]])
            self._calls[source] = entry.call
            self._results[source] = results[:others]

    def run(self, active: int, arguments: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Return the results; None if the native call has no result, and a call by steps names the reason."""
        for own, array in zip(self._arguments, arguments, strict=True):
            np.copyto(own, array)
        if self._calls[active]() is None:
            return None
        return self._results[active]
