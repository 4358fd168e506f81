"""Axes along which a value repeats its entries in blocks, from the structure of its computation."""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.analysis.constant_values import evaluate_closed, is_closed
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.eval.tensor import apply
from sardonyx.core.ir.graph import Value


def group_entries(value: Value, axis: int) -> tuple[Value, int]:
    """Return a value with one entry for each block of equal entries along an axis, and the size of a block.

    The last block may be shorter. The size is 1 if the computation does not show blocks.

    Args:
        value: A closed value.
        axis: The axis.
    """
    grouped = _grouped(value, axis)
    return (value, 1) if grouped is None else grouped


def _grouped(value: Value, axis: int) -> tuple[Value, int] | None:
    shape, params = tuple(int(size) for size in shape_of(value)), value.params  # type: ignore[arg-type]
    if value.op == "permute":
        inner = _grouped(value.operands[0], params["axes"][axis])
        return None if inner is None else (apply("permute", inner[0], axes=params["axes"]), inner[1])
    if value.op in ("convert", "stop_gradient"):
        inner = _grouped(value.operands[0], axis)
        return None if inner is None else (apply(value.op, inner[0], **params), inner[1])
    if value.op == "broadcast":
        return _of_broadcast(value, shape, axis)
    if value.op == "slice" and params["starts"][axis] == 0 and params["strides"][axis] == 1:
        inner = _grouped(value.operands[0], axis)
        if inner is None:
            return None
        limits = _with(params["limits"], axis, -(-shape[axis] // inner[1]))
        return apply("slice", inner[0], **{**params, "limits": limits}), inner[1]
    if value.op == "reshape":
        return _of_repetition(value, shape, axis)
    if value.op == "gather" and axis == 0 and params["batch"] == 0:
        return _of_gather(value, shape)
    return None


def _with(sizes: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*sizes[:axis], size, *sizes[axis + 1 :])


def _of_broadcast(value: Value, shape: tuple[int, ...], axis: int) -> tuple[Value, int] | None:
    (operand,) = value.operands
    if shape_of(operand)[axis] == 1:
        return apply("broadcast", operand, shape=_with(shape, axis, 1)), shape[axis]
    inner = _grouped(operand, axis)
    if inner is None:
        return None
    count = int(shape_of(inner[0])[axis])  # type: ignore[arg-type]
    return apply("broadcast", inner[0], shape=_with(shape, axis, count)), inner[1]


def _of_repetition(value: Value, shape: tuple[int, ...], axis: int) -> tuple[Value, int] | None:
    """Group the entries of an axis that was two, of which the second repeats: [blocks, block] as [blocks * block]."""
    (operand,) = value.operands
    split = shape_of(operand)
    if operand.op != "broadcast" or len(split) != len(shape) + 1 or shape_of(operand.operands[0])[axis + 1] != 1:
        return None
    if split[:axis] != shape[:axis] or split[axis + 2 :] != shape[axis + 1 :]:
        return None
    blocks, block = int(split[axis]), int(split[axis + 1])  # type: ignore[arg-type]
    once = apply("broadcast", operand.operands[0], shape=_with(split, axis + 1, 1))  # type: ignore[arg-type]
    return apply("reshape", once, shape=_with(shape, axis, blocks)), block


def _of_gather(value: Value, shape: tuple[int, ...]) -> tuple[Value, int] | None:
    """Group the entries that are gathered in order, each several times."""
    source, at = value.operands
    if len(shape_of(at)) != 2 or shape_of(at)[1] != 1 or not is_closed(at) or not shape[0]:
        return None
    indices = evaluate_closed(at)[:, 0]
    block = int((indices == 0).sum())
    if block == 0 or not np.array_equal(indices, np.arange(len(indices)) // block):
        return None
    count, entries = -(-len(indices) // block), shape_of(source)
    if not isinstance(entries[0], int) or entries[0] < count:
        return None
    starts, strides = (0,) * len(entries), (1,) * len(entries)
    return apply("slice", source, starts=starts, limits=(count, *entries[1:]), strides=strides), block
