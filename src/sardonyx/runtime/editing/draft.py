"""Drafts: copies of a model under edit, changed node by node and tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.gc_pause import collector_paused
from sardonyx.errors import EditError, InvalidModelError, TypeMismatchError
from sardonyx.model import Loadable
from sardonyx.model.copying import copy_model
from sardonyx.model.tensors import tensor_from
from sardonyx.ops import inference, registry
from sardonyx.ops.graph import node_label
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, node_names, value_names
from sardonyx.runtime.editing import attachment
from sardonyx.runtime.editing.validation import validate
from sardonyx.runtime.node import Node, built, read_by

_STANDARD_OPSETS = {"": 21, "ai.onnx.ml": 4}
"""Operator sets that an edit imports with the first node of a domain; version 1 for other domains."""


class Draft:
    """A copy of a model under edit.

    Args:
        model: The original, which is not changed and shares its tensors with the copy.

    Attributes:
        model: The copy.
        changes: Descriptions of the changes.
        is_structural: True if more than the elements of weights was changed.
    """

    def __init__(self, model: ir.Model) -> None:
        with collector_paused():
            self.model = copy_model(model)
            self._refresh()
        self.changes: list[str] = []
        self.is_structural = False
        self._placeholders: dict[str, ir.Value] = {}
        self._touched: set[ir.Value] = set()
        self._added: list[ir.Node] = []

    def _refresh(self) -> None:
        graph = self.model.graph
        names = value_names(self.model)
        self._names, self._node_names = Names(names), Names(node_names(self.model))
        self._values: dict[str, ir.Value] = {str(value.name): value for value in graph.initializers.values()}
        self._values |= {str(output.name): output for node in graph for output in node.outputs if output.name}
        self._values |= {str(value.name): value for value in graph.inputs}
        self._inside = {name for name in names if name not in self._values}

    # Nodes.

    def add_node(self, node: Node) -> str:
        """Add a node.

        Args:
            node: The node; a later change of the same edit may add its inputs.

        Returns:
            The name of the node.

        Raises:
            EditError: A name is not unique, or an attribute has no representation in the standard.
        """
        outputs = node.outputs
        if outputs is None:
            outputs = (self._names.fresh(f"{node.op_type}_output"),)
        else:
            for name in filter(None, outputs):
                self._require_free(name)
                self._names.fresh(name)
        name = self._new_node_name(node.name, node.op_type)
        self._connect(built(node, node.inputs or (), outputs, name, self._imports(node.domain)))
        return self._record(f"add_node {name} ({node.op_type})", name)

    def remove_node(self, name: str) -> None:
        """Remove a node; readers of its first output then read its first input, if both have the same type.

        Args:
            name: The name of the node or of one of its outputs.

        Raises:
            EditError: Unknown node; or its outputs are read and its first input cannot replace them.
        """
        node = self._node(name)
        read = [value for value in node.outputs if _is_read(value)]
        source = node.inputs[0] if node.inputs else None
        if read:
            if read != [node.outputs[0]] or source is None:
                raise EditError(
                    f"other nodes read {', '.join(str(value.name) for value in read)}.",
                    where=node_label(node),
                    remedy="Rewire its readers first, or remove them.",
                )
            self._require_same_type(node, source, read[0])
            self._join(source, read[0])
        self._drop(node)
        self._record(f"remove_node {name}", structural=True)

    def replace_node(self, name: str, node: Node) -> str:
        """Replace a node by another.

        Args:
            name: The name of the old node or of one of its outputs.
            node: The new node; inputs, outputs and name that are None are those of the old node. Readers of an old
                output read the new output of the same name.

        Returns:
            The name of the new node.

        Raises:
            EditError: Unknown node, a name is not unique, or the new node lacks an output that is read.
        """
        old = self._node(name)
        inputs = node.inputs
        if inputs is None:
            inputs = tuple("" if value is None else str(value.name) for value in old.inputs)
        former = {str(value.name): value for value in old.outputs if value.name}
        outputs = tuple(str(value.name or "") for value in old.outputs) if node.outputs is None else node.outputs
        for output in outputs:
            if output and output not in former:
                self._require_free(output)
        new = built(node, inputs, outputs, node.name or old.name or "", self._imports(node.domain))
        own = {str(value.name) for value in read_by(new)}
        lost = [
            output for output, value in former.items() if output not in outputs and (_is_read(value) or output in own)
        ]
        if lost:
            raise EditError(f"the new node does not compute {', '.join(lost)}, which is read.", where=node_label(old))
        if node.name is not None and node.name != old.name:
            self._new_node_name(node.name, node.op_type)
        for output in outputs:
            if output and output not in former:
                self._names.fresh(output)
        self.model.graph.insert_after(old, new)
        self._connect(new, listed=True)
        for value in new.outputs:
            if (before := former.get(str(value.name))) is not None:
                value.type, value.shape = before.type, before.shape
                self._move(before, value, outputs=True)
        self._drop(old)
        for value in new.outputs:
            if value.name:
                self._values[value.name] = value
        self._record(f"replace_node {name} ({node.op_type})", structural=True)
        return str(new.name)

    def rewire(self, node: str, input: int | str, tensor: str) -> None:
        """Let a node read another tensor.

        Args:
            node: The name of the node or of one of its outputs.
            input: The index of the input, or the name of the tensor that is read now (at all indices).
            tensor: The tensor to read; empty to omit the input.

        Raises:
            EditError: Unknown node, input or tensor.
        """
        target = self._node(node)
        if isinstance(input, int):
            positions = [input] if 0 <= input < len(target.inputs) else []
        else:
            positions = [i for i, value in enumerate(target.inputs) if value is not None and value.name == input]
        if not positions:
            raise EditError(f"has no input {input!r}.", where=node_label(target))
        value = self._value(tensor) if tensor else None
        for position in positions:
            target.replace_input_with(position, value)
        self._touched.update(target.outputs)
        self._record(f"rewire {node}[{input}] to {tensor}", structural=True)

    def insert_after(
        self, tensor: str, op: str, name: str | None = None, *, domain: str = "", **attributes: Any
    ) -> str:
        """Insert a node with one input after a tensor: readers of the tensor then read the result of the node.

        Args:
            tensor: The tensor; an output of the model keeps its name and has the new value.
            op: The operator of the node.
            name: The name of the node; generated if None.
            domain: The domain of the operator.
            attributes: The attributes of the node.

        Returns:
            The name of the node.

        Raises:
            EditError: Unknown tensor, or the tensor is both an input and an output.
        """
        value = self._value(tensor)
        is_output = value in self.model.graph.outputs
        if is_output and value.producer() is None:
            raise EditError("an output without a producer cannot have another value.", where=tensor)
        name = self._new_node_name(name, f"{tensor}_{op}")
        source = self._names.fresh(f"{tensor}_before_{op}") if is_output else tensor
        result = tensor if is_output else self._names.fresh(f"{tensor}_{op}")
        inserted = built(Node(op, domain=domain, **attributes), [source], [result], name, self._imports(domain))
        if is_output:
            self._rename(value, source)
        readers = list(value.uses())
        before = value.producer()
        if before is not None and before.graph is self.model.graph:
            self.model.graph.insert_after(before, inserted)
        elif len(self.model.graph):
            self.model.graph.insert_before(self.model.graph[0], inserted)
        else:
            self.model.graph.append(inserted)
        self._connect(inserted, listed=True)
        new = inserted.outputs[0]
        for use in readers:
            use.node.replace_input_with(use.idx, new)
            self._touched.update(use.node.outputs)
        if is_output:
            new.type, new.shape = value.type, value.shape
        self._replace_in_outputs(value, new)
        return self._record(f"insert_after {tensor}: {name} ({op})", name)

    # Outputs and inputs.

    def add_output(self, tensor: str) -> None:
        """Append a tensor of the main graph to the outputs.

        Raises:
            EditError: Unknown tensor, or the tensor is an output already.
        """
        value = self._value(tensor)
        if value in self.model.graph.outputs:
            raise EditError("is an output already.", where=tensor)
        self.model.graph.outputs.append(value)
        self._touched.add(value)
        self._record(f"add_output {tensor}", structural=True)

    def remove_output(self, name: str) -> None:
        """Remove an output.

        Raises:
            EditError: Unknown output.
        """
        outputs = self.model.graph.outputs
        output = next((value for value in outputs if value.name == name), None)
        if output is None:
            known = ", ".join(str(value.name) for value in outputs)
            raise EditError("the model has no such output.", where=name, remedy=f"It has: {known}.")
        outputs.remove(output)
        self._record(f"remove_output {name}", structural=True)

    def add_input(self, name: str, dtype: Any = "float32", shape: Any = None) -> None:
        """Add an input.

        Args:
            name: The name.
            dtype: The element type in the notation of numpy or of the standard: ``np.float32``, ``"float16"``,
                ``"tensor(int64)"``.
            shape: The sizes: numbers, names, None for open sizes; None leaves the rank open.

        Raises:
            EditError: The name is not unique, or the element type or a size is invalid.
        """
        self._require_free(name)
        self._names.fresh(name)
        for size in shape or ():
            is_number = isinstance(size, (int, np.integer)) and not isinstance(size, bool)
            if not (size is None or isinstance(size, str) or (is_number and 0 <= size < 2**63)):
                raise EditError(
                    f"expected a size of 0 to 2⁶³ - 1, a name or None, got {size!r}.",
                    where=name,
                    remedy="Leave a size open with a name or None.",
                )
        sizes = None if shape is None else ir.Shape(list(shape))
        value = ir.Value(name=name, type=ir.TensorType(_element_type(dtype)), shape=sizes)
        self.model.graph.inputs.append(value)
        self._define(value)
        self._record(f"add_input {name}", structural=True)

    def remove_input(self, name: str) -> None:
        """Remove an input; an input with a default value becomes a weight.

        Raises:
            EditError: Unknown input, or the input is read.
        """
        graph = self.model.graph
        value = next((entry for entry in graph.inputs if entry.name == name), None)
        if value is None:
            raise EditError("the model has no such input.", where=name)
        if not value.is_initializer() and _is_read(value):
            raise EditError("nodes read the input.", where=name, remedy="Rewire its readers first.")
        graph.inputs.remove(value)
        if not value.is_initializer():
            del self._values[name]
        self._record(f"remove_input {name}", structural=True)

    # Weights.

    def add_weight(self, name: str, array: Any) -> None:
        """Add a weight, for added nodes to read.

        Raises:
            EditError: The name is not unique, or the standard has no type for the array.
        """
        self._require_free(name)
        self._names.fresh(name)
        tensor = _tensor(name, _elements(name, array))
        value = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        self.model.graph.initializers.add(value)
        self._define(value)
        self._record(f"add_weight {name}", structural=True)

    def set_weight(self, name: str, array: Any) -> None:
        """Set the elements of a weight.

        Args:
            name: An initializer, or the output of a ``Constant``.
            array: An array of the weight's element type, which is copied; of another shape if the graph permits.

        Raises:
            EditError: Unknown weight, or the data are not an array.
            TypeMismatchError: The array has another element type, or a list has elements that this type cannot
                represent.
        """
        self._assign(*self._new_elements(name, array))

    def update_weights(self, weights: Mapping[str, Any]) -> None:
        """Set the elements of several weights, or of none if one is refused; see :meth:`set_weight`."""
        for value, tensor in [self._new_elements(name, array) for name, array in weights.items()]:
            self._assign(value, tensor)
        self.changes[-len(weights) :] = [f"update_weights of {len(weights)}"] * bool(weights)

    def _new_elements(self, name: str, array: Any) -> tuple[ir.Value, ir.TensorProtocol]:
        """Return a weight and its new elements; see :meth:`set_weight`."""
        value = self._value(name)
        old = facts.constant_tensor(value) or value.const_value
        if old is None:
            raise EditError("expected a weight, got a computed tensor.", where=name)
        new = _tensor(name, _elements(name, array, old.dtype))
        if new.dtype != old.dtype:
            raise TypeMismatchError(f"expected elements of type {old.dtype}, got {new.dtype}.", where=name)
        return value, new

    def _assign(self, value: ir.Value, new: ir.TensorProtocol) -> None:
        old = facts.constant_tensor(value) or value.const_value
        if old is None or tuple(new.shape) != tuple(old.shape):
            self.is_structural = True
            value.shape = ir.Shape(new.shape.numpy())
            self._touched.update(output for use in value.uses() for output in use.node.outputs)
        node = value.producer()
        if node is not None:
            node.attributes.clear()
            node.attributes["value"] = ir.AttrTensor("value", new)
        value.const_value = new
        self._record(f"set_weight {value.name}")

    # Whole models.

    def attach(self, model: Loadable, at: str | Mapping[str, str], name: str | None = None) -> str:
        """Connect another model to tensors of this one; its outputs are appended to the outputs.

        Args:
            model: The other model; see :func:`sardonyx.load`.
            at: The tensor that its only input reads, or tensors by the names of its inputs; other inputs become inputs
                of this model.
            name: The name of the attachment, for :meth:`detach`; generated if None.

        Returns:
            The name of the attachment: the prefix of the other model's names that exist in this one.

        Raises:
            EditError: Unknown tensor or input, or the name belongs to an attachment.
            OpsetConversionError: The other model cannot be converted to this one's operator sets.
        """
        attached = attachment.attach(self.model, model, at, name, self._value)
        self._refresh()
        for node in attachment.nodes_of(self.model.graph, attached):
            self._added.append(node)
            self._touched.update(node.outputs)
        return self._record(f"attach {attached}", attached)

    def detach(self, name: str) -> None:
        """Remove an attachment, or everything computed from a tensor, including outputs.

        Args:
            name: The name of the attachment or tensor.

        Raises:
            EditError: Unknown name, or another node reads the removed tensors.
        """
        attachment.detach(self.model, name, self._values.get(name))
        self._refresh()
        self._record(f"detach {name}", structural=True)

    # Validation.

    def validate(self) -> None:
        """Sort the nodes, and infer the types of changed values.

        Raises:
            EditError: The model has no outputs.
            InvalidModelError: A node reads an undefined tensor, or the graph has a cycle.
            UnsupportedError: An operator has no definition.
            SardonyxError: A node does not accept its inputs.
        """
        if not self.is_structural:
            return
        if not self.model.graph.outputs:
            raise EditError("the model has no outputs.", remedy="Add an output in the same edit.")
        for name, value in self._placeholders.items():
            for use in value.uses():
                raise InvalidModelError(f"reads the undefined tensor {name!r}.", where=node_label(use.node))
        validate(self.model, self._touched, self._added)

    # Lookup and reconnection.

    def _record(self, change: str, result: str = "", structural: bool | None = None) -> str:
        self.changes.append(change)
        self.is_structural = self.is_structural or bool(result) or bool(structural)
        return result

    def _value(self, name: str) -> ir.Value:
        value = self._values.get(name)
        if value is None:
            raise EditError("the main graph has no such tensor.", where=name)
        return value

    def _node(self, name: str) -> ir.Node:
        nodes = [node for node in self.model.graph if node.name == name]
        if len(nodes) > 1:
            raise EditError(
                f"{len(nodes)} nodes have this name.", where=name, remedy="Use the name of an output instead."
            )
        node = nodes[0] if nodes else self._values[name].producer() if name in self._values else None
        if node is None or node.graph is not self.model.graph:
            raise EditError("the main graph has no such node.", where=name)
        return node

    def _require_free(self, name: str) -> None:
        if not name:
            raise EditError("expected a name, got an empty text.")
        if name in self._values or name in self._inside:
            raise EditError("the name is taken.", where=name)

    def _new_node_name(self, name: str | None, base: str) -> str:
        if name is None:
            return self._node_names.fresh(base)
        if any(node.name == name for node in self.model.graph):
            raise EditError("a node has this name.", where=name)
        self._node_names.fresh(name)
        return name

    def _imports(self, domain: str) -> Mapping[str, int]:
        """Return the operator sets that the graph imports once it has a node of a domain."""
        imports = dict(self.model.graph.opset_imports)
        if domain not in imports and not (domain == "ai.onnx" and "" in imports):
            imports[domain] = _STANDARD_OPSETS.get(registry.canonical(domain), 1)
        return imports

    def _connect(self, node: ir.Node, *, listed: bool = False) -> None:
        """Connect a built node to existing values and placeholders, and define its outputs."""
        self.model.graph.opset_imports.update(self._imports(node.domain))
        if not listed:
            self.model.graph.append(node)
        for value in set(read_by(node)):
            if value.producer() is None and value.graph is None and value.const_value is None and value.name:
                self._move(value, self._values.get(value.name) or self._placeholder(value.name), outputs=True)
        for output in node.outputs:
            if output.name:
                self._define(output)
        self._added.append(node)
        self._touched.update(node.outputs)

    def _placeholder(self, name: str) -> ir.Value:
        """Return the placeholder of a tensor that a later change adds."""
        if name not in self._placeholders:
            self._placeholders[name] = ir.Value(name=name)
        return self._placeholders[name]

    def _define(self, value: ir.Value) -> None:
        name = str(value.name)
        self._values[name] = value
        if (placeholder := self._placeholders.pop(name, None)) is not None:
            self._move(placeholder, value, outputs=True)

    def _move(self, value: ir.Value, new: ir.Value, *, outputs: bool) -> None:
        """Let all readers of a value read another."""
        for use in list(value.uses()):
            use.node.replace_input_with(use.idx, new)
            self._touched.update(use.node.outputs)
        if outputs:
            self._replace_in_outputs(value, new)

    def _replace_in_outputs(self, value: ir.Value, new: ir.Value) -> None:
        if not value.is_graph_output():
            return
        for graph in (self.model.graph, *self.model.graph.subgraphs()):
            for i, output in enumerate(graph.outputs):
                if output is value:
                    graph.outputs[i] = new

    def _join(self, source: ir.Value, result: ir.Value) -> None:
        """Let readers of a result read its source; an output of the model keeps its name."""
        graph = self.model.graph
        if result in graph.outputs:
            name = str(result.name)
            if source.producer() is None or source in graph.outputs or source.producer().graph is not graph:  # type: ignore[union-attr]
                identity = built(Node("Identity"), [str(source.name)], [name], self._new_node_name(None, name), {"": 1})
                graph.append(identity)
                self._connect(identity, listed=True)
                identity.outputs[0].type, identity.outputs[0].shape = result.type, result.shape
                self._move(result, identity.outputs[0], outputs=True)
                return
            result.name = None
            self._rename(source, name)
            source.type, source.shape = result.type, result.shape
        self._move(result, source, outputs=True)

    def _rename(self, value: ir.Value, name: str) -> None:
        del self._values[str(value.name)]
        value.name = name
        self._values[name] = value

    def _drop(self, node: ir.Node) -> None:
        self.model.graph.remove(node, safe=True)
        if node in self._added:
            self._added.remove(node)
        for value in node.outputs:
            if value.name and self._values.get(value.name) is value:
                del self._values[value.name]

    def _require_same_type(self, node: ir.Node, a: ir.Value, b: ir.Value) -> None:
        """Refuse to join tensors whose types may differ."""
        with collector_paused():
            inferred = inference.infer(self.model)
        first, second = inferred.type(a), inferred.type(b)
        if first is None or first != second:
            raise EditError(
                f"the input is {first or 'of unknown type'}, unlike the output, which is read: {second or 'unknown'}.",
                where=node_label(node),
                remedy="Rewire its readers first, or remove them.",
            )


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _elements(name: str, data: Any, dtype: ir.DataType | None = None) -> np.ndarray:
    """Return a copy of an array, or other data as an array, converted to an element type if one is passed."""
    try:
        array = np.array(data, order="C")
    except ValueError as error:  # Lists of different lengths.
        raise EditError(f"expected an array: {error}.", where=name) from error
    if array.dtype.kind == "O" and not all(isinstance(element, (str, bytes)) for element in array.flat):
        raise EditError(f"expected an array, got {type(data).__name__}.", where=name)
    if isinstance(data, np.ndarray) or dtype is None or dtype == ir.DataType.STRING:
        return array
    converted = array.astype(dtype.numpy()) if array.dtype.kind in "biuf" else array
    exact = array.dtype == converted.dtype or (
        array.dtype.kind in "biu" and np.array_equal(converted.astype(array.dtype), array)
    )
    if not exact and not (array.dtype.kind in "biuf" and dtype.is_floating_point()):
        raise TypeMismatchError(f"expected elements of type {dtype}, got other values.", where=name)
    return converted


def _tensor(name: str, array: np.ndarray) -> ir.TensorProtocol:
    array.setflags(write=False)
    return tensor_from(array, name)


def _element_type(dtype: Any) -> ir.DataType:
    if isinstance(dtype, ir.DataType):
        return dtype
    text = dtype.removeprefix("tensor(").removesuffix(")") if isinstance(dtype, str) else dtype
    names = {"float": "float32", "double": "float64"}
    try:
        if text in ("string", str):
            return ir.DataType.STRING
        if isinstance(text, str) and text.upper() in ir.DataType.__members__:
            return ir.DataType[text.upper()]
        return ir.DataType.from_numpy(np.dtype(names.get(text, text) if isinstance(text, str) else text))
    except (TypeError, KeyError) as error:
        raise EditError(f"unknown element type {dtype!r}.", where="dtype") from error
