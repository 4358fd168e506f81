"""Tables of compiled models: the kernels, and the time of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import onnx_ir as ir
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sardonyx.compiler.explain import Explanation, InterpretedNote, KernelNote
from sardonyx.report.quantities import count, size
from sardonyx.report.scopes import source_node
from sardonyx.runtime.profiling.profile import KernelTime, Profile

NodeNames = Mapping[str, str]
"""Operator and name of the node that computes a tensor, by the tensor's name."""


def node_names(model: ir.Model) -> dict[str, str]:
    """Return the display names of a model's nodes, bodies included, by output tensor and by node name."""
    names: dict[str, str] = {}
    for node in model.graph.all_nodes():
        for output in node.outputs:
            if output.name:
                label = f"{node.op_type} {node.name}" if node.name else f"{node.op_type} '{output.name}'"
                names.setdefault(str(output.name), label)
                if node.name:
                    names.setdefault(node.name, label)
    return names


def operators(model: ir.Model) -> dict[str, str]:
    """Return operator and short name of each node, by output tensor; a node's name loses its path."""
    labels: dict[str, str] = {}
    for node in model.graph.all_nodes():
        name = (node.name or "").rpartition("/")[2]
        label = name if node.op_type in name else f"{node.op_type} {name}".rstrip()
        for output in node.outputs:
            if output.name:
                labels.setdefault(str(output.name), label)
    return labels


def label(tensor: str, names: NodeNames) -> str:
    """Return the name of the node that a tensor comes from, also through the optimizer; else the tensor's."""
    name = names.get(tensor)
    if name is None and (source := source_node(tensor, names)):
        name = names[source]
    return name or f"'{tensor}'"


def explanation_data(explanation: Explanation, names: NodeNames) -> dict[str, Any]:
    """Return the explanation as plain data; kernels carry the names of their nodes."""
    kernels = [{**asdict(note), "bytes": note.bytes, "nodes": _nodes(note, names)} for note in explanation.kernels]
    interpreted = [{**asdict(note), "node": names.get(note.tensor)} for note in explanation.interpreted]
    machine = {"target": explanation.target, "threads": explanation.threads}
    return {**machine, "kernels": kernels, "interpreted": interpreted}


def explanation_tables(explanation: Explanation, names: NodeNames) -> list[RenderableType]:
    """Return the tables of ``sardonyx explain``."""
    title = f"{len(explanation.kernels)} kernels for {explanation.target}, {_threads(explanation.threads)}"
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("", justify="right")
    table.add_column("kernel", no_wrap=True)
    table.add_column("nodes, primitives, why the kernel ends there, schedule and alternatives", overflow="fold")
    table.add_column("result", overflow="fold")
    for column in ("operations", "read", "written"):
        table.add_column(column, justify="right")
    for number, note in enumerate(explanation.kernels):
        lines = [Text(", ".join(_nodes(note, names))), Text(_format_counts(note.primitives)), Text(note.reason)]
        content = Text("\n").join([*lines, *_schedule_lines(note)])
        table.add_row(
            str(number), note.title, content, Text(note.result), count(note.operations), _size(note.read),
            _size(note.written),
        )  # fmt: skip
    return [table, *_interpreted([(note, None) for note in explanation.interpreted], names)]


_MOST_CANDIDATES = 3
"""Rejected schedules of a kernel that a table shows; JSON holds all."""


def _schedule_lines(note: KernelNote) -> list[Text]:
    """Return the schedules of a kernel, each with the alternatives and their estimated cost."""
    lines: list[Text] = []
    for choice in note.choices:
        lines.append(Text(f"{choice.text}{_cost(choice.cost)}: {choice.reason}", style="cyan"))
        for candidate in choice.candidates[:_MOST_CANDIDATES]:
            lines.append(Text(f"  not {candidate.text}{_cost(candidate.cost)}: {candidate.reason}", style="dim"))
    return lines


def _cost(cost: float | None) -> str:
    return "" if cost is None else f" [{cost:,.0f}]"


def profile_data(profile: Profile, names: NodeNames) -> dict[str, Any]:
    """Return the profile as plain data; kernels carry the names of their nodes."""
    data = profile.as_dict()
    for row, kernel in zip(data["kernels"], profile.kernels, strict=True):
        row["nodes"] = _nodes(kernel.note, names)
        row["node"] = label(kernel.note.main, names) if kernel.note.main else None
    for row, (note, _) in zip(data["interpreted"], profile.interpreted, strict=True):
        row["node"] = label(note.tensor, names) if note.tensor else None
    return data


def profile_tables(profile: Profile, names: NodeNames, most: int | None = None) -> list[RenderableType]:
    """Return the tables of ``sardonyx profile``: the slowest kernels, sums by kind, and the total.

    Args:
        profile: The profile.
        names: Names of the nodes.
        most: Number of kernels with a row of their own; None for all.
    """
    shown = sorted(enumerate(profile.kernels), key=lambda pair: -pair[1].seconds)[:most]
    table = _roofline("Kernels by time", ("", "kernel, its main node"))
    for number, kernel in shown:
        title = Text(kernel.note.title).append(f"\n  {main_node(kernel.note, names)}", style="dim")
        table.add_row(str(number), title, *_times([kernel], profile))
    if len(shown) < len(profile.kernels):
        table.caption = f"{len(profile.kernels) - len(shown)} more; --json holds all."
    kinds = _roofline("By kind", ("kernel", "count"))
    of_kind: dict[str, list[KernelTime]] = {}
    for kernel in profile.kernels:
        of_kind.setdefault(kernel.note.title, []).append(kernel)
    for kind, listed in sorted(of_kind.items(), key=lambda pair: -sum(kernel.seconds for kernel in pair[1])):
        kinds.add_row(kind, str(len(listed)), *_times(listed, profile))
    kinds.add_section()
    kinds.add_row("all kernels", str(len(profile.kernels)), *_times(profile.kernels, profile), style="bold")
    kernels = [table, kinds] if profile.kernels else []
    return [*_parts(profile), *kernels, *_interpreted(profile.interpreted, names), _sums(profile)]


def main_node(note: KernelNote, names: NodeNames) -> str:
    """Return the node with most of a kernel's operations, and the number of the other nodes."""
    nodes = _nodes(note, names)
    if not nodes:
        return ""
    main = label(note.main, names) if note.main else nodes[-1]
    others = len([node for node in nodes if node != main])
    return f"{main} + {others}" if others else main


def _parts(profile: Profile) -> list[RenderableType]:
    if not profile.parts:
        return []
    table = Table(title="Parts", title_justify="left", header_style="bold")
    for column in ("", "provider", "nodes", "µs", "share"):
        table.add_column(column, overflow="fold", justify="right" if column in ("", "µs", "share") else "left")
    for number, part in enumerate(profile.parts):
        share = f"{part.seconds / profile.seconds:.1%}"
        table.add_row(str(number), part.provider, Text(part.label), f"{part.seconds * 1e6:,.1f}", share)
    return [table]


def _roofline(title: str, first: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", expand=True)
    for column in first:
        if column in ("", "count"):
            table.add_column(column, justify="right", no_wrap=True)
        else:
            table.add_column(column, overflow="ellipsis", no_wrap=True, min_width=20, ratio=1)
    for column in ("µs", "share", "operations", "bytes", "of peak", "of roofline"):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _times(kernels: Sequence[KernelTime], profile: Profile) -> list[str]:
    seconds = sum(kernel.seconds for kernel in kernels)
    operations = sum(kernel.note.operations or 0 for kernel in kernels)
    traffic = sum(kernel.note.bytes or 0 for kernel in kernels)
    if not kernels:
        return ["0", *["—"] * 5]
    lower_bound = operations / profile.peak.operations + traffic / profile.peak.bytes
    return [
        f"{seconds * 1e6:,.1f}", f"{seconds / profile.seconds:.1%}", count(operations), size(traffic),
        f"{operations / seconds / profile.peak.operations:.0%}", f"{lower_bound / seconds:.0%}",
    ]  # fmt: skip


def _interpreted(listed: Sequence[tuple[InterpretedNote, float | None]], names: NodeNames) -> list[RenderableType]:
    if not listed:
        return [Text("The interpreter computes nothing.", style="green")]
    timed = any(seconds is not None for _, seconds in listed)
    title = f"The interpreter computes {len(listed)} {'value' if len(listed) == 1 else 'values'}"
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in ("primitive", "node", "why there is no kernel", *(["µs"] if timed else [])):
        table.add_column(column, overflow="fold", justify="right" if column == "µs" else "left")
    for note, seconds in listed:
        node = Text(label(note.tensor, names) if note.tensor else "")
        table.add_row(note.primitive, node, Text(note.reason), *([] if seconds is None else [f"{seconds * 1e6:,.1f}"]))
    return [table]


def _sums(profile: Profile) -> Text:
    compiled = sum(kernel.seconds for kernel in profile.kernels)
    interpreted = sum(seconds for _, seconds in profile.interpreted)
    others = sum(part.seconds for part in profile.parts if not part.known)
    elsewhere = f"{profile.elsewhere * 1e6:,.1f} elsewhere"
    return Text(
        f"A run takes {profile.seconds * 1e6:,.1f} µs (median of {profile.runs}): {compiled * 1e6:,.1f} in kernels, "
        f"{interpreted * 1e6:,.1f} in the interpreter, "
        + (f"{others * 1e6:,.1f} in other providers, " if profile.parts else "")
        + f"{elsewhere}.\n"
        f"Measured peak of {_threads(profile.threads)}: {profile.peak.operations / 1e9:.1f} GFLOP/s of multiply-adds, "
        f"{profile.peak.bytes / 1e9:.1f} GB/s read from memory."
    )


def _nodes(note: KernelNote, names: NodeNames) -> list[str]:
    """Return the nodes in a kernel; a tensor that the optimizer introduced without a node is named itself."""
    return list(dict.fromkeys(label(tensor, names) for tensor in note.tensors))


def _format_counts(primitives: Mapping[str, int]) -> str:
    return ", ".join(name if number == 1 else f"{number} {name}" for name, number in primitives.items())


def _size(number: int | None) -> str:
    return "—" if number is None else size(number)


def _threads(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"
