"""Generated modules: readable source, names of the model, control flow, gradients, and capture by torch.export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.train.gradient import gradient

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

LAYERS = """<ir_version: 9, opset_import: ["": 20]> net (float[N, 3, H, W] x) => (float[N, 10] y)
{
   conv = Conv <pads = [1, 1, 1, 1]> (x, block.0.conv.weight, block.0.conv.bias)
   relu = Relu(conv)
   pooled = GlobalAveragePool(relu)
   flat = Flatten(pooled)
   y = Gemm <transB = 1> (flat, head.weight, head.bias)
}"""

BRANCH = """<ir_version: 9, opset_import: ["": 20]> net (float[N] x) => (float[N] y)
{
   total = ReduceSum <keepdims = 0> (x)
   zero = Constant <value = float {0}> ()
   positive = Greater(total, zero)
   y = If (positive) <
      then_branch = first () => (float[N] a) { a = Neg(x) },
      else_branch = second () => (float[N] b) { b = Exp(x) }
   >
}"""

LOOP = """<ir_version: 9, opset_import: ["": 20]>
net (float[T, 4] x, float[4] start) => (float[4] last, float[T, 4] steps)
{
   last, steps = Scan <num_scan_inputs = 1, body = step (float[4] s, float[4] row) => (float[4] next, float[4] out) {
      sum = Add(s, row)
      next = Tanh(sum)
      out = Mul(next, row)
   }> (start, x)
}"""

CONTRIBUTED = """<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1]>
net (float[N, 8] x, float[8] b) => (float[N, 8] y)
{ y = com.microsoft.BiasGelu(x, b) }"""

RECURRENT = """<ir_version: 9, opset_import: ["": 20]> net (float[T, N, 3] x) => (float[T, 2, N, 4] y, float[2, N, 4] h)
{ y, h = LSTM <hidden_size = 4, direction = "bidirectional"> (x, w, r, b) }"""


def model(text: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    """Return a model with drawn weights, whose names have `__` for dots."""
    for name in weights:
        text = text.replace(name.replace("__", "."), name)
    proto = onnx.parser.parse_model(text)
    generator = np.random.default_rng(0)
    for name, shape in weights.items():
        array = generator.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    for name in weights:
        for node in proto.graph.node:
            node.input[:] = [name.replace("__", ".") if one == name else one for one in node.input]
    for tensor in proto.graph.initializer:
        tensor.name = tensor.name.replace("__", ".")
    return proto


def layers() -> onnx.ModelProto:
    return model(
        LAYERS,
        block__0__conv__weight=(8, 3, 3, 3),
        block__0__conv__bias=(8,),
        head__weight=(10, 8),
        head__bias=(10,),
    )


def source_of(proto: onnx.ModelProto, folder: Path) -> str:
    result = sardonyx.convert_to(proto, "torch")
    assert result.report.verdict.status == "proved", result.report
    result.save(folder / "net.py")
    return (folder / "net.py").read_text()


def test_source_reads_like_a_written_module(tmp_path: Path) -> None:
    text = source_of(layers(), tmp_path)
    forward = text[text.index("    def forward(self, x):\n") : text.index("\n\n\ndef load")]
    assert forward.splitlines()[1:] == [
        "        N = x.shape[0]",
        "        conv = F.conv2d(x, self.block[0].conv.weight, self.block[0].conv.bias, padding=1)",
        "        relu = torch.relu(conv)",
        "        pooled = torch.mean(relu, dim=(2, 3), keepdim=True)",
        "        flat = pooled.reshape((N, 8))",
        "        y = F.linear(flat, self.head.weight, self.head.bias)",
        "        return y",
    ]


def test_parameters_have_the_names_of_the_model() -> None:
    module = sardonyx.convert_to(layers(), "torch").artifact
    names = {name for name, _ in module.named_parameters()}
    assert names == {"block.0.conv.weight", "block.0.conv.bias", "head.weight", "head.bias"}


def test_control_flow_is_that_of_python(tmp_path: Path) -> None:
    branch = source_of(onnx.parser.parse_model(BRANCH), tmp_path)
    assert "        if positive:\n" in branch and "        else:\n" in branch
    assert "for step in range(" in source_of(onnx.parser.parse_model(LOOP), tmp_path)


def test_operators_of_onnx_runtime_are_written_by_definition() -> None:
    report = sardonyx.convert_to(onnx.parser.parse_model(CONTRIBUTED), "torch").report
    assert report.verdict.status == "proved"


def test_recurrent_layers_are_those_of_torch() -> None:
    report = sardonyx.convert_to(model(RECURRENT, w=(2, 16, 3), r=(2, 16, 4), b=(2, 32)), "torch").report
    assert report.verdict.status == "proved"
    assert report.forms["LSTM → torch.lstm"] == 1


def test_gradients_reach_every_parameter_and_equal_our_own() -> None:
    proto = layers()
    module = sardonyx.convert_to(proto, "torch").artifact
    x = np.random.default_rng(1).standard_normal((2, 3, 6, 5)).astype(np.float32)
    names = [name for name, _ in module.named_parameters()]
    summed = onnx.ModelProto()
    summed.CopyFrom(proto)
    summed.graph.node.add(op_type="ReduceSum", input=["y"], output=["loss"]).attribute.append(
        onnx.helper.make_attribute("keepdims", 0)
    )
    del summed.graph.output[:]
    summed.graph.output.append(onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    ours = sardonyx.run(gradient(sardonyx.load(summed), wrt=names), {"x": x})
    module(torch.from_numpy(x)).sum().backward()
    for name, parameter in module.named_parameters():
        (expected,) = [array for output, array in ours.items() if name in output]
        np.testing.assert_allclose(parameter.grad.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_torch_export_captures_open_sizes() -> None:
    module = sardonyx.convert_to(layers(), "torch").artifact
    sizes = ({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},)
    program = torch.export.export(module, (torch.zeros(2, 3, 8, 9),), dynamic_shapes=sizes)
    x = torch.randn(3, 3, 5, 6)
    torch.testing.assert_close(program.module()(x), module(x))


def test_a_difference_is_located_at_the_first_wrong_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.export.torch import operators

    monkeypatch.setitem(operators.OPERATOR_FORMS, "Relu", lambda call: f"torch.abs({call.text(0)})")
    report = sardonyx.convert_to(layers(), "torch").report
    assert report.verdict.status == "different"
    assert report.guilty.startswith("variable relu: 'relu' differs")


def test_names_that_are_no_identifiers_are_replaced(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Add", ["class", 'a"/b:0'], ["for"])
    info = [onnx.helper.make_tensor_value_info(name, 1, ["N"]) for name in ("class", 'a"/b:0', "for")]
    graph = onnx.helper.make_graph([node], 'g"', info[:2], info[2:])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    assert "def forward(self, class_, a_b_0):" in source_of(proto, tmp_path)
