"""Convolutions: plain, transposed, integer, deformable, and causal with a state.

Source: ONNX Operators, *Conv*, *ConvTranspose*, *ConvInteger*, *QLinearConv*, *DeformConv*, *CausalConvWithState*;
Dai et al., Deformable Convolutional Networks, 2017 (arXiv:1703.06211), and version 2 with a mask (arXiv:1811.11168).
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import Size, floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.definitions.products import subtract_zero_point
from sardonyx.ops.definitions.quantization import requantize
from sardonyx.ops.definitions.sampling import interpolate, pixels_or_zero
from sardonyx.ops.definitions.windows import Padding, Windows, explicit_padding, per_axis, split_padding, windows
from sardonyx.ops.registry import operator


@operator("Conv", since=1)
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    kernel = _kernel(x, w, kernel_shape)
    w = _of_kernel(w, kernel)
    over = windows(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
    y = L.convolve(
        x, w, strides=over.strides, padding=over.padding, kernel_dilation=over.dilations, groups=group, dtype=x.dtype
    )
    return y if b is None else y + align_to_channels(b, y)


def _kernel(x: Tensor, w: Tensor, declared: Sequence[int] | None) -> Sequence[Size]:
    if x.rank < 3 or w.rank != x.rank:
        raise ShapeError(f"expected an input and weights of one rank, at least 3, got ranks {x.rank} and {w.rank}.")
    kernel = w.shape[2:]
    if declared and (len(declared) != len(kernel) or any(map(_differs, declared, kernel))):
        raise ShapeError(
            f"kernel_shape is {list(declared)}, and the weights have the kernel [{', '.join(map(str, kernel))}]."
        )
    return declared or kernel


def _of_kernel(w: Tensor, kernel: Sequence[Size]) -> Tensor:
    """Return the weights after checking the sizes of the kernel that are only known in a run."""
    return L.of_shape(w, (*w.shape[:2], *kernel), "the weights")


def _differs(size: int, actual: Size) -> bool:
    return isinstance(actual, int) and size != actual


def align_to_channels(parameter: Tensor, x: Tensor) -> Tensor:
    """Reshape a per-channel parameter to broadcast over ``x`` (channels are the second axis)."""
    if parameter.rank != 1 or x.rank < 2:
        raise ShapeError(f"expected a parameter with one number for each channel of {x.type}, got {parameter.type}.")
    return L.reshape(L.broadcast_to(parameter, (x.shape[1],)), (x.shape[1], *(1,) * (x.rank - 2)))


@operator("ConvInteger", since=10)
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    if w_zero_point is not None and w_zero_point.rank == 1:
        w_zero_point = L.unsqueeze(w_zero_point, range(1, w.rank))
    return conv(
        subtract_zero_point(x, x_zero_point),
        subtract_zero_point(w, w_zero_point),
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )


@operator("QLinearConv", since=10)
def quantized_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    total = conv_integer(
        x,
        w,
        x_zero_point,
        w_zero_point,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    if b is not None:
        total = total + align_to_channels(b, total)
    return requantize(
        total, x_scale, align_to_channels(w_scale, total) if w_scale.rank else w_scale, y_scale, y_zero_point
    )


@operator("ConvTranspose", since=1)
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Compute a convolution's input gradient: dilate by ``strides``, convolve with the reversed kernel."""
    kernel, n = _kernel(x, w, kernel_shape), x.rank - 2
    w = _of_kernel(w, kernel)
    strides, dilations = per_axis(strides, n, "strides"), per_axis(dilations, n, "dilations")
    extra = tuple(output_padding or (0,) * n)
    if len(extra) != n:
        raise InvalidModelError(f"output_padding of {list(extra)} does not fit {n} spatial axes.")
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    full = [(size - 1) * s + r for size, s, r in zip(x.shape[2:], strides, reach, strict=True)]
    cut = _crop(x.shape[2:], [f + e for f, e in zip(full, extra, strict=True)], strides, output_shape, pads, auto_pad)
    padding = [(r - 1 - low, r - 1 - high + e) for (low, high), r, e in zip(cut, reach, extra, strict=True)]
    y = L.convolve(
        x,
        _transpose_weights(w, group),
        strides=(1,) * n,
        padding=padding,
        base_dilation=strides,
        kernel_dilation=dilations,
        groups=group,
    )
    return y if b is None else y + align_to_channels(b, y)


def _crop(
    sizes: Sequence[Size],
    full: Sequence[Size],
    strides: Sequence[int],
    output_shape: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
) -> Padding:
    """Return the crop at both ends of the full result: ``pads``, or the crop to the requested sizes."""
    if output_shape:
        target: Sequence[Size] = output_shape[-len(full) :]
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        target = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    else:
        return explicit_padding(pads if auto_pad == "NOTSET" else None, len(full))
    if len(target) != len(full):
        raise InvalidModelError(f"output_shape of {list(output_shape or ())} does not fit {len(full)} spatial axes.")
    return tuple(split_padding(f - size, auto_pad) for f, size in zip(full, target, strict=True))


def _transpose_weights(w: Tensor, groups: int) -> Tensor:
    """Return weights [C, M/groups, *kernel] as weights of a convolution: [M, C/groups, *kernel], reversed."""
    channels, features, *kernel = w.shape
    if groups < 1 or (isinstance(channels, int) and channels % groups):
        raise ShapeError(f"expected a number of channels that is a multiple of {groups} groups, got {channels}.")
    group_size = floor_div(channels, groups)
    grouped = L.swap_axes(L.reshape(w, (groups, group_size, features, *kernel)), 1, 2)
    return L.reverse(L.reshape(grouped, (groups * features, group_size, *kernel)), range(2, w.rank))


@operator("DeformConv", since=19)
def deformable_conv(
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Read each element of a window at its position plus an offset, then sum with the window's weights."""
    kernel = _kernel(x, w, kernel_shape)
    w = _of_kernel(w, kernel)
    over = windows(x.shape[2:], kernel, strides, dilations, pads, "NOTSET")
    if group < 1 or offset_group < 1:
        raise InvalidModelError(f"expected `group` and `offset_group` of at least 1, got {group} and {offset_group}.")
    (batch, channels), out, n = x.shape[:2], over.counts(x.shape[2:]), x.rank - 2
    images, taps = batch * offset_group, L.product(over.kernel)
    offsets = L.reshape(offset, (images, taps, n, *out))
    coordinates = [
        L.take(offsets, L.constant(axis, t.INT64), 2) + L.cast(_window_coordinates(over, out, axis), x.dtype)
        for axis in range(n)
    ]
    grouped = L.reshape(x, (images, floor_div(channels, offset_group), *x.shape[2:]))
    read = interpolate(pixels_or_zero(grouped), coordinates)
    if mask is not None:
        read = read * L.reshape(mask, (images, taps, *out, 1))
    columns = L.permute(L.reshape(read, (*read.shape[:2], L.product(out), read.shape[-1])), [0, 3, 1, 2])
    patches = L.reshape(columns, (batch, group, w.shape[1], taps, L.product(out)))
    weights = L.reshape(w, (group, floor_div(w.shape[0], group), w.shape[1], taps))
    y = L.reshape(L.einsum("bgckp,gmck->bgmp", patches, weights), (batch, w.shape[0], *out))
    return y if b is None else y + align_to_channels(b, y)


def _window_coordinates(over: Windows, out: Sequence[Size], axis: int) -> Tensor:
    """Return the undeformed coordinates of window elements along an axis, [kernel elements, *out]."""
    inside = L.reshape(L.iota(over.kernel, axis), (L.product(over.kernel), *(1,) * len(out)))
    before, _ = over.padding[axis]
    return inside * over.dilations[axis] + L.iota(out, axis) * over.strides[axis] - before  # type: ignore[operator]


@operator("CausalConvWithState", since=27)
def causal_conv_with_state(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, past_state: Tensor | None = None, *, activation: str = "none"
) -> tuple[Tensor, Tensor]:
    if activation not in ("none", "silu", "swish"):
        raise InvalidModelError(f"unknown activation {activation!r}.", remedy="Use 'none', 'silu' or 'swish'.")
    before = L.of_rank(weight, 3, "the weight").shape[2] - 1
    shape = (*x.shape[:2], before)
    state = L.full(shape, 0, x.dtype) if past_state is None else L.reshape(past_state, shape)
    seen = L.concat([state, x], 2)
    y = L.convolve(seen, weight, strides=(1,), padding=((0, 0),), groups=weight.shape[0], dtype=x.dtype)
    y = y if bias is None else y + align_to_channels(bias, y)
    wide = L.cast(y, t.FLOAT)
    return (
        y if activation == "none" else L.cast(wide * L.sigmoid(wide), y.dtype),
        L.slice_(seen, 2, seen.shape[2] - before, seen.shape[2]),
    )
