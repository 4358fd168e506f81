"""Operands of a shape that the standard forbids: no rule drops such an operand, and ``check`` reports the node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx import Session, check, optimize
from sardonyx.errors import ShapeError
from sardonyx.rewrite.language import EXACT, Result, rule
from sardonyx.rewrite.site import Site

STEPS, BATCH, WIDTH, HIDDEN = 5, 2, 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(op: str, batch: int | str = BATCH, layout: int = 0, **shapes: Sequence[int]) -> onnx.ModelProto:
    """Return a model of one layer; ``shapes`` gives the shapes of operands that are zeros."""
    rng, gates = np.random.default_rng(0), GATES[op]
    weights = {
        "W": rng.standard_normal((1, gates * HIDDEN, WIDTH)).astype(np.float32),
        "R": rng.standard_normal((1, gates * HIDDEN, HIDDEN)).astype(np.float32),
    }
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    if "sequence_lens" in shapes:
        zeros["sequence_lens"] = np.full(shapes["sequence_lens"], STEPS, np.int32)
    names = ["X", "W", "R", *("B", "sequence_lens", "initial_h", "initial_c")[: 4 if op == "LSTM" else 3]]
    inputs = [name if name in ("X", *weights, *zeros) else "" for name in names]
    x_shape = [batch, STEPS, WIDTH] if layout else [STEPS, batch, WIDTH]
    while not inputs[-1]:
        inputs.pop()
    graph = helper.make_graph(
        [helper.make_node(op, inputs, ["Y"], hidden_size=HIDDEN, **({"layout": 1} if layout else {}))],
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, x_shape)],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * 4)],
        [numpy_helper.from_array(array, name) for name, array in (weights | zeros).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


WRONG = [
    ("initial_h", (1, 1, HIDDEN)),
    ("initial_h", (BATCH, HIDDEN)),
    ("initial_h", (1, BATCH, HIDDEN + 1)),
    ("initial_h", (2, BATCH, HIDDEN)),
    ("initial_c", (1, 1, HIDDEN)),
    ("B", (1, 7)),
    ("sequence_lens", (BATCH + 1,)),
]


@pytest.mark.parametrize(("operand", "shape"), WRONG)
@pytest.mark.parametrize("op", GATES)
def test_an_operand_of_a_forbidden_shape_is_refused(op: str, operand: str, shape: tuple[int, ...]) -> None:
    if operand == "initial_c" and op != "LSTM":
        operand = "initial_h"
    model = recurrent(op, **{operand: shape})
    x = np.zeros((STEPS, BATCH, WIDTH), np.float32)
    assert any(operand in finding.reason for finding in check(model) if finding.severity == "error")
    result = optimize(model)
    assert not result.report.verdict.status.startswith("proved")
    assert list(result.model.graph[0].inputs)[-1] is not None
    for compile in ("off", "wait"):
        with pytest.raises(ShapeError, match=operand):
            Session(model, compile=compile).run(None, {"X": x})


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("op", GATES)
def test_a_state_of_zeros_is_dropped_if_its_shape_is_known_to_fit(op: str, layout: int) -> None:
    shape = (BATCH, 1, HIDDEN) if layout else (1, BATCH, HIDDEN)
    model = recurrent(op, layout=layout, initial_h=shape)
    assert not [finding for finding in check(model) if finding.severity == "error"]
    assert len(optimize(model, verify=False).model.graph[0].inputs) == 3
    open_batch = recurrent(op, "N", layout, initial_h=shape)
    assert len(optimize(open_batch, verify=False).model.graph[0].inputs) == 6


@pytest.mark.parametrize("compile", ["off", "wait"])
def test_a_state_of_zeros_fixes_an_open_batch(compile: str) -> None:
    session = Session(recurrent("GRU", "N", initial_h=(1, BATCH, HIDDEN)), compile=compile)
    assert session.run(None, {"X": np.zeros((STEPS, BATCH, WIDTH), np.float32)})[0].shape == (STEPS, 1, BATCH, HIDDEN)
    with pytest.raises(ShapeError):
        session.run(None, {"X": np.zeros((STEPS, BATCH + 1, WIDTH), np.float32)})


def test_no_rule_removes_a_node_that_cannot_run() -> None:
    @rule("drop_added_zeros", on=("Add",), exactness=EXACT)
    def drop(s: Site) -> Result:
        """Drop the second operand, without a look at the shapes."""
        return s.input(0)

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[3] x) => (float[3] y) <float[4] zeros = {0, 0, 0, 0}> { a = Add (x, zeros)  y = Exp (a) }"""
    )
    result = optimize(model, passes=[], rules=[drop], verify=False)
    assert [node.op_type for node in result.model.graph] == ["Add", "Exp"]
