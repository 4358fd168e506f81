"""Shape inference behind one small interface: ``onnx.shape_inference`` with data propagation.

The model goes to it as a skeleton (weights left out), and what it infers is written onto the
values of the ``onnx_ir`` model in place. ``infer_node`` does the same for one new node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx.shape_inference import InferenceError

from sardonyx import model as model_io
from sardonyx.errors import ShapeError

InputShapes = Mapping[str, Sequence[int | str | None]]


def infer_shapes(model: ir.Model, *, input_shapes: InputShapes | None = None) -> None:
    """Annotate every value of ``model`` (bodies too) with its type and shape, in place.

    Args:
        model: The model to annotate.
        input_shapes: Shapes to give to graph inputs first: int, dimension name, or None for unknown.

    Raises:
        ShapeError: ``input_shapes`` names no input, or has another rank than declared.
    """
    if input_shapes:
        override_input_shapes(model, input_shapes)
    skeleton = model_io.to_proto(model, weights=False)
    try:
        inferred = onnx.shape_inference.infer_shapes(skeleton, data_prop=True)
    except (InferenceError, RuntimeError, ValueError):
        # Data propagation raises on a model whose claims it cannot follow; without it the plain
        # inference still annotates what it can, and `check` is where the user hears of the fault.
        inferred = onnx.shape_inference.infer_shapes(skeleton)
    annotate(model.graph, inferred.graph)


def override_input_shapes(model: ir.Model, input_shapes: InputShapes) -> None:
    """Give graph inputs new shapes, and forget every inferred shape that may follow from the old ones."""
    inputs = {value.name: value for value in model.graph.inputs}
    for name, dims in input_shapes.items():
        value = inputs.get(name)
        if value is None:
            raise ShapeError("no such graph input", where=name, remedy=f"Inputs are: {', '.join(map(str, inputs))}.")
        if value.shape is not None and len(value.shape) != len(dims):
            raise ShapeError(f"has rank {len(value.shape)}, and {len(dims)} dimensions were given", where=name)
        value.shape = ir.Shape(list(dims))
    for node in model.graph.all_nodes():
        for output in node.outputs:
            if output.shape is not None and not output.is_graph_output():
                output.shape = None


def annotate(graph: ir.Graph, inferred: onnx.GraphProto) -> None:
    """Copy the types and shapes of ``inferred`` onto the values of ``graph`` and of its bodies."""
    infos = {info.name: info.type for info in inferred.value_info}
    infos.update((info.name, info.type) for info in inferred.output)
    for node, proto in zip(graph, inferred.node, strict=True):
        for output in node.outputs:
            if output.name and (found := infos.get(output.name)) is not None:
                _annotate_value(output, found)
        if any(a.HasField("g") or a.graphs for a in proto.attribute):
            for body, body_proto in _bodies(node, proto):
                for value, info in zip(body.inputs, body_proto.input, strict=True):
                    _annotate_value(value, info.type)
                annotate(body, body_proto)


def _bodies(node: ir.Node, proto: onnx.NodeProto) -> Iterator[tuple[ir.Graph, onnx.GraphProto]]:
    for attribute in proto.attribute:
        mine = node.attributes.get(attribute.name)
        if mine is None:
            continue
        if mine.type == ir.AttributeType.GRAPH:
            yield mine.as_graph(), attribute.g
        elif mine.type == ir.AttributeType.GRAPHS:
            yield from zip(mine.as_graphs(), attribute.graphs, strict=True)


def _annotate_value(value: ir.Value, proto: onnx.TypeProto) -> None:
    if value.type is None:
        value.type = ir.serde.deserialize_type_proto_for_type(proto)
    if not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return
    dims: list[int | str | None] = [
        dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None) for dim in proto.tensor_type.shape.dim
    ]
    old = value.shape
    if old is not None and len(old) == len(dims):
        # What the file claims and what is inferred are merged; a number beats a name, a name beats nothing.
        claimed = [dim if isinstance(dim, int) else dim.value for dim in old]
        dims = [
            new if isinstance(new, int) else was if isinstance(was, int) else (was or new)
            for new, was in zip(dims, claimed, strict=True)
        ]
        if dims == claimed:
            return
    value.shape = ir.Shape(dims)


def infer_node(node: ir.Node, opset_imports: Mapping[str, int], ir_version: int) -> None:
    """Annotate the outputs of one new node from its inputs' types; leaves them unknown where nothing can be said."""
    if node.domain not in ("", "ai.onnx", "ai.onnx.ml") or any(
        a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()
    ):
        return
    try:
        schema = onnx.defs.get_schema(node.op_type, opset_imports.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for value in node.inputs:
        if value is None or not value.name:
            continue
        if value.type is None:
            return
        info = ir.serde.serialize_value(value)
        types[value.name] = info.type
        if value.const_value is not None and value.is_initializer() and value.const_value.size <= 64:
            data[value.name] = ir.serde.serialize_tensor(value.const_value)
    try:
        outputs = onnx.shape_inference.infer_node_outputs(
            schema,
            ir.serde.serialize_node(node),
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid(domain, version) for domain, version in opset_imports.items()],
            ir_version=ir_version,
        )
    except (InferenceError, RuntimeError, ValueError, KeyError):
        return
    for output in node.outputs:
        if output.name and (found := outputs.get(output.name)) is not None:
            _annotate_value(output, found)
