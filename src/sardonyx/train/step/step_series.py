"""Steps over the rows of a batch, executed by native code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.call.tape_series import Copy, Series
from sardonyx.errors import ExecutionError


class StepSeries:
    """Steps of one row each, as a series of two native calls: gradients and update.

    Args:
        native: The two calls.
        arguments: The arrays of a batch of one row, then the numbers of a step for each group.
        results: The loss and the outputs of a step.
        between: Copies between gradients and update.
        after: Copies after the update.

    Attributes:
        results: The loss and the outputs of a step, which each step overwrites.
    """

    def __init__(
        self, native: Series, arguments: Sequence[np.ndarray], results: Sequence[np.ndarray],
        between: Sequence[Copy], after: Sequence[Copy],
    ) -> None:  # fmt: skip
        self._native, self._arguments, self.results = native, arguments, results
        self._between, self._after = between, after

    def run(self, rows: Sequence[np.ndarray], results: Sequence[np.ndarray], first: int, end: int) -> int:
        """Take steps, and return the number of the first row without one.

        A step whose loss or length of gradients is not finite ends the series, and changes nothing.

        Args:
            rows: The rows of each argument.
            results: The rows of each result, which are written.
            first: The first row.
            end: The row after the last one.

        Raises:
            ExecutionError: An update has no result.
        """
        before = [Copy(to, source, source) for to, source in zip(self._arguments, rows, strict=True)]
        written = [Copy(to, source, to) for to, source in zip(results, self.results, strict=True)]
        done = self._native.run(before, [*self._between, *written], self._after, first, end)
        if done < 0:
            raise ExecutionError(f"the update of row {~done} has no result.", where="batch")
        return done
