"""Programs with inputs and interpreted values that are not tensors of known rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from sardonyx import Session

ROWS = [np.ones(2, np.float32), np.full(3, 2, np.float32)]
CASES: dict[str, tuple[str, Any]] = {
    "a sequence": (
        "g (seq(float[N]) s, float[M] x) => (float[M] y, float[K] z) "
        "{ y = Neg (x)  c = Constant <value_int = 1> ()  z = SequenceAt (s, c) }",
        ROWS,
    ),
    "a sequence that no node reads": ("g (seq(float[N]) s, float[M] x) => (float[M] y) { y = Neg (x) }", ROWS),
    "a sequence that is returned": (
        "g (seq(float[N]) s, float[M] x) => (float[M] y, seq(float[N]) t) { y = Neg (x)  t = Identity (s) }",
        ROWS,
    ),
    "a sequence behind tensors": (
        "g (float[M] x, seq(float[N]) s) => (float[M] y, float[K] z) "
        "{ y = Neg (x)  c = Constant <value_int = 0> ()  e = SequenceAt (s, c)  z = Exp (e) }",
        ROWS,
    ),
    "rows of unknown rank": (
        "g (seq(float) s, float[M] x) => (float[M] y, seq(float) t) "
        "{ y = Neg (x)  e = Exp (y)  t = SequenceInsert (s, e) }",
        ROWS,
    ),
    "a tensor of unknown rank": (
        "g (seq(float) s, float[M] x) => (float[M] y, float z) "
        "{ y = Neg (x)  z = ConcatFromSequence <axis = 0> (s) }",
        ROWS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_kernels_run_beside_values_that_are_no_tensors(name: str) -> None:
    text, rows = CASES[name]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    for output in model.graph.output:
        if output.type.HasField("tensor_type") and output.name == "z":
            output.type.tensor_type.ClearField("shape")
    feeds = {"s": rows, "x": np.arange(4, dtype=np.float32)}
    expected = Session(model, compile="off").run(None, feeds)
    session = Session(model, compile="wait", threads=1)
    for _ in range(3):
        for actual, other in zip(session.run(None, feeds), expected, strict=True):
            pairs = [(actual, other)] if isinstance(other, np.ndarray) else zip(actual, other, strict=True)
            for a, b in pairs:
                np.testing.assert_allclose(a, b, rtol=1e-6)
