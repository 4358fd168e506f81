"""The ONNX form of every primitive without bodies.

:mod:`sardonyx.core.export.export` has the others. A rule receives the graph being written, the value, its ONNX
operands, and the parameters, and returns the ONNX result (a list for several). Only standard operators are written, in
the lowest version from 18 on. Element types without ONNX arithmetic are widened as in the numpy rules. Complex numbers
are pairs of real numbers on a last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size, product
from sardonyx.core.export.node_writer import GraphWriter, shape_of
from sardonyx.core.export.window_forms import arg_window, convolution, extremum_window, spread, sum_window
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType, Shape, TensorType, numpy_dtype
from sardonyx.core.rules.numpy_rules import identity_of
from sardonyx.errors import UnsupportedError

OnnxRule = Callable[..., Any]

ONNX_FORMS: dict[str, OnnxRule] = {}


def onnx_form(*names: str) -> Callable[[OnnxRule], OnnxRule]:
    """Register the ONNX form of primitives."""

    def register(rule: OnnxRule) -> OnnxRule:
        ONNX_FORMS.update(dict.fromkeys(names, rule))
        return rule

    return register


def _dtype(value: Value) -> DType:
    return value.type.dtype  # type: ignore[union-attr]


def _shape(value: Value) -> Shape:
    return value.type.shape  # type: ignore[union-attr,return-value]


_WIDER: dict[DType, DType] = {
    **dict.fromkeys((d for d in t.FLOATS if d not in (t.DOUBLE, t.FLOAT, t.FLOAT16)), t.FLOAT),
    **dict.fromkeys((DType.INT4, DType.INT2, DType.UINT4, DType.UINT2), t.INT32),
}
"""Types of ONNX arithmetic on narrow element types."""

_SUMMED: dict[DType, DType] = {
    **_WIDER,
    t.FLOAT16: t.FLOAT,
    **dict.fromkeys((t.INT8, t.INT16, t.UINT8, t.UINT16), t.INT64),
}
"""Types of long sums: accepted by the operators, and wide enough."""


# Elementwise.

_SAME_NAME = {
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos",
    "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh",
    "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "floor": "Floor", "ceil": "Ceil",
    "round": "Round", "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min",
    "less": "Less", "equal": "Equal",
}  # fmt: skip


def _same_node(op: str) -> OnnxRule:
    def rule(w: GraphWriter, value: Value, *xs: ir.Value) -> ir.Value:
        dtype = _dtype(value.operands[0])
        wide = _WIDER.get(dtype, dtype)
        result = w.node(op, *(w.cast(x, wide, dtype) for x in xs), since=19 if dtype == t.STRING else 18)
        return result if op in ("Less", "Equal") else w.cast(result, dtype, wide)

    return rule


ONNX_FORMS |= {name: _same_node(op) for name, op in _SAME_NAME.items()}


def _register_for_kinds(name: str, form: OnnxRule, kinds: Sequence[str]) -> None:
    """Register another form for kinds of element types that the operator of this name does not accept."""
    usual = ONNX_FORMS[name]

    def rule(w: GraphWriter, value: Value, *xs: ir.Value) -> ir.Value:
        chosen = form if t.kind(_dtype(value.operands[0])) in kinds else usual
        return chosen(w, value, *xs)  # type: ignore[no-any-return]

    ONNX_FORMS[name] = rule


def _identity(w: GraphWriter, value: Value, x: ir.Value, **params: Any) -> Any:
    return w.node("Identity", x)


for _op in ("floor", "ceil", "round"):
    _register_for_kinds(_op, _identity, ("int", "uint"))
_register_for_kinds("neg", lambda w, v, x: w.node("Sub", w.number(0, _dtype(v)), x), ("uint",))
_register_for_kinds("max", lambda w, v, x, y: w.node("Or", x, y), ("bool",))
_register_for_kinds("min", lambda w, v, x, y: w.node("And", x, y), ("bool",))
_register_for_kinds("less", lambda w, v, x, y: w.node("And", w.node("Not", x), y), ("bool",))


@onnx_form("rem")
def _rem(w: GraphWriter, value: Value, x: ir.Value, y: ir.Value) -> Any:
    dtype = _dtype(value)
    wide = _WIDER.get(dtype, dtype)
    return w.cast(w.node("Mod", w.cast(x, wide, dtype), w.cast(y, wide, dtype), fmod=1), dtype, wide)


@onnx_form("pow")
def _pow(w: GraphWriter, value: Value, x: ir.Value, y: ir.Value) -> Any:
    dtype = _dtype(value)
    wide = t.INT64 if t.is_integer(dtype) else _WIDER.get(dtype, dtype)
    return w.cast(w.node("Pow", w.cast(x, wide, dtype), w.cast(y, wide, dtype)), dtype, wide)


def _bitwise(boolean: str, bits: str) -> OnnxRule:
    def rule(w: GraphWriter, value: Value, *xs: ir.Value) -> Any:
        dtype = _dtype(value)
        wide = _WIDER.get(dtype, dtype)
        return w.cast(w.node(boolean if dtype == t.BOOL else bits, *(w.cast(x, wide, dtype) for x in xs)), dtype, wide)

    return rule


ONNX_FORMS |= {
    name: _bitwise(op, f"Bitwise{op}") for name, op in (("and", "And"), ("or", "Or"), ("xor", "Xor"), ("not", "Not"))
}

_UNSIGNED = {t.INT8: t.UINT8, t.INT16: t.UINT16, t.INT32: t.UINT32, t.INT64: t.UINT64}


@onnx_form("shift_left", "shift_right")
def _shift(w: GraphWriter, value: Value, x: ir.Value, by: ir.Value) -> Any:
    """Write a shift: excessive amounts give 0; negative numbers shift right as their complements."""
    dtype = _dtype(value)
    plain = _UNSIGNED.get(dtype, dtype)
    bits, left = dtype.bitwidth, value.op == "shift_left"
    negative = w.node("Less", x, w.number(0, dtype)) if plain != dtype and not left else None
    if negative is not None:
        x = w.node("Where", negative, w.node("BitwiseNot", x), x)
    by = w.cast(by, plain, dtype)
    beyond = w.node("Less", w.number(bits - 1, plain), by)
    some = w.node("Min", by, w.number(bits - 1, plain))
    shifted = w.node("BitShift", w.cast(x, plain, dtype), some, direction="LEFT" if left else "RIGHT")
    result = w.cast(w.node("Where", beyond, w.number(0, plain), shifted), dtype, plain)
    return result if negative is None else w.node("Where", negative, w.node("BitwiseNot", result), result)


@onnx_form("select")
def _select(w: GraphWriter, value: Value, condition: ir.Value, x: ir.Value, y: ir.Value) -> Any:
    if t.kind(_dtype(value)) == "complex":
        condition = w.node("Unsqueeze", condition, w.ints(-1))
    if _dtype(value) == t.BOOL:  # ONNX Runtime has no Where for booleans.
        return w.node("Or", w.node("And", condition, x), w.node("And", w.node("Not", condition), y))
    return w.node("Where", condition, x, y)


# Conversions.


@onnx_form("convert")
def _convert(w: GraphWriter, value: Value, x: ir.Value, *, dtype: DType, saturate: bool, rounding: str) -> Any:
    source = _dtype(value.operands[0])
    if t.kind(source) == "complex":
        if t.kind(dtype) == "complex":
            return w.cast(x, _part(dtype), _part(source))
        x, source = w.node("Gather", x, w.constant(np.array(0)), axis=-1), _part(source)
    if t.kind(dtype) == "complex":
        real = w.node("Unsqueeze", w.cast(x, _part(dtype), source), w.ints(-1))
        return w.node("Concat", real, w.node("Mul", real, w.number(0, _part(dtype))), axis=-1)
    options: dict[str, Any] = {"saturate": int(saturate)} if dtype in (*t.FLOAT8, DType.FLOAT8E8M0) else {}
    if dtype == DType.FLOAT8E8M0:
        options["round_mode"] = rounding
    for used in (dtype, source):
        w.writer.type(TensorType(used, ()))
    return w.node("Cast", x, to=int(dtype), since=19 if options else 18, **options)


def _part(dtype: DType) -> DType:
    return t.FLOAT if dtype == t.COMPLEX64 else t.DOUBLE


@onnx_form("bitcast")
def _bitcast(w: GraphWriter, value: Value, x: ir.Value, *, dtype: DType) -> Any:
    source = _dtype(value.operands[0])
    if "complex" in (t.kind(source), t.kind(dtype)) and source.bitwidth != dtype.bitwidth:
        return w.node("Identity", x)
    if source.bitwidth == dtype.bitwidth:
        return w.node("BitCast", x, to=int(dtype), since=26)
    narrow, wide = sorted((source, dtype), key=lambda item: item.bitwidth)
    bits, count = (_BITS[item.bitwidth] for item in (narrow, wide)), wide.bitwidth // narrow.bitwidth
    low, high = bits
    shifts = w.constant((np.arange(count) * narrow.bitwidth).astype(numpy_dtype(high)))
    if source == wide:  # Split: the lowest bits first.
        whole = w.node("Unsqueeze", w.node("BitCast", x, to=int(high), since=26), w.ints(-1))
        mask = w.number((1 << narrow.bitwidth) - 1, high)
        parts = w.node("BitwiseAnd", w.node("BitShift", whole, shifts, direction="RIGHT"), mask)
        return w.node("BitCast", w.cast(parts, low, high), to=int(dtype), since=26)
    parts = w.node("BitShift", w.cast(w.node("BitCast", x, to=int(low), since=26), high, low), shifts, direction="LEFT")
    result = w.node("Gather", parts, w.constant(np.array(0)), axis=-1)
    for i in range(1, count):
        result = w.node("BitwiseOr", result, w.node("Gather", parts, w.constant(np.array(i)), axis=-1))
    return w.node("BitCast", result, to=int(dtype), since=26)


_BITS = {8: t.UINT8, 16: t.UINT16, 32: t.UINT32, 64: t.UINT64}


# Contractions.

_REDUCTIONS = {"add": "ReduceSum", "mul": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}


@onnx_form("reduce")
def _reduce(w: GraphWriter, value: Value, x: ir.Value, *, kind: str, axes: tuple[int, ...]) -> Any:
    source = _dtype(value.operands[0])
    if not axes:
        return w.node("Identity", x)
    if kind in ("argmax", "argmin"):
        wide = _WIDER.get(source, source)
        return w.node("ArgMax" if kind == "argmax" else "ArgMin", w.cast(x, wide, source), axis=axes[0], keepdims=0)
    if kind in ("and", "or") and source != t.BOOL:
        return _reduce_bits(w, value, x, kind, axes)
    wide = _SUMMED.get(source, source)
    op = _REDUCTIONS[{"and": "min", "or": "max"}.get(kind, kind)]
    since = 20 if source == t.BOOL else 18
    return w.cast(w.node(op, w.cast(x, wide, source), w.ints(*axes), keepdims=0, since=since), source, wide)


def _reduce_bits(w: GraphWriter, value: Value, x: ir.Value, kind: str, axes: tuple[int, ...]) -> Any:
    """Reduce the bits of integers by a scan."""
    dtype, shape = _dtype(value), _shape(value.operands[0])
    remaining = [a for a in range(len(shape)) if a not in axes]
    first = w.node("Transpose", x, perm=[*axes, *remaining])
    rest = [shape[a] for a in remaining]
    flat = w.node("Reshape", first, w.sizes([product([shape[a] for a in axes]), *rest]), allowzero=1)
    start = w.node("Expand", w.number(identity_of(kind, numpy_dtype(dtype)), dtype), w.sizes(rest))
    return _scan_rows(w, "BitwiseAnd" if kind == "and" else "BitwiseOr", dtype, start, flat)[0]


def _scan_rows(w: GraphWriter, op: str, dtype: DType, start: ir.Value, x: ir.Value) -> list[ir.Value]:
    """Fold an operator over the rows of the first axis; return the final and all partial results."""
    body = GraphWriter(w.writer, w)
    state, row = (ir.Value(name=w.writer.name(name), type=ir.TensorType(dtype)) for name in ("state", "row"))
    combined = body.node(op, state, row)
    results = [body.node("Identity", combined) for _ in range(2)]
    for result in results:
        result.type = ir.TensorType(dtype)
    graph = ir.Graph([state, row], results, nodes=body.nodes, name=w.writer.name("scan"))
    return w.node("Scan", start, x, outputs=2, body=graph, num_scan_inputs=1)  # type: ignore[no-any-return]


@onnx_form("contract")
def _contract(
    w: GraphWriter,
    value: Value,
    x: ir.Value,
    y: ir.Value,
    *,
    batch: tuple[tuple[int, int], ...],
    left: tuple[int, ...],
    right: tuple[int, ...],
    dtype: DType,
) -> Any:
    wide = t.INT32 if t.is_integer(dtype) and dtype.bitwidth < 32 else _SUMMED.get(dtype, dtype)
    ranks = [len(_shape(operand)) for operand in value.operands]
    equation = _equation(ranks, batch, left, right)
    if t.kind(dtype) == "complex":
        (a, b), (c, d) = ([_part_of(w, v, i) for i in (0, 1)] for v in (x, y))
        real = w.node("Sub", _products(w, a, c, equation), _products(w, b, d, equation))
        imaginary = w.node("Add", _products(w, a, d, equation), _products(w, b, c, equation))
        last = w.constant(np.array([-1]))
        return w.node("Concat", *(w.node("Unsqueeze", v, last) for v in (real, imaginary)), axis=-1)
    a, b = (w.cast(v, wide, _dtype(o)) for v, o in zip((x, y), value.operands, strict=True))
    return w.cast(_products(w, a, b, equation), dtype, wide)


def _part_of(w: GraphWriter, x: ir.Value, i: int) -> ir.Value:
    """Return the real parts (0) or the imaginary parts (1) of pairs."""
    return w.node("Gather", x, w.constant(np.array(i)), axis=-1)  # type: ignore[no-any-return]


def _products(w: GraphWriter, x: ir.Value, y: ir.Value, equation: str | None) -> ir.Value:
    """Return sums of products of real numbers; the equation is None for a plain product of matrices."""
    if equation is None:
        return w.node("MatMul", x, y)  # type: ignore[no-any-return]
    return w.node("Einsum", x, y, equation=equation)  # type: ignore[no-any-return]


def _equation(
    ranks: Sequence[int], batch: Sequence[tuple[int, int]], left: Sequence[int], right: Sequence[int]
) -> str | None:
    """Return the equation of ``Einsum`` for a contraction; None if ``MatMul`` computes the contraction."""
    n = len(batch)
    if list(batch) == [(i, i) for i in range(n)] and (*left, *right) == (n + 1, n) and list(ranks) == [n + 2, n + 2]:
        return None
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    first = [next(letters) for _ in range(ranks[0])]
    pairs = {j: first[i] for i, j in (*batch, *zip(left, right, strict=True))}
    second = [pairs.get(j) or next(letters) for j in range(ranks[1])]
    shared = [first[i] for i, _ in batch]
    free = [c for i, c in enumerate(first) if i not in left and c not in shared]
    other = [c for c in second if c not in first]
    return f"{''.join(first)},{''.join(second)}->{''.join((*shared, *free, *other))}"


@onnx_form("convolve")
def _convolve(w: GraphWriter, value: Value, x: ir.Value, weights: ir.Value, *, dtype: DType, **params: Any) -> Any:
    if t.kind(dtype) == "complex":
        raise UnsupportedError("convolutions of complex numbers have no ONNX form.", where=value.origin)
    wide = t.DOUBLE if t.is_integer(dtype) else _SUMMED.get(dtype, dtype)
    a, b = (w.cast(v, wide, _dtype(o)) for v, o in zip((x, weights), value.operands, strict=True))
    shape, kernel = (_shape(operand) for operand in value.operands)
    return w.cast(convolution(w, a, b, shape, kernel, _shape(value), wide, **params), dtype, wide)


@onnx_form("reduce_window")
def _reduce_window(w: GraphWriter, value: Value, x: ir.Value, *, kind: str, **params: Any) -> Any:
    source, shape, out = _dtype(value.operands[0]), _shape(value.operands[0]), _shape(value)
    if kind == "add":
        wide = t.DOUBLE if t.is_integer(source) else _SUMMED.get(source, source)
        return w.cast(sum_window(w, w.cast(x, wide, source), shape, out, wide, **params), source, wide)
    wide = _WIDER.get(source, source)
    x = w.cast(x, wide, source)
    if kind.startswith("arg"):
        return arg_window(w, x, shape, out, wide, kind == "argmax", **params)
    return w.cast(extremum_window(w, x, shape, out, wide, kind == "max", **params), source, wide)


# Movement.


@onnx_form("reshape")
def _reshape(w: GraphWriter, value: Value, x: ir.Value, *, shape: Shape) -> Any:
    return w.node("Reshape", x, w.sizes(shape), allowzero=1)


@onnx_form("permute")
def _permute(w: GraphWriter, value: Value, x: ir.Value, *, axes: tuple[int, ...]) -> Any:
    return w.node("Transpose", x, perm=list(axes)) if axes else w.node("Identity", x)


@onnx_form("broadcast")
def _broadcast(w: GraphWriter, value: Value, x: ir.Value, *, shape: Shape) -> Any:
    return w.node("Expand", x, w.sizes(shape))


@onnx_form("slice")
def _slice(w: GraphWriter, value: Value, x: ir.Value, *, starts: Shape, limits: Shape, strides: tuple[int, ...]) -> Any:
    shape = (*_shape(value.operands[0]), 2)
    cut = [a for a in range(len(starts)) if (starts[a], strides[a]) != (0, 1) or limits[a] != shape[a]]
    if not cut:
        return w.node("Identity", x)
    first, last = (w.sizes([bounds[a] for a in cut]) for bounds in (starts, limits))
    return w.node("Slice", x, first, last, w.ints(*cut), w.ints(*(strides[a] for a in cut)))


@onnx_form("pad")
def _pad(
    w: GraphWriter, value: Value, x: ir.Value, filler: ir.Value, *, low: Shape, high: Shape, interior: tuple[int, ...]
) -> Any:
    complex_ = t.kind(_dtype(value)) == "complex"
    if complex_ and not (value.operands[1].is_constant and value.operands[1].known == 0):
        raise UnsupportedError("complex numbers are padded with 0 alone in ONNX.", where=value.origin)
    dtype, pair = (_part(_dtype(value)), (2,)) if complex_ else (_dtype(value), ())
    filler = w.number(0, dtype) if complex_ else filler
    shape = (*_shape(value.operands[0]), *pair)
    return spread(w, x, shape, low, high, [1 + between for between in interior], filler)


@onnx_form("concat")
def _concat(w: GraphWriter, value: Value, *xs: ir.Value, axis: int) -> Any:
    return w.node("Concat", *xs, axis=axis)


@onnx_form("gather")
def _gather(w: GraphWriter, value: Value, x: ir.Value, indices: ir.Value, *, batch: int) -> Any:
    shape = _shape(value.operands[1])
    at = w.cast(indices, t.INT64, _dtype(value.operands[1]))
    if shape[-1] == 0:  # Empty index vectors select the whole operand.
        x, at = w.node("Unsqueeze", x, w.ints(batch)), _first(w, shape)
    elif batch == 0 and shape[-1] == 1:
        return w.node("Gather", x, w.node("Squeeze", at, w.ints(-1)), axis=0)
    return w.node("GatherND", x, at, batch_dims=batch)


def _first(w: GraphWriter, shape: Shape) -> ir.Value:
    """Return index vectors that select the first entry of one axis."""
    return w.node("Expand", w.number(0, t.INT64), w.sizes([*shape[:-1], 1]))  # type: ignore[no-any-return]


@onnx_form("scatter")
def _scatter(
    w: GraphWriter, value: Value, x: ir.Value, indices: ir.Value, updates: ir.Value, *, kind: str, batch: int
) -> Any:
    shape, dtype = _shape(value.operands[1]), _dtype(value)
    wide = _WIDER.get(dtype, dtype) if kind != "set" else dtype
    at = w.cast(indices, t.INT64, _dtype(value.operands[1]))
    none = shape[-1] == 0
    if none:
        x, at = w.node("Unsqueeze", x, w.ints(batch)), _first(w, shape)
    shared = [
        w.node("Expand", _line(w, shape[axis], axis, len(shape)), w.sizes([*shape[:-1], 1])) for axis in range(batch)
    ]
    full = w.node("Concat", *shared, at, axis=-1) if shared else at
    reduction = "none" if kind == "set" else kind
    inputs = w.cast(x, wide, dtype), full, w.cast(updates, wide, dtype)
    result = w.cast(w.node("ScatterND", *inputs, reduction=reduction), dtype, wide)
    return w.node("Squeeze", result, w.ints(batch)) if none else result


def _line(w: GraphWriter, size: Size, axis: int, rank: int) -> ir.Value:
    """Return 0, 1, 2 … along one of ``rank`` axes."""
    zero, one = w.constant(np.array(0)), w.constant(np.array(1))
    count = w.node("Squeeze", w.size(size), w.ints(0))
    line = w.node("Range", zero, count, one)
    others = w.ints(*(a for a in range(rank) if a != axis))
    return w.node("Unsqueeze", line, others) if rank > 1 else line  # type: ignore[no-any-return]


@onnx_form("reverse")
def _reverse(w: GraphWriter, value: Value, x: ir.Value, *, axes: tuple[int, ...]) -> Any:
    if not axes:
        return w.node("Identity", x)
    minus, least = w.ints(*(-1 for _ in axes)), w.ints(*(-(1 << 62) for _ in axes))
    return w.node("Slice", x, minus, least, w.ints(*axes), minus)


# Sources.


@onnx_form("iota")
def _iota(w: GraphWriter, value: Value, *, shape: Shape, axis: int, dtype: DType) -> Any:
    line = w.cast(_line(w, shape[axis], axis, len(shape)), dtype, t.INT64)
    return w.node("Expand", line, w.sizes(shape))


@onnx_form("dims")
def _dims(w: GraphWriter, value: Value, *, sizes: Shape, shape: tuple[int, ...], dtype: DType) -> Any:
    return w.cast(w.node("Reshape", w.sizes(sizes), w.ints(*shape)), dtype, t.INT64)


@onnx_form("bind")
def _bind(w: GraphWriter, value: Value, x: ir.Value, *, element: tuple[int, ...], symbol: str) -> Any:
    """Defer the read of the element until the size is needed; the result is the operand."""
    source = _dtype(value.operands[0])

    def read_element() -> ir.Value:
        one = w.node("GatherND", x, w.ints(*element)) if element else x
        return w.node("Reshape", w.cast(one, t.INT64, source), w.ints(1))  # type: ignore[no-any-return]

    w.is_element(symbol, read_element)
    return x


@onnx_form("constant")
def _constant(w: GraphWriter, value: Value, /, **params: Any) -> Any:
    known, type_ = value.known, value.type
    if isinstance(type_, TensorType):
        if t.kind(type_.dtype) == "complex":
            known = np.stack([known.real, known.imag], -1)
            return w.constant(known)
        return w.constant(known, type_.dtype)
    element = type_.element  # type: ignore[union-attr]
    if isinstance(type_, t.SequenceType) and isinstance(element, TensorType):
        items = [w.constant(item, element.dtype) for item in known]
        return w.node("SequenceConstruct", *items) if items else w.node("SequenceEmpty", dtype=int(element.dtype))
    if isinstance(type_, t.OptionalType) and known is None:
        return w.node("Optional", type=ir.TypeAndShape(w.writer.type(element), shape_of(element)))
    raise UnsupportedError(f"no ONNX node gives a constant of type {type_}.", where=value.origin)


@onnx_form("input")
def _input(w: GraphWriter, value: Value, **params: Any) -> Any:
    raise UnsupportedError("an input belongs to another function.", where=value.origin)


@onnx_form("random")
def _random(
    w: GraphWriter,
    value: Value,
    *,
    kind: str,
    shape: Shape,
    dtype: DType,
    seed: float | None,
    identity: str,
) -> Any:
    wide = _WIDER.get(dtype, dtype)
    op, seed = "RandomUniform" if kind == "uniform" else "RandomNormal", None if seed is None else float(seed)
    if all(isinstance(size, int) for size in shape):
        numbers = w.node(op, shape=list(shape), dtype=int(wide), seed=seed)
    else:
        like = w.node("Expand", w.number(0, wide), w.sizes(shape))
        numbers = w.node(f"{op}Like", like, seed=seed)
    return w.cast(numbers, dtype, wide)


# Order.


@onnx_form("sort")
def _sort(w: GraphWriter, value: Value, x: ir.Value, *, axis: int, descending: bool) -> Any:
    return _top_k_indices(w, value, x, _shape(value)[axis], axis, descending)


@onnx_form("top_k")
def _top_k(w: GraphWriter, value: Value, x: ir.Value, *, axis: int, k: Size, largest: bool) -> Any:
    return _top_k_indices(w, value, x, k, axis, largest)


def _top_k_indices(w: GraphWriter, value: Value, x: ir.Value, k: Size, axis: int, largest: bool) -> Any:
    source = _dtype(value.operands[0])
    if source == t.STRING:
        raise UnsupportedError("ONNX has no operator that sorts texts.", where=value.origin)
    wide = t.INT32 if source == t.BOOL else _WIDER.get(source, source)
    return w.node("TopK", w.cast(x, wide, source), w.size(k), outputs=2, axis=axis, largest=int(largest))[1]


@onnx_form("scan")
def _scan(w: GraphWriter, value: Value, x: ir.Value, *, kind: str, axis: int) -> Any:
    dtype, shape = _dtype(value), _shape(value)
    wide = _SUMMED.get(dtype, dtype)
    x = w.cast(x, wide, dtype)
    if kind == "add":
        return w.cast(w.node("CumSum", x, w.constant(np.array(axis))), dtype, wide)
    rest = [size for a, size in enumerate(shape) if a != axis]
    start = w.node("Expand", w.number(identity_of(kind, numpy_dtype(wide)), wide), w.sizes(rest))
    op = {"mul": "Mul", "max": "Max", "min": "Min"}[kind]
    order = [axis, *(a for a in range(len(shape)) if a != axis)]
    result = _scan_rows(w, op, wide, start, w.node("Transpose", x, perm=order))[1]
    return w.cast(w.node("Transpose", result, perm=[order.index(a) for a in range(len(shape))]), dtype, wide)


# Special.


@onnx_form("fft")
def _fft(w: GraphWriter, value: Value, x: ir.Value, *, inverse: bool) -> Any:
    result = w.node("DFT", x, None, w.constant(np.array(-2)), inverse=int(inverse), since=20)
    if not inverse:
        return result
    count = w.cast(w.size(_shape(value)[-1]), _part(_dtype(value)), t.INT64)
    return w.node("Mul", result, count)


@onnx_form("determinant")
def _determinant(w: GraphWriter, value: Value, x: ir.Value) -> Any:
    dtype = _dtype(value)
    wide = _SUMMED.get(dtype, dtype)
    return w.cast(w.node("Det", w.cast(x, wide, dtype)), dtype, wide)


ONNX_FORMS["stop_gradient"] = _identity
