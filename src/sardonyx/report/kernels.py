"""Tables of compiled models: what the kernels are, and what each takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import onnx_ir as ir
from rich.console import JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from sardonyx.compiler.explain import Explanation, InterpretedNote, KernelNote
from sardonyx.report.tables import count, size
from sardonyx.runtime.profile import KernelTime, Profile

NodeNames = Mapping[str, str]
"""Operator and name of the node that gives a tensor, by the tensor's name."""


def node_names(model: ir.Model) -> dict[str, str]:
    """What to call the nodes of a model's main graph."""
    return {
        str(output.name): f"{node.op_type} {node.name}" if node.name else f"{node.op_type} '{output.name}'"
        for node in model.graph
        for output in node.outputs
        if output.name
    }


def explanation_data(found: Explanation, names: NodeNames) -> dict[str, Any]:
    """The explanation as plain data, kernels with the names of their nodes."""
    kernels = [{**asdict(note), "bytes": note.bytes, "nodes": _nodes(note, names)} for note in found.kernels]
    interpreted = [{**asdict(note), "node": names.get(note.tensor)} for note in found.interpreted]
    return {"target": found.target, "threads": found.threads, "kernels": kernels, "interpreted": interpreted}


def explanation_tables(found: Explanation, names: NodeNames) -> list[RenderableType]:
    """The tables of ``sardonyx explain``."""
    title = f"{len(found.kernels)} kernels for {found.target}, {_threads(found.threads)}"
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("", justify="right")
    table.add_column("kernel", no_wrap=True)
    table.add_column("what is in it, and why it ends there", overflow="fold")
    table.add_column("result", overflow="fold")
    for column in ("operations", "read", "written"):
        table.add_column(column, justify="right")
    for number, note in enumerate(found.kernels):
        content = Text("\n").join(
            [Text(", ".join(_nodes(note, names))), Text(_counted(note.primitives)), Text(note.reason)]
        )
        table.add_row(
            str(number), note.title, content, Text(note.result), count(note.operations), _size(note.read),
            _size(note.written),
        )  # fmt: skip
    return [table, *_interpreted([(note, None) for note in found.interpreted], names)]


def profile_data(found: Profile, names: NodeNames) -> dict[str, Any]:
    """The profile as plain data, kernels with the names of their nodes."""
    data = found.as_dict()
    for row, each in zip(data["kernels"], found.kernels, strict=True):
        row["nodes"] = _nodes(each.note, names)
    for row, (note, _) in zip(data["interpreted"], found.interpreted, strict=True):
        row["node"] = names.get(note.tensor)
    return data


def profile_tables(found: Profile, names: NodeNames, most: int | None = None) -> list[RenderableType]:
    """The tables of ``sardonyx profile``: the kernels that take longest, those of a kind together, and the sum.

    Args:
        found: The profile.
        names: Of the nodes.
        most: Kernels with a row of their own; None for all.
    """
    shown = sorted(enumerate(found.kernels), key=lambda pair: -pair[1].seconds)[:most]
    table = _roofline("Kernels by time", ("", "kernel", "last node", "result"))
    for number, each in shown:
        nodes = _nodes(each.note, names)
        last = "" if not nodes else nodes[-1] if len(nodes) == 1 else f"{nodes[-1]} + {len(nodes) - 1}"
        table.add_row(str(number), each.note.title, Text(last), Text(each.note.result), *_times([each], found))
    if len(shown) < len(found.kernels):
        table.caption = f"{len(found.kernels) - len(shown)} more; --json holds all."
    kinds = _roofline("By kind", ("kernel", "count"))
    of_kind: dict[str, list[KernelTime]] = {}
    for each in found.kernels:
        of_kind.setdefault(each.note.title, []).append(each)
    for title, listed in sorted(of_kind.items(), key=lambda pair: -sum(each.seconds for each in pair[1])):
        kinds.add_row(title, str(len(listed)), *_times(listed, found))
    kinds.add_section()
    kinds.add_row("all kernels", str(len(found.kernels)), *_times(found.kernels, found), style="bold")
    left = [(note, seconds) for note, seconds in found.interpreted]
    return [table, kinds, *_interpreted(left, names), _sums(found)]


def _roofline(title: str, first: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in first:
        justify: JustifyMethod = "right" if column in ("", "count") else "left"
        table.add_column(column, overflow="fold", justify=justify, no_wrap=column == "kernel")
    for column in ("µs", "share", "operations", "bytes", "of peak", "of roofline"):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _times(kernels: Sequence[KernelTime], found: Profile) -> list[str]:
    seconds = sum(each.seconds for each in kernels)
    operations = sum(each.note.operations or 0 for each in kernels)
    moved = sum(each.note.bytes or 0 for each in kernels)
    if not kernels:
        return ["0", *["—"] * 5]
    least = operations / found.peak.operations + moved / found.peak.bytes
    return [
        f"{seconds * 1e6:,.1f}", f"{seconds / found.seconds:.1%}", count(operations), size(moved),
        f"{operations / seconds / found.peak.operations:.0%}", f"{least / seconds:.0%}",
    ]  # fmt: skip


def _interpreted(listed: Sequence[tuple[InterpretedNote, float | None]], names: NodeNames) -> list[RenderableType]:
    if not listed:
        return [Text("Nothing is left to the interpreter.", style="green")]
    timed = any(seconds is not None for _, seconds in listed)
    title = f"{len(listed)} values are left to the interpreter"
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in ("primitive", "node", "why it has no kernel", *(["µs"] if timed else [])):
        table.add_column(column, overflow="fold", justify="right" if column == "µs" else "left")
    for note, seconds in listed:
        node = Text(names.get(note.tensor, note.tensor))
        table.add_row(note.primitive, node, Text(note.reason), *([] if seconds is None else [f"{seconds * 1e6:,.1f}"]))
    return [table]


def _sums(found: Profile) -> Text:
    inside = sum(each.seconds for each in found.kernels)
    interpreted = sum(seconds for _, seconds in found.interpreted)
    return Text(
        f"A run takes {found.seconds * 1e6:,.1f} µs (median of {found.runs}): {inside * 1e6:,.1f} in kernels, "
        f"{interpreted * 1e6:,.1f} in the interpreter, {found.elsewhere * 1e6:,.1f} elsewhere.\n"
        f"Measured peak of {_threads(found.threads)}: {found.peak.operations / 1e9:.1f} GFLOP/s of multiply-adds, "
        f"{found.peak.bytes / 1e9:.1f} GB/s read from memory."
    )


def _nodes(note: KernelNote, names: NodeNames) -> list[str]:
    """The nodes in a kernel; where the optimizer made a tensor, the tensor."""
    return [names.get(tensor, f"'{tensor}'") for tensor in note.tensors]


def _counted(primitives: Mapping[str, int]) -> str:
    return ", ".join(_times_each(Counter(dict(primitives)).items()))


def _times_each(counts: Iterable[tuple[str, int]]) -> list[str]:
    return [name if number == 1 else f"{number} {name}" for name, number in counts]


def _size(number: int | None) -> str:
    return "—" if number is None else size(number)


def _threads(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"
