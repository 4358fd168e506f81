"""Lowering of host functions with kernels; see :mod:`sardonyx.compiler.analysis.bounded_output`."""

from __future__ import annotations

import math
from collections.abc import Callable

from sardonyx.compiler.analysis.bounded_output import most_per_category, suppression_operands
from sardonyx.compiler.analysis.control_flow import results_of
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.kernels.nms import Boxes, heap_bytes, scratch_bytes, write_suppression
from sardonyx.compiler.llvm.ir_builder import float_literal
from sardonyx.compiler.lower.context import KernelWriter
from sardonyx.compiler.lower.launch import Count, Launch, Scratch, Stage
from sardonyx.core.dim import ceil_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value


def lower_bounded_output(value: Value, begin: Callable[[], KernelWriter], lanes: int) -> list[Launch]:
    """Return the launches of a ``host``, whose operands are in memory.

    Args:
        value: The ``host``.
        begin: Begins a kernel.
        lanes: Lanes of a vector of float32.
    """
    return _LOWERINGS[value.params["function"].name](value, begin, lanes)


# NonMaxSuppression: one kernel selects boxes per image and category; a second kernel concatenates the selections.


def _lower_suppression(value: Value, begin: Callable[[], KernelWriter], lanes: int) -> list[Launch]:
    operands = suppression_operands(value)
    images, categories, _ = shape_of(operands.scores)
    box_limit = most_per_category(value)
    (result,) = results_of(value)
    # Layout of the stage: the number of selected boxes of each category, then the indices of the boxes.
    stage = Stage(value, 8 * images * categories * (1 + box_limit))
    return [
        _write_selection(value, begin(), lanes, stage).launch(images * categories, "suppression", result),
        _write_concatenation(value, begin(), stage, result).launch(1, "boxes", result),
    ]


def _write_selection(value: Value, w: KernelWriter, lanes: int, stage: Stage) -> KernelWriter:
    operands = suppression_operands(value)
    images, categories, boxes = shape_of(operands.scores)
    box_limit = most_per_category(value)
    e, size = w.kernel.emitter, w.kernel.size
    bytes_ = ceil_div(scratch_bytes(boxes, box_limit, lanes), 64) * 64
    scratch, counts = w.pointer(Scratch(bytes_)), w.pointer(stage)
    of_boxes, scores = w.pointer(operands.boxes), w.pointer(operands.scores)
    limit, overlap, threshold = (
        _number(w, operand) for operand in (operands.limit, operands.overlap, operands.threshold)
    )
    picks = e.address(counts, "i64", size(images * categories))
    heap = e.address(scratch, "i8", e.mul("%worker", size(bytes_)))
    centered = bool(dict(value.params["attributes"]).get("center_point_box", 0))
    with e.loop("%first", "%last") as item:
        inputs = Boxes(
            e.address(of_boxes, "float", e.mul(e.div(item, size(categories)), size(4 * boxes))),
            e.address(scores, "float", e.mul(item, size(boxes))),
            size(boxes), centered, limit or "0", overlap or float_literal(0, "float"), threshold,
        )  # fmt: skip
        selected_keys = e.address(heap, "i8", size(heap_bytes(boxes)))
        selected_count = write_suppression(
            e, inputs, heap, selected_keys, e.address(picks, "i64", e.mul(item, size(box_limit))), lanes
        )
        e.store("i64", selected_count, e.address(counts, "i64", item), 8)
    return w


def _write_concatenation(value: Value, w: KernelWriter, stage: Stage, result: Value) -> KernelWriter:
    operands = suppression_operands(value)
    images, categories, boxes = shape_of(operands.scores)
    e, size = w.kernel.emitter, w.kernel.size
    counts, out, number = w.pointer(stage), w.pointer(result), w.pointer(Count(value))
    overlap = _number(w, operands.overlap)
    all_categories, box_limit = size(images * categories), size(most_per_category(value))
    picks = e.address(counts, "i64", all_categories)
    with e.loop("%first", "%last"):
        w.reader.require(e.let(f"icmp ult i64 {size(boxes)}, {1 << 32}"), 1)
        if overlap is not None:
            least = e.let(f"fcmp oge float {overlap}, {float_literal(0, 'float')}")
            w.reader.require(
                e.let(f"and i1 {least}, {e.let(f'fcmp ole float {overlap}, ' + float_literal(1, 'float'))}"), 1
            )
        total = e.variable("i64", "0")
        with e.loop(0, all_categories) as item:
            image, category = e.div(item, size(categories)), e.rem(item, size(categories))
            of_category = e.address(picks, "i64", e.mul(item, box_limit))
            with e.loop(0, e.load("i64", e.address(counts, "i64", item), 8)) as i:
                row = e.address(out, "i64", e.mul(total.get(), 3))
                box = e.load("i64", e.address(of_category, "i64", i), 8)
                for column, word in enumerate((image, category, box)):
                    e.store("i64", str(word), e.address(row, "i64", column), 8)
                total.set(str(e.add(total.get(), 1)))
        e.store("i64", total.get(), number, 8)
    return w


def _number(w: KernelWriter, value: Value | None) -> str | None:
    """Load the single element of an operand; return None without an operand."""
    return None if value is None else load_store.load(w.kernel.emitter, dtype_of(value), w.pointer(value), Index(0), 1)


# NonZero: row-major positions of nonzero elements in order, then the index along each axis.


def _lower_nonzero(value: Value, begin: Callable[[], KernelWriter], lanes: int) -> list[Launch]:
    (source,) = value.operands
    (result,) = results_of(value)
    shape, dtype = shape_of(source), dtype_of(source)
    w = begin()
    e, size = w.kernel.emitter, w.kernel.size
    positions = w.pointer(Stage(value, 8 * math.prod(shape)))
    x, out, number = w.pointer(source), w.pointer(result), w.pointer(Count(value))
    with e.loop("%first", "%last"):
        total = e.variable("i64", "0")
        with e.loop(0, size(math.prod(shape))) as i, w.reader.inside():
            element = load_store.load(e, dtype, x, Index(i), 1)
            counts = w.reader.converted(dtype, t.BOOL, element, True)
            e.store("i64", i, e.address(positions, "i64", total.get()), 8)
            total.set(str(e.add(total.get(), e.let(f"zext i1 {counts} to i64"))))
        count = total.get()
        with e.loop(0, count) as i:
            position: str | int = e.load("i64", e.address(positions, "i64", i), 8)
            for axis in reversed(range(len(shape))):
                index = e.rem(position, size(shape[axis])) if axis else position
                e.store("i64", str(index), e.address(out, "i64", e.add(e.mul(count, axis), i)), 8)
                position = e.div(position, size(shape[axis])) if axis else position
        e.store("i64", count, number, 8)
    return [w.launch(1, "positions", result)]


_LOWERINGS: dict[str, Callable[[Value, Callable[[], KernelWriter], int], list[Launch]]] = {
    "NonMaxSuppression": _lower_suppression,
    "NonZero": _lower_nonzero,
}
