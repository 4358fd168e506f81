"""Training with products in bfloat16: curves next to torch's autocast, float32 state, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import train
from sardonyx.core.ir import types as t
from sardonyx.errors import OptionError
from tests.train.networks import classifier, images, regression

STEPS = 30


def losses(model: bytes, loss: str, data: list[dict[str, np.ndarray]], **options: Any) -> list[float]:
    trainer = train.Trainer(model, loss, train.SGD(0.1, momentum=0.9), **options)
    return [trainer.step(data[i % len(data)]) for i in range(STEPS)]


def weights_of(model: bytes) -> dict[str, np.ndarray]:
    return {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load_from_string(model).graph.initializer}


def rows(count: int = 64) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    return [
        {"x": rng.standard_normal((count, 4), np.float32), "labels": rng.standard_normal((count, 2), np.float32)}
        for _ in range(3)
    ]


@pytest.mark.parametrize("network", ["convolutions", "product"])
def test_curves_follow_autocast_of_torch(network: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: no autocast to compare with")
    F = torch.nn.functional
    model = classifier() if network == "convolutions" else regression()
    data = [images(48, i) for i in range(3)] if network == "convolutions" else rows()
    w = {name: torch.nn.Parameter(torch.from_numpy(array.copy())) for name, array in weights_of(model).items()}

    def loss_of(batch: dict[str, Any]) -> Any:
        if network == "product":
            return F.mse_loss(torch.matmul(batch["x"], w["w"]).float() + w["b"], batch["labels"])
        r1 = F.relu(F.conv2d(batch["image"], w["conv1.weight"], w["conv1.bias"], padding=1))
        r2 = F.relu(F.conv2d(F.max_pool2d(r1, 2), w["conv2.weight"], padding=1))
        return F.cross_entropy(F.linear(r2.mean((2, 3)), w["head.weight"], w["head.bias"]).float(), batch["labels"])

    optimizer = torch.optim.SGD(list(w.values()), 0.1, momentum=0.9)
    expected = []
    for i in range(STEPS):
        batch = {name: torch.from_numpy(array) for name, array in data[i % len(data)].items()}
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    name = "cross-entropy" if network == "convolutions" else "mse"
    actual = losses(model, name, data, precision="bf16")
    assert expected[-1] < 0.9 * expected[0]
    np.testing.assert_allclose(actual, expected, rtol=2e-2)


def test_products_are_narrow_and_the_state_is_float32() -> None:
    trainer = train.Trainer(regression(), "mse", train.SGD(0.1), precision="bf16")
    whole = train.Trainer(regression(), "mse", train.SGD(0.1))
    assert trainer.plan.gradients is not None
    products = [value for value in trainer.plan.gradients.values if value.op == "contract"]
    assert len(products) == 2  # The product, and the gradient of its weight.
    assert all(operand.type.dtype == t.BFLOAT16 for value in products for operand in value.operands)  # type: ignore[union-attr]
    assert all(array.dtype == np.float32 for array in trainer.state().values())
    for batch in rows():
        trainer.step(batch)
        whole.step(batch)
    for name, array in whole.state().items():
        np.testing.assert_allclose(trainer.state()[name], array, rtol=0.05, atol=0.01)


def test_unknown_precisions_are_refused() -> None:
    with pytest.raises(OptionError, match="float16"):
        train.Trainer(regression(), "mse", precision="float16")  # type: ignore[arg-type]


def double_product() -> onnx.ModelProto:
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (double[N, 2] x) => (double[N, 1] y) <double[2, 1] w = {0.0, 0.0}> { y = MatMul(x, w) }"""
    return onnx.parser.parse_model(text)


def double_step(scale: float, **options: Any) -> np.ndarray:
    """Return the weights after a step of SGD by the mean of squares, from weights of zero."""
    trainer = train.Trainer(double_product(), "mse", train.SGD(0.1), **options)
    x = np.array([[0.3, 0.7]]) * scale
    for _ in range(options.get("accumulate", 1)):
        trainer.step({"x": x, "labels": np.full((1, 1), scale)})
    return trainer.state()["parameter:w"].ravel()


@pytest.mark.parametrize("accumulate", [1, 3])
def test_lengths_of_double_gradients_are_double(accumulate: int) -> None:
    gradient = -2 * np.array([0.3, 0.7])
    clipped = gradient * 0.5 / (np.linalg.norm(gradient) + 1e-6)
    actual = double_step(1.0, clip_norm=0.5, accumulate=accumulate)
    np.testing.assert_allclose(actual, -0.1 * clipped, rtol=1e-14)
    # The squares are above the range of float32.
    np.testing.assert_allclose(double_step(1e10, accumulate=accumulate), -0.1 * gradient * 1e20, rtol=1e-14)


def test_private_double_gradients_are_clipped_in_double() -> None:
    gradient = -2 * np.array([0.3, 0.7])
    actual = double_step(1.0, privacy=train.Privacy(clip=0.5, noise=0.0))
    np.testing.assert_allclose(actual, -0.1 * gradient * 0.5 / np.linalg.norm(gradient), rtol=1e-11)


def recurrent() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 32, 4), "r": (1, 32, 8), "b": (1, 64)}
    weights = [
        onnx.numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        onnx.helper.make_node("LSTM", ["x", "w", "r", "b"], ["", "h"], hidden_size=8),
        onnx.helper.make_node("Squeeze", ["h", "zero"], ["y"]),
    ]
    x = onnx.helper.make_tensor_value_info("x", 1, [5, "N", 4])
    y = onnx.helper.make_tensor_value_info("y", 1, ["N", 8])
    zero = onnx.numpy_helper.from_array(np.array([0]), "zero")
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], [*weights, zero])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def test_loops_convert_weights_once_and_give_their_gradients_after_the_last_iteration() -> None:
    narrow = train.Trainer(recurrent(), "mse", train.SGD(0.1), precision="bf16")
    whole = train.Trainer(recurrent(), "mse", train.SGD(0.1))
    assert narrow.plan.gradients is not None
    loops = [value for value in narrow.plan.gradients.values if value.op == "loop"]
    assert len(loops) == 2
    for loop in loops:
        inside = loop.params["body"].values
        products = [value for value in inside if value.op == "contract"]
        assert len(products) == 1  # By the recurrent weight; the input's and the gradients' are outside.
        assert all(operand.type.dtype == t.BFLOAT16 for operand in products[0].operands)  # type: ignore[union-attr]
        weights = [x for x in inside if x.op == "convert" and x.operands[0] in loop.params["body"].inputs[4:]]
        assert not weights
    rng = np.random.default_rng(1)
    batch = {"x": rng.standard_normal((5, 6, 4), np.float32), "labels": rng.standard_normal((6, 8), np.float32)}
    for _ in range(5):
        assert narrow.step(batch) == pytest.approx(whole.step(batch), rel=2e-2)
    for name, array in whole.state().items():
        np.testing.assert_allclose(narrow.state()[name], array, rtol=0.05, atol=0.01)
