"""Lowest reachable set of each operator of the backend suite: the table in ``docs/reference/opset.md``.

``python -m tests.rewrite.opset.lowest`` writes the table; a long test compares it.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import OpsetConversionError
from sardonyx.rewrite.opset import convert_opset

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "opset.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


PARAMETERS = frozenset(
    [
        "axes",
        "axis",
        "K",
        "k",
        "pads",
        "shape",
        "split",
        "starts",
        "ends",
        "steps",
        "scales",
        "sizes",
        "repeats",
        "ratio",
        "training_mode",
        "dft_length",
        "image_shape",
        "block_shape",
        "depth",
        "size",
        "start",
        "limit",
        "delta",
        "num_mel_bins",
        "sample_rate",
        "lower_edge_hertz",
        "upper_edge_hertz",
    ]
)
"""Names of inputs that parametrize an operator; constants in real models."""


@dataclass
class Case:
    """A case of the suite, with the parameters of its node as constants."""

    name: str
    model: onnx.ModelProto
    data_sets: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float


def with_constants(case: Any) -> Case:
    """The case with the parameters of its one node as initializers."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    constant = _parameters(model) if len(model.graph.node) == 1 and len(case.data_sets) == 1 else set()
    inputs, outputs = case.data_sets[0]
    remaining = []
    for value, content in zip(case.model.graph.input, inputs, strict=True):
        if value.name in constant and isinstance(content, np.ndarray):
            model.graph.initializer.append(onnx.numpy_helper.from_array(content, value.name))
            model.graph.input.remove(value)
        else:
            remaining.append(content)
    data_sets = [(remaining, outputs)] if len(remaining) < len(inputs) else case.data_sets
    if model.graph.initializer:
        model.ir_version = max(4, model.ir_version)
    return Case(case.name, model, data_sets, case.rtol, case.atol)


def _parameters(model: onnx.ModelProto) -> set[str]:
    node = model.graph.node[0]
    opset = opset_of(model)
    if node.domain or opset is None:
        return set()
    formals = onnx.defs.get_schema(node.op_type, opset).inputs
    return {name for name, formal in zip(node.input, formals, strict=False) if formal.name in PARAMETERS}


def cases() -> list[Case]:
    """The node cases of the backend suite whose models use the default domain."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        node_cases = collect_testcases(None)  # type: ignore[arg-type]
    return [with_constants(case) for case in node_cases if opset_of(case.model) is not None]


def opset_of(proto: onnx.ModelProto) -> int | None:
    """Return the imported operator set of the default domain."""
    return next((entry.version for entry in proto.opset_import if not entry.domain), None)


def way_down(model: ir.Model) -> Iterator[tuple[int, ir.Model | OpsetConversionError]]:
    """Yield the model at each lower operator set, and the final refusal."""
    for opset in range(model.opset_imports[""] - 1, 0, -1):
        try:
            yield opset, convert_opset(model, opset)
        except OpsetConversionError as refusal:
            yield opset, refusal
            return


@dataclass
class Row:
    """Results of the cases of one operator."""

    newest: int = 0
    reached: list[int] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)

    def add(self, model: ir.Model) -> None:
        """Count one case."""
        lowest = model.opset_imports[""]
        self.newest = max(self.newest, lowest)
        for opset, result in way_down(model):
            if isinstance(result, OpsetConversionError):
                self.reasons.setdefault(lowest, _reason(result))
            else:
                lowest = opset
        self.reached.append(lowest)


def _reason(refusal: OpsetConversionError) -> str:
    text = refusal.problem.split("; its decomposition fails too: ")[-1]
    text = re.sub(r"^.*cannot be converted from opset \d+ to \d+: ", "", text)
    return re.sub(r"'[^']*'", "…", text).replace("|", "/")


def rows() -> dict[str, Row]:
    """Return a row for every operator with a case of one node."""
    table: dict[str, Row] = defaultdict(Row)
    for case in cases():
        if len(case.model.graph.node) == 1 and not case.model.graph.node[0].domain:
            table[case.model.graph.node[0].op_type].add(model_io.from_proto(case.model))
    return dict(sorted(table.items()))


def table() -> str:
    """Return the table in Markdown."""
    lines = [
        "| operator | cases | every case to | best case to | refusal of the worst case |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows().items():
        worst = max(row.reached)
        reason = row.reasons.get(worst, "") if worst > 1 else ""
        lines.append(f"| {name} | {len(row.reached)} | {worst} | {min(row.reached)} | {reason} |")
    return "\n".join(lines)


def recorded() -> str:
    """Return the table on the page."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def write() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")


if __name__ == "__main__":
    write()
