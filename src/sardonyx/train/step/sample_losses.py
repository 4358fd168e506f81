"""The loss of each sample of a batch, computed from the outputs of the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.core.transform.simplify import simplify
from sardonyx.errors import SardonyxError
from sardonyx.train.losses import Loss
from sardonyx.train.step.forward import Forward


class SampleLosses:
    """The losses of samples, as one native loop over the rows of outputs and labels.

    Args:
        forward: The forward pass in inference mode.
        loss: Its loss.
        program: See :meth:`of`.
        outputs: The outputs that the program reads.
    """

    def __init__(self, forward: Forward, program: Program, outputs: tuple[str, ...]) -> None:
        self._labels, self._program, self._outputs = tuple(forward.labels), program, outputs

    @classmethod
    def of(cls, forward: Forward, loss: Loss, threads: int | None) -> SampleLosses | None:
        """Return the losses; None if an output that the loss reads has no axis of samples.

        Args:
            forward: The forward pass in inference mode.
            loss: Its loss.
            threads: Number of threads.
        """
        inputs = dict(zip(forward.inputs, forward.function.inputs[len(forward.parameters) + len(forward.statistics) :],
                          strict=False))  # fmt: skip
        samples = {
            value.type.shape[0] for value in inputs.values() if isinstance(value.type, TensorType) and value.type.shape
        }
        rows = {name: type for name, type in forward.outputs.items() if type.shape and type.shape[0] in samples}
        labels = forward.labels
        if len(samples) != 1 or not {*loss.reads(forward.outputs), *forward.own_labels} <= rows.keys():
            return None
        if any(not type.shape for type in labels.values()):
            return None
        order = [*rows, *labels]

        def body(*values: Value) -> list[Value]:
            arrays = [cast(Tensor, value) for value in values]
            count = L.size_tensor([arrays[0].shape[0]], ())

            def one(i: Tensor) -> tuple[None, list[Value], list[Value]]:
                at = L.reshape(i, (1,))
                row = dict(zip(order, [L.take(array, at, 0) for array in arrays], strict=True))
                own = {name: row[name] for name in rows}
                terms = loss.terms(own, {name: row[name] for name in [*labels, *forward.own_labels]})
                return None, [], [terms.total, terms.weight]

            return list(L.loop(count, None, [], one)[1])

        try:
            function = simplify(trace("sample_losses", body, [*rows.values(), *labels.values()]))
        except SardonyxError:  # The loss reads other outputs, or fixes the number of samples.
            return None
        return cls(forward, Program.compile(function, threads=threads), tuple(rows))

    def run(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the loss of each sample, float64 [samples]; 0 for samples without weight."""
        arguments = [outputs[name] for name in self._outputs] + [labels[name] for name in self._labels]
        totals, weights = (np.asarray(array, np.float64) for array in self._program.answer(arguments))
        return np.divide(totals, weights, out=np.zeros(len(totals)), where=weights != 0)
