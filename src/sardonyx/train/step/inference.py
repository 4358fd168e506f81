"""The forward pass in inference mode: losses, outputs and gradients without a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sardonyx.core.ir.graph import function as distinct_function
from sardonyx.train.losses import Loss
from sardonyx.train.step.forward import Forward
from sardonyx.train.step.sample_losses import SampleLosses
from sardonyx.train.step.state_program import StateProgram
from sardonyx.train.step.step import loss_gradients

if TYPE_CHECKING:
    from sardonyx.compiler.program import Program

_COMPARED = 3
"""Samples of the first batch that are computed one by one, to see whether a batch gives the same."""

_TOLERANCE = 1e-3
"""Largest difference of a loss in a batch from that of the sample alone, as a share of the largest loss."""


class Inference:
    """The forward pass in inference mode, compiled once for all parameters.

    Args:
        forward: The forward pass.
        loss: Its loss.
        threads: Number of threads.
    """

    def __init__(self, forward: Forward, loss: Loss, threads: int | None) -> None:
        from sardonyx.compiler.program import Program

        self.forward, self._loss = forward, loss
        self._rows: SampleLosses | None = None
        self._knows_rows = False
        self._program = Program.compile(forward.function, threads=threads)
        self._threads = threads
        self._gradients: Program | None = None
        self._outputs: StateProgram | None = None
        self._converted: list[np.ndarray] = []

    def outputs(
        self, weights: Callable[[], Mapping[str, np.ndarray]], inputs: Sequence[np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs alone, without labels.

        Args:
            weights: Returns the parameters and statistics by name, arrays of the same addresses at each time.
            inputs: The inputs of the model.
        """
        if self._outputs is None:
            held = weights()
            own = self._own(held)
            whole, read = self.forward.function, len(own) + len(inputs)
            results = whole.results[2 : 2 + len(self.forward.outputs)]
            part = distinct_function("outputs", whole.inputs[:read], results, whole.level)
            self._outputs = StateProgram(part, own, [], self._threads)
            names = [*self.forward.parameters, *self.forward.statistics]
            is_live = all(np.shares_memory(held[name], array) for name, array in zip(names, own, strict=True))
            self._converted = [] if is_live else own
        if self._converted:  # Parameters of 16 bits are held in float32.
            for array, new in zip(self._converted, self._own(weights()), strict=True):
                np.copyto(array, new)
        arrays = [array.copy() for array in self._outputs.run(inputs)]
        return dict(zip(self.forward.outputs, arrays, strict=True))

    def run(
        self, weights: Mapping[str, np.ndarray], arguments: Sequence[np.ndarray]
    ) -> tuple[float, float, dict[str, np.ndarray]]:
        """Return the total and the weight of the loss, and the outputs."""
        total, weight, *outputs = self._program.answer([*self._own(weights), *arguments])
        return float(total), float(weight), dict(zip(self.forward.outputs, outputs, strict=False))

    def samples(
        self, weights: Mapping[str, np.ndarray], arrays: Sequence[np.ndarray], output: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the loss of each sample, float64 [samples], and an output.

        Batches are computed whole, unless samples of the first batch have other losses alone: a model may mix samples.

        Args:
            weights: The parameters and statistics by name.
            arrays: The inputs and labels, samples in axis 0.
            output: The name of the output.
        """
        if len(arrays[0]) == 1:
            return self._one_by_one(weights, arrays, output, 1)
        if not self._knows_rows:
            self._rows = SampleLosses.of(self.forward, self._loss, self._threads)
        if self._rows is not None:
            _, _, outputs = self.run(weights, arrays)
            labels = dict(zip(self.forward.labels, arrays[len(self.forward.inputs) :], strict=True))
            losses = self._rows.run(outputs, labels)
            if self._knows_rows:
                return losses, outputs[output]
            few = min(_COMPARED, len(losses))
            alone, _ = self._one_by_one(weights, arrays, output, few)
            scale = np.abs(losses[np.isfinite(losses)]).max(initial=0.0)
            if not np.allclose(alone, losses[:few], _TOLERANCE, _TOLERANCE * scale, equal_nan=True):
                self._rows = None
        self._knows_rows = True
        return self._one_by_one(weights, arrays, output, len(arrays[0]))

    def _one_by_one(
        self, weights: Mapping[str, np.ndarray], arrays: Sequence[np.ndarray], output: str, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        losses, rows = np.empty(count), []
        for i in range(count):
            total, weight, outputs = self.run(weights, [array[i : i + 1] for array in arrays])
            losses[i] = total / weight if weight else 0.0
            rows.append(np.array(outputs[output]))
        return losses, np.concatenate(rows)

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
