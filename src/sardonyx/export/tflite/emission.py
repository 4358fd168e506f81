"""Graphs of ONNX nodes as subgraphs of a TensorFlow Lite file, node by node.

Each ONNX operator is one function, registered with :func:`emits`, that adds operators of the file. The functions call
the methods of :class:`Scope`, which have the names of the file's operators and know their limits: element types, ranks
of broadcasting, types of index inputs. A node that cannot be expressed is refused with the operator and the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Dim, symbols
from sardonyx.core.dim.polynomial import Atom
from sardonyx.errors import SardonyxError, UnsupportedError
from sardonyx.export.tflite.file_builder import (
    DTYPES,
    NAMES,
    Array,
    FileBuilder,
    Quantization,
    Size,
    SubgraphBuilder,
    Tensor,
)
from sardonyx.rewrite import facts
from sardonyx.rewrite.sizes import parsed

OPSET = 21
"""The operator set in which models are written."""

TYPES = {
    ir.DataType.FLOAT: "FLOAT32",
    ir.DataType.FLOAT16: "FLOAT32",
    ir.DataType.BFLOAT16: "FLOAT32",
    ir.DataType.INT8: "INT8",
    ir.DataType.INT16: "INT16",
    ir.DataType.INT32: "INT32",
    ir.DataType.INT64: "INT64",
    ir.DataType.UINT8: "UINT8",
    ir.DataType.UINT16: "UINT16",
    ir.DataType.UINT32: "UINT32",
    ir.DataType.UINT64: "UINT64",
    ir.DataType.INT4: "INT4",
    ir.DataType.BOOL: "BOOL",
}
"""Element types within the file; 16-bit floats are computed in float32, since builtin operators lack them."""

Emitter = Callable[["Call"], Tensor | Sequence[Tensor]]

EMITTERS: dict[str, Emitter] = {}
"""The function of each ONNX operator."""

INTEGER: dict[str, Callable[..., Tensor | None]] = {}
"""The form over codes of each ONNX operator that has one; see :mod:`.operators.quantization`."""

FORMS: list[Callable[[Call], bool]] = []
"""Functions that write a node in another form where they can, and then return True; they come first."""

Key = ir.Value | str
"""A value of the graph around that a body reads, or the name of an open size."""

_FLOAT = frozenset(("FLOAT32",))
_WIDE = frozenset(("FLOAT32", "INT32", "INT64"))
_NUMBERS = _WIDE | {"INT8", "UINT8", "INT16"}
_ANY = _NUMBERS | {"BOOL"}

ACCEPTED: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("ADD", "SUB", "MUL", "NEG", "CUMSUM", "SUM", "REDUCE_PROD", "RANGE", "FLOOR_MOD"), _WIDE),
    **dict.fromkeys(("DIV", "POW", "FLOOR_DIV", "SIGN", "ABS"), frozenset(("FLOAT32", "INT32"))),
    **dict.fromkeys(("MAXIMUM", "MINIMUM", "REDUCE_MAX", "REDUCE_MIN", "TOPK_V2"), _NUMBERS - {"INT16"}),
    **dict.fromkeys(("LESS", "GREATER", "LESS_EQUAL", "GREATER_EQUAL"), _NUMBERS - {"INT16"}),
    **dict.fromkeys(("EQUAL", "NOT_EQUAL"), _ANY - {"INT16"}),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), frozenset(("FLOAT32", "INT32", "INT8", "UINT8", "BOOL"))),
    **dict.fromkeys(("GATHER", "CONCATENATION", "STRIDED_SLICE", "TRANSPOSE", "SELECT_V2", "BROADCAST_TO"), _ANY),
    **dict.fromkeys(("REVERSE_V2",), _ANY),
    "GATHER_ND": _ANY,
    "SPLIT_V": _NUMBERS,
    "TILE": _ANY - {"INT16"},
    "PADV2": _NUMBERS,
    "MIRROR_PAD": _NUMBERS,
    "SCATTER_ND": _ANY - {"INT16"},
    "FILL": _ANY,
    "BITWISE_XOR": frozenset(("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32")),
    "RIGHT_SHIFT": frozenset(("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32")),
    "WHERE": frozenset(("BOOL",)),
    "DEPTH_TO_SPACE": frozenset(("FLOAT32", "INT8", "UINT8", "INT32", "INT64")),
    "SPACE_TO_DEPTH": frozenset(("FLOAT32", "INT8", "UINT8", "INT32", "INT64")),
    "UNIQUE": _WIDE | {"INT8", "UINT8", "INT16"},
    "REVERSE_SEQUENCE": frozenset(("FLOAT32", "UINT8", "INT16", "INT32", "INT64")),
}
"""Element types of the first input of each operator; float32 alone where not listed."""

_WIDENED = {"INT8": "INT32", "UINT8": "INT32", "INT16": "INT32", "UINT16": "INT32", "BOOL": "INT32"}
"""A wider type that holds every value, for operators without the narrow one."""

MOST_AXES = {"ADD": 6, "SUB": 5, "MUL": 6, "DIV": 5, "MAXIMUM": 5, "MINIMUM": 5, "SELECT_V2": 5}
"""Ranks up to which operators broadcast; 4 where not listed."""

LONG_SUM = 4096
"""Number of elements from which sums over several axes are computed axis by axis."""

_OPTIONS: Mapping[str, str] = {
    "ADD": "AddOptions",
    "SUB": "SubOptions",
    "MUL": "MulOptions",
    "DIV": "DivOptions",
}


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


class Scope:
    """One graph under emission.

    Args:
        emission: The conversion.
        builder: The subgraph.
        outer: The graph around a body.
    """

    def __init__(self, emission: Emission, builder: SubgraphBuilder, outer: Scope | None = None) -> None:
        self.emission = emission
        self.builder = builder
        self.outer = outer
        self.values: dict[ir.Value, Tensor] = {}
        self.captures: dict[Key, Tensor] = {}
        self.written: set[ir.Node] = set()
        self._open: dict[str, tuple[Tensor, int]] = {}
        self._count = 0
        self._casts: dict[tuple[Tensor, str], Tensor] = {}
        self._codes: dict[ir.Value, Tensor] = {}
        self._constants: dict[ir.Value, Tensor | None] = {}
        self._lazy: dict[ir.Value, ir.Node] = {}

    # Tensors

    def fresh_size(self) -> str:
        """Return the name of a size that nothing is known about."""
        self._count += 1
        return f"?tflite{self.builder.number}_{self._count}"

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

    def computed(
        self, type: str, shape: Sequence[Size], quantization: Quantization | None = None, name: str = ""
    ) -> Tensor:
        """Return a new tensor that an operator computes."""
        tensor = Tensor(type, tuple(shape), quantization=quantization, name=name)
        self.builder.index_of(tensor)
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, str):
                self._open.setdefault(size, (tensor, axis))
        return tensor

    def constant(self, array: Any, dtype: Any = None, quantization: Quantization | None = None) -> Tensor:
        """Return a constant tensor."""
        array = np.asarray(array, dtype)
        if array.dtype.name in ("float16", "bfloat16"):
            array = array.astype(np.float32)
        if array.dtype not in NAMES or array.dtype == np.float64:
            raise UnsupportedError(f"element type {array.dtype.name} has no builtin operators", where="a constant")
        return Tensor(NAMES[array.dtype], array.shape, array, quantization)

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

    # Operators

    def op(
        self,
        name: str,
        inputs: Sequence[Tensor | None],
        shape: Sequence[Size],
        type: str | None = None,
        options: tuple[str, Mapping[str, Any]] | None = None,
        quantization: Quantization | None = None,
    ) -> Tensor:
        """Add an operator with one output; the type is that of the first input by default."""
        first = next(tensor for tensor in inputs if tensor is not None)
        output = self.computed(type or first.type, shape, quantization)
        self.builder.operator(name, inputs, [output], options)
        return output

    def checked(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor in an element type that an operator accepts.

        Raises:
            UnsupportedError: No type with the same values is accepted.
        """
        accepted = ACCEPTED.get(name, _FLOAT)
        if tensor.type in accepted:
            return tensor
        wider = _WIDENED.get(tensor.type)
        if wider in accepted:
            return self.cast(tensor, wider)
        raise UnsupportedError(f"{name} does not accept {tensor.type}", where=tensor.name)

    def unary(self, name: str, x: Tensor, options: tuple[str, Mapping[str, Any]] | None = None) -> Tensor:
        """Add an elementwise operator of one input."""
        y = self.checked(name, x)
        result = self.op(name, [y], x.shape, options=options)
        return result if y is x else self.cast(result, x.type)

    def binary(self, name: str, a: Tensor, b: Tensor, *, type: str | None = None, where: bool = False) -> Tensor:
        """Add an elementwise operator of two inputs, which broadcast.

        Args:
            name: The operator.
            a: First input.
            b: Second input.
            type: Element type of the result; by default that of the inputs.
            where: False.
        """
        left, right = self.checked(name, a), self.checked(name, b)
        result = self.broadcast(name, [left, right], type or left.type)
        return result if type is not None or left is a else self.cast(result, a.type)

    def broadcast(self, name: str, inputs: Sequence[Tensor], type: str) -> Tensor:
        """Add an elementwise operator whose inputs broadcast, also beyond the ranks that the operator broadcasts."""
        shape = self.joint_shape([tensor.shape for tensor in inputs])
        options: tuple[str, Mapping[str, Any]] | None = (_OPTIONS[name], {}) if name in _OPTIONS else None
        limit = MOST_AXES.get(name, 4)
        if len(shape) <= limit or all(tensor.shape == shape for tensor in inputs):
            return self.op(name, inputs, shape, type, options)
        groups = self._groups([tensor.shape for tensor in inputs], shape)
        if len(groups) <= limit:
            merged = [self.reshape(tensor, self._merged(tensor, len(shape), groups)) for tensor in inputs]
            result = self.op(name, merged, self.joint_shape([tensor.shape for tensor in merged]), type, options)
            return self.reshape(result, shape)
        wide = [tensor if tensor.shape == shape else self.broadcast_to(tensor, shape) for tensor in inputs]
        return self.op(name, wide, shape, type, options)

    @staticmethod
    def _groups(shapes: Sequence[Sequence[Size]], shape: Sequence[Size]) -> list[list[int]]:
        """Return adjacent axes that broadcast alike."""
        rank = len(shape)
        padded = [(1,) * (rank - len(one)) + tuple(one) for one in shapes]
        groups: list[list[int]] = []
        before: tuple[bool, ...] | None = None
        for axis in range(rank):
            kind = tuple(one[axis] == shape[axis] for one in padded)
            known = all(one[axis] == shape[axis] or one[axis] == 1 for one in padded)
            if groups and kind == before and known:
                groups[-1].append(axis)
            else:
                groups.append([axis])
            before = kind if known else None
        return groups

    def _merged(self, tensor: Tensor, rank: int, groups: Sequence[Sequence[int]]) -> list[Size]:
        padded = (1,) * (rank - tensor.rank) + tensor.shape
        return [self.product([padded[axis] for axis in group]) for group in groups]

    def product(self, sizes: Sequence[Size]) -> Size:
        """Return the product of sizes, an expression if open."""
        total: Dim | int = 1
        for size in sizes:
            total = total * (size if isinstance(size, int) else parsed(size))
        return total if isinstance(total, int) else str(total)

    def joint_shape(self, shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
        """Return the sizes of the result of broadcasting."""
        rank = max(len(shape) for shape in shapes)
        result: list[Size] = []
        for axis in range(rank):
            sizes = [shape[axis - rank + len(shape)] for shape in shapes if axis - rank + len(shape) >= 0]
            others = list(dict.fromkeys(size for size in sizes if size != 1))
            numbers = [size for size in others if isinstance(size, int)]
            if numbers:
                result.append(numbers[0])
            elif len(others) > 1:
                result.append(self.fresh_size())
            else:
                result.append(others[0] if others else 1)
        return tuple(result)

    def cast(self, x: Tensor, type: str) -> Tensor:
        """Convert to another element type."""
        if x.type == type:
            return x
        if x.array is not None and x.quantization is None:
            return self.constant(x.array.astype(DTYPES[type]))
        if (x, type) not in self._casts:
            self._casts[x, type] = self.op("CAST", [x], x.shape, type)
        return self._casts[x, type]

    def copy(self, x: Tensor) -> Tensor:
        """Return another tensor with the same elements."""
        if x.quantization is not None:
            return self.op("RESHAPE", [x, self.shape_tensor(x.shape)], x.shape, quantization=x.quantization)
        return self.op("CAST", [x], x.shape, x.type)

    def reshape(self, x: Tensor, shape: Sequence[Size]) -> Tensor:
        """Change the sizes; an open size may be one that is known from other tensors."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        if x.array is not None and all(isinstance(size, int) for size in shape):
            return Tensor(x.type, shape, x.array.reshape([int(size) for size in shape]), x.quantization)
        return self.op("RESHAPE", [x, self.shape_tensor(shape, infer=True)], shape, quantization=x.quantization)

    def reshape_by(self, x: Tensor, sizes: Tensor, shape: Sequence[Size]) -> Tensor:
        """Change the sizes to those in a tensor."""
        return self.op("RESHAPE", [x, self.cast(sizes, "INT32")], shape, quantization=x.quantization)

    def shape_tensor(self, shape: Sequence[Size], *, infer: bool = False, type: str = "INT32") -> Tensor:
        """Return sizes as an integer vector.

        Args:
            shape: The sizes.
            infer: Let one open size be -1.
            type: Element type.

        Raises:
            UnsupportedError: An open size is that of no tensor.
        """
        unknown = [size for size in shape if not isinstance(size, int)]
        if not unknown or (infer and len(unknown) == 1 and 0 not in shape):
            return self.cast(self.constant([n if isinstance(n, int) else -1 for n in shape], np.int32), type)
        if infer:
            missing = [size for size in unknown if not self.knows(size)]
            if len(missing) == 1 and 0 not in shape:
                rest = [self.size(size) if size != missing[0] else self.constant([-1], np.int32) for size in shape]
                return self.cast(self.concatenation(rest, 0), type)
        return self.cast(self.concatenation([self.size(size) for size in shape], 0), type)

    def knows(self, size: Size) -> bool:
        """Return True if a size is a number, or follows from sizes of tensors."""
        if isinstance(size, int) or size in self._open:
            return True
        names = symbols(parsed(size))
        known = names and all(name in self._open for name in names)
        return bool(known) or (self.outer is not None and self.outer.knows(size))

    def size(self, size: Size) -> Tensor:
        """Return one size as an int32 vector of one element.

        Raises:
            UnsupportedError: The size does not follow from sizes of tensors.
        """
        if isinstance(size, int):
            return self.constant([size], np.int32)
        if size in self._open:
            tensor, axis = self._open[size]
            shape = self.op("SHAPE", [tensor], [tensor.rank], "INT32", ("ShapeOptions", {"out_type": 2}))
            return self.slice(shape, [axis], [axis + 1])
        expression = parsed(size)
        names = symbols(expression)
        if isinstance(expression, Dim) and names and names != {size} and all(name in self._open for name in names):
            return self._sum(expression)
        if self.outer is not None and self.outer.knows(size):
            return self.captured(size)
        raise UnsupportedError(f"size {size} is not known before the operator runs")

    def _sum(self, size: Dim) -> Tensor:
        total: Tensor | None = None
        for _, atoms, factor in size.terms:
            product = self.constant([factor], np.int32)
            for atom in atoms:
                part = self._atom(atom)
                product = part if product.array is not None and factor == 1 else self.binary("MUL", product, part)
                factor = 0
            total = product if total is None else self.binary("ADD", total, product)
        assert total is not None
        return total

    def _atom(self, atom: Atom) -> Tensor:
        if atom.kind == "symbol":
            return self.size(atom.name)
        args = [self.size(arg if isinstance(arg, int) else str(arg)) for arg in atom.args]
        if atom.kind == "//":
            return self.binary("FLOOR_DIV", args[0], args[1])
        result = args[0]
        for arg in args[1:]:
            if atom.kind == "broadcast":
                is_one = self.binary("EQUAL", result, self.constant([1], np.int32), type="BOOL")
                result = self.broadcast("SELECT_V2", [is_one, arg, result], "INT32")
            else:
                result = self.binary(f"{atom.kind.upper()}IMUM", result, arg)
        return result

    def slice(self, x: Tensor, begins: Sequence[int], ends: Sequence[int]) -> Tensor:
        """Return a static part of a tensor, over all axes."""
        shape = [end - begin for begin, end in zip(begins, ends, strict=True)]
        return self.op(
            "STRIDED_SLICE",
            [self.checked("STRIDED_SLICE", x), *(self.constant(v, np.int32) for v in (begins, ends, [1] * x.rank))],
            shape,
            options=("StridedSliceOptions", {}),
            quantization=x.quantization,
        )

    def slice_open(self, x: Tensor, begins: Sequence[int], ends: Sequence[int | None]) -> Tensor:
        """Return a part of a tensor; an end that is None is that of the axis."""
        shape: list[Size] = [n if end is None else end - b for n, b, end in zip(x.shape, begins, ends, strict=True)]
        mask = sum(1 << axis for axis, end in enumerate(ends) if end is None)
        bounds = [self.constant(v, np.int32) for v in (begins, [end or 0 for end in ends], [1] * x.rank)]
        y = self.checked("STRIDED_SLICE", x)
        return self.op("STRIDED_SLICE", [y, *bounds], shape, options=("StridedSliceOptions", {"end_mask": mask}))

    def concatenation(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Join tensors along an axis."""
        if len(parts) == 1:
            return parts[0]
        arrays = [part.array for part in parts]
        if all(array is not None for array in arrays) and not any(part.quantization for part in parts):
            return self.constant(np.concatenate([array for array in arrays if array is not None], axis))
        sizes = [part.shape[axis] for part in parts]
        total: Size = sum(int(n) for n in sizes) if all(isinstance(n, int) for n in sizes) else self.fresh_size()
        shape = list(parts[0].shape)
        for other in parts[1:]:
            shape = [a if isinstance(a, int) else b for a, b in zip(shape, other.shape, strict=True)]
        shape[axis] = total
        checked = [self.checked("CONCATENATION", part) for part in parts]
        return self.op(
            "CONCATENATION",
            checked,
            shape,
            options=("ConcatenationOptions", {"axis": axis}),
            quantization=parts[0].quantization,
        )

    def broadcast_to(self, x: Tensor, shape: Sequence[Size], sizes: Tensor | None = None) -> Tensor:
        """Repeat along axes of size 1."""
        x = self.checked("BROADCAST_TO", x)
        return self.op("BROADCAST_TO", [x, sizes or self.shape_tensor(shape)], shape, quantization=x.quantization)

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """Permute axes.

        Raises:
            UnsupportedError: More than 6 axes.
        """
        order = [int(axis) for axis in order]
        if order == list(range(x.rank)):
            return x
        if x.array is not None:
            array = np.ascontiguousarray(x.array.transpose(order))
            q = x.quantization
            moved = None if q is None else Quantization(q.scale, q.zero_point, order.index(q.axis) if x.rank else 0)
            return Tensor(x.type, array.shape, array, moved)
        shape = [x.shape[axis] for axis in order]
        y = self.checked("TRANSPOSE", x)
        wide, narrow = _merged_axes(order)
        if len(narrow) > 6:
            raise UnsupportedError(f"TRANSPOSE of {x.rank} axes, expected at most 6", where=x.name)
        if len(narrow) < x.rank and x.rank > 5:
            y = self.reshape(y, [self.product([x.shape[axis] for axis in group]) for group in wide])
            moved_shape = [y.shape[axis] for axis in narrow]
            result = self.op(
                "TRANSPOSE", [y, self.constant(narrow, np.int32)], moved_shape, quantization=x.quantization
            )
            return self.reshape(result, shape)
        return self.op("TRANSPOSE", [y, self.constant(order, np.int32)], shape, quantization=x.quantization)

    def reduce(self, name: str, x: Tensor, axes: Sequence[int], *, keepdims: bool = True) -> Tensor:
        """Reduce along axes."""
        axes = sorted(axis % x.rank for axis in axes) if x.rank else []
        if keepdims:
            shape: list[Size] = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
        else:
            shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
        if not axes:
            return x
        if name in ("SUM", "MEAN") and len(axes) > 1 and self._is_long(x, axes):
            # Kernels add numbers one after another in float32: axis by axis, the error stays small.
            for axis in reversed(axes):
                x = self.reduce(name, x, [axis], keepdims=keepdims)
            return x
        y = self.checked(name, x)
        options = ("ReducerOptions", {"keep_dims": keepdims})
        result = self.op(name, [y, self.constant(axes, np.int32)], shape, options=options)
        return result if y is x else self.cast(result, x.type)

    @staticmethod
    def _is_long(x: Tensor, axes: Sequence[int]) -> bool:
        sizes = [x.shape[axis] for axis in axes]
        numbers = [size for size in sizes if isinstance(size, int)]
        return len(numbers) < len(sizes) or math.prod(numbers) > LONG_SUM

    def like(self, number: Any, x: Tensor) -> Tensor:
        """Return a scalar constant of the type of `x`."""
        return self.constant(np.asarray(number).astype(DTYPES[x.type]))

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


def _merged_axes(order: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Return groups of axes that stay adjacent under a permutation, and the permutation of the groups."""
    runs: list[list[int]] = []
    for axis in order:
        if runs and axis == runs[-1][-1] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    groups = sorted(runs)
    return groups, [groups.index(run) for run in runs]


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
