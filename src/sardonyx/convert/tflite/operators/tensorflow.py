"""Operators of TensorFlow in a file (`Flex…`): the builtin operators of the same meaning, and others of common use."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from sardonyx.convert.tflite.operators.windows import first, last
from sardonyx.convert.tflite.translation import ALIASES, OPERATORS, Call, Translator, tflite

PREFIX = "Flex"

_BUILTIN = {
    "Abs": "ABS", "Add": "ADD", "AddV2": "ADD", "AddN": "ADD_N", "All": "REDUCE_ALL", "Any": "REDUCE_ANY",
    "ArgMax": "ARG_MAX", "ArgMin": "ARG_MIN", "Atan2": "ATAN2", "BatchMatMul": "BATCH_MATMUL",
    "BatchMatMulV2": "BATCH_MATMUL", "BatchMatMulV3": "BATCH_MATMUL", "BroadcastTo": "BROADCAST_TO", "Cast": "CAST",
    "Ceil": "CEIL", "ComplexAbs": "COMPLEX_ABS", "Cos": "COS", "Cumsum": "CUMSUM", "Div": "DIV", "Elu": "ELU",
    "Equal": "EQUAL", "Exp": "EXP", "ExpandDims": "EXPAND_DIMS", "Fill": "FILL", "Floor": "FLOOR",
    "FloorDiv": "FLOOR_DIV", "FloorMod": "FLOOR_MOD", "GatherNd": "GATHER_ND", "Greater": "GREATER",
    "GreaterEqual": "GREATER_EQUAL", "Imag": "IMAG", "Less": "LESS", "LessEqual": "LESS_EQUAL", "Log": "LOG",
    "LogicalAnd": "LOGICAL_AND", "LogicalNot": "LOGICAL_NOT", "LogicalOr": "LOGICAL_OR", "LogSoftmax": "LOG_SOFTMAX",
    "MatrixDiag": "MATRIX_DIAG", "MatrixSetDiag": "MATRIX_SET_DIAG", "Max": "REDUCE_MAX", "Maximum": "MAXIMUM",
    "Mean": "MEAN", "Min": "REDUCE_MIN", "Minimum": "MINIMUM", "Mul": "MUL", "Neg": "NEG", "NotEqual": "NOT_EQUAL",
    "Pad": "PAD", "PadV2": "PADV2", "Pow": "POW", "Prod": "REDUCE_PROD", "Range": "RANGE", "Rank": "RANK",
    "Real": "REAL", "RealDiv": "DIV", "Relu": "RELU", "Relu6": "RELU6", "Reshape": "RESHAPE", "ReverseV2": "REVERSE_V2",
    "Rint": "ROUND", "Round": "ROUND", "Rsqrt": "RSQRT", "ScatterNd": "SCATTER_ND", "Select": "SELECT",
    "SelectV2": "SELECT_V2", "Shape": "SHAPE", "Sigmoid": "LOGISTIC", "Sign": "SIGN", "Sin": "SIN", "Slice": "SLICE",
    "Sqrt": "SQRT", "Square": "SQUARE", "SquaredDifference": "SQUARED_DIFFERENCE", "StridedSlice": "STRIDED_SLICE",
    "Sub": "SUB", "Sum": "SUM", "Tanh": "TANH", "Tile": "TILE", "TopKV2": "TOPK_V2", "Transpose": "TRANSPOSE",
    "Where": "WHERE", "ZerosLike": "ZEROS_LIKE", "BitwiseXor": "BITWISE_XOR", "RightShift": "RIGHT_SHIFT",
}  # fmt: skip
"""Builtin operators whose translation holds for an operator of TensorFlow; options have the same names."""

_UNARY = {
    "Acos": "Acos",
    "Acosh": "Acosh",
    "Asin": "Asin",
    "Asinh": "Asinh",
    "Atan": "Atan",
    "Atanh": "Atanh",
    "Cosh": "Cosh",
    "Erf": "Erf",
    "Inv": "Reciprocal",
    "Invert": "BitwiseNot",
    "IsInf": "IsInf",
    "IsNan": "IsNaN",
    "MatrixDeterminant": "Det",
    "Reciprocal": "Reciprocal",
    "Selu": "Selu",
    "Sinh": "Sinh",
    "Softplus": "Softplus",
    "Softsign": "Softsign",
    "Tan": "Tan",
}
_BINARY = {"BitwiseAnd": "BitwiseAnd", "BitwiseOr": "BitwiseOr"}
_SCATTERS = {"Add": "add", "Max": "max", "Min": "min", "Update": None}


def flex(*names: str) -> Callable[[Translator], Translator]:
    """Register a function as the translation of operators of TensorFlow."""
    return tflite(*(PREFIX + name for name in names))


def _node(operator: str) -> Translator:
    return lambda c: c.node(operator, *c.reals())


def _scatter(reduction: str | None) -> Translator:
    return lambda c: c.node("ScatterND", c.input(0), c.int64(1), c.input(2), reduction=reduction)


OPERATORS.update({PREFIX + name: _node(operator) for name, operator in (_UNARY | _BINARY).items()})
OPERATORS.update({f"{PREFIX}TensorScatter{name}": _scatter(reduction) for name, reduction in _SCATTERS.items()})
ALIASES.update({PREFIX + name: builtin for name, builtin in _BUILTIN.items()})


@flex("IsFinite")
def is_finite(c: Call) -> ir.Value:
    """Translate the test for numbers that are neither infinite nor NaN."""
    return c.node("Not", c.node("Or", c.node("IsNaN", c.input(0)), c.node("IsInf", c.input(0))))


@flex("Log1p")
def log1p(c: Call) -> ir.Value:
    """Translate log(1 + x), accurate for small x: log(u) * x / (u - 1) with u = 1 + x (Kahan)."""
    x, one = c.input(0), c.like(1, 0)
    u = c.node("Add", x, one)
    difference = c.node("Sub", u, one)
    exact = c.node("Or", c.node("Equal", u, one), c.node("IsInf", u))
    divisor = c.node("Where", exact, one, difference)
    scaled = c.node("Div", c.node("Mul", c.node("Log", u), x), divisor)
    return c.node("Where", c.node("Equal", u, one), x, c.node("Where", c.node("IsInf", u), u, scaled))


@flex("Expm1")
def expm1(c: Call) -> ir.Value:
    """Translate exp(x) - 1, accurate for small x: 2 * tanh(x/2) / (1 - tanh(x/2)), at most 0.5 away from 0."""
    x, one = c.input(0), c.like(1, 0)
    half = c.node("Tanh", c.node("Mul", x, c.like(0.5, 0)))
    small = c.node("Div", c.node("Add", half, half), c.node("Sub", one, half))
    is_small = c.node("Less", c.node("Abs", x), c.like(0.5, 0))
    return c.node("Where", is_small, small, c.node("Sub", c.node("Exp", x), one))


@flex("Erfc")
def erfc(c: Call) -> ir.Value:
    """Translate 1 - erf(x)."""
    return c.node("Sub", c.like(1, 0), c.node("Erf", c.input(0)))


@flex("DivNoNan")
def div_no_nan(c: Call) -> ir.Value:
    """Translate a quotient that is 0 where the divisor is 0."""
    is_zero = c.node("Equal", c.input(1), c.like(0, 1))
    quotient = c.node("Div", c.input(0), c.node("Where", is_zero, c.like(1, 1), c.input(1)))
    return c.node("Where", is_zero, c.like(0, 0), quotient)


@flex("Xlogy")
def xlogy(c: Call) -> ir.Value:
    """Translate x * log(y), 0 where x is 0."""
    is_zero = c.node("Equal", c.input(0), c.like(0, 0))
    product = c.node("Mul", c.input(0), c.node("Log", c.input(1)))
    return c.node("Where", is_zero, c.like(0, 0), product)


@flex("TruncateMod", "Mod")
def truncate_mod(c: Call) -> ir.Value:
    """Translate the remainder with the dividend's sign."""
    return c.node("Mod", c.input(0), c.input(1), fmod=1)


@flex("TruncateDiv")
def truncate_div(c: Call) -> ir.Value:
    """Translate division rounded toward 0."""
    quotient = c.node("Div", c.input(0), c.input(1))
    if not c.output_type().is_floating_point():
        return quotient
    return c.node("Mul", c.node("Sign", quotient), c.node("Floor", c.node("Abs", quotient)))


@flex("LeftShift")
def left_shift(c: Call) -> ir.Value:
    """Translate the shift of integers to the left: shifts by more bits than the type has are undefined."""
    bits = c.cast(c.input(1), ir.DataType.UINT64)
    x = c.cast(c.cast(c.input(0), ir.DataType.INT64), ir.DataType.UINT64)
    return c.cast(c.cast(c.node("BitShift", x, bits, direction="LEFT"), ir.DataType.INT64), c.output_type())


@flex("LogicalXor")
def logical_xor(c: Call) -> ir.Value:
    """Translate the exclusive or of truth values."""
    return c.node("Xor", c.input(0), c.input(1))


@flex("Cumprod")
def cumprod(c: Call) -> ir.Value:
    """Translate products of all elements up to each: a product over a triangle of each line, 1 outside."""
    (axis,) = c.integers(1, "the axis")
    rank, size = c.rank(0), c.within(c.sizes(0)[axis], 1 << 12, "the size of the axis of a cumulative product")
    axis %= rank
    order = np.arange(size)
    rows, columns = (order[:, None], order) if not c.option("reverse") else (order, order[:, None])
    within = rows > columns if c.option("exclusive") else rows >= columns
    shape = [1] * (rank + 1)
    shape[axis] = shape[axis + 1] = size
    lines = c.node("Unsqueeze", c.input(0), c.constant([axis], np.int64))
    masked = c.node("Where", c.constant(within.reshape(shape)), lines, c.like(1, 0))
    return c.node("ReduceProd", masked, c.constant([axis + 1], np.int64), keepdims=0)


@flex("MatMul")
def matmul(c: Call) -> ir.Value:
    """Translate a product of matrices."""
    operands = [
        c.node("Transpose", c.input(number), perm=[1, 0]) if c.option(option) else c.input(number)
        for number, option in enumerate(("transpose_a", "transpose_b"))
    ]
    return c.node("MatMul", *operands)


@flex("Einsum")
def einsum(c: Call) -> ir.Value:
    """Translate a sum of products by its equation."""
    return c.node("Einsum", *c.reals(), equation=str(c.option("equation", "")))


@flex("Roll")
def roll(c: Call) -> ir.Value:
    """Translate rotations along axes: each end of an axis is exchanged with the other."""
    value = c.input(0)
    for shift, axis in zip(c.integers(1, "the shift"), c.integers(2, "the axis"), strict=True):
        size = c.sizes(0)[axis]
        if size < 0:
            raise c.unsupported("a rotation along an axis of open size")
        cut = c.constant([(-shift) % max(size, 1)], np.int64)
        axes, end = c.constant([axis], np.int64), c.constant([size], np.int64)
        parts = [
            c.node("Slice", value, cut, end, axes),
            c.node("Slice", value, c.constant([0], np.int64), cut, axes),
        ]
        value = c.node("Concat", *parts, axis=axis)
    return value


@flex("MatrixBandPart")
def matrix_band_part(c: Call) -> ir.Value:
    """Translate matrices with zeros outside a band; a negative number of diagonals is all of them."""
    (lower,), (upper,) = c.integers(1, "the lower part"), c.integers(2, "the upper part")
    value = c.input(0)
    if lower >= 0:
        value = c.node("Trilu", value, c.constant(-lower, np.int64), upper=1)
    return value if upper < 0 else c.node("Trilu", value, c.constant(upper, np.int64), upper=0)


@flex("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3")
def matrix_diag_part(c: Call) -> ir.Value:
    """Translate the main diagonal of matrices."""
    if c.has(1) and c.integers(1, "the diagonal") != [0]:
        raise c.unsupported("a diagonal other than the main one")
    height, width = (c.within(size, 1 << 12, "the size of matrices with a diagonal") for size in c.sizes(0)[-2:])
    on_diagonal = c.constant(np.eye(height, width, dtype=bool))
    diagonal = c.node("Where", on_diagonal, c.input(0), c.like(0, 0))
    rows = c.node("ReduceSum", diagonal, c.constant([-1], np.int64), keepdims=0)
    end = c.constant([min(height, width)], np.int64)
    return c.node("Slice", rows, c.constant([0], np.int64), end, c.constant([-1], np.int64))


@flex("DenseBincount", "Bincount")
def dense_bincount(c: Call) -> ir.Value:
    """Translate counts of each integer below a number, or sums of weights."""
    if c.rank(0) != 1:
        raise c.unsupported(f"counts of each row of a tensor of rank {c.rank(0)}, expected rank 1")
    indices, dtype = c.int64(0), c.output_type()
    size = c.node("Reshape", c.int64(1), c.constant([1], np.int64))
    values = c.input(2)
    if c.tensor(2).shape in ((), (0,)):
        values = c.node("ConstantOfShape", c.node("Shape", indices), value=ir.tensor(np.ones(1, dtype.numpy())))
    # Integers that are too large are not counted: their weights are added to one more element.
    longer = c.node("Add", size, c.constant([1], np.int64))
    zeros = c.node("ConstantOfShape", longer, value=ir.tensor(np.zeros(1, dtype.numpy())))
    counts = c.node("ScatterElements", zeros, c.node("Min", indices, size), values, axis=0, reduction="add")
    if c.option("binary_output", False):
        counts = c.node("Min", counts, c.constant(np.ones((), dtype.numpy())))
    return c.node("Slice", counts, c.constant([0], np.int64), size)


@flex("Complex")
def complex_(c: Call) -> ir.Value:
    """Translate complex numbers from their parts: pairs along a last axis."""
    last_axis = c.constant([-1], np.int64)
    parts = [c.node("Unsqueeze", c.input(number), last_axis) for number in (0, 1)]
    return c.node("Concat", *parts, axis=-1)


@flex("RFFT", "FFT", "IFFT")
def fourier(c: Call) -> ir.Value:
    """Translate transforms of the last axis, padded or cut to the length."""
    name, rank, x = c.name.removeprefix(PREFIX), c.rank(0), c.input(0)
    if name != "RFFT":
        return c.node("DFT", x, None, c.constant(rank - 1, np.int64), inverse=int(name == "IFFT"))
    length = c.constant(c.integers(1, "the length")[0], np.int64)
    x = c.node("Unsqueeze", x, c.constant([-1], np.int64))
    return c.node("DFT", x, length, c.constant(rank - 1, np.int64), onesided=1)


@flex("MaxPoolWithArgmax")
def max_pool_with_argmax(c: Call) -> list[ir.Value]:
    """Translate maxima and their indices, which count rows, columns and then channels of an image."""
    kernel, strides = (list(c.option(name, [1] * 4))[1:3] for name in ("ksize", "strides"))
    height, width, channels = (c.within(size, 1 << 16, "the size of images with maxima") for size in c.sizes(0)[1:])
    if c.option("include_batch_in_index", False):
        raise c.unsupported("indices of maxima that are counted across images")
    pads = {"auto_pad": "SAME_UPPER"} if c.option("padding") == "SAME" else {}
    largest, positions = c.nodes("MaxPool", 2, first(c, c.input(0)), kernel_shape=kernel, strides=strides, **pads)
    pixel = last(c, c.node("Mod", positions, c.constant(height * width, np.int64)))
    index = c.node("Add", c.node("Mul", pixel, c.constant(channels, np.int64)), c.constant(np.arange(channels)))
    return [last(c, largest), c.cast(index, c.output_type(1))]


@flex("ExtractImagePatches")
def extract_image_patches(c: Call) -> ir.Value:
    """Translate patches of images as a convolution with one weight of 1 for each element of a patch."""
    kernel, strides, rates = (list(c.option(name, [1] * 4))[1:3] for name in ("ksizes", "strides", "rates"))
    channels = c.sizes(0)[3]
    count = math.prod(kernel) * channels
    if channels < 1 or not 0 < count * count <= 1 << 24:
        raise c.unsupported(f"patches of {count} elements")
    weights = np.eye(count, dtype=np.float32).reshape(count, *kernel, channels).transpose(0, 3, 1, 2)
    pads = {"auto_pad": "SAME_UPPER"} if c.option("padding") == "SAME" else {}
    filters = c.constant(np.ascontiguousarray(weights).astype(c.output_type().numpy()))
    return last(c, c.node("Conv", first(c, c.input(0)), filters, strides=strides, dilations=rates, **pads))


@flex("ResizeBicubic")
def resize_bicubic(c: Call) -> ir.Value:
    """Translate cubic resizing: with half-pixel centers by Keys' weights within the image, else by those of 1981."""
    height, width = c.integers(1, "the size")
    half, corners = c.option("half_pixel_centers", False), c.option("align_corners", False)
    sizes = c.node(
        "Concat",
        c.node("Shape", c.input(0), start=0, end=1),
        c.node("Shape", c.input(0), start=3, end=4),
        c.constant([height, width], np.int64),
        axis=0,
    )
    modes = {True: "half_pixel", False: "align_corners" if corners else "asymmetric"}
    resized = c.node(
        "Resize",
        first(c, c.cast(c.input(0), ir.DataType.FLOAT)),
        None,
        None,
        sizes,
        mode="cubic",
        coordinate_transformation_mode=modes[bool(half)],
        cubic_coeff_a=-0.5 if half else -0.75,
        exclude_outside=int(half),
    )
    return last(c, resized)


@flex("CropAndResize")
def crop_and_resize(c: Call) -> ir.Value:
    """Translate parts of images, resized linearly: products with weights of rows and of columns."""
    if c.option("method", "bilinear") != "bilinear":
        raise c.unsupported(f"method '{c.option('method')}', expected 'bilinear'")
    sizes = c.integers(3, "the size")
    images = c.node("Gather", c.cast(c.input(0), ir.DataType.FLOAT), c.input(2), axis=0)
    weights, inside = [], []
    for axis, count in enumerate(sizes):
        extent = c.within(c.sizes(0)[1 + axis], 1 << 16, "the size of images with parts")
        c.within(count, 1 << 16, "the size of parts of images")
        low, high = (c.node("Gather", c.input(1), c.constant([axis + 2 * end], np.int64), axis=1) for end in (0, 1))
        if count > 1:
            share = c.constant((np.arange(count) / (count - 1)).astype(np.float32))
            position = c.node("Add", low, c.node("Mul", c.node("Sub", high, low), share))
        else:
            position = c.node("Mul", c.node("Add", low, high), c.constant(np.float32(0.5)))
        position = c.node("Mul", position, c.constant(np.float32(extent - 1)))
        inside.append(
            c.node(
                "And",
                c.node("GreaterOrEqual", position, c.constant(np.float32(0))),
                c.node("LessOrEqual", position, c.constant(np.float32(extent - 1))),
            )
        )
        centres = c.constant(np.arange(extent, dtype=np.float32))
        distance = c.node("Sub", c.node("Unsqueeze", position, c.constant([-1], np.int64)), centres)
        weight = c.node("Sub", c.constant(np.float32(1)), c.node("Abs", distance))
        weights.append(c.node("Max", weight, c.constant(np.float32(0))))
    crops = c.node("Einsum", weights[0], images, weights[1], equation="nyh,nhwc,nxw->nyxc")
    rows, columns = (
        c.node("Unsqueeze", mask, c.constant(axes, np.int64))
        for mask, axes in zip(inside, ([2, 3], [1, 3]), strict=True)
    )
    outside = c.constant(np.float32(c.option("extrapolation_value", 0.0)))
    return c.node("Where", c.node("And", rows, columns), crops, outside)
