"""The tables of ``sardonyx info``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sardonyx.report.listing import NodeRow, WeightRow
from sardonyx.report.quantities import count, size, sizes_note
from sardonyx.report.summary import Port, Summary


def summary_tables(name: str, info: Summary) -> list[RenderableType]:
    """Return the tables of ``sardonyx info``: interface, operators, and facts line by line."""
    ports = Table(title=name, title_justify="left", header_style="bold")
    for column in ("", "name", "type", "shape"):
        ports.add_column(column, overflow="fold")
    for kind, listed in (("input", info.inputs), ("output", info.outputs)):
        for port in listed:
            shape = "?" if port.shape is None else f"({', '.join(map(str, port.shape))})"
            ports.add_row(kind, Text(port.name), port.type, Text(shape))
    operators = Table(title=f"{info.nodes} nodes", title_justify="left", header_style="bold")
    for column, justify in _OPERATOR_COLUMNS.items():
        operators.add_column(column, justify=justify)
    for operator, number in info.operators.items():
        macs = info.macs_by_operator.get(operator)
        operators.add_row(operator, str(number), "" if macs is None else count(macs))
    facts = Table.grid(padding=(0, 2))
    for label, text in _facts(info):
        facts.add_row(Text(label, style="bold"), Text(text))
    return [ports, operators, facts]


_OPERATOR_COLUMNS: dict[str, Literal["left", "right"]] = {"operator": "left", "nodes": "right", "MACs": "right"}


def _facts(info: Summary) -> Iterator[tuple[str, str]]:
    yield "parameters", count(info.parameters)
    by_type = ", ".join(f"{name} {size(number)}" for name, number in info.types.items())
    yield "weights", f"{size(info.weight_bytes)} ({by_type})" if by_type else "none"
    if info.file_bytes is not None:
        yield "file", size(info.file_bytes)
    unknown = f", and {info.unknown_macs} nodes of unknown size" if info.unknown_macs else ""
    sized = isinstance(info.macs, int)
    hint = "" if sized else " (name them: --size NAME=8)"
    yield "MACs", count(info.macs) + unknown + (sizes_note(info.sizes) if sized else hint)
    if info.peak_memory is not None:
        yield "memory peak", (size(info.peak_memory) + sizes_note(info.sizes)) if sized else f"depends on sizes{hint}"
    yield "opsets", ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in info.opsets.items())
    yield "IR version", str(info.ir_version)
    yield "control flow", f"{info.control_flow_depth} deep" if info.control_flow_depth else "none"
    if info.producer:
        yield "producer", info.producer
    if info.functions:
        yield "functions", ", ".join(info.functions)
    for key, text in info.metadata.items():
        yield key, text if len(text) <= 200 else text[:200] + "…"


def side_by_side(models: Sequence[tuple[str, Summary]]) -> Table:
    """Return several models as columns: operators, nodes, weights, bytes and arithmetic."""
    table = Table(title="Models", title_justify="left", header_style="bold")
    table.add_column("")
    for name, _ in models:
        table.add_column(name, justify="right", overflow="fold")
    totals = Counter[str]()
    for _, info in models:
        totals.update(info.operators)
    for operator, _ in totals.most_common():
        table.add_row(operator, *(str(info.operators.get(operator, "")) for _, info in models))
    table.add_section()
    rows: dict[str, Callable[[Summary], str]] = {
        "nodes": lambda info: str(info.nodes),
        "parameters": lambda info: count(info.parameters),
        "weights": lambda info: size(info.weight_bytes),
        "file": lambda info: "" if info.file_bytes is None else size(info.file_bytes),
        "MACs": lambda info: count(info.macs),
        "opset": lambda info: str(info.opsets.get("", "")),
        "IR version": lambda info: str(info.ir_version),
        "inputs": lambda info: "\n".join(map(_port_text, info.inputs)),
        "outputs": lambda info: "\n".join(map(_port_text, info.outputs)),
    }
    for label, text in rows.items():
        table.add_row(label, *(Text(text(info)) for _, info in models))
    return table


def _port_text(port: Port) -> str:
    shape = "?" if port.shape is None else f"({', '.join(map(str, port.shape))})"
    return f"{port.name} {port.type} {shape}"


def nodes_table(rows: Sequence[NodeRow]) -> Table:
    """Return the nodes with operator, outputs, attributes and cost."""
    table = Table(title=f"{len(rows)} nodes", title_justify="left", header_style="bold")
    for column in ("node", "operator", "outputs", "attributes"):
        table.add_column(column, overflow="fold")
    for column in ("MACs", "parameters"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            Text(f"{row.graph}/{row.name}" if row.graph else row.name),
            row.operator,
            Text("\n".join(row.types)),
            Text("\n".join(f"{name}={text}" for name, text in row.attributes.items())),
            "" if row.macs is None else count(row.macs),
            count(row.parameters) if row.parameters else "",
        )
    return table


def sparsity_table(rows: Sequence[WeightRow]) -> Table:
    """Return the weights by falling share of zeros, with the shares of zero channels and of groups in 2:4."""
    numeric = sorted((row for row in rows if row.zeros is not None), key=lambda row: -(row.zeros or 0.0))
    elements = [math.prod(row.shape) for row in numeric]
    zeros = sum((row.zeros or 0.0) * count for row, count in zip(numeric, elements, strict=True))
    share = zeros / sum(elements) if sum(elements) else 0.0
    table = Table(title=f"Sparsity: {share:.1%} of all weights are 0", title_justify="left", header_style="bold")
    for column in ("weight", "type", "shape"):
        table.add_column(column, overflow="fold")
    for column in ("zeros", "zero channels", "groups in 2:4"):
        table.add_column(column, justify="right")
    for row in numeric:
        shares = ("" if part is None else f"{part:.1%}" for part in (row.zeros, row.zero_channels, row.zero_groups))
        name = f"{row.graph}/{row.name}" if row.graph else row.name
        table.add_row(Text(name), row.type, f"({', '.join(map(str, row.shape))})", *shares)
    return table


def weights_table(rows: Sequence[WeightRow]) -> Table:
    """Return the weights with type, shape, bytes and range."""
    table = Table(title=f"{len(rows)} weights", title_justify="left", header_style="bold")
    for column in ("weight", "type", "shape"):
        table.add_column(column, overflow="fold")
    for column in ("bytes", "least", "largest", "zeros", "readers"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            Text(f"{row.graph}/{row.name}" if row.graph else row.name),
            row.type,
            f"({', '.join(map(str, row.shape))})",
            size(row.bytes),
            *("" if number is None else f"{number:.4g}" for number in (row.least, row.largest)),
            "" if row.zeros is None else f"{row.zeros:.1%}",
            str(row.readers),
        )
    return table
