"""Extremes of an image for the scale of a dynamic quantization, which a convolution finds as it writes the image.

Each work item leaves the least and the greatest element of every lane in memory, zeros if none is beyond. The kernel of
the reductions reads these instead of the image. An image of another kernel is read first, in the order of memory.
"""

from __future__ import annotations

import math

from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen.element_reader import Element
from sardonyx.compiler.codegen.position_arithmetic import ORIGIN, Position
from sardonyx.compiler.llvm.ir_builder import splat, suffix, vector
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.compiler.lower.context import FunctionContext, KernelWriter
from sardonyx.compiler.lower.launch import Launch, Stage
from sardonyx.compiler.lower.maps import write_elements
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.schedule.image_extremes import reduced_image
from sardonyx.core.dim import Size
from sardonyx.core.ir.graph import Value

_PARTS = {"max": ("smax", 0), "min": ("umax", 0)}
"""Combination of the bits of the elements, and the bits of a zero, by extreme; in memory in this order.

As signed integers, bits of positive numbers have the order of the numbers; as unsigned integers, those of negative
numbers have the opposite order and are above the others. NaN is beyond all numbers of its sign.
"""


class Extremes:
    """The extremes of the elements that a kernel writes or reads, while the kernel is emitted.

    Args:
        writer: The kernel, of which nothing is emitted.
        image: The elements.
    """

    def __init__(self, writer: KernelWriter, image: Value) -> None:
        self._image, self._emitter = image, writer.kernel.emitter
        self._writer, e, lanes = writer, writer.kernel.emitter, writer.reader.lanes
        self._lanes, self._type = lanes, vector(lanes, "i32")
        self._parts = [e.variable(self._type, splat(str(zero), lanes, "i32")) for _, zero in _PARTS.values()]

    def add(self, position: Position, mask: str | None) -> None:
        """Count the elements of the image at a position.

        Args:
            position: The position.
            mask: The lanes that exist; None for all.
        """
        e, reader = self._writer.kernel.emitter, self._writer.reader
        name = reader.vector(self._image, position)
        if e is not self._emitter:
            return  # A trial, which collects the reads.
        name = e.spread(name, self._lanes, "float") if reader.lanes == 1 else name
        bits = Vector(e, name, "float", self._lanes).bits()
        if mask is not None:
            bits = Vector(e, mask, "i1", self._lanes).where(bits, 0)
        for part, (kind, (combine, _)) in zip(self._parts, _PARTS.items(), strict=True):
            beyond = bits if kind == "max" else bits & (bits >> 31)  # Positive numbers are not below 0; -0 is.
            part.set(Vector(e, part.get(), "i32", self._lanes).call(combine, beyond).name)

    def store(self, items: Size) -> None:
        """Write the extremes of the work items of a call to the memory of the first work item, zeros to the others."""
        w, e, lanes = self._writer, self._writer.kernel.emitter, self._lanes
        memory = w.pointer(_stage(w.group.root, items, lanes))
        extremes = [part.get() for part in self._parts]
        with e.loop("%first", "%last") as item:
            is_first = e.let(f"icmp eq i64 {item}, %first")
            at = e.address(memory, "i8", e.mul(item, _bytes(lanes)))
            for number, (part, (_, zero)) in enumerate(zip(extremes, _PARTS.values(), strict=True)):
                none = splat(str(zero), lanes, "i32")
                stored = e.let(f"select i1 {is_first}, {self._type} {part}, {self._type} {none}")
                e.store(self._type, stored, e.address(at, "i32", number * lanes), 4)


def lower_extremes(context: FunctionContext, group: Group) -> list[Launch] | None:
    """Emit the kernels of the range of an image; None for other reductions."""
    image = reduced_image(group)
    if image is None or not context.in_memory(image):
        return None
    stage = context.extremes.get(image)
    if stage is not None:
        return [_combine(context, group, stage)]
    w = KernelWriter(context, group)
    extremes, memory, lanes = Extremes(w, image), w.located(image), w.reader.lanes
    items = write_elements(
        w, image, memory, memory.shape, lambda position: extremes.add(tuple(position), w.reader.mask)
    )  # fmt: skip
    extremes.store(items)
    return [w.launch(items, "extremes"), _combine(context, group, _stage(group.root, items, lanes))]


def _combine(context: FunctionContext, group: Group, stage: Stage) -> Launch:
    """Emit the kernel that computes the numbers of a group from extremes in memory."""
    w = KernelWriter(context, group)
    e, reader, lanes = w.kernel.emitter, w.reader, w.reader.lanes
    memory, type = w.pointer(stage), vector(lanes, "i32")
    with e.loop("%first", "%last"):
        parts = [e.variable(type, splat(str(zero), lanes, "i32")) for _, zero in _PARTS.values()]
        with e.loop(0, e.div(w.kernel.size(stage.bytes), _bytes(lanes))) as item:
            at = e.address(memory, "i8", e.mul(item, _bytes(lanes)))
            for number, (part, (combine, _)) in enumerate(zip(parts, _PARTS.values(), strict=True)):
                read = Vector(e, e.load(type, e.address(at, "i32", number * lanes), 4), "i32", lanes)
                part.set(read.call(combine, Vector(e, part.get(), "i32", lanes)).name)
        greatest, least = (
            Vector(e, e.call("i32", f"llvm.vector.reduce.{combine}.{suffix(type)}", [(type, part.get())]), "i32", 1)
            for part, (combine, _) in zip(parts, _PARTS.values(), strict=True)
        )
        numbers = greatest.number(), least.number()
        nan = numbers[0].is_nan() | numbers[1].is_nan()
        for value in group.members:
            if value.op == "reduce":
                extreme = numbers[0] if value.params["kind"] == "max" else numbers[1]
                element = Element(nan.where(extreme.like(math.nan), extreme).name, True)
                reader.bind(value, lambda position, element=element: element)  # type: ignore[misc]
        elements = [reader.element(value, (ORIGIN,) * len(shape_of(value))) for value in group.roots]
        for value, element in zip(group.roots, elements, strict=True):
            reader.store(w.located(value), (ORIGIN,) * len(shape_of(value)), element)
    return w.launch(1, "rows")


def _stage(source: Value, items: Size, lanes: int) -> Stage:
    """Return the memory of extremes; another stage of the same value has another size, a multiple of 8."""
    return Stage(source, items * _bytes(lanes) + 4)


def _bytes(lanes: int) -> int:
    """Return the bytes of a work item."""
    return 4 * lanes * len(_PARTS)
