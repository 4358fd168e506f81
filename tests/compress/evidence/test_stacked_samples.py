"""Samples are judged in one run if a model computes rows alone, and singly otherwise."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from sardonyx.compress.evidence import output_errors, record_outputs, record_stacked
from sardonyx.runtime.session import Session

RNG = np.random.default_rng(0)
SAMPLES = [{"x": RNG.standard_normal((1, 4)).astype(np.float32)} for _ in range(5)]


def session(body: str, size: str = "N") -> Session:
    text = f"""<ir_version: 9, opset_import: ["": 17]>
    g (float[{size},4] x) => (float[{size},4] y) {{ {body} }}"""
    return Session(onnx.parser.parse_model(text).SerializeToString(), compile="off")


def test_rows_that_are_computed_alone_are_one_sample_with_the_same_errors() -> None:
    before, after = session("y = Softmax(x)"), session("z = Floor(x) y = Softmax(z)")
    (stacked,), together = record_stacked(before, SAMPLES)
    assert stacked["x"].shape == (5, 4)
    (single,) = output_errors(record_outputs(before, SAMPLES), after, SAMPLES)
    (joined,) = output_errors(together, after, [stacked])
    assert joined.sqnr == pytest.approx(single.sqnr, rel=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        "m = ReduceMax<axes = [0], keepdims = 1>(x) y = Sub(x, m)",
        "s = Constant<value = int64[2] {1, 4}>() y = Reshape(x, s)",
        "y = Softmax<axis = 0>(x)",
    ],
)
def test_samples_of_models_that_mix_or_fix_rows_stay_single(body: str) -> None:
    assert record_stacked(session(body), SAMPLES)[0] is SAMPLES


def test_samples_of_fixed_or_unlike_sizes_stay_single() -> None:
    assert record_stacked(session("y = Relu(x)", "1"), SAMPLES)[0] is SAMPLES
    unlike = [*SAMPLES, {"x": np.zeros((2, 4), np.float32)}]
    assert record_stacked(session("y = Relu(x)"), unlike)[0] is unlike
    assert record_stacked(session("y = Relu(x)"), [])[0] == []
