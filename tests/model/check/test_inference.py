"""Strict inference of onnx on messages whose weights are empty reports errors of the model alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import sardonyx


@pytest.mark.parametrize("count", [200, 20_000])
@pytest.mark.parametrize("wrong", [False, True])
def test_many_indices_into_a_vector_are_no_error(count: int, wrong: bool) -> None:
    """Data propagation of Gather asks for the elements of the indices."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 18]>
        g (float[300] x) => (float[{count + wrong}] y) {{ z = Gather(x, indices)  y = Neg(z) }}"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(count, np.int64), "indices"))
    for source in (model, sardonyx.load(model), model.SerializeToString()):
        errors = [finding for finding in sardonyx.check(source) if finding.severity == "error"]
        assert [finding.code for finding in errors] == (["shape-mismatch"] if wrong else [])
