"""Rows of tables that are computed from constants."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import sardonyx

COUNTED = """<ir_version: 8, opset_import: ["": 17]>
counted (bool c, int64[2] i) => (float[2, 2] y) {
    y = If<
        then_branch = places () => (float[2, 2] rows) {
            at = NonZero(mask) pairs = Transpose<perm = [1, 0]>(at) real = Cast<to = 1>(pairs)
            table = Mul(real, two) rows = Gather(table, i)
        },
        else_branch = ones () => (float[2, 2] same) { same = Identity(w) }
    >(c)
}
"""


def test_a_table_whose_size_is_counted_from_constants_is_computed_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    model = onnx.parser.parse_model(COUNTED)
    mask = (np.arange(90000).reshape(300, 300) % 3 > 0).astype(np.float32)
    for name, value in (("mask", mask), ("two", np.float32(2)), ("w", np.ones((2, 2), np.float32))):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    session = sardonyx.Session(model, compile="wait")
    (rows,) = session.run(None, {"c": np.array(True), "i": np.array([0, 5])})
    assert rows.tolist() == (2 * np.argwhere(mask)[[0, 5]]).tolist()
    assert "internal error" not in caplog.text
