"""Errors of outputs: the signal-to-noise ratio of a compressed model against its original."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compress.samples import not_a_number, number_of
from sardonyx.errors import SardonyxError
from sardonyx.report.accuracy import convert_feeds
from sardonyx.runtime.session import Session

_NUMERIC_BYTES = 2
"""Bytes of integers that are numbers, such as the pixels of images; wider ones are labels, indices or counts."""

_REMEDY = "Remove the sample: no result can be compared with NaN, for example of a division by zero."

_ROUNDING = 1e-5
"""Share of the largest element by which rows of one run and of several differ by rounding."""


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


def record_stacked(
    session: Session, judged: Sequence[Mapping[str, Any]]
) -> tuple[Sequence[Mapping[str, Any]], RecordedOutputs]:
    """Return samples as rows of one sample if a session computes rows alone, else the samples, and the outputs.

    All inputs and outputs must declare one open size of their first axis, and the rows of the first and last sample
    must be their own results, up to rounding.

    Raises:
        SardonyxError: The model does not run on a sample.
    """
    inputs, values = session.get_inputs(), [*session.get_inputs(), *session.get_outputs()]
    first = {value.shape[0] if value.shape else None for value in values}
    arrays = [[np.asarray(feeds[info.name]) for feeds in judged if info.name in feeds] for info in inputs]
    is_alike = all(len(own) == len(judged) > 1 and len({(x.shape, x.dtype) for x in own}) == 1 for own in arrays)
    if len(first) != 1 or not isinstance(first.pop(), str) or not is_alike:
        return judged, record_outputs(session, judged)
    rows = {own[0].shape[0] for own in arrays}
    if len(rows) != 1 or 0 in rows:
        return judged, record_outputs(session, judged)
    count, together = rows.pop(), {info.name: np.concatenate(own) for info, own in zip(inputs, arrays, strict=True)}
    try:
        results = session.run(None, together)
    except SardonyxError:
        return judged, record_outputs(session, judged)  # The declared size is not open in truth: a Reshape fixes it.
    for number in (0, len(judged) - 1):
        part = slice(number * count, (number + 1) * count)
        for whole, single in zip(results, session.run(None, judged[number]), strict=True):
            if np.shape(whole[part]) != np.shape(single) or not are_equal(whole[part], single, _ROUNDING):
                return judged, record_outputs(session, judged)
    return [together], RecordedOutputs(tuple(info.name for info in session.get_outputs()), (results,))


def are_equal(first: np.ndarray, second: np.ndarray, rounding: float) -> bool:
    """Return True for equal arrays, or floats that differ by at most a share of the largest finite element."""
    if not is_float(second):
        return bool(np.array_equal(first, second))
    finite = second[np.isfinite(second)]
    return np.allclose(first, second, rtol=0, atol=rounding * float(np.abs(finite).max(initial=0)), equal_nan=True)


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

    Elements that are equally infinite or NaN in both models count as equal; an element that is finite or a number in
    the original alone, and another shape, are errors of infinite size. An output without elements in all samples has no
    error. Without a float output, the others are judged:
    maps and sequences by their numbers, integers of up to 16 bits as numbers, and labels (other integers, texts) by the
    share that differs, as noise over signal.

    Args:
        before: The original, as a model, a session, or its outputs on the samples.
        after: The compressed model; inputs are rounded to its precision.
        judged: Feeds of the original by name.

    Raises:
        EvaluationError: The original computes NaN where the result has numbers, which cannot be compared.
        SardonyxError: A model does not run on a sample.
    """
    judged = list(judged)
    recorded = before if isinstance(before, RecordedOutputs) else record_outputs(before, judged)
    second = after if isinstance(after, Session) else Session(after, compile="wait")
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}
    floats: set[str] = set()
    for number, (feeds, results) in enumerate(zip(judged, recorded.results, strict=True)):
        raise_if_cancelled()
        converted = feeds if isinstance(after, Session) else convert_feeds(after, feeds)
        for name, expected, actual in zip(recorded.names, results, second.run(None, converted), strict=True):
            if is_float(expected):
                floats.add(name)
            elif floats:
                continue
            first, last = _numbers(expected, actual)
            if first.shape == last.shape and np.any(np.isnan(first) & ~np.isnan(last)):
                number = number_of(feeds, number)
                raise not_a_number("the original computes", name, feeds, number, _REMEDY)
            if not first.size and not last.size:
                continue  # Nothing is compared: no error is known.
            power, distance = _powers(first, last)
            signal[name] = signal.get(name, 0.0) + power
            noise[name] = noise.get(name, 0.0) + distance
    judged_names = [name for name in signal if name in floats or not floats]
    return tuple(OutputError(name, _decibels(signal[name], noise[name])) for name in judged_names)


def _numbers(expected: Any, actual: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return two results as numbers, whose squared differences are the noise."""
    if is_float(expected):
        return expected, np.asarray(actual)
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping) or set(expected) != set(actual):
            return np.ones(1), np.full(1, np.nan)
        return _joined([_numbers(value, actual[key]) for key, value in expected.items()])
    if isinstance(expected, (list, tuple)):
        if not isinstance(actual, (list, tuple)) or len(expected) != len(actual):
            return np.ones(1), np.full(1, np.nan)
        return _joined([_numbers(*pair) for pair in zip(expected, actual, strict=True)])
    if isinstance(expected, float):
        return np.array([expected]), np.array([actual], np.float64)
    labels, others = np.asarray(expected), np.asarray(actual)
    if labels.dtype.kind in "iu" and labels.dtype.itemsize <= _NUMERIC_BYTES:
        return labels.astype(np.float64), others.astype(np.float64)
    if labels.shape != others.shape:
        return np.ones(1), np.zeros(1)
    return np.ones(labels.shape), np.asarray(labels == others, np.float64)


def _joined(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    if any(first.shape != second.shape for first, second in pairs):
        return np.ones(1), np.full(1, np.nan)
    first, second = (np.concatenate([np.zeros(0), *(pair[index].ravel() for pair in pairs)]) for index in (0, 1))
    return first, second


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
