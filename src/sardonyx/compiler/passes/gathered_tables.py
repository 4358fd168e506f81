"""Rows of a table that constants define: the rows are computed, not the table.

An embedding stored as integers is dequantized before its rows are gathered (``DequantizeLinear`` before ``Gather``), or
unpacked from bytes (``GatherBlockQuantized``). As written, the whole table would be computed in each call. This pass
gathers rows of the constants, and computes the rows: the memory holds the integers alone, those of 4 and 2 bits packed
in bytes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.element_types import PACKED_BITS
from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_elementwise
from sardonyx.compiler.analysis.repeated_entries import group_entries
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.dim import Size
from sardonyx.core.eval.tensor import Tensor, apply, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

LEAST_BYTES = 1 << 16
"""Smallest table, in bytes, of which rows are computed: a smaller one is cheap to compute as a whole."""


def gather_rows(table: Value, at: Tensor, batch: int) -> Tensor | None:
    """Return rows of a computed table, computed from rows of constants; None for other tables.

    Args:
        table: The table, [rows, ...].
        at: Row numbers, [..., 1].
        batch: Number of shared leading axes.
    """
    if batch or table.is_constant or shape_of(at)[-1] != 1 or not shape_of(table) or not is_closed(table):
        return None
    sizes = [size for size in shape_of(table) if isinstance(size, int)]
    if len(sizes) != len(shape_of(table)):
        return None  # The size is counted from constants: their number of rows is not known.
    if math.prod(sizes) * max(1, dtype_of(table).bitwidth // 8) < LEAST_BYTES:
        return None
    size = sizes[0]
    rows = _Rows(at, size)
    entries = rows.of(table, 0)
    return entries if rows.are_checked else None


class _Rows:
    """Entries of tables at some row numbers.

    Args:
        at: Row numbers, [..., 1].
        size: Entries of the table.

    Attributes:
        are_checked: True if a gather refuses row numbers outside of the table.
    """

    def __init__(self, at: Tensor, size: Size) -> None:
        self.at, self.size = at, size
        self.are_checked = False

    @property
    def leading(self) -> tuple[Size, ...]:
        """The axes of the row numbers, which come first in every result."""
        return shape_of(self.at)[:-1]

    def of(self, table: Value, axis: int) -> Tensor | None:
        """Return the entries of an axis: [leading, other axes of the table]; None if not computed by entries."""
        if table.is_constant:
            return self._of_constant(table, axis)
        shape = shape_of(table)
        entries, block = group_entries(table, axis)
        if block > 1:
            count = shape_of(entries)[axis]
            return _Rows(self._divided(block, count), count).of(entries, axis)
        rest = (*shape[:axis], *shape[axis + 1 :])
        if is_elementwise(table):
            if table.op == "convert" and _is_packable(table.operands[0]) and dtype_of(table) == t.FLOAT:
                return self._unpacked(table.operands[0], axis, table.params)
            operands = [self.of(operand, axis) for operand in table.operands]
            if any(operand is None for operand in operands):
                return None
            return apply(table.op, *(operand for operand in operands if operand is not None), **table.params)
        if table.op == "permute":
            axes = table.params["axes"]
            inner = self.of(table.operands[0], axes[axis])
            remaining = [a for a in range(len(axes)) if a != axes[axis]]
            return (
                None if inner is None else self._permuted(inner, [remaining.index(a) for a in axes if a != axes[axis]])
            )
        if table.op == "broadcast":
            inner = self.of(table.operands[0], axis)
            return None if inner is None else apply("broadcast", inner, shape=(*self.leading, *rest))
        if table.op == "reshape":
            return self._of_reshape(table, axis, rest)
        if table.op == "slice":
            return self._of_slice(table, axis)
        return None

    def _permuted(self, entries: Tensor, axes: list[int]) -> Tensor:
        count = len(self.leading)
        return apply("permute", entries, axes=(*range(count), *(count + axis for axis in axes)))

    def _divided(self, block: int, entries: Size) -> Tensor:
        """Return the numbers of the blocks of row numbers."""
        dtype = dtype_of(self.at)
        if entries == 1:
            return apply("broadcast", constant(np.zeros((1,) * len(shape_of(self.at))), dtype), shape=shape_of(self.at))
        return self.at / constant(np.array(block), dtype)

    def _of_reshape(self, table: Value, axis: int, rest: tuple[Size, ...]) -> Tensor | None:
        """Return entries of a reshape that leaves the axis as it is."""
        (operand,) = table.operands
        shape, source = shape_of(table), shape_of(operand)
        before = math.prod(shape[:axis])
        inner_axis = next(
            (a for a, size in enumerate(source) if size == shape[axis] and math.prod(source[:a]) == before), None
        )
        inner = None if inner_axis is None else self.of(operand, inner_axis)
        return None if inner is None else apply("reshape", inner, shape=(*self.leading, *rest))

    def _of_slice(self, table: Value, axis: int) -> Tensor | None:
        """Return entries of a slice of other axes."""
        params = table.params
        if params["strides"][axis] != 1 or shape_of(table)[axis] != shape_of(table.operands[0])[axis]:
            return None
        inner = self.of(table.operands[0], axis)
        if inner is None:
            return None
        count = len(self.leading)
        starts, limits, strides = (
            (*start, *params[name][:axis], *params[name][axis + 1 :])
            for name, start in (("starts", (0,) * count), ("limits", self.leading), ("strides", (1,) * count))
        )
        return apply("slice", inner, starts=starts, limits=limits, strides=strides)

    def _of_constant(self, table: Value, axis: int) -> Tensor:
        assert isinstance(table, Tensor)
        if shape_of(table)[axis] == 1:
            rest = (*shape_of(table)[:axis], *shape_of(table)[axis + 1 :])
            entry = apply("reshape", table, shape=(*(1,) * len(self.leading), *rest))
            return apply("broadcast", entry, shape=(*self.leading, *rest))
        self.are_checked |= shape_of(table)[axis] == self.size
        if axis:
            table = constant(np.ascontiguousarray(np.moveaxis(np.asarray(table.known), axis, 0)), dtype_of(table))
        return apply("gather", table, self.at, batch=0)

    def _unpacked(self, codes: Value, axis: int, params: Any) -> Tensor:
        """Return entries of constant integers of 4 or 2 bits, converted, from a table of bytes."""
        dtype = dtype_of(codes)
        bits = PACKED_BITS[dtype]
        parts, mask = 8 // bits, (1 << bits) - 1
        units = np.moveaxis(np.asarray(codes.known), axis, 0).astype(np.int8).view(np.uint8) & np.uint8(mask)
        self.are_checked |= len(units) == self.size
        *others, count = units.shape
        units = np.pad(units, [(0, 0)] * len(others) + [(0, -count % parts)]).reshape(*others, -1, parts)
        bytes = units[..., 0].copy()
        for part in range(1, parts):
            bytes |= units[..., part] << np.uint8(part * bits)
        gathered = apply("gather", constant(bytes, t.UINT8), self.at, batch=0)
        shape = (*shape_of(gathered), parts)
        split = apply("broadcast", apply("reshape", gathered, shape=(*shape[:-1], 1)), shape=shape)
        ones = (1,) * (len(shape) - 1)
        shifts = apply("broadcast", constant(np.arange(0, 8, bits).reshape(*ones, parts), t.UINT8), shape=shape)
        masks = apply("broadcast", constant(np.full((*ones, 1), mask), t.UINT8), shape=shape)
        masked = apply("and", apply("shift_right", split, shifts), masks)
        flat = (*shape[:-2], int(shape[-2]) * parts)  # type: ignore[arg-type]
        numbers = apply("reshape", masked, shape=flat)
        if flat[-1] != count:
            starts, strides = (0,) * len(flat), (1,) * len(flat)
            numbers = apply("slice", numbers, starts=starts, limits=(*flat[:-1], count), strides=strides)
        if t.kind(dtype) == "uint":
            return apply("convert", numbers, **params)
        middle = 1 << (bits - 1)
        flipped = numbers ^ constant(np.array(middle), t.UINT8)
        return apply("convert", flipped, **params) - constant(np.array(middle), t.FLOAT)


def _is_packable(codes: Value) -> bool:
    """Return True for constant integers of 4 or 2 bits of which an entry has several."""
    return codes.is_constant and dtype_of(codes) in PACKED_BITS and len(shape_of(codes)) > 1
