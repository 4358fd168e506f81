"""Random graphs for the rules by which convolutions take in their neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, Unsuitable, generator, run_many


def conv(g: GraphMaker, *, transposed: bool | None = None, zero_pads: bool = False) -> tuple[str, int, int]:
    """A convolution: its output's name, channels and rank."""
    spatial = g.int(1, 2)
    group = g.pick([1, 1, 1, 2])
    per_group_in, per_group_out = g.int(1, 3), g.int(1, 3)
    transposed = g.chance(0.3) if transposed is None else transposed
    channels = per_group_out * group
    size = [g.int(4, 7) for _ in range(spatial)]
    kernel = [g.int(1, 3) for _ in range(spatial)]
    x = g.input((g.int(1, 2), per_group_in * group, *size))
    shape = (per_group_in * group, per_group_out, *kernel) if transposed else (channels, per_group_in, *kernel)
    bias = g.weight((channels,)) if g.chance() else None
    attrs: dict[str, Any] = {"group": group if group > 1 or g.chance(0.3) else None}
    if not zero_pads and g.chance():
        attrs["pads"] = [g.int(0, 1) for _ in range(2 * spatial)]
    elif not transposed and g.chance(0.2):
        attrs["auto_pad"] = g.pick(["SAME_UPPER", "SAME_LOWER", "VALID"])
    if g.chance(0.3):
        attrs["strides"] = [g.int(1, 2) for _ in range(spatial)]
    weight = g.input(shape, dynamic=False) if g.chance(0.05) else g.weight(shape)
    y = g.node("ConvTranspose" if transposed else "Conv", x, weight, bias, **attrs)
    g.read_again(y, 0.1)
    return y, channels, 2 + spatial


def channel_constant(g: GraphMaker, channels: int, rank: int) -> str:
    """A constant that is one number a channel, or nearly."""
    shapes = [
        (channels, *(1,) * (rank - 2)),
        (1, channels, *(1,) * (rank - 2)),
        (1, 1, *(1,) * (rank - 2)),
        (),
        (1,),
        (channels,),
        (1, channels),
        (*(1,) * (rank + 1),),
    ]
    return g.weight(g.pick(shapes))


@generator("fuse_bn_into_conv")
def normalized(g: GraphMaker) -> None:
    y, channels, _ = conv(g)
    variance = g.const(abs(g.array((channels,), special=False)) + 0.1)
    parts = [g.weight((channels,)), g.weight((channels,)), g.weight((channels,)), variance]
    g.output(g.node("BatchNormalization", y, *parts, epsilon=g.maybe(1e-3)))


@generator("fuse_add_bias_into_conv")
def biased(g: GraphMaker) -> None:
    y, channels, rank = conv(g)
    operands = [y, channel_constant(g, channels, rank)]
    if g.chance():
        operands.reverse()
    try:
        g.output(g.node(g.pick(["Add", "Add", "Sub", "Sum"]), *operands))
    except ValueError as error:
        raise Unsuitable(str(error)) from error


@generator("fuse_mul_into_conv")
def scaled(g: GraphMaker) -> None:
    y, channels, rank = conv(g)
    operands = [y, channel_constant(g, channels, rank)]
    if g.chance():
        operands.reverse()
    g.output(g.node(g.pick(["Mul", "Mul", "Div"]), *operands))


@generator("fuse_preceding_mul_into_conv")
def scaled_before(g: GraphMaker) -> None:
    group = g.pick([1, 1, 2])
    item = g.int(1, 3)
    x = g.input((1, item * group, 5, 5))
    factor = channel_constant(g, item * group, 4)
    m = g.node("Mul", *([x, factor] if g.chance() else [factor, x]))
    g.read_again(m, 0.1)
    weight = g.weight((2 * group, item, 3, g.int(1, 3)))
    pads = g.maybe([1, 0, 1, 1])
    g.output(g.node("Conv", m, weight, g.weight((2 * group,)) if g.chance() else None, group=group, pads=pads))


@generator("fuse_preceding_bn_into_conv")
def normalized_before(g: GraphMaker) -> None:
    group, item, dtype = g.pick([1, 1, 2]), g.int(1, 3), g.pick(["float32", "float32", "float16"])
    channels = item * group
    if dtype == "float16":
        g.opset = 17
    x = g.input((g.int(1, 2), channels, 5, 5), dtype)
    parts = [g.array((channels,), dtype, special=False) for _ in range(3)]
    if g.chance(0.3):
        parts[1:] = [np.zeros(channels, dtype)] * 2  # nothing is added: padding may stay
    arguments = [g.const(part) if g.chance(0.95) else g.input((channels,), dtype, values=part) for part in parts]
    variance = g.const((abs(g.array((channels,), special=False)) + 0.1).astype(dtype))
    y = g.node("BatchNormalization", x, *arguments, variance, epsilon=g.maybe(0.01))
    g.read_again(y, 0.1)
    weight = g.weight((2 * group, item, 3, g.int(1, 3)), dtype)
    padding: dict[str, Any] = {"pads": [1, 0, 1, 1]} if g.chance(0.3) else {}
    if g.chance(0.1):
        padding = {"auto_pad": g.pick(["VALID", "SAME_UPPER"])}
    bias = g.weight((2 * group,), dtype) if g.chance() else None
    g.output(g.node("Conv", y, weight, bias, group=group, strides=g.maybe([2, 1], 0.2), **padding))


@generator("fuse_bn_into_gemm")
def normalized_gemm(g: GraphMaker) -> None:
    inner, columns = g.int(1, 4), g.int(1, 4)
    x = g.input((g.int(1, 3), inner))
    transposed = int(g.chance())
    weight = g.weight((columns, inner) if transposed else (inner, columns))
    c = g.weight(g.pick([(columns,), (1, columns), (1,), ()])) if g.chance(0.7) else None
    if g.chance(0.3):
        lead = (g.int(1, 3),) if g.chance(0.2) else ()
        columns = g.int(1, 4)
        y = g.node("MatMul", g.input((*lead, 2, inner)), g.weight((inner, columns)))
        columns = 2 if lead else columns
    else:
        y = g.node("Gemm", x, weight, c, transB=transposed or None, alpha=g.maybe(0.5), beta=g.maybe(2.0, 0.3))
    g.read_again(y, 0.1)
    variance = g.const(abs(g.array((columns,), special=False)) + 0.1)
    parts = [g.weight((columns,)), g.weight((columns,)), g.weight((columns,)), variance]
    g.output(g.node("BatchNormalization", y, *parts))


def padded(g: GraphMaker, rank: int) -> str:
    """A Pad, mostly of spatial axes with zeros."""
    x = g.input((1, 2, *(g.int(4, 6) for _ in range(rank - 2))))
    amounts = [0] * (2 * rank)
    for axis in range(2 if g.chance(0.9) else 0, rank):
        amounts[axis], amounts[axis + rank] = g.int(0, 2), g.int(-1 if g.chance(0.1) else 0, 2)
    value = g.const(g.pick([0.0, 0.0, 1.0]), "float32") if g.chance() else None
    y = g.node("Pad", x, g.ints(*amounts), value, mode=g.pick([None, None, "constant", "edge"]))
    g.read_again(y, 0.1)
    return str(y)


@generator("fuse_pad_into_conv")
def pad_conv(g: GraphMaker) -> None:
    rank = g.int(3, 4)
    y = padded(g, rank)
    attrs: dict[str, Any] = {}
    if g.chance():
        attrs["pads"] = [g.int(0, 1) for _ in range(2 * (rank - 2))]
    elif g.chance(0.2):
        attrs["auto_pad"] = g.pick(["VALID", "SAME_UPPER"])
    g.output(g.node("Conv", y, g.weight((3, 2, *(g.int(1, 3) for _ in range(rank - 2)))), **attrs))


@generator("fuse_pad_into_conv/pad_before_integer_conv")
def pad_integer_conv(g: GraphMaker) -> None:
    zero = g.int(0, 9)
    x = g.input((1, 2, 5, 4), "uint8")
    pads = [0, 0, g.int(0, 2), g.int(0, 2), 0, 0, g.int(0, 2), g.int(0, 2)]
    number = g.const(np.array(zero if g.chance(0.9) else zero + 1, np.uint8))
    y = g.node("Pad", x, g.ints(*pads), number if zero or g.chance() else None)
    g.read_again(y, 0.1)
    w = g.const(np.asarray(g.array((3, 2, 2, 2), "uint8", special=False)))
    zero_point = g.const(np.array(zero, np.uint8)) if zero or g.chance() else None
    attrs = {"pads": [g.int(0, 1) for _ in range(4)]} if g.chance() else {}
    g.output(g.node("ConvInteger", y, w, zero_point, **attrs))


@generator("fuse_pad_into_pool")
def pad_pool(g: GraphMaker) -> None:
    rank = g.int(3, 4)
    y = padded(g, rank)
    kernel = [g.int(2, 3) for _ in range(rank - 2)]
    g.least = 4  # ONNX Runtime averages in windows that are larger than the image too, where the standard has none.
    attrs: dict[str, Any] = {"count_include_pad": g.pick([None, 0, 1]), "ceil_mode": g.pick([None, None, 1])}
    if g.chance(0.3):
        attrs["pads"] = [g.int(0, 1) for _ in range(2 * (rank - 2))]
    if g.chance(0.3):
        attrs["strides"] = [g.int(1, 2) for _ in range(rank - 2)]
    g.output(g.node("AveragePool", y, kernel_shape=kernel, **attrs))


@pytest.mark.parametrize(
    "label",
    [
        "fuse_bn_into_conv",
        "fuse_add_bias_into_conv",
        "fuse_mul_into_conv",
        "fuse_preceding_mul_into_conv",
        "fuse_preceding_bn_into_conv",
        "fuse_bn_into_gemm",
        "fuse_pad_into_conv",
        "fuse_pad_into_conv/pad_before_integer_conv",
        "fuse_pad_into_pool",
    ],
)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)
