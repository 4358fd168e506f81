"""The table of ``--time-passes``: the time in each pass of the compiler."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from sardonyx.compiler.pass_runner import PassTimes


def pass_time_data(times: PassTimes) -> list[dict[str, Any]]:
    """Return the times as plain data, in the order in which passes first ended."""
    return [{"name": name, "runs": times.runs[name], "seconds": seconds} for name, seconds in times.seconds.items()]


def pass_time_table(times: PassTimes) -> Table:
    """Return the table of times; empty where the compiled model came from the cache."""
    title = "Compiler passes" if times.runs else "Compiler passes: none ran, the compiled model is from the cache"
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("pass")
    for column in ("runs", "ms", "share"):
        table.add_column(column, justify="right")
    whole = sum(times.seconds.values())
    for name, seconds in times.seconds.items():
        share = f"{seconds / whole:.1%}" if whole else ""
        table.add_row(name, str(times.runs[name]), f"{seconds * 1e3:,.1f}", share)
    return table
