"""Count the nodes that optimizers leave of small graphs, one graph for each class of rewrite.

    python benchmarks/small_graphs.py --json out.json --plot out.png

The graphs are in `small_graphs.txt`. Results are counted if their outputs equal the original's. Two targets are
compared: standard ONNX, and ONNX Runtime with its own operators.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import rich.console
import rich.progress

import isolated
import judge
import peers
import report
import suites
import tables

GRAPHS = Path(__file__).with_suffix(".txt")
VOCABULARY = 2
"""Random indices are below the smallest embedding table of the graphs."""
STANDARD = (peers.SUBJECT, *peers.PEERS)
FOR_ONNXRUNTIME = (peers.FOR_ONNXRUNTIME, peers.EXTENDED)
LEFT = {
    "DequantizeLinear": "quantized groups stay standard ONNX: ONNX Runtime joins them when it loads a file",
    "SimplifiedLayerNormalization": "the checker refuses the operator, which has no domain of its own",
    "Softmax": "engines match attention in its unfused form",
    "SkipLayerNormalization": "the operator is slower than its parts on processors",
}
"""Operators of a peer's result or of ours → the reason why the peer leaves fewer nodes."""


@dataclass(frozen=True)
class Row:
    """One graph: its nodes, the nodes of each tool's correct result, and its faults, by tool."""

    name: str
    before: int
    nodes: Mapping[str, int]
    operators: Mapping[str, list[str]]
    faults: Mapping[str, str]


def graphs() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield the name and the model of every graph of the file."""
    for section in GRAPHS.read_text().split("## ")[1:]:
        name, signature, body = section.strip().split("\n", 2)
        body, _, assigned = body.partition("\nwhere ")
        values = dict(_values(assigned))
        opset = int(values.pop("opset", 17))
        head = f'<ir_version: {8 if opset < 19 else 10}, opset_import: ["": {opset}, "ai.onnx.ml": 3]>'
        model = onnx.parser.parse_model(f"{head} g {signature} {{ {body} }}")
        model.graph.initializer.extend(
            onnx.numpy_helper.from_array(np.asarray(value), key) for key, value in values.items()
        )
        for number, node in enumerate(model.graph.node):
            node.name = f"node{number}"
        yield name, model


def _values(text: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the constants of a text `name = value, …`.

    Values are numbers, lists of int64, or calls: `normal(sizes)`, `codes(sizes)` of int8, `bytes(sizes)`,
    `full(value, sizes)`, and the name of a numpy type with its elements, as in `uint8(128)`.
    """
    random = np.random.default_rng(0)
    call = ast.parse(f"constants({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    for keyword in call.keywords:
        name, value = str(keyword.arg), keyword.value
        if not isinstance(value, ast.Call):
            number = float(ast.unparse(value)) if ast.unparse(value) in ("-inf", "inf") else ast.literal_eval(value)
            array = np.asarray(number)
            yield name, array.astype(np.float32) if array.dtype.kind == "f" else array
            continue
        arguments = [ast.literal_eval(argument) for argument in value.args]
        kind = ast.unparse(value.func)
        if kind == "normal":
            yield name, random.standard_normal(arguments).astype(np.float32)
        elif kind in ("codes", "bytes"):
            low, dtype = (-127, np.int8) if kind == "codes" else (0, np.uint8)
            yield name, random.integers(low, low + 255, arguments).astype(dtype)
        elif kind == "full":
            yield name, np.full(arguments[1:], arguments[0], np.float32)
        else:
            yield name, np.asarray(arguments if len(arguments) > 1 else arguments[0], np.dtype(kind))


def feeds_of(model: onnx.ModelProto) -> suites.Feeds:
    """Return seeded inputs, open sizes bound to 3."""
    random = np.random.default_rng(1)
    feeds = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value or 3 for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        drawn = random.standard_normal(shape) if dtype.kind == "f" else random.integers(0, VOCABULARY, shape)
        feeds[value.name] = np.asarray(drawn).astype(dtype)
    return feeds


def measure(name: str, model: onnx.ModelProto, work: Path, workers: isolated.Workers) -> Row:
    """Run every tool on a graph."""
    path = work / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.onnx"
    onnx.save(model, path)
    feeds = feeds_of(model)
    samples = [(feeds, suites.unoptimized_outputs(path, feeds)[1])]
    nodes, operators, faults = {}, {}, {}
    for tool in (*STANDARD, *FOR_ONNXRUNTIME):
        if not tool.installed:
            continue
        result = work / f"{tool.name.replace(' ', '-')}.onnx"
        run = workers.run(tool.name, path, result)
        if run.failure:
            faults[tool.name] = run.failure
            continue
        verdict = judge.judge(result, suites.Case(name, "small", path), samples)
        foreign = tool in FOR_ONNXRUNTIME
        wrong = [fault for fault in verdict.faults if not foreign or "differ" in fault] if foreign else verdict.faults
        if wrong or (verdict.foreign and not foreign):
            faults[tool.name] = "; ".join(wrong) or verdict.reason
        else:
            nodes[tool.name], operators[tool.name] = verdict.nodes, list(verdict.ops)
    return Row(name, len(model.graph.node), nodes, operators, faults)


def reason(row: Row, ours: str, peer: str) -> str:
    """Return why a peer leaves fewer nodes; empty if no reason is known."""
    involved = [name.rpartition(":")[2] for tool in (ours, peer) for name in row.operators.get(tool, ())]
    return next((text for operator, text in LEFT.items() if operator in involved), "")


def table(rows: list[Row], title: str, ours: peers.Tool, others: tuple[peers.Tool, ...]) -> tables.Table:
    """Return the graphs, the nodes of each tool, and a note on each graph of which a peer leaves fewer."""
    names = [tool.name for tool in others]
    result = tables.Table(
        title, "Nodes that are left; ✗: failed, or not counted.", ["Graph", "Input", ours.name, *names], []
    )
    fewer = 0
    for row in rows:
        cells = [str(row.nodes[name]) if name in row.nodes else "✗" for name in (ours.name, *names)]
        result.rows.append([row.name, str(row.before), *cells])
        own = row.nodes.get(ours.name, row.before)
        best = min(((row.nodes[name], name) for name in names if name in row.nodes), default=(own, ""))
        if best[0] < own:
            why = reason(row, ours.name, best[1])
            fewer += not why
            result.notes.append(
                f"{row.name}: {best[1]} leaves {best[0]}, {ours.name} {own}; {why or 'no reason known'}"
            )
        if ours.name in row.faults:
            result.notes.append(f"{row.name}: {ours.name}: {row.faults[ours.name]}")
    totals = {name: sum(row.nodes.get(name, row.before) for row in rows) for name in (ours.name, *names)}
    result.rows.append(["all", str(sum(row.before for row in rows)), *(str(total) for total in totals.values())])
    result.notes.append(f"Graphs of which a peer leaves fewer nodes without a reason: {fewer}.")
    return result


def plot(path: Path, results: list[tables.Table]) -> None:
    """Draw the nodes of all graphs that each tool leaves."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(results), figsize=(6 * len(results), 4), squeeze=False)
    for panel, result in zip(axes[0], results, strict=True):
        panel.barh(result.columns[1:], [int(total) for total in result.rows[-1][1:]])
        panel.set_xlabel("nodes of all graphs")
        panel.set_title(result.title)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--graphs", nargs="*", default=[], metavar="TEXT", help="only graphs with this text in the name"
    )
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--plot", type=Path, help="file for a plot")
    parser.add_argument("--markdown", type=Path, help="page whose marked section `small-graphs` is rewritten")
    chosen = parser.parse_args()
    cases = [case for case in graphs() if not chosen.graphs or any(text in case[0] for text in chosen.graphs)]
    progress = rich.console.Console(stderr=True)
    with tempfile.TemporaryDirectory() as work, isolated.Workers() as workers:
        tracked = rich.progress.track(cases, "graphs", console=progress)
        rows = [measure(name, model, Path(work), workers) for name, model in tracked]
    results = [
        table(rows, "Standard ONNX", peers.SUBJECT, peers.PEERS),
        table(rows, "For ONNX Runtime", peers.FOR_ONNXRUNTIME, (peers.EXTENDED,)),
    ]
    report.show(results)
    facts = report.surroundings()
    if chosen.json:
        content = [{"graph": row.name, "before": row.before, **row.nodes, "faults": dict(row.faults)} for row in rows]
        chosen.json.write_text(json.dumps({"surroundings": facts, "graphs": content}, indent=1))
    if chosen.plot:
        plot(chosen.plot, results)
    if chosen.markdown:
        report.rewrite_section(chosen.markdown, report.markdown(results, facts), "small-graphs")


if __name__ == "__main__":
    main()
