"""The forward pass of training: a model and its loss as one Core function of the parameters."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from sardonyx.core import language as L
from sardonyx.core.eval.trace import inline, trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.core.language import Tensor
from sardonyx.core.transform.simplify import simplify
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model.copying import copy_model
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.definitions.counted_dropout import DOMAIN
from sardonyx.ops.graph import prepare
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, node_label, value_names
from sardonyx.rewrite.opset import convert_opset
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.pipeline import exact_passes
from sardonyx.train.losses import Loss
from sardonyx.train.losses.loss import LABELS
from sardonyx.train.trainable.parameters import fixed_shape

BatchNormMode = Literal["train", "frozen"]

_BATCH_NORM_OPSET = 15
"""First operator set whose BatchNormalization has the mode as an attribute and population statistics."""

LOSS = "loss"
KEY = "training_key"
"""The int64 input of the step that random operators read."""


@dataclass(frozen=True)
class Forward:
    """A forward pass.

    Attributes:
        function: From parameters, statistics, inputs, labels and, if ``has_key``, the key, to the total and the weight
            of the loss, the outputs, and the new statistics.
        parameters: Names of the parameters.
        statistics: Names of the running statistics that are arguments; in training the pass computes them anew.
        inputs: Names of the model's inputs.
        labels: Types of the labels by name.
        own_labels: Labels that are outputs of the model, such as the other embeddings of a pair.
        outputs: Types of the outputs by name.
        has_key: True if a random operator reads the key.
        notes: Sentences for the user.
    """

    function: Function
    parameters: tuple[str, ...]
    statistics: tuple[str, ...]
    inputs: tuple[str, ...]
    labels: Mapping[str, TensorType]
    own_labels: tuple[str, ...]
    outputs: Mapping[str, TensorType]
    has_key: bool
    notes: tuple[str, ...]


def build_forward(
    model: ir.Model,
    parameters: Sequence[str],
    loss: Loss | None,
    *,
    training: bool,
    batch_norm: BatchNormMode = "train",
    dropout: Mapping[str, float] | None = None,
    statistics: Sequence[str] = (),
) -> Forward:
    """Return the forward pass of a model.

    Args:
        model: A model in trainable form, which is not changed.
        parameters: Names of the initializers that become arguments.
        loss: The loss; None computes the outputs alone.
        training: If True, BatchNormalization and Dropout behave as in training.
        batch_norm: ``"frozen"`` keeps the running statistics in training too.
        dropout: Ratios of dropout by pattern of node names; the ratio of the file by default.
        statistics: Running statistics that are arguments in inference mode.

    Raises:
        OptionError: The loss does not fit the outputs.
        UnsupportedError: The model cannot be traced.
        SardonyxError: The model is invalid.
    """
    work = copy_model(model)
    notes: list[str] = []
    if loss is not None:
        notes += _undo(work, loss)
    outer = len(work.graph.outputs)
    has_key = False
    if training:
        if batch_norm == "train":
            work, statistics = _with_batch_statistics(work)
        has_key = _with_counted_dropout(work, dropout or {})
    arguments = [*parameters, *statistics]
    make_inputs(work, arguments)
    outputs = [str(value.name) for value in work.graph.outputs]
    rewritten = optimize(work, target="native", passes=exact_passes(), verify=False).model
    traced = trace_graph(rewritten)
    names = [str(value.name) for value in rewritten.graph.inputs]
    fed = [name for name in names if name not in arguments and name != KEY]
    types = dict(zip(names, [value.type for value in traced.inputs], strict=True))
    output_types = {
        name: value.type
        for name, value in zip(outputs[:outer], traced.results[:outer], strict=True)
        if isinstance(value.type, TensorType)
    }
    all_labels = {} if loss is None else loss.labels(output_types)
    own_labels = _own_labels(all_labels, output_types)
    labels = {name: type for name, type in all_labels.items() if name not in own_labels}
    clash = set(labels) & {*fed, *arguments}
    if clash:
        raise OptionError(
            f"the label {min(clash)!r} has the name of an input of the model.",
            where="loss",
            remedy="Give the label another name: `label=...`.",
        )
    order = [*arguments, *fed, *labels, *[KEY] * has_key]
    all_types: list[Type] = [types[name] if name in types else labels[name] for name in order]

    def body(*values: Value) -> list[Value]:
        by_name = dict(zip(order, values, strict=True))
        results = inline(traced, [by_name[name] for name in names])
        own: dict[str, Tensor] = {
            name: result  # type: ignore[misc]
            for name, result in zip(outputs[:outer], results[:outer], strict=True)
            if isinstance(result.type, TensorType)
        }
        if loss is None:
            return [*own.values(), *results[outer:]]
        read = {name: by_name[name] for name in labels} | {name: own[name] for name in own_labels}
        terms = loss.terms(own, read)  # type: ignore[arg-type]
        return [terms.total, L.stop_gradient(terms.weight), *own.values(), *results[outer:]]

    function = simplify(trace("forward", body, all_types))
    return Forward(
        function, tuple(parameters), tuple(statistics), tuple(fed), labels, own_labels, output_types, has_key,
        tuple(notes),
    )  # fmt: skip


def _own_labels(labels: Mapping[str, TensorType], outputs: Mapping[str, TensorType]) -> tuple[str, ...]:
    """Return the labels that have the names of outputs.

    Raises:
        OptionError: An output holds another kind of numbers than the label.
    """
    own = tuple(name for name in labels if name in outputs and name != LABELS)
    for name in own:
        expected, actual = labels[name].dtype, outputs[name].dtype
        if t.kind(expected) != t.kind(actual):
            raise OptionError(
                f"the label {name!r} has the name of an output of {actual}, expected {expected}.",
                where="loss",
                remedy="Give the label another name: `label=...`.",
            )
    return own


def trace_graph(model: ir.Model) -> Function:
    """Return a model as one Core function of its inputs.

    Raises:
        UnsupportedError: An input has no declared type and rank, or a shape depends on values of a call.
    """
    prepared = prepare(model)
    types = []
    for value in prepared.inputs:
        declared = declared_type(value)
        if declared is None or (isinstance(declared, TensorType) and declared.shape is None):
            raise UnsupportedError(
                "the input has no declared type and rank.",
                where=str(value.name),
                remedy="Declare its shape with `sardonyx set-shape`.",
            )
        types.append(declared)
    return trace(model.graph.name or "model", lambda *inputs: list(prepared.call(list(inputs))), types)


def make_inputs(model: ir.Model, names: Sequence[str]) -> None:
    """Turn initializers into inputs without default."""
    graph = model.graph
    for name in names:
        value = graph.initializers.pop(name)
        tensor = value.const_value
        assert tensor is not None
        value.const_value = None
        value.type, value.shape = ir.TensorType(tensor.dtype), fixed_shape(tensor)
        if value not in graph.inputs:
            graph.inputs.append(value)


def output_producer(model: ir.Model, name: str) -> ir.Node | None:
    """Return the node that computes an output, behind copies of the result; None if there is none."""
    producer = next((value.producer() for value in model.graph.outputs if value.name == name), None)
    while producer is not None and producer.op_type == "Identity":
        inner = producer.inputs[0]
        producer = None if inner is None else inner.producer()
    return producer


def _undo(model: ir.Model, loss: Loss) -> list[str]:
    """Let an output be the input of the function that the loss computes itself."""
    if not loss.undone:
        return []
    outputs = {str(value.name): value for value in model.graph.outputs}
    floats = {
        name: TensorType(t.element_type(int(value.dtype)), None)
        for name, value in outputs.items()
        if value.dtype is not None and value.dtype.is_floating_point()
    }
    name = loss.output_name(floats or outputs)
    producer = output_producer(model, name)
    if producer is None or producer.op_type != loss.undone or producer.domain:
        return []
    before = producer.inputs[0]
    assert before is not None
    identity = ir.node("Identity", [before], name=f"{name}_logits")
    old = outputs[name]
    index = list(model.graph.outputs).index(old)
    renamed = Names(value_names(model)).fresh(f"{name}_probabilities")
    new = identity.outputs[0]
    old.name, new.name = renamed, name
    new.type, new.shape = before.type or old.type, before.shape or old.shape
    model.graph.append(identity)
    model.graph.outputs[index] = new
    return [f"The loss reads the input of {node_label(producer)}, because the loss computes {loss.undone} itself."]


def _with_batch_statistics(model: ir.Model) -> tuple[ir.Model, list[str]]:
    """Let BatchNormalization compute statistics of the batch; return the names of the running statistics.

    New statistics are appended to the outputs, in the order of the names.
    """
    nodes = [node for node in model.graph if node.op_type == "BatchNormalization" and not node.domain]
    if not nodes:
        return model, []
    opset = model.graph.opset_imports.get("", 0)
    if opset < _BATCH_NORM_OPSET:
        model = convert_opset(model, _BATCH_NORM_OPSET)
        nodes = [node for node in model.graph if node.op_type == "BatchNormalization" and not node.domain]
    names: list[str] = []
    fresh = Names(value_names(model))
    for node in nodes:
        values = node.inputs[3:5]
        if any(value is None or value.const_value is None or not value.is_initializer() for value in values):
            continue  # Statistics that the graph computes are not state.
        if any(str(value.name) in names for value in values if value is not None):
            raise UnsupportedError(
                "two nodes share running statistics.", where=node_label(node), remedy="Use batch_norm='frozen'."
            )
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
        while len(node.outputs) < 3:
            node.resize_outputs(len(node.outputs) + 1)
        for value, output in zip(values, node.outputs[1:3], strict=True):
            assert value is not None and value.const_value is not None
            output.name = output.name or fresh.fresh(f"{value.name}_new")
            output.type, output.shape = ir.TensorType(value.const_value.dtype), fixed_shape(value.const_value)
            names.append(str(value.name))
            model.graph.outputs.append(output)
    return model, names


def _with_counted_dropout(model: ir.Model, ratios: Mapping[str, float]) -> bool:
    """Replace Dropout by dropout that reads the key; return True if any was replaced."""
    graph = model.graph
    key: ir.Value | None = None
    nodes = [node for node in graph if node.op_type == "Dropout" and not node.domain]
    labels = [node_label(node) for node in nodes]
    for pattern in ratios:
        if pattern != "*" and not fnmatch.filter(labels, pattern):
            remedy = f"The nodes are: {', '.join(labels[:8])}." if labels else "The model has no node of Dropout."
            raise OptionError(f"no node of dropout matches {pattern!r}.", where="dropout", remedy=remedy)
    for stream, node in enumerate(nodes):
        label = node_label(node)
        ratio = next((share for pattern, share in ratios.items() if fnmatch.fnmatchcase(label, pattern)), None)
        ratio = _ratio(node) if ratio is None else ratio
        if not 0 <= ratio < 1:
            raise OptionError(f"expected a ratio of dropout in [0, 1), got {ratio}.", where=label)
        if not ratio:
            continue
        if key is None:
            key = ir.Value(name=KEY, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
            graph.inputs.append(key)
            graph.opset_imports[DOMAIN] = 1
        new = ir.Node(
            DOMAIN,
            "CountedDropout",
            [node.inputs[0], key],
            [ir.AttrFloat32("ratio", float(ratio)), ir.AttrInt64("stream", stream)],
            num_outputs=len(node.outputs),
            name=node.name,
        )
        for old, output in zip(node.outputs, new.outputs, strict=True):
            output.name, output.type, output.shape = old.name, old.type, old.shape
            old.replace_all_uses_with(output, replace_graph_outputs=True)
        graph.insert_before(node, [new])
        graph.remove(node, safe=True)
    return key is not None


def _ratio(node: ir.Node) -> float:
    value = node.inputs[1] if len(node.inputs) > 1 else None
    if value is not None:
        tensor = facts.constant(value)
        if tensor is None:
            raise UnsupportedError(
                "the ratio of dropout is computed by the graph.", where=node_label(node), remedy="Give `dropout=`."
            )
        return float(np.asarray(tensor).reshape(()))
    stored = node.attributes.get("ratio")
    return 0.5 if stored is None else float(stored.as_float())
