"""One node at one boundary between operator sets: what an adapter may read of it, and how it writes its replacement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir import convenience

from sardonyx.errors import OpsetConversionError
from sardonyx.rewrite.inference import infer_node
from sardonyx.rewrite.opset.constants import constant_tensor, is_deterministic
from sardonyx.rewrite.opset.schemas import canonical, schema_at
from sardonyx.rewrite.opset.scope import Scope, forget_new_symbols, is_read, name_of, symbols_of

AttributeValue = int | float | str | Sequence[int] | Sequence[float] | Sequence[str] | ir.TensorProtocol | ir.Graph

_ARRAY_LIMIT = 1 << 24


class Refusal(OpsetConversionError):
    """A node that an adapter cannot express; the driver may still find another way for it."""


class Site:
    """A node to be rewritten, the operator set it comes from and the one it goes to.

    Attributes:
        node: The node as it stands.
        scope: The model around it.
        source: Operator set in which the node is legal.
        target: Operator set in which its replacement has to be legal.
        emitted: The nodes written so far.
    """

    def __init__(self, node: ir.Node, scope: Scope, source: int, target: int) -> None:
        self.node = node
        self.scope = scope
        self.source = source
        self.target = target
        self.domain = canonical(node.domain)
        self.emitted: list[ir.Node] = []
        self.replaced = False

    # -- reading -------------------------------------------------------------------------------------------

    def refuse(self, problem: str, remedy: str = "") -> NoReturn:
        """Gives up on this node.

        Raises:
            OpsetConversionError: Always; names the node and the operator set.
        """
        raise Refusal(
            f"cannot be converted from opset {self.source} to {self.target}: {problem}",
            where=name_of(self.node),
            remedy=remedy,
        )

    def input(self, index: int) -> ir.Value | None:
        """An optional input; None where it is not given."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def required(self, index: int) -> ir.Value:
        """An input that the operator requires."""
        value = self.input(index)
        if value is None:
            self.refuse(f"its input {index} is missing")
        return value

    @property
    def inputs(self) -> list[ir.Value | None]:
        """All inputs."""
        return list(self.node.inputs)

    def uses_output(self, index: int) -> bool:
        """Whether anything reads an output."""
        return index < len(self.node.outputs) and is_read(self.node.outputs[index])

    def has(self, name: str) -> bool:
        """Whether the node gives an attribute."""
        return name in self.node.attributes

    def _attribute(self, name: str) -> ir.Attr | None:
        attribute = self.node.attributes.get(name)
        if attribute is not None and attribute.is_ref():
            self.refuse(f"its attribute {name!r} is a parameter of the function")
        return attribute

    def integer(self, name: str, default: int = 0) -> int:
        """An INT attribute, or its default."""
        attribute = self._attribute(name)
        return default if attribute is None else attribute.as_int()

    def integers(self, name: str) -> list[int] | None:
        """An INTS attribute; None where it is not given."""
        attribute = self._attribute(name)
        return None if attribute is None else list(attribute.as_ints())

    def real(self, name: str, default: float = 0.0) -> float:
        """A FLOAT attribute, or its default."""
        attribute = self._attribute(name)
        return default if attribute is None else attribute.as_float()

    def reals(self, name: str) -> list[float] | None:
        """A FLOATS attribute; None where it is not given."""
        attribute = self._attribute(name)
        return None if attribute is None else list(attribute.as_floats())

    def text(self, name: str, default: str = "") -> str:
        """A STRING attribute, or its default."""
        attribute = self._attribute(name)
        return default if attribute is None else attribute.as_string()

    def texts(self, name: str) -> list[str] | None:
        """A STRINGS attribute; None where it is not given."""
        attribute = self._attribute(name)
        return None if attribute is None else list(attribute.as_strings())

    def attributes(self, *, drop: Sequence[str] = (), **change: AttributeValue) -> dict[str, AttributeValue | ir.Attr]:
        """The node's attributes, without those in ``drop`` and with those in ``change``."""
        kept: dict[str, AttributeValue | ir.Attr] = {k: v for k, v in self.node.attributes.items() if k not in drop}
        kept.update(change)
        return kept

    def dtype(self, value: ir.Value) -> ir.DataType:
        """A tensor's element type; refuses where it is unknown."""
        if value.dtype is None or value.dtype == ir.DataType.UNDEFINED:
            self.refuse(f"the element type of {value.name!r} is not known")
        return value.dtype

    def rank(self, value: ir.Value) -> int:
        """A tensor's rank; refuses where it is unknown."""
        if value.shape is None:
            self.refuse(
                f"the rank of {value.name!r} is not known", "State the shapes of the graph's inputs (`set-shape`)."
            )
        return len(value.shape)

    def axis(self, name: str, default: int, rank: int) -> int:
        """An axis attribute counted from the front."""
        axis = self.integer(name, default)
        return axis + rank if axis < 0 else axis

    def static_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """A tensor's shape where every size is a number."""
        if value.shape is None or not all(isinstance(dim, int) for dim in value.shape):
            return None
        return tuple(int(dim) for dim in value.shape if isinstance(dim, int))

    def sizes(self, value: ir.Value) -> tuple[int, ...]:
        """A tensor's shape; refuses where a size is not a number."""
        shape = self.static_shape(value)
        if shape is None:
            self.refuse(
                f"the shape of {value.name!r} is not known in numbers",
                "Fix the shapes of the graph's inputs (`set-shape`).",
            )
        return shape

    def size(self, value: ir.Value, axis: int) -> int:
        """One size of a tensor; refuses where it is not a number."""
        self.rank(value)
        assert value.shape is not None
        dim = value.shape[axis]
        if not isinstance(dim, int):
            self.refuse(
                f"size {axis} of {value.name!r} is not known in numbers",
                "Fix the shapes of the graph's inputs (`set-shape`).",
            )
        return dim

    def known(self, value: ir.Value | None) -> np.ndarray | None:
        """The contents of a constant tensor; None where the value is not constant."""
        if value is None:
            return None
        tensor = constant_tensor(value, self.scope.model.ir_version)
        if tensor is None:
            return self.scope.folded(value, self.domain, self.target)
        if tensor.size > _ARRAY_LIMIT:
            return None
        try:
            return np.asarray(tensor.numpy())
        except (ValueError, TypeError) as error:
            self.refuse(f"the constant {value.name!r} cannot be read: {error}")

    def constant_input(self, index: int, role: str) -> np.ndarray:
        """The contents of a constant input; refuses where it is computed at run time."""
        content = self.known(self.input(index))
        if content is None:
            name = self.required(index).name
            self.refuse(
                f"its input {index} ({role}, {name!r}) is computed at run time and has to be constant",
                "Fold constants first (`optimize`), or fix the shapes it is computed from.",
            )
        return content

    def constant_integers(self, index: int, role: str) -> list[int] | None:
        """The contents of an optional constant input of integers; None where it is not given."""
        if self.input(index) is None:
            return None
        return [int(x) for x in self.constant_input(index, role).reshape(-1)]

    # -- writing -------------------------------------------------------------------------------------------

    def constant(self, content: np.ndarray | Sequence[int], dtype: ir.DataType | None = None) -> ir.Value:
        """A constant tensor; a list is one of int64. Shared with equal constants of the model."""
        array = np.asarray(content, np.int64) if isinstance(content, (list, tuple)) else np.asarray(content)
        if dtype is not None:
            array = array.astype(dtype.numpy())
        tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype)
        if self.scope.in_function:
            return self.emit("Constant", value=tensor)
        return self.scope.initializer(tensor, f"{self.node.op_type.lower()}_constant")

    def scalar(self, number: float, like: ir.Value) -> ir.Value:
        """A scalar constant of another value's element type."""
        return self.constant(np.asarray(number), self.dtype(like))

    def emit(self, op_type: str, *inputs: ir.Value | None, **attributes: AttributeValue | ir.Attr) -> ir.Value:
        """Writes a node with one output, legal at ``target``, before this one; returns its output."""
        return self.emit_many(op_type, inputs, 1, attributes)[0]

    def emit_many(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: int,
        attributes: Mapping[str, AttributeValue | ir.Attr],
        *,
        domain: str = "",
    ) -> Sequence[ir.Value]:
        """Writes a node with several outputs, legal at ``target``, before this one."""
        node = ir.Node(
            domain,
            op_type,
            inputs,
            convert_attributes(attributes),
            num_outputs=outputs,
            name=self.scope.fresh(f"{self.node.name or self.node.op_type}/{op_type}"),
        )
        stem = next((v.name for v in self.node.outputs if v.name), self.node.op_type)
        for output in node.outputs:
            output.name = self.scope.fresh(f"{stem}/{op_type}")
        self._insert(node)
        self._annotate(node)
        return node.outputs

    def _annotate(self, node: ir.Node) -> None:
        """Infers types and shapes; a type that the schema does not admit yet is that of the input it goes with."""
        try:
            infer_node(node, self.scope.imports | {self.domain: self.target}, self.scope.model.ir_version)
        except onnx.checker.ValidationError:
            schema = schema_at(canonical(node.domain), node.op_type, self.target)
            if schema is None:
                return
            types = {formal.type_str: v.type for formal, v in zip(schema.inputs, node.inputs, strict=False) if v}
            for formal, output in zip(schema.outputs, node.outputs, strict=False):
                output.type = types.get(formal.type_str)
        forget_new_symbols(node.outputs, symbols_of(node.inputs))

    def _insert(self, node: ir.Node) -> None:
        graph = self.node.graph
        assert graph is not None
        graph.insert_before(self.node, node)
        self.emitted.append(node)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value in another element type; itself where it has it already."""
        if value.dtype == dtype:
            return value
        result = self.emit("Cast", value, to=int(dtype) if self.target >= 6 else dtype.name)
        result.type, result.shape = ir.TensorType(dtype), value.shape
        return result

    def become(
        self,
        op_type: str | None = None,
        inputs: Sequence[ir.Value | None] | None = None,
        attributes: Mapping[str, AttributeValue | ir.Attr] | None = None,
        outputs: int | None = None,
        domain: str | None = None,
    ) -> ir.Node:
        """Replaces the node by one that keeps its name, its notes and its outputs' names; what is not given stays."""
        node = ir.Node(
            self.node.domain if domain is None else domain,
            op_type or self.node.op_type,
            _trim(self.inputs if inputs is None else inputs),
            convert_attributes(self.node.attributes if attributes is None else attributes),
            num_outputs=len(self.node.outputs) if outputs is None else outputs,
            name=self.node.name,
            doc_string=self.node.doc_string,
            metadata_props=dict(self.node.metadata_props),
        )
        self._insert(node)
        self.replace(*node.outputs[: len(self.node.outputs)])
        for output in node.outputs:
            if not output.name:
                output.name = self.scope.fresh(f"{node.op_type}_unused")
        return node

    def replace(self, *values: ir.Value | None) -> None:
        """Makes everything that read the node's outputs read these values instead, and drops the node.

        The new values take the names of the old ones. None stands for an output that nothing reads.
        """
        for old, new in zip(self.node.outputs, values, strict=False):
            if new is None:
                continue
            name = old.name
            if old.is_graph_output() and (new.producer() not in self.emitted or new.is_graph_output()):
                new = self.emit("Identity", new)
            if new.type is None or new.dtype is None:
                new.type = old.type
            if new.shape is None:
                new.shape = old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            if new.producer() in self.emitted:
                old.name = None
                new.name = name
                new.metadata_props.update(old.metadata_props)
                new.meta.update(old.meta)
                new.doc_string = new.doc_string or old.doc_string
        if any(self.uses_output(i) for i in range(len(self.node.outputs))):
            self.refuse("one of its outputs has no equal in that operator set, and is used")
        _remove_unread(self.node)
        self.replaced = True


def _remove_unread(node: ir.Node) -> None:
    """Takes a node that nothing reads out of its graph, and whatever only it read."""
    pending = [node]
    while pending:
        unread = pending.pop()
        if unread.graph is None or any(is_read(value) for value in unread.outputs):
            continue
        makers = [value.producer() for value in unread.inputs if value is not None]
        unread.graph.remove(unread, safe=True)
        pending.extend(maker for maker in makers if maker is not None and is_deterministic(maker))


def _trim(inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value | None]:
    kept = list(inputs)
    while kept and kept[-1] is None:
        kept.pop()
    return kept


def convert_attributes(attributes: Mapping[str, AttributeValue | ir.Attr]) -> list[ir.Attr]:
    """Attributes as ``onnx_ir`` holds them; empty lists are integers."""
    converted: list[ir.Attr] = []
    for name, value in attributes.items():
        if isinstance(value, ir.Attr):
            converted.append(value)
        elif isinstance(value, Sequence) and not isinstance(value, str) and not value:
            converted.append(ir.AttrInt64s(name, []))
        else:
            converted.append(convenience.convert_attribute(name, value))
    return converted
