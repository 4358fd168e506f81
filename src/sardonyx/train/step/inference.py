"""The forward pass in inference mode: losses, outputs and gradients without a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sardonyx.train.step.forward import Forward
from sardonyx.train.step.step import loss_gradients

if TYPE_CHECKING:
    from sardonyx.compiler.program import Program


class Inference:
    """The forward pass in inference mode, compiled once for all parameters."""

    def __init__(self, forward: Forward, threads: int | None) -> None:
        from sardonyx.compiler.program import Program

        self.forward = forward
        self._program = Program.compile(forward.function, threads=threads)
        self._threads = threads
        self._gradients: Program | None = None

    def run(
        self, weights: Mapping[str, np.ndarray], arguments: Sequence[np.ndarray]
    ) -> tuple[float, float, dict[str, np.ndarray]]:
        """Return the total and the weight of the loss, and the outputs."""
        total, weight, *outputs = self._program.answer([*self._own(weights), *arguments])
        return float(total), float(weight), dict(zip(self.forward.outputs, outputs, strict=False))

    def gradients(self, weights: Mapping[str, np.ndarray], arguments: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the gradients of the mean loss by parameter."""
        from sardonyx.compiler.program import Program

        if self._gradients is None:
            self._gradients = Program.compile(loss_gradients(self.forward), threads=self._threads)
        results = self._gradients.answer([*self._own(weights), *arguments])
        return dict(zip(self.forward.parameters, results, strict=True))

    def _own(self, weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        names = [*self.forward.parameters, *self.forward.statistics]
        inputs = self.forward.function.inputs
        return [
            np.asarray(weights[name], declared.type.dtype.numpy(), order="C")  # type: ignore[union-attr]
            for name, declared in zip(names, inputs, strict=False)
        ]
