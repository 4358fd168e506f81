"""Cases of convolutions, pools and regions of interest."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.generators.draw import FLOATS, Case, Draw, scalar
from tests.ops.generators.table import draws


def _windows(draw: Draw, n: int, kernel: list[int], *, auto: bool = True) -> dict[str, Any]:
    """Strides, dilations and padding: less than the kernel, so that no window lies in padding alone."""
    options = draw.options(
        strides=[draw.integer(1, 3) for _ in range(n)],
        dilations=[draw.integer(1, 2) for _ in range(n)],
    )
    pads = [draw.integer(0, max(size - 1, 0)) for size in kernel * 2]
    if auto and draw.chance(0.3):
        options.pop("dilations", None)
        return options | {"auto_pad": draw.pick("SAME_UPPER", "SAME_LOWER", "VALID")}
    return options | draw.options(pads=pads)


def _spatial(draw: Draw, n: int) -> list[int]:
    return [draw.integer(5, 8) for _ in range(n)]


@draws("Conv", "ConvInteger")
def convolution(draw: Draw, name: str) -> Case:
    n, group = draw.integer(1, 3), draw.integer(1, 2)
    kernel = [draw.integer(1, 3) for _ in range(n)]
    batch, channels, features = draw.integer(1, 2), draw.integer(1, 2), draw.integer(1, 2) * group
    x, w = (batch, channels * group, *_spatial(draw, n)), (features, channels, *kernel)
    options = _windows(draw, n, kernel) | draw.options(kernel_shape=kernel) | {"group": group}
    if name == "ConvInteger":
        points = [draw.maybe(lambda: scalar(draw.integer(0, 5), np.uint8)) for _ in range(2)]
        return Case(name, 10, [draw.array(x, np.uint8, 0, 20), draw.array(w, np.uint8, 0, 20), *points], options)
    bias = draw.maybe(lambda: draw.array((features,), special=False))
    return Case(name, draw.pick(11, 22), [draw.array(x, special=False), draw.array(w, special=False), bias], options)


@draws("ConvTranspose")
def transposed(draw: Draw, name: str) -> Case:
    n, group = draw.integer(1, 3), draw.integer(1, 2)
    kernel = [draw.integer(1, 3) for _ in range(n)]
    strides = [draw.integer(1, 3) for _ in range(n)]
    features = draw.integer(1, 2)
    x = draw.array(
        (draw.integer(1, 2), group * draw.integer(1, 2), *[draw.integer(2, 4) for _ in range(n)]), special=False
    )
    w = draw.array((x.shape[1], features, *kernel), special=False)
    options: dict[str, Any] = {"strides": strides, "group": group} | draw.options(kernel_shape=kernel)
    options |= draw.options(output_padding=[draw.integer(0, stride - 1) for stride in strides])
    if draw.chance(0.2):
        options["auto_pad"] = draw.pick("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        options |= draw.options(pads=[draw.integer(0, (size - 1) // 2) for size in kernel * 2])
        options |= draw.options(dilations=[draw.integer(1, 2) for _ in range(n)])
    bias = draw.maybe(lambda: draw.array((features * group,), special=False))
    return Case(name, 11, [x, w, bias], options)


@draws("QLinearConv")
def quantized(draw: Draw, name: str) -> Case:
    group, kernel = draw.integer(1, 2), [draw.integer(1, 3) for _ in range(2)]
    channels, features = draw.integer(1, 2), draw.integer(1, 2) * group
    dtype = draw.pick(np.uint8, np.int8)
    x = draw.array((draw.integer(1, 2), channels * group, *_spatial(draw, 2)), dtype, None, 20)
    w = draw.array((features, channels, *kernel), dtype, None, 20)
    per_channel = (features,) if draw.chance(0.5) else ()
    points = [scalar(draw.integer(0, 3), dtype), np.zeros(per_channel, dtype), scalar(draw.integer(0, 3), dtype)]
    scales = [draw.positive(()), draw.positive(per_channel), np.float32(draw.pick(8.0, 40.0))]
    bias = draw.maybe(lambda: draw.array((features,), np.int32))
    inputs = [x, scales[0], points[0], w, scales[1], points[1], np.asarray(scales[2]), points[2], bias]
    return Case(name, 10, inputs, _windows(draw, 2, kernel) | {"group": group})


@draws("DeformConv")
def deformed(draw: Draw, name: str) -> Case:
    kernel, pads = [draw.integer(1, 2) for _ in range(2)], [draw.integer(0, 1) for _ in range(4)]
    size, features, channels = [draw.integer(3, 5) for _ in range(2)], draw.integer(1, 2), draw.integer(1, 2)
    out = [size[i] + pads[i] + pads[2 + i] - kernel[i] + 1 for i in range(2)]
    taps, batch = kernel[0] * kernel[1], draw.integer(1, 2)
    x, w = draw.array((batch, channels, *size), special=False), draw.array((features, channels, *kernel), special=False)
    offset = draw.array((batch, 2 * taps, *out), special=False) / 3
    bias = draw.maybe(lambda: draw.array((features,), special=False))
    mask = draw.maybe(lambda: draw.positive((batch, taps, *out)))
    return Case(name, 19, [x, w, offset.astype(np.float32), bias, mask], {"pads": pads, "kernel_shape": kernel})


@draws("CausalConvWithState")
def causal(draw: Draw, name: str) -> Case:
    batch, channels, length, kernel = draw.integer(1, 2), draw.integer(1, 3), draw.integer(1, 5), draw.integer(1, 4)
    inputs = [
        draw.array((batch, channels, length), special=False), draw.array((channels, 1, kernel), special=False),
        draw.maybe(lambda: draw.array((channels,), special=False)),
        draw.maybe(lambda: draw.array((batch, channels, kernel - 1), special=False)),
    ]  # fmt: skip
    return Case(name, 27, inputs, draw.options(activation=draw.pick("none", "silu", "swish")), 2)


@draws("MaxPool", "AveragePool", "LpPool")
def pool(draw: Draw, name: str) -> Case:
    n = draw.integer(1, 3)
    kernel = [draw.integer(1, 3) for _ in range(n)]
    x = draw.array((draw.integer(1, 2), draw.integer(1, 2), *_spatial(draw, n)), np.float32, special=False)
    options = _windows(draw, n, kernel) | {"kernel_shape": kernel}
    if "auto_pad" not in options:
        options |= draw.options(ceil_mode=draw.integer(0, 1))
    outputs = 1
    if name == "AveragePool":
        options |= draw.options(count_include_pad=draw.integer(0, 1))
    elif name == "LpPool":
        options |= draw.options(p=draw.integer(1, 3))
    else:
        outputs = draw.pick(1, 2)
        options |= draw.options(storage_order=draw.integer(0, 1)) if outputs == 2 else {}
    return Case(name, {"MaxPool": 12, "AveragePool": 19, "LpPool": 18}[name], [x], options, outputs)


@draws("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
def whole_images(draw: Draw, name: str) -> Case:
    x = draw.array((*draw.shape(2, 2), *draw.shape(1, 3, zero=False)), draw.pick(*FLOATS), special=False)
    return Case(
        name, 2 if name == "GlobalLpPool" else 1, [x], draw.options(p=draw.integer(1, 3)) if "Lp" in name else {}
    )


@draws("MaxUnpool")
def unpool(draw: Draw, name: str) -> Case:
    sizes, kernel = [draw.integer(1, 3) for _ in range(2)], [draw.integer(1, 2) for _ in range(2)]
    shape = (draw.integer(1, 2), draw.integer(1, 2), *sizes)
    full = shape[0] * shape[1] * sizes[0] * kernel[0] * sizes[1] * kernel[1]
    count = int(np.prod(shape))
    indices = np.sort(draw.numbers.permutation(full)[:count]).reshape(shape).astype(np.int64)
    return Case(name, 11, [draw.array(shape, special=False), indices], {"kernel_shape": kernel, "strides": kernel})


@draws("LRN")
def local_response(draw: Draw, name: str) -> Case:
    x = draw.array((draw.integer(1, 2), draw.integer(1, 5), *draw.shape(2, 2, zero=False)), special=False)
    options = draw.options(alpha=0.01, beta=draw.pick(0.5, 0.75), bias=2.0)
    return Case(name, 13, [x], options | {"size": draw.pick(1, 3, 5)})


@draws("RoiAlign")
def roi_align(draw: Draw, name: str) -> Case:
    batch, count = draw.integer(1, 2), draw.integer(1, 3)
    x = draw.array((batch, draw.integer(1, 2), 8, 7), special=False)
    low = draw.numbers.uniform(0, 3, (count, 2))
    boxes = np.concatenate([low, low + draw.numbers.uniform(1, 4, (count, 2))], 1).astype(np.float32)
    images = draw.numbers.integers(0, batch, count).astype(np.int64)
    options = draw.options(
        mode=draw.pick("avg", "max"), output_height=draw.integer(1, 3), output_width=draw.integer(1, 3),
        sampling_ratio=draw.integer(0, 3), spatial_scale=draw.pick(0.5, 1.0),
        coordinate_transformation_mode=draw.pick("half_pixel", "output_half_pixel"),
    )  # fmt: skip
    return Case(name, 16, [x, boxes, images], options)


@draws("MaxRoiPool")
def max_roi_pool(draw: Draw, name: str) -> Case:
    batch, count = draw.integer(1, 2), draw.integer(1, 3)
    x = draw.array((batch, draw.integer(1, 2), 8, 7), special=False)
    low = draw.numbers.integers(0, 4, (count, 2))
    boxes = np.concatenate([low, low + draw.numbers.integers(0, 3, (count, 2))], 1)
    rois = np.concatenate([draw.numbers.integers(0, batch, (count, 1)), boxes], 1).astype(np.float32)
    return Case(name, 1, [x, rois], {"pooled_shape": [draw.integer(1, 3), draw.integer(1, 3)]})
