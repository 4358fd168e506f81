"""A limit of the memory of a step: parts of the forward pass are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.call.interpreted import sizes_in
from sardonyx.core.ir.graph import Function
from sardonyx.core.transform.rematerialization import Segments, divisions, whole
from sardonyx.errors import ResourceError, UnsupportedError
from sardonyx.train.step.step import Step
from sardonyx.train.step.step_programs import StepPrograms

_TRIALS = 6
"""Most programs that are planned for one size of batch."""


class MemoryBudget:
    """Chooses the segments of the forward pass that a step computes twice, by the sizes of a batch.

    The plan of the compiled program decides; estimated bytes and operations choose the next program to plan.

    Args:
        limit: Most bytes of a step: state, gradients and values.
        work: The programs of the step.
        build: Returns the step whose backward pass repeats segments.
        loss: The function that the step differentiates.

    Attributes:
        note: A sentence about the current choice; empty if nothing is computed again.
    """

    def __init__(
        self, limit: int, work: StepPrograms, build: Callable[[Segments | None], Step], loss: Function
    ) -> None:
        self._limit, self._work, self._build, self._loss = limit, work, build, loss
        self._known: set[tuple[Any, ...]] = set()
        self._segments: Segments | None = None
        self.note = ""

    def fit(self, batch: Sequence[np.ndarray]) -> None:
        """Let the step of a batch fit the limit.

        Args:
            batch: The arguments of the step after the state.

        Raises:
            ResourceError: No division of the forward pass fits.
            UnsupportedError: Parts of the step are interpreted, and have no plan.
        """
        key = tuple([array.shape for array in batch])
        if key in self._known:
            return
        planned = self._planned(batch)
        if planned > self._limit:
            self._divided(batch, planned)
            self._known.clear()
        self._known.add(key)

    def _divided(self, batch: Sequence[np.ndarray], planned: int) -> None:
        """Use the first division that fits."""
        fixed = self._work.state_bytes
        inputs = self._loss.inputs[len(self._loss.inputs) - len(batch) :]
        sizes = sizes_in(inputs, batch)
        first = whole(self._loss, sizes)
        choices = divisions(self._loss, sizes)
        least, used = planned, self._segments or first
        for _ in range(_TRIALS):
            if not choices:
                break
            # The estimate knows no views, scratch and fusion: the last plan scales it.
            scale = (planned - fixed) / max(used.bytes, 1)
            fitting = [one for one in choices if fixed + scale * one.bytes <= self._limit]
            used = fitting[0] if fitting else min(choices, key=lambda one: one.bytes)
            choices = [one for one in choices if (one.bytes < used.bytes if fitting else one is not used)]
            self._work.use_gradients(self._build(used))
            self._segments = used
            planned = self._planned(batch)
            least = min(least, planned)
            if planned <= self._limit:
                self.note = (
                    f"A step needs {planned:,} bytes: the backward pass computes {len(used.repeated)} of"
                    f" {len(used.ends)} segments of the forward pass again."
                )
                return
        raise ResourceError(
            f"a step needs {least:,} bytes in the smallest form tried, {fixed:,} of these for the state;"
            f" {self._limit:,} are allowed.",
            where="max_memory",
            remedy="Use a smaller batch with `accumulate`, or raise `max_memory`.",
        )

    def _planned(self, batch: Sequence[np.ndarray]) -> int:
        planned = self._work.planned_bytes(batch)
        if planned is None:
            raise UnsupportedError(
                "parts of the step are interpreted, so that its memory is not planned.",
                where="max_memory",
                remedy="Train without `max_memory`.",
            )
        return planned
