"""Lowering of an attention: queries, keys and values in memory, and elementwise changes of the scores."""

from __future__ import annotations

from sardonyx.compiler.analysis.patterns import Attention
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import View, shape_of
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.element_reader import Element
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import bound_at, masked, stored
from sardonyx.compiler.kernels.attention import Heads, attention, scratch_bytes
from sardonyx.compiler.lower.context import KernelWriter
from sardonyx.compiler.lower.launch import Scratch
from sardonyx.compiler.tiling.attention import AttentionProblem, choose_attention
from sardonyx.core.dim import Size


def write_attention(writer: KernelWriter, matched: Attention) -> Size:
    """Emit an attention with the epilogue; return the work items.

    Raises:
        Unfusable: An operand must be written to memory first.
    """
    w, reader, kernel = writer, writer.reader, writer.kernel
    queries, keys = matched.scores.operands
    q, k, v = (w.context.operand(operand) for operand in (queries, keys, matched.result.operands[1]))
    params = matched.scores.params
    batch_axes = len(shape_of(matched.scores)) - 2
    (depth_q,), (depth_k,) = params["left"], params["right"]
    (key_v,) = matched.result.params["right"]
    row_q, row_k = (free_axis(view, batch_axes, depth_axis) for view, depth_axis in ((q, depth_q), (k, depth_k)))
    column_v = free_axis(v, batch_axes, key_v)
    *leading, rows, key_count = shape_of(matched.scores)
    depth, width = q.shape[depth_q], v.shape[column_v]
    choice = w.choice = choose_attention(AttentionProblem(rows, key_count, depth, width), w.context.target)
    scratch = w.pointer(Scratch(scratch_bytes(choice.schedule, key_count, depth, width)))
    root, memory = w.group.root, w.located(w.group.root)

    def heads(operand: View, row: int, column: int) -> Heads:
        steps = [0] * (2 - batch_axes) + [kernel.size(operand.strides[axis]) for axis in range(batch_axes)]
        dtype = dtype_of(operand.base)
        start = kernel.emitter.address(
            w.pointer(operand.base), load_store.memory_type(dtype), kernel.size(operand.offset)
        )
        return Heads(
            start, dtype, steps[0], steps[1], kernel.size(operand.strides[row]), kernel.size(operand.strides[column])
        )

    def score(index: tuple[Index, ...], name: str, mask: str | None) -> str:
        position = index[2 - batch_axes :]
        with masked(reader, mask):
            reader.bind(matched.scores, bound_at(matched.scores, position, Element(name, False)))
            return reader.vector(matched.masked, position)

    def epilogue(index: tuple[Index, ...], name: str, mask: str | None) -> None:
        position = index[2 - batch_axes :]
        with masked(reader, mask):
            reader.bind(matched.result, bound_at(matched.result, position, Element(name, False)))
            stored(reader, root, memory, position)

    batch, count = ([1] * (2 - batch_axes) + list(leading))[:2]
    return attention(
        kernel, schedule=choice.schedule, batch=batch, heads=count, queries=rows, keys=key_count, depth=depth,
        width=width, q=heads(q, row_q, depth_q), k=heads(k, row_k, depth_k), v=heads(v, key_v, column_v),
        epilogue=epilogue, scratch=scratch, score=None if matched.masked is matched.scores else score,
    )  # fmt: skip


def free_axis(operand: View, batch_axes: int, summed_axis: int) -> int:
    """Return the axis of an operand that is neither a batch axis nor summed."""
    return next(axis for axis in range(batch_axes, len(operand.shape)) if axis != summed_axis)
