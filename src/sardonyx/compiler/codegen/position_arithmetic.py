"""Arithmetic of positions: indices of the lanes of a vector along the axes of a value, and offsets in buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sardonyx.compiler.analysis.strided_views import Memory, common_factors, contiguous, factor_groups
from sardonyx.compiler.codegen.kernel_builder import Index, Kernel
from sardonyx.compiler.llvm.ir_builder import vector
from sardonyx.core.dim import Size

Position = tuple[Index, ...]

ORIGIN = Index(0)


@dataclass
class PositionArithmetic:
    """Writer of the instructions that compute positions in one kernel.

    Attributes:
        kernel: The kernel under construction.
        lanes: Number of lanes of a vector.
        row: The row of the current block; 0 outside of blocks.
    """

    kernel: Kernel
    lanes: int
    row: int = field(default=0, kw_only=True)
    _reshaped: dict[tuple[Position, tuple[Size, ...], tuple[Size, ...], int], tuple[Position, tuple[str, ...]]] = field(
        default_factory=dict, init=False
    )

    def in_row(self, index: Index) -> Index:
        """Return the position in the current row of a block: the row stride is added to the base."""
        if not index.row:
            return index
        e = self.kernel.emitter
        return Index(e.add(index.base, e.mul(index.row, self.row)), index.lane, repeat=index.repeat)

    def lanes_of(self, index: Index) -> str:
        """Return the position of every lane, as a vector."""
        index, e = self.in_row(index), self.kernel.emitter
        if index.vector:
            return index.vector
        base = e.spread(str(index.base), self.lanes, "i64")
        if not index.lane:
            return base
        type = vector(self.lanes, "i64")
        if isinstance(index.lane, str):
            step = e.spread(index.lane, self.lanes, "i64")
            numbers = self.lanes_of(Index(0, 1, repeat=index.repeat))
            offsets = e.let(f"mul nsw {type} {numbers}, {step}")
            return e.let(f"add nsw {type} {base}, {offsets}")
        numbers = ", ".join(f"i64 {lane // index.repeat * index.lane}" for lane in range(self.lanes))
        steps = f"<{numbers}>" if self.lanes > 1 else "0"
        return e.let(f"add nsw {type} {base}, {steps}")

    def times(self, index: Index, factor: str | int) -> Index:
        """Return a position multiplied by a number."""
        e = self.kernel.emitter
        if factor == 1:
            return index
        if index.vector:
            spread = e.spread(str(factor), self.lanes, "i64")
            return Index(0, vector=e.let(f"mul nsw {vector(self.lanes, 'i64')} {self.lanes_of(index)}, {spread}"))
        known = factor if isinstance(factor, int) else 1
        lane, row = e.mul(index.lane, factor), e.mul(index.row, factor)
        modulus, remainder = (number * known for number in index.congruence)
        return Index(
            e.mul(index.base, factor), lane, index.multiple * abs(known) or 1, row=row, repeat=index.repeat,
            remainder=remainder, modulus=abs(modulus) if isinstance(factor, int) else 1,
        )  # fmt: skip

    def plus(self, a: Index, b: Index) -> Index:
        """Return the sum of two positions."""
        if a.is_origin or b.is_origin:
            return b if a.is_origin else a
        e = self.kernel.emitter
        if a.vector or b.vector or (a.lane and b.lane and a.repeat != b.repeat):
            return Index(0, vector=e.let(f"add nsw {vector(self.lanes, 'i64')} {self.lanes_of(a)}, {self.lanes_of(b)}"))
        multiple = math.gcd(_multiple(a), _multiple(b)) or 1
        repeat = a.repeat if a.lane else b.repeat
        (first, rest), (second, other) = a.congruence, b.congruence
        return Index(
            e.add(a.base, b.base), e.add(a.lane, b.lane), multiple, row=e.add(a.row, b.row), repeat=repeat,
            remainder=rest + other, modulus=math.gcd(first, second) or 1,
        )  # fmt: skip

    def shifted(self, index: Index, amount: str | int) -> Index:
        """Return a position plus an offset."""
        return self.plus(index, Index(amount, multiple=abs(amount) or 1 if isinstance(amount, int) else 1))

    def split(self, index: Index, size: str | int) -> tuple[Index, Index]:
        """Split a position along two merged axes, the inner one of ``size`` elements, into two positions."""
        e = self.kernel.emitter
        if size == 1:
            return index, ORIGIN
        if (
            isinstance(size, int) and size % self.lanes == 0 and index.multiple % self.lanes == 0
            and index.row == 1 and index.is_uniform
        ):  # fmt: skip
            # A block has as many rows as lanes.
            return Index(e.div(index.base, size)), Index(e.rem(index.base, size), 0, self.lanes, row=1)
        if size == 0:
            return ORIGIN, ORIGIN  # An empty axis has no position.
        index = self.in_row(index)
        if index.is_uniform:
            return Index(e.div(index.base, size)), Index(e.rem(index.base, size))
        is_row = index.lane == index.repeat == 1 and not index.vector
        if isinstance(size, int) and size % self.lanes == 0 and index.multiple % self.lanes == 0 and is_row:
            # All lanes of a vector have the same outer position.
            return Index(e.div(index.base, size)), Index(e.rem(index.base, size), 1, self.lanes)
        if isinstance(size, int) and self.lanes % size == 0 and index.multiple % self.lanes == 0 and is_row:
            inner = ", ".join(f"i64 {lane % size}" for lane in range(self.lanes))
            return Index(e.div(index.base, size), 1, repeat=size), Index(0, vector=f"<{inner}>")
        if is_row:
            return self._split_neighbours(index.base, size)
        positions, type = self.lanes_of(index), vector(self.lanes, "i64")
        divisor = e.spread(str(size), self.lanes, "i64")
        outer = Index(0, vector=e.let(f"udiv {type} {positions}, {divisor}"))
        return outer, Index(0, vector=e.let(f"urem {type} {positions}, {divisor}"))

    def _split_neighbours(self, first: str | int, size: str | int) -> tuple[Index, Index]:
        """Split the positions of contiguous lanes, see :meth:`split`, by one scalar division.

        The outer position increases at lane ``before`` and then every ``run`` lanes. The number of increases up to a
        lane is computed in float32, which is exact enough because both numbers are at most the number of lanes.
        """
        e, lanes = self.kernel.emitter, self.lanes
        wide, narrow, real = (vector(lanes, element) for element in ("i64", "i32", "float"))
        outer, inner = e.div(first, size), e.rem(first, size)
        run = e.least(size, lanes)
        before = e.sub(run, e.least(e.sub(size, inner), lanes))
        phase, period = (e.let(f"uitofp i64 {count} to float") for count in (before, run))
        step = e.spread(e.let(f"fdiv float 1.0, {period}"), lanes, "float")
        halves = f"<{', '.join(f'float {lane}.5' for lane in range(lanes))}>"
        counted = e.let(f"fadd {real} {halves}, {e.spread(phase, lanes, 'float')}")
        wraps = e.let(f"fptosi {real} {e.let(f'fmul {real} {counted}, {step}')} to {narrow}")
        wraps = e.let(f"zext {narrow} {wraps} to {wide}")
        back = e.let(f"mul {wide} {wraps}, {e.spread(str(size), lanes, 'i64')}")
        run_of = e.let(f"add {wide} {e.spread(str(outer), lanes, 'i64')}, {wraps}")
        return Index(0, vector=run_of), Index(0, vector=e.let(f"sub {wide} {self.lanes_of(Index(inner, 1))}, {back}"))

    def reshaped(self, position: Position, shape: Sequence[Size], source: Sequence[Size]) -> Position:
        """Return the position in ``source`` of the element at a position in ``shape``.

        Equal positions are one: a new name for each reader would hide that elements there are known, so that a chain
        of gathers that reads each index several times would be written again and again.
        """
        row = self.row if any(index.row for index in position) else 0
        key = position, tuple(shape), tuple(source), row
        known = self._reshaped.get(key)
        if known is None or not self.kernel.emitter.is_known(known[1]):
            known = self._reshaped[key] = self._position(*key[:3]), self.kernel.emitter.where
        return known[0]

    def _position(self, position: Position, shape: Sequence[Size], source: Sequence[Size]) -> Position:
        result = [ORIGIN] * len(source)
        for axes, source_axes in factor_groups(shape, source):
            if not source_axes:
                continue
            factors = common_factors([shape[axis] for axis in axes], [source[axis] for axis in source_axes])
            if factors is None:
                merged = self._merge([position[axis] for axis in axes], [shape[axis] for axis in axes])
                along = self._unmerge(merged, [source[axis] for axis in source_axes])
            else:
                parts = [
                    part
                    for axis, sizes in zip(axes, factors[0], strict=True)
                    for part in self._unmerge(position[axis], sizes)
                ]
                along = [self._merge([parts.pop(0) for _ in sizes], sizes) for sizes in factors[1]]
            for axis, at in zip(source_axes, along, strict=True):
                result[axis] = at
        return tuple(result)

    def _merge(self, positions: Sequence[Index], sizes: Sequence[Size]) -> Index:
        """Merge the positions along several axes into one position along their product."""
        at = ORIGIN
        for position, size in zip(positions, sizes, strict=True):
            at = self.plus(self.times(at, self.kernel.size(size)), position)
        return at

    def _unmerge(self, at: Index, sizes: Sequence[Size]) -> list[Index]:
        """Split a position along several merged axes into a position along each."""
        inner_positions: list[Index] = []
        for size in reversed(sizes[1:]):
            at, inner = self.split(at, self.kernel.size(size))
            inner_positions.insert(0, inner)
        return [at, *inner_positions][: len(sizes)]

    def offset(self, memory: Memory, position: Position) -> Index:
        """Return the offset of an element in its buffer, in elements."""
        if memory.block:
            position, strides = self._blocked(memory, position)
        else:
            strides = tuple(self.kernel.size(step) for step in contiguous(memory.shape))
        offset = Index(0)
        for index, stride in zip(position, strides, strict=True):
            offset = self.plus(offset, self.times(index, stride))
        return offset

    def _blocked(self, memory: Memory, position: Position) -> tuple[Position, tuple[str | int, ...]]:
        """Return position and strides in the blocked layout [N, C/block, spatial..., block].

        ``position`` is [N, C, spatial...].
        """
        batch, channel, *spatial = position
        block = memory.block
        if (
            channel.multiple % block == 0 and channel.lane == channel.repeat == 1 and not channel.row
            and self.lanes <= block
        ):  # fmt: skip
            outer, inner = Index(self.kernel.emitter.div(channel.base, block)), Index(0, 1)
        else:
            outer, inner = self.split(channel, block)
        blocks = (
            -(-memory.shape[1] // block) if isinstance(memory.shape[1], int) else (memory.shape[1] + block - 1) // block
        )
        sizes = (memory.shape[0], blocks, *memory.shape[2:], block)
        return (batch, outer, *spatial, inner), tuple(self.kernel.size(step) for step in contiguous(sizes))


def _multiple(index: Index) -> int:
    """Return a known divisor of the base; 0, which every number divides, for the base 0."""
    return abs(index.base) if isinstance(index.base, int) else index.multiple
