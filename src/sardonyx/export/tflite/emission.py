"""Graphs of ONNX nodes as subgraphs of a TensorFlow Lite file, node by node.

Each ONNX operator is one function, registered with :func:`emits`, that adds operators of the file by the methods of
:class:`Scope`. A node that cannot be expressed is refused with the operator and the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import SardonyxError, UnsupportedError
from sardonyx.export.tflite.file_builder import (
    NAMES,
    Array,
    FileBuilder,
    Quantization,
    Size,
    SubgraphBuilder,
    Tensor,
)
from sardonyx.export.tflite.operator_builder import OperatorBuilder
from sardonyx.export.tflite.operator_limits import TYPES
from sardonyx.rewrite.analysis import facts

OPSET = 21
"""The operator set in which models are written."""

Emitter = Callable[["Call"], Tensor | Sequence[Tensor]]

EMITTERS: dict[str, Emitter] = {}
"""The function of each ONNX operator."""

INTEGER: dict[str, Callable[..., Tensor | None]] = {}
"""The form over codes of each ONNX operator that has one; see :mod:`.operators.quantization`."""

FORMS: list[Callable[[Call], bool]] = []
"""Functions that write a node in another form where they can, and then return True; they come first."""

Key = ir.Value | str
"""A value of the graph around that a body reads, or the name of an open size."""


def emits(*names: str) -> Callable[[Emitter], Emitter]:
    """Register a function as the writer of ONNX operators."""

    def register(function: Emitter) -> Emitter:
        for name in names:
            EMITTERS[name] = function
        return function

    return register


@dataclass(frozen=True)
class Refused:
    """A node that the file cannot express.

    Attributes:
        operator: Operator with its domain.
        node: Label of the node.
        rule: The rule of the format that the node breaks.
    """

    operator: str
    node: str
    rule: str


@dataclass
class Emission:
    """One conversion.

    Attributes:
        file: The file.
        calls: Nodes between channels-last transpositions, by the name of their function.
        refused: Nodes that cannot be expressed.
        lenient: True to go on after a refusal, to list all of them.
        notes: Remarks for the report.
    """

    file: FileBuilder = field(default_factory=FileBuilder)
    calls: dict[str, ir.Node] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    lenient: bool = False
    notes: dict[str, None] = field(default_factory=dict)


class Scope(OperatorBuilder):
    """One graph under emission.

    Args:
        emission: The conversion.
        builder: The subgraph.
        outer: The graph around a body.
    """

    def __init__(self, emission: Emission, builder: SubgraphBuilder, outer: Scope | None = None) -> None:
        super().__init__(builder)
        self.emission = emission
        self.outer = outer
        self.values: dict[ir.Value, Tensor] = {}
        self.captures: dict[Key, Tensor] = {}
        self.written: set[ir.Node] = set()
        self._codes: dict[ir.Value, Tensor] = {}
        self._constants: dict[ir.Value, Tensor | None] = {}
        self._lazy: dict[ir.Value, ir.Node] = {}

    def sizes(self, value: ir.Value) -> tuple[Size, ...]:
        """Return the sizes of an ONNX value.

        Raises:
            UnsupportedError: The rank is not known.
        """
        if value.shape is None:
            raise UnsupportedError("the rank is not known before the model runs", where=str(value.name))
        return tuple(size if isinstance(size, int) else size.value or self.fresh_size() for size in value.shape)

    def type(self, value: ir.Value) -> str:
        """Return the element type of an ONNX value within the file.

        Raises:
            UnsupportedError: The format has no such type.
        """
        kind = facts.dtype(value)
        if kind is None or kind not in TYPES:
            name = "of unknown type" if kind is None else kind.name.lower()
            raise UnsupportedError(f"element type {name} has no builtin operators", where=str(value.name))
        return TYPES[kind]

    def tensor(self, value: ir.Value) -> Tensor:
        """Return the tensor of an ONNX value; values of the graph around become inputs of a body."""
        if value in self.values:
            return self.values[value]
        array = facts.constant(value)
        if array is not None:
            self.values[value] = self.constant(array)
        elif value in self._codes:
            self.values[value] = self._as_declared(value, self._codes[value])
        elif value in self._lazy:
            node = self._lazy.pop(value)
            result = EMITTERS["DequantizeLinear"](Call(self, node))
            assert isinstance(result, Tensor)
            self.values[value] = result
        elif self.outer is not None:
            self.values[value] = self.captured(value)
        else:
            raise UnsupportedError("the value is not computed by a node of the graph", where=str(value.name))
        return self.values[value]

    def lookup(self, key: Key) -> Tensor:
        """Return the tensor of a value, or an open size as a vector of one element."""
        return self.size(key) if isinstance(key, str) else self.tensor(key)

    def captured(self, key: Key) -> Tensor:
        """Return the input of a body that holds a value of the graph around."""
        assert self.outer is not None
        if key in self.captures:
            return self.captures[key]
        around = self.outer.lookup(key)
        if around.array is not None and not isinstance(key, str):
            return Tensor(around.type, around.shape, around.array, around.quantization)
        name = key if isinstance(key, str) else str(key.name)
        self.captures[key] = self.computed(around.type, around.shape, around.quantization, name)
        return self.captures[key]

    def is_known_outside(self, size: str) -> bool:
        """Return True if an open size follows from sizes of the graph around a body."""
        return self.outer is not None and self.outer.knows(size)

    def captured_size(self, size: str) -> Tensor:
        """Return the input of a body that holds an open size of the graph around, as a vector of one element."""
        return self.captured(size)

    # Codes

    def scales(self, node: ir.Node) -> Quantization | None:
        """Return the constant scales of QuantizeLinear or DequantizeLinear; None if computed, or of blocks."""
        scale = facts.constant(node.inputs[1])
        zero = facts.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
        has_zero = len(node.inputs) > 2 and node.inputs[2] is not None
        if scale is None or (has_zero and zero is None) or facts.attribute(node, "block_size", OPSET, 0):
            return None
        if scale.ndim > 1:
            return None
        flat = np.asarray(scale, np.float32).reshape(-1)
        points = np.zeros(len(flat), np.int64) if zero is None else zero.astype(np.int64).reshape(-1)
        rank = facts.rank(node.inputs[0]) or 1
        axis = int(facts.attribute(node, "axis", OPSET, 1)) % max(rank, 1) if len(flat) > 1 else 0
        return Quantization(flat, points, axis)

    def constant_codes(self, value: ir.Value) -> Tensor | None:
        """Return the codes of dequantized constants, int8 where uint8; None for any other value."""
        if value not in self._constants:
            self._constants[value] = self._find_constant_codes(value)
        codes = self._constants[value]
        return None if codes is None else Tensor(codes.type, codes.shape, codes.array, codes.quantization)

    def _find_constant_codes(self, value: ir.Value) -> Tensor | None:
        node = value.producer()
        if node is None or not facts.is_op(node, "DequantizeLinear"):
            return None
        array, q = facts.constant(node.inputs[0]), self.scales(node)
        if array is None or q is None or array.dtype.name not in ("int8", "uint8", "int4", "int32", "int16"):
            return None
        if array.dtype == np.uint8:
            array = (array.astype(np.int16) - 128).astype(np.int8)
            q = Quantization(q.scale, q.zero_point - 128, q.axis)
        elif array.dtype.name == "int4":
            array = array.astype(np.int8)
        return Tensor(NAMES[array.dtype], array.shape, array, q)

    @staticmethod
    def decoded(codes: Tensor) -> Array:
        """Return the numbers of constant codes."""
        q, array = codes.quantization, codes.array
        assert q is not None and array is not None
        wide = [1] * array.ndim
        if len(q.scale) > 1:
            wide[q.axis] = -1
        scale, zero = (part.reshape(wide) if array.ndim else part.reshape(()) for part in (q.scale, q.zero_point))
        return ((array.astype(np.float64) - zero) * scale).astype(np.float32)

    def dequantized(self, codes: Tensor) -> Tensor:
        """Return real numbers of codes; constants with scales along an axis are stored as numbers."""
        q = codes.quantization
        assert q is not None
        if codes.array is not None and (len(q.scale) > 1 or codes.type not in ("INT8", "INT16")):
            return self.constant(self.decoded(codes))
        return self.op("DEQUANTIZE", [codes], codes.shape, "FLOAT32")

    def define_codes(self, value: ir.Value, codes: Tensor) -> None:
        """Make int8 codes the value of a quantized tensor, whose declared type may be uint8."""
        self._codes[value] = codes

    def _as_declared(self, value: ir.Value, codes: Tensor) -> Tensor:
        if self.type(value) == codes.type or codes.quantization is None:
            return codes
        q = codes.quantization
        moved = Quantization(q.scale, q.zero_point + 128, q.axis)
        return self.op("QUANTIZE", [codes], codes.shape, "UINT8", quantization=moved)

    def codes_with(self, value: ir.Value, q: Quantization) -> Tensor | None:
        """Return a computed tensor of codes with these scales, int8 where uint8; None if it has others."""
        if len(q.scale) != 1:
            return None
        if value not in self._codes:
            tensor = self.tensor(value)
            if tensor.array is not None or tensor.type not in ("INT8", "UINT8", "INT16"):
                return None
            if tensor.quantization is None:
                tensor.quantization = q
                self.builder.describe(tensor)
            if tensor.type == "UINT8":
                shifted = Quantization(tensor.quantization.scale, tensor.quantization.zero_point - 128)
                tensor = self.op("QUANTIZE", [tensor], tensor.shape, "INT8", quantization=shifted)
            self._codes[value] = tensor
        codes = self._codes[value]
        shift = 128 if facts.dtype(value) == ir.DataType.UINT8 else 0
        return codes if Quantization(q.scale, q.zero_point - shift).equals(codes.quantization) else None

    def real_codes(self, value: ir.Value) -> Tensor | None:
        """Return the int8 codes of which a value is the dequantized one, axes permuted; None for any other value."""
        node = value.producer()
        if node is None:
            return None
        if facts.is_op(node, "Transpose") and node.inputs[0] is not None:
            codes = self.real_codes(node.inputs[0])
            order = facts.attribute(node, "perm", OPSET) or list(reversed(range(facts.rank(value) or 0)))
            return None if codes is None else self.transpose(codes, order)
        if not facts.is_op(node, "DequantizeLinear") or node.inputs[0] is None or facts.is_constant(node.inputs[0]):
            return None
        q = self.scales(node)
        codes = None if q is None else self.codes_with(node.inputs[0], q)
        return codes if codes is not None and codes.type == "INT8" else None

    # Nodes

    def emit(self, nodes: Sequence[ir.Node]) -> None:
        """Add the operators of nodes, in order."""
        for node in nodes:
            if node in self.written or facts.is_op(node, "Constant"):
                continue
            if facts.is_op(node, "DequantizeLinear"):
                self._lazy[node.outputs[0]] = node
                continue
            try:
                Call(self, node).emit()
            except SardonyxError as error:
                original = self.emission.calls.get(node.op_type, node)
                label = node.name or next((str(v.name) for v in node.outputs), "")
                self.emission.refused.append(Refused(_qualified(original), label, error.problem))
                if not self.emission.lenient:
                    raise UnsupportedError(
                        f"{_qualified(original)}: {error.problem}", where=label, remedy="See `check --target tflite`."
                    ) from error
                self._assume(node)

    def _assume(self, node: ir.Node) -> None:
        """Define the outputs of a refused node, so that the nodes after it are judged too."""
        for output in node.outputs:
            kind = TYPES.get(facts.dtype(output) or ir.DataType.FLOAT, "FLOAT32")
            shape = tuple(output.shape or ())
            self.values[output] = self.computed(kind, [n if isinstance(n, int) else n.value or "?" for n in shape])


def _qualified(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain not in facts.STANDARD else node.op_type


class Call:
    """One node under emission.

    Attributes:
        scope: The graph.
        node: The node; for a channels-last call, the original node with the call's values.
        is_last: True if images have their channels last.
    """

    def __init__(self, scope: Scope, node: ir.Node) -> None:
        self.scope = scope
        self.call = node
        self.node = scope.emission.calls.get(node.op_type, node)
        self.is_last = self.node is not node
        self.codes: dict[int, Tensor] = {}

    def emit(self) -> None:
        """Add the operators of the node, and define its outputs."""
        if any(form(self) for form in FORMS):
            return
        emitter = EMITTERS.get(self.node.op_type) if self.node.domain in facts.STANDARD else None
        if emitter is None:
            raise self.refuse("no builtin operator, and no decomposition")
        results = emitter(self)
        for value, tensor in zip(
            self.call.outputs, [results] if isinstance(results, Tensor) else results, strict=False
        ):
            self.scope.values[value] = tensor

    def refuse(self, rule: str) -> UnsupportedError:
        """Return the error of a node that the format cannot express."""
        return UnsupportedError(rule, where=self.node.name or "")

    def has(self, number: int) -> bool:
        """Return True if input `number` is present."""
        return number < len(self.call.inputs) and self.call.inputs[number] is not None

    def value(self, number: int) -> ir.Value:
        """Return the ONNX value of an input.

        Raises:
            UnsupportedError: The input is absent.
        """
        value = self.call.inputs[number] if number < len(self.call.inputs) else None
        if value is None:
            raise self.refuse(f"input {number} is absent")
        return value

    def input(self, number: int = 0) -> Tensor:
        """Return an input; codes where the node is written over codes."""
        return self.codes[number] if number in self.codes else self.scope.tensor(self.value(number))

    def optional(self, number: int) -> Tensor | None:
        """Return an input, None if absent."""
        return self.input(number) if self.has(number) else None

    def inputs(self) -> list[Tensor]:
        """Return all inputs."""
        return [self.input(i) for i in range(len(self.call.inputs))]

    def array(self, number: int) -> Array | None:
        """Return the elements of a constant input."""
        return self.input(number).array if self.has(number) else None

    def integers(self, number: int, subject: str) -> list[int]:
        """Return a constant integer input.

        Raises:
            UnsupportedError: The input is computed.
        """
        array = self.array(number)
        if array is None:
            raise self.refuse(f"{subject} is computed, expected a constant")
        return [int(n) for n in array.reshape(-1)]

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or its default of the standard."""
        return facts.attribute(self.node, name, OPSET, default)

    def axis(self, default: int = 0, rank: int | None = None) -> int:
        """Return the attribute ``axis`` from 0."""
        rank = self.input().rank if rank is None else rank
        return int(self.attribute("axis", default)) % max(rank, 1)

    def shape(self, number: int = 0) -> tuple[Size, ...]:
        """Return the sizes of an output."""
        return self.scope.sizes(self.call.outputs[number])

    def type(self, number: int = 0) -> str:
        """Return the element type of an output."""
        return self.scope.type(self.call.outputs[number])
