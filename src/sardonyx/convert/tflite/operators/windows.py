"""Convolutions, pooling and resizing over channels-last images.

ONNX has these operators with channels first: inputs and results are transposed, weights are transposed as constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.convert.tflite.translation import Call, tflite

SAME, VALID = 0, 1


def first(c: Call, value: ir.Value, rank: int = 4) -> ir.Value:
    """Return a channels-last value with channels first."""
    return c.node("Transpose", value, perm=[0, rank - 1, *range(1, rank - 1)])


def last(c: Call, value: ir.Value, rank: int = 4) -> ir.Value:
    """Return a channels-first value with channels last."""
    return c.node("Transpose", value, perm=[0, *range(2, rank), 1])


def padding(
    c: Call, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> dict[str, object]:
    """Return the attributes of padding; ``auto_pad`` where the sizes of the image are open."""
    if min(*kernel, *strides, *dilations) < 1:
        raise c.invalid(f"expected sizes of at least 1, got kernel {kernel}, strides {strides}, dilations {dilations}")
    if c.option("padding") == VALID:
        return {}
    if min(sizes) < 0:
        return {"auto_pad": "SAME_UPPER"}
    totals = [
        max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    pads = [*(t // 2 for t in totals), *(t - t // 2 for t in totals)]
    return {"pads": pads} if any(pads) else {}


def weights(c: Call, number: int, order: Sequence[int]) -> ir.Value:
    """Return weights with axes in another order; a constant is stored in that order, quantized as before."""
    index = c.index(number)
    scope, tensor, array = c.scope, c.tensor(number), c.array(number)
    if array is None:
        return c.node("Transpose", c.input(number), perm=list(order))
    key = c.constant_named(np.ascontiguousarray(array.transpose(order)), tensor.name)
    if not scope.is_quantized(index):
        return key
    return scope.dequantized(key, index, order)


@tflite("CONV_2D")
def conv_2d(c: Call) -> ir.Value:
    """Translate a convolution with weights [out, height, width, in / groups]."""
    strides = [int(c.option("stride_h")), int(c.option("stride_w"))]
    dilations = [int(c.option("dilation_h_factor", 1)), int(c.option("dilation_w_factor", 1))]
    kernel = c.sizes(1)[1:3]
    channels, inner = c.sizes(0)[3], c.sizes(1)[3]
    if inner < 1 or (channels > 0 and channels % inner):
        raise c.invalid(f"{channels} channels, expected a multiple of {inner}")
    x = c.hybrid_input(0, 1)
    result = c.node(
        "Conv",
        first(c, x),
        weights(c, 1, (0, 3, 1, 2)),
        c.optional(2),
        strides=strides,
        dilations=dilations,
        kernel_shape=list(kernel),
        group=channels // inner if channels > 0 else 1,
        **padding(c, c.sizes(0)[1:3], kernel, strides, dilations),
    )
    return last(c, c.activated(result))


@tflite("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(c: Call) -> ir.Value:
    """Translate a convolution of channels one by one, with weights [1, height, width, out]."""
    strides = [int(c.option("stride_h")), int(c.option("stride_w"))]
    dilations = [int(c.option("dilation_h_factor", 1)), int(c.option("dilation_w_factor", 1))]
    kernel = c.sizes(1)[1:3]
    result = c.node(
        "Conv",
        first(c, c.hybrid_input(0, 1)),
        weights(c, 1, (3, 0, 1, 2)),
        c.optional(2),
        strides=strides,
        dilations=dilations,
        kernel_shape=list(kernel),
        group=max(c.sizes(0)[3], 1),
        **padding(c, c.sizes(0)[1:3], kernel, strides, dilations),
    )
    return last(c, c.activated(result))


@tflite("CONV_3D")
def conv_3d(c: Call) -> ir.Value:
    """Translate a convolution of volumes with weights [depth, height, width, in, out]."""
    strides = [int(c.option(f"stride_{axis}")) for axis in "dhw"]
    dilations = [int(c.option(f"dilation_{axis}_factor", 1)) for axis in "dhw"]
    kernel = c.sizes(1)[:3]
    result = c.node(
        "Conv",
        first(c, c.input(0), 5),
        weights(c, 1, (4, 3, 0, 1, 2)),
        c.optional(2),
        strides=strides,
        dilations=dilations,
        kernel_shape=list(kernel),
        group=max(c.sizes(0)[4] // max(c.sizes(1)[3], 1), 1),
        **padding(c, c.sizes(0)[1:4], kernel, strides, dilations),
    )
    return last(c, c.activated(result), 5)


def transposed(
    c: Call, x: ir.Value, w: ir.Value, bias: ir.Value | None, sizes: Sequence[int], kernel: Sequence[int], rank: int
) -> ir.Value:
    """Return a transposed convolution whose result is cropped or extended to `sizes`."""
    strides = [int(c.option(f"stride_{axis}")) for axis in ("hw" if rank == 4 else "dhw")]
    if min(*kernel, *strides) < 1:
        raise c.invalid(f"expected sizes of at least 1, got kernel {kernel} and strides {strides}")
    begins, ends, extra = [], [], []
    for out, k, s in zip(sizes, kernel, strides, strict=True):
        same = c.option("padding") == SAME
        if out < 0:
            total, more = (max(k - s, 0), max(s - k, 0)) if same else (0, 0)
        else:
            steps = -(-out // s) if same else (out - k) // s + 1
            total = max((steps - 1) * s + k - out, 0)
            more = max(out - ((steps - 1) * s + k), 0)
        begins.append(total // 2)
        ends.append(total - total // 2)
        extra.append(more)
    result = c.node(
        "ConvTranspose",
        first(c, x, rank),
        w,
        bias,
        strides=strides,
        kernel_shape=list(kernel),
        pads=[*begins, *ends],
        output_padding=extra if any(extra) else None,
    )
    return last(c, c.activated(result), rank)


@tflite("TRANSPOSE_CONV")
def transpose_conv(c: Call) -> ir.Value:
    """Translate a transposed convolution: sizes, weights [out, height, width, in], image, bias."""
    sizes = c.output().signature if c.array(0) is None else tuple(c.integers(0, "the size"))
    kernel = c.sizes(1)[1:3]
    return transposed(c, c.input(2), weights(c, 1, (3, 0, 1, 2)), c.optional(3), sizes[1:3], kernel, 4)


@tflite("CONV_3D_TRANSPOSE")
def conv_3d_transpose(c: Call) -> ir.Value:
    """Translate a transposed convolution: sizes, weights [depth, height, width, out, in], volume, bias."""
    sizes = c.output().signature if c.array(0) is None else tuple(c.integers(0, "the size"))
    kernel = c.sizes(1)[:3]
    return transposed(c, c.input(2), weights(c, 1, (4, 3, 0, 1, 2)), c.optional(3), sizes[1:4], kernel, 5)


@tflite("Convolution2DTransposeBias")
def convolution_2d_transpose_bias(c: Call) -> ir.Value:
    """Translate MediaPipe's transposed convolution: image, weights [out, height, width, in], bias.

    The options are the C structure ``TfLiteTransposeConvParams``: padding (1 is SAME), stride of width, of height.
    """
    options = np.frombuffer(c.record.custom_options[:12].ljust(12, b"\0"), "<i4")
    kernel = c.sizes(1)[1:3]
    same, strides = options[0] == 1, [int(options[2]), int(options[1])]
    if min(*kernel, *strides) < 1:
        raise c.invalid(f"expected sizes of at least 1, got kernel {kernel} and strides {strides}")
    totals = [max(k - s, 0) if same else 0 for k, s in zip(kernel, strides, strict=True)]
    result = c.node(
        "ConvTranspose",
        first(c, c.input(0)),
        weights(c, 1, (3, 0, 1, 2)),
        c.optional(2),
        strides=strides,
        kernel_shape=list(kernel),
        pads=[*(t // 2 for t in totals), *(t - t // 2 for t in totals)],
    )
    return last(c, result)


def pooled(c: Call, operator: str, x: ir.Value) -> ir.Value:
    """Return the pool `operator` of a channels-first image."""
    strides = [int(c.option("stride_h")), int(c.option("stride_w"))]
    kernel = [int(c.option("filter_height")), int(c.option("filter_width"))]
    pads = padding(c, c.sizes(0)[1:3], kernel, strides, (1, 1))
    return c.node(operator, x, kernel_shape=kernel, strides=strides, **pads)


@tflite("MAX_POOL_2D")
def max_pool_2d(c: Call) -> ir.Value:
    """Translate the maximum over windows."""
    return last(c, c.activated(pooled(c, "MaxPool", first(c, c.input(0)))))


@tflite("AVERAGE_POOL_2D")
def average_pool_2d(c: Call) -> ir.Value:
    """Translate the mean over windows, without padded elements."""
    return last(c, c.activated(pooled(c, "AveragePool", first(c, c.input(0)))))


@tflite("L2_POOL_2D")
def l2_pool_2d(c: Call) -> ir.Value:
    """Translate the root of the mean square over windows."""
    x = first(c, c.input(0))
    return last(c, c.activated(c.node("Sqrt", pooled(c, "AveragePool", c.node("Mul", x, x)))))


@tflite("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(c: Call) -> ir.Value:
    """Translate normalization over neighbouring channels; ONNX divides alpha by the number of channels."""
    size = 2 * int(c.option("radius")) + 1
    result = c.node(
        "LRN",
        first(c, c.input(0)),
        size=size,
        alpha=float(c.option("alpha")) * size,
        beta=float(c.option("beta")),
        bias=float(c.option("bias")),
    )
    return last(c, result)


def _resized(c: Call, **attributes: object) -> ir.Value:
    align, half = bool(c.option("align_corners")), bool(c.option("half_pixel_centers"))
    mode = "align_corners" if align else "half_pixel" if half else "asymmetric"
    sizes = c.node(
        "Concat", c.node("Shape", c.input(0), end=1), c.int64(1), c.node("Shape", c.input(0), start=3), axis=0
    )
    image = first(c, c.input(0))
    ordered = c.node("Gather", sizes, c.constant([0, 3, 1, 2], np.int64))
    array = c.array(1)
    if array is not None and array.size == 2 and min(c.sizes(0)) >= 0:
        ordered = c.constant([c.sizes(0)[0], c.sizes(0)[3], *array.reshape(-1).tolist()], np.int64)
    result = c.node("Resize", image, None, None, ordered, coordinate_transformation_mode=mode, **attributes)
    return last(c, result)


@tflite("RESIZE_BILINEAR")
def resize_bilinear(c: Call) -> ir.Value:
    """Translate bilinear interpolation to a size."""
    return _resized(c, mode="linear")


@tflite("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest_neighbor(c: Call) -> ir.Value:
    """Translate nearest neighbours; half-pixel centres round down after adding the half."""
    if c.option("align_corners"):
        return _resized(c, mode="nearest", nearest_mode="round_prefer_ceil")
    if not c.option("half_pixel_centers"):
        return _resized(c, mode="nearest", nearest_mode="floor")
    return _resized(c, mode="nearest", nearest_mode="round_prefer_ceil")
