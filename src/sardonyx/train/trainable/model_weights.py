"""Models with other weights, and the comparison of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import OptionError
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
    for name, array in weights_of_file(model, weights).items():
        value = model.graph.initializers[name]
        value.const_value = ir.Tensor(array, dtype=value.const_value.dtype, name=name)  # type: ignore[union-attr]
    return model


def weights_of_file(model: ir.Model, weights: Mapping[str, np.ndarray], *, copy: bool = True) -> dict[str, np.ndarray]:
    """Return weights in the types of the initializers of a model.

    Args:
        model: The model.
        weights: The weights by name.
        copy: If False, weights that have the type of the file are returned themselves.
    """
    converted = {}
    for name, array in weights.items():
        old = model.graph.initializers[name].const_value
        assert old is not None
        converted[name] = np.array(array, old.dtype.numpy(), copy=copy or None)
    return converted


def with_inputs_as_weights(source: ir.Model, weights: Mapping[str, Any]) -> ir.Model:
    """Return a copy of a model whose inputs of these names have default values.

    Raises:
        OptionError: The model has no such input, or one of another rank, size or element type.
    """
    model = copy_model(source)
    inputs = {str(value.name): value for value in model.graph.inputs}
    for name, array in weights.items():
        if name not in inputs:
            raise OptionError(
                f"the model has no input {name!r}.", where="weights", remedy=f"The inputs are {', '.join(inputs)}."
            )
        value = inputs[name]
        tensor = ir.tensor(np.array(array, None if value.dtype is None else value.dtype.numpy()), name=name)
        declared = None if value.shape is None else list(value.shape)
        if declared is not None and (
            len(declared) != len(tensor.shape)
            or any(isinstance(a, int) and a != b for a, b in zip(declared, tensor.shape, strict=True))
        ):
            raise OptionError(
                f"expected a weight of shape {[str(a) for a in declared]}, got {list(tensor.shape.numpy())}.",
                where=f"weights, {name}",
            )
        value.const_value, value.shape = tensor, ir.Shape(tensor.shape.numpy())
        model.graph.register_initializer(value)
    return model


def equal_answers(
    model: ir.Model,
    feeds: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    names: Sequence[str],
    undone: str,
    *,
    reference: ir.Model | None = None,
) -> tuple[float, bool]:
    """Return the largest relative difference between a model's answers and expected ones, and True if small.

    Args:
        model: The model.
        feeds: Inputs by name.
        expected: Expected outputs by name.
        names: Names of the compared outputs.
        undone: If an output is the result of this operator, the expected value is its input.
        reference: A model of the same answers. If those of compiled code differ, both models are interpreted: kernels
            may round a value near a half to another integer, which layers that follow amplify.
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
    compiled = Session(model, compile="wait").run(requested, dict(feeds))
    worst = _difference([expected[name] for name in names], compiled)
    if worst > TOLERANCE and reference is not None:
        first, second = (Session(one, compile="off").run(requested, dict(feeds)) for one in (reference, model))
        worst = _difference(first, second)
    return worst, worst <= TOLERANCE


def _difference(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> float:
    """Return the largest difference of an element, as a share of the largest element of its array."""
    worst = 0.0
    for array, other in zip(expected, actual, strict=True):
        wide = array.astype(np.float64)
        scale = float(np.abs(wide).max(initial=0)) or 1.0
        worst = max(worst, float(np.abs(wide - other).max(initial=0)) / scale)
    return worst
