"""Elementwise primitives, shapes, reductions and products."""

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
}

BINARY = {
    "add": "Add",
    "add_any": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "pow": "Pow",
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


def extremes(dtype: Any) -> tuple[Any, Any]:
    """Return the least and the greatest number of an element type."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return -np.inf, np.inf


@rule("ne")
def _ne(c: Context, _: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    return c.node("Not", c.node("Equal", x, y))


@rule("rem")
def _rem(c: Context, e: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    known = y.const_value
    if dtype_of(e.invars[1]).kind not in "iu" or (known is not None and bool(np.all(known.numpy()))):
        return c.node("Mod", x, y, fmod=1)
    # The remainder by 0 is the dividend in XLA; engines of ONNX refuse it.
    is_zero = c.node("Equal", y, like(c, e, 0, 1))
    return c.node("Where", is_zero, x, c.node("Mod", x, c.node("Where", is_zero, like(c, e, 1, 1), y), fmod=1))


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


def _extreme(numbers: str, booleans: str) -> Rule:
    return lambda c, e, x, y: c.node(booleans if dtype_of(e.invars[0]) == np.bool_ else numbers, x, y)


RULES.update({"max": _extreme("Max", "Or"), "min": _extreme("Min", "And")})
RULES.update({"and": _bits("And", "BitwiseAnd"), "or": _bits("Or", "BitwiseOr"), "xor": _bits("Xor", "BitwiseXor")})


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


@rule("stack")
def _stack(c: Context, e: Any, *parts: ir.Value) -> ir.Value:
    axis = c.ints([int(e.params["axis"])])
    return c.node("Concat", *(c.node("Unsqueeze", part, axis) for part in parts), axis=int(e.params["axis"]))


@rule("unstack")
def _unstack(c: Context, e: Any, x: ir.Value) -> list[ir.Value]:
    axis, count = int(e.params["axis"]), len(e.outvars)
    parts = c.nodes_of("Split", count, x, axis=axis, num_outputs=count)
    return [c.node("Squeeze", part, c.ints([axis])) for part in parts]


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
    strides = strides_of(c, shape)
    for axis in range(len(shape)):
        line = c.node("Add", iota(c, sizes, axis), c.node("Gather", first, c.constant(axis, np.int64)))
        part = c.node("Mul", line, strides[axis])
        index = part if index is None else c.node("Add", index, part)
    assert index is not None
    flat = c.node("Reshape", x, c.ints([-1]))
    index = c.node("Reshape", c.node("Expand", index, c.sizes(sizes)), c.ints([-1]))
    result = c.node("ScatterElements", flat, index, c.node("Reshape", block, c.ints([-1])), axis=0)
    return c.reshaped(result, shape)


def strides_of(c: Context, shape: Sequence[Any]) -> list[ir.Value]:
    """Return the distance of neighbours along each axis, as int64 scalars."""
    result = [c.constant(1, np.int64)]
    for size in reversed(shape[1:]):
        result.insert(0, c.node("Mul", result[0], c.size_value(size)))
    return result


def iota(c: Context, shape: Sequence[Any], axis: int) -> ir.Value:
    """Return 0 … size - 1 along one axis of a shape, size 1 along the others, in int64."""
    line = c.node("Range", c.constant(0, np.int64), c.size_value(shape[axis]), c.constant(1, np.int64))
    column = [1] * len(shape)
    column[axis] = -1
    return c.node("Reshape", line, c.ints(column))


@rule("iota")
def _iota_rule(c: Context, e: Any, *_: ir.Value) -> ir.Value:
    shape, axis = e.params["shape"], int(e.params["dimension"])
    return c.node("Expand", c.cast(iota(c, shape, axis), e.params["dtype"]), c.sizes(shape))


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
            x = spread(c, x, shape, axis, int(gap), value)
            shape = tuple((n - 1) * (gap + 1) + 1 if i == axis else n for i, n in enumerate(shape))
    return c.node("Pad", x, c.sizes([*low, *high]), value)


def spread(c: Context, x: ir.Value, shape: Sequence[Any], axis: int, gap: int, value: ir.Value) -> ir.Value:
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


def _over_axes(c: Context, operator: str, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Return a reduction over axes; over none, the operand, where a node would reduce all."""
    return c.node(operator, x, c.ints(axes), keepdims=0) if len(axes) else c.node("Identity", x)


def _reduction(operator: str) -> Rule:
    return lambda c, e, x: _over_axes(c, operator, x, e.params["axes"])


RULES.update({name: _reduction(operator) for name, operator in REDUCTIONS.items()})


@rule("reduce_and", "reduce_or")
def _reduce_logical(c: Context, e: Any, x: ir.Value) -> ir.Value:
    operator = "ReduceMin" if e.primitive.name == "reduce_and" else "ReduceMax"
    number = _over_axes(c, operator, c.cast(x, np.int32), e.params["axes"])
    return c.cast(number, np.bool_)


@rule("reduce")
def _reduce(c: Context, e: Any, *inputs: ir.Value) -> ir.Value:
    """Translate a reduction whose function is one primitive of those that have a reduction."""
    equations = e.params["jaxpr"].eqns if hasattr(e.params["jaxpr"], "eqns") else e.params["jaxpr"].jaxpr.eqns
    names = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}
    name = equations[0].primitive.name if len(equations) == 1 and len(inputs) == 2 else ""
    if name not in names:
        raise UnsupportedError("a reduction by a function other than add, mul, max and min", where="jax")
    operator = {"add": "ReduceSum", "mul": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}[name]
    return c.node(names[name], _over_axes(c, operator, inputs[0], e.params["dimensions"]), inputs[1])


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
    least, most = extremes(dtype_of(e.invars[0]))
    neutral = {"cumprod": 1, "cummax": least, "cummin": most}[e.primitive.name]
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
