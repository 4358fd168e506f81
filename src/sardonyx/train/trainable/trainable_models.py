"""The form of a model in which each parameter is an initializer of its own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from sardonyx.model.copying import copy_model
from sardonyx.model.declared_weights import declared_weights
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, value_names
from sardonyx.train.trainable.parameters import ELEMENTWISE, FLOATS, NORMALIZATIONS, PRODUCTS, fixed_shape


def trainable_form(model: ir.Model) -> ir.Model:
    """Return a copy in which each parameter is an initializer of its own.

    Functions are inlined. Floating-point ``Constant`` nodes become initializers, and so do copies of vectors by
    ``Identity``, and copies for each layer of vectors of equal elements: exporters share vectors that are equal by
    chance, such as zeros. Matrices stay shared. Initializers and constants of the bodies of loops and branches become
    initializers of the graph.
    """
    result = copy_model(model)
    if result.functions:
        InlinePass()(result)
    graph = result.graph
    _separate_vectors(result)
    names = Names(value_names(result))
    for body in _bodies(graph):
        for value in [*body.initializers.values()]:
            if value.is_graph_input() or value.dtype not in FLOATS:
                continue
            del body.initializers[str(value.name)]
            value.name = value.name if value.name not in graph.initializers else names.fresh(str(value.name))
            graph.register_initializer(value)
    for owner in (graph, *_bodies(graph)):
        for node in list(owner):
            if node.op_type == "Constant" and not node.domain:
                _register(node, graph, names)
    return result


def _bodies(graph: ir.Graph) -> list[ir.Graph]:
    """Return the bodies of loops and branches of a graph, at any depth."""
    nodes = ir.traversal.RecursiveGraphIterator(graph)
    return list(dict.fromkeys(node.graph for node in nodes if node.graph is not None and node.graph is not graph))


def _register(node: ir.Node, graph: ir.Graph, names: Names) -> None:
    """Replace a floating-point ``Constant`` node by an initializer of the graph, unless the node is no parameter."""
    value, owner = node.outputs[0], node.graph
    tensor = facts.constant_tensor(value)
    if tensor is None or tensor.dtype not in FLOATS or value.is_graph_output() or tensor.size < 2:
        return
    if _is_placeholder(value, tensor):
        return
    name = value.name if value.name not in graph.initializers else names.fresh(str(value.name))
    twin = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=fixed_shape(tensor), const_value=tensor)
    value.replace_all_uses_with(twin)
    assert owner is not None
    owner.remove(node, safe=True)
    graph.register_initializer(twin)


def _is_placeholder(value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    """Return True for the ones and zeros that exporters write for a normalization without scale and bias."""
    for node, index in value.uses():
        if node.op_type not in NORMALIZATIONS or node.domain or index not in (1, 2):
            return False
    array = tensor.numpy()
    return bool((array == 1).all() or (array == 0).all())


def _separate_vectors(model: ir.Model) -> None:
    """Give each reader its own copy of a vector that exporters share because its elements are equal by chance."""
    graph = model.graph
    for node in list(graph):
        source = node.inputs[0] if node.op_type == "Identity" and not node.domain else None
        if source is None or source.name not in graph.initializers or source.is_graph_input():
            continue
        tensor, value = source.const_value, node.outputs[0]
        if tensor is None or tensor.dtype not in FLOATS or len(tensor.shape) > 1 or value.is_graph_output():
            continue
        twin = ir.Value(name=value.name, type=source.type, shape=source.shape, const_value=tensor)
        value.replace_all_uses_with(twin)
        graph.remove(node, safe=True)
        graph.register_initializer(twin)
    names = Names(value_names(model))
    declared = declared_weights(model.metadata_props)
    for value in list(graph.initializers.values()):
        tensor = value.const_value
        if value.name in declared:  # Shared by the program itself.
            continue
        if tensor is None or tensor.dtype not in FLOATS or len(tensor.shape) != 1 or value.is_graph_input():
            continue
        readers: dict[object, list[tuple[ir.Node, int]]] = {}
        for use in value.uses():
            readers.setdefault(_layer(*use), []).append(use)
        if len(readers) < 2 or value.is_graph_output() or np.ptp(tensor.numpy().astype(np.float64)) != 0:
            continue
        for uses in list(readers.values())[1:]:
            twin = ir.Value(name=names.fresh(str(value.name)), type=value.type, shape=value.shape, const_value=tensor)
            graph.register_initializer(twin)
            for node, index in uses:
                node.replace_input_with(index, twin)


def _layer(node: ir.Node, index: int) -> object:
    """Return the weight of the layer that reads a vector: layers with the same weight share their vectors too."""
    if node.op_type in PRODUCTS and index > 1:
        return _stored(node.inputs[1])
    if node.op_type in ELEMENTWISE and len(node.inputs) == 2:
        other = node.inputs[1 - index]
        producer = None if other is None else other.producer()
        if producer is not None and producer.op_type in PRODUCTS:
            return _stored(producer.inputs[1])
    if node.op_type in NORMALIZATIONS and not node.domain:
        return node
    return None


def _stored(weight: ir.Value | None) -> ir.Value | None:
    """Return the codes of a weight that is dequantized, or the weight itself."""
    producer = None if weight is None else weight.producer()
    return weight if producer is None or producer.op_type != "DequantizeLinear" else producer.inputs[0]
