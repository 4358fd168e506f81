"""Writing of StableHLO text: operations in order, unique names, types, constants, sizes as scalars."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sardonyx.core.dim import Dim, Size, linear_symbol
from sardonyx.core.dim.polynomial import Atom
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType, Shape, TensorType
from sardonyx.errors import UnsupportedError

ELEMENTS: dict[DType, str] = {
    t.FLOAT: "f32",
    t.DOUBLE: "f64",
    t.FLOAT16: "f16",
    t.BFLOAT16: "bf16",
    DType.FLOAT8E4M3FN: "f8E4M3FN",
    DType.FLOAT8E4M3FNUZ: "f8E4M3FNUZ",
    DType.FLOAT8E5M2: "f8E5M2",
    DType.FLOAT8E5M2FNUZ: "f8E5M2FNUZ",
    t.INT64: "i64",
    t.INT32: "i32",
    t.INT16: "i16",
    t.INT8: "i8",
    DType.INT4: "i4",
    t.UINT64: "ui64",
    t.UINT32: "ui32",
    t.UINT16: "ui16",
    t.UINT8: "ui8",
    DType.UINT4: "ui4",
    t.BOOL: "i1",
    t.COMPLEX64: "complex<f32>",
    t.COMPLEX128: "complex<f64>",
}
"""Element types of StableHLO."""


def element(dtype: DType, where: str = "") -> str:
    """Return the spelling of an element type.

    Raises:
        UnsupportedError: StableHLO has no such type.
    """
    spelling = ELEMENTS.get(dtype)
    if spelling is None:
        raise UnsupportedError(f"StableHLO has no tensors of {dtype.name.lower()}.", where=where)
    return spelling


def type_text(dtype: DType, shape: Sequence[Size]) -> str:
    """Return a type: ``tensor<?x4xf32>``; open sizes are ``?``."""
    sizes = [str(size) if isinstance(size, int) else "?" for size in shape]
    return f"tensor<{'x'.join([*sizes, element(dtype)])}>"


class Operand:
    """A value of the text: its name and type.

    Attributes:
        name: ``%name``.
        dtype: The element type.
        shape: The sizes.
    """

    __slots__ = ("dtype", "name", "shape")

    def __init__(self, name: str, dtype: DType, shape: Shape) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape

    @property
    def type(self) -> str:
        """The type as text."""
        return type_text(self.dtype, self.shape)

    @property
    def is_static(self) -> bool:
        """True if all sizes are numbers."""
        return all(isinstance(size, int) for size in self.shape)


class TextWriter:
    """The operations of one function.

    Attributes:
        lines: The text so far.
        written: Operands of the values written so far.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.written: dict[Value, Any] = {}
        self._symbols: dict[str, tuple[Operand, int, int, int]] = {}
        self._numbers: dict[str, Operand] = {}
        self._refused: dict[str, str] = {}
        self._sizes: dict[Size, Operand] = {}
        self._used: set[str] = set()
        self._depth = 2

    def name(self, base: str) -> str:
        """Return a unique name derived from ``base``."""
        stem = re.sub(r"[^\w.$-]+", "_", base, flags=re.ASCII).strip("_") or "v"
        stem = stem if stem[0].isalpha() or stem[0] == "_" else f"v{stem}"
        unique, count = stem, 1
        while unique in self._used:
            count += 1
            unique = f"{stem}_{count}"
        self._used.add(unique)
        return f"%{unique}"

    def line(self, text: str) -> None:
        """Write a line."""
        self.lines.append("  " * self._depth + text)

    @contextlib.contextmanager
    def region(self) -> Iterator[None]:
        """Write the lines of a region: names inside are unknown after it."""
        saved = dict(self.written), dict(self._symbols), dict(self._numbers), dict(self._sizes)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.written, self._symbols, self._numbers, self._sizes = saved

    def op(self, text: str, dtype: DType, shape: Shape, base: str = "") -> Operand:
        """Write an operation with one result, and return the result."""
        result = Operand(self.name(base or text.split(" ")[0].rpartition(".")[2]), dtype, shape)
        self.line(f"{result.name} = {text}")
        return result

    # Common operations.

    def unary(self, op: str, x: Operand, base: str = "") -> Operand:
        """Write an elementwise operation of one operand."""
        return self.op(f"stablehlo.{op} {x.name} : {x.type}", x.dtype, x.shape, base)

    def binary(self, op: str, x: Operand, y: Operand, base: str = "") -> Operand:
        """Write an elementwise operation of two operands of one type."""
        return self.op(f"stablehlo.{op} {x.name}, {y.name} : {x.type}", x.dtype, x.shape, base)

    def compare(self, direction: str, x: Operand, y: Operand, base: str = "") -> Operand:
        """Write a comparison."""
        kind = {"float": "FLOAT", "complex": "FLOAT", "int": "SIGNED"}.get(t.kind(x.dtype), "UNSIGNED")
        result = type_text(t.BOOL, x.shape)
        text = f"stablehlo.compare {direction}, {x.name}, {y.name}, {kind} : ({x.type}, {y.type}) -> {result}"
        return self.op(text, t.BOOL, x.shape, base)

    def select(self, condition: Operand, x: Operand, y: Operand, base: str = "") -> Operand:
        """Write a selection by elements."""
        text = f"stablehlo.select {condition.name}, {x.name}, {y.name} : {condition.type}, {x.type}"
        return self.op(text, x.dtype, x.shape, base)

    def convert(self, x: Operand, dtype: DType, base: str = "") -> Operand:
        """Write a conversion; the operand itself if the type is the same."""
        if x.dtype == dtype:
            return x
        return self.op(f"stablehlo.convert {x.name} : ({x.type}) -> {type_text(dtype, x.shape)}", dtype, x.shape, base)

    def reshape(self, x: Operand, shape: Shape, base: str = "") -> Operand:
        """Write a reshape."""
        if x.shape == shape:
            return x
        result = type_text(x.dtype, shape)
        if all(isinstance(size, int) for size in (*shape, *x.shape)):
            return self.op(f"stablehlo.reshape {x.name} : ({x.type}) -> {result}", x.dtype, shape, base)
        sizes = self.vector(shape)
        text = f"stablehlo.dynamic_reshape {x.name}, {sizes.name} : ({x.type}, {sizes.type}) -> {result}"
        return self.op(text, x.dtype, shape, base)

    def broadcast(self, x: Operand, shape: Shape, dims: Sequence[int], base: str = "") -> Operand:
        """Write a broadcast: axis i of the operand is axis ``dims[i]`` of the result."""
        result, spelled = type_text(x.dtype, shape), f"[{', '.join(map(str, dims))}]"
        if all(isinstance(size, int) for size in (*shape, *x.shape)):
            text = f"stablehlo.broadcast_in_dim {x.name}, dims = {spelled} : ({x.type}) -> {result}"
            return self.op(text, x.dtype, shape, base)
        sizes = self.vector(shape)
        text = f"stablehlo.dynamic_broadcast_in_dim {x.name}, {sizes.name}, dims = {spelled}"
        return self.op(f"{text} : ({x.type}, {sizes.type}) -> {result}", x.dtype, shape, base)

    def transpose(self, x: Operand, axes: Sequence[int], base: str = "") -> Operand:
        """Write a transposition."""
        shape = tuple(x.shape[axis] for axis in axes)
        text = f"stablehlo.transpose {x.name}, dims = [{', '.join(map(str, axes))}] : ({x.type}) -> "
        return self.op(text + type_text(x.dtype, shape), x.dtype, shape, base)

    def full(self, number: Any, dtype: DType, shape: Shape, base: str = "") -> Operand:
        """Write a tensor of equal elements."""
        scalar = self.constant(np.asarray(number).astype(t.numpy_dtype(dtype)), dtype)
        return scalar if not shape else self.broadcast(scalar, shape, (), base)

    def constant(self, array: np.ndarray, dtype: DType, base: str = "") -> Operand:
        """Write a constant."""
        shape = tuple(int(size) for size in array.shape)
        return self.op(f"stablehlo.constant {dense(array, dtype)} : {type_text(dtype, shape)}", dtype, shape, base)

    # Sizes.

    def bind_sizes(self, type_: Any, x: Operand) -> None:
        """Bind the symbols that are sizes of a value."""
        if isinstance(type_, TensorType):
            for axis, size in enumerate(type_.shape or ()):
                if isinstance(size, Dim) and (linear := linear_symbol(size)) is not None:
                    symbol, factor, constant = linear
                    self._symbols.setdefault(symbol, (x, axis, factor, constant))

    def bind(self, symbol: str, number: Operand) -> None:
        """Bind a symbol to an int64 scalar."""
        self._numbers.setdefault(symbol, number)

    def refuse(self, symbol: str, rule: str) -> None:
        """Remember the rule that refuses a use of a symbol."""
        self._refused[symbol] = rule

    def knows(self, symbol: str) -> bool:
        """Return True if a symbol is bound."""
        return symbol in self._symbols or symbol in self._numbers

    def size(self, size: Size) -> Operand:
        """Return a size as an int64 scalar.

        Raises:
            UnsupportedError: Data decides the size, or no input has it.
        """
        known = self._sizes.get(size)
        if known is None:
            known = self._sizes[size] = (
                self.constant(np.array(size, np.int64), t.INT64) if isinstance(size, int) else self._sum(size)
            )
        return known

    def vector(self, sizes: Sequence[Size]) -> Operand:
        """Return sizes as an int64 vector."""
        if all(isinstance(size, int) for size in sizes):
            return self.constant(np.array(sizes, np.int64), t.INT64)
        parts = [self.reshape(self.size(size), (1,)) for size in sizes]
        return parts[0] if len(parts) == 1 else self.concatenate(parts, 0)

    def concatenate(self, parts: Sequence[Operand], axis: int, shape: Shape | None = None, base: str = "") -> Operand:
        """Write a concatenation."""
        first = parts[0]
        if shape is None:
            total = sum(part.shape[axis] for part in parts)
            shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
        names, types = ", ".join(part.name for part in parts), ", ".join(part.type for part in parts)
        text = f"stablehlo.concatenate {names}, dim = {axis} : ({types}) -> {type_text(first.dtype, shape)}"
        return self.op(text, first.dtype, shape, base)

    def _sum(self, size: Dim) -> Operand:
        total: Operand | None = None
        for _, atoms, factor in size.terms:
            product: Operand | None = None
            for part in (
                *(self._atom(atom) for atom in atoms),
                *([self.size(factor)] if factor != 1 or not atoms else []),
            ):
                product = part if product is None else self.binary("multiply", product, part)
            assert product is not None
            total = product if total is None else self.binary("add", total, product)
        assert total is not None
        return total

    def _atom(self, atom: Atom) -> Operand:
        if atom.kind == "symbol":
            return self._symbol(atom.name)
        args = [self.size(arg) for arg in atom.args]
        result = args[0]
        for arg in args[1:]:
            if atom.kind == "//":
                result = self._floor_quotient(result, arg)
            elif atom.kind == "broadcast":
                one = self.size(1)
                result = self.select(self.compare("EQ", result, one), arg, result)
            else:
                result = self.binary("maximum" if atom.kind == "max" else "minimum", result, arg)
        return result

    def _floor_quotient(self, x: Operand, y: Operand) -> Operand:
        quotient, zero = self.binary("divide", x, y), self.size(0)
        remainder = self.binary("remainder", x, y)
        low = self.binary("and", self.compare("NE", remainder, zero), self.compare("LT", x, zero))
        return self.select(low, self.binary("subtract", quotient, self.size(1)), quotient)

    def _symbol(self, symbol: str) -> Operand:
        if symbol in self._numbers:
            return self._numbers[symbol]
        if symbol not in self._symbols:
            counted = "the size is decided by data, and StableHLO has no such sizes."
            unknown = counted if symbol.startswith("%") else f"the size {symbol} is not a size of any input."
            raise UnsupportedError(self._refused.get(symbol, unknown))
        x, axis, factor, constant = self._symbols[symbol]
        text = f"stablehlo.get_dimension_size {x.name}, dim = {axis} : ({x.type}) -> tensor<i32>"
        number = self.convert(self.op(text, t.INT32, (), "size"), t.INT64, symbol.lstrip("%"))
        if constant:
            number = self.binary("subtract", number, self.size(constant))
        if factor != 1:
            number = self.binary("divide", number, self.size(factor))
        self._numbers[symbol] = number
        return number


def dense(array: np.ndarray, dtype: DType) -> str:
    """Return the attribute of a constant; floats keep every bit."""
    if not array.size:
        return "dense<>"
    kind = t.kind(dtype)
    flat = np.ascontiguousarray(array).reshape(-1)
    if kind == "bool":
        texts = ["true" if number else "false" for number in flat.tolist()]
    elif kind in ("int", "uint"):
        if dtype.bitwidth >= 8 and flat.size > 16 and not (flat == flat[0]).all():
            return f'dense<"0x{flat.tobytes().hex().upper()}">'
        texts = [str(int(number)) for number in flat.tolist()]
    elif kind == "complex":
        return f'dense<"0x{flat.tobytes().hex().upper()}">' if flat.size > 1 else f"dense<{_complex(flat[0])}>"
    else:
        if flat.size > 16 and len(set(flat.view(np.uint8).reshape(flat.size, -1)[:64].tobytes())) > 1:
            return f'dense<"0x{flat.tobytes().hex().upper()}">'
        texts = [_float(number, dtype) for number in flat]
    if len(set(texts)) == 1:
        return f"dense<{texts[0]}>"
    return f"dense<{_nested(texts, array.shape)}>"


def _float(number: Any, dtype: DType) -> str:
    """Return a float as the hexadecimal digits of its bits."""
    bits = np.asarray(number).tobytes()[::-1].hex().upper()
    value = float(number)
    return f"{value:.6e}" if value == float(f"{value:.6e}") and np.isfinite(value) else f"0x{bits}"


def _complex(number: Any) -> str:
    return f"({number.real:.17e}, {number.imag:.17e})"


def _nested(texts: Sequence[str], shape: Sequence[int]) -> str:
    if not shape:
        return texts[0]
    step = len(texts) // shape[0]
    return f"[{', '.join(_nested(texts[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0]))}]"
