"""Writing of ONNX graphs: nodes in order, constants once, sizes as tensors on demand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Dim, Size, linear_symbol
from sardonyx.core.dim.polynomial import Atom
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import DEFINED
from sardonyx.core.ir.types import DType, OptionalType, SequenceType, TensorType, Type
from sardonyx.errors import UnsupportedError

LEAST_OPSET = 18
"""The imported version unless a node or an element type needs a later one."""

_SINCE: dict[DType, int] = {
    **dict.fromkeys(t.FLOAT8, 19),
    **dict.fromkeys((DType.INT4, DType.UINT4), 21),
    DType.FLOAT4E2M1: 23,
    DType.FLOAT8E8M0: 24,
    **dict.fromkeys((DType.INT2, DType.UINT2), 25),
    **dict.fromkeys((DType.FLOAT6E2M3, DType.FLOAT6E3M2), 28),
}
"""Versions that introduced an element type for ``Cast`` and similar operators."""

_IR_VERSION = {19: 9, 21: 10, 23: 11, 24: 12, 25: 13, 28: 14}
"""The version of the file format that an operator set version needs."""


class Writer:
    """The main graph: constants, names, and the required version.

    Attributes:
        initializers: The constants, by content.
        opset: The version of ``ai.onnx`` required so far.
        domains: Versions of other domains.
    """

    def __init__(self) -> None:
        self.initializers: dict[Any, ir.Value] = {}
        self.opset = LEAST_OPSET
        self.domains: dict[str, int] = {}
        self._names: set[str] = set()

    def name(self, base: str) -> str:
        """Return a unique name derived from ``base``."""
        unique, count = base, 1
        while unique in self._names:
            count += 1
            unique = f"{base}_{count}"
        self._names.add(unique)
        return unique

    def needs(self, opset: int) -> None:
        """Require at least this version of ``ai.onnx``."""
        self.opset = max(self.opset, opset)

    @property
    def ir_version(self) -> int:
        """The file format version for the operator set version."""
        return max(8, *(version for since, version in _IR_VERSION.items() if since <= self.opset), 8)

    def type(self, type: Type) -> ir.TypeProtocol:
        """Return a type as an ONNX type.

        Raises:
            UnsupportedError: ONNX graphs have no such values: a map; complex numbers, without ONNX operators.
        """
        match type:
            case TensorType(dtype, _):
                if t.kind(dtype) == "complex":
                    raise UnsupportedError(
                        "no ONNX node computes with complex numbers.", remedy="Give and take pairs of real numbers."
                    )
                self.needs(_SINCE.get(dtype, LEAST_OPSET))
                return ir.TensorType(dtype)
            case SequenceType(element):
                return ir.SequenceType(self.type(element))
            case OptionalType(element):
                return ir.OptionalType(self.type(element))
        raise UnsupportedError(f"no ONNX graph holds values of type {type}.")


def shape_of(type: Type) -> ir.Shape | None:
    """Return the sizes as an ONNX shape; sizes unknown until run time are unnamed."""
    if not isinstance(type, TensorType) or type.shape is None:
        return shape_of(type.element) if isinstance(type, (SequenceType, OptionalType)) else None
    return ir.Shape([size if isinstance(size, int) else _parameter(size) for size in type.shape])


def _parameter(size: Dim) -> str | None:
    return None if any(symbol.startswith(DEFINED) for symbol in size.symbols()) else str(size)


class GraphWriter:
    """One graph: the main one, or the body of a node.

    Args:
        writer: The model's writer.
        outer: The graph around a body.
    """

    def __init__(self, writer: Writer, outer: GraphWriter | None = None) -> None:
        self.writer = writer
        self.nodes: list[ir.Node] = []
        self._outer = outer
        self._sizes: dict[Size, ir.Value] = {}
        self._symbols: dict[str, Callable[[], ir.Value]] = {}

    def node(
        self,
        op: str,
        *inputs: ir.Value | None,
        outputs: int = 1,
        domain: str = "",
        since: int = LEAST_OPSET,
        **attributes: Any,
    ) -> Any:
        """Write a node; return its output, or a list of several.

        Args:
            op: The operator.
            *inputs: Its inputs.
            outputs: Number of outputs.
            domain: Its domain.
            since: The version of ``ai.onnx`` with this operator.
            **attributes: Attributes; None for absent ones.
        """
        if not domain:
            self.writer.needs(since)
        present = {
            name: ir.AttrTypeProto(name, value) if isinstance(value, ir.TypeAndShape) else value
            for name, value in attributes.items()
            if value is not None
        }
        names = [self.writer.name(f"{op.lower()}") for _ in range(outputs)]
        values = [ir.Value(name=name) for name in names]
        self.nodes.append(ir.node(op, inputs, present, domain=domain, outputs=values, name=self.writer.name(op)))
        return values[0] if outputs == 1 else values

    def constant(self, array: np.ndarray, dtype: DType | None = None) -> ir.Value:
        """Return a constant of the model."""
        kind = t.dtype_of(array) if dtype is None else dtype
        body = repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes()
        key = (kind, array.shape, hashlib.sha256(body).digest())
        initializer = self.writer.initializers.get(key)
        if initializer is None:
            name = self.writer.name("constant")
            initializer = ir.Value(
                name=name, type=self.writer.type(TensorType(kind, array.shape)), shape=ir.Shape(array.shape)
            )
            initializer.const_value = _tensor(array, kind, name)
            self.writer.initializers[key] = initializer
        return initializer

    def number(self, value: float, dtype: DType, rank: int = 0) -> ir.Value:
        """Return a number as a tensor of one element."""
        return self.constant(np.full((1,) * rank, value).astype(t.numpy_dtype(dtype)))

    def ints(self, *numbers: int) -> ir.Value:
        """Return a vector of integers."""
        return self.constant(np.array(numbers, np.int64))

    def cast(self, x: ir.Value, dtype: DType, source: DType) -> ir.Value:
        """Convert to another element type; unchanged if equal."""
        if dtype == source:
            return x
        for used in (dtype, source):
            self.writer.needs(_SINCE.get(used, LEAST_OPSET))
        return self.node("Cast", x, to=int(dtype))  # type: ignore[no-any-return]

    # Sizes.

    def binds(self, symbol: str, x: ir.Value, axis: int, factor: int = 1, constant: int = 0) -> None:
        """Bind a symbol to a size of a tensor, which is ``factor * symbol + constant``, unless already bound."""
        if self._knows(symbol):
            return

        def solved() -> ir.Value:
            size = self.node("Shape", x, start=axis, end=axis + 1)
            size = size if constant == 0 else self.node("Sub", size, self.ints(constant))
            return size if factor == 1 else self.node("Div", size, self.ints(factor))  # type: ignore[no-any-return]

        self._symbols[symbol] = solved

    def is_element(self, symbol: str, x: Callable[[], ir.Value]) -> None:
        """Bind a symbol to the result of ``x``: an integer vector of length 1."""
        self._symbols[symbol] = x

    def binds_sizes(self, type: Type, x: ir.Value) -> None:
        """Bind the symbols that are sizes of a value."""
        if isinstance(type, TensorType):
            for axis, size in enumerate(type.shape or ()):
                if isinstance(size, Dim) and (linear := linear_symbol(size)) is not None:
                    self.binds(linear[0], x, axis, linear[1], linear[2])

    def _knows(self, symbol: str) -> bool:
        return symbol in self._symbols or (self._outer is not None and self._outer._knows(symbol))

    def sizes(self, sizes: Sequence[Size]) -> ir.Value:
        """Return sizes as an integer vector."""
        if all(isinstance(size, int) for size in sizes):
            return self.ints(*sizes)  # type: ignore[arg-type]
        parts = [self.size(size) for size in sizes]
        return parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=0)

    def size(self, size: Size) -> ir.Value:
        """Return a size as an integer vector of length 1."""
        written = self._find_size(size)
        if written is None:
            written = self._sizes[size] = self.ints(size) if isinstance(size, int) else self._sum(size)
        return written

    def _find_size(self, size: Size) -> ir.Value | None:
        written = self._sizes.get(size)
        return self._outer._find_size(size) if written is None and self._outer is not None else written

    def _sum(self, size: Dim) -> ir.Value:
        total: ir.Value | None = None
        for _, atoms, factor in size.terms:
            parts = [self._atom(atom) for atom in atoms]
            if factor != 1 or not parts:
                parts.append(self.ints(factor))
            product = parts[0]
            for part in parts[1:]:
                product = self.node("Mul", product, part)
            total = product if total is None else self.node("Add", total, product)
        assert total is not None
        return total

    def _atom(self, atom: Atom) -> ir.Value:
        if atom.kind == "symbol":
            return self._symbol(atom.name)
        args = [self.size(arg) for arg in atom.args]
        if atom.kind == "//":  # Rounded down: Mod has the divisor's sign.
            whole = self.node("Sub", args[0], self.node("Mod", *args))
            return self.node("Div", whole, args[1])  # type: ignore[no-any-return]
        result = args[0]
        for arg in args[1:]:
            if atom.kind == "broadcast":
                result = self.node("Where", self.node("Equal", result, self.ints(1)), arg, result)
            else:
                result = self.node(atom.kind.capitalize(), result, arg)
        return result

    def _symbol(self, symbol: str) -> ir.Value:
        graph: GraphWriter | None = self
        while graph is not None:
            if symbol in graph._symbols:
                return graph._symbols[symbol]()
            graph = graph._outer
        raise UnsupportedError(f"the size {symbol} is not defined by any input or value.")


def _tensor(array: np.ndarray, dtype: DType, name: str) -> ir.TensorProtocol:
    if dtype == t.STRING:
        words = [word.encode() if isinstance(word, str) else word for word in array.ravel().tolist()]
        return ir.StringTensor(np.array(words, object).reshape(array.shape), shape=ir.Shape(array.shape), name=name)
    return ir.tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype, name=name)
