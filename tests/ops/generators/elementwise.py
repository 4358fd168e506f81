"""Cases of elementwise operators and conversions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

from tests.ops.generators.draw import FLOATS, HALVES, INTS, SMALL, UNSIGNED, Case, Draw
from tests.ops.generators.table import draws


@draws("Abs", "Neg", "Sign")
def signed(draw: Draw, name: str) -> Case:
    dtype = draw.pick(*FLOATS, *HALVES, *INTS, np.int8, np.int16)
    return Case(name, 13, [draw.array(draw.shape(), dtype)])


@draws(
    "Floor", "Ceil", "Round", "Reciprocal", "Sqrt", "Exp", "Log", "Erf", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan",
    "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "IsNaN", "Sigmoid", "Softplus", "Softsign", "Relu", "HardSwish",
    "Mish", "Selu",
)  # fmt: skip
def of_floats(draw: Draw, name: str) -> Case:
    return Case(name, 22, [draw.array(draw.shape(), draw.pick(*FLOATS, np.float16))])


@draws("BitwiseNot")
def bits(draw: Draw, name: str) -> Case:
    return Case(name, 18, [draw.array(draw.shape(), draw.pick(*INTS, *SMALL))])


@draws("Not")
def negation(draw: Draw, name: str) -> Case:
    return Case(name, 1, [draw.array(draw.shape(), np.bool_)])


@draws("Identity")
def identity(draw: Draw, name: str) -> Case:
    return Case(name, 21, [draw.array(draw.shape(), draw.pick(*FLOATS, *INTS, np.bool_, object))])


@draws("Add", "Sub", "Mul")
def arithmetic(draw: Draw, name: str) -> Case:
    shape, dtype = draw.shape(), draw.pick(*FLOATS, *FLOATS, np.float16, *INTS)
    if draw.chance(0.15):
        inner = draw.integer(0, len(shape))
        other, options = shape[inner:], {"broadcast": 1} | ({"axis": inner} if inner < len(shape) else {})
        return Case(name, 6, [draw.array(shape, np.float32), draw.array(other, np.float32)], options)
    pair = [draw.array(shape, dtype), draw.array(draw.partner(shape), dtype)]
    return Case(name, draw.pick(7, 13, 14), pair[:: draw.pick(1, -1)])


@draws("Div")
def division(draw: Draw, name: str) -> Case:
    shape, dtype = draw.shape(), draw.pick(*FLOATS, *INTS)
    divisor = draw.array(draw.partner(shape), dtype)
    if dtype in INTS:
        divisor = np.where(divisor == 0, 3, divisor).astype(dtype)
    return Case(name, draw.pick(7, 13, 14), [draw.array(shape, dtype), divisor])


@draws("Mod")
def modulus(draw: Draw, name: str) -> Case:
    shape, fmod = draw.shape(), draw.integer(0, 1)
    dtype = draw.pick(*FLOATS, *INTS, *SMALL) if fmod else draw.pick(*INTS, *SMALL)
    divisor = draw.array(draw.partner(shape), dtype, special=False)
    divisor = np.where(divisor == 0, 3, divisor).astype(dtype)
    return Case(name, draw.pick(10, 13), [draw.array(shape, dtype, special=False), divisor], {"fmod": fmod})


@draws("Pow")
def power(draw: Draw, name: str) -> Case:
    shape, dtype = draw.shape(), draw.pick(*FLOATS, *INTS)
    kind = draw.pick(*FLOATS, *INTS) if draw.chance(0.4) else dtype
    exponent = draw.array(draw.partner(shape), kind, low=0, high=3)
    if dtype in INTS:
        exponent = np.asarray(np.abs(np.nan_to_num(np.round(exponent), posinf=2)) % 4).astype(kind)
    return Case(name, draw.pick(13, 15), [draw.array(shape, dtype), exponent])


@draws("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
def comparison(draw: Draw, name: str) -> Case:
    shape, dtype = draw.shape(), draw.pick(*FLOATS, *INTS)
    pair = [draw.array(shape, dtype, -2, 2), draw.array(draw.partner(shape), dtype, -2, 2)]
    return Case(name, draw.pick(13, 16), pair)


@draws("And", "Or", "Xor")
def logic(draw: Draw, name: str) -> Case:
    shape = draw.shape()
    return Case(name, 7, [draw.array(shape, np.bool_), draw.array(draw.partner(shape), np.bool_)])


@draws("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(draw: Draw, name: str) -> Case:
    shape, dtype = draw.shape(), draw.pick(*INTS, *SMALL)
    return Case(name, 18, [draw.array(shape, dtype), draw.array(draw.partner(shape), dtype)])


@draws("BitShift")
def shift(draw: Draw, name: str) -> Case:
    shape, dtype = draw.shape(), draw.pick(*UNSIGNED)
    by = draw.array(draw.partner(shape), dtype, 0, 7)
    return Case(name, 11, [draw.array(shape, dtype), by], {"direction": draw.pick("LEFT", "RIGHT")})


@draws("Max", "Min", "Sum", "Mean")
def variadic(draw: Draw, name: str) -> Case:
    shape = draw.shape()
    dtype = draw.pick(*FLOATS, *INTS) if name in ("Max", "Min") else draw.pick(*FLOATS)
    operands = [draw.array(draw.partner(shape) if i else shape, dtype) for i in range(draw.integer(1, 4))]
    return Case(name, 13, operands)


@draws("IsInf")
def infinite(draw: Draw, name: str) -> Case:
    options = draw.options(detect_negative=draw.integer(0, 1), detect_positive=draw.integer(0, 1))
    return Case(name, draw.pick(10, 20), [draw.array(draw.shape(), draw.pick(*FLOATS))], options)


@draws("Where")
def choice(draw: Draw, name: str) -> Case:
    shape, dtype = draw.shape(), draw.pick(*FLOATS, *INTS, np.uint8, object)
    condition = draw.array(draw.partner(shape), np.bool_)
    return Case(name, 16, [condition, draw.array(shape, dtype), draw.array(draw.partner(shape), dtype)])


@draws("Clip")
def clip(draw: Draw, name: str) -> Case:
    if draw.chance(0.3):
        options = draw.options(min=-1.0, max=1.5)
        return Case(name, 6, [draw.array(draw.shape())], options)
    dtype = draw.pick(*FLOATS, *INTS, np.uint8)
    bounds = [draw.maybe(lambda: draw.array((), dtype, special=False), 0.7) for _ in range(2)]
    return Case(name, draw.pick(12, 13), [draw.array(draw.shape(), dtype), *bounds])


@draws("LeakyRelu", "ThresholdedRelu", "Elu", "Celu")
def scaled(draw: Draw, name: str) -> Case:
    dtype = np.float32 if name == "Celu" else draw.pick(*FLOATS)
    opset = {"Celu": 12, "Elu": 22, "ThresholdedRelu": 22}.get(name, 16)
    return Case(name, opset, [draw.array(draw.shape(), dtype)], draw.options(alpha=draw.pick(0.3, 1.5)))


@draws("Swish")
def swish(draw: Draw, name: str) -> Case:
    return Case(name, 24, [draw.array(draw.shape(), draw.pick(*FLOATS))], draw.options(alpha=draw.pick(0.5, 2.0)))


@draws("SwiGLU")
def swiglu(draw: Draw, name: str) -> Case:
    shape = draw.shape()
    return Case(name, 28, [draw.array(shape), draw.array(shape)])


@draws("HardSigmoid")
def hard_sigmoid(draw: Draw, name: str) -> Case:
    return Case(name, 22, [draw.array(draw.shape())], draw.options(alpha=0.4, beta=0.1))


@draws("Gelu")
def gelu(draw: Draw, name: str) -> Case:
    options = draw.options(approximate=draw.pick("none", "tanh"))
    return Case(name, 20, [draw.array(draw.shape(), draw.pick(*FLOATS))], options)


@draws("Shrink")
def shrink(draw: Draw, name: str) -> Case:
    options = draw.options(bias=draw.pick(0.0, 0.5, 1.5), lambd=draw.pick(0.5, 1.0, 2.5))
    return Case(name, 9, [draw.array(draw.shape(), draw.pick(*FLOATS, *INTS, np.int8))], options)


@draws("PRelu")
def prelu(draw: Draw, name: str) -> Case:
    shape, dtype = draw.shape(1), draw.pick(*FLOATS)
    return Case(name, draw.pick(9, 16), [draw.array(shape, dtype), draw.array(draw.partner(shape) or (1,), dtype)])


@draws("Softmax", "LogSoftmax", "Hardmax")
def over_an_axis(draw: Draw, name: str) -> Case:
    shape, opset = draw.shape(1), draw.pick(11, 13)
    return Case(name, opset, [draw.array(shape, special=False)], draw.options(axis=draw.axis(len(shape))))


@draws("Dropout")
def dropout(draw: Draw, name: str) -> Case:
    x = draw.array(draw.shape(), draw.pick(*FLOATS))
    if draw.chance(0.5):
        return Case(name, 10, [x], draw.options(ratio=0.3), draw.pick(1, 2))
    return Case(name, 13, [x, draw.maybe(lambda: np.array(0.3, np.float32))], {}, draw.pick(1, 2))


_CASTS: tuple[Any, ...] = (*FLOATS, *HALVES, *INTS, *SMALL, np.uint32, np.uint64, np.bool_)
_EIGHT_BITS: tuple[Any, ...] = (
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz,
)  # fmt: skip


def _castable(draw: Draw, source: Any, target: Any) -> Any:
    """Return numbers that both types represent, except for fractions and rounding."""
    x = draw.numbers.standard_normal(draw.shape()) * draw.pick(1, 20, 100)
    if "u" in (np.dtype(source).kind, np.dtype(target).kind):
        x = np.abs(x)
    return np.asarray(np.clip(x, -120, 120)).astype(source)


@draws("Cast")
def cast(draw: Draw, name: str) -> Case:
    source, target = draw.pick(*_CASTS, *_EIGHT_BITS), draw.pick(*_CASTS, *_EIGHT_BITS)
    to = helper.np_dtype_to_tensor_dtype(np.dtype(target))
    options = {"saturate": draw.integer(0, 1)} if target in _EIGHT_BITS else {}
    return Case(name, draw.pick(19, 21), [_castable(draw, source, target)], {"to": to, **options})


@draws("CastLike")
def cast_like(draw: Draw, name: str) -> Case:
    source, target = draw.pick(*_CASTS), draw.pick(*_CASTS)
    return Case(name, 19, [_castable(draw, source, target), np.zeros(draw.shape(0, 2), target)])


@draws("BitCast")
def bit_cast(draw: Draw, name: str) -> Case:
    source, target = draw.pick(
        (np.float32, np.int32), (np.int64, np.float64), (np.uint8, np.int8), (np.int16, np.float16)
    )
    to = helper.np_dtype_to_tensor_dtype(np.dtype(target))
    return Case(name, 26, [draw.array(draw.shape(), source, special=False)], {"to": to})
