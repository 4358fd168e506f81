"""Models as one Core function of inputs and weights, the common start of exporters that translate Core."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.core.ir.graph import Function
from sardonyx.errors import SardonyxError, UnsupportedError
from sardonyx.model.copying import copy_model
from sardonyx.ops.nodes import kept_calls
from sardonyx.train.step.forward import make_inputs, trace_graph
from sardonyx.train.trainable.parameters import find_parameters
from sardonyx.train.trainable.trainable_models import trainable_form

LEAST_WEIGHT = 65
"""Initializers of fewer elements may decide sizes, and are constants of the function unless they are trainable."""


@dataclass(frozen=True)
class Traced:
    """A model as a Core function.

    Attributes:
        function: From the model's inputs, then the weights, to its outputs.
        inputs: Names of the model's inputs.
        outputs: Names of the model's outputs.
        weights: The tensors of the weights by name, in order.
        trainable: Names of the trainable weights.
    """

    function: Function
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: dict[str, ir.TensorProtocol]
    trainable: frozenset[str]


def traced(model: ir.Model, calls: Collection[str] = ()) -> Traced:
    """Trace a model.

    Args:
        model: The model, which is not changed.
        calls: Operators whose nodes remain calls.

    Raises:
        UnsupportedError: An input has no declared type and rank, or a shape depends on values of a call.
        SardonyxError: The model is invalid.
    """
    work = trainable_form(copy_model(model))
    graph = work.graph
    defaults = [value for value in graph.inputs if str(value.name) in graph.initializers]
    for value in defaults:
        graph.inputs.remove(value)
    trainable = {one.name for one in find_parameters(work) if one.kind not in ("statistic", "constant")}
    large = [
        name
        for name, value in graph.initializers.items()
        if value.const_value is not None
        and (name in trainable or value.const_value.size >= LEAST_WEIGHT)
        and value.const_value.dtype != ir.DataType.STRING
    ]
    try:
        return _traced(work, large, trainable, calls)
    except UnsupportedError:
        # A constant that decides a shape must be known.
        few = [name for name in large if name in trainable]
        if few == large:
            raise
        return _traced(work, few, trainable, calls)


def _traced(model: ir.Model, weights: list[str], trainable: set[str], calls: Collection[str]) -> Traced:
    work = copy_model(model)
    inputs = tuple(str(value.name) for value in work.graph.inputs)
    outputs = tuple(str(value.name) for value in work.graph.outputs)
    tensors = {}
    for name in weights:
        tensor = work.graph.initializers[name].const_value
        assert tensor is not None
        tensors[name] = tensor
    make_inputs(work, weights)
    with kept_calls(calls):
        function = trace_graph(work)
    return Traced(function, inputs, outputs, tensors, frozenset(trainable & set(weights)))


def trace_failure(error: SardonyxError) -> tuple[str, str, str, str]:
    """Return location, operator, rule and remedy of a model that cannot be traced as a whole."""
    operator = error.where.rpartition("(")[2].rstrip(")") if error.where.endswith(")") else ""
    return error.where or "the model", operator, error.problem, error.remedy
