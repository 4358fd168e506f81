"""Tables of compiled models: what the kernels are, and what each takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import onnx_ir as ir
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sardonyx.compiler.explain import Explanation, InterpretedNote, KernelNote
from sardonyx.report.scopes import made_from
from sardonyx.report.tables import count, size
from sardonyx.runtime.profiling.profile import KernelTime, Profile

NodeNames = Mapping[str, str]
"""Operator and name of the node that gives a tensor, by the tensor's name."""


def node_names(model: ir.Model) -> dict[str, str]:
    """What to call the nodes of a model, those of bodies among them; by the nodes' own names too."""
    found: dict[str, str] = {}
    for node in model.graph.all_nodes():
        for output in node.outputs:
            if output.name:
                called = f"{node.op_type} {node.name}" if node.name else f"{node.op_type} '{output.name}'"
                found.setdefault(str(output.name), called)
                if node.name:
                    found.setdefault(node.name, called)
    return found


def operators(model: ir.Model) -> dict[str, str]:
    """The operator that gives a tensor, with the node's own name without its path, by the tensor's name."""
    found: dict[str, str] = {}
    for node in model.graph.all_nodes():
        name = (node.name or "").rpartition("/")[2]
        called = name if node.op_type in name else f"{node.op_type} {name}".rstrip()
        for output in node.outputs:
            if output.name:
                found.setdefault(str(output.name), called)
    return found


def label(tensor: str, names: NodeNames) -> str:
    """The node that gives a tensor, or of which the optimizer made what gives it; else the tensor."""
    found = names.get(tensor)
    if found is None and (maker := made_from(tensor, names)):
        found = names[maker]
    return found or f"'{tensor}'"


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
        row["nodes"], row["node"] = _nodes(each.note, names), label(each.note.main, names) if each.note.main else None
    for row, (note, _) in zip(data["interpreted"], found.interpreted, strict=True):
        row["node"] = label(note.tensor, names) if note.tensor else None
    return data


def profile_tables(found: Profile, names: NodeNames, most: int | None = None) -> list[RenderableType]:
    """The tables of ``sardonyx profile``: the kernels that take longest, those of a kind together, and the sum.

    Args:
        found: The profile.
        names: Of the nodes.
        most: Kernels with a row of their own; None for all.
    """
    shown = sorted(enumerate(found.kernels), key=lambda pair: -pair[1].seconds)[:most]
    table = _roofline("Kernels by time", ("", "kernel, its main node"))
    for number, each in shown:
        what = Text(each.note.title).append(f"\n  {main_node(each.note, names)}", style="dim")
        table.add_row(str(number), what, *_times([each], found))
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
    kernels = [table, kinds] if found.kernels else []
    return [*_parts(found), *kernels, *_interpreted(left, names), _sums(found)]


def main_node(note: KernelNote, names: NodeNames) -> str:
    """The node that most of a kernel's operations are for, and how many others there are."""
    nodes = _nodes(note, names)
    if not nodes:
        return ""
    main = label(note.main, names) if note.main else nodes[-1]
    others = len([each for each in nodes if each != main])
    return f"{main} + {others}" if others else main


def _parts(found: Profile) -> list[RenderableType]:
    if not found.parts:
        return []
    table = Table(title="Parts", title_justify="left", header_style="bold")
    for column in ("", "provider", "nodes", "µs", "share"):
        table.add_column(column, overflow="fold", justify="right" if column in ("", "µs", "share") else "left")
    for number, each in enumerate(found.parts):
        share = f"{each.seconds / found.seconds:.1%}"
        table.add_row(str(number), each.provider, Text(each.label), f"{each.seconds * 1e6:,.1f}", share)
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
    title = f"{len(listed)} {'value is' if len(listed) == 1 else 'values are'} left to the interpreter"
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in ("primitive", "node", "why it has no kernel", *(["µs"] if timed else [])):
        table.add_column(column, overflow="fold", justify="right" if column == "µs" else "left")
    for note, seconds in listed:
        node = Text(label(note.tensor, names) if note.tensor else "")
        table.add_row(note.primitive, node, Text(note.reason), *([] if seconds is None else [f"{seconds * 1e6:,.1f}"]))
    return [table]


def _sums(found: Profile) -> Text:
    inside = sum(each.seconds for each in found.kernels)
    interpreted = sum(seconds for _, seconds in found.interpreted)
    others = sum(each.seconds for each in found.parts if not each.known)
    elsewhere = f"{found.elsewhere * 1e6:,.1f} elsewhere"
    return Text(
        f"A run takes {found.seconds * 1e6:,.1f} µs (median of {found.runs}): {inside * 1e6:,.1f} in kernels, "
        f"{interpreted * 1e6:,.1f} in the interpreter, "
        + (f"{others * 1e6:,.1f} in other providers, " if found.parts else "")
        + f"{elsewhere}.\n"
        f"Measured peak of {_threads(found.threads)}: {found.peak.operations / 1e9:.1f} GFLOP/s of multiply-adds, "
        f"{found.peak.bytes / 1e9:.1f} GB/s read from memory."
    )


def _nodes(note: KernelNote, names: NodeNames) -> list[str]:
    """The nodes in a kernel; where the optimizer made a tensor, the tensor."""
    return list(dict.fromkeys(label(tensor, names) for tensor in note.tensors))


def _counted(primitives: Mapping[str, int]) -> str:
    return ", ".join(_times_each(Counter(dict(primitives)).items()))


def _times_each(counts: Iterable[tuple[str, int]]) -> list[str]:
    return [name if number == 1 else f"{number} {name}" for name, number in counts]


def _size(number: int | None) -> str:
    return "—" if number is None else size(number)


def _threads(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"
