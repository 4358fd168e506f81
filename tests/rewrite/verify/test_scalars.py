"""Inputs without axes are drawn as arrays: engines take nothing else."""

from __future__ import annotations

import onnx
import pytest

import sardonyx


@pytest.mark.parametrize("kind", ["float", "double", "int64", "bool"])
def test_a_model_of_scalars_is_proved(kind: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g ({kind} x) => ({kind} y) {{
            a = Identity (x)
            y = Identity (a)
        }}""")
    assert sardonyx.optimize(model).report.verdict.status == "proved"
