"""The schedule of an attention: register tile, block of keys, and packing of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.choice import Candidate, Choice, apply_override, require, take_fields
from sardonyx.compiler.tiling.gemm_schedule import Tile, default_tile
from sardonyx.core.dim import Size
from sardonyx.core.ir.types import FLOAT

Values = Literal["packed", "in place", "run time"]
"""Packing of the values of a head; ``run time``: packed if a call has many queries."""


@dataclass(frozen=True)
class AttentionProblem:
    """An attention over heads.

    Attributes:
        queries: Queries of a head.
        keys: Keys of a head.
        depth: Columns of queries and keys.
        width: Columns of values.
    """

    queries: Size
    keys: Size
    depth: Size
    width: Size

    def __str__(self) -> str:
        return f"attention queries={self.queries} keys={self.keys} depth={self.depth} width={self.width}"


_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "rows": int, "vectors": int, "lanes": int, "unroll": int, "key_block": int, "tiles_per_item": int, "values": str,
}  # fmt: skip


@dataclass(frozen=True)
class AttentionSchedule:
    """Tiles and blocks of the kernel of an attention.

    Attributes:
        tile: The register tile of both products.
        key_block: Keys whose scores are held at once.
        tiles_per_item: Register tiles of queries in a work item.
        values: Packing of the values.
    """

    tile: Tile
    key_block: int
    tiles_per_item: int
    values: Values

    def __str__(self) -> str:
        tile = self.tile
        return (
            f"tile {tile.rows}x{tile.vectors}x{tile.lanes}, unroll {tile.unroll}, {self.key_block} keys a block, "
            f"{self.tiles_per_item} tiles per item, values {self.values}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain data."""
        tile = self.tile
        return {
            "kind": "attention", "rows": tile.rows, "vectors": tile.vectors, "lanes": tile.lanes,
            "unroll": tile.unroll, "key_block": self.key_block, "tiles_per_item": self.tiles_per_item,
            "values": self.values,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AttentionSchedule:
        """Return the schedule of :meth:`to_dict`.

        Raises:
            OptionError: A field is missing, unknown or of another type.
        """
        f = take_fields("attention", data, _FIELDS)
        require(f["values"] in get_args(Values), f"expected values to be one of {get_args(Values)}.")
        tile = Tile(FLOAT, f["lanes"], f["rows"], f["vectors"], f["unroll"])
        return cls(tile, f["key_block"], f["tiles_per_item"], f["values"])

    def validate(self, problem: AttentionProblem, target: Target) -> None:
        """Refuse a schedule that is impossible for the problem.

        Raises:
            OptionError: A field has a value that is impossible for the problem on the target.
        """
        tile, lanes = self.tile, target.lanes(32)
        require(tile.lanes == lanes, f"lanes is {lanes} on {target.name}, got {tile.lanes}.")
        require(1 <= tile.rows <= 32 and 1 <= tile.vectors <= 8, "expected 1 to 32 rows and 1 to 8 vectors.")
        require(tile.unroll in (1, 2, 4, 8), f"expected unroll to be 1, 2, 4 or 8, got {tile.unroll}.")
        fits = self.key_block % tile.columns == 0 and tile.columns <= self.key_block <= 8192
        require(fits, f"expected key_block to be a multiple of {tile.columns} up to 8192, got {self.key_block}.")
        require(1 <= self.tiles_per_item <= 64, f"expected 1 to 64 tiles per item, got {self.tiles_per_item}.")


def choose_attention(problem: AttentionProblem, target: Target) -> Choice[AttentionSchedule]:
    """Choose the schedule of an attention.

    Raises:
        OptionError: The user's schedule for the problem is invalid.
    """
    tile, worth = default_tile(target, FLOAT), costs.QUERIES_WORTH_PACKING
    values: Values = "run time"
    reason = "the number of queries is open"
    if isinstance(problem.queries, int):
        values = "packed" if problem.queries >= worth else "in place"
        reason = f"{'at least' if values == 'packed' else 'fewer than'} {worth} queries"
    schedules = {
        packing: AttentionSchedule(tile, costs.ATTENTION_KEYS, costs.ATTENTION_TILES_PER_ITEM, packing)
        for packing in get_args(Values)
    }
    # No cost model: the rule compares the number of queries with one constant.
    rejected = tuple(Candidate(schedule, reason) for packing, schedule in schedules.items() if packing != values)
    return apply_override(Choice(problem, schedules[values], reason, None, rejected), target)
