"""Constants and loops whose length a file states are bounded in conversions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.errors import UnsupportedError

HUGE = {
    "wrap": (
        "g (float[4] x) => (y) <int64[2] pads = {1, 1099511627776}> { y = Pad <mode = 'wrap'> (x, pads) }", 19, 18,
    ),
    "empty wrap": ("g (float[0] x) => (y) <int64[2] pads = {1, 1}> { y = Pad <mode = 'wrap'> (x, pads) }", 19, 18),
    "steps": (
        "g (float[1099511627776] x) => (y) <int64[1] a = {0}, int64[1] b = {1099511627776}, int64[1] s = {2}> "
        "{ y = Slice (x, a, b, a, s) }", 13, 9,
    ),
    "diagonal": ("g (float[1099511627776, 1099511627776] x) => (y) { y = Einsum <equation = 'ii->i'> (x) }", 13, 11),
    "running sum": (
        "g (float[1099511627776] x) => (y) <int64 axis = {0}> { y = CumSum (x, axis) }", 11, 9,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HUGE)
def test_sizes_of_a_file_do_not_decide_the_time_of_a_conversion(case: str) -> None:
    text, version, target = HUGE[case]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {version}]> {text}'.replace("'", '"'))
    with pytest.raises(UnsupportedError, match=r"expected at most|to wrap around"):
        sardonyx.convert_opset(sardonyx.load(model), target)


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("shape", [(0, 1, 3), (2, 0, 3), (2, 3, 0), (2, 3, 4)])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_flattened_softmax_has_its_sizes_back(operator: str, shape: tuple[int, ...], axis: int) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 7, opset_import: ["": 11]> g (float[a, b, c] x) => (y) {{ y = {operator} <axis = {axis}> (x) }}'
    )
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = sardonyx.Session(model, compile="off").run(None, {"x": x})[0]
    converted = sardonyx.convert_opset(sardonyx.load(model), 21)
    (actual,) = sardonyx.Session(converted, compile="off").run(None, {"x": x})
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
