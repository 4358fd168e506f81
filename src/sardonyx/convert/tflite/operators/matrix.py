"""Matrix products, softmax and normalization."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.convert.tflite.operators.movement import axes_constant
from sardonyx.convert.tflite.operators.windows import weights
from sardonyx.convert.tflite.translation import Call, tflite


@tflite("FULLY_CONNECTED")
def fully_connected(c: Call) -> ir.Value:
    """Translate x @ transpose(w) + bias; leading axes of x are flattened unless ``keep_num_dims`` is set."""
    if int(c.option("weights_format")):
        raise c.unsupported(f"weights format {c.option('weights_format')}, expected 0")
    if c.rank(1) != 2:
        raise c.invalid(f"weights of rank {c.rank(1)}, expected 2")
    x = c.input(0)
    depth = c.sizes(1)[1]
    keeps = bool(c.option("keep_num_dims")) and c.rank(0) > 1
    if not keeps and (c.rank(0) != 2 or c.sizes(0)[-1] != depth):
        x = c.node("Reshape", x, axes_constant(c, [-1, depth]))
    x = c.hybrid_rows(x, 0, 1)
    result = c.node("MatMul", x, weights(c, 1, (1, 0)))
    if c.has(2):
        result = c.node("Add", result, c.input(2))
    return c.activated(result)


@tflite("BATCH_MATMUL")
def batch_matmul(c: Call) -> ir.Value:
    """Translate products of matrices, the last two axes exchanged if ``adj`` is set."""
    operands = []
    for number, name in ((0, "adj_x"), (1, "adj_y")):
        value = c.input(number)
        if number == 0 and not c.option(name):
            value = c.hybrid_rows(value, 0, 1)
        if c.option(name):
            axes = list(range(c.rank(number)))
            axes[-1], axes[-2] = axes[-2], axes[-1]
            value = weights(c, 1, axes) if number == 1 else c.node("Transpose", value, perm=axes)
        operands.append(value)
    return c.node("MatMul", *operands)


@tflite("SOFTMAX")
def softmax(c: Call) -> ir.Value:
    """Translate softmax of beta * x along the last axis."""
    x, beta = c.input(0), float(c.option("beta", 1.0))
    if beta != 1:
        x = c.node("Mul", x, c.like(beta, 0))
    return c.node("Softmax", x, axis=-1)


@tflite("LOG_SOFTMAX")
def log_softmax(c: Call) -> ir.Value:
    """Translate the logarithm of softmax along the last axis."""
    return c.node("LogSoftmax", c.input(0), axis=-1)


@tflite("L2_NORMALIZATION")
def l2_normalization(c: Call) -> ir.Value:
    """Translate x / max(|x|, 1e-6) along the last axis."""
    x = c.input(0)
    norm = c.node("ReduceL2", x, axes_constant(c, [-1]), keepdims=1)
    return c.activated(c.node("Div", x, c.node("Max", norm, c.like(1e-6, 0))))


@tflite("STABLEHLO_DOT_GENERAL")
def dot_general(c: Call) -> ir.Value:
    """Translate sums of products over paired axes, as Einsum."""
    ranks = [c.rank(0), c.rank(1)]
    pairs = {}
    for kind in ("batching", "contracting"):
        pairs[kind] = [[int(a) for a in c.option(f"{side}_{kind}_dimensions", ())] for side in ("lhs", "rhs")]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names: list[list[str]] = [[""] * ranks[0], [""] * ranks[1]]
    for kind in ("batching", "contracting"):
        for left, right in zip(*pairs[kind], strict=True):
            names[0][left] = names[1][right] = next(letters)
    result = [names[0][axis] for axis in pairs["batching"][0]]
    for side in range(2):
        for axis in range(ranks[side]):
            if not names[side][axis]:
                names[side][axis] = next(letters)
                result.append(names[side][axis])
    equation = f"{''.join(names[0])},{''.join(names[1])}->{''.join(result)}"
    return c.node("Einsum", c.input(0), c.input(1), equation=equation)


@tflite("RFFT2D")
def rfft2d(c: Call) -> ir.Value:
    """Translate the transform of real images; complex results have a last axis of size 2."""
    height, width = c.integers(1, "the length")
    rank = c.rank(0)
    sizes = c.sizes(0)
    x = c.input(0)
    if sizes[-1] != width or sizes[-2] != height:
        pads = [0] * (2 * rank)
        if min(sizes[-2:]) < 0:
            raise c.unsupported("the transform of an image of open size")
        pads[-2:] = [height - sizes[-2], width - sizes[-1]]
        x = c.node("Pad", x, axes_constant(c, pads))
    x = c.node("Unsqueeze", x, axes_constant(c, [-1]))
    x = c.node("DFT", x, None, c.constant(rank - 1, np.int64), onesided=1)
    return c.node("DFT", x, None, c.constant(rank - 2, np.int64))


@tflite("COMPLEX_ABS")
def complex_abs(c: Call) -> ir.Value:
    """Translate the absolute value of complex numbers."""
    return c.node("ReduceL2", c.input(0), axes_constant(c, [-1]), keepdims=0)


@tflite("REAL", "IMAG")
def real(c: Call) -> ir.Value:
    """Translate a part of complex numbers."""
    return c.node("Gather", c.input(0), c.constant(int(c.name == "IMAG"), np.int64), axis=-1)
