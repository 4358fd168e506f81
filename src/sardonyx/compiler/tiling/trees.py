"""The schedule of a tree ensemble: groups of rows, tiles of trees, and concurrent traversals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sardonyx.compiler.analysis.tree_layout import GROUP
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.choice import Candidate, Choice, apply_override, require, take_fields
from sardonyx.core.dim import Dim, Size


@dataclass(frozen=True)
class TreeProblem:
    """A sum over the trees of an ensemble, for each row.

    Attributes:
        rows: Number of rows.
        trees: Number of trees.
        columns: Number of columns: features, twice if missing values of a feature have two orders.
        targets: Weights of a leaf.
        table_bytes: Bytes of the tables that groups of rows read.
        shallow: True if the tops of all trees lead to leaves only.
        threads: Threads that share the work.
    """

    rows: Size
    trees: int
    columns: int
    targets: int
    table_bytes: int
    shallow: bool
    threads: int

    def __str__(self) -> str:
        rows = f"({self.rows})" if isinstance(self.rows, Dim) else str(self.rows)
        depth = "shallow" if self.shallow else "deep"
        return (
            f"trees rows={rows} trees={self.trees} columns={self.columns} targets={self.targets} "
            f"bytes={self.table_bytes} {depth} threads={self.threads}"
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of the keys of a row, followed by a 0."""
        return 4 * (self.columns + 1)

    @property
    def group_bytes(self) -> int:
        """Bytes of scratch memory of a group: keys by column, keys by row, sums."""
        by_column = GROUP * 4 * self.columns
        by_row = 0 if self.shallow else GROUP * self.row_bytes
        return -(-(by_column + by_row + GROUP * 4 * self.targets) // 64) * 64


_COUNTS = (
    "group_rows", "item_groups", "tile", "item_trees", "row_ways", "row_steps", "group_ways", "group_steps",
    "prefetch_lines",
)  # fmt: skip
_FIELDS: Mapping[str, type | tuple[type, ...]] = {**dict.fromkeys(_COUNTS, int), "shares_trees": bool}


@dataclass(frozen=True)
class TreeSchedule:
    """Groups of rows, tiles of trees and concurrent traversals of the kernel of a tree ensemble.

    Attributes:
        group_rows: Smallest number of rows that are evaluated as a group of 32; fewer rows are evaluated one by one.
        item_groups: Most groups of a work item.
        tile: Trees that all groups traverse before the next tile.
        shares_trees: True if threads share the trees of a row if the rows are too few for a group.
        item_trees: Trees of a work item if threads share the trees.
        row_ways: Trees that a single row traverses concurrently.
        row_steps: Steps between two tests for completion of these traversals.
        group_ways: Rows of a group that traverse one tree concurrently.
        group_steps: Steps between two tests for completion of these traversals.
        prefetch_lines: Most cache lines of a tree that a group prefetches.
    """

    group_rows: int
    item_groups: int
    tile: int
    shares_trees: bool
    item_trees: int
    row_ways: int
    row_steps: int
    group_ways: int
    group_steps: int
    prefetch_lines: int

    def __str__(self) -> str:
        shared = f", threads share trees by {self.item_trees}" if self.shares_trees else ""
        return (
            f"groups from {self.group_rows} rows, {self.item_groups} groups per item, tiles of {self.tile} trees"
            f"{shared}, a row through {self.row_ways} trees by {self.row_steps} steps, "
            f"{self.group_ways} rows of a group by {self.group_steps} steps, {self.prefetch_lines} lines ahead"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain data."""
        return {"kind": "trees", **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TreeSchedule:
        """Return the schedule of :meth:`to_dict`.

        Raises:
            OptionError: A field is missing, unknown or of another type.
        """
        return cls(**take_fields("trees", data, _FIELDS))

    def validate(self, problem: TreeProblem, target: Target) -> None:
        """Refuse an impossible schedule.

        Raises:
            OptionError: A field has a value that is impossible for the problem on the target.
        """
        require(1 <= self.group_rows <= GROUP + 1, f"expected group_rows from 1 to {GROUP + 1}, got {self.group_rows}.")
        require(1 <= self.item_groups <= 1 << 16, f"expected 1 to {1 << 16} groups per item, got {self.item_groups}.")
        require(self.tile >= 1, f"expected a tile of at least 1 tree, got {self.tile}.")
        ways = (1, 2, 4, 8, 16, 32)
        require(self.row_ways in ways, f"expected row_ways to be one of {ways}, got {self.row_ways}.")
        require(self.group_ways in ways, f"expected group_ways to be one of {ways}, got {self.group_ways}.")
        fits = self.item_trees > 0 and self.item_trees % self.row_ways == 0
        require(fits, f"expected item_trees to be a multiple of row_ways, got {self.item_trees}.")
        steps = (self.row_steps, self.group_steps)
        require(all(1 <= count <= 64 for count in steps), f"expected 1 to 64 steps between tests, got {steps}.")
        require(0 <= self.prefetch_lines <= 4096, f"expected 0 to 4096 lines, got {self.prefetch_lines}.")


def choose_trees(problem: TreeProblem, target: Target) -> Choice[TreeSchedule]:
    """Choose the schedule of a sum over a tree ensemble.

    Raises:
        OptionError: The user's schedule for the problem is invalid.
    """
    schedule = TreeSchedule(
        group_rows=_group_time(problem),
        # L2 holds the keys of all rows of a work item: trees, which come from L3 or memory, are read once.
        item_groups=max(1, target.l2 // 2 // problem.group_bytes),
        tile=max(1, target.l1 // 2 * problem.trees // problem.table_bytes),
        shares_trees=problem.trees >= costs.TREE_SHARED_TREES,
        item_trees=costs.TREE_ITEM_TREES,
        row_ways=costs.TREE_ROW_WAYS,
        row_steps=costs.TREE_ROW_STEPS,
        group_ways=costs.TREE_GROUP_WAYS,
        group_steps=costs.TREE_GROUP_STEPS,
        prefetch_lines=costs.TREE_PREFETCH_LINES,
    )
    candidates = tuple(
        Candidate(other, why, estimate_cost(problem, other)) for other, why in _alternatives(problem, schedule)
    )
    reason = f"a group of {GROUP} rows takes as long as {schedule.group_rows} rows one by one"
    return apply_override(Choice(problem, schedule, reason, estimate_cost(problem, schedule), candidates), target)


def estimate_cost(problem: TreeProblem, schedule: TreeSchedule) -> float | None:
    """Return the estimated time in traversals of a tree by a single row; None if rows are open.

    The estimate depends on the fields ``group_rows``, ``item_groups`` and ``shares_trees`` alone.
    """
    rows = problem.rows
    if not isinstance(rows, int):
        return None
    if schedule.shares_trees and rows < schedule.group_rows:
        return rows * problem.trees / problem.threads
    block = max(1, min(-(-rows // problem.threads), schedule.item_groups * GROUP))
    items = -(-rows // block)
    groups, rest = divmod(block, GROUP)
    single = rest if rest < schedule.group_rows else 0
    groups += rest > single
    time = groups * _group_time(problem) + single
    return float(problem.trees * time * -(-items // problem.threads))


def _group_time(problem: TreeProblem) -> int:
    """Return the time of a group, in single rows."""
    return costs.TREE_SHALLOW_GROUP_ROWS if problem.shallow else costs.TREE_GROUP_ROWS


def _alternatives(problem: TreeProblem, schedule: TreeSchedule) -> Iterator[tuple[TreeSchedule, str]]:
    """Yield schedules that differ in one decision, with the reason for the rejection."""
    yield replace(schedule, group_rows=GROUP + 1), f"{GROUP} rows one by one take longer than a group"
    yield replace(schedule, group_rows=1), f"a group takes longer than fewer than {schedule.group_rows} rows one by one"
    if schedule.tile < problem.trees:
        yield replace(schedule, tile=problem.trees), "the tables of all trees exceed half of L1"
    if schedule.shares_trees:
        yield replace(schedule, shares_trees=False), "one thread would traverse all trees of a row"
