"""The compiled functions of a step over one set of state, which is updated in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import numpy as np

from sardonyx.base.mapped_files import release_pages
from sardonyx.compiler.call.tape_series import Copy, Series
from sardonyx.compiler.target.alignment import aligned_arrays, aligned_zeros
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import ExecutionError
from sardonyx.train.step.gradient_lengths import length_type
from sardonyx.train.step.state_program import StateProgram
from sardonyx.train.step.step import Step, StepOptions
from sardonyx.train.step.step_series import StepSeries

Reduce = Callable[[list[np.ndarray]], object]
"""A function that replaces arrays by their means over processes, in place."""

_CHECK_EVERY = 64
"""Updates between two checks that the state is finite: a check reads the state once, an update twice or more."""

_CHECKED = {np.dtype(np.float32), np.dtype(np.float64)}
"""Types of losses and lengths that native code checks."""


class StepPrograms:
    """The compiled functions of a step, and the arrays that they read and write.

    A step computes its gradients first; the state changes by :meth:`update` alone.

    Args:
        step: The functions.
        state: The initial state.
        options: The options of the step.
        threads: Number of threads; None for all processors of the process.
        bind_at_once: See :class:`.StateProgram`.
        reduce: Replaces arrays by their means over processes, in place: the gradients, new statistics and the loss.

    Attributes:
        state: The state, in the order of :attr:`.Step.state`; the arrays are the same ones at all times.
        sums: The sums of accumulation, in the order of :attr:`.Step.sums`.
    """

    def __init__(
        self, step: Step, state: Sequence[np.ndarray], options: StepOptions, threads: int | None,
        *, bind_at_once: bool = False, reduce: Reduce | None = None,
    ) -> None:  # fmt: skip
        self.state = _empty_like(state)
        for own, array in zip(self.state, state, strict=True):
            np.copyto(own, array)
        release_pages()  # Of the weights in the model's file, which training does not read again.
        self.sums = [_zeros(one.type) for one in step.sums]
        count = sum(one.name.startswith("parameter:") for one in step.state)
        changed = self.state[: len(self.state) - len(step.statistics)]
        self._threads, self._bind_at_once, self._reduce = threads, bind_at_once, reduce
        self._tables = step.tables
        in_tables = {i for table in step.tables for i in table}
        self._gradients = gradients = _empty_like(x for i, x in enumerate(self.state[:count]) if i not in in_tables)
        self._rows: list[np.ndarray] = []
        self._statistics = [self.state[i] for i in step.statistics]
        self._new_statistics = _empty_like(self._statistics)
        self._clips = options.clip_norm is not None
        self._read = [*self.state[:count], *self._statistics]
        self._new_sums = _empty_like(self.sums)
        self._means = None if step.means is None else StateProgram(step.means, self.sums, gradients, threads)
        self.use_gradients(step)
        self._scalars = [_zeros(type) for type in step.scalars]
        dtype = length_type(one.type.dtype for one in step.state[:count])
        self._length = [np.empty((), dtype.numpy())] * self._clips
        arguments = [*changed, *self._scalars, *gradients, *self._length]
        whole = [array for i, array in enumerate(changed) if i not in in_tables]
        self._update = StateProgram(step.update, arguments, whole, threads)
        self._names = [one.name for one in step.state]
        self._updates = 0
        self.changes = 0

    def use_gradients(self, step: Step) -> None:
        """Compute gradients by the functions of a step of the same state, which may repeat other segments."""
        if step.gradients is not None:
            function, inputs, first = step.gradients, self._read, self._gradients
        else:
            assert step.accumulate is not None
            function, inputs, first = step.accumulate, [*self.sums, *self._read], self._new_sums
        written = [*first, *self._new_statistics]
        self._first = StateProgram(function, inputs, written, self._threads, bind_at_once=self._bind_at_once)

    def planned_bytes(self, batch: Sequence[np.ndarray]) -> int | None:
        """Return the bytes of the state, and of the gradients and all values of a batch by the plan of their program.

        The result is None if parts of the program are interpreted and have no plan.

        Args:
            batch: As of :meth:`gradients`; its sizes alone are read.
        """
        planned = self._first.planned_bytes(batch)
        return None if planned is None else planned + self.state_bytes

    @property
    def state_bytes(self) -> int:
        """The bytes of the state, with the sums of accumulation."""
        return sum(array.nbytes for array in (*self.state, *self.sums))

    @property
    def accumulates(self) -> bool:
        """True if gradients of several batches are summed before an update."""
        return self._means is not None

    def gradients(self, batch: Sequence[np.ndarray]) -> tuple[float, float, list[np.ndarray]]:
        """Compute or accumulate the gradients of a batch; return the loss, their length, and the outputs.

        Nothing changes unless both numbers are finite; with accumulation the length is that of the loss.

        Args:
            batch: The arguments of the step after state and scalars.
        """
        results = self._first.run(batch)
        loss = float(results[0])
        if self._means is not None:
            if np.isfinite(loss):
                for own, array in zip(self.sums, self._new_sums, strict=True):
                    np.copyto(own, array)
                self._take_statistics()
            return loss, loss, results[1:]
        length = float(results[1])
        if self._reduce is not None:
            loss, length = self._reduced(loss)
        if self._clips:
            self._length[0][...] = length
        end = len(results) - 2 * len(self._tables)
        self._rows = results[end:]
        return loss, length, results[2:end]

    def _reduced(self, loss: float) -> tuple[float, float]:
        """Replace gradients and new statistics by means over processes; return the mean loss, and the new length.

        Every process calls this, also after a loss that is not finite: all processes see the same numbers.
        """
        mean = np.array(loss, np.float64)
        assert self._reduce is not None
        self._reduce([*self._gradients, *self._new_statistics, mean])
        with np.errstate(over="ignore", invalid="ignore"):
            squares = sum(float(np.square(array, dtype=np.float64).sum()) for array in self._gradients)
        return float(mean), math.sqrt(squares) if squares >= 0 else squares

    def means(self) -> tuple[float, float]:
        """Compute the gradients of the accumulated batches; return the loss and the length of the gradients."""
        assert self._means is not None
        loss, length = (float(number) for number in self._means.run([]))
        if self._clips:
            self._length[0][...] = length
        return loss, length

    def update(self, scalars: Sequence[Sequence[float]]) -> None:
        """Apply the gradients to the state.

        Args:
            scalars: The numbers of the step, for each group.

        Raises:
            ExecutionError: The state has become infinite or NaN, which every 64th update finds.
        """
        for own, numbers in zip(self._scalars, scalars, strict=True):
            own[...] = numbers
        rows = iter(self._update.run(self._rows))
        for table, indices in zip(self._tables, self._rows[::2], strict=True):
            for i in table:
                self.state[i][indices] = next(rows)
        if self._means is None:
            self._take_statistics()
        for array in self.sums:
            array[...] = 0
        self.count_updates(1)

    def non_finite(self) -> str | None:
        """Return the name of a tensor of the state with an element that is infinite or NaN; None without one."""
        return next((name for name, x in zip(self._names, self.state, strict=True) if not _is_finite(x)), None)

    def require_finite(self) -> None:
        """Check the state: sums of an optimizer may overflow though every gradient is finite.

        Raises:
            ExecutionError: A tensor of the state has an element that is infinite or NaN.
        """
        if (name := self.non_finite()) is not None:
            raise ExecutionError(
                f"the state has elements that are infinite or NaN after {self._updates} updates.",
                where=name,
                remedy="Continue from the last checkpoint, with a smaller learning rate or `clip_norm`.",
            )

    def series(self, batch: Sequence[np.ndarray]) -> StepSeries | None:
        """Return native steps over batches of these sizes; None if a step needs more than two native calls.

        Args:
            batch: As of :meth:`gradients`; its sizes alone are read.
        """
        if self._means is not None or self._reduce is not None or self._tables:
            return None
        first, second = self._first.native(batch), self._update.native([])
        if first is None or second is None:
            return None
        loss, length, *outputs = first.results
        if not {loss.dtype, length.dtype} <= _CHECKED:
            return None
        between = [Copy(*pair) for pair in first.copies] + [Copy(own, length) for own in self._length]
        statistics = zip(self._statistics, self._new_statistics, strict=True)
        after = [Copy(*pair) for pair in (*second.copies, *statistics)]
        native = Series(self._first.program.target, first.entry, second.entry, [loss, length])
        return StepSeries(native, [*first.arguments, *self._scalars], [loss, *outputs], between, after)

    def count_updates(self, count: int) -> None:
        """Count updates, and check the state if a 64th one is among them.

        Raises:
            ExecutionError: See :meth:`require_finite`.
        """
        before = self._updates // _CHECK_EVERY
        self._updates += count
        self.changes += 1
        if self._updates // _CHECK_EVERY > before:
            self.require_finite()

    def _take_statistics(self) -> None:
        self.changes += bool(self._statistics)
        for own, array in zip(self._statistics, self._new_statistics, strict=True):
            np.copyto(own, array)

    def replace_state(self, state: Sequence[np.ndarray]) -> None:
        """Set the state to copies of arrays of the same types and shapes."""
        self.changes += 1
        for own, array in zip(self.state, state, strict=True):
            np.copyto(own, array)


def _is_finite(array: np.ndarray) -> bool:
    flat = array.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.dot(flat, flat))) or bool(np.isfinite(flat).all())


def _empty_like(arrays: Iterable[np.ndarray]) -> list[np.ndarray]:
    return aligned_arrays((array.shape, array.dtype) for array in arrays)


def _zeros(type: TensorType) -> np.ndarray:
    return aligned_zeros(cast("tuple[int, ...]", type.shape), type.dtype.numpy())
