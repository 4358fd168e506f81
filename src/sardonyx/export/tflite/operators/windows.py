"""Convolutions, pooling and resizing over channels-last images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.export.tflite.emission import Call, Scope, emits
from sardonyx.export.tflite.file_builder import Array, Quantization, Size, Tensor
from sardonyx.rewrite.analysis import facts

SAME, VALID = 0, 1


class Window:
    """Kernel, strides, dilations and padding of a node over a channels-last image.

    Args:
        c: The call.
        kernel: Sizes of the kernel.
        sizes: Spatial sizes of the image.

    Attributes:
        kernel: Sizes of the kernel.
        strides: Steps.
        dilations: Distances of kernel elements.
        begins: Padding before each axis.
        ends: Padding after each axis.
    """

    def __init__(self, c: Call, kernel: Sequence[int], sizes: Sequence[Size]) -> None:
        rank = len(kernel)
        self.kernel = list(kernel)
        self.strides = [int(n) for n in c.attribute("strides") or [1] * rank]
        self.dilations = [int(n) for n in c.attribute("dilations") or [1] * rank]
        pads = [int(n) for n in c.attribute("pads") or [0] * (2 * rank)]
        self.begins, self.ends = pads[:rank], pads[rank:]
        self.is_same = False
        mode = c.attribute("auto_pad", "NOTSET")
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            self._pad_same(c, sizes, mode == "SAME_LOWER")
        elif mode == "VALID":
            self.begins, self.ends = [0] * rank, [0] * rank
        if int(c.attribute("ceil_mode", 0) or 0):
            self._extend(c, sizes)

    @property
    def spans(self) -> list[int]:
        """Sizes of the dilated kernel."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    def _pad_same(self, c: Call, sizes: Sequence[Size], lower: bool) -> None:
        if all(isinstance(n, int) for n in sizes):
            totals = [
                max((-(-int(n) // step) - 1) * step + span - int(n), 0)
                for n, step, span in zip(sizes, self.strides, self.spans, strict=True)
            ]
        elif all(step == 1 for step in self.strides):
            totals = [span - 1 for span in self.spans]
        elif lower:
            raise c.refuse("auto_pad SAME_LOWER with strides over open sizes")
        else:
            self.is_same = True
            return
        halves = [total // 2 for total in totals]
        rest = [total - half for total, half in zip(totals, halves, strict=True)]
        self.begins, self.ends = (rest, halves) if lower else (halves, rest)

    def _extend(self, c: Call, sizes: Sequence[Size]) -> None:
        """Pad the end so that the last window, which starts within the image, is complete."""
        for i, n in enumerate(sizes):
            if self.strides[i] == 1:
                continue
            if not isinstance(n, int):
                raise c.refuse("ceil_mode over an open size")
            whole = n + self.begins[i] + self.ends[i]
            steps = -(-(whole - self.spans[i]) // self.strides[i]) + 1
            if (steps - 1) * self.strides[i] >= n + self.begins[i]:
                steps -= 1
            self.ends[i] += max((steps - 1) * self.strides[i] + self.spans[i] - whole, 0)

    def is_same_upper(self, sizes: Sequence[Size]) -> bool:
        """Return True if padding SAME pads these amounts, whatever the open sizes are."""
        for n, step, span, begin, end in zip(sizes, self.strides, self.spans, self.begins, self.ends, strict=True):
            if isinstance(n, int):
                total = max((-(-n // step) - 1) * step + span - n, 0)
            elif step == 1:
                total = span - 1
            else:
                return False
            if begin != total // 2 or end != total - total // 2:
                return False
        return True

    def padding(self, sizes: Sequence[Size]) -> int | None:
        """Return the format's padding mode, None if the image must be padded first."""
        if self.is_same:
            return SAME
        if not any(self.begins) and not any(self.ends):
            return VALID
        return SAME if self.is_same_upper(sizes) else None


def padded(s: Scope, x: Tensor, begins: Sequence[int], ends: Sequence[int], number: float) -> Tensor:
    """Return a channels-last image padded by a number; a tensor of codes by the code of zero."""
    if not any(begins) and not any(ends):
        return x
    pads = [(0, 0), *zip(begins, ends, strict=True), (0, 0)]
    shape: list[Size] = [
        n + a + b if isinstance(n, int) else (s.fresh_size() if a or b else n)
        for n, (a, b) in zip(x.shape, pads, strict=True)
    ]
    if x.quantization is not None:
        fill = Tensor(x.type, (1,), np.asarray(x.quantization.zero_point[:1], np.int8), x.quantization)
    else:
        fill = s.constant(np.asarray([number], np.float32))
    return s.op("PADV2", [x, s.constant(pads, np.int32), fill], shape, quantization=x.quantization)


def image(s: Scope, x: Tensor) -> Tensor:
    """Return a sequence [batch, length, channels] as an image of height 1; images as they are."""
    return s.reshape(x, [x.shape[0], 1, *x.shape[1:]]) if x.rank == 3 else x


def weights(c: Call, number: int, order: Sequence[int]) -> Tensor:
    """Return weights with axes in another order; stored codes are permuted as codes."""
    s, value = c.scope, c.value(number)
    codes = s.constant_codes(value)
    if codes is not None:
        return s.dequantized(s.transpose(codes, order))
    return s.transpose(c.input(number), order)


def _square(values: Sequence[int]) -> list[int]:
    return [1, *values] if len(values) == 1 else list(values)


@emits("Conv")
def conv(c: Call) -> Tensor:
    """Write a convolution."""
    x = c.input()
    rank = x.rank - 2
    if not c.is_last or rank not in (1, 2, 3):
        raise c.refuse(f"a convolution over {rank} axes")
    if rank == 3:
        return _conv_3d(c, x)
    order = (0, 2, 1) if rank == 1 else (0, 2, 3, 1)
    return convolution(c, x, weights(c, 1, order), c.optional(2), None)


def convolution(
    c: Call, x: Tensor, w: Tensor, bias: Tensor | None, codes: Quantization | None, activation: int = 0
) -> Tensor:
    """Return the convolution of a channels-last sequence or image with weights [out, *kernel, in / groups]."""
    s, shape = c.scope, c.shape()
    if w.rank == 3:
        w = s.reshape(w, [w.shape[0], 1, *w.shape[1:]])
    channels, inner, outer = x.shape[-1], w.shape[3], int(w.shape[0])
    sizes = x.shape[1:-1]
    kernel = [int(n) for n in w.shape[1:3]][2 - len(sizes) :]
    window = Window(c, kernel, sizes)
    padding = window.padding(sizes)
    if padding is None:
        x, padding = padded(s, x, window.begins, window.ends, 0.0), VALID
    y = image(s, x)
    strides, dilations = _square(window.strides), _square(window.dilations)
    options: dict[str, Any] = {
        "padding": padding,
        "stride_h": strides[0],
        "stride_w": strides[1],
        "dilation_h_factor": dilations[0],
        "dilation_w_factor": dilations[1],
        "fused_activation_function": activation,
    }
    result_shape = shape if len(shape) == 4 else [shape[0], 1, *shape[1:]]
    groups = int(c.attribute("group", 1))
    bias = bias if bias is not None else _no_bias(s, outer, x, w)
    if groups > 1 and inner == 1 and channels == groups:
        depthwise = s.transpose(w, [3, 1, 2, 0])
        options["depth_multiplier"] = outer // groups
        kind = ("DepthwiseConv2DOptions", options)
        result = s.op("DEPTHWISE_CONV_2D", [y, depthwise, bias], result_shape, options=kind, quantization=codes)
    else:
        kind = ("Conv2DOptions", options)
        result = s.op("CONV_2D", [y, w, bias], result_shape, options=kind, quantization=codes)
    return s.reshape(result, shape)


def _no_bias(s: Scope, count: int, x: Tensor, w: Tensor) -> Tensor:
    if x.quantization is None or w.quantization is None:
        return s.constant(np.zeros(count, np.float32))
    scale = (x.quantization.scale * w.quantization.scale).astype(np.float32)
    return s.constant(np.zeros(count, np.int32), quantization=Quantization(scale, np.zeros(len(scale), np.int64)))


def _conv_3d(c: Call, x: Tensor) -> Tensor:
    s = c.scope
    if int(c.attribute("group", 1)) != 1:
        raise c.refuse("groups of a convolution of volumes")
    w = weights(c, 1, (2, 3, 4, 1, 0))
    kernel, sizes = [int(n) for n in w.shape[:3]], x.shape[1:4]
    window = Window(c, kernel, sizes)
    padding = window.padding(sizes)
    if padding is None:
        x, padding = padded(s, x, window.begins, window.ends, 0.0), VALID
    if any(n != 1 for n in window.dilations):
        raise c.refuse("dilations of a convolution of volumes")
    options: dict[str, Any] = {"padding": padding}
    options |= {f"stride_{axis}": n for axis, n in zip("dhw", window.strides, strict=True)}
    bias = c.optional(2) or s.constant(np.zeros(int(w.shape[4]), np.float32))
    return s.op("CONV_3D", [x, w, bias], c.shape(), options=("Conv3DOptions", options))


@emits("ConvTranspose")
def conv_transpose(c: Call) -> Tensor:
    """Write a transposed convolution without padding, and crop its result."""
    x, s, shape = c.input(), c.scope, c.shape()
    rank = x.rank - 2
    if not c.is_last or rank not in (1, 2):
        raise c.refuse(f"a transposed convolution over {rank} axes")
    w = _dense_weights(c, int(c.attribute("group", 1)))
    kernel = list(w.shape[2:])
    strides = [int(n) for n in c.attribute("strides") or [1] * rank]
    begins, crops, extra = _crops(c, x, kernel, strides)
    spatial = [int(n) for n in _square(kernel)]
    codes = np.ascontiguousarray(w.reshape(*w.shape[:2], *spatial).transpose(1, 2, 3, 0))
    y = image(s, x)
    steps = _square(strides)
    full: list[Size] = []
    for n, k, step in zip(y.shape[1:3], spatial, steps, strict=True):
        full.append((n - 1) * step + k if isinstance(n, int) else s.fresh_size())
    out_shape: list[Size] = [y.shape[0], *full, codes.shape[0]]
    sizes = _full_sizes(s, y, spatial, steps, codes.shape[0])
    options = {"padding": VALID, "stride_h": steps[0], "stride_w": steps[1]}
    result = s.op(
        "TRANSPOSE_CONV", [sizes, s.constant(codes), y], out_shape, "FLOAT32", ("TransposeConvOptions", options)
    )
    if rank == 1:
        result = s.reshape(result, [shape[0], full[1], shape[-1]])
    if any(extra):
        result = padded(s, result, [0] * rank, extra, 0.0)
    if any(begins) or any(crops):
        ends = [0, *(-n for n in crops), 0]
        mask = sum(1 << axis for axis, end in enumerate(ends) if end == 0)
        bounds = [s.constant(v, np.int32) for v in ([0, *begins, 0], ends, [1] * (rank + 2))]
        kind = ("StridedSliceOptions", {"end_mask": mask})
        result = s.op("STRIDED_SLICE", [result, *bounds], shape, options=kind)
    result.shape = tuple(shape)
    return s.binary("ADD", result, c.input(2)) if c.has(2) else result


def _full_sizes(s: Scope, y: Tensor, kernel: Sequence[int], strides: Sequence[int], channels: int) -> Tensor:
    parts = [s.size(y.shape[0])]
    for axis, (k, step) in enumerate(zip(kernel, strides, strict=True), 1):
        n = s.size(y.shape[axis])
        if n.array is None:
            scaled = s.binary("MUL", n, s.constant(step, np.int32)) if step != 1 else n
            n = s.binary("ADD", scaled, s.constant(k - step, np.int32)) if k != step else scaled
        else:
            n = s.constant((n.array - 1) * step + k, np.int32)
        parts.append(n)
    return s.concatenation([*parts, s.constant([channels], np.int32)], 0)


def _dense_weights(c: Call, groups: int) -> Array:
    """Return constant weights [in, out, *kernel] of all groups in one, dilated."""
    value = c.value(1)
    codes = c.scope.constant_codes(value)
    array = c.array(1) if codes is None else c.scope.decoded(codes)
    if array is None:
        raise c.refuse("computed weights of a transposed convolution")
    w = np.asarray(array, np.float32)
    dilations = [int(n) for n in c.attribute("dilations") or [1] * (w.ndim - 2)]
    if any(n != 1 for n in dilations):
        spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
        wide = np.zeros((*w.shape[:2], *spans), np.float32)
        wide[(slice(None), slice(None), *(slice(None, None, d) for d in dilations))] = w
        w = wide
    if groups == 1:
        return w
    inner, outer = w.shape[0] // groups, w.shape[1]
    if w.size * groups > 1 << 26:
        raise c.refuse(f"{groups} groups of a transposed convolution, whose dense weights exceed 2^26 elements")
    dense = np.zeros((w.shape[0], outer * groups, *w.shape[2:]), np.float32)
    for g in range(groups):
        rows = slice(g * inner, (g + 1) * inner)
        dense[rows, g * outer : (g + 1) * outer] = w[rows]
    return dense


def _crops(c: Call, x: Tensor, kernel: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Return crops before and after, and zeros to append, from padding and ``output_padding``."""
    rank = len(kernel)
    extra = [int(n) for n in c.attribute("output_padding") or [0] * rank]
    pads = [int(n) for n in c.attribute("pads") or [0] * (2 * rank)]
    begins, ends = pads[:rank], pads[rank:]
    target = c.attribute("output_shape")
    mode = c.attribute("auto_pad", "NOTSET")
    if target or mode in ("SAME_UPPER", "SAME_LOWER"):
        sizes = x.shape[1:-1]
        totals = []
        for i, (k, step) in enumerate(zip(kernel, strides, strict=True)):
            n = sizes[i]
            if target and not isinstance(n, int):
                raise c.refuse("output_shape over an open size")
            output_size = int(target[i]) - (int(n) - 1) * step if target else step
            totals.append(k + extra[i] - output_size)
        begins = [max(t, 0) // 2 if mode == "SAME_UPPER" else max(t, 0) - max(t, 0) // 2 for t in totals]
        ends = [t - b for t, b in zip(totals, begins, strict=True)]
    crops = [max(end - more, 0) for end, more in zip(ends, extra, strict=True)]
    more = [max(more - end, 0) for end, more in zip(ends, extra, strict=True)]
    return begins, crops, more


def _pool(s: Scope, name: str, x: Tensor, window: Window, padding: int, shape: Sequence[Size]) -> Tensor:
    """Write a pool over an image or a sequence."""
    y, kernel, strides = image(s, x), _square(window.kernel), _square(window.strides)
    options = {
        "padding": padding,
        "stride_h": strides[0],
        "stride_w": strides[1],
        "filter_height": kernel[0],
        "filter_width": kernel[1],
    }
    result_shape = shape if len(shape) == 4 else [shape[0], 1, *shape[1:]]
    result = s.op(name, [y], result_shape, options=("Pool2DOptions", options), quantization=x.quantization)
    return s.reshape(result, shape)


@emits("MaxPool")
def max_pool(c: Call) -> Tensor:
    """Write the maximum over windows."""
    x = c.input()
    if any(output.uses() or output.is_graph_output() for output in c.call.outputs[1:]):
        raise c.refuse("positions of the maxima")
    window = _pool_window(c, x)
    return max_pooled(c, x, window)


def _pool_window(c: Call, x: Tensor) -> Window:
    rank = x.rank - 2
    if not c.is_last or rank not in (1, 2, 3) or x.type not in ("FLOAT32", "INT8"):
        raise c.refuse(f"a pool over {rank} axes of {x.type}")
    return Window(c, [int(n) for n in c.attribute("kernel_shape")], x.shape[1:-1])


def max_pooled(c: Call, x: Tensor, window: Window) -> Tensor:
    """Return the maximum over windows of a channels-last image."""
    s, shape = c.scope, c.shape()
    padding = window.padding(x.shape[1:-1])
    if any(n != 1 for n in window.dilations) or x.rank == 5:
        if window.is_same or x.quantization is not None:
            raise c.refuse("dilated windows over open sizes, or of codes")
        return _max_of_slices(c, x, window)
    if padding is None:
        if x.quantization is not None:
            raise c.refuse("padding of codes by the least one")
        x, padding = padded(s, x, window.begins, window.ends, float(np.finfo(np.float32).min)), VALID
    return _pool(s, "MAX_POOL_2D", x, window, padding, shape)


def _max_of_slices(c: Call, x: Tensor, window: Window) -> Tensor:
    """Return the maximum of strided slices, axis by axis: a maximum over windows is separable."""
    s = c.scope
    x = padded(s, x, window.begins, window.ends, float(np.finfo(np.float32).min))
    for i, (k, d, step) in enumerate(zip(window.kernel, window.dilations, window.strides, strict=True)):
        axis, n = i + 1, x.shape[i + 1]
        if not isinstance(n, int):
            raise c.refuse("dilated windows, or windows over volumes, of open sizes")
        count = (n - (k - 1) * d - 1) // step + 1
        shape = [*x.shape[:axis], count, *x.shape[axis + 1 :]]
        result: Tensor | None = None
        for j in range(k):
            begin, end, stride = [0] * x.rank, [0] * x.rank, [1] * x.rank
            begin[axis], end[axis], stride[axis] = j * d, j * d + (count - 1) * step + 1, step
            mask = ((1 << x.rank) - 1) & ~(1 << axis)
            bounds = [s.constant(v, np.int32) for v in (begin, end, stride)]
            part = s.op("STRIDED_SLICE", [x, *bounds], shape, options=("StridedSliceOptions", {"end_mask": mask}))
            result = part if result is None else s.binary("MAXIMUM", result, part)
        assert result is not None
        x = result
    return x


@emits("AveragePool")
def average_pool(c: Call) -> Tensor:
    """Write the mean over windows."""
    x = c.input()
    return average_pooled(c, x, _pool_window(c, x))


def average_pooled(c: Call, x: Tensor, window: Window) -> Tensor:
    """Return the mean over windows of a channels-last image; padding counts only if the node says so."""
    s, shape, sizes = c.scope, c.shape(), x.shape[1:-1]
    if x.rank == 5 or any(n != 1 for n in window.dilations):
        raise c.refuse("a mean over volumes, or over dilated windows")
    counts_padding = bool(c.attribute("count_include_pad", 0))
    padding = window.padding(sizes)
    if padding is not None and not (counts_padding and padding == SAME):
        return _pool(s, "AVERAGE_POOL_2D", x, window, padding, shape)
    if not counts_padding or int(c.attribute("ceil_mode", 0) or 0):
        return _mean_by_counts(c, x, window, shape, counts_padding)
    x = padded(s, x, window.begins, window.ends, 0.0)
    return _pool(s, "AVERAGE_POOL_2D", x, window, VALID, shape)


def _mean_by_counts(c: Call, x: Tensor, window: Window, shape: Sequence[Size], counts_padding: bool) -> Tensor:
    """Return means over windows that hold different numbers of elements, by constant factors."""
    s, sizes = c.scope, x.shape[1:-1]
    if x.quantization is not None or not all(isinstance(n, int) for n in sizes):
        raise c.refuse("uneven padding of a mean over open sizes")
    pads = [int(n) for n in c.attribute("pads") or [0] * (2 * len(sizes))]
    factor = np.ones([1] * (len(sizes) + 2), np.float32)
    for i, n in enumerate(int(n) for n in sizes):
        inside = np.zeros(n + window.begins[i] + window.ends[i])
        first, last = window.begins[i], window.begins[i] + n
        if counts_padding:
            first, last = 0, pads[i] + n + pads[len(sizes) + i]
        inside[first:last] = 1
        k, step = window.kernel[i], window.strides[i]
        counts = np.array([inside[j : j + k].sum() for j in range(0, len(inside) - k + 1, step)])
        wide = [1] * (len(sizes) + 2)
        wide[i + 1] = len(counts)
        factor = factor * (k / counts).reshape(wide).astype(np.float32)
    y = padded(s, x, window.begins, window.ends, 0.0)
    return s.binary("MUL", _pool(s, "AVERAGE_POOL_2D", y, window, VALID, shape), s.constant(factor))


@emits("GlobalAveragePool", "GlobalMaxPool")
def global_pool(c: Call) -> Tensor:
    """Write the mean or maximum of each channel."""
    x = c.input()
    axes = list(range(1, x.rank - 1)) if c.is_last else list(range(2, x.rank))
    return c.scope.reduce("MEAN" if c.node.op_type == "GlobalAveragePool" else "REDUCE_MAX", x, axes)


_MODES = {"half_pixel": (False, True), "pytorch_half_pixel": (False, True), "align_corners": (True, False)}
_MODES |= {"asymmetric": (False, False)}


def can_resize(node: ir.Node) -> bool:
    """Return True if a Resize of an image is one operator of the format: bilinear, or nearest by a known rounding."""
    if facts.rank(node.inputs[0]) != 4:
        return False
    attribute = {name: facts.attribute(node, name, 21) for name in ("mode", "nearest_mode", "antialias", "axes")}
    transform = facts.attribute(node, "coordinate_transformation_mode", 21)
    if transform not in _MODES or attribute["antialias"] or attribute["axes"]:
        return False
    if facts.attribute(node, "keep_aspect_ratio_policy", 21, "stretch") != "stretch":
        return False
    before, after = facts.static_shape(node.inputs[0]), facts.static_shape(node.outputs[0])
    if before is None or after is None:
        scales = facts.constant(node.inputs[2]) if len(node.inputs) > 2 else None
        if scales is None or len(scales) != 4 or not np.array_equal(scales, np.round(scales)):
            return False
        factors = [float(n) for n in scales]
    else:
        factors = [b / a if a else 0.0 for a, b in zip(before, after, strict=True)]
        written_scales = facts.constant(node.inputs[2]) if len(node.inputs) > 2 else None
        if (
            written_scales is not None
            and len(written_scales) == 4
            and not np.allclose(written_scales, factors, rtol=1e-6)
        ):
            return False
        if transform == "pytorch_half_pixel" and 1 in after[2:]:
            return False
    if factors[0] != 1 or factors[1] != 1:
        return False
    if attribute["mode"] == "linear":
        return True
    if attribute["mode"] != "nearest":
        return False
    rounding = attribute["nearest_mode"]
    whole = all(math.isclose(f, round(f)) and f >= 1 for f in factors)
    if transform == "asymmetric":
        return bool(rounding == "floor")
    if transform == "align_corners":
        return bool(rounding == "round_prefer_ceil")
    # Positions (i + 0.5) / f - 0.5 of a whole factor f are never halves.
    return bool(rounding == "round_prefer_ceil" or (rounding == "round_prefer_floor" and whole))


@emits("Resize")
def resize(c: Call) -> Tensor:
    """Write interpolation of an image to a size."""
    x, s, shape = c.input(), c.scope, c.shape()
    if not c.is_last:
        raise c.refuse("an interpolation that is neither bilinear nor nearest by a rounding of the format")
    align, half = _MODES[c.attribute("coordinate_transformation_mode", "half_pixel")]
    sizes = _target_sizes(c, x, shape)
    linear = c.attribute("mode") == "linear"
    name = "RESIZE_BILINEAR" if linear else "RESIZE_NEAREST_NEIGHBOR"
    kind = "ResizeBilinearOptions" if linear else "ResizeNearestNeighborOptions"
    options = {"align_corners": align, "half_pixel_centers": half}
    return s.op(name, [x, sizes], shape, options=(kind, options), quantization=x.quantization)


def _target_sizes(c: Call, x: Tensor, shape: Sequence[Size]) -> Tensor:
    s = c.scope
    if all(isinstance(n, int) for n in shape[1:3]):
        return s.constant([int(n) for n in shape[1:3]], np.int32)
    if c.has(3):
        return s.slice(s.cast(c.input(3), "INT32"), [2], [4])
    scales = c.array(2)
    if scales is None:
        raise c.refuse("computed scales")
    parts = [s.size(n) for n in x.shape[1:3]]
    factors = [int(n) for n in scales[2:4]]
    scaled = [p if f == 1 else s.binary("MUL", p, s.constant(f, np.int32)) for p, f in zip(parts, factors, strict=True)]
    return s.concatenation(scaled, 0)
