"""The nodes and the weights of a model, one row each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.model import Loadable
from sardonyx.report.node_matching import graphs, operator
from sardonyx.report.summary import assigned_shapes, require_sizes, stored_bytes, type_name
from sardonyx.rewrite.analysis import facts, inference
from sardonyx.rewrite.analysis.arithmetic import MACS
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.analysis.sizes import Sizes

MOST_ELEMENTS = 8
"""Number of elements of an attribute that are spelled out."""


@dataclass(frozen=True)
class NodeRow:
    """One node.

    Attributes:
        graph: Path of its graph; empty for the main graph.
        name: Its name, or operator and first output.
        operator: Its operator, with the domain unless the domain is the standard one.
        inputs: Names of its inputs; empty names of omitted inputs.
        outputs: Names of its outputs.
        types: Element type and sizes of each output, ``float[N, 8]``; ``?`` if unknown.
        attributes: Attributes as text.
        macs: Multiply-accumulate operations, an expression if sizes are open; None if the operator does not multiply
            or the sizes are unknown.
        parameters: Elements of the weights that the node reads.
        weight_bytes: Bytes of these weights.
        output_bytes: Bytes of its outputs; None if a size is open or unknown.
    """

    graph: str
    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: tuple[str, ...]
    attributes: dict[str, str]
    macs: int | str | None
    parameters: int
    weight_bytes: int
    output_bytes: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class WeightRow:
    """One initializer.

    Attributes:
        graph: Path of its graph; empty for the main graph.
        name: Its name.
        type: Element type.
        shape: Sizes.
        bytes: Stored bytes.
        least: The smallest finite element; None without numbers.
        largest: The largest finite element; None without numbers.
        zeros: Share of elements equal to zero; None without numbers.
        readers: Number of inputs of nodes that read the weight.
        zero_groups: Share of the groups of four consecutive elements, along the axis for which it is greatest, with at
            least two zeros; 1 for weights in the pattern 2:4. None for vectors, and axes that no four divides.
        zero_channels: Share of the entries of the first axis with zeros alone; None for vectors.
    """

    graph: str
    name: str
    type: str
    shape: tuple[int, ...]
    bytes: int
    least: float | None
    largest: float | None
    zeros: float | None
    readers: int
    zero_groups: float | None = None
    zero_channels: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


def list_nodes(source: Loadable, *, sizes: Mapping[str, int] | None = None) -> list[NodeRow]:
    """Return every node of a model, in order, bodies and functions included.

    Args:
        source: Anything that ``sardonyx.load`` accepts.
        sizes: Values of open sizes, by name.

    Raises:
        ModelFileError: The model cannot be read.
        OptionError: A name is not an open size of the model.
    """
    model = model_io.load(source)
    if model is source:
        model = model.clone()
    require_sizes(model, sizes or {})
    inference.infer_shapes(model, strict=False, input_shapes=assigned_shapes(model, sizes) if sizes else None)
    known = Sizes(model.graph.opset_imports.get("", 1))
    return [_row(node, path, known) for path, graph in graphs(model) for node in graph]


def list_weights(source: Loadable) -> list[WeightRow]:
    """Return every initializer of a model, in order, bodies included; reads all weights.

    Raises:
        ModelFileError: The model cannot be read.
    """
    rows = []
    for path, graph in graphs(model_io.load(source)):
        for value in graph.initializers.values() if isinstance(graph, ir.Graph) else ():
            if (tensor := value.const_value) is not None:
                rows.append(_weight(path, value, tensor))
    return rows


def _row(node: ir.Node, path: str, sizes: Sizes) -> NodeRow:
    weights = [tensor for value in node.inputs if (tensor := facts.constant_tensor(value)) is not None]
    count = MACS.get(node.op_type) if node.domain in ("", "ai.onnx", "com.microsoft") else None
    macs = None if count is None else count(node, sizes)
    return NodeRow(
        graph=path,
        name=node_label(node),
        operator=operator(node),
        inputs=tuple("" if value is None else str(value.name) for value in node.inputs),
        outputs=tuple(str(value.name) for value in node.outputs),
        types=tuple(map(_type_text, node.outputs)),
        attributes={name: _attribute_text(attribute) for name, attribute in node.attributes.items()},
        macs=macs if macs is None or isinstance(macs, int) else str(macs),
        parameters=sum(tensor.size for tensor in weights),
        weight_bytes=sum(stored_bytes(tensor) for tensor in weights),
        output_bytes=_sum(map(_value_bytes, node.outputs)),
    )


def _sum(numbers: Iterator[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _value_bytes(value: ir.Value) -> int | None:
    shape = facts.static_shape(value)
    if shape is None or value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return None
    return -(-int(np.prod(shape, dtype=object)) * value.dtype.bitwidth // 8)


def _type_text(value: ir.Value) -> str:
    if value.type is None:
        return "?"
    kind = type_name(value.type)
    if value.shape is None:
        return kind
    sizes = ", ".join(str(dim if isinstance(dim, int) else dim.value or "?") for dim in value.shape)
    return f"{kind}[{sizes}]"


def _attribute_text(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"attribute {attribute.ref_attr_name} of the function"
    match attribute.value:
        case ir.Graph():
            return f"graph of {sum(1 for _ in attribute.value)} nodes"
        case list() | tuple() as items:
            texts = ["graph" if isinstance(item, ir.Graph) else _element(item) for item in items[:MOST_ELEMENTS]]
            rest = ["…"] if len(items) > MOST_ELEMENTS else []
            return f"[{', '.join([*texts, *rest])}]"
        case value:
            return _element(value)


def _element(value: Any) -> str:
    if isinstance(value, ir.TensorProtocol):
        shape = list(value.shape.numpy())
        if value.size == 1 and value.dtype != ir.DataType.STRING:
            return f"{value.dtype.name.lower()}{shape} {value.numpy().reshape(-1)[0]}"
        return f"{value.dtype.name.lower()}{shape}"
    if isinstance(value, bytes):
        return repr(value.decode("utf-8", "replace"))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _weight(path: str, value: ir.Value, tensor: ir.TensorProtocol) -> WeightRow:
    least = largest = zeros = groups = channels = None
    if tensor.dtype != ir.DataType.STRING and not tensor.dtype.name.startswith("COMPLEX") and tensor.size:
        array = tensor.numpy().astype(np.float64)
        finite = array[np.isfinite(array)]
        if finite.size:
            least, largest = float(finite.min()), float(finite.max())
        is_zero = array == 0
        zeros = float(is_zero.mean())
        if array.ndim > 1:
            channels = float(is_zero.reshape(len(array), -1).all(1).mean())
            shares = [_pairs_of_four(is_zero, axis) for axis in range(array.ndim) if array.shape[axis] % 4 == 0]
            groups = max(shares, default=None)
    return WeightRow(
        graph=path,
        name=str(value.name),
        type=tensor.dtype.name.lower(),
        shape=tuple(tensor.shape.numpy()),
        bytes=stored_bytes(tensor),
        least=least,
        largest=largest,
        zeros=zeros,
        readers=len(value.uses()),
        zero_groups=groups,
        zero_channels=channels,
    )


def _pairs_of_four(is_zero: np.ndarray, axis: int) -> float:
    """Return the share of groups of four elements along an axis with at least two zeros."""
    rows = np.moveaxis(is_zero, axis, -1)
    return float((rows.reshape(*rows.shape[:-1], -1, 4).sum(-1) >= 2).mean())
