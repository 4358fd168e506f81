"""Kernels of training: gradients of convolutions, sums of loops after the loop, updates with several results."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.program_checks import assert_close
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, Target, host
from sardonyx.compiler.tiling.convolution import ConvolutionProblem, choose_convolution
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import apply
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, function
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.core.transform.differentiation import gradient
from sardonyx.core.transform.simplify import simplify

pytestmark = pytest.mark.sampled

N = Dim.symbol("N")

# Batch, channels, filters, size, taps, stride, padding, groups, dilation.
CASES = {
    "one channel": (3, 1, 6, 12, 5, 1, 2, 1, 1),
    "two panels of filters": (2, 5, 40, 9, 3, 1, 1, 1, 1),
    "strides": (2, 3, 20, 13, 3, 2, 1, 1, 1),
    "groups": (2, 4, 6, 11, 3, 1, 1, 2, 1),
    "dilation": (2, 2, 3, 15, 3, 1, 2, 1, 2),
    "pointwise": (2, 30, 17, 8, 1, 1, 0, 1, 1),
    "many taps": (2, 2, 20, 14, 7, 2, 3, 1, 1),
    "tiles of Winograd": (2, 33, 40, 14, 3, 1, 1, 1, 1),
    "few positions": (3, 24, 40, 4, 3, 1, 1, 1, 1),
    "few positions, many weights": (3, 64, 72, 4, 3, 1, 1, 1, 1),
    "few positions, strides": (3, 40, 96, 5, 3, 2, 1, 1, 1),
}


def convolution(case: tuple[int, ...], *, blocked: bool = False, dtype: t.DType = t.FLOAT) -> Function:
    """Return the gradients of a convolution by image and weights, and its result, for an open batch."""
    _, channels, filters, size, taps, stride, low, groups, dilation = case
    count = (size + 2 * low - dilation * (taps - 1) - 1) // stride + 1

    def convolve(x: Tensor, w: Tensor) -> Tensor:
        image = L.permute(L.reshape(x, (x.shape[0], groups, channels, size, size)), [1, 0, 2, 3, 4])
        y = apply(
            "convolve", image, L.reshape(w, (groups, filters, channels, taps, taps)), strides=(stride, stride),
            padding=((low, low),) * 2, base_dilation=(1, 1), kernel_dilation=(dilation, dilation), dtype=dtype,
        )  # fmt: skip
        return L.reshape(L.permute(y, [1, 0, 2, 3, 4]), (x.shape[0], groups * filters, count, count))

    def body(x: Tensor, w: Tensor, dy: Tensor) -> list[Tensor]:
        # A pointwise function makes images that only kernels of convolutions read, in blocks of channels.
        y = convolve(L.maximum(x * 2, 0) if blocked else x, w)
        return [L.reduce_sum(L.tanh(y) * dy, [0, 1, 2, 3]), y]

    shapes = [
        (N, groups * channels, size, size),
        (groups * filters, channels, taps, taps),
        (N, groups * filters, count, count),
    ]
    traced = trace("f", body, [TensorType(dtype, shape) for shape in shapes])
    whole = simplify(gradient(simplify(traced), [0, 1]))
    return function("gradients", whole.inputs, whole.results[1:], whole.level)


def arrays_of(inner: Function, batch: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = []
    for value in inner.inputs:
        assert isinstance(value.type, TensorType)
        shape = [batch if isinstance(size, Dim) else size for size in value.type.shape or ()]
        # Small numbers: the hyperbolic tangent of large sums would amplify their roundings.
        arrays.append((0.2 * rng.standard_normal(shape)).astype(value.type.dtype.numpy()))
    return arrays


@pytest.mark.parametrize("target", [host(), NAMED["avx2"]], ids=lambda target: target.name)
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_convolutions_equal_the_interpreter(case: str, target: Target) -> None:
    if target.name == "avx2" and not host().triple.startswith("x86_64"):
        pytest.skip("the processor is no x86-64")
    inner = convolution(CASES[case])
    program = Program.compile(inner, target=target, threads=2)
    assert not program.host
    for batch in (CASES[case][0], 1):
        arrays = arrays_of(inner, batch)
        assert_close(program.run(arrays), computed(inner, arrays))


@pytest.mark.parametrize("case", ["two panels of filters", "pointwise", "many taps"])
def test_gradients_read_images_in_blocks(case: str) -> None:
    inner = convolution(CASES[case], blocked=True)
    program = Program.compile(inner, threads=1)
    assert not program.host
    assert "weight gradient" in {launch.title for launch in program.launches}
    arrays = arrays_of(inner, 2)
    assert_close(program.run(arrays), computed(inner, arrays))


def test_computed_weights_are_transformed_for_winograd() -> None:
    inner = convolution(CASES["tiles of Winograd"])
    program = Program.compile(inner, threads=1)
    titles = [launch.title for launch in program.launches]
    assert sum(title.startswith("winograd") for title in titles) == 2
    assert titles.count("weights") == 2
    many = convolution((1, 40, 40, 40, 3, 1, 1, 1, 1))
    arrays = arrays_of(many, 1)
    assert_close(Program.compile(many, threads=2).run(arrays), computed(many, arrays))


def test_convolutions_of_thousands_of_computed_channels_are_direct() -> None:
    problem = ConvolutionProblem(
        1, 20_000, 64, 1, (3, 3), (1, 1), (1, 1), (1, 1), (14, 14), t.FLOAT, 1, 1, constant_weights=False
    )
    assert choose_convolution(problem, host()).schedule.algorithm == "direct"


def test_gradients_of_double_precision_are_products() -> None:
    inner = convolution(CASES["strides"], dtype=t.DOUBLE)
    program = Program.compile(inner, threads=1)
    assert "contract" in {launch.title for launch in program.launches}
    arrays = arrays_of(inner, 2)
    assert_close(program.run(arrays), computed(inner, arrays))


def test_gradients_are_equal_for_any_number_of_threads() -> None:
    inner = convolution(CASES["two panels of filters"])
    arrays = arrays_of(inner, 5)
    first, second = (Program.compile(inner, threads=threads).run(arrays) for threads in (1, 2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_small_images_with_many_weights_are_products() -> None:
    program = Program.compile(convolution(CASES["few positions, many weights"]), threads=1)
    titles = {launch.title for launch in program.launches}
    assert "contract" in titles
    assert not titles & {"direct convolution", "weights", "weight gradient"}


def recurrence(steps: int) -> Function:
    """Return the gradient of the last state of ``h = tanh(x[i] w + h u + b)`` by all inputs."""

    def body(x: Tensor, w: Tensor, u: Tensor, b: Tensor, h: Tensor) -> list[Tensor]:
        def once(i: Tensor, state: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
            row = apply("gather", x, L.reshape(i, (1,)), batch=0)
            product = L.contract(state, u, left=[1], right=[0], dtype=t.FLOAT)
            inner = L.contract(row, w, left=[1], right=[0], dtype=t.FLOAT)
            new = L.tanh(inner + product + L.broadcast_to(L.reshape(b, (1, 6)), inner.shape))
            return None, [new], []

        (last,), _ = L.loop(L.size_tensor([steps], ()), None, [h], once)
        return [L.reduce_sum(last * last, [0, 1])]

    shapes = [(steps, N, 4), (4, 6), (6, 6), (6,), (N, 6)]
    traced = trace("recurrence", body, [TensorType(t.FLOAT, shape) for shape in shapes])
    return simplify(gradient(simplify(traced)))


def test_gradients_of_weights_are_summed_after_the_loop() -> None:
    inner = recurrence(5)
    loops = [value for value in inner.values if value.op == "loop"]
    assert len(loops) == 2
    backward = loops[1].params["body"]
    carried = [value.type.shape for value in backward.inputs[2 : 2 + loops[1].params["carried"]]]
    assert carried == [(N, 6)]
    products = [value.type.shape for value in backward.values if value.op == "contract"]
    assert products == [(N, 6), (N, 4)]  # The cotangents of the state and of a row of x.
    program = Program.compile(inner, threads=1)
    assert program.in_one
    arrays = arrays_of(inner, 3)
    assert_close(program.run(arrays), computed(inner, arrays))


def test_an_update_with_several_results_is_one_kernel() -> None:
    def body(p: Tensor, m: Tensor, g: Tensor) -> list[Tensor]:
        new = 0.9 * m + 0.1 * g
        return [p - 0.5 * new / (L.sqrt(new * new) + 1e-3), new]

    shape = TensorType(t.FLOAT, (33, 17))
    inner = trace("update", body, [shape] * 3)
    program = Program.compile(inner, threads=2)
    assert [launch.title for launch in program.launches] == ["map"]
    arrays = arrays_of(inner, 1)
    assert_close(program.run(arrays), computed(inner, arrays))


@pytest.mark.parametrize("shape", [(64, 48, 40), (3, 48, 40), (64, 4, 40)])
def test_products_of_transposed_operands(shape: tuple[int, int, int]) -> None:
    k, m, n = shape

    def body(a: Tensor, b: Tensor) -> list[Tensor]:
        product = L.contract(a, b, left=[0, 1], right=[0, 1], dtype=t.FLOAT)
        return [product + 1, L.permute(product, [1, 0]) * 2, L.contract(a, b, left=[1], right=[1], dtype=t.FLOAT)]

    inner = simplify(trace("f", body, [TensorType(t.FLOAT, (N, k, m)), TensorType(t.FLOAT, (N, k, n))]))
    program = Program.compile(inner, threads=1)
    assert not program.host
    arrays = arrays_of(inner, 2)
    assert_close(program.run(arrays), computed(inner, arrays))


def test_what_readers_compute_in_few_operations_is_not_in_memory() -> None:
    """Of an activation ``erf(c x)`` the backward pass reads ``x`` in any case, and computes ``c x`` again."""

    def body(x: Tensor, w: Tensor) -> list[Tensor]:
        y = L.matmul(x, w)
        return [L.reduce_sum(L.matmul(y * (1 + L.erf(y * 0.7)), w), [0, 1])]

    types = [TensorType(t.FLOAT, (N, 32)), TensorType(t.FLOAT, (32, 32))]
    derived = simplify(gradient(simplify(trace("f", body, types)), [0, 1]))
    program = Program.compile(derived)
    (erf,) = (value for value in program.grouping.order if value.op == "erf")
    assert not program.in_memory(erf.operands[0])
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((40, 32), (32, 32))]
    assert_close(program.run(arrays), computed(derived, arrays))


def test_what_keeps_other_values_in_memory_is_stored() -> None:
    """Sums of a residual stream would be computed again from all layers before: each is stored."""

    def body(x: Tensor, w: Tensor) -> list[Tensor]:
        for _ in range(3):
            x = x + L.matmul(L.tanh(x), w)
        return [x]

    types = [TensorType(t.FLOAT, (N, 32)), TensorType(t.FLOAT, (32, 32))]
    program = Program.compile(simplify(trace("f", body, types)))
    sums = [value for value in program.grouping.order if value.op == "add"]
    assert len(sums) == 3
    assert all(map(program.in_memory, sums))


def test_readers_are_grouped_before_what_they_read() -> None:
    """The source of the repeated value ``0.7 y`` has an earlier reader, whose own readers have no group yet."""

    def body(x: Tensor, w: Tensor) -> list[Tensor]:
        y = L.matmul(x, w)
        first = L.tanh(L.permute(y, [1, 0])) + 1
        scaled = y * 0.7
        return [first, L.reduce_sum(L.tanh(scaled), [1]), L.reduce_max(scaled, [0]) * 2, L.exp(y)]

    traced = simplify(trace("f", body, [TensorType(t.FLOAT, (N, 32)), TensorType(t.FLOAT, (32, 32))]))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) * 0.3 for shape in ((40, 32), (32, 32))]
    for actual, expected in zip(Program.compile(traced).run(arrays), computed(traced, arrays), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ignored", [False, True])
def test_the_loss_of_a_step_is_that_of_its_forward_pass(ignored: bool) -> None:
    """Values that the backward pass reads too change nothing of the forward pass, in a net of residual blocks."""

    def convolved(x: Tensor, w: Tensor, stride: int) -> Tensor:
        y = apply(
            "convolve", L.permute(L.unsqueeze(x, [1]), [1, 0, 2, 3, 4]), L.unsqueeze(w, [0]), strides=(stride, stride),
            padding=((1, 1), (1, 1)), base_dilation=(1, 1), kernel_dilation=(1, 1), dtype=t.FLOAT,
        )  # fmt: skip
        y = L.squeeze(L.permute(y, [1, 0, 2, 3, 4]), [1])
        centered = y - L.reduce_mean(y, [0, 2, 3], keepdims=True)
        return centered / L.sqrt(L.reduce_mean(centered * centered, [0, 2, 3], keepdims=True) + 1e-5)

    def body(x: Tensor, w: Tensor, v: Tensor, labels: Tensor) -> list[Tensor]:
        for i in range(2):
            x = L.maximum(convolved(L.maximum(convolved(x, w, 1), 0), w, 1) + x, 0)
            x = L.maximum(convolved(x, w, 2), 0) if i == 0 else x
        logits = L.matmul(L.reduce_mean(x, [2, 3]), v)
        counted = L.cast(L.not_equal(labels, -100), t.FLOAT)
        chosen = L.squeeze(L.gather_elements(L.log_softmax(logits, 1), L.unsqueeze(L.maximum(labels, 0), [1]), 1), [1])
        return [L.reduce_sum(-chosen * counted, [0]) / L.reduce_sum(counted, [0])]

    shapes = [(N, 16, 8, 8), (16, 16, 3, 3), (16, 10)]
    types = [*(TensorType(t.FLOAT, shape) for shape in shapes), TensorType(t.INT64, (N,))]
    forward = simplify(trace("f", body, types))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 16, 8, 8), (16, 16, 3, 3), (16, 10))]
    arrays.append(np.array([3, 1, -100 if ignored else 2, 0]))
    whole = Program.compile(simplify(gradient(forward, [0, 1, 2]))).run(arrays)
    np.testing.assert_allclose(whole[0], Program.compile(forward).run(arrays)[0], rtol=1e-6)
    np.testing.assert_allclose(whole[0], computed(forward, arrays)[0], rtol=1e-5)
