"""Parameters of a model: the tensors that training may change, and the selection of some of them."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model.copying import copy_model
from sardonyx.ops.definitions.counted_dropout import DOMAIN
from sardonyx.rewrite import facts
from sardonyx.rewrite.names import node_label

Kind = Literal["weight", "bias", "norm", "embedding", "statistic", "constant"]

_BATCH_NORM = "BatchNormalization"

_POSITIONS: dict[str, dict[int, Kind]] = {
    "Attention": {1: "weight", 2: "bias"},
    "BatchNormalization": {1: "norm", 2: "norm", 3: "statistic", 4: "statistic"},
    "BiasGelu": {1: "bias"},
    "Conv": {1: "weight", 2: "bias"},
    "ConvTranspose": {1: "weight", 2: "bias"},
    "DeformConv": {1: "weight", 3: "bias"},
    "Einsum": {0: "weight", 1: "weight", 2: "weight"},
    "FastGelu": {1: "bias"},
    "FusedConv": {1: "weight", 2: "bias"},
    "FusedGemm": {0: "weight", 1: "weight", 2: "bias"},
    "FusedMatMul": {0: "weight", 1: "weight"},
    "GRU": {1: "weight", 2: "weight", 3: "bias"},
    "Gather": {0: "embedding"},
    "Gemm": {0: "weight", 1: "weight", 2: "bias"},
    "GroupNormalization": {1: "norm", 2: "norm"},
    "InstanceNormalization": {1: "norm", 2: "norm"},
    "LSTM": {1: "weight", 2: "weight", 3: "bias", 7: "weight"},
    "LayerNormalization": {1: "norm", 2: "norm"},
    "MatMul": {0: "weight", 1: "weight"},
    "PRelu": {1: "weight"},
    "RMSNormalization": {1: "norm"},
    "RNN": {1: "weight", 2: "weight", 3: "bias"},
    "SimplifiedLayerNormalization": {1: "norm"},
    "SkipLayerNormalization": {2: "norm", 3: "norm", 4: "bias"},
    "SkipSimplifiedLayerNormalization": {2: "norm", 3: "bias"},
}
"""Inputs that hold parameters, by operator."""

_VIEWS = frozenset({
    "Cast", "DequantizeLinear", "FakeQuantize", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
})  # fmt: skip
"""Operators that move the elements of their first input: a parameter may reach its reader through them."""

_ELEMENTWISE = {"Add": "bias", "Sub": "bias", "Mul": "norm", "Div": "norm"}

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

_EMBEDDED = _PRODUCTS | {"Concat", "Gather"}

_LARGEST = 1e4
"""Elements beyond this magnitude are masks, not parameters."""

PRESETS = ("biases", "norms", "last", "last:N")
"""Selections by kind, beside patterns of names."""


@dataclass(frozen=True)
class Parameter:
    """A tensor of a model, from the perspective of training.

    Attributes:
        name: The name of the initializer.
        kind: The role; ``"statistic"`` for running statistics, ``"constant"`` for tensors that are selected by their
            exact name alone.
        shape: The shape.
        readers: Labels of the nodes that read the tensor, in the order of the graph.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    readers: tuple[str, ...]


def trainable_form(model: ir.Model) -> ir.Model:
    """Return a copy in which each parameter is an initializer of its own.

    Functions are inlined, floating-point ``Constant`` nodes become initializers, and so do copies of vectors by
    ``Identity``: exporters share vectors that are equal by chance, such as zeros. Matrices stay shared.
    """
    result = copy_model(model)
    if result.functions:
        InlinePass()(result)
    graph = result.graph
    _separate_vectors(graph)
    for node in list(graph):
        if node.op_type != "Constant" or node.domain:
            continue
        value = node.outputs[0]
        tensor = facts.constant_tensor(value)
        if tensor is None or tensor.dtype not in _FLOATS or value.is_graph_output() or tensor.size < 2:
            continue
        twin = ir.Value(
            name=value.name, type=ir.TensorType(tensor.dtype), shape=fixed_shape(tensor), const_value=tensor
        )
        value.replace_all_uses_with(twin)
        graph.remove(node, safe=True)
        graph.register_initializer(twin)
    return result


_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _separate_vectors(graph: ir.Graph) -> None:
    for node in list(graph):
        source = node.inputs[0] if node.op_type == "Identity" and not node.domain else None
        if source is None or source.name not in graph.initializers or source.is_graph_input():
            continue
        tensor, value = source.const_value, node.outputs[0]
        if tensor is None or tensor.dtype not in _FLOATS or len(tensor.shape) > 1 or value.is_graph_output():
            continue
        twin = ir.Value(name=value.name, type=source.type, shape=source.shape, const_value=tensor)
        value.replace_all_uses_with(twin)
        graph.remove(node, safe=True)
        graph.register_initializer(twin)


def fixed_shape(tensor: ir.TensorProtocol) -> ir.Shape:
    """Return the shape of a tensor of a file."""
    return ir.Shape(tensor.numpy().shape if not isinstance(tensor.shape, ir.Shape) else tensor.shape)


def find_parameters(model: ir.Model) -> list[Parameter]:
    """Return the floating-point initializers of the main graph, in order.

    Tensors of one element are parameters only by a role, such as the bias of a layer with one output.

    Args:
        model: A model in trainable form; see :func:`trainable_form`.
    """
    order = {node: number for number, node in enumerate(model.graph)}
    result = []
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.dtype not in _FLOATS or not tensor.size:
            continue
        uses = sorted(_uses(value), key=lambda use: order.get(use[0], len(order)))
        if not uses:
            continue
        kinds = [_kind(node, index, value) for node, index in uses]
        kind: Kind = next((one for one in kinds if one != "constant"), "constant")
        if tensor.size == 1 and kind == "constant":
            continue
        labels = tuple(dict.fromkeys(node_label(node) for node, _ in uses))
        result.append(Parameter(str(value.name), kind, fixed_shape(tensor).numpy(), labels))
    return result


def _uses(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Yield the readers of a value and of its views."""
    for node, index in value.uses():
        if node.domain in ("", DOMAIN) and (node.op_type == "Concat" or (node.op_type in _VIEWS and index == 0)):
            for output in node.outputs:
                yield from _uses(output)
        else:
            yield node, index


def _kind(node: ir.Node, index: int, value: ir.Value) -> Kind:
    if node.op_type in _POSITIONS:
        return _POSITIONS[node.op_type].get(index, "constant")
    if node.op_type in _ELEMENTWISE and not node.domain and _is_vector(value):
        other = node.inputs[1 - index]
        producer = None if other is None else other.producer()
        if producer is not None and not facts.is_constant(other):
            tensor = value.const_value
            if tensor is not None and tensor.size == 1 and (producer.op_type not in _PRODUCTS or not len(tensor.shape)):
                return "constant"  # A number such as an epsilon or a temperature.
            return _ELEMENTWISE[node.op_type]  # type: ignore[return-value]
    if node.op_type == "Add" and not node.domain and _is_position(value, node.inputs[1 - index]):
        return "embedding"
    return "constant"


def _is_position(value: ir.Value, other: ir.Value | None) -> bool:
    """Return True for a matrix that is added to embeddings or to results of a layer, and is no grid of coordinates."""
    producer = None if other is None else other.producer()
    while producer is not None and producer.op_type in _VIEWS and producer.inputs[0] is not None:
        producer = producer.inputs[0].producer()
    if producer is None or producer.op_type not in _EMBEDDED or value.const_value is None:
        return False
    array = value.const_value.numpy().astype(np.float64)
    return bool(
        np.isfinite(array).all() and np.abs(array).max() < _LARGEST and (array * 2 != np.round(array * 2)).any()
    )


def _is_vector(value: ir.Value) -> bool:
    """Return True if at most one axis has more than one element, and all elements are moderate numbers."""
    tensor = value.const_value
    if tensor is None or sum(size > 1 for size in tensor.shape) > 1:  # type: ignore[operator]
        return False
    array = np.abs(tensor.numpy().astype(np.float64))
    return bool(np.isfinite(array).all() and array.max(initial=0) < _LARGEST)


def select_parameters(parameters: Sequence[Parameter], patterns: str | Sequence[str]) -> list[str]:
    """Return the names of the selected parameters, in the order of the model.

    Args:
        parameters: See :func:`find_parameters`.
        patterns: ``"*"`` selects every parameter; ``"biases"`` and ``"norms"`` those of a kind; ``"last"`` and
            ``"last:N"`` the parameters of the last N nodes; any other is a pattern of names (``fnmatch``) of tensors or
            of nodes that read the tensors. A tensor that is no parameter by its role is selected by its exact name.

    Raises:
        OptionError: A pattern selects nothing; the remedy lists similar names.
        UnsupportedError: The model has no parameter.
    """
    usual = [one for one in parameters if one.kind not in ("statistic", "constant")]
    if not usual and not parameters:
        raise UnsupportedError("the model has no floating-point weight to train.", where="trainable")
    selected: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        names = _matches(pattern, usual, parameters)
        if not names:
            raise OptionError(
                f"no parameter matches {pattern!r}.", where="trainable", remedy=_suggestion(pattern, usual)
            )
        selected |= names
    return [one.name for one in parameters if one.name in selected]


def _matches(pattern: str, usual: Sequence[Parameter], parameters: Sequence[Parameter]) -> set[str]:
    if pattern in ("biases", "norms"):
        kind = pattern.removesuffix("es") if pattern == "biases" else pattern.removesuffix("s")
        return {one.name for one in usual if one.kind == kind}
    if pattern == "last" or pattern.startswith("last:"):
        count = pattern.partition(":")[2] or "1"
        if not count.isdecimal() or not int(count):
            raise OptionError(f"expected a number of layers of at least 1, got {count!r}.", where="trainable")
        return _last(usual, int(count))
    names = {
        one.name
        for one in usual
        if fnmatch.fnmatchcase(one.name, pattern) or any(fnmatch.fnmatchcase(reader, pattern) for reader in one.readers)
    }
    return names | {one.name for one in parameters if one.name == pattern}


def _last(usual: Sequence[Parameter], count: int) -> set[str]:
    """Return the parameters of the last layers: a layer is a node with a weight, and the vectors that follow."""
    layers: list[set[str]] = []
    for one in usual:
        if one.kind in ("weight", "embedding") or not layers:
            layers.append(set())
        layers[-1].add(one.name)
    return set().union(*layers[-count:]) if layers else set()


def _suggestion(pattern: str, usual: Sequence[Parameter]) -> str:
    names = [one.name for one in usual] + [reader for one in usual for reader in one.readers]
    near = difflib.get_close_matches(pattern.strip("*"), names, n=3) or names[:5]
    return f"Use {', '.join(PRESETS)}, or a pattern of names such as {', '.join(map(repr, near))}."
