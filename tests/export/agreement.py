"""Random models of one operator, exported to a target, beside the operators' definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import sardonyx
from sardonyx.errors import SardonyxError, UnsupportedError
from sardonyx.export.artifact import Options
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.verify.compare import difference, tolerance
from sardonyx.runtime import Session
from tests.ops.differential import case_of

REFUSED = ("torch has no", "torch does not", "torch convolves", "torch reduces", "StableHLO")
"""Beginnings of refusals that name a rule of a target."""

UNTRACEABLE = ("must be known", "needs", "rank", "unknown", "depends", "not known", "computed from data")


def frozen(model: onnx.ModelProto, feeds: dict[str, Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a model in which the integers after the first input are constants: axes, shapes and amounts."""
    constants = {
        name: array
        for name, array in list(feeds.items())[1:]
        if isinstance(array, np.ndarray) and array.dtype.kind in "iub" and array.dtype.names is None
    }
    for value in [value for value in model.graph.input if value.name in constants]:
        model.graph.input.remove(value)
        model.graph.initializer.append(numpy_helper.from_array(constants[value.name], value.name))
    return model, {name: array for name, array in feeds.items() if name not in constants}


def disagreement(exporter: Any, operator: str, seed: int, known: dict[str, Any] | None = None) -> str | None:
    """Return the difference of a case between a target and the definitions; None if both agree or a rule refuses.

    Args:
        exporter: The exporter's module.
        operator: The operator.
        seed: Seed of the case.
        known: The table of the exporter's forms of operators, which is emptied; None to use the forms.
    """
    case = case_of(operator, seed)
    model, feeds = frozen(case.model(), case.feeds())
    try:
        expected: Sequence[Any] = Session(model, providers=["reference"]).run(None, feeds)
    except SardonyxError:
        return None
    loaded = sardonyx.load(model)
    inference.infer_shapes(loaded, strict=False)
    removed = dict(known or {})
    if known is not None:
        known.clear()
    try:
        artifact = exporter.export(loaded, Options())
    except UnsupportedError as error:
        return None if any(word in str(error) for word in (*REFUSED, *UNTRACEABLE)) else f"{case}: {error}"
    finally:
        if known is not None:
            known.update(removed)
    assert artifact.run is not None
    try:
        actual = artifact.run(feeds)
    except SardonyxError as error:
        return f"{case}: {error}"
    for (name, result), reference in zip(actual.items(), expected, strict=True):
        deviation = difference(name, reference, result)
        integers = isinstance(reference, np.ndarray) and reference.dtype.kind in "iu" and reference.size > 0
        same_type = integers and reference.shape == result.shape and reference.dtype == result.dtype
        if same_type and np.abs(reference.astype(object) - result.astype(object)).max() <= STEPS.get(operator, 0):
            continue
        if _is_close(reference, result):
            continue
        if deviation.error > 10 * tolerance(reference):
            return f"{case}: {name} differs by {deviation.error:.2e} {deviation.detail}"
    return None


STEPS = {
    "QLinearConv": 1, "QLinearMatMul": 1, "DynamicQuantizeLinear": 1, "QuantizeLinear": 1, "Resize": 1, "Upsample": 1,
}  # fmt: skip
"""Tolerance, in steps, of integers rounded from floats."""

ABSOLUTE = 1e-5
"""Difference of floats that decides nothing: small results are differences of large numbers."""


def _is_close(expected: Any, actual: Any) -> bool:
    """Return True if two arrays of floats of one type and shape differ by less than ``ABSOLUTE``."""
    arrays = isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray)
    if not arrays or expected.dtype != actual.dtype or expected.shape != actual.shape or expected.dtype.kind != "f":
        return False
    return bool(np.allclose(actual, expected, rtol=0, atol=ABSOLUTE, equal_nan=True))
