"""Drafts: a copy of a model that is being changed, node by node and tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.gc_pause import collector_paused
from sardonyx.errors import EditError, InvalidModelError, TypeMismatchError
from sardonyx.model import Loadable
from sardonyx.model.copying import copy_model
from sardonyx.ops import inference, registry
from sardonyx.ops.graph import node_label
from sardonyx.rewrite import facts
from sardonyx.rewrite.names import Names, node_names, value_names
from sardonyx.runtime.editing import attachment
from sardonyx.runtime.editing.validation import settle
from sardonyx.runtime.node import Node, built, read_by

_STANDARD_OPSETS = {"": 21, "ai.onnx.ml": 4}
"""Operator sets that are imported where an edit brings the first node of a domain; of other domains the first."""


class Draft:
    """A copy of a model that is being changed.

    Args:
        model: What it is a copy of; it stays as it is, and shares its tensors.

    Attributes:
        model: The copy.
        said: What was done to it, in words.
        structural: Whether more was changed than elements of weights.
    """

    def __init__(self, model: ir.Model) -> None:
        with collector_paused():
            self.model = copy_model(model)
            self._refresh()
        self.said: list[str] = []
        self.structural = False
        self._wanted: dict[str, ir.Value] = {}
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
            node: What it reads may be added later in the same edit.

        Returns:
            Its name.

        Raises:
            EditError: A name is taken, or an attribute has no form in the standard.
        """
        outputs = node.outputs
        if outputs is None:
            outputs = (self._names.fresh(f"{node.op_type}_output"),)
        else:
            for name in filter(None, outputs):
                self._require_free(name)
                self._names.fresh(name)
        name = self._new_node_name(node.name, node.op_type)
        self._place(built(node, node.inputs or (), outputs, name, self._imports(node)))
        return self._did(f"add_node {name} ({node.op_type})", name)

    def remove_node(self, name: str) -> None:
        """Remove a node; its readers read its first input instead, where that has the type of its first output.

        Args:
            name: The node's, or that of one of its outputs.

        Raises:
            EditError: There is no such node; or its outputs are read, and its input cannot take their place.
        """
        node = self._node(name)
        read = [value for value in node.outputs if _is_read(value)]
        source = node.inputs[0] if node.inputs else None
        if read:
            if read != [node.outputs[0]] or source is None:
                raise EditError(
                    f"is read: {', '.join(str(value.name) for value in read)}.",
                    where=node_label(node),
                    remedy="Rewire its readers first, or remove them.",
                )
            self._require_alike(node, source, read[0])
            self._join(source, read[0])
        self._drop(node)
        self._did(f"remove_node {name}", structural=True)

    def replace_node(self, name: str, node: Node) -> str:
        """Put a node in the place of another.

        Args:
            name: The other's, or that of one of its outputs.
            node: What it leaves out (inputs, outputs, name) is as that of the other. Readers of an output of the
                other read the one with its name.

        Returns:
            The node's name.

        Raises:
            EditError: There is no such node, a name is taken, or an output that is read is not given any more.
        """
        old = self._node(name)
        inputs = node.inputs
        if inputs is None:
            inputs = tuple("" if value is None else str(value.name) for value in old.inputs)
        was = {str(value.name): value for value in old.outputs if value.name}
        outputs = tuple(str(value.name or "") for value in old.outputs) if node.outputs is None else node.outputs
        for each in outputs:
            if each and each not in was:
                self._require_free(each)
                self._names.fresh(each)
        lost = [each for each, value in was.items() if each not in outputs and _is_read(value)]
        if lost:
            raise EditError(f"is read, and the new node does not give it: {', '.join(lost)}.", where=node_label(old))
        if node.name is not None and node.name != old.name:
            self._new_node_name(node.name, node.op_type)
        made = built(node, inputs, outputs, node.name or old.name or "", self._imports(node))
        self.model.graph.insert_after(old, made)
        self._place(made, listed=True)
        for value in made.outputs:
            if (before := was.get(str(value.name))) is not None:
                value.type, value.shape = before.type, before.shape
                self._move(before, value, outputs=True)
        self._drop(old)
        for value in made.outputs:
            if value.name:
                self._values[value.name] = value
        self._did(f"replace_node {name} ({node.op_type})", structural=True)
        return str(made.name)

    def rewire(self, node: str, input: int | str, tensor: str) -> None:
        """Let a node read another tensor.

        Args:
            node: The node's name, or that of one of its outputs.
            input: Which input: its position, or the name of the tensor that is read now (all of its readings).
            tensor: What is read from now on; empty to leave the input out.

        Raises:
            EditError: There is no such node, input or tensor.
        """
        found = self._node(node)
        if isinstance(input, int):
            positions = [input] if 0 <= input < len(found.inputs) else []
        else:
            positions = [i for i, value in enumerate(found.inputs) if value is not None and value.name == input]
        if not positions:
            raise EditError(f"has no input {input!r}.", where=node_label(found))
        value = self._value(tensor) if tensor else None
        for position in positions:
            found.replace_input_with(position, value)
        self._touched.update(found.outputs)
        self._did(f"rewire {node}[{input}] to {tensor}", structural=True)

    def insert_after(
        self, tensor: str, op: str, name: str | None = None, *, domain: str = "", **attributes: Any
    ) -> str:
        """Put a node of one input behind a tensor: who read the tensor reads what the node makes of it.

        Args:
            tensor: The tensor; an output of the model keeps its name, and carries the new value.
            op: The node's operator.
            name: The node's name; one is made up without.
            domain: The operator's domain.
            attributes: The node's attributes.

        Returns:
            The node's name.

        Raises:
            EditError: There is no such tensor, or it is an input and an output at once.
        """
        value = self._value(tensor)
        ends = value in self.model.graph.outputs
        if ends and value.producer() is None:
            raise EditError("is an output that nothing computes: it cannot carry another value.", where=tensor)
        name = self._new_node_name(name, f"{tensor}_{op}")
        if ends:
            self._rename(value, self._names.fresh(f"{tensor}_before_{op}"))
        result = tensor if ends else self._names.fresh(f"{tensor}_{op}")
        node = Node(op, domain=domain, **attributes)
        made = built(node, [str(value.name)], [result], name, self._imports(node))
        readers = list(value.uses())
        before = value.producer()
        if before is not None and before.graph is self.model.graph:
            self.model.graph.insert_after(before, made)
        elif len(self.model.graph):
            self.model.graph.insert_before(self.model.graph[0], made)
        else:
            self.model.graph.append(made)
        self._place(made, listed=True)
        new = made.outputs[0]
        for use in readers:
            use.node.replace_input_with(use.idx, new)
            self._touched.update(use.node.outputs)
        if ends:
            new.type, new.shape = value.type, value.shape
        self._replace_in_outputs(value, new)
        return self._did(f"insert_after {tensor}: {name} ({op})", name)

    # Outputs and inputs.

    def add_output(self, tensor: str) -> None:
        """Give a tensor of the main graph as an output, after those that there are.

        Raises:
            EditError: There is no such tensor, or it is an output.
        """
        value = self._value(tensor)
        if value in self.model.graph.outputs:
            raise EditError("is an output already.", where=tensor)
        self.model.graph.outputs.append(value)
        self._touched.add(value)
        self._did(f"add_output {tensor}", structural=True)

    def remove_output(self, name: str) -> None:
        """Give an output no more.

        Raises:
            EditError: There is no such output.
        """
        outputs = self.model.graph.outputs
        found = next((value for value in outputs if value.name == name), None)
        if found is None:
            known = ", ".join(str(value.name) for value in outputs)
            raise EditError("the model has no such output.", where=name, remedy=f"It has: {known}.")
        outputs.remove(found)
        self._did(f"remove_output {name}", structural=True)

    def add_input(self, name: str, dtype: Any = "float32", shape: Any = None) -> None:
        """Take another input.

        Args:
            name: Its name.
            dtype: Its element type, as numpy or as the standard calls it: ``np.float32``, ``"float16"``,
                ``"tensor(int64)"``.
            shape: Its sizes: numbers, names, None where open; None leaves the rank open.

        Raises:
            EditError: The name is taken, or there is no such element type or size.
        """
        self._require_free(name)
        self._names.fresh(name)
        if wrong := [size for size in shape or () if isinstance(size, int) and size < 0]:
            raise EditError(f"{wrong[0]} is no size.", where=name, remedy="Leave a size open with a name or None.")
        sizes = None if shape is None else ir.Shape(list(shape))
        value = ir.Value(name=name, type=ir.TensorType(_element_type(dtype)), shape=sizes)
        self.model.graph.inputs.append(value)
        self._define(value)
        self._did(f"add_input {name}", structural=True)

    def remove_input(self, name: str) -> None:
        """Take an input no more; one that a weight stands behind becomes that weight.

        Raises:
            EditError: There is no such input, or it is read.
        """
        graph = self.model.graph
        value = next((each for each in graph.inputs if each.name == name), None)
        if value is None:
            raise EditError("the model has no such input.", where=name)
        if not value.is_initializer() and _is_read(value):
            raise EditError("is read.", where=name, remedy="Rewire its readers first.")
        graph.inputs.remove(value)
        if not value.is_initializer():
            del self._values[name]
        self._did(f"remove_input {name}", structural=True)

    # Weights.

    def add_weight(self, name: str, array: Any) -> None:
        """Add a weight, for nodes that are added to read.

        Raises:
            EditError: The name is taken, or the array has no type of the standard.
        """
        self._require_free(name)
        self._names.fresh(name)
        tensor = _tensor(name, _elements(name, array))
        value = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        self.model.graph.initializers.add(value)
        self._define(value)
        self._did(f"add_weight {name}", structural=True)

    def set_weight(self, name: str, array: Any) -> None:
        """Give a weight other elements.

        Args:
            name: An initializer, or what a ``Constant`` gives.
            array: Of the weight's element type; of another shape where the graph takes it. It is copied.

        Raises:
            EditError: There is no such weight, or what is given is no array.
            TypeMismatchError: The array is of another element type, or the weight's does not hold what a list has.
        """
        value = self._value(name)
        was = facts.constant_tensor(value) or value.const_value
        if was is None:
            raise EditError("is computed, and no weight.", where=name)
        new = _tensor(name, _elements(name, array, was.dtype))
        if new.dtype != was.dtype:
            raise TypeMismatchError(f"the weight is {was.dtype}, and {new.dtype} is given.", where=name)
        if tuple(new.shape) != tuple(was.shape):
            self.structural = True
            value.shape = ir.Shape(new.shape.numpy())
            self._touched.update(output for use in value.uses() for output in use.node.outputs)
        node = value.producer()
        if node is not None:
            node.attributes.clear()
            node.attributes["value"] = ir.AttrTensor("value", new)
        value.const_value = new
        self._did(f"set_weight {name}")

    def update_weights(self, weights: Mapping[str, Any]) -> None:
        """Give weights other elements; see :meth:`set_weight`."""
        for name, array in weights.items():
            self.set_weight(name, array)
        self.said[-len(weights) :] = [f"update_weights of {len(weights)}"] * bool(weights)

    # Whole models.

    def attach(self, model: Loadable, at: str | Mapping[str, str], name: str | None = None) -> str:
        """Let another model read tensors of this one; its outputs become outputs after those that there are.

        Args:
            model: See :func:`sardonyx.load`.
            at: The tensor that its input reads, or tensors by the names of its inputs; inputs that are not named
                become inputs of this model.
            name: What to call the attachment, for :meth:`detach`; one is made up without.

        Returns:
            The attachment's name. Names of the other model that are taken here get it as a prefix.

        Raises:
            EditError: There is no such tensor or input, or an attachment has this name.
            OpsetConversionError: The other model cannot be written with this one's operator sets.
        """
        found = attachment.attach(self.model, model, at, name, self._value)
        self._refresh()
        for node in attachment.nodes_of(self.model.graph, found):
            self._added.append(node)
            self._touched.update(node.outputs)
        return self._did(f"attach {found}", found)

    def detach(self, name: str) -> None:
        """Take away what was attached, or all that is computed from a tensor; outputs among it go with it.

        Args:
            name: An attachment's, or a tensor's.

        Raises:
            EditError: There is no such thing, or something else reads it.
        """
        attachment.detach(self.model, name, self._values.get(name))
        self._refresh()
        self._did(f"detach {name}", structural=True)

    # Checking.

    def settle(self) -> None:
        """Order nodes, and infer the types of what was changed.

        Raises:
            EditError: No output is left.
            InvalidModelError: Something is read that nothing computes, or nodes wait for each other.
            UnsupportedError: An operator has no definition.
            SardonyxError: A node does not take its inputs.
        """
        if not self.structural:
            return
        if not self.model.graph.outputs:
            raise EditError("no output is left.", remedy="Add another in the same edit.")
        for name, value in self._wanted.items():
            for use in value.uses():
                raise InvalidModelError(f"reads {name!r}, and nothing computes it.", where=node_label(use.node))
        settle(self.model, self._touched, self._added)

    # Finding and moving.

    def _did(self, what: str, result: str = "", structural: bool | None = None) -> str:
        self.said.append(what)
        self.structural = self.structural or bool(result) or bool(structural)
        return result

    def _value(self, name: str) -> ir.Value:
        value = self._values.get(name)
        if value is None:
            raise EditError("the main graph has no such tensor.", where=name)
        return value

    def _node(self, name: str) -> ir.Node:
        found = [node for node in self.model.graph if node.name == name]
        if len(found) > 1:
            raise EditError(f"{len(found)} nodes have this name.", where=name, remedy="Name one by one of its outputs.")
        node = found[0] if found else self._values[name].producer() if name in self._values else None
        if node is None or node.graph is not self.model.graph:
            raise EditError("the main graph has no such node.", where=name)
        return node

    def _require_free(self, name: str) -> None:
        if name in self._values or name in self._inside:
            raise EditError("the name is taken.", where=name)

    def _new_node_name(self, name: str | None, base: str) -> str:
        if name is None:
            return self._node_names.fresh(base)
        if any(node.name == name for node in self.model.graph):
            raise EditError("a node has this name.", where=name)
        self._node_names.fresh(name)
        return name

    def _imports(self, node: Node) -> Mapping[str, int]:
        """The operator sets, with that of the node's domain."""
        imports = self.model.graph.opset_imports
        domain = node.domain
        if domain not in imports and not (domain == "ai.onnx" and "" in imports):
            imports[domain] = _STANDARD_OPSETS.get(registry.canonical(domain), 1)
        return imports

    def _place(self, node: ir.Node, *, listed: bool = False) -> None:
        """Let a node that was built read the values that there are, and others find what it computes."""
        if not listed:
            self.model.graph.append(node)
        for value in set(read_by(node)):
            if value.producer() is None and value.graph is None and value.const_value is None and value.name:
                self._move(value, self._values.get(value.name) or self._want(value.name), outputs=True)
        for output in node.outputs:
            if output.name:
                self._define(output)
        self._added.append(node)
        self._touched.update(node.outputs)

    def _want(self, name: str) -> ir.Value:
        """What stands for a tensor that is yet to be added."""
        if name not in self._wanted:
            self._wanted[name] = ir.Value(name=name)
        return self._wanted[name]

    def _define(self, value: ir.Value) -> None:
        name = str(value.name)
        self._values[name] = value
        if (wanted := self._wanted.pop(name, None)) is not None:
            self._move(wanted, value, outputs=True)

    def _move(self, value: ir.Value, new: ir.Value, *, outputs: bool) -> None:
        """Let all who read a value read another."""
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
        """Let who reads a result read its source; an output keeps its name."""
        graph = self.model.graph
        if result in graph.outputs:
            name = str(result.name)
            if source.producer() is None or source in graph.outputs or source.producer().graph is not graph:  # type: ignore[union-attr]
                made = built(Node("Identity"), [str(source.name)], [name], self._new_node_name(None, name), {"": 1})
                graph.append(made)
                self._place(made, listed=True)
                made.outputs[0].type, made.outputs[0].shape = result.type, result.shape
                self._move(result, made.outputs[0], outputs=True)
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

    def _require_alike(self, node: ir.Node, a: ir.Value, b: ir.Value) -> None:
        """Refuse to join tensors that may be of different types."""
        with collector_paused():
            inferred = inference.infer(self.model)
        first, second = inferred.type(a), inferred.type(b)
        if first is None or first != second:
            raise EditError(
                f"is read, and its input is {first or 'of no known type'}, its output {second or 'of no known type'}.",
                where=node_label(node),
                remedy="Rewire its readers first, or remove them.",
            )


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _elements(name: str, given: Any, dtype: ir.DataType | None = None) -> np.ndarray:
    """A copy of an array as it is; of anything else an array, of an element type where one is wanted."""
    try:
        array = np.array(given, order="C")
    except ValueError as error:  # Lists of different lengths.
        raise EditError(f"what is given is no array: {error}.", where=name) from error
    if array.dtype.kind == "O" and not all(isinstance(each, (str, bytes)) for each in array.flat):
        raise EditError(f"{type(given).__name__} is given, and an array is needed.", where=name)
    if isinstance(given, np.ndarray) or dtype is None or dtype == ir.DataType.STRING:
        return array
    found = array.astype(dtype.numpy()) if array.dtype.kind in "biuf" else array
    exact = array.dtype == found.dtype or (
        array.dtype.kind in "biu" and np.array_equal(found.astype(array.dtype), array)
    )
    if not exact and not (array.dtype.kind in "biuf" and dtype.is_floating_point()):
        raise TypeMismatchError(f"the weight is {dtype}, which does not hold what is given.", where=name)
    return found


def _tensor(name: str, array: np.ndarray) -> ir.TensorProtocol:
    array.setflags(write=False)
    if array.dtype.kind in "OUS":
        return ir.StringTensor([str(text).encode() for text in array.ravel()], shape=ir.Shape(array.shape), name=name)
    return ir.Tensor(array, name=name)


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
        raise EditError(f"there is no element type {dtype!r}.", where="dtype") from error
