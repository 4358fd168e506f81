"""Errors of outputs: the signal-to-noise ratio of a compressed model against its original."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.report.accuracy import convert_feeds
from sardonyx.runtime.session import Session


@dataclass(frozen=True)
class OutputError:
    """The error of an output.

    Attributes:
        name: The name of the output.
        sqnr: Signal-to-quantization-noise ratio in dB, over all judged samples; infinite if nothing differs.
    """

    name: str
    sqnr: float


@dataclass(frozen=True)
class RecordedOutputs:
    """The outputs of a model over some samples, in place of the model, whose memory is free again.

    Attributes:
        names: The names of the outputs.
        results: The outputs of each sample.
    """

    names: tuple[str, ...]
    results: tuple[Sequence[Any], ...]


def record_outputs(model: ir.Model | Session, judged: Iterable[Mapping[str, Any]]) -> RecordedOutputs:
    """Return the outputs of a model over some samples.

    Raises:
        SardonyxError: The model does not run on a sample.
    """
    session = model if isinstance(model, Session) else Session(model, compile="wait")
    names = tuple(info.name for info in session.get_outputs())
    return RecordedOutputs(names, tuple(session.run(None, feeds) for feeds in judged))


def output_errors(
    before: ir.Model | Session | RecordedOutputs, after: ir.Model | Session, judged: Iterable[Mapping[str, Any]]
) -> tuple[OutputError, ...]:
    """Return the error of each float output over some samples, in the order of the outputs.

    Elements that are equally infinite or NaN in both models count as equal; an element that is finite in one model
    alone, and another shape, are errors of infinite size.

    Args:
        before: The original, as a model, a session, or its outputs on the samples.
        after: The compressed model; inputs are rounded to its precision.
        judged: Feeds of the original by name.

    Raises:
        SardonyxError: A model does not run on a sample.
    """
    judged = list(judged)
    recorded = before if isinstance(before, RecordedOutputs) else record_outputs(before, judged)
    second = after if isinstance(after, Session) else Session(after, compile="wait")
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}
    for feeds, results in zip(judged, recorded.results, strict=True):
        converted = feeds if isinstance(after, Session) else convert_feeds(after, feeds)
        for name, expected, actual in zip(recorded.names, results, second.run(None, converted), strict=True):
            if not is_float(expected):
                continue
            power, distance = _powers(expected, np.asarray(actual))
            signal[name] = signal.get(name, 0.0) + power
            noise[name] = noise.get(name, 0.0) + distance
    return tuple(OutputError(name, _decibels(signal[name], noise[name])) for name in signal)


def is_float(value: object) -> bool:
    """Return True for an array of floats, of any precision."""
    return isinstance(value, np.ndarray) and (value.dtype.kind == "f" or "float" in value.dtype.name)


def _powers(expected: np.ndarray, actual: np.ndarray) -> tuple[float, float]:
    if expected.shape != actual.shape:
        return 0.0, math.inf
    wide, other = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(wide)
    if not np.array_equal(wide[~finite], other[~finite], equal_nan=True) or not np.isfinite(other[finite]).all():
        return float(np.square(wide[finite]).sum()), math.inf
    return float(np.square(wide[finite]).sum()), float(np.square(wide[finite] - other[finite]).sum())


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 and math.isfinite(noise) else -math.inf
