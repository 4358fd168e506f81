"""Functions of single elements, and binary operators with broadcasting."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from sardonyx.convert.tflite.translation import OPERATORS, Call, Translator, tflite

UNARY = {
    "ABS": "Abs",
    "CEIL": "Ceil",
    "COS": "Cos",
    "EXP": "Exp",
    "FLOOR": "Floor",
    "LOG": "Log",
    "NEG": "Neg",
    "ROUND": "Round",
    "SIN": "Sin",
    "SQRT": "Sqrt",
    "LOGISTIC": "Sigmoid",
    "TANH": "Tanh",
    "RELU": "Relu",
    "ELU": "Elu",
    "HARD_SWISH": "HardSwish",
    "SIGN": "Sign",
    "LOGICAL_NOT": "Not",
    "STABLEHLO_LOGISTIC": "Sigmoid",
    "STABLEHLO_ABS": "Abs",
    "STABLEHLO_COSINE": "Cos",
    "STABLEHLO_EXPONENTIAL": "Exp",
    "STABLEHLO_FLOOR": "Floor",
    "STABLEHLO_LOG": "Log",
    "STABLEHLO_NEGATE": "Neg",
    "STABLEHLO_TANH": "Tanh",
}
"""Operators of one input that ONNX has under another name."""

BINARY = {
    "ADD": "Add",
    "SUB": "Sub",
    "MUL": "Mul",
    "DIV": "Div",
    "MAXIMUM": "Max",
    "MINIMUM": "Min",
    "POW": "Pow",
    "EQUAL": "Equal",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "LOGICAL_AND": "And",
    "LOGICAL_OR": "Or",
    "BITWISE_XOR": "BitwiseXor",
    "STABLEHLO_ADD": "Add",
    "STABLEHLO_SUBTRACT": "Sub",
    "STABLEHLO_MULTIPLY": "Mul",
    "STABLEHLO_DIVIDE": "Div",
    "STABLEHLO_MAXIMUM": "Max",
    "STABLEHLO_MINIMUM": "Min",
    "STABLEHLO_POWER": "Pow",
}
"""Operators of two inputs that ONNX has under another name."""


def _unary(operator: str) -> Translator:
    return lambda c: c.node(operator, c.input(0))


def _binary(operator: str) -> Translator:
    return lambda c: c.activated(c.node(operator, c.input(0), c.input(1)))


OPERATORS.update({name: _unary(operator) for name, operator in UNARY.items()})
OPERATORS.update({name: _binary(operator) for name, operator in BINARY.items()})


@tflite("NOT_EQUAL")
def not_equal(c: Call) -> ir.Value:
    """Translate inequality."""
    return c.node("Not", c.node("Equal", c.input(0), c.input(1)))


@tflite("SQUARE")
def square(c: Call) -> ir.Value:
    """Translate x * x."""
    return c.node("Mul", c.input(0), c.input(0))


@tflite("RSQRT", "STABLEHLO_RSQRT")
def rsqrt(c: Call) -> ir.Value:
    """Translate 1 / sqrt(x)."""
    return c.node("Reciprocal", c.node("Sqrt", c.input(0)))


@tflite("STABLEHLO_CBRT")
def cube_root(c: Call) -> ir.Value:
    """Translate the cube root, with the sign of x."""
    x = c.input(0)
    root = c.node("Pow", c.node("Abs", x), c.like(1 / 3, 0))
    return c.node("Mul", c.node("Sign", x), root)


@tflite("RELU6")
def relu6(c: Call) -> ir.Value:
    """Translate clipping to 0 … 6."""
    return c.node("Clip", c.input(0), c.like(0, 0), c.like(6, 0))


@tflite("RELU_N1_TO_1")
def relu_n1_to_1(c: Call) -> ir.Value:
    """Translate clipping to -1 … 1."""
    return c.node("Clip", c.input(0), c.like(-1, 0), c.like(1, 0))


@tflite("RELU_0_TO_1")
def relu_0_to_1(c: Call) -> ir.Value:
    """Translate clipping to 0 … 1."""
    return c.node("Clip", c.input(0), c.like(0, 0), c.like(1, 0))


@tflite("STABLEHLO_CLAMP")
def clamp(c: Call) -> ir.Value:
    """Translate min(max(x, low), high)."""
    return c.node("Min", c.node("Max", c.input(1), c.input(0)), c.input(2))


@tflite("LEAKY_RELU")
def leaky_relu(c: Call) -> ir.Value:
    """Translate x, or alpha * x where negative."""
    return c.node("LeakyRelu", c.input(0), alpha=float(c.option("alpha")))


@tflite("PRELU")
def prelu(c: Call) -> ir.Value:
    """Translate x, or a slope per channel times x where negative."""
    return c.node("PRelu", c.input(0), c.input(1))


@tflite("GELU")
def gelu(c: Call) -> ir.Value:
    """Translate the Gaussian error linear unit, exact or by tanh."""
    return c.node("Gelu", c.input(0), approximate="tanh" if c.option("approximate") else "none")


@tflite("ZEROS_LIKE")
def zeros_like(c: Call) -> ir.Value:
    """Translate zeros of the input's sizes."""
    zero = ir.tensor(np.zeros(1, c.output_type().numpy()))
    if c.scope.is_quantized(c.record.outputs[0]):
        zero = ir.tensor(np.zeros(1, np.float32))
    return c.node("ConstantOfShape", c.node("Shape", c.stored(0)), value=zero)


@tflite("SQUARED_DIFFERENCE")
def squared_difference(c: Call) -> ir.Value:
    """Translate (x - y)²."""
    difference = c.node("Sub", c.input(0), c.input(1))
    return c.node("Mul", difference, difference)


@tflite("FLOOR_DIV")
def floor_div(c: Call) -> ir.Value:
    """Translate division rounded toward minus infinity."""
    x, y = c.input(0), c.input(1)
    quotient = c.node("Div", x, y)
    if c.output_type().is_floating_point():
        return c.node("Floor", quotient)
    remainder = c.node("Sub", x, c.node("Mul", quotient, y))
    zero = c.like(0, 0)
    rounds_down = c.node(
        "And",
        c.node("Not", c.node("Equal", remainder, zero)),
        c.node("Xor", c.node("Less", remainder, zero), c.node("Less", y, zero)),
    )
    return c.node("Sub", quotient, c.cast(rounds_down, c.output_type()))


@tflite("FLOOR_MOD")
def floor_mod(c: Call) -> ir.Value:
    """Translate the remainder with the divisor's sign."""
    x, y = c.input(0), c.input(1)
    if not c.output_type().is_floating_point():
        return c.node("Mod", x, y)
    remainder = c.node("Mod", x, y, fmod=1)
    zero = c.like(0, 0)
    differs = c.node("Xor", c.node("Less", remainder, zero), c.node("Less", y, zero))
    moved = c.node("And", differs, c.node("Not", c.node("Equal", remainder, zero)))
    return c.node("Where", moved, c.node("Add", remainder, y), remainder)


@tflite("STABLEHLO_REMAINDER")
def remainder(c: Call) -> ir.Value:
    """Translate the remainder with the dividend's sign."""
    return c.node("Mod", c.input(0), c.input(1), fmod=1)


@tflite("ATAN2")
def atan2(c: Call) -> ir.Value:
    """Translate the angle of the point (x, y), from y and x."""
    y, x = c.input(0), c.input(1)
    zero, half = c.like(0, 0), c.like(math.pi / 2, 0)
    half_turn = c.node("Where", c.node("Less", y, zero), c.like(-math.pi, 0), c.like(math.pi, 0))
    angle = c.node("Atan", c.node("Div", y, x))
    left = c.node("Where", c.node("Less", x, zero), c.node("Add", angle, half_turn), angle)
    return c.node("Where", c.node("Equal", x, zero), c.node("Mul", c.node("Sign", y), half), left)


@tflite("ADD_N")
def add_n(c: Call) -> ir.Value:
    """Translate the sum of all inputs."""
    return c.node("Sum", *c.reals()) if len(c.record.inputs) > 1 else c.node("Identity", c.input(0))


@tflite("RIGHT_SHIFT")
def right_shift(c: Call) -> ir.Value:
    """Translate the arithmetic shift: division by a power of two, rounded toward minus infinity."""
    x, bits = c.cast(c.input(0), ir.DataType.INT64), c.cast(c.input(1), ir.DataType.INT64)
    bits = c.node("Clip", bits, c.constant(0, np.int64), c.constant(62, np.int64))
    power = c.node("Pow", c.constant(2, np.int64), bits)
    return c.cast(c.node("Div", c.node("Sub", x, c.node("Mod", x, power)), power), c.output_type())


@tflite("SELECT", "SELECT_V2", "STABLEHLO_SELECT")
def select(c: Call) -> ir.Value:
    """Translate the choice between two tensors; a condition of SELECT may be over the first axis alone."""
    condition = c.input(0)
    if c.name == "SELECT" and c.rank(0) == 1 < c.rank(1):
        axes = list(range(1, c.rank(1)))
        condition = c.node("Unsqueeze", condition, c.constant(axes, np.int64))
    return c.node("Where", condition, c.input(1), c.input(2))


@tflite("CAST", "STABLEHLO_CONVERT")
def cast(c: Call) -> ir.Value:
    """Translate conversion of elements."""
    return c.cast(c.input(0), c.output_type())


@tflite("QUANTIZE", "DEQUANTIZE")
def quantize(c: Call) -> ir.Value:
    """Translate a change of quantization: reading and writing tensors converts already."""
    value = c.input(0)
    if c.tensor(0).type in ("FLOAT16", "BFLOAT16"):
        return c.cast(value, c.output_type())
    return value if value.producer() is not None else c.node("Identity", value)


@tflite("DENSIFY")
def densify(c: Call) -> ir.Value:
    """Translate a compressed constant: reading expands the elements already."""
    return c.node("Identity", c.input(0))


@tflite("FAKE_QUANT")
def fake_quant(c: Call) -> ir.Value:
    """Translate quantization to 8 bits and back, with the range moved so that 0 is exact."""
    bits, narrow = int(c.option("num_bits")), bool(c.option("narrow_range"))
    low, high = float(c.option("min")), float(c.option("max"))
    if not 2 <= bits <= 16 or not low < high:
        raise c.invalid(f"expected 2 to 16 bits and an ascending range, got {bits} bits and {low} to {high}")
    least, most = float(narrow), float(2**bits - 1)
    scale = (high - low) / (most - least)
    zero = min(max(round(least - low / scale), least), most)
    start, end = np.float32((least - zero) * scale), np.float32((most - zero) * scale)
    clipped = c.node("Clip", c.input(0), c.constant(start), c.constant(end))
    steps = c.node("Mul", c.node("Sub", clipped, c.constant(start)), c.constant(np.float32(1 / scale)))
    whole = c.node("Floor", c.node("Add", steps, c.constant(np.float32(0.5))))
    return c.node("Add", c.node("Mul", whole, c.constant(np.float32(scale))), c.constant(start))


@tflite("BITCAST")
def bitcast(c: Call) -> ir.Value:
    """Translate reinterpretation of elements of equal width."""
    if c.scope.type(c.tensor(0)).bitwidth != c.output_type().bitwidth:
        raise c.unsupported(f"reinterpretation of {c.tensor(0).type} as {c.output().type} changes the rank")
    raise c.unsupported(f"ONNX opset {21} has no reinterpretation of {c.tensor(0).type} as {c.output().type}")
