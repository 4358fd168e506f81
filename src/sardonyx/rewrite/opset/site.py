"""One node at one version boundary: accessors for adapters, and emission of the replacement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir import convenience

from sardonyx.errors import OpsetConversionError
from sardonyx.model.tensors import tensor_from
from sardonyx.rewrite.analysis.inference import infer_node
from sardonyx.rewrite.opset.constants import constant_tensor, is_deterministic
from sardonyx.rewrite.opset.schemas import canonical, schema_at
from sardonyx.rewrite.opset.scope import Scope, forget_new_symbols, is_read, name_of, symbols_of

AttributeValue = int | float | str | Sequence[int] | Sequence[float] | Sequence[str] | ir.TensorProtocol | ir.Graph

_ARRAY_LIMIT = 1 << 24

MOST_ELEMENTS = 1 << 26
"""Most elements of a constant that an adapter computes from sizes."""


class Refusal(OpsetConversionError):
    """Refusal of a node by an adapter; the driver may find another way."""


class Site:
    """A node to be rewritten, with source and target operator sets.

    Attributes:
        node: The current node.
        scope: The model around the node.
        source: Operator set in which the node is legal.
        target: Operator set in which its replacement has to be legal.
        emitted: The nodes emitted so far.
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
        """Refuse to convert this node.

        Raises:
            OpsetConversionError: Always; names the node and the operator set.
        """
        raise Refusal(
            f"cannot be converted from opset {self.source} to {self.target}: {problem}",
            where=name_of(self.node),
            remedy=remedy,
        )

    def input(self, index: int) -> ir.Value | None:
        """Return an optional input; None if absent."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def required(self, index: int) -> ir.Value:
        """Return a required input."""
        value = self.input(index)
        if value is None:
            self.refuse(f"its input {index} is missing")
        return value

    @property
    def inputs(self) -> list[ir.Value | None]:
        """All inputs."""
        return list(self.node.inputs)

    def uses_output(self, index: int) -> bool:
        """Return True if an output is read."""
        return index < len(self.node.outputs) and is_read(self.node.outputs[index])

    def has(self, name: str) -> bool:
        """Return True if the node has an attribute."""
        return name in self.node.attributes

    def _attribute(self, name: str, kind: ir.AttributeType) -> ir.Attr | None:
        attribute = self.node.attributes.get(name)
        if attribute is not None and attribute.is_ref():
            self.refuse(f"its attribute {name!r} is a parameter of the function")
        if attribute is not None and attribute.type != kind:
            self.refuse(f"expected the attribute {name!r} to be of type {kind.name}, got {attribute.type.name}")
        return attribute

    def integer(self, name: str, default: int = 0) -> int:
        """Return an INT attribute, or its default."""
        attribute = self._attribute(name, ir.AttributeType.INT)
        return default if attribute is None else attribute.as_int()

    def integers(self, name: str) -> list[int] | None:
        """Return an INTS attribute; None if absent."""
        attribute = self._attribute(name, ir.AttributeType.INTS)
        return None if attribute is None else list(attribute.as_ints())

    def real(self, name: str, default: float = 0.0) -> float:
        """Return a FLOAT attribute, or its default."""
        attribute = self._attribute(name, ir.AttributeType.FLOAT)
        return default if attribute is None else attribute.as_float()

    def reals(self, name: str) -> list[float] | None:
        """Return a FLOATS attribute; None if absent."""
        attribute = self._attribute(name, ir.AttributeType.FLOATS)
        return None if attribute is None else list(attribute.as_floats())

    def text(self, name: str, default: str = "") -> str:
        """Return a STRING attribute, or its default."""
        attribute = self._attribute(name, ir.AttributeType.STRING)
        return default if attribute is None else attribute.as_string()

    def texts(self, name: str) -> list[str] | None:
        """Return a STRINGS attribute; None if absent."""
        attribute = self._attribute(name, ir.AttributeType.STRINGS)
        return None if attribute is None else list(attribute.as_strings())

    def attributes(self, *, drop: Sequence[str] = (), **change: AttributeValue) -> dict[str, AttributeValue | ir.Attr]:
        """Return the node's attributes without ``drop``, updated by ``change``."""
        attributes: dict[str, AttributeValue | ir.Attr] = {
            k: v for k, v in self.node.attributes.items() if k not in drop
        }
        attributes.update(change)
        return attributes

    def dtype(self, value: ir.Value) -> ir.DataType:
        """Return a tensor's element type; refuse if unknown."""
        if value.dtype is None or value.dtype == ir.DataType.UNDEFINED:
            self.refuse(f"the element type of {value.name!r} is not known")
        return value.dtype

    def rank(self, value: ir.Value) -> int:
        """Return a tensor's rank; refuse if unknown."""
        if value.shape is None:
            self.refuse(
                f"the rank of {value.name!r} is not known", "State the shapes of the graph's inputs (`set-shape`)."
            )
        return len(value.shape)

    def axis(self, name: str, default: int, rank: int) -> int:
        """Return an axis attribute counted from the front; refuse if out of range."""
        axis = self.integer(name, default)
        if not -rank <= axis < rank:
            self.refuse(f"`{name}` is {axis}, out of range for rank {rank}")
        return axis + rank if axis < 0 else axis

    def static_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return a tensor's shape if every size is a number."""
        if value.shape is None or not all(isinstance(dim, int) for dim in value.shape):
            return None
        return tuple(int(dim) for dim in value.shape if isinstance(dim, int))

    def sizes(self, value: ir.Value) -> tuple[int, ...]:
        """Return a tensor's shape; refuse if a size is not a number."""
        shape = self.static_shape(value)
        if shape is None:
            self.refuse(
                f"the shape of {value.name!r} is not static",
                "Fix the shapes of the graph's inputs (`set-shape`).",
            )
        return shape

    def size(self, value: ir.Value, axis: int) -> int:
        """Return one size of a tensor; refuse if it is not a number."""
        self.rank(value)
        assert value.shape is not None
        dim = value.shape[axis]
        if not isinstance(dim, int):
            self.refuse(
                f"size {axis} of {value.name!r} is not static",
                "Fix the shapes of the graph's inputs (`set-shape`).",
            )
        return dim

    def known(self, value: ir.Value | None) -> np.ndarray | None:
        """Return the contents of a constant tensor; None if the value is not constant."""
        if value is None:
            return None
        tensor = constant_tensor(value, self.scope.model.ir_version)
        if tensor is None:
            return self.scope.fold(value, self.domain, self.target)
        if tensor.size > _ARRAY_LIMIT:
            return None
        try:
            return np.asarray(tensor.numpy())
        except (ValueError, TypeError) as error:
            self.refuse(f"the constant {value.name!r} cannot be read: {error}")

    def constant_input(self, index: int, role: str) -> np.ndarray:
        """Return the contents of a constant input; refuse values computed at run time."""
        content = self.known(self.input(index))
        if content is None:
            name = self.required(index).name
            self.refuse(
                f"expected a constant input {index} ({role}), got {name!r}, computed at run time",
                "Fold constants first (`optimize`), or fix the shapes that determine the input.",
            )
        return content

    def constant_integers(self, index: int, role: str) -> list[int] | None:
        """Return an optional constant input of integers, of any type of numbers; None if absent."""
        if self.input(index) is None:
            return None
        content = self.constant_input(index, role).reshape(-1)
        if content.dtype.kind not in "biu":
            content = content.astype(np.float64)
            unfit = content[~(np.abs(content) < 2.0**63)]
            if unfit.size:
                self.refuse(f"expected integers in the constant input {index} ({role}), got {unfit[0]}")
        return [int(x) for x in content]

    def constant_axis(self, index: int, rank: int) -> int:
        """Return the first element of a constant input, as the non-negative number of an axis."""
        numbers = self.constant_integers(index, "axis")
        if not numbers:
            self.refuse(f"expected an axis as the constant input {index}, got no element")
        if not -rank <= numbers[0] < rank:
            self.refuse(f"axis {numbers[0]} is out of range for an operand of rank {rank}")
        return numbers[0] % rank

    def require_room(self, *sizes: int) -> None:
        """Refuse a constant of more elements than a conversion may compute: a file may declare any sizes."""
        if math.prod(sizes) > MOST_ELEMENTS:
            self.refuse(f"it needs a constant of {math.prod(sizes)} elements, expected at most {MOST_ELEMENTS}")

    # -- writing -------------------------------------------------------------------------------------------

    def constant(self, content: np.ndarray | Sequence[int], dtype: ir.DataType | None = None) -> ir.Value:
        """Return a constant tensor (int64 for a list), shared with equal constants of the model."""
        array = np.asarray(content, np.int64) if isinstance(content, (list, tuple)) else np.asarray(content)
        if dtype is not None:
            array = array.astype(dtype.numpy())
        tensor = tensor_from(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype)
        if self.scope.in_function:
            return self.emit("Constant", value=tensor)
        return self.scope.initializer(tensor, f"{self.node.op_type.lower()}_constant")

    def scalar(self, number: float, like: ir.Value) -> ir.Value:
        """Return a scalar constant of another value's element type."""
        return self.constant(np.asarray(number), self.dtype(like))

    def emit(self, op_type: str, *inputs: ir.Value | None, **attributes: AttributeValue | ir.Attr) -> ir.Value:
        """Emit a node with one output, legal at ``target``, before this one; return its output."""
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
        """Emit a node with several outputs, legal at ``target``, before this one; return its outputs."""
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
        """Infer types and shapes; an output type the schema does not admit yet is copied from an input."""
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
        """Return the value cast to another element type, unchanged if equal."""
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
        """Replace the node by one of the same name, metadata and output names; None leaves a part unchanged."""
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
        """Replace the node's outputs by these values in all readers, and drop the node.

        The new values get the old names. None stands for an unread output.
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
            self.refuse("a used output has no equivalent in the target opset")
        _remove_unread(self.node)
        self.replaced = True


def _remove_unread(node: ir.Node) -> None:
    """Remove an unread node, and producers read by this node alone."""
    pending = [node]
    while pending:
        unread = pending.pop()
        if unread.graph is None or any(is_read(value) for value in unread.outputs):
            continue
        producers = [value.producer() for value in unread.inputs if value is not None]
        unread.graph.remove(unread, safe=True)
        pending.extend(producer for producer in producers if producer is not None and is_deterministic(producer))


def _trim(inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value | None]:
    trimmed = list(inputs)
    while trimmed and trimmed[-1] is None:
        trimmed.pop()
    return trimmed


def convert_attributes(attributes: Mapping[str, AttributeValue | ir.Attr]) -> list[ir.Attr]:
    """Convert attributes to ``onnx_ir``; an empty list becomes INTS."""
    converted: list[ir.Attr] = []
    for name, value in attributes.items():
        if isinstance(value, ir.Attr):
            converted.append(value)
        elif isinstance(value, Sequence) and not isinstance(value, str) and not value:
            converted.append(ir.AttrInt64s(name, []))
        else:
            converted.append(convenience.convert_attribute(name, value))
    return converted
