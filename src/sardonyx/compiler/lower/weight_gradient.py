"""Lowering of gradients of convolution weights."""

from __future__ import annotations

import math
from typing import cast

from sardonyx.compiler.analysis.strided_views import View, contiguous, shape_of, view
from sardonyx.compiler.analysis.weight_gradients import WeightGradient
from sardonyx.compiler.codegen.element_reader import Element
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import Unfusable, bound_at, masked, stored
from sardonyx.compiler.kernels.conv.weight_gradient import Geometry, Operand, scratch_bytes, write_gradient
from sardonyx.compiler.lower.context import FunctionContext, KernelWriter
from sardonyx.compiler.lower.launch import Launch, Scratch
from sardonyx.compiler.schedule.groups import Group
from sardonyx.core.dim import Size
from sardonyx.core.ir.graph import Value


def lower_weight_gradient(context: FunctionContext, group: Group, match: WeightGradient) -> Launch:
    """Emit the kernel of a gradient of weights.

    Raises:
        Unfusable: An operand must be written to memory first.
    """
    w = KernelWriter(context, group)
    flat = len(match.taps) == 1
    x = _operand(w, match.core.operands[0], match.channels, match.groups, flat)
    dy = _operand(w, match.core.operands[1], match.filters, match.groups, flat)
    if not dy.block and not flat and dy.strides[3] != match.positions[1] * dy.strides[4]:
        raise Unfusable(match.core.operands[1])

    def pair(sizes: tuple[int, ...], other: int) -> tuple[int, int]:
        return (other, sizes[0]) if flat else (sizes[0], sizes[1])

    geometry = Geometry(
        match.groups, match.channels, match.filters, match.batch, pair(match.image, 1), pair(match.positions, 1),
        pair(match.taps, 1), pair(match.strides, 1), pair(match.dilation, 1), pair(match.low, 0),
    )  # fmt: skip
    roots = [(root, w.located(root)) for root in group.roots]

    def store(at: tuple[Index, ...], result: str, mask: str | None) -> None:
        here = (*at[:3], at[4]) if flat else at
        with masked(w.reader, mask):
            w.reader.bind(match.result, bound_at(match.result, here, Element(result, False)))
            for root, memory in roots:
                stored(w.reader, root, memory, here)

    scratch = w.pointer(Scratch(scratch_bytes(geometry, context.target, x.block)))
    items = write_gradient(w.kernel, geometry, x, dy, scratch, store)
    return w.launch(items, "weight gradient")


def _operand(w: KernelWriter, value: Value, channels: int, groups: int, flat: bool) -> Operand:
    """Return an operand in memory: an image in blocked layout, or a row-major view."""
    stored_copy = w.context.in_memory(value)
    source = w.context.operand(value) if stored_copy else view(value, set(w.context.blocks))
    block = w.context.blocks.get(source.base, 0)
    if block:
        if _is_exchanged_image(source, channels) and (groups == 1 or channels % block == 0):
            return Operand(w.pointer(source.base), (0, 0, 0, 0, 0), block)
        raise Unfusable(value)
    source = w.context.operand(value)
    last = source.strides[-1]
    if source.offset != 0 or not isinstance(last, int):
        raise Unfusable(value)
    strides = (*source.strides[:3], 0, last) if flat else source.strides
    return Operand(w.pointer(source.base), cast("tuple[Size, Size, Size, Size, int]", strides))


def _is_exchanged_image(source: View, channels: int) -> bool:
    """Return True if a view is ``[groups, channels, samples, *spatial]`` of a whole image in memory."""
    shape = shape_of(source.base)
    pixels = math.prod(shape[2:])
    expected = (channels * pixels, pixels, shape[1] * pixels, *contiguous(shape[2:]))
    return (
        len(source.strides) == len(expected)
        and source.offset == 0
        and all(
            size == 1 or stride == own_stride
            for size, stride, own_stride in zip(source.shape, source.strides, expected, strict=True)
        )
    )
