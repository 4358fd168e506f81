"""Activations over samples: means, mean magnitudes and mean squares per channel, from one pass on compiled code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compress.samples import number_of
from sardonyx.errors import EvaluationError
from sardonyx.runtime.session import Session


@dataclass(frozen=True)
class Activations:
    """Statistics of values per channel, float64 of shape [channels].

    Attributes:
        means: The mean.
        magnitudes: The mean magnitude.
        powers: The mean square of all elements.
    """

    means: Mapping[ir.Value, np.ndarray]
    magnitudes: Mapping[ir.Value, np.ndarray]
    powers: Mapping[ir.Value, float]


def observe(model: ir.Model, axes: Mapping[ir.Value, int], samples: Iterable[Mapping[str, Any]]) -> Activations:
    """Return the statistics of values over samples.

    Args:
        model: The model.
        axes: The axis of channels by value.
        samples: The samples, read once.

    Raises:
        EvaluationError: An activation is not finite, or empty in all samples.
    """
    inputs = set(model.graph.inputs)
    inner = [value for value in axes if value not in inputs and not value.is_initializer()]
    session = Session(model, compile="wait") if inner else None
    sums: dict[ir.Value, Any] = {}
    signed: dict[ir.Value, Any] = {}
    squares: dict[ir.Value, float] = {}
    counts: dict[ir.Value, int] = {}
    for number, sample in enumerate(samples):
        raise_if_cancelled()
        results = [] if session is None else session.run([str(value.name) for value in inner], sample)
        arrays = dict(zip(inner, results, strict=True))
        arrays |= {value: np.asarray(sample[str(value.name)]) for value in axes if value in inputs}
        for value, array in arrays.items():
            rows = np.moveaxis(np.asarray(array, np.float32), axes[value], 0)
            if not rows.size:
                continue
            rows = rows.reshape(rows.shape[0], -1)
            counts[value] = counts.get(value, 0) + 1
            means = np.abs(rows).mean(axis=1, dtype=np.float64)
            if not np.isfinite(means).all():
                raise EvaluationError(
                    "the activation holds NaN or infinity.", where=f"{value.name}, sample {number_of(sample, number)}",
                    remedy="Remove the sample.",
                )  # fmt: skip
            sums[value] = sums.get(value, 0.0) + means
            signed[value] = signed.get(value, 0.0) + rows.mean(axis=1, dtype=np.float64)
            squares[value] = squares.get(value, 0.0) + float(np.square(rows, dtype=np.float64).mean())
    empty = [str(value.name) for value in axes if not value.is_initializer() and value not in counts]
    if empty:
        raise EvaluationError(
            "no sample has elements of the activation.", where=", ".join(empty[:5]), remedy="Add samples."
        )
    means, magnitudes = ({v: total / counts[v] for v, total in one.items()} for one in (signed, sums))
    return Activations(means, magnitudes, {v: total / counts[v] for v, total in squares.items()})
