"""Constants that are not the right factor of a plain product become integers too."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper, parser

import sardonyx
from sardonyx.compress.quantization import quantize
from sardonyx.compress.quantization.plain_forms import write_plain_forms
from sardonyx.compress.quantization.result import Mode
from sardonyx.model import load
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.runtime.session import Session

CASES = {
    "left factor": ("w[48, 64]", "float[N, 64, 7]", "float[N, 48, 7]", "MatMul(w, x)"),
    "left factors of a batch": ("w[3, 48, 64]", "float[3, 64, N]", "float[3, 48, N]", "MatMul(w, x)"),
    "right factors of a batch": ("w[3, 32, 48]", "float[3, N, 32]", "float[3, N, 48]", "MatMul(x, w)"),
    "right factor with an axis of one": ("w[1, 32, 48]", "float[2, N, 32]", "float[2, N, 48]", "MatMul(x, w)"),
    "Gemm with numbers": ("w[64, 48]", "float[64, N]", "float[N, 48]", "Gemm<alpha=2.0, beta=0.5, transA=1>(x, w)"),
    "Gemm with a left factor": ("w[64, 48]", "float[7, 64]", "float[48, 7]", "Gemm<transA=1, transB=1>(w, x)"),
    "Einsum with heads": (
        "w[32, 4, 12]", "float[2, N, 32]", "float[2, N, 4, 12]", 'Einsum<equation="abc,cde->abde">(x, w)',
    ),
    "Einsum that sums two axes": (
        "w[4, 12, 32]", "float[2, N, 4, 12]", "float[2, N, 32]", 'Einsum<equation="abcd,cde->abe">(x, w)',
    ),
    "Einsum with a batch": (
        "w[4, 16, 32]", "float[N, 4, 32]", "float[4, N, 16]", 'Einsum<equation="abc,bdc->bad">(x, w)',
    ),
    "Einsum with an ellipsis": (
        "w[48, 32]", "float[2, N, 32]", "float[2, N, 48]", 'Einsum<equation="dc,...c->...d">(w, x)',
    ),
    "FusedMatMul": (
        "w[48, 32]", "float[2, 32, N]", "float[2, N, 48]",
        "com.microsoft.FusedMatMul<transA=1, transB=1, alpha=0.5>(x, w)",
    ),
    "FusedMatMul with a left factor": (
        "w[32, 48]", "float[2, N, 32]", "float[2, 48, N]", "com.microsoft.FusedMatMul<transA=1, transB=1>(w, x)",
    ),
    "FusedConv": (
        "w[16, 3, 3, 3]", "float[1, 3, 9, N]", "float[1, 16, 7, M]",
        'com.microsoft.FusedConv<activation="LeakyRelu", activation_params=[0.1]>(x, w)',
    ),
    "FusedGemm": (
        "w[48, 64]", "float[N, 64]", "float[N, 48]",
        'com.microsoft.FusedGemm<transB=1, alpha=0.5, activation="LeakyRelu", activation_alpha=0.2>(x, w)',
    ),
    "Attention": ("w[48, 144]", "float[2, N, 48]", "float[2, N, 48]", "com.microsoft.Attention<num_heads=4>(x, w, b)"),
    "transposed convolution with groups": (
        "w[16, 4, 2, 2]", "float[1, 16, 4, N]", "float[1, 8, 8, M]", "ConvTranspose<strides=[2, 2], group=2>(x, w)",
    ),
}  # fmt: skip


def network(name: str) -> tuple[bytes, list[dict[str, np.ndarray]]]:
    weight, x, y, product = CASES[name]
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> m ({x} x) => ({y} y) {{ y = {product} }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    shape = [int(size) for size in weight[2:-1].split(",")]
    scale = 1 / np.sqrt(np.prod(shape) / max(shape))
    model.graph.initializer.append(
        numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), "w")
    )
    if ", b" in product:
        bias = rng.standard_normal(shape[-1]).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(bias, "b"))
    model.graph.node[0].name = "product"
    sizes = [7 if size.strip() in "NM" else int(size) for size in x[6:-1].split(",")]
    samples = [{"x": rng.standard_normal(sizes).astype(np.float32)} for _ in range(8)]
    return model.SerializeToString(), samples


WITHOUT_RANGES: tuple[Mode, ...] = ("dynamic", "weights")
UNCHANGED = ("transposed convolution with groups", "right factors of a batch")
MODES: list[tuple[str, Mode]] = [(name, mode) for name in CASES for mode in WITHOUT_RANGES]
MODES += [(name, "static") for name in ("left factor", *UNCHANGED)]


@pytest.mark.parametrize("name", [name for name in CASES if name not in UNCHANGED])
def test_plain_forms_equal_the_nodes_that_they_replace(name: str) -> None:
    model, samples = network(name)
    plain = load(model)
    infer_shapes(plain)
    assert write_plain_forms(plain)
    proto = sardonyx.to_proto(plain)
    onnx.checker.check_model(proto, full_check=True)
    expected = onnxruntime.InferenceSession(model).run(None, samples[0])[0]
    actual = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, samples[0])[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_the_constant_becomes_integers_and_engines_agree(name: str, mode: Mode) -> None:
    model, samples = network(name)
    result = quantize(model, samples if mode == "static" else None, mode=mode)
    assert not result.report.floats
    assert any(
        value.dtype in (ir.DataType.INT8, ir.DataType.UINT8) for value in result.model.graph.initializers.values()
    )
    assert max(tensor.size for tensor in floats(result.model)) < 256, "the constant is stored as floats"
    data = sardonyx.to_proto(result.model).SerializeToString()
    expected = onnxruntime.InferenceSession(model).run(None, samples[0])[0]
    actual = onnxruntime.InferenceSession(data).run(None, samples[0])[0]
    error = np.square(actual - expected).sum() / np.square(expected).sum()
    assert error < 10**-2.8
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    written = onnxruntime.InferenceSession(data, options).run(None, samples[0])[0]
    own = Session(data, compile="off").run(None, samples[0])[0]
    assert np.square(own - written).sum() / np.square(expected).sum() < 1e-6


def floats(model: ir.Model) -> list[np.ndarray]:
    tensors = [value.const_value for value in model.graph.initializers.values()]
    return [tensor.numpy() for tensor in tensors if tensor is not None and tensor.dtype == ir.DataType.FLOAT]


def test_a_constant_without_a_form_of_integers_is_reported_with_the_reason() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    m (float[2, N, 8] x, float[N, 64] z) => (float[2, 8, 512] y, float[N, 4] v) {
        y = Einsum<equation="abc,abd->acd">(x, w)
        v = MatMul(z, u)
    }"""
    model = parser.parse_model(text)
    for name, shape in (("w", (2, 5, 512)), ("u", (64, 4))):
        values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    model.graph.node[0].name = "sum"
    report = quantize(model).report
    assert [(node.name, node.reason) for node in report.floats] == [
        ("sum", "input 1 of Einsum has no form of integers")
    ]
