"""Gradients of operators with attributes equal those of torch.autograd in float64, at kinks and ties too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.core.transform.differentiation import gradient
from sardonyx.train.step.forward import trace_graph
from tests.core.programs import computed
from tests.train.operator_gradients import total_of

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
F = torch.nn.functional

pytestmark = pytest.mark.long

HEAD = '<ir_version: 10, opset_import: ["": 23]>'


class Twin(NamedTuple):
    """A graph and the same function of torch.

    Attributes:
        name: The label of the test.
        nodes: Nodes in ONNX's text, from ``a``, ``b``, ``c`` to ``y``.
        shapes: Sizes of the inputs.
        function: The function of torch.
        rounded: If True, inputs are small integers, so that ties and kinks occur.
    """

    name: str
    nodes: str
    shapes: list[tuple[int, ...]]
    function: Callable[..., Any]
    rounded: bool = False


def _one(name: str, nodes: str, function: Callable[..., Any], *shapes: tuple[int, ...], rounded: bool = False) -> Twin:
    return Twin(name, nodes, list(shapes) or [(3, 4)], function, rounded)


TWINS = [
    _one("add broadcast", "y = Add (a, b)", lambda a, b: a + b, (2, 3, 4), (3, 1)),
    _one("sub broadcast", "y = Sub (a, b)", lambda a, b: a - b, (4,), (2, 3, 4)),
    _one("mul broadcast", "y = Mul (a, b)", lambda a, b: a * b, (2, 1, 4), (3, 4)),
    _one("div broadcast", "y = Div (a, b)", lambda a, b: a / b, (2, 3), (1,)),
    _one("square", "k = Constant <value_float = 2.0> () y = Pow (a, k)", lambda a: a**2, rounded=True),
    _one("maximum of three", "y = Max (a, b, c)",
         lambda a, b, c: torch.maximum(torch.maximum(a, b), c), (3,), (3,), (3,)),
    _one("matmul of stacks", "y = MatMul (a, b)", torch.matmul, (2, 1, 3, 4), (5, 4, 2)),
    _one("matmul of a vector", "y = MatMul (a, b)", torch.matmul, (4,), (2, 4, 3)),
    _one("gemm", "y = Gemm <alpha = 0.5, beta = 2.0, transA = 1, transB = 1> (a, b, c)",
         lambda a, b, c: 0.5 * a.T @ b.T + 2 * c, (4, 3), (2, 4), (2,)),
    _one("einsum", 'y = Einsum <equation = "bij,bjk->bik"> (a, b)',
         lambda a, b: torch.einsum("bij,bjk->bik", a, b), (2, 3, 4), (2, 4, 2)),
    _one("relu at zero", "y = Relu (a)", torch.relu, rounded=True),
    _one("leaky relu", "y = LeakyRelu <alpha = 0.25> (a)", lambda a: F.leaky_relu(a, 0.25)),
    _one("elu", "y = Elu <alpha = 1.5> (a)", lambda a: F.elu(a, 1.5)),
    _one("gelu", "y = Gelu (a)", F.gelu),
    _one("gelu tanh", 'y = Gelu <approximate = "tanh"> (a)', lambda a: F.gelu(a, approximate="tanh")),
    _one("mish", "y = Mish (a)", F.mish),
    _one("softplus", "y = Softplus (a)", F.softplus),
    _one("softsign", "y = Softsign (a)", F.softsign),
    _one("hardswish", "y = HardSwish (a)", F.hardswish),
    _one("prelu", "y = PRelu (a, b)", lambda a, b: torch.where(a > 0, a, a * b), (2, 3, 4), (3, 1)),
    _one("softmax", "y = Softmax <axis = 0> (a)", lambda a: a.softmax(0)),
    _one("log softmax", "y = LogSoftmax <axis = -1> (a)", lambda a: a.log_softmax(-1)),
    _one("absolute at zero", "y = Abs (a)", torch.abs, rounded=True),
    _one("clip at the limits",
         "l = Constant <value = double {-1}> () h = Constant <value = double {1}> () y = Clip (a, l, h)",
         lambda a: a.clamp(-1, 1)),
    _one("mean", "k = Constant <value_ints = [0, 2]> () y = ReduceMean <keepdims = 0> (a, k)",
         lambda a: a.mean((0, 2)), (2, 3, 4)),
    _one("product", "k = Constant <value_ints = [1]> () y = ReduceProd (a, k)", lambda a: a.prod(1, keepdim=True)),
    _one("norm 1", "k = Constant <value_ints = [-1]> () y = ReduceL1 (a, k)", lambda a: a.abs().sum(-1, True)),
    _one("norm 2 of zeros", "k = Constant <value_ints = [-1]> () y = ReduceL2 (a, k)",
         lambda a: a.norm(dim=-1, keepdim=True), (9, 1), rounded=True),
    _one("norm 2", "k = Constant <value_ints = [-1]> () y = ReduceL2 (a, k)", lambda a: a.norm(dim=-1, keepdim=True)),
    _one("log sum exp",
         "k = Constant <value_ints = [1]> () y = ReduceLogSumExp (a, k)", lambda a: a.logsumexp(1, True)),
    _one("cumulative sum", "k = Constant <value = int64 {1}> () y = CumSum (a, k)", lambda a: a.cumsum(1)),
    _one("convolution", "y = Conv <strides = [2, 1], pads = [1, 2, 1, 2], dilations = [1, 2], group = 2> (a, b, c)",
         lambda a, b, c: F.conv2d(a, b, c, (2, 1), (1, 2), (1, 2), 2), (2, 4, 6, 7), (4, 2, 3, 3), (4,)),
    _one("depthwise", "y = Conv <pads = [1, 1, 1, 1], group = 3> (a, b)",
         lambda a, b: F.conv2d(a, b, padding=1, groups=3), (2, 3, 5, 5), (3, 1, 3, 3)),
    _one("convolution in 1 and 3 dimensions", "y = Conv <pads = [1, 0, 1, 1, 0, 1]> (a, b)",
         lambda a, b: F.conv3d(a, b, padding=(1, 0, 1)), (1, 2, 4, 3, 4), (2, 2, 3, 2, 3)),
    _one("transposed convolution",
         "y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]> (a, b)",
         lambda a, b: F.conv_transpose2d(a, b, stride=2, padding=1, output_padding=1), (2, 3, 4, 4), (3, 2, 3, 3)),
    _one("max pool", "y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (a)",
         lambda a: F.max_pool2d(a, 3, 2, 1), (2, 2, 7, 7)),
    _one("max pool with ties", "y = MaxPool <kernel_shape = [2, 2], strides = [1, 1]> (a)",
         lambda a: F.max_pool2d(a, 2, 1), (1, 2, 5, 5), rounded=True),
    _one("average pool", "y = AveragePool <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 1, 0]> (a)",
         lambda a: F.avg_pool2d(a, (3, 2), 2, (1, 0), count_include_pad=False), (2, 2, 7, 6)),
    _one("layer normalization", "y = LayerNormalization <axis = -1, stash_type = 11> (a, b, c)",
         lambda a, b, c: F.layer_norm(a, (4,), b, c), (2, 3, 4), (4,), (4,)),
    _one("instance normalization", "y = InstanceNormalization (a, b, c)",
         lambda a, b, c: F.instance_norm(a, weight=b, bias=c), (2, 3, 4), (3,), (3,)),
    _one("batch statistics",
         "m = Constant <value = double[3] {0.0, 0.0, 0.0}> () v = Constant <value = double[3] {1.0, 1.0, 1.0}> ()"
         " y, m2, v2 = BatchNormalization <training_mode = 1> (a, b, c, m, v)",
         lambda a, b, c: F.batch_norm(a, None, None, b, c, training=True), (4, 3, 2, 2), (3,), (3,)),
    _one("transpose", "y = Transpose <perm = [2, 0, 1]> (a)", lambda a: a.permute(2, 0, 1), (2, 3, 4)),
    _one("pad by reflection", 'k = Constant <value_ints = [0, 2, 0, 1]> () y = Pad <mode = "reflect"> (a, k)',
         lambda a: F.pad(a[None], (2, 1), mode="reflect")[0], (3, 5)),
    _one("top k", "k = Constant <value_ints = [2]> () y, i = TopK (a, k)", lambda a: a.topk(2).values, (3, 5)),
    _one("gather elements", "k = Constant <value = int64[2, 2] {0, 1, 2, 2}> () y = GatherElements <axis = 1> (a, k)",
         lambda a: torch.gather(a, 1, torch.tensor([[0, 1], [2, 2]])), (2, 3)),
    _one("scatter elements with sums",
         'k = Constant <value = int64[1, 3] {0, 1, 1}> () y = ScatterElements <axis = 1, reduction = "add"> (a, k, b)',
         lambda a, b: a.scatter_add(1, torch.tensor([[0, 1, 1]]), b), (1, 4), (1, 3)),
    _one("resize", 's = Constant <value_ints = [1, 2, 7, 9]> () y = Resize <mode = "linear"> (a, , , s)',
         lambda a: F.interpolate(a, (7, 9), mode="bilinear", align_corners=False), (1, 2, 4, 5)),
    _one("resize cubic",
         's = Constant <value_ints = [1, 1, 7, 9]> () y = Resize <mode = "cubic", cubic_coeff_a = -0.75> (a, , , s)',
         lambda a: F.interpolate(a, (7, 9), mode="bicubic", align_corners=False), (1, 1, 4, 5)),
    _one("grid sample", 'y = GridSample <mode = "linear", align_corners = 1> (a, b)',
         lambda a, b: F.grid_sample(a, b, align_corners=True), (1, 2, 4, 4), (1, 3, 3, 2)),
    _one("attention", "y = Attention (a, b, c)", F.scaled_dot_product_attention,
         (2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    _one("determinant", "y = Det (a)", torch.linalg.det, (2, 3, 3)),
    _one("where", "k = Constant <value = bool[3] {1, 0, 1}> () y = Where (k, a, b)",
         lambda a, b: torch.where(torch.tensor([True, False, True]), a, b), (3,), (2, 3)),
    _one("split and concatenate", "p, q = Split <axis = 1, num_outputs = 2> (a) y = Concat <axis = 0> (q, p, q)",
         lambda a: torch.cat([a[:, 2:], a[:, :2], a[:, 2:]])),
    _one("tile", "k = Constant <value_ints = [2, 3]> () y = Tile (a, k)", lambda a: a.tile(2, 3)),
    _one("expand", "k = Constant <value_ints = [2, 3, 4]> () y = Expand (a, k)", lambda a: a.expand(2, 3, 4), (3, 1)),
    _one("triangle", "y = Trilu <upper = 0> (a)", torch.tril, (2, 3, 3)),
]  # fmt: skip


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_gradients_equal_those_of_torch(twin: Twin) -> None:
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape) for shape in twin.shapes]
    if twin.rounded:
        arrays = [np.round(array) for array in arrays]
    inputs = ", ".join(
        f"double[{', '.join(map(str, shape))}] {name}" for name, shape in zip("abc", twin.shapes, strict=False)
    )
    model = onnx.parser.parse_model(f"{HEAD} g ({inputs}) => (double[] y) {{ {twin.nodes} }}")
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    total = total_of(trace_graph(sardonyx.load(model)))
    assert total is not None
    actual = computed(gradient(total), arrays)
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    y = twin.function(*tensors)
    loss = (y * torch.cos(torch.arange(y.numel(), dtype=torch.float64)).reshape(y.shape)).sum()
    loss.backward()
    np.testing.assert_allclose(actual[0], loss.detach().numpy(), rtol=1e-10, atol=1e-10)
    for ours, tensor in zip(actual[1:], tensors, strict=True):
        np.testing.assert_allclose(ours, tensor.grad.numpy(), rtol=1e-9, atol=1e-9)
