"""Models with other weights, and the comparison of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.model.copying import copy_model
from sardonyx.runtime.session import Session

TOLERANCE = 1e-4
"""Largest difference of answers, as a share of the largest element."""


def with_weights(source: ir.Model, form: ir.Model, weights: Mapping[str, np.ndarray]) -> ir.Model:
    """Return a copy of a model with other elements of weights.

    Args:
        source: The model.
        form: Its trainable form, which is copied instead if a weight is no initializer of the source.
        weights: New elements by name, in any floating-point type.
    """
    initializers = source.graph.initializers
    model = copy_model(source if all(name in initializers for name in weights) else form)
    for name, array in weights.items():
        value = model.graph.initializers[name]
        old = value.const_value
        assert old is not None
        value.const_value = ir.Tensor(np.array(array, old.dtype.numpy()), dtype=old.dtype, name=name)
    return model


def equal_answers(
    model: ir.Model,
    feeds: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    names: Sequence[str],
    undone: str,
) -> tuple[float, bool]:
    """Return the largest relative difference between a model's answers and expected ones, and True if small.

    Args:
        model: The model.
        feeds: Inputs by name.
        expected: Expected outputs by name.
        names: Names of the compared outputs.
        undone: If an output is the result of this operator, the expected value is its input.
    """
    requested = []
    for name in names:
        value = next(value for value in model.graph.outputs if value.name == name)
        producer = value.producer()
        while producer is not None and producer.op_type == "Identity" and producer.inputs[0] is not None:
            value = producer.inputs[0]
            producer = value.producer()
        if undone and producer is not None and producer.op_type == undone and not producer.domain:
            before = producer.inputs[0]
            assert before is not None
            value = before
        requested.append(str(value.name))
    session = Session(model, compile="wait")
    worst = 0.0
    for name, actual in zip(names, session.run(requested, dict(feeds)), strict=True):
        wide = expected[name].astype(np.float64)
        scale = float(np.abs(wide).max(initial=0)) or 1.0
        worst = max(worst, float(np.abs(wide - actual).max(initial=0)) / scale)
    return worst, worst <= TOLERANCE
