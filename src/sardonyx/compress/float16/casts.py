"""Execution of a plan: types rewritten, constants converted, Casts between different decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.compress.float16.clamp import Clamp, ClippedTensor
from sardonyx.compress.float16.inference import TypedModel
from sardonyx.compress.float16.plan import Plan, Use, is_convertible_constant
from sardonyx.compress.float16.signature import DTYPE_ATTRIBUTE, DTYPE_INPUT, type_name
from sardonyx.model.tensors import SparseTensor


class Applier:
    """Rewriter of a model according to a plan.

    Args:
        typed: The model, rewritten in place.
        plan: The decisions.
        clamp: Treatment of numbers out of range.

    Attributes:
        clipped: The tensors that the clamp changed.
    """

    def __init__(self, typed: TypedModel, plan: Plan, clamp: Clamp) -> None:
        self.clipped: list[ClippedTensor] = []
        self._typed = typed
        self._plan = plan
        self._clamp = clamp
        self._suffixes = {True: f"_{clamp.dtype.name.lower()}", False: "_float32"}
        self._names = _Names(typed.model)
        self._low: set[ir.Value] = set()
        self._cast_in: set[ir.Graph] = set()

    def run(self) -> None:
        """Rewrite the model."""
        for graph in self._graphs():
            for value in [*graph.inputs, *graph.initializers.values()]:
                self._value(value, graph)
            for node in list(graph):
                self._write_type_attribute(node)
                for output in node.outputs:
                    self._value(output, graph)
        for graph in self._graphs():
            self._remove_redundant_casts(graph)
        for root in self._roots():
            if "" not in root.opset_imports and not self._cast_in.isdisjoint((root, *root.subgraphs())):
                root.opset_imports[""] = _standard_opset(self._typed.model)

    def _roots(self) -> Iterator[ir.Graph]:
        yield self._typed.model.graph
        yield from (function.graph for function in dict.fromkeys(self._typed.calls.values()))

    def _graphs(self) -> Iterator[ir.Graph]:
        for root in self._roots():
            yield root
            yield from root.subgraphs()

    def _value(self, value: ir.Value, graph: ir.Graph) -> None:
        container = self._plan.containers.get(value)
        if container is not None and container.low:
            self._retype(value)
        if not self._typed.float32(value):
            return
        uses = self._plan.uses.get(value, [])
        source = self._plan.sources.get(value)
        producer = value.producer()
        low = source is not None and source.low
        if source is None and value.is_graph_input():
            # The caller may override this weight, so float32 readers cannot have a separate copy.
            low = all(use.cell.low for use in uses)
        elif source is None and (_is_dense(value) or (producer is not None and is_convertible_constant(producer))):
            self._constant(value, uses, graph)
            return
        self._assign_type(value, low, uses, graph)

    def _assign_type(self, value: ir.Value, low: bool, uses: list[Use], graph: ir.Graph) -> None:
        """Assign the types of a variable value and of its readers."""
        if low:
            self._set_low(value, value.name)
        self._cast(value, low, [use for use in uses if use.cell.low != low], graph)

    def _constant(self, value: ir.Value, uses: list[Use], graph: ir.Graph) -> None:
        """Give a constant the type of its readers, or insert a second copy if their types differ."""
        low, full = [u for u in uses if u.cell.low], [u for u in uses if not u.cell.low]
        if not full:
            self._set_low(value, value.name)
        elif low:
            named_low = any(isinstance(use.reader, ir.Graph) for use in low)
            copy = self._copy_constant(value, graph, self._suffixes[not named_low])
            self._set_low(value if named_low else copy, value.name)
            self._rewire(full if named_low else low, copy)

    def _copy_constant(self, value: ir.Value, graph: ir.Graph, suffix: str) -> ir.Value:
        name = self._names.fresh(f"{value.name}{suffix}")
        producer = value.producer()
        if producer is None:
            shape = value.shape.copy() if value.shape is not None else None
            copy = ir.Value(name=name, type=value.type, shape=shape, const_value=value.const_value)
            graph.initializers.add(copy)
            return copy
        node = ir.Node(
            producer.domain,
            "Constant",
            (),
            list(producer.attributes.values()),
            name=self._names.fresh(name),
            num_outputs=1,
        )
        copy = node.outputs[0]
        copy.name, copy.type, copy.shape = name, value.type, value.shape
        graph.insert_after(producer, node)
        return copy

    def _set_low(self, value: ir.Value, reported_as: str | None) -> None:
        """Make the value 16-bit, and its initializer or Constant."""
        self._retype(value)
        producer = value.producer()
        if producer is not None and is_convertible_constant(producer):
            attribute = next(a for name, a in producer.attributes.items() if name.startswith("value"))
            if attribute.type == ir.AttributeType.TENSOR:
                tensor = attribute.as_tensor()
            else:
                tensor = ir.Tensor(np.array(attribute.value, np.float32))
            del producer.attributes[attribute.name]
            producer.attributes.add(ir.AttrTensor("value", self._convert(tensor, reported_as)))
        elif producer is None and value.const_value is not None:
            value.const_value = self._convert(value.const_value, reported_as, value.name)

    def _retype(self, value: ir.Value) -> None:
        self._low.add(value)
        if value.type is not None:
            value.type = _with_element_type(value.type, self._clamp.dtype)

    def _convert(
        self, tensor: ir.TensorProtocol, reported_as: str | None, name: str | None = None
    ) -> ir.TensorProtocol:
        if (clipped := self._clamp.clipped(reported_as or "", tensor.numpy())) is not None:
            self.clipped.append(clipped)
        return self._clamp.tensor(tensor, name)

    def _cast(self, value: ir.Value, low: bool, uses: list[Use], graph: ir.Graph) -> None:
        """Insert one bridge for all ``uses`` of a value, directly after its producer to preserve node order.

        Only a body that returns a value of an outer graph casts inside, because a body's output must be its own.
        """
        local: list[Use] = []
        for use in uses:
            if isinstance(use.reader, ir.Node) or use.reader is graph:
                local.append(use)
                continue
            bridge = self._bridge(value, low)
            use.reader.extend(bridge)
            self._cast_in.add(use.reader)
            self._rewire([use], bridge[-1].outputs[0])
        if local:
            named = any(use.reader is self._typed.model.graph for use in local)
            bridge = self._bridge(value, low, named=named)
            self._insert(bridge, value, graph)
            self._rewire(local, bridge[-1].outputs[0])

    def _insert(self, nodes: list[ir.Node], value: ir.Value, graph: ir.Graph) -> None:
        self._cast_in.add(graph)
        producer = value.producer()
        if producer is not None:
            graph.insert_after(producer, nodes)
        elif len(graph):
            graph.insert_before(graph[0], nodes)
        else:
            graph.extend(nodes)

    def _bridge(self, value: ir.Value, low: bool, *, named: bool = False) -> list[ir.Node]:
        """Return the nodes that convert a value to the other type; the last output may take the value's name."""
        return [self._cast_node(value, self._dtype(not low), self._suffixes[not low], self._suffixes[low] * named)]

    def _cast_node(self, value: ir.Value, dtype: ir.DataType, suffix: str, suffix_for_value: str = "") -> ir.Node:
        node = ir.Node("", "Cast", (value,), (self._type_attribute(dtype),), num_outputs=1)
        cast = node.outputs[0]
        cast.type = ir.TensorType(dtype, denotation=value.type.denotation if value.type is not None else None)
        cast.shape = value.shape.copy() if value.shape is not None else None
        if suffix_for_value:
            cast.name, cast.doc_string = value.name, value.doc_string
            value.name = self._names.fresh(f"{value.name}{suffix_for_value}")
        else:
            cast.name = self._names.fresh(f"{value.name}{suffix}")
        node.name = self._names.fresh(f"{cast.name}_cast")
        return node

    def _rewire(self, uses: Iterable[Use], replacement: ir.Value) -> None:
        for use in uses:
            if isinstance(use.reader, ir.Node):
                use.reader.replace_input_with(use.index, replacement)
            else:
                use.reader.outputs[use.index] = replacement

    def _write_type_attribute(self, node: ir.Node) -> None:
        """Write the chosen output type to the attribute that determines the output's type."""
        output = node.outputs[0] if node.outputs else None
        if output is None or node.domain not in ("", "ai.onnx"):
            return
        source = self._plan.sources.get(output) or self._plan.containers.get(output)
        if source is None:
            return
        if node.op_type == "ConstantOfShape" and source.low:
            value = node.attributes.get("value")
            tensor = value.as_tensor() if value is not None else ir.Tensor(np.zeros(1, np.float32))
            node.attributes.add(ir.AttrTensor("value", self._convert(tensor, node.outputs[0].name)))
        name = DTYPE_ATTRIBUTE.get(node.op_type)
        if name is None or (name in node.attributes and node.attributes[name].is_ref()):
            return
        if name in node.attributes or self._default_type_is_low(node) != source.low:
            node.attributes.add(self._type_attribute(self._dtype(source.low), name))

    def _default_type_is_low(self, node: ir.Node) -> bool:
        """Return True if the node's output is 16-bit without a type attribute."""
        index = DTYPE_INPUT.get(node.op_type)
        source = node.inputs[index] if index is not None else None
        uses = self._plan.uses.get(source, ()) if source is not None else ()
        return any(use.cell.low for use in uses if use.reader is node and use.index == index)

    def _type_attribute(self, dtype: ir.DataType, name: str = "to") -> ir.Attr:
        if name == "to" and self._typed.model.graph.opset_imports.get("", 13) < 6:
            return ir.AttrString(name, dtype.name)
        return ir.AttrInt64(name, dtype.value)

    def _dtype(self, low: bool) -> ir.DataType:
        return self._clamp.dtype if low else ir.DataType.FLOAT

    def _remove_redundant_casts(self, graph: ir.Graph) -> None:
        """Remove the model's own Casts to the present type of their input."""
        for node in list(graph):
            if node.op_type != "Cast" or node.domain not in ("", "ai.onnx") or node.outputs[0].is_graph_output():
                continue
            source, output = node.inputs[0], node.outputs[0]
            known = self._typed.types
            if source not in known or output not in known or known[source] == known[output]:
                continue
            if self._new_type(source) == self._new_type(output):
                output.replace_all_uses_with(source)
                graph.remove(node, safe=True)

    def _new_type(self, value: ir.Value) -> str:
        return type_name(self._clamp.dtype) if value in self._low else self._typed.types[value]


def _is_dense(value: ir.Value) -> bool:
    """Return True for an initializer with convertible elements; a sparse initializer is cast instead."""
    return value.is_initializer() and not isinstance(value.const_value, SparseTensor)


def _with_element_type(type_: ir.TypeProtocol, dtype: ir.DataType) -> ir.TypeProtocol:
    """Return a new sequence or optional type with another element type; values share types."""
    if isinstance(type_, ir.SequenceType):
        return ir.SequenceType(_with_element_type(type_.elem_type, dtype), denotation=type_.denotation)
    if isinstance(type_, ir.OptionalType):
        return ir.OptionalType(_with_element_type(type_.elem_type, dtype), denotation=type_.denotation)
    return ir.TensorType(dtype, denotation=type_.denotation)


class _Names:
    """Unused names of values and nodes."""

    def __init__(self, model: ir.Model) -> None:
        self._used: set[str | None] = set()
        for root in (model.graph, *(function.graph for function in model.functions.values())):
            for graph in (root, *root.subgraphs()):
                self._used.update(value.name for value in (*graph.inputs, *graph.initializers.values()))
                for node in graph:
                    self._used.add(node.name)
                    self._used.update(output.name for output in node.outputs)

    def fresh(self, name: str) -> str:
        """Return ``name``, with a number appended if used already, and reserve the result."""
        unique, number = name, 2
        while unique in self._used:
            unique, number = f"{name}_{number}", number + 1
        self._used.add(unique)
        return unique


def _standard_opset(model: ir.Model) -> int:
    """Return the standard opset for a part without import: the model's, or the newest of its IR version."""
    known = [row[2] for row in onnx.helper.VERSION_TABLE if row[1] <= model.ir_version]
    return model.graph.opset_imports.get("", max(known))
