"""Elementwise primitives, shapes, reductions, products, order and windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.jax.translation import RULES, Context, Rule, dtype_of, rule
from sardonyx.errors import UnsupportedError

INT64_MAX = np.iinfo(np.int64).max

UNARY = {
    "neg": "Neg",
    "floor": "Floor",
    "ceil": "Ceil",
    "exp": "Exp",
    "log": "Log",
    "tanh": "Tanh",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "logistic": "Sigmoid",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "sign": "Sign",
    "erf": "Erf",
    "stop_gradient": "Identity",
    "copy": "Identity",
    "copy_p": "Identity",
    "optimization_barrier": "Identity",
    "reduce_precision": "Identity",
}

BINARY = {
    "add": "Add",
    "add_any": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "pow": "Pow",
    "max": "Max",
    "min": "Min",
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "lt_to": "Less",
    "le_to": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}

REDUCTIONS = {
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}


def _unary(operator: str) -> Rule:
    return lambda c, _, x: c.node(operator, x)


def _binary(operator: str) -> Rule:
    return lambda c, _, x, y: c.node(operator, x, y)


RULES.update({name: _unary(operator) for name, operator in UNARY.items()})
RULES.update({name: _binary(operator) for name, operator in BINARY.items()})


def like(c: Context, equation: Any, value: float, index: int = 0) -> ir.Value:
    """Return a scalar of the element type of an input."""
    return c.scalar(value, dtype_of(equation.invars[index]))


@rule("ne")
def _ne(c: Context, _: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    return c.node("Not", c.node("Equal", x, y))


@rule("rem")
def _rem(c: Context, _: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    return c.node("Mod", x, y, fmod=1)


@rule("square")
def _square(c: Context, _: Any, x: ir.Value) -> ir.Value:
    return c.node("Mul", x, x)


@rule("rsqrt")
def _rsqrt(c: Context, _: Any, x: ir.Value) -> ir.Value:
    return c.node("Reciprocal", c.node("Sqrt", x))


@rule("cbrt")
def _cbrt(c: Context, e: Any, x: ir.Value) -> ir.Value:
    return c.node("Mul", c.node("Sign", x), c.node("Pow", c.node("Abs", x), like(c, e, 1 / 3)))


@rule("exp2")
def _exp2(c: Context, e: Any, x: ir.Value) -> ir.Value:
    return c.node("Pow", like(c, e, 2.0), x)


@rule("log1p")
def _log1p(c: Context, e: Any, x: ir.Value) -> ir.Value:
    one = like(c, e, 1)
    shifted = c.node("Add", x, one)
    is_small = c.node("Equal", shifted, one)
    divisor = c.node("Where", is_small, one, c.node("Sub", shifted, one))
    return c.node("Where", is_small, x, c.node("Div", c.node("Mul", c.node("Log", shifted), x), divisor))


@rule("expm1")
def _expm1(c: Context, e: Any, x: ir.Value) -> ir.Value:
    half = c.node("Tanh", c.node("Mul", x, like(c, e, 0.5)))
    product = c.node("Mul", half, c.node("Add", c.node("Exp", x), like(c, e, 1)))
    is_large = c.node("Greater", x, like(c, e, 30))
    return c.node("Where", is_large, c.node("Exp", x), product)


@rule("erfc")
def _erfc(c: Context, e: Any, x: ir.Value) -> ir.Value:
    return c.node("Sub", like(c, e, 1), c.node("Erf", x))


@rule("integer_pow")
def _integer_pow(c: Context, e: Any, x: ir.Value) -> ir.Value:
    power = int(e.params["y"])
    if power == 2:
        return c.node("Mul", x, x)
    if power == -1:
        return c.node("Reciprocal", x)
    return c.node("Pow", x, like(c, e, power))


@rule("round")
def _round(c: Context, e: Any, x: ir.Value) -> ir.Value:
    if int(e.params["rounding_method"]) == 1:
        return c.node("Round", x)
    away = c.node("Floor", c.node("Add", c.node("Abs", x), like(c, e, 0.5)))
    return c.node("Mul", c.node("Sign", x), away)


@rule("is_finite")
def _is_finite(c: Context, _: Any, x: ir.Value) -> ir.Value:
    return c.node("Not", c.node("Or", c.node("IsNaN", x), c.node("IsInf", x)))


@rule("not")
def _not(c: Context, e: Any, x: ir.Value) -> ir.Value:
    return c.node("Not" if dtype_of(e.invars[0]) == np.bool_ else "BitwiseNot", x)


def _bits(boolean: str, integer: str) -> Rule:
    return lambda c, e, x, y: c.node(boolean if dtype_of(e.invars[0]) == np.bool_ else integer, x, y)


RULES.update({"and": _bits("And", "BitwiseAnd"), "or": _bits("Or", "BitwiseOr"), "xor": _bits("Xor", "BitwiseXor")})


@rule("shift_left", "shift_right_logical")
def _shift(c: Context, e: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    dtype = dtype_of(e.invars[0])
    unsigned = np.dtype(f"u{dtype.itemsize * 8 // 8}") if dtype.kind == "i" else dtype
    direction = "LEFT" if e.primitive.name == "shift_left" else "RIGHT"
    if dtype.kind == "i":
        raise UnsupportedError("shifts of signed integers", where=e.primitive.name)
    return c.node("BitShift", c.cast(x, unsigned), c.cast(y, unsigned), direction=direction)


@rule("atan2")
def _atan2(c: Context, e: Any, y: ir.Value, x: ir.Value) -> ir.Value:
    zero = like(c, e, 0)
    turn = c.node("Where", c.node("Less", y, zero), like(c, e, -np.pi), like(c, e, np.pi))
    angle = c.node("Atan", c.node("Div", y, x))
    left = c.node("Where", c.node("Less", x, zero), c.node("Add", angle, turn), angle)
    return c.node("Where", c.node("Equal", x, zero), c.node("Mul", c.node("Sign", y), like(c, e, np.pi / 2)), left)


@rule("select_n")
def _select_n(c: Context, e: Any, which: ir.Value, *cases: ir.Value) -> ir.Value:
    if dtype_of(e.invars[0]) == np.bool_:
        return c.node("Where", which, cases[1], cases[0])
    result = cases[-1]
    for i in range(len(cases) - 2, -1, -1):
        result = c.node("Where", c.node("Equal", which, like(c, e, i)), cases[i], result)
    return result


@rule("clamp")
def _clamp(c: Context, _: Any, low: ir.Value, x: ir.Value, high: ir.Value) -> ir.Value:
    return c.node("Min", c.node("Max", x, low), high)


@rule("convert_element_type")
def _convert(c: Context, e: Any, x: ir.Value) -> ir.Value:
    return c.cast(x, e.params["new_dtype"])


@rule("dim_as_value")
def _dim_as_value(c: Context, e: Any) -> ir.Value:
    return c.cast(c.size_value(e.params["dim"]), dtype_of(e.outvars[0]))


# Shapes


@rule("broadcast_in_dim")
def _broadcast_in_dim(c: Context, e: Any, x: ir.Value, *_: ir.Value) -> ir.Value:
    shape, axes = e.params["shape"], e.params["broadcast_dimensions"]
    operand = e.invars[0].aval.shape
    inner: list[Any] = [1] * len(shape)
    for axis, target in enumerate(axes):
        inner[target] = operand[axis]
    moved = x if list(axes) == list(range(len(shape) - len(operand), len(shape))) else c.reshaped(x, inner)
    return moved if list(inner) == list(shape) and moved is not x else c.node("Expand", moved, c.sizes(shape))


@rule("reshape")
def _reshape(c: Context, e: Any, x: ir.Value, *_: ir.Value) -> ir.Value:
    return c.reshaped(x, e.params["new_sizes"])


@rule("squeeze", "expand_dims")
def _squeeze(c: Context, e: Any, x: ir.Value) -> ir.Value:
    return c.node("Squeeze", x, c.ints(e.params["dimensions"]))


@rule("transpose")
def _transpose(c: Context, e: Any, x: ir.Value) -> ir.Value:
    return c.node("Transpose", x, perm=list(e.params["permutation"]))


@rule("concatenate")
def _concatenate(c: Context, e: Any, *parts: ir.Value) -> ir.Value:
    return c.node("Concat", *parts, axis=int(e.params["dimension"]))


@rule("split")
def _split(c: Context, e: Any, x: ir.Value) -> list[ir.Value]:
    return c.nodes_of("Split", len(e.params["sizes"]), x, c.sizes(e.params["sizes"]), axis=int(e.params["axis"]))


@rule("slice")
def _slice(c: Context, e: Any, x: ir.Value) -> ir.Value:
    starts, ends, steps = e.params["start_indices"], e.params["limit_indices"], e.params["strides"]
    axes = c.ints(range(len(starts)))
    return c.node("Slice", x, c.sizes(starts), c.sizes(ends), axes, None if steps is None else c.sizes(steps))


def _starts(c: Context, operand: Sequence[Any], block: Sequence[Any], starts: Sequence[ir.Value]) -> ir.Value:
    """Return starts clamped so that the block is within the operand."""
    parts = [c.node("Reshape", c.cast(start, np.int64), c.ints([1])) for start in starts]
    most = c.node("Sub", c.sizes(operand), c.sizes(block))
    return c.node("Max", c.node("Min", c.node("Concat", *parts, axis=0), most), c.ints([0]))


@rule("dynamic_slice")
def _dynamic_slice(c: Context, e: Any, x: ir.Value, *starts: ir.Value) -> ir.Value:
    shape, block = e.invars[0].aval.shape, e.params["slice_sizes"]
    if not shape:
        return c.node("Identity", x)
    first = _starts(c, shape, block, starts[: len(shape)])
    last = c.node("Add", first, c.sizes(block))
    return c.node("Slice", x, first, last, c.ints(range(len(shape))))


@rule("dynamic_update_slice")
def _dynamic_update_slice(c: Context, e: Any, x: ir.Value, block: ir.Value, *starts: ir.Value) -> ir.Value:
    shape, sizes = e.invars[0].aval.shape, e.invars[1].aval.shape
    if not shape:
        return c.node("Identity", block)
    first = _starts(c, shape, sizes, starts)
    index = None
    strides = _strides(c, shape)
    for axis in range(len(shape)):
        line = c.node("Add", _iota(c, sizes, axis), c.node("Gather", first, c.constant(axis, np.int64)))
        part = c.node("Mul", line, strides[axis])
        index = part if index is None else c.node("Add", index, part)
    assert index is not None
    flat = c.node("Reshape", x, c.ints([-1]))
    index = c.node("Reshape", c.node("Expand", index, c.sizes(sizes)), c.ints([-1]))
    result = c.node("ScatterElements", flat, index, c.node("Reshape", block, c.ints([-1])), axis=0)
    return c.reshaped(result, shape)


def _strides(c: Context, shape: Sequence[Any]) -> list[ir.Value]:
    """Return the distance of neighbours along each axis, as int64 scalars."""
    result = [c.constant(1, np.int64)]
    for size in reversed(shape[1:]):
        result.insert(0, c.node("Mul", result[0], c.size_value(size)))
    return result


def _iota(c: Context, shape: Sequence[Any], axis: int) -> ir.Value:
    """Return 0 … size - 1 along one axis of a shape, size 1 along the others, in int64."""
    line = c.node("Range", c.constant(0, np.int64), c.size_value(shape[axis]), c.constant(1, np.int64))
    column = [1] * len(shape)
    column[axis] = -1
    return c.node("Reshape", line, c.ints(column))


@rule("iota")
def _iota_rule(c: Context, e: Any, *_: ir.Value) -> ir.Value:
    shape, axis = e.params["shape"], int(e.params["dimension"])
    return c.node("Expand", c.cast(_iota(c, shape, axis), e.params["dtype"]), c.sizes(shape))


@rule("tile")
def _tile(c: Context, e: Any, x: ir.Value) -> ir.Value:
    return c.node("Tile", x, c.sizes(e.params["reps"]))


@rule("platform_index")
def _platform_index(c: Context, e: Any) -> ir.Value:
    """Return the number of the branch for processors."""
    platforms = list(e.params["platforms"])
    number = next((i for i, names in enumerate(platforms) if names is None or "cpu" in names), 0)
    return c.scalar(number, dtype_of(e.outvars[0]))


@rule("rev")
def _rev(c: Context, e: Any, x: ir.Value) -> ir.Value:
    axes = list(e.params["dimensions"])
    minus = c.ints([-1] * len(axes))
    return c.node("Slice", x, minus, c.ints([-INT64_MAX] * len(axes)), c.ints(axes), minus)


@rule("pad")
def _pad(c: Context, e: Any, x: ir.Value, value: ir.Value) -> ir.Value:
    low, high, inner = zip(*e.params["padding_config"], strict=True) if e.params["padding_config"] else ((), (), ())
    shape = e.invars[0].aval.shape
    for axis, gap in enumerate(inner):
        if gap:
            x = _spread(c, x, shape, axis, int(gap), value)
            shape = tuple((n - 1) * (gap + 1) + 1 if i == axis else n for i, n in enumerate(shape))
    return c.node("Pad", x, c.sizes([*low, *high]), value)


def _spread(c: Context, x: ir.Value, shape: Sequence[Any], axis: int, gap: int, value: ir.Value) -> ir.Value:
    """Return elements with `gap` copies of a value between neighbours along an axis."""
    wide = c.node("Unsqueeze", x, c.ints([axis + 1]))
    pads = [0] * (2 * (len(shape) + 1))
    pads[len(shape) + 1 + axis + 1] = gap
    wide = c.node("Pad", wide, c.ints(pads), value)
    merged = [n * (gap + 1) if i == axis else n for i, n in enumerate(shape)]
    joined = c.reshaped(wide, merged)
    end = c.node("Reshape", c.size_value(merged[axis] - gap), c.ints([1]))
    return c.node("Slice", joined, c.ints([0]), end, c.ints([axis]))


# Reductions and products


def _reduction(operator: str) -> Rule:
    return lambda c, e, x: c.node(operator, x, c.ints(e.params["axes"]), keepdims=0)


RULES.update({name: _reduction(operator) for name, operator in REDUCTIONS.items()})


@rule("reduce_and", "reduce_or")
def _reduce_logical(c: Context, e: Any, x: ir.Value) -> ir.Value:
    operator = "ReduceMin" if e.primitive.name == "reduce_and" else "ReduceMax"
    number = c.node(operator, c.cast(x, np.int32), c.ints(e.params["axes"]), keepdims=0)
    return c.cast(number, np.bool_)


@rule("argmax", "argmin")
def _argmax(c: Context, e: Any, x: ir.Value) -> ir.Value:
    (axis,) = e.params["axes"]
    operator = "ArgMax" if e.primitive.name == "argmax" else "ArgMin"
    if dtype_of(e.invars[0]) == np.bool_:
        x = c.cast(x, np.int32)
    return c.cast(c.node(operator, x, axis=int(axis), keepdims=0), e.params["index_dtype"])


@rule("cumsum", "cumlogsumexp", "cumprod", "cummax", "cummin")
def _cumulative(c: Context, e: Any, x: ir.Value) -> ir.Value:
    axis, reverse = int(e.params["axis"]), int(e.params["reverse"])
    position = c.constant(axis, np.int64)
    match e.primitive.name:
        case "cumsum":
            return c.node("CumSum", x, position, reverse=reverse)
        case "cumlogsumexp":
            most = c.node("ReduceMax", x, c.ints([axis]), keepdims=1)
            total = c.node("CumSum", c.node("Exp", c.node("Sub", x, most)), position, reverse=reverse)
            return c.node("Add", c.node("Log", total), most)
    operator = {"cumprod": "ReduceProd", "cummax": "ReduceMax", "cummin": "ReduceMin"}[e.primitive.name]
    shape = e.invars[0].aval.shape
    neutral = {"cumprod": 1.0, "cummax": -np.inf, "cummin": np.inf}[e.primitive.name]
    if dtype_of(e.invars[0]).kind != "f":
        raise UnsupportedError("cumulative extremes of integers", where=e.primitive.name)
    # [..., n, ...] → [..., n (results), n (elements), ...], with the elements after each result neutral.
    wide = c.node("Unsqueeze", x, c.ints([axis]))
    square = [1] * (len(shape) + 1)
    size = c.size_value(shape[axis])
    line = c.node("Range", c.constant(0, np.int64), size, c.constant(1, np.int64))
    rows, columns = list(square), list(square)
    rows[axis], columns[axis + 1] = -1, -1
    row, column = c.node("Reshape", line, c.ints(rows)), c.node("Reshape", line, c.ints(columns))
    seen = c.node("GreaterOrEqual" if reverse else "LessOrEqual", column, row)
    return c.node(operator, c.node("Where", seen, wide, like(c, e, neutral)), c.ints([axis + 1]), keepdims=0)


@rule("dot_general")
def _dot_general(c: Context, e: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    (contract, batch) = e.params["dimension_numbers"]
    ranks = [len(v.aval.shape) for v in e.invars]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names = [[""] * rank for rank in ranks]
    for pairs in (batch, contract):
        for left, right in zip(*pairs, strict=True):
            names[0][left] = names[1][right] = next(letters)
    result = [names[0][axis] for axis in batch[0]]
    for side in range(2):
        for axis in range(ranks[side]):
            if not names[side][axis]:
                names[side][axis] = next(letters)
                result.append(names[side][axis])
    target = dtype_of(e.outvars[0])
    operands = [v if dtype_of(a) == target else c.cast(v, target) for v, a in zip((x, y), e.invars, strict=True)]
    if (
        ranks[1] == 2
        and not batch[0]
        and list(contract[0]) == [ranks[0] - 1]
        and list(contract[1]) == [0]
        and ranks[0] >= 2
    ):
        return c.node("MatMul", *operands)
    return c.node("Einsum", *operands, equation=f"{''.join(names[0])},{''.join(names[1])}->{''.join(result)}")


@rule("conv_general_dilated")
def _convolution(c: Context, e: Any, x: ir.Value, w: ir.Value) -> ir.Value:
    p = e.params
    if p["batch_group_count"] != 1:
        raise UnsupportedError("batch_group_count other than 1", where="conv_general_dilated")
    lhs, rhs, out = p["dimension_numbers"]
    x = c.node("Transpose", x, perm=list(lhs))
    w = c.node("Transpose", w, perm=list(rhs))
    shape = [e.invars[0].aval.shape[i] for i in lhs]
    for axis, factor in enumerate(p["lhs_dilation"]):
        if factor > 1:
            x = _spread(c, x, shape, axis + 2, int(factor) - 1, like(c, e, 0))
            shape[axis + 2] = (shape[axis + 2] - 1) * factor + 1
    pads = [pair[0] for pair in p["padding"]], [pair[1] for pair in p["padding"]]
    is_known = all(isinstance(n, (int, np.integer)) and n >= 0 for side in pads for n in side)
    if not is_known:
        x = c.node("Pad", x, c.sizes([0, 0, *pads[0], 0, 0, *pads[1]]))
    result = c.node(
        "Conv",
        x,
        w,
        strides=[int(n) for n in p["window_strides"]],
        dilations=[int(n) for n in p["rhs_dilation"]],
        group=int(p["feature_group_count"]),
        pads=[int(n) for side in pads for n in side] if is_known else None,
    )
    order = [list(out).index(axis) for axis in range(len(out))]
    return c.node("Transpose", result, perm=order)


@rule("reduce_window_max", "reduce_window_sum", "reduce_window_min")
def _window(c: Context, e: Any, x: ir.Value) -> ir.Value:
    p, shape, result = e.params, e.invars[0].aval.shape, e.outvars[0].aval.shape
    if any(n != 1 for n in p["base_dilation"]):
        raise UnsupportedError("base_dilation other than 1", where=e.primitive.name)
    kernel, strides, pads = p["window_dimensions"], p["window_strides"], p["padding"]
    spatial = [
        i for i, (k, s) in enumerate(zip(kernel, strides, strict=True)) if k != 1 or s != 1 or tuple(pads[i]) != (0, 0)
    ]
    if not spatial:
        return c.node("Identity", x)
    others = [i for i in range(len(shape)) if i not in spatial]
    neutral = {"reduce_window_max": -np.inf, "reduce_window_min": np.inf, "reduce_window_sum": 0.0}[e.primitive.name]
    if not all(isinstance(n, (int, np.integer)) for pair in pads for n in pair):
        ends = c.sizes([pair[side] for side in range(2) for pair in pads])
        x = c.node("Pad", x, ends, like(c, e, neutral))
        shape = [n + low + high for n, (low, high) in zip(shape, pads, strict=True)]
        pads = [(0, 0)] * len(shape)
    order = [*others, *spatial]
    flat = c.node("Transpose", x, perm=order)
    flat = c.node("Reshape", flat, c.node("Concat", c.ints([-1, 1]), c.sizes([shape[i] for i in spatial]), axis=0))
    attributes: dict[str, Any] = {
        "kernel_shape": [int(kernel[i]) for i in spatial],
        "strides": [int(strides[i]) for i in spatial],
        "pads": [int(pads[i][side]) for side in range(2) for i in spatial],
        "dilations": [int(p["window_dilation"][i]) for i in spatial],
    }
    name = e.primitive.name
    if name == "reduce_window_sum":
        pooled = c.node("AveragePool", flat, count_include_pad=1, **attributes)
        pooled = c.node("Mul", pooled, like(c, e, float(np.prod(attributes["kernel_shape"]))))
    elif name == "reduce_window_min":
        pooled = c.node("Neg", c.node("MaxPool", c.node("Neg", flat), **attributes))
    else:
        pooled = c.node("MaxPool", flat, **attributes)
    pooled = c.reshaped(pooled, [result[i] for i in order])
    return c.node("Transpose", pooled, perm=[order.index(i) for i in range(len(order))])


# Order and indices


@rule("sort")
def _sort(c: Context, e: Any, *operands: ir.Value) -> list[ir.Value]:
    if e.params["num_keys"] != 1:
        raise UnsupportedError("sorting by several keys", where="sort")
    axis = int(e.params["dimension"])
    count = c.node("Reshape", c.size_value(e.invars[0].aval.shape[axis]), c.ints([1]))
    values, order = c.nodes_of("TopK", 2, operands[0], count, axis=axis, largest=0)
    return [values, *(c.node("GatherElements", operand, order, axis=axis) for operand in operands[1:])]


@rule("top_k")
def _top_k(c: Context, e: Any, x: ir.Value) -> list[ir.Value]:
    axis = int(e.params.get("axis", len(e.invars[0].aval.shape) - 1))
    values, order = c.nodes_of("TopK", 2, x, c.ints([int(e.params["k"])]), axis=axis)
    return [values, c.cast(order, dtype_of(e.outvars[1]))]


def _positions(
    c: Context,
    indices: ir.Value,
    shape: Sequence[Any],
    window: Sequence[Any],
    numbers: Any,
    result: Sequence[Any],
    clamps: bool,
) -> tuple[ir.Value, ir.Value]:
    """Return the position of each element in the flattened operand, and True where the position is valid.

    Args:
        c: The graph.
        indices: Start indices, the vectors along the last axis.
        shape: Sizes of the operand.
        window: Sizes of the slice at each start.
        numbers: A tuple of the result's axes of windows, the operand's axes without an axis in windows, the operand's
            axis for each element of a start vector, and the batch axes of operand and indices.
        result: Sizes of the gathered result.
        clamps: Move starts so that windows are within the operand.
    """
    offset_axes, collapsed, mapped, operand_batch, index_batch = numbers
    batch_axes = [axis for axis in range(len(result)) if axis not in offset_axes]
    window_axes = [axis for axis in range(len(shape)) if axis not in collapsed and axis not in operand_batch]
    strides = _strides(c, shape)
    indices = c.cast(indices, np.int64)
    total, valid = None, None
    column = [1] * len(result)
    batch_sizes = [result[axis] if axis in batch_axes else 1 for axis in range(len(result))]
    for axis in range(len(shape)):
        position = None
        if axis in mapped:
            start = c.node("Gather", indices, c.constant(list(mapped).index(axis), np.int64), axis=-1)
            most = c.node("Sub", c.size_value(shape[axis]), c.size_value(window[axis]))
            inside = c.node(
                "And", c.node("GreaterOrEqual", start, c.constant(0, np.int64)), c.node("LessOrEqual", start, most)
            )
            inside = c.reshaped(inside, batch_sizes)
            valid = inside if valid is None else c.node("And", valid, inside)
            start = c.node("Max", c.node("Min", start, most), c.constant(0, np.int64)) if clamps else start
            position = c.reshaped(start, batch_sizes)
        elif axis in operand_batch:
            target = batch_axes[list(index_batch)[list(operand_batch).index(axis)]]
            position = _iota(c, result, target)
        if axis in window_axes:
            target = offset_axes[window_axes.index(axis)]
            line = c.node("Range", c.constant(0, np.int64), c.size_value(window[axis]), c.constant(1, np.int64))
            sizes = list(column)
            sizes[target] = -1
            line = c.node("Reshape", line, c.ints(sizes))
            position = line if position is None else c.node("Add", position, line)
        if position is not None:
            part = c.node("Mul", position, strides[axis])
            total = part if total is None else c.node("Add", total, part)
    if total is None:
        total = c.constant(0, np.int64)
    if valid is None:
        valid = c.constant(True)
    return total, valid


@rule("gather")
def _gather(c: Context, e: Any, x: ir.Value, indices: ir.Value) -> ir.Value:
    p, shape, result = e.params, e.invars[0].aval.shape, e.outvars[0].aval.shape
    d = p["dimension_numbers"]
    numbers = (
        d.offset_dims,
        d.collapsed_slice_dims,
        d.start_index_map,
        d.operand_batching_dims,
        d.start_indices_batching_dims,
    )
    index, valid = _positions(c, indices, shape, p["slice_sizes"], numbers, result, clamps=True)
    flat = c.node("Reshape", x, c.ints([-1]))
    value = c.node("Gather", flat, c.node("Expand", index, c.sizes(result)))
    if "FILL" not in str(p["mode"]):
        return value
    dtype = dtype_of(e.outvars[0])
    fill = p["fill_value"]
    if fill is None:
        fill = (
            np.nan
            if dtype.kind == "f"
            else np.iinfo(dtype).min
            if dtype.kind == "i"
            else True
            if dtype.kind == "b"
            else np.iinfo(dtype).max
        )
    return c.node("Where", valid, value, c.scalar(fill, dtype))


@rule(
    "scatter",
    "scatter-add",
    "scatter_add",
    "scatter-mul",
    "scatter_mul",
    "scatter-min",
    "scatter_min",
    "scatter-max",
    "scatter_max",
)
def _scatter(c: Context, e: Any, x: ir.Value, indices: ir.Value, updates: ir.Value) -> ir.Value:
    p, shape, result = e.params, e.invars[0].aval.shape, e.invars[2].aval.shape
    d = p["dimension_numbers"]
    window_axes = [a for a in range(len(shape)) if a not in d.inserted_window_dims and a not in d.operand_batching_dims]
    window: list[Any] = [1] * len(shape)
    for axis, target in zip(window_axes, d.update_window_dims, strict=True):
        window[axis] = result[target]
    numbers = (
        d.update_window_dims,
        d.inserted_window_dims,
        d.scatter_dims_to_operand_dims,
        d.operand_batching_dims,
        d.scatter_indices_batching_dims,
    )
    clamps = "CLIP" in str(p["mode"])
    index, valid = _positions(c, indices, shape, window, numbers, result, clamps=clamps)
    flat = c.node("Reshape", x, c.ints([-1]))
    # An element more takes the updates that are out of range, and is cut off.
    count = c.node("Shape", flat)
    spare = c.node("Concat", flat, c.node("Reshape", c.scalar(0, dtype_of(e.invars[0])), c.ints([1])), axis=0)
    if not clamps:
        index = c.node("Where", valid, index, count)
    index = c.node("Reshape", c.node("Expand", index, c.sizes(result)), c.ints([-1]))
    kind = e.primitive.name.replace("_", "-").partition("-")[2] or "none"
    merged = c.node("ScatterElements", spare, index, c.node("Reshape", updates, c.ints([-1])), axis=0, reduction=kind)
    return c.reshaped(c.node("Slice", merged, c.ints([0]), count, c.ints([0])), shape)
