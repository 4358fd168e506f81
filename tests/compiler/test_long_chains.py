"""Long chains of functions and movements are cut into kernels, not left to the interpreter."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx import Session

CHAINS = {
    "functions": ["Abs", "Neg", "Add"],
    "functions of one value twice": ["Tanh", "Mul"],
    "functions and movements": ["Unsqueeze", "Abs", "Squeeze", "Neg"],
    "movements": ["Transpose", "Flatten"],
}


def chain(operators: list[str], length: int) -> onnx.ModelProto:
    constants = {"c": np.arange(6, dtype=np.float32).reshape(2, 3), "axis": np.array([0])}
    second = {"Add": "c", "Unsqueeze": "axis", "Squeeze": "axis"}
    nodes = []
    for number in range(length):
        name = operators[number % len(operators)]
        x = f"v{number - 1}" if number else "x"
        others = [x] if name == "Mul" else [second[name]] if name in second else []
        nodes.append(helper.make_node(name, [x, *others], [f"v{number}"]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", "M"]) for name in ("x", f"v{length - 1}"))
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    imports = [helper.make_opsetid("", 18)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=imports, ir_version=8)


@pytest.mark.parametrize("operators", CHAINS.values(), ids=CHAINS)
def test_a_chain_of_a_thousand_nodes_is_compiled(operators: list[str]) -> None:
    model = chain(operators, 1200)
    session = Session(model, compile="wait", threads=1)
    assert {node.provider for node in session.placement} == {"native"}
    x = np.full((2, 3), 0.5, np.float32)
    expected = Session(model, compile="off").run(None, {"x": x})
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected[0], rtol=1e-4)
