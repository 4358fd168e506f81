"""Numbers, bytes and sizes as text for readers, and the printing of tables."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, Group, RenderableType

from sardonyx.ops.inference import UNNAMED

MOST_NAMES = 4
"""Number of sizes of an assignment that are spelled out; --json holds all."""


def count(number: int | str | None) -> str:
    """Return a number for readers: with thousands separators, or in M or G; an expression unchanged."""
    if number is None:
        return "—"
    if isinstance(number, str):
        return number if len(number) <= 40 and not any(mark in number for mark in UNNAMED) else "depends on sizes"
    for bound, suffix in ((10**9, "G"), (10**6, "M")):
        if number >= 10 * bound:
            return f"{number / bound:,.1f} {suffix}"
    return f"{number:,}"


def size(number: int) -> str:
    """Return a number of bytes for readers."""
    for bound, suffix in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= bound:
            return f"{number / bound:,.2f} {suffix}"
    return f"{number} B"


def sizes_note(sizes: Mapping[str, int]) -> str:
    """Return ``", at N=8"`` for the values of open sizes, or nothing."""
    return f", at {assigned_sizes(sizes)}" if sizes else ""


def assigned_sizes(sizes: Mapping[str, int]) -> str:
    """Return values of sizes for readers, the first few spelled out."""
    entries = [f"{name}={number}" for name, number in sizes.items()]
    rest = [f"{len(entries) - MOST_NAMES} more"] if len(entries) > MOST_NAMES else []
    return ", ".join([*entries[:MOST_NAMES], *rest])


def print_all(console: Console, *parts: RenderableType) -> None:
    """Print the parts of a report, one below the other."""
    console.print(Group(*parts))
