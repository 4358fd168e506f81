"""A model with the edits that quantizers need, by ONNX Runtime's names."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from sardonyx.compat.onnxruntime.quantization.arithmetic import TENSOR_NAME_QUANT_SUFFIX
from sardonyx.compat.onnxruntime.quantization.quant_utils import attributes_of, find_by_name


class ONNXModel:
    """A model with the edits that quantizers need.

    Args:
        model: The model, which the edits change.
    """

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self._positions: dict[str, int] = {}

    def nodes(self) -> Any:
        """Return the nodes of the main graph."""
        return self.model.graph.node

    def initializer(self) -> Any:
        """Return the initializers of the main graph."""
        return self.model.graph.initializer

    def graph(self) -> GraphProto:
        """Return the main graph."""
        return self.model.graph

    def ir_version(self) -> int:
        """Return the version of the file format."""
        return self.model.ir_version

    def opset_import(self) -> Any:
        """Return the operator sets."""
        return self.model.opset_import

    def set_opset_import(self, domain: str, version: int) -> None:
        """Set the version of a domain."""
        entry = next((entry for entry in self.model.opset_import if entry.domain == domain), None)
        if entry is None:
            self.model.opset_import.add(domain=domain, version=version)
        else:
            entry.version = version

    def remove_node(self, node: NodeProto) -> None:
        """Remove a node, if the graph has it."""
        if node in self.model.graph.node:
            self.model.graph.node.remove(node)

    def remove_nodes(self, nodes_to_remove: Sequence[NodeProto]) -> None:
        """Remove nodes."""
        for node in nodes_to_remove:
            self.remove_node(node)

    def add_node(self, node: NodeProto) -> None:
        """Append a node."""
        self.model.graph.node.append(node)

    def add_nodes(self, nodes_to_add: Sequence[NodeProto]) -> None:
        """Append nodes."""
        self.model.graph.node.extend(nodes_to_add)

    def initializer_extend(self, inits: Sequence[TensorProto]) -> None:
        """Append initializers.

        Raises:
            ValueError: There is none.
        """
        if not inits:
            raise ValueError("expected initializers, got an empty list.")
        self.model.graph.initializer.extend(inits)

    def add_initializer(self, tensor: TensorProto) -> None:
        """Append an initializer, unless its name is present."""
        if self.get_initializer(tensor.name) is None:
            self.model.graph.initializer.append(tensor)

    def _position(self, name: str) -> int | None:
        """Return the index of an initializer; programs edit the list too, so that the table is checked."""
        initializers = self.model.graph.initializer
        position = self._positions.get(name)
        if position is not None and position < len(initializers) and initializers[position].name == name:
            return position
        if len(self._positions) != len(initializers) or position is not None:
            self._positions = {tensor.name: index for index, tensor in reversed(list(enumerate(initializers)))}
        return self._positions.get(name)

    def get_initializer(self, name: str) -> TensorProto | None:
        """Return an initializer, or None."""
        position = self._position(name)
        return None if position is None else self.model.graph.initializer[position]

    def get_initializer_name_set(self) -> set[str]:
        """Return the names of the initializers."""
        return {tensor.name for tensor in self.model.graph.initializer}

    def remove_initializer(self, tensor: TensorProto) -> None:
        """Remove an initializer, and the input of its name."""
        position = self._position(tensor.name)
        if position is None:
            return
        name = tensor.name
        del self.model.graph.initializer[position]
        self._positions = {}
        self._remove_inputs({name})

    def remove_initializers(self, init_to_remove: Sequence[TensorProto]) -> None:
        """Remove initializers, and the inputs of their names."""
        for tensor in init_to_remove:
            self.remove_initializer(tensor)

    def _remove_inputs(self, names: Collection[str]) -> None:
        kept_inputs = [value for value in self.model.graph.input if value.name not in names]
        if len(kept_inputs) != len(self.model.graph.input):
            del self.model.graph.input[:]
            self.model.graph.input.extend(kept_inputs)

    def find_graph_input(self, input_name: str) -> Any:
        """Return an input, or None."""
        return find_by_name(input_name, self.model.graph.input)

    def find_graph_output(self, output_name: str) -> Any:
        """Return an output, or None."""
        return find_by_name(output_name, self.model.graph.output)

    def is_graph_output(self, output_name: str) -> bool:
        """Return True if the name is that of an output."""
        return any(value.name == output_name for value in self.model.graph.output)

    def is_graph_input(self, tensor_name: str) -> bool:
        """Return True if the name is that of an input."""
        return any(value.name == tensor_name for value in self.model.graph.input)

    def get_tensor_type(self, tensor_name: str) -> Any:
        """Return the type of a tensor, or None."""
        for values in (self.model.graph.value_info, self.model.graph.input, self.model.graph.output):
            value = find_by_name(tensor_name, values)
            if value is not None:
                return value.type.tensor_type
        return None

    def get_constant_value(self, output_name: str) -> np.ndarray | None:
        """Return the elements of a constant or an initializer, or None."""
        for node in self.model.graph.node:
            if node.op_type == "Constant" and node.output[0] == output_name:
                attributes = attributes_of(node)
                if "value" in attributes:
                    return onnx.numpy_helper.to_array(attributes["value"])
        tensor = self.get_initializer(output_name)
        return None if tensor is None else onnx.numpy_helper.to_array(tensor)

    def get_non_initializer_inputs(self) -> set[str]:
        """Return the names of the inputs without a default."""
        return {value.name for value in self.model.graph.input} - self.get_initializer_name_set()

    def input_name_to_nodes(self) -> dict[str, list[NodeProto]]:
        """Return the readers of tensors by name."""
        readers: dict[str, list[NodeProto]] = {}
        for node in self.model.graph.node:
            for name in filter(None, node.input):
                readers.setdefault(name, []).append(node)
        return readers

    def output_name_to_node(self) -> dict[str, NodeProto]:
        """Return the nodes that compute tensors, by name."""
        return {name: node for node in self.model.graph.node for name in node.output if name}

    def get_children(self, node: NodeProto, input_name_to_nodes: Any = None) -> list[NodeProto]:
        """Return the nodes that read outputs of a node."""
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        return [reader for name in node.output for reader in readers.get(name, ())]

    def get_parents(self, node: NodeProto, output_name_to_node: Any = None) -> list[NodeProto]:
        """Return the nodes that compute inputs of a node."""
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return [makers[name] for name in node.input if name in makers]

    def get_parent(self, node: NodeProto, idx: int, output_name_to_node: Any = None) -> NodeProto | None:
        """Return the node that computes an input of a node, or None."""
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return makers.get(node.input[idx]) if idx < len(node.input) else None

    def find_node_by_name(self, node_name: str, new_nodes_list: Sequence[NodeProto], graph: GraphProto) -> Any:
        """Return the node of a name in a graph or a list, or None."""
        return find_by_name(node_name, graph.node) or find_by_name(node_name, new_nodes_list)

    def get_largest_node_name_suffix(self, node_name_prefix: str) -> int:
        """Return the largest number that follows a prefix in the names of nodes, or -1."""
        return _largest_suffix((node.name for node in self.model.graph.node), node_name_prefix)

    def get_largest_initializer_name_suffix(self, initializer_name_prefix: str) -> int:
        """Return the largest number that follows a prefix in the names of initializers, or -1."""
        return _largest_suffix((tensor.name for tensor in self.model.graph.initializer), initializer_name_prefix)

    def find_nodes_by_initializer(self, graph: GraphProto, initializer: TensorProto) -> list[NodeProto]:
        """Return the nodes that read an initializer."""
        return [node for node in graph.node if initializer.name in node.input]

    @staticmethod
    def replace_node_input(node: NodeProto, old_input_name: str, new_input_name: str) -> None:
        """Rename an input of a node."""
        _rename(node.input, old_input_name, new_input_name)

    @staticmethod
    def replace_node_output(node: NodeProto, old_output_name: str, new_output_name: str) -> None:
        """Rename an output of a node."""
        _rename(node.output, old_output_name, new_output_name)

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
        """Rename an input of all nodes."""
        for node in self.model.graph.node:
            _rename(node.input, old_input_name, new_input_name)

    def replace_input_of_nodes(self, old_input_name: str, new_input_name: str, node_names_set: Collection[str]) -> None:
        """Rename an input of the nodes of some names."""
        for node in self.model.graph.node:
            if node.name in node_names_set:
                _rename(node.input, old_input_name, new_input_name)

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str) -> None:
        """Rename an output of all nodes."""
        for node in self.model.graph.node:
            _rename(node.output, old_output_name, new_output_name)

    def replace_output_of_nodes(
        self, old_output_name: str, new_output_name: str, node_names_set: Collection[str]
    ) -> None:
        """Rename an output of the nodes of some names."""
        for node in self.model.graph.node:
            if node.name in node_names_set:
                _rename(node.output, old_output_name, new_output_name)

    def remove_unused_constant(self) -> None:
        """Remove the constants and the initializers that nothing reads."""
        read = set(self.input_name_to_nodes()) | {value.name for value in self.model.graph.output}
        self.remove_nodes(
            [node for node in self.model.graph.node if node.op_type == "Constant" and node.output[0] not in read]
        )
        self.remove_initializers([tensor for tensor in self.model.graph.initializer if tensor.name not in read])

    def clean_initializers(self) -> tuple[GraphProto, set[str]]:
        """Remove unread initializers of all graphs; return the main graph, and the names that nothing computes."""
        return self.model.graph, _clean(self.model.graph)

    def topological_sort(self) -> None:
        """Sort the nodes: those of the main graph follow the nodes whose results they read.

        Raises:
            ValueError: The graph has a cycle.
        """
        nodes = list(self.model.graph.node)
        missing = [sum(1 for name in node.input if name) for node in nodes]
        readers: dict[str, list[int]] = {}
        for index, node in enumerate(nodes):
            for name in filter(None, node.input):
                readers.setdefault(name, []).append(index)
        ordered = [index for index, count in enumerate(missing) if not count]
        inputs = {value.name for value in self.model.graph.input} | self.get_initializer_name_set()

        def provide(name: str) -> None:
            for reader in readers.get(name, ()):
                missing[reader] -= 1
                if not missing[reader]:
                    ordered.append(reader)

        for name in sorted(inputs):
            provide(name)
        for index in ordered:  # The list grows while its nodes are visited.
            for name in nodes[index].output:
                provide(name)
        if len(ordered) != len(nodes):
            raise ValueError("Graph is not a DAG: the nodes have a cycle, or read a tensor that nothing computes.")
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes[index] for index in ordered)

    def save_model_to_file(self, output_path: str | os.PathLike[str], use_external_data_format: bool = False) -> None:
        """Write the model with sorted nodes, its tensors in another file if requested."""
        self.topological_sort()
        path = Path(output_path)
        if use_external_data_format:
            onnx.external_data_helper.convert_model_to_external_data(
                self.model, all_tensors_to_one_file=True, location=path.name + ".data", convert_attribute=True
            )
            path.with_name(path.name + ".data").unlink(missing_ok=True)  # Tensors are appended to the file.
        onnx.save_model(self.model, str(path))

    def replace_gemm_with_matmul(self) -> dict[str, str]:
        """Replace Gemm without factors by MatMul and Add; return the sources of transposed weights by name."""
        names: set[str] = set()
        for graph in _graphs(self.model.graph):
            values: tuple[Any, ...] = (*graph.initializer, *graph.input, *graph.output, *graph.value_info)
            names.update(str(value.name) for value in values)
            names.update(name for node in graph.node for name in (*node.input, *node.output))
        sources: dict[str, str] = {}
        _split_gemms([self.model.graph], names, sources)
        return sources


def _rename(names: Any, before: str, after: str) -> None:
    for index, name in enumerate(names):
        if name == before:
            names[index] = after


def _largest_suffix(names: Iterator[str], prefix: str) -> int:
    ends = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return max((int(end) for end in ends if end.isdecimal()), default=-1)


def _bodies(node: NodeProto) -> list[GraphProto]:
    bodies = [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]
    return bodies + [graph for attribute in node.attribute for graph in attribute.graphs]


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for body in _bodies(node):
            yield from _graphs(body)


def _clean(graph: GraphProto) -> set[str]:
    """Remove unread initializers, and return the names that the graph reads from outside."""
    read = {value.name for value in graph.output} | {name for node in graph.node for name in node.input}
    for node in graph.node:
        for body in _bodies(node):
            read |= _clean(body)
    read -= {name for node in graph.node for name in node.output} | {""}
    names = {tensor.name for tensor in graph.initializer}
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name not in read:
            del graph.initializer[index]
    for index in reversed(range(len(graph.input))):
        if graph.input[index].name in names - read:
            del graph.input[index]
    return read - names - {value.name for value in graph.input}


def _split_gemms(path: list[GraphProto], names: set[str], sources: dict[str, str]) -> None:
    """Replace the Gemm nodes of the last graph of a path, and of the graphs below."""
    graph = path[-1]
    nodes: list[NodeProto] = []
    transposed: dict[str, str] = {}
    for node in graph.node:
        for body in _bodies(node):
            _split_gemms([*path, body], names, sources)
        attributes = attributes_of(node) if node.op_type == "Gemm" else {}
        if (
            node.op_type != "Gemm" or attributes.get("transA", 0) or attributes.get("transB", 0) not in (0, 1)
            or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0
        ):  # fmt: skip
            nodes.append(node)
            continue
        right = node.input[1]
        if attributes.get("transB", 0):
            tensor = next((t for one in reversed(path) for t in one.initializer if t.name == right), None)
            if tensor is None:
                name = f"{node.name}_Transpose" if node.name else ""
                nodes.append(onnx.helper.make_node("Transpose", [right], [right + "_Transposed"], name))
                right += "_Transposed"
            else:
                if right not in transposed:
                    transposed[right] = _free_name(right + "_Transposed", names)
                    sources[transposed[right]] = right
                    array = np.ascontiguousarray(onnx.numpy_helper.to_array(tensor).T)
                    graph.initializer.append(onnx.numpy_helper.from_array(array, transposed[right]))
                right = transposed[right]
        has_bias = len(node.input) > 2
        product = node.output[0] + ("_MatMul" if has_bias else "")
        name = f"{node.name}_MatMul" if node.name else ""
        nodes.append(onnx.helper.make_node("MatMul", [node.input[0], right], [product], name))
        if has_bias:
            name = f"{node.name}_Add" if node.name else ""
            nodes.append(onnx.helper.make_node("Add", [product, node.input[2]], list(node.output), name))
    del graph.node[:]
    graph.node.extend(nodes)


def _free_name(stem: str, names: set[str]) -> str:
    """Return a name such that those which quantization derives are free too, and reserve all of them."""
    ends = ("", TENSOR_NAME_QUANT_SUFFIX, "_scale", "_zero_point")
    name, number = stem, 0
    while any(name + end in names for end in ends):
        number += 1
        name = f"{stem}_{number}"
    names.update(name + end for end in ends)
    return name
