"""Lowering of dynamic quantizations: codes of an image in memory, written in the order of memory.

Four vectors of floats become one vector of codes: rounded at the conversion, moved by the zero point, and limited while
packing. Quotients beyond 32 bits, such as those of an image of equal numbers, are limited before.
"""

from __future__ import annotations

import math

from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen.dynamic_codes import DynamicCodes, dynamic_codes
from sardonyx.compiler.codegen.loop_nest import CHUNK
from sardonyx.compiler.codegen.position_arithmetic import ORIGIN
from sardonyx.compiler.codegen.requantize import PACKED, Codes, nearest, packs
from sardonyx.compiler.llvm.ir_builder import vector
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.compiler.lower.context import FunctionContext, KernelWriter
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.tiling import costs
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.ir import types as t

_BEYOND = 512.0
"""A quotient beyond all codes, whatever the zero point."""


def dense_codes(context: FunctionContext, group: Group) -> DynamicCodes | None:
    """Return the codes that a group writes, if the floats are in memory in the same order; None for other groups."""
    codes = None if group.others or not packs(context.target) else dynamic_codes(group.root)
    if codes is None or any(context.in_memory(step) for step in (*codes.steps, codes.quotient)):
        return None
    image, shape = codes.quotient.operands[0], shape_of(group.root)
    if not context.in_memory(image) or shape_of(image) != shape:
        return None
    block = context.blocks.get(group.root, 0)
    if block != context.blocks.get(image, 0) or (block and not _is_multiple(shape[1], block)):
        return None  # Padding channels of the last block are zeros, whose codes are not.
    return codes


def lower_codes(context: FunctionContext, group: Group, codes: DynamicCodes) -> Launch | None:
    """Emit the kernel of dense codes; None if no scale of the image's own range divides the floats."""
    w = KernelWriter(context, group)
    w.prepare_numbers()
    divisor = w.reader.divisor(codes.quotient)
    zero = w.reader.element(codes.offset, (ORIGIN,) * len(shape_of(codes.offset)))
    if divisor is None or not zero.uniform:
        return None
    e, lanes, count = w.kernel.emitter, w.reader.lanes, math.prod(shape_of(group.root))
    is_whole = context.blocks.get(group.root, 0) == lanes or _is_multiple(count, lanes)
    source, result = w.located(codes.quotient.operands[0]), w.located(group.root)
    offset = Vector(e, zero.name, "float", 1)
    integer = offset.to("fptosi", "i32")
    packing = Codes(codes.quotient, codes.moved.operands[0], 0, 0, 255, t.UINT8)

    def write(start: str | int, vectors: int) -> None:
        whole = []
        for number in range(vectors):
            address = e.address(source.pointer, "float", e.add(start, number * lanes))
            x = Vector(e, e.load(vector(lanes, "float"), address, 4), "float", lanes)
            units = divisor(x)
            limited = (units > _BEYOND).where(units.like(_BEYOND), units)  # NaN stays, and becomes the least integer.
            whole.append(nearest(limited) + Vector(e, e.spread(integer.name, lanes, "i32"), "i32", lanes))
        packing.store(e, lanes, e.address(result.pointer, "i8", start), [integers.name for integers in whole])

    with e.loop("%first", "%last") as item:
        first = e.mul(item, CHUNK)
        end = e.least(e.add(first, CHUNK), w.kernel.size(count))
        for vectors in (PACKED, 1):
            last = e.sub(end, e.rem(e.sub(end, first), vectors * lanes))
            with e.loop(first, last, vectors * lanes) as index:
                write(index, vectors)
            first = last
        if not is_whole:
            with e.loop(first, end) as index:
                x = Vector(e, e.load("float", e.address(source.pointer, "float", index), 4), "float", 1)
                code = codes.numbers(divisor(x), offset).to("fptosi", "i32").to("trunc", "i8")
                e.store("i8", code.name, e.address(result.pointer, "i8", index), 1)
    w.kernel.work = CHUNK // lanes * costs.DYNAMIC_CODE_FMAS
    return w.launch(ceil_div(count, CHUNK), "dynamic codes")


def _is_multiple(size: Size, number: int) -> bool:
    return isinstance(size, int) and size % number == 0
