"""Parameters of a model: the tensors that training may change, and the selection of some of them."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model.declared_weights import declared_weights
from sardonyx.ops.definitions.counted_dropout import DOMAIN
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label

Kind = Literal["weight", "bias", "norm", "embedding", "learned", "state", "statistic", "constant"]

_ROLES: dict[str, dict[int, Kind]] = {
    "Attention": {1: "weight", 2: "bias"},
    "BatchNormalization": {1: "norm", 2: "norm", 3: "statistic", 4: "statistic"},
    "BiasGelu": {1: "bias"},
    "Conv": {1: "weight", 2: "bias"},
    "ConvTranspose": {1: "weight", 2: "bias"},
    "DeformConv": {1: "weight", 3: "bias"},
    "Einsum": dict.fromkeys(range(16), "weight"),
    "FastGelu": {1: "bias"},
    "FusedConv": {1: "weight", 2: "bias"},
    "FusedGemm": {0: "weight", 1: "weight", 2: "bias"},
    "FusedMatMul": {0: "weight", 1: "weight"},
    "GRU": {1: "weight", 2: "weight", 3: "bias", 5: "state"},
    "Gather": {0: "embedding"},
    "GatherElements": {0: "embedding"},
    "GatherND": {0: "embedding"},
    "Gemm": {0: "weight", 1: "weight", 2: "bias"},
    "GroupNormalization": {1: "norm", 2: "norm"},
    "InstanceNormalization": {1: "norm", 2: "norm"},
    "LSTM": {1: "weight", 2: "weight", 3: "bias", 5: "state", 6: "state", 7: "weight"},
    "LayerNormalization": {1: "norm", 2: "norm"},
    "MatMul": {0: "weight", 1: "weight"},
    "PRelu": {1: "weight"},
    "RMSNormalization": {1: "norm"},
    "RNN": {1: "weight", 2: "weight", 3: "bias", 5: "state"},
    "SimplifiedLayerNormalization": {1: "norm"},
    "SkipLayerNormalization": {2: "norm", 3: "norm", 4: "bias"},
    "SkipSimplifiedLayerNormalization": {2: "norm", 3: "bias"},
}
"""Inputs that hold parameters, by operator."""

_VIEWS = frozenset({
    "Cast", "CastLike", "DequantizeLinear", "Expand", "FakeQuantize", "Flatten", "Identity", "Reshape", "Slice",
    "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operators that move the elements of their first input: a parameter may reach its reader through them."""

_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})

_QUANTIZERS = frozenset({"DequantizeLinear", "QuantizeLinear"})

_PREPROCESSING = _VIEWS | {"Add", "Clip", "Div", "Mul", "Pad", "Resize", "Sub"}

_RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip

NORMALIZATIONS = frozenset({
    "BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization",
})  # fmt: skip

ELEMENTWISE = {"Add": "bias", "Sub": "bias", "Mul": "norm", "Div": "norm"}

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

_EMBEDDED = PRODUCTS | {"Concat", "Gather"}

_LARGEST = 1e4
"""Elements beyond this magnitude are masks, not parameters."""

_EXPORTED_CONSTANT = re.compile(r"(^|[/.])[Cc]onstant(_\d+)?(_output_\d+)?$")
"""Names of constants by torch's exporters and by ``sardonyx.convert``."""

_COMPUTED_NAME = re.compile(r"^(/|onnx::|(val_)?\d+$)|[Cc]onst")
"""Names that torch's exporters give to tensors that are no parameters of a module."""

_JOINS: dict[str, Kind] = {"Add": "learned", "Concat": "learned", "Div": "norm", "Mul": "norm", "Sub": "learned"}

_SUMS = frozenset({"ReduceMean", "ReduceSum"})

PRESETS = ("biases", "norms", "last", "last:N")
"""Selections by kind, beside patterns of names."""


@dataclass(frozen=True)
class Parameter:
    """A tensor of a model, from the perspective of training.

    Attributes:
        name: The name of the initializer.
        kind: The role; ``"learned"`` for tensors that join results of layers, such as positions and class tokens,
            ``"statistic"`` for running statistics, ``"constant"`` for tensors that are selected by their exact name
            alone.
        shape: The shape.
        readers: Labels of the nodes that read the tensor, in the order of the graph.
        position: The position in the graph of the last node that reads the tensor.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    readers: tuple[str, ...]
    position: int = 0


def fixed_shape(tensor: ir.TensorProtocol) -> ir.Shape:
    """Return the shape of a tensor of a file."""
    return ir.Shape(tensor.numpy().shape if not isinstance(tensor.shape, ir.Shape) else tensor.shape)


def find_parameters(model: ir.Model) -> list[Parameter]:
    """Return the floating-point initializers of the main graph, in order.

    The kind of a tensor is the one that the model declares, or follows from its readers and elements. Tensors of one
    element are constants unless they have a role, such as the bias of a layer with one output.

    Args:
        model: A model in trainable form; see :func:`.trainable_form`.
    """
    order = _positions(model.graph)
    constants = _constants(model.graph)
    declared = declared_weights(model.metadata_props)
    result = []
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.dtype not in FLOATS or not tensor.size:
            continue
        uses = sorted(_uses(value, constants), key=lambda use: order[use.node])
        if not uses:
            continue
        # A part of concatenated weights is a weight, by the reader of the whole.
        kinds = [_kind(use, value) for use in sorted(uses, key=lambda use: use.node.op_type == "Concat")]
        kind: Kind = next((one for one in kinds if one != "constant"), "constant")
        is_parameter = declared.get(str(value.name), kind != "constant")
        if kind != "statistic" and is_parameter != (kind != "constant"):
            kind = "learned" if is_parameter else "constant"
        labels = tuple(dict.fromkeys(node_label(use.node) for use in uses))
        shape = fixed_shape(tensor).numpy()
        result.append(Parameter(str(value.name), kind, shape, labels, order[uses[-1].node]))
    return result


def _positions(graph: ir.Graph) -> dict[ir.Node, int]:
    """Return the positions of nodes; nodes of a body have that of the node with the body."""
    order: dict[ir.Node, int] = {}
    for number, node in enumerate(graph):
        order[node] = number
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                order.update((inner, number) for inner in attribute.as_graph().all_nodes())
    return order


@dataclass(frozen=True)
class _Use:
    """A node that reads a tensor.

    Attributes:
        node: The node.
        index: The position of the input.
        is_computed: True if the node reads a function of the tensor, such as a normalized weight, not its elements.
    """

    node: ir.Node
    index: int
    is_computed: bool


def _constants(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that depend on initializers and constants alone."""
    known = {value for value in graph.initializers.values() if not value.is_graph_input()}
    for node in graph.all_nodes():
        if node.domain or node.op_type in _RANDOM or any(one.type in _GRAPHS for one in node.attributes.values()):
            continue
        if all(value is None or value in known for value in node.inputs):
            known.update(node.outputs)
    return known


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _uses(value: ir.Value, constants: set[ir.Value]) -> list[_Use]:
    """Return the readers of a value, of its views, and of values computed from it and from constants."""
    result: list[_Use] = []
    pending, seen = [(value, False)], {(value, False)}
    while pending:
        current, is_computed = pending.pop()
        for node, index in current.uses():
            if not facts.reads_elements(node, index):
                continue
            is_view = node.domain in ("", DOMAIN) and (
                node.op_type == "Concat" or (node.op_type in _VIEWS and index == 0)
            )
            is_computed_part = node.op_type not in _LOOKUPS and not (node.op_type in _QUANTIZERS and index)
            if node.op_type == "Concat" and node.outputs[0] not in constants:
                result.append(_Use(node, index, is_computed))  # A part of data, such as a class token.
            elif is_view or (is_computed_part and any(output in constants for output in node.outputs)):
                further = [(output, is_computed or not is_view) for output in node.outputs]
                pending += [one for one in further if one not in seen]
                seen.update(further)
            else:
                result.append(_Use(node, index, is_computed))
    return result


def _kind(use: _Use, value: ir.Value) -> Kind:
    node, index, tensor = use.node, use.index, value.const_value
    if node.op_type in _ROLES:
        kind = _ROLES[node.op_type].get(index, "constant")
        return "constant" if _is_fixed(use, kind, tensor) or (kind == "norm" and _is_neutral(value)) else kind
    if node.op_type == "Mul" and not node.domain and _is_factor(use, value):
        return "weight"
    if not node.domain and node.op_type in _JOINS and _is_learned(use, value):
        return _JOINS[node.op_type]
    if node.domain or use.is_computed:
        return "constant"
    if node.op_type in ELEMENTWISE and _is_vector(value) and not _is_raw(node.inputs[1 - index]):
        if tensor is not None and _has_equal_steps(tensor):
            return "constant"  # Centers of a grid, such as those of radial basis functions.
        other = node.inputs[1 - index]
        producer = None if other is None else other.producer()
        if producer is not None and not facts.is_constant(other):
            if tensor is not None and tensor.size == 1 and (producer.op_type not in PRODUCTS or not len(tensor.shape)):
                return "constant"  # A number such as an epsilon or a temperature.
            return ELEMENTWISE[node.op_type]  # type: ignore[return-value]
    if node.op_type == "Where" and index and tensor is not None and tensor.size > 1 and _is_vector(value):
        return "bias"  # A mask token.
    if node.op_type == "Add" and _is_position(value, node.inputs[1 - index]):
        return "learned"
    return "constant"


def _is_learned(use: _Use, value: ir.Value) -> bool:
    """Return True for a tensor that joins results of layers: class tokens, queries, centers, transition scores.

    Exporters name such a tensor as the module does, and constants by numbers. Tables that a formula gives, such as
    coordinates and sines, are constants.
    """
    tensor, joined = value.const_value, [one for i, one in enumerate(use.node.inputs) if i != use.index]
    if tensor is None or tensor.size == 1 or _COMPUTED_NAME.search(str(value.name)):
        return False
    if _is_vector(value) and (use.node.op_type != "Concat" or use.is_computed):
        return False  # Scales and shifts have rules of their own; vectors of frequencies become tables.
    if all(one is None or facts.is_constant(one) or _is_raw(one) for one in joined):
        return False
    if use.node.op_type == "Concat" and not tensor.numpy().any():
        return fixed_shape(tensor).numpy()[-1] == tensor.size  # A class token before its first step.
    return _has_fractions(tensor) and not is_sinusoidal(tensor) and not _has_equal_steps(tensor)


def _is_fixed(use: _Use, kind: Kind, tensor: ir.TensorProtocol | None) -> bool:
    """Return True for a tensor in the position of a parameter that is a constant by its elements."""
    if kind == "embedding":
        is_table = use.node.op_type == "Gather" or _has_fractions(tensor)
        return use.is_computed or not is_table or is_sinusoidal(tensor)
    if kind == "state":  # The initial state of a recurrent layer: zeros, unless learned.
        return not _has_fractions(tensor)
    return _is_grouped(use.node) or (use.is_computed and _is_mask(tensor))


def _is_mask(tensor: ir.TensorProtocol | None) -> bool:
    """Return True for a factor of weights that selects some of them, and for a bound of their length."""
    if tensor is None:
        return False
    array = tensor.numpy()
    return array.size == 1 or bool(np.isin(array, (0, 1)).all() and array.any() and not array.all())


def _is_neutral(value: ir.Value) -> bool:
    """Return True for ones and zeros that an exporter wrote for a normalization without scale and bias.

    Parameters of a module have its name for them; exporters name other constants, which optimizers make initializers.
    """
    if value.const_value is None or not _EXPORTED_CONSTANT.search(str(value.name)):
        return False
    array = value.const_value.numpy()
    return bool((array == 1).all() or (array == 0).all())


def _is_raw(value: ir.Value | None) -> bool:
    """Return True for an input of the model, or one that constants scale: the vector beside it is preprocessing."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in _PREPROCESSING or node.domain:
            return False
        open_inputs = [one for one in node.inputs if one is not None and not facts.is_constant(one)]
        if node.op_type not in _VIEWS and len(open_inputs) > 1:
            return False
        value = open_inputs[0] if open_inputs else None
    return value is not None and value.is_graph_input()


def _is_grouped(node: ir.Node) -> bool:
    """Return True for the normalization inside of exported group normalization, which has no scale and bias itself."""
    if node.op_type != "InstanceNormalization" or node.domain:
        return False
    tensors = [facts.constant(value) for value in node.inputs[1:3]]
    readers = [reader.op_type for reader, _ in node.outputs[0].uses()]
    plain = all(x is not None and (x == number).all() for x, number in zip(tensors, (1, 0), strict=True))
    return plain and readers == ["Reshape"]


def _is_factor(use: _Use, value: ir.Value) -> bool:
    """Return True for a matrix that scales results of a layer, or whose products are summed, as in graph attention.

    A matrix that the graph transforms first, as in state-space models, is a parameter unless an exporter named it.
    """
    tensor, other = value.const_value, use.node.inputs[1 - use.index]
    if tensor is None or sum(size > 1 for size in fixed_shape(tensor).numpy()) < 2 or facts.is_constant(other):
        return False
    if _EXPORTED_CONSTANT.search(str(value.name)):
        return False  # Such as the first shares of a routing between capsules.
    if not _has_fractions(tensor) or is_sinusoidal(tensor) or _is_raw(other):
        return False
    if use.is_computed:
        return not _COMPUTED_NAME.search(str(value.name)) and not _has_equal_steps(tensor)
    readers, pending = [], [use.node.outputs[0]]
    while pending:
        for reader, _ in pending.pop().uses():
            if reader.op_type in _VIEWS and not reader.domain:
                pending += reader.outputs
            else:
                readers.append(reader.op_type)
    return _is_position(value, other) or (bool(readers) and set(readers) <= _SUMS)


def _is_position(value: ir.Value, other: ir.Value | None) -> bool:
    """Return True for a matrix that is added to embeddings or to results of a layer, and is no grid of coordinates."""
    producer = None if other is None else other.producer()
    while producer is not None and producer.op_type in _VIEWS and producer.inputs[0] is not None:
        producer = producer.inputs[0].producer()
    if producer is None or producer.op_type not in _EMBEDDED or value.const_value is None:
        return False
    return _has_fractions(value.const_value) and not is_sinusoidal(value.const_value)


def _has_fractions(tensor: ir.TensorProtocol | None) -> bool:
    """Return True for moderate elements that are no coordinates of a grid: not all of them are halves."""
    if tensor is None:
        return False
    array = tensor.numpy().astype(np.float64)
    return bool(
        np.isfinite(array).all() and np.abs(array).max() < _LARGEST and (array * 2 != np.round(array * 2)).any()
    )


def is_sinusoidal(tensor: ir.TensorProtocol | None) -> bool:
    """Return True for a table of sines and cosines of positions: rows x of a column satisfy x₊ + x₋ = 2 cos(θ) x."""
    sizes = () if tensor is None else tuple(size for size in fixed_shape(tensor).numpy() if size != 1)
    if tensor is None or len(sizes) != 2 or sizes[0] < 5 or sizes[1] < 2:
        return False
    rows = tensor.numpy().reshape(sizes)[:64].astype(np.float64)
    if not (np.isfinite(rows).all() and 0.5 < np.abs(rows).max() < 1.01):
        return False
    sums, middle = rows[2:] + rows[:-2], rows[1:-1]
    # The factor is that of every row: sums[i] * middle[j] == sums[j] * middle[i], with the second row for j.
    return bool(np.abs(sums * middle[1] - sums[1] * middle).max() < 0.01)


def _has_equal_steps(tensor: ir.TensorProtocol) -> bool:
    """Return True for coordinates: elements whose differences along an axis are equal, and not zero."""
    array = tensor.numpy().astype(np.float64)
    for axis in range(array.ndim):
        if array.shape[axis] > 2:
            steps = np.diff(array, axis=axis)
            first = np.take(steps, [0], axis)
            if first.all() and np.allclose(steps, first, rtol=1e-3, atol=0):
                return True
    return False


def _is_vector(value: ir.Value) -> bool:
    """Return True if at most one axis has more than one element, and all elements are moderate numbers."""
    tensor = value.const_value
    if tensor is None or sum(size > 1 for size in tensor.shape) > 1:  # type: ignore[operator]
        return False
    array = np.abs(tensor.numpy().astype(np.float64))
    return bool(np.isfinite(array).all() and array.max(initial=0) < _LARGEST)


def select_parameters(
    parameters: Sequence[Parameter], patterns: str | Sequence[str], where: str = "trainable"
) -> list[str]:
    """Return the names of the selected parameters, in the order of the model.

    Args:
        parameters: See :func:`find_parameters`.
        patterns: ``"*"`` selects every parameter; ``"biases"`` and ``"norms"`` those of a kind; ``"last"`` and
            ``"last:N"`` the parameters of the last N nodes; any other is a pattern of names (``fnmatch``) of tensors or
            of nodes that read the tensors. A tensor that is no parameter by its role is selected by its exact name.
        where: The option that has the patterns.

    Raises:
        OptionError: A pattern selects nothing; the remedy lists similar names.
        UnsupportedError: The model has no parameter.
    """
    usual = [one for one in parameters if one.kind not in ("statistic", "constant")]
    if not usual and not parameters:
        raise UnsupportedError("the model has no floating-point weight to train.", where=where)
    if patterns == "*" and not usual:
        raise UnsupportedError(
            f"the model has no weight to train: its floating-point tensors are constants "
            f"({_listed([one.name for one in parameters])}).",
            where=where,
            remedy="Select tensors by their exact names.",
        )
    selected: set[str] = set()
    listed = [patterns] if isinstance(patterns, str) else list(patterns) if isinstance(patterns, Iterable) else []
    if not listed or not all(isinstance(pattern, str) for pattern in listed):
        raise OptionError(
            f"expected at least one pattern of names, got {patterns!r}.", where=where, remedy='Use "*" for all.'
        )
    for pattern in listed:
        names = _matches(pattern, usual, parameters, where)
        if not names:
            raise OptionError(f"no parameter matches {pattern!r}.", where=where, remedy=_suggestion(pattern, usual))
        selected |= names
    return [one.name for one in parameters if one.name in selected]


def selection_notes(parameters: Sequence[Parameter], selected: Sequence[str]) -> list[str]:
    """Return sentences about tensors that training leaves, or shares between layers.

    Args:
        parameters: See :func:`find_parameters`.
        selected: The names of the trained ones.
    """
    constants = [
        one.name
        for one in parameters
        if one.kind == "constant"
        and len(one.shape)
        and one.name not in selected
        and not _EXPORTED_CONSTANT.search(one.name)
    ]
    shared = [one.name for one in parameters if one.name in selected and one.kind == "weight" and len(one.readers) > 1]
    notes = []
    if constants:
        notes.append(f"Used as constants and not trained, unless selected by exact name: {_listed(constants)}.")
    if shared:
        notes.append(f"One weight of several nodes, as the file shares it: {_listed(shared)}.")
    return notes


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _matches(pattern: str, usual: Sequence[Parameter], parameters: Sequence[Parameter], where: str) -> set[str]:
    if pattern in ("biases", "norms"):
        kind = pattern.removesuffix("es") if pattern == "biases" else pattern.removesuffix("s")
        return {one.name for one in usual if one.kind == kind}
    if pattern == "last" or pattern.startswith("last:"):
        count = pattern.partition(":")[2] or "1"
        if not count.isdecimal() or not int(count):
            raise OptionError(f"expected a number of layers of at least 1, got {count!r}.", where=where)
        return _last(usual, int(count))
    names = {
        one.name
        for one in usual
        if fnmatch.fnmatchcase(one.name, pattern) or any(fnmatch.fnmatchcase(reader, pattern) for reader in one.readers)
    }
    return names | {one.name for one in parameters if one.name == pattern}


def _last(usual: Sequence[Parameter], count: int) -> set[str]:
    """Return the parameters of the last layers: a layer is a node with a weight, and the vectors that follow.

    Files list tensors in any order: exporters append transposed weights. A shared weight counts by its last reader.
    """
    layers: list[set[str]] = []
    begun = -1
    for one in sorted(usual, key=lambda one: (one.position, one.kind not in ("weight", "embedding"))):
        begins = one.kind in ("weight", "embedding") and one.position != begun
        if begins or not layers:
            layers.append(set())
        begun = one.position if begins else begun
        layers[-1].add(one.name)
    return set().union(*layers[-count:]) if layers else set()


def _suggestion(pattern: str, usual: Sequence[Parameter]) -> str:
    names = [one.name for one in usual] + [reader for one in usual for reader in one.readers]
    near = difflib.get_close_matches(pattern.strip("*"), names, n=3) or names[:5]
    return f"Use {', '.join(PRESETS)}, or a pattern of names such as {', '.join(map(repr, near))}."
