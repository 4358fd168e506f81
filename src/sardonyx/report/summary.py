"""Summary of a model: interface, operators, weights, arithmetic and memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.core import dim as algebra
from sardonyx.core.dim import Size, product, require_symbols
from sardonyx.model import Loadable
from sardonyx.ops.inference import UNNAMED
from sardonyx.rewrite.analysis import facts, inference
from sardonyx.rewrite.analysis.arithmetic import MACS
from sardonyx.rewrite.analysis.sizes import Sizes, parsed
from sardonyx.rewrite.verify.inputs import declared_sizes, open_sizes


@dataclass(frozen=True)
class Port:
    """A graph input or output: name, element type, and sizes as numbers or expressions of names."""

    name: str
    type: str
    shape: tuple[int | str, ...] | None


@dataclass(frozen=True)
class Summary:
    """Summary of a model.

    Attributes:
        inputs: Graph inputs without an initializer.
        outputs: Graph outputs.
        operators: ``domain.Type`` (no prefix for the standard domain) → count, bodies and functions included.
        nodes: Sum of the counts.
        opsets: Domain → version.
        ir_version: Version of the file format.
        producer: Name and version of the program that wrote the file.
        metadata: The model's metadata properties.
        functions: Model-local functions.
        parameters: Elements of all weights.
        weight_bytes: Bytes of all weights.
        types: Element type → bytes of weights.
        macs: Multiply-accumulate operations of one run, an expression if sizes are open; bodies count once.
        macs_by_operator: The same, by operator type.
        unknown_macs: Number of multiplying nodes of unknown size.
        peak_memory: Maximum bytes of simultaneously live intermediate tensors, in the file's order, with ``sizes``.
        control_flow_depth: Maximum nesting of bodies.
        sizes: Assumed values of open sizes, for ``peak_memory``.
        file_bytes: Bytes of the model's file and its external data; None unless the source is a file.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: dict[str, int]
    nodes: int
    opsets: dict[str, int]
    ir_version: int
    producer: str
    metadata: dict[str, str]
    functions: tuple[str, ...]
    parameters: int
    weight_bytes: int
    types: dict[str, int]
    macs: int | str
    macs_by_operator: dict[str, int | str]
    unknown_macs: int
    peak_memory: int | None
    control_flow_depth: int
    sizes: dict[str, int]
    file_bytes: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        return asdict(self)


def summary(source: Loadable, *, sizes: Mapping[str, int] | None = None) -> Summary:
    """Summarize a model.

    Args:
        source: Anything that ``sardonyx.load`` accepts.
        sizes: Values of open sizes, for MACs and the memory peak; the peak assumes 1 for missing names.

    Raises:
        ModelFileError: The model cannot be read.
        OptionError: A name is not an open size of the model.
    """
    model = model_io.load(source)
    if model is source:
        model = model.clone()
    require_sizes(model, sizes or {})
    inputs = tuple(_port(v) for v in model.graph.inputs if not v.is_initializer())
    outputs = tuple(_port(v) for v in model.graph.outputs)
    inference.infer_shapes(model, strict=False, input_shapes=assigned_shapes(model, sizes) if sizes else None)
    graphs = [model.graph, *(f.graph for f in model.functions.values())]
    nodes = [node for graph in graphs for node in graph.all_nodes()]
    operators = Counter(f"{n.domain}.{n.op_type}" if n.domain not in ("", "ai.onnx") else n.op_type for n in nodes)
    tensors = _weights(graphs, nodes)
    types: Counter[str] = Counter()
    for tensor in tensors:
        types[tensor.dtype.name.lower()] += stored_bytes(tensor)
    by_operator, unknown = _macs(nodes, Sizes(model.graph.opset_imports.get("", 1)))
    assumed = dict(sizes or {})
    peak = _peak_memory(model.graph, assumed)
    return Summary(
        inputs=inputs,
        outputs=outputs,
        operators=dict(sorted(operators.items(), key=lambda item: (-item[1], item[0]))),
        nodes=len(nodes),
        opsets=dict(model.graph.opset_imports),
        ir_version=model.ir_version,
        producer=" ".join(part for part in (model.producer_name, model.producer_version) if part),
        metadata=dict(model.metadata_props),
        functions=tuple(f"{f.domain}.{f.name}" for f in model.functions.values()),
        parameters=sum(t.size for t in tensors),
        weight_bytes=sum(stored_bytes(t) for t in tensors),
        types=dict(types.most_common()),
        macs=_plain_size(sum(by_operator.values(), 0)),
        macs_by_operator={name: _plain_size(size) for name, size in by_operator.items()},
        unknown_macs=unknown,
        peak_memory=peak,
        control_flow_depth=max((_depth(graph) for graph in graphs), default=0),
        sizes=assumed,
        file_bytes=_bytes_on_disk(Path(source), tensors) if isinstance(source, (str, os.PathLike)) else None,
    )


def require_sizes(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Check that names are open sizes of inputs, or of other values with a declared type.

    Raises:
        OptionError: A name is unknown.
    """
    results = (value for node in model.graph.all_nodes() for value in node.outputs)
    inner = (size for value in results for size in declared_sizes(value) or ())
    require_symbols(sizes, open_sizes(model), (name for size in inner for name in algebra.symbols(size)))


def assigned_shapes(model: ir.Model, sizes: Mapping[str, int]) -> dict[str, list[int | str | None]]:
    """Return the shapes of the inputs with assigned sizes; ``2*N`` becomes 8 for N = 4."""
    shapes: dict[str, list[int | str | None]] = {}
    for value in model.graph.inputs:
        if value.name and value.shape is not None:
            dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
            assigned = [_assigned(dim, sizes) if isinstance(dim, str) else dim for dim in dims]
            if assigned != dims:
                shapes[value.name] = assigned
    return shapes


def _assigned(dim: str, sizes: Mapping[str, int]) -> int | str:
    size = parsed(dim)
    if algebra.symbols(size).isdisjoint(sizes):
        return dim
    assigned = algebra.substitute(size, sizes)
    return assigned if isinstance(assigned, int) else str(assigned)


def _bytes_on_disk(path: Path, tensors: list[ir.TensorProtocol]) -> int:
    data = {Path(t.path).resolve() for t in tensors if isinstance(t, ir.ExternalTensor)}
    return sum(file.stat().st_size for file in {path.resolve(), *data})


def _plain_size(size: Size) -> int | str:
    return size if isinstance(size, int) else str(size)


def _port(value: ir.Value) -> Port:
    kind = "?" if value.type is None else type_name(value.type)
    shape = None if value.shape is None else tuple(d if isinstance(d, int) else (d.value or "?") for d in value.shape)
    return Port(str(value.name), kind, shape)


def type_name(kind: ir.TypeProtocol) -> str:
    """Return a type for readers: ``float``, ``seq(int64)``."""
    if isinstance(kind, ir.TensorType):
        return kind.dtype.name.lower()
    if isinstance(kind, ir.SequenceType):
        return f"seq({type_name(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({type_name(kind.elem_type)})"
    return str(kind)


def _weights(graphs: list[ir.Graph], nodes: list[ir.Node]) -> list[ir.TensorProtocol]:
    initializers = [
        value.const_value
        for graph in graphs
        for inner in (graph, *graph.subgraphs())
        for value in inner.initializers.values()
        if value.const_value is not None
    ]
    constants = (facts.constant_tensor(n.outputs[0]) for n in nodes if facts.is_op(n, "Constant"))
    return [*initializers, *(t for t in constants if t is not None)]


def stored_bytes(tensor: ir.TensorProtocol) -> int:
    """Return the bytes of a weight; of strings, their lengths."""
    if tensor.dtype == ir.DataType.STRING:
        return sum(len(s) for s in tensor.numpy().reshape(-1).tolist())
    return tensor.nbytes


def _depth(graph: ir.Graph) -> int:
    return max((1 + _depth(body) for node in graph for body in facts.bodies(node)), default=0)


# -- arithmetic ------------------------------------------------------------------------------------


def _macs(nodes: list[ir.Node], sizes: Sizes) -> tuple[dict[str, Size], int]:
    total: dict[str, Size] = {}
    unknown = 0
    for node in nodes:
        count = MACS.get(node.op_type)
        if count is None or node.domain not in ("", "ai.onnx", "com.microsoft"):
            continue
        macs = count(node, sizes)
        if macs is None:
            unknown += 1
        else:
            total[node.op_type] = total.get(node.op_type, 0) + macs
    return dict(sorted(total.items())), unknown


# -- memory ----------------------------------------------------------------------------------------


def _peak_memory(graph: ir.Graph, assumed: dict[str, int]) -> int | None:
    """Return the maximum bytes of simultaneously live intermediate tensors, ignoring unknown shapes."""
    sizes = Sizes(1)
    order = list(graph)
    last: dict[ir.Value, int] = {}
    for i, node in enumerate(order):
        for value in (*node.inputs, *(v for body in facts.bodies(node) for n in body.all_nodes() for v in n.inputs)):
            if value is not None:
                last[value] = i
    ends: dict[int, list[ir.Value]] = {}
    alive = 0
    for value in graph.inputs:
        if not value.is_initializer():
            alive += _tensor_bytes(value, sizes, assumed) or 0
    peak = alive
    for i, node in enumerate(order):
        for value in node.outputs:
            size = _tensor_bytes(value, sizes, assumed)
            if size is None:
                continue
            alive += size
            if not value.is_graph_output():
                ends.setdefault(last.get(value, i), []).append(value)
        peak = max(peak, alive)
        for value in ends.pop(i, []):
            alive -= _tensor_bytes(value, sizes, assumed) or 0
    return peak


def _tensor_bytes(value: ir.Value, sizes: Sizes, assumed: dict[str, int]) -> int | None:
    dims = sizes.dims(value)
    if dims is None or value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return None
    count = product(dims)
    if not isinstance(count, int):
        for name in algebra.symbols(count):
            if not name.startswith(UNNAMED):
                assumed.setdefault(name, 1)
        count = algebra.evaluate(count, {name: assumed.get(name, 1) for name in algebra.symbols(count)})
    return -(-count * value.dtype.bitwidth // 8)
