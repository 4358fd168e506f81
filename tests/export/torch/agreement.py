"""Random models of one operator, exported to torch, beside the operators' definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import sardonyx
from sardonyx.errors import SardonyxError, UnsupportedError
from sardonyx.export.artifact import Options
from sardonyx.rewrite import inference
from sardonyx.rewrite.verify.compare import difference, tolerance
from sardonyx.runtime import Session
from tests.ops.differential import case_of

REFUSED = ("torch has no", "torch does not", "torch convolves", "torch reduces")
"""Beginnings of refusals that name a rule of torch."""

UNTRACEABLE = ("must be known", "needs", "rank", "unknown", "depends", "not known")


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


def disagreement(operator: str, seed: int, forms: bool = True) -> str | None:
    """Return the difference of a case between torch and the definitions; None if both agree or a rule refuses.

    Args:
        operator: The operator.
        seed: Seed of the case.
        forms: Use torch's functions of operators; otherwise the definitions over Core alone.
    """
    from sardonyx.export.torch import exporter

    case = case_of(operator, seed)
    model, feeds = frozen(case.model(), case.feeds())
    try:
        expected: Sequence[Any] = Session(model, providers=["reference"]).run(None, feeds)
    except SardonyxError:
        return None
    loaded = sardonyx.load(model)
    inference.infer_shapes(loaded, strict=False)
    known = exporter.OPERATOR_FORMS
    removed = dict(known) if not forms else {}
    for name in removed:
        del known[name]
    try:
        artifact = exporter.export(loaded, Options())
    except UnsupportedError as error:
        return None if any(word in str(error) for word in (*REFUSED, *UNTRACEABLE)) else f"{case}: {error}"
    finally:
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
        if deviation.error > 10 * tolerance(reference):
            return f"{case}: {name} differs by {deviation.error:.2e} {deviation.detail}"
    return None


STEPS = {
    "QLinearConv": 1, "QLinearMatMul": 1, "DynamicQuantizeLinear": 1, "QuantizeLinear": 1, "Resize": 1, "Upsample": 1,
}  # fmt: skip
"""Tolerance, in steps, of integers rounded from floats."""
