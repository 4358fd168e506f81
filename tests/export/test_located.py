"""The first wrong layer of an artifact without inner values is found by artifacts of parts."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper, parser

from sardonyx.errors import EvaluationError, UnsupportedError
from sardonyx.export.artifact import Artifact, Options
from sardonyx.export.located import first_wrong_layer
from sardonyx.model import load
from sardonyx.model.copying import copy_model
from sardonyx.ops.inference import require_runnable
from sardonyx.rewrite import evaluate
from sardonyx.rewrite.analysis import inference

GRAPH = (
    "agraph (float[2,3] x) => (float[2,3] y) { a = Exp(x) b = Neg(a) c = Relu(b) d = Abs(b) e = Add(c, d)"
    " f = Tanh(e) y = Neg(f) }"
)
FEEDS = {"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}


def model() -> ir.Model:
    graph = parser.parse_graph(GRAPH)
    result = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    require_runnable(inference.infer_shapes(result, strict=False), result.graph)
    return result


def exporter(changed: Mapping[str, str], *, refused: str = "", failing: str = "") -> Any:
    """Return an exporter that runs models with other operators in place of some."""

    def export(part: ir.Model, options: Options) -> Artifact:
        operators = {node.op_type for node in part.graph}
        if refused in operators:
            raise UnsupportedError("refused", where=refused)
        other = copy_model(part)
        for node in other.graph:
            node.op_type = changed.get(node.op_type, node.op_type)

        def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
            if failing in operators:
                raise EvaluationError("the engine ends with code -11")
            return evaluate.ReferenceRunner(other).run(feeds)

        return Artifact(lambda path: None, run)

    return SimpleNamespace(export=export)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (exporter({"Exp": "Sin"}), "Exp(a): 'a' differs by"),
        (exporter({"Abs": "Neg", "Relu": "Abs"}), "Relu(c): 'c' differs by"),
        (exporter({"Tanh": "Erf"}), "Tanh(f): 'f' differs by"),
        (exporter({"Tanh": "Erf"}, refused="Abs"), ""),
        (exporter({}, failing="Relu"), "Relu(c): 'c' has no result: the engine ends with code -11"),
    ],
    ids=["first", "middle", "late", "refused parts", "fails"],
)
def test_the_first_wrong_layer_is_named(program: Any, text: str) -> None:
    layer = first_wrong_layer(model(), program, Options(), FEEDS)
    assert text in layer and bool(text) == bool(layer), layer
