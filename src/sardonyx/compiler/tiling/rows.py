"""The schedule of a row-by-row kernel: lanes, partial results, and values stored between passes.

A row-by-row kernel reduces axes of an array, e.g. for a softmax or a layer normalization; see
:mod:`sardonyx.compiler.lower.row_reductions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.choice import Candidate, Choice, apply_override, require, take_fields
from sardonyx.core.dim import Dim, Size

LaneAxis = Literal["row", "rows", "channels", "single"]
"""Meaning of lanes: elements of a row, adjacent rows, channels of a blocked image, a single element."""


@dataclass(frozen=True)
class RowProblem:
    """Reductions over the same axes of arrays of the same shape, with elementwise work before and after.

    Attributes:
        shape: Shape of the reduced arrays.
        axes: The reduced axes.
        neighbours: Rows of the innermost loop over rows; 1 if there is a single row.
        bits: Bits of the widest element in a register.
        reductions: Number of reductions.
        operations: Elementwise operations for each element, in additions.
        contiguous: True if every operand stores adjacent rows next to each other, and no reduction gives indices:
            several vectors of rows may be reduced at a time.
        block: Channels of a block if the operands are blocked images; else 0.
        shared: Operations for an element of each value that several passes read, if a row of the value fits L2.
    """

    shape: tuple[Size, ...]
    axes: tuple[int, ...]
    neighbours: Size
    bits: int
    reductions: int
    operations: int
    contiguous: bool = False
    block: int = 0
    shared: tuple[int, ...] = ()

    def __str__(self) -> str:
        sizes = "x".join(_text(size) for size in self.shape)
        layout = f"blocked by {self.block}" if self.block else "contiguous rows" if self.contiguous else "strided rows"
        shared = ",".join(map(str, self.shared)) or "none"
        return (
            f"rows {sizes} over {','.join(map(str, self.axes))} neighbours {_text(self.neighbours)} {self.bits} bits "
            f"reductions {self.reductions} operations {self.operations} shared {shared} {layout}"
        )

    @property
    def last_axis(self) -> int | None:
        """The last axis of a size other than 1; None if there is a single element."""
        return next((axis for axis in reversed(range(len(self.shape))) if self.shape[axis] != 1), None)

    @property
    def length(self) -> Size:
        """Elements of a row."""
        return math.prod(self.shape[axis] for axis in self.axes)


_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "lane_axis": str, "lanes": int, "chains": int, "additions": int, "item_elements": int, "store_operations": int,
}  # fmt: skip


@dataclass(frozen=True)
class RowSchedule:
    """Lanes, partial results and stored values of a row-by-row kernel.

    Attributes:
        lane_axis: Meaning of the lanes.
        lanes: Lanes of the kernel's vectors; several vectors of the target if ``lane_axis`` is ``rows``.
        chains: Vectors of independent partial results of a reduction.
        additions: Steps after which partial results are added to the total; bounds the rounding error of sums.
        item_elements: Approximate number of elements of a work item.
        store_operations: Operations from which an element read by several passes is stored by the first of these
            passes; 0 if every pass computes all elements again.
    """

    lane_axis: LaneAxis
    lanes: int
    chains: int
    additions: int
    item_elements: int
    store_operations: int

    def __str__(self) -> str:
        stored = f"stores from {self.store_operations} operations" if self.store_operations else "stores nothing"
        return (
            f"{self.lanes} lanes along {self.lane_axis}, {self.chains} chains of {self.additions} additions, "
            f"{self.item_elements} elements per item, {stored}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain data."""
        return {"kind": "rows", **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RowSchedule:
        """Return the schedule of :meth:`to_dict`.

        Raises:
            OptionError: A field is missing, unknown or of another type.
        """
        fields = take_fields("rows", data, _FIELDS)
        axes = get_args(LaneAxis)
        require(fields["lane_axis"] in axes, f"expected lane_axis to be one of {axes}, got {fields['lane_axis']!r}.")
        return cls(**fields)

    def validate(self, problem: RowProblem, target: Target) -> None:
        """Refuse a schedule that is impossible for the problem.

        Raises:
            OptionError: A field has a value that is impossible for the problem on the target.
        """
        allowed = lane_axes(problem)
        require(self.lane_axis in allowed, f"expected lane_axis to be one of {allowed}, got {self.lane_axis!r}.")
        lanes = target.lanes(32)
        widths: tuple[int, ...] = (1,) if self.lane_axis == "single" else (lanes,)
        if self.lane_axis == "rows" and problem.contiguous:
            widths = tuple(lanes << bit for bit in range(costs.ROW_SUM_VECTORS.bit_length()))
        require(self.lanes in widths, f"expected lanes to be one of {widths}, got {self.lanes}.")
        require(self.chains in (1, 2, 4, 8), f"expected chains to be 1, 2, 4 or 8, got {self.chains}.")
        require(1 <= self.additions <= 4096, f"expected 1 to 4096 additions, got {self.additions}.")
        fits = 64 <= self.item_elements <= 1 << 20
        require(fits, f"expected 64 to {1 << 20} elements per item, got {self.item_elements}.")
        require(0 <= self.store_operations <= 1000, f"expected 0 to 1000 operations, got {self.store_operations}.")


def lane_axes(problem: RowProblem) -> tuple[LaneAxis, ...]:
    """Return the possible meanings of lanes."""
    last = problem.last_axis
    if last is None:
        return ("single",)
    if problem.block:
        return ("channels",)
    if last not in problem.axes:
        return ("rows",)
    return ("row",) if problem.neighbours == 1 else ("row", "rows")


def choose_rows(problem: RowProblem, target: Target) -> Choice[RowSchedule]:
    """Choose the schedule of a row-by-row kernel.

    Raises:
        OptionError: The user's schedule for the problem is invalid.
    """
    lane_axis, reason = _choose_lane_axis(problem, target)
    lanes = 1 if lane_axis == "single" else target.lanes(32)
    if lane_axis == "rows":
        vectors, limit = _row_vectors(problem, lanes)
        lanes *= vectors
        reason = f"{reason}; {limit}"
    schedule = RowSchedule(
        lane_axis, lanes, costs.ROW_CHAINS, costs.ROW_ADDITIONS, costs.ROW_ITEM_ELEMENTS, costs.ROW_STORE_OPERATIONS
    )
    cost = estimate_cost(problem, schedule, target)
    candidates = tuple(
        Candidate(other, why, estimate_cost(problem, other, target) if other.lane_axis == lane_axis else None)
        for other, why in _alternatives(problem, schedule, target)
    )
    return apply_override(Choice(problem, schedule, reason, cost, candidates), target)


def estimate_cost(problem: RowProblem, schedule: RowSchedule, target: Target) -> float:
    """Return the estimated time in additions of a vector, for a vector of elements of the reduced arrays.

    Comparable only between schedules with the same ``lane_axis``.
    """
    vectors = max(1, schedule.lanes // target.lanes(32))
    chains = vectors * max(1, schedule.chains // vectors)
    sums = problem.reductions * max(1.0, costs.ROW_CHAINS / chains)
    jumps = costs.ROW_JUMP_OPERATIONS / vectors if schedule.lane_axis == "rows" else 0.0
    repeated = sum(
        costs.ROW_STORE_OPERATIONS if 0 < schedule.store_operations <= count else count for count in problem.shared
    )
    return problem.operations + sums + jumps + repeated


def _choose_lane_axis(problem: RowProblem, target: Target) -> tuple[LaneAxis, str]:
    """Return the meaning of lanes, and the reason."""
    axes = lane_axes(problem)
    if axes == ("single",):
        return "single", "a single element"
    if axes == ("channels",):
        return "channels", "blocked images"
    if axes == ("rows",):
        return "rows", "the last axis is not reduced"
    lanes = target.lanes(32)
    is_short = isinstance(problem.length, int) and problem.length <= lanes // 2
    has_rows = not isinstance(problem.neighbours, int) or problem.neighbours >= lanes
    if len(axes) == 2 and is_short and has_rows:
        return "rows", f"rows of at most {lanes // 2} elements"
    return "row", "the last axis is reduced"


def _row_vectors(problem: RowProblem, lanes: int) -> tuple[int, str]:
    """Return the vectors of adjacent rows that are reduced at a time, and the reason.

    Several vectors read whole cache lines. With a single vector, the rest of a line would be read only after all
    further elements of the rows, and the line would be evicted before: L1 holds few lines at strides of a power of two.
    """
    if not problem.contiguous:
        return 1, "adjacent rows are not adjacent in memory, or reduced to indices"
    if problem.operations > costs.ROW_SUM_OPERATIONS:
        return 1, f"{problem.operations} operations leave no registers for more sums"
    last = problem.last_axis
    assert last is not None
    width = problem.shape[last]
    vectors = 1 << (costs.ROW_SUM_VECTORS * 32 // max(problem.bits, 32) // problem.reductions or 1).bit_length() - 1
    limit = "as many sums as fit registers"
    while vectors > 1 and isinstance(width, int) and width < vectors * lanes:
        vectors, limit = vectors // 2, f"{width} adjacent rows"
    return vectors, limit


def _alternatives(problem: RowProblem, schedule: RowSchedule, target: Target) -> Iterator[tuple[RowSchedule, str]]:
    """Yield the schedules that differ in one decision, with the reason for the rejection."""
    lanes = target.lanes(32)
    for axis in lane_axes(problem):
        if axis != schedule.lane_axis:
            why = "most lanes would be idle" if axis == "row" else "lanes would load from different lines"
            yield replace(schedule, lane_axis=axis, lanes=lanes), why
    narrower = schedule.lanes // 2
    while schedule.lane_axis == "rows" and narrower >= lanes:
        yield replace(schedule, lanes=narrower), "fewer lanes read less of a cache line at a time"
        narrower //= 2
    if schedule.lanes <= lanes:
        yield replace(schedule, chains=1), "each step of a reduction would wait for the one before"
    if any(count >= schedule.store_operations for count in problem.shared):
        yield replace(schedule, store_operations=0), "computing again takes longer than storing and loading"
    elif problem.shared:
        yield replace(schedule, store_operations=1), "storing and loading takes longer than computing again"


def _text(size: Size) -> str:
    return f"({size})" if isinstance(size, Dim) else str(size)
