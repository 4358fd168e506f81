"""Models with faults that do not affect the outputs: sessions run them, compiled before the call or not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx.errors import InvalidModelError
from sardonyx.runtime import Session

UNUSED_BRANCHES = """<ir_version: 8, opset_import: ["": 17]>
g (float[4] x) => (float[4] y) <bool c = {1}> {
  y = Abs(x)
  unused = If (c) <then_branch = t () => (float[4] a) { a = Relu(x) },
                   else_branch = e () => (float[4] b) { b = Neg(x) }>
}"""

NAME_DEFINED_TWICE = """<ir_version: 8, opset_import: ["": 17]>
g (float[4] x) => (float[4] y) { a = Relu(x) a = Neg(x) y = Abs(a) }"""

MODES = ["background", "wait", "off"]


def _without_operator_set() -> onnx.ModelProto:
    model = onnx.parser.parse_model(UNUSED_BRANCHES)
    del model.graph.node[1]
    model.ClearField("opset_import")
    return model


@pytest.mark.parametrize("compiling", MODES)
@pytest.mark.parametrize(
    "model", [onnx.parser.parse_model(UNUSED_BRANCHES), _without_operator_set()], ids=["unused If", "no operator set"]
)
@pytest.mark.filterwarnings("ignore:the model is not compiled")
def test_a_fault_without_effect_is_tolerated_by_every_mode(model: onnx.ModelProto, compiling: str) -> None:
    x = np.array([-1.0, 0.0, 2.0, -3.5], np.float32)
    (y,) = Session(model.SerializeToString(), compile=compiling).run(None, {"x": x})
    np.testing.assert_array_equal(y, np.abs(x))


@pytest.mark.parametrize("compiling", MODES)
def test_a_name_defined_twice_is_refused_with_a_remedy(compiling: str) -> None:
    model = onnx.parser.parse_model(NAME_DEFINED_TWICE).SerializeToString()
    with pytest.raises(InvalidModelError, match=r"'a' is already used by another value\. Rename one of them"):
        Session(model, compile=compiling)
