"""Application of primitives: the only module that creates Core values.

``apply`` types a primitive, computes its result if all operands are known, and records a value otherwise. Inside a run
(:mod:`.run_context`) all operands are known, so applying is computing: operator definitions serve both purposes.
Integer tensors of sizes (``Shape``, and arithmetic on its result) stay symbolic: see
:mod:`~sardonyx.core.rules.size_rules`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from sardonyx.core.dim import Dim, Size, broadcast
from sardonyx.core.eval.run_context import COUNTED, RunContext, current_run
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import CLOSED, Value, define, fresh_symbol, intern_value, require_tensor, symbols_in
from sardonyx.core.ir.types import DType, Shape, TensorType, Type, dtype_of, numpy_dtype
from sardonyx.core.rules.numpy_rules import NUMPY_RULES
from sardonyx.core.rules.size_rules import SIZE_RULES, Sized
from sardonyx.core.rules.type_rules import TYPE_RULES
from sardonyx.errors import ResourceError, ShapeError, SizeLimitError

_MOST_EXTENT = 1 << 48
"""Greatest product of the sizes other than 0 of a folded value: numpy refuses it in 64 bits even for an empty array."""

FOLDED_ELEMENTS = 1 << 12
"""Maximum number of elements of a value that is computed while tracing."""
REPEATED_ELEMENTS = 64
"""The same for a ``broadcast`` or ``iota``, which are cheaper to recompute than to store."""

Scalar: TypeAlias = "bool | int | float | complex | np.generic"
Operand: TypeAlias = "Tensor | Scalar"


class Tensor(Value):
    """A Core value of tensor type. Arithmetic broadcasts as in ONNX; numbers get its element type.

    ``==`` is identity, as for every value; ``equal`` compares elements.
    """

    __slots__ = ()

    type: TensorType

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """The sizes; known sizes are ints."""
        shape = self.type.shape
        return require_tensor(self).shape if shape is None else shape  # type: ignore[return-value]

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __add__(self, other: Operand) -> Tensor:
        return elementwise("add", self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return elementwise("add", other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return elementwise("sub", self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return elementwise("sub", other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return elementwise("mul", self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return elementwise("mul", other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return elementwise("div", self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return elementwise("div", other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return elementwise("pow", self, other)

    def __neg__(self) -> Tensor:
        return elementwise("neg", self)

    def __and__(self, other: Operand) -> Tensor:
        return elementwise("and", self, other)

    def __or__(self, other: Operand) -> Tensor:
        return elementwise("or", self, other)

    def __xor__(self, other: Operand) -> Tensor:
        return elementwise("xor", self, other)

    def __invert__(self) -> Tensor:
        return elementwise("not", self)

    def __lt__(self, other: Operand) -> Tensor:
        return elementwise("less", self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return elementwise("less", other, self)

    def __le__(self, other: Operand) -> Tensor:
        return elementwise("less", self, other) | elementwise("equal", self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return elementwise("less", other, self) | elementwise("equal", self, other)


def apply(op: str, *operands: Value, **params: Any) -> Tensor:
    """Apply a primitive that returns a tensor. See :func:`apply_any`."""
    return apply_any(op, *operands, **params)  # type: ignore[return-value]


def apply_any(op: str, *operands: Value, **params: Any) -> Value:
    """Apply a primitive: compute the result if all operands are known, otherwise record the value.

    Args:
        op: The primitive's name.
        *operands: Values read.
        **params: All of its parameters, in the order of its row in ``PRIMITIVES``.

    Raises:
        ShapeError: The sizes do not match.
        TypeMismatchError: An element type or a rank is not accepted.
        ExecutionError: The result was computed and is undefined.
        ResourceError: The result was computed and exceeded a limit of the run.
    """
    type = TYPE_RULES[op](*[operand.type for operand in operands], **params)
    if op not in NUMPY_RULES:
        return record(op, operands, params, type)
    for operand in operands:
        if operand.op != "constant":
            sized = _fold_sizes(op, type, operands, params) if op in SIZE_RULES and _is_small(type) else None
            return record(op, operands, params, type) if sized is None else sized
    run = current_run()
    if run is not None:
        return _compute(run, op, type, operands, params)  # type: ignore[arg-type]
    if not _is_folded(op, type, operands) or any(symbols_in(params)):
        return record(op, operands, params, type)
    with np.errstate(all="ignore"):
        result = NUMPY_RULES[op](type, *[operand.params["value"] for operand in operands], **params)
    return _constant(_as_array(result, type), type)


def record(op: str, operands: tuple[Value, ...], params: dict[str, Any], type: Type) -> Value:
    """Record a primitive in the graph, even if all operands are known."""
    make = Tensor if isinstance(type, TensorType) else Value
    return intern_value(make, op, operands, params, type, level_of(operands), tuple(params.values()))


def level_of(operands: Sequence[Value]) -> int:
    """Return the level of a value with these operands."""
    return max([value.level for value in operands], default=CLOSED)


_VIEWS = frozenset(("reshape", "permute"))
"""Primitives whose numpy results are views.

The result of ``broadcast`` is a view too, but its readers may materialize the elements.
"""


def _require_indexable(shape: tuple[int, ...]) -> None:
    """Reject sizes whose product, ignoring zeros, exceeds numpy's bound, also valid for empty arrays."""
    if math.prod(filter(None, shape)) >= 1 << 58:
        raise ResourceError(f"the shape {list(shape)} exceeds the limits of arrays.", remedy="Give smaller sizes.")


_PADDING = frozenset(("convolve", "reduce_window"))
"""Primitives that copy their operand in order to pad."""


def _padded_bytes(type: Any, padding: Sequence[tuple[int, int]]) -> int:
    """Return the bytes of an operand with its last axes padded."""
    leading = len(type.shape) - len(padding)
    sizes = [size + max(low, 0) + max(high, 0) for size, (low, high) in zip(type.shape[leading:], padding, strict=True)]
    return math.prod((*type.shape[:leading], *sizes)) * numpy_dtype(type.dtype).itemsize  # type: ignore[no-any-return]


def _compute(run: RunContext, op: str, type: TensorType, operands: Sequence[Value], params: dict[str, Any]) -> Tensor:
    nbytes = type.nbytes
    if nbytes == 0:
        _require_indexable(type.shape)  # type: ignore[arg-type]
    if nbytes is not None and op not in _VIEWS:
        run.reserve(nbytes if op not in _PADDING else nbytes + _padded_bytes(operands[0].type, params["padding"]), op)
    if op == "random":
        params = {**params, "run": run.number}
    result = NUMPY_RULES[op](type, *[operand.params["value"] for operand in operands], **params)
    value = Tensor("constant", (), {"value": _as_array(result, type)}, type)
    if nbytes is not None and nbytes >= COUNTED and (result.base is None or op not in _VIEWS):
        run.track(value, result.nbytes)
    return value


def _as_array(result: Any, type: Any) -> np.ndarray:
    """Return numpy's result as an array: for operands without axes numpy returns numbers."""
    return result if type.shape else np.asarray(result, numpy_dtype(type.dtype))


def _is_folded(op: str, type: Type, operands: Sequence[Value]) -> bool:
    """Return True if a primitive of known values is computed while tracing."""
    if op == "random" or not all(_is_small(operand.type) for operand in operands):
        return False
    return _is_small(type, REPEATED_ELEMENTS if op in ("broadcast", "iota") else FOLDED_ELEMENTS)


def _is_small(type: Type, most: int = FOLDED_ELEMENTS) -> bool:
    if not isinstance(type, TensorType) or type.shape is None:
        return False
    count = extent = 1
    for size in type.shape:
        if not isinstance(size, int):
            return False
        count *= size
        extent *= size or 1
    return count <= most and extent <= _MOST_EXTENT


# Known values.


class _Content:
    """The identity of a small constant: element type, sizes and bytes."""

    __slots__ = ("_hash", "content")

    def __init__(self, array: np.ndarray) -> None:
        body: Any = tuple(array.ravel().tolist()) if array.dtype == object else array.tobytes()
        self.content = (array.dtype, array.shape, body)
        self._hash = hash(self.content)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and self.content == other.content


def _constant(value: Any, type: Type) -> Value:
    make = Tensor if isinstance(type, TensorType) else Value
    if current_run() is None and isinstance(value, np.ndarray) and value.size <= FOLDED_ELEMENTS:
        # A copy: callers may write to their array later, and equal constants of other models are this value.
        own = value.copy() if value.flags.writeable else value
        return intern_value(make, "constant", (), {"value": own}, type, CLOSED, (type, _Content(own)))
    return make("constant", (), {"value": value}, type)


def constant(value: Any, dtype: DType | None = None) -> Tensor:
    """Return a known tensor: an array, or numbers of ``dtype``."""
    if dtype is not None and dtype != t.STRING:
        array = np.asarray(value)
        array = array.astype(numpy_dtype(dtype)) if array.dtype != numpy_dtype(dtype) else array
    else:
        array = np.asarray(value, object) if dtype == t.STRING else np.asarray(value)
    return _constant(array, TensorType(dtype_of(array) if dtype is None else dtype, array.shape))  # type: ignore[return-value]


@functools.lru_cache(maxsize=4096)
def _number(text: str, dtype: DType) -> Tensor:
    """Return a number as a scalar, keyed by its text, which distinguishes zeros by sign and equates NaNs."""
    number = text == "True" if text in ("True", "False") else int(text) if text.lstrip("-").isdigit() else float(text)
    with np.errstate(all="ignore"):
        array = np.asarray(number).astype(numpy_dtype(dtype))
    return Tensor("constant", (), {"value": array}, TensorType(dtype, ()))


def scalar(value: Scalar, dtype: DType) -> Tensor:
    """Return a number as a scalar of ``dtype``."""
    if current_run() is not None and value.__class__ in (bool, int, float):
        return _number(repr(value), dtype)
    return constant(value, dtype)


def known(value: Any, type: Type) -> Value:
    """Return a known value of any type: an array, a list (sequence), None or a value (optional), a dict."""
    return _constant(value, type)


def function_input(level: int, position: int, type: Type) -> Value:
    """Return the input of a function at a position; see :mod:`.trace`."""
    make = Tensor if isinstance(type, TensorType) else Value
    params = {"level": level, "position": position, "type": type}
    return intern_value(make, "input", (), params, type, level, (level, position, type))


# Sizes.


def sizes_of(value: Value) -> tuple[Size, ...] | None:
    """Return the elements of a small integer tensor as sizes, in order; None if some are unknown."""
    if value.op == "dims":
        return value.params["sizes"]  # type: ignore[no-any-return]
    if value.op == "constant" and isinstance(value.type, TensorType) and t.is_integer(value.type.dtype):
        return tuple([int(item) for item in value.params["value"].ravel()])
    return None


def size_tensor(sizes: Sequence[Size], shape: tuple[int, ...] | None = None, dtype: DType = t.INT64) -> Tensor:
    """Return sizes as an integer tensor, of one axis unless ``shape`` is given."""
    sizes = tuple(sizes)
    shape = (len(sizes),) if shape is None else shape
    if not any(isinstance(size, Dim) for size in sizes):
        return constant(np.array(sizes, np.int64).reshape(shape), dtype)
    type = TensorType(dtype, shape)
    params = {"sizes": sizes, "shape": shape, "dtype": dtype}
    return intern_value(Tensor, "dims", (), params, type, CLOSED, (sizes, shape, dtype))


def _fold_sizes(op: str, type: Type, operands: tuple[Value, ...], params: dict[str, Any]) -> Value | None:
    """Return the result as sizes if operands are sizes and the primitive has a size rule, else None."""
    if not isinstance(type, TensorType) or not any(operand.op == "dims" for operand in operands):
        return None
    parts: list[Sized] = []
    for operand in operands:
        if operand.op == "dims":
            parts.append(Sized(operand.params["sizes"], operand.params["shape"]))
        elif operand.op == "constant" and operand.params["value"].dtype.kind in "iub":
            value = operand.params["value"]
            parts.append(Sized(tuple(value.ravel().tolist()), value.shape))
        else:
            return None
    try:
        sizes = SIZE_RULES[op](type, *parts, **params)
    except SizeLimitError:
        return None  # The result is computed at run time, and a size read from the tensor gets a fresh symbol.
    if sizes is None:
        return None
    if type.dtype == t.BOOL:
        return constant(np.array(sizes, np.bool_).reshape(type.shape))
    return size_tensor(sizes, type.shape, type.dtype)  # type: ignore[arg-type]


def bind(x: Tensor, element: tuple[int, ...]) -> Dim:
    """Return an element of an integer tensor, read at run time, as a size: a fresh symbol, never negative."""
    operand_level = x.level
    symbol = fresh_symbol()
    params = {"element": element, "symbol": symbol}
    type = TYPE_RULES["bind"](x.type, **params)
    value = intern_value(Tensor, "bind", (x,), params, type, operand_level, element)
    define(value.params["symbol"], value)
    x.bound = (*x.bound, value)
    return Dim.symbol(value.params["symbol"])


# Elementwise, broadcasting.


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape after broadcasting these shapes.

    Raises:
        ShapeError: Sizes are proven different and neither is 1.
    """
    first = shapes[0]
    if all(shape is first or shape == first for shape in shapes[1:]):
        return first
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    try:
        return tuple([_broadcast_size(sizes) for sizes in zip(*aligned, strict=True)])
    except ShapeError:
        listed = " and ".join("[" + ", ".join(map(str, shape)) + "]" for shape in shapes)
        raise ShapeError(f"shapes {listed} do not broadcast together.") from None


def _broadcast_size(sizes: tuple[Size, ...]) -> Size:
    first: Size = 1
    for size in sizes:
        if size is not first and size != 1:
            if first != 1 and first != size:
                return broadcast(*sizes)
            first = size
    return first


def broadcast_to(x: Tensor, shape: Shape) -> Tensor:
    """Repeat along new leading axes and axes of size 1, to ``shape``."""
    if x.shape == shape:
        return x
    missing = len(shape) - x.rank
    if missing > 0:
        x = apply("reshape", x, shape=(1,) * missing + x.shape)
    return x if x.shape == shape else apply("broadcast", x, shape=tuple(shape))


def elementwise(op: str, *operands: Operand) -> Tensor:
    """Apply an elementwise primitive after broadcasting; numbers get the element type of the tensors."""
    tensors = _tensors(operands)
    first = tensors[0].type.shape
    if any(x.type.shape != first for x in tensors):
        shape = broadcast_shapes(*[x.shape for x in tensors])
        run = current_run()
        if run is not None and all(x.op == "constant" for x in tensors):  # numpy broadcasts by itself.
            type = TYPE_RULES[op](*[TensorType(x.dtype, shape) for x in tensors])
            return _compute(run, op, type, tensors, {})  # type: ignore[arg-type]
        tensors = [x if x.shape == shape else broadcast_to(x, shape) for x in tensors]
    return apply(op, *tensors)


def _tensors(operands: Sequence[Operand]) -> Sequence[Tensor]:
    for x in operands:
        if not isinstance(x, Tensor):
            dtype = next(x.dtype for x in operands if isinstance(x, Tensor))
            return [x if isinstance(x, Tensor) else scalar(x, dtype) for x in operands]
    return operands  # type: ignore[return-value]


def get(results: Value, index: int) -> Value:
    """Return one result of a primitive that has several."""
    return apply_any("get", results, index=index)
