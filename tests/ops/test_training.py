"""Optimizer steps equal their formulas for several tensors at once, and PyTorch where both coincide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import InvalidModelError
from tests.ops.agreement import assert_equal, eager, traced

DOMAIN = "ai.onnx.preview.training"
RATE = np.array(0.1, np.float32)
RNG = np.random.default_rng(0)
TENSORS = [RNG.random(shape) for _ in range(4) for shape in ((2, 3), (4,))]
SHAPES = ["A B", "C"]


def step(name: str, count: int, kinds: int, **options: Any) -> list[np.ndarray]:
    arrays = [RATE, np.array(count), *TENSORS[: 2 * kinds]]
    common: dict[str, Any] = {"opset": 1, "domain": DOMAIN, "outputs": 2 * (kinds - 1), **options}
    actual = eager(name, arrays, **common)
    assert_equal(traced(name, arrays, ["", "", *SHAPES * kinds], **common), actual)
    return actual


def test_adagrad() -> None:
    x, _, g, _, h, _ = TENSORS[:6]
    actual = step("Adagrad", 2, 3, decay_factor=0.5, norm_coefficient=0.25)
    regularized = 0.25 * x + g
    new = h + regularized**2
    np.testing.assert_allclose(actual[2], new, rtol=1e-6)
    np.testing.assert_allclose(actual[0], x - RATE / 2 * regularized / (np.sqrt(new) + 1e-6), rtol=1e-6)


@pytest.mark.parametrize("count", [0, 3])
def test_adam(count: int) -> None:
    x, _, g, _, v, _, h, _ = TENSORS
    actual = step("Adam", count, 4, norm_coefficient=0.125, norm_coefficient_post=0.5)
    regularized = 0.125 * x + g
    alpha, beta = float(np.float32(0.9)), float(np.float32(0.999))
    v, h = alpha * v + (1 - alpha) * regularized, beta * h + (1 - beta) * regularized**2
    rate = RATE * np.sqrt(1 - beta**count) / (1 - alpha**count) if count else RATE
    np.testing.assert_allclose(actual[2], v, rtol=1e-6)
    np.testing.assert_allclose(actual[4], h, rtol=1e-6)
    np.testing.assert_allclose(actual[0], 0.5 * (x - rate * v / (np.sqrt(h) + 1e-6)), rtol=1e-6)


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("mode", ["standard", "nesterov"])
def test_momentum(count: int, mode: str) -> None:
    x, _, g, _, v, _ = TENSORS[:6]
    actual = step("Momentum", count, 3, mode=mode, alpha=0.5, beta=0.25, norm_coefficient=0.0)
    v = 0.5 * v + (0.25 if count else 1) * g
    np.testing.assert_allclose(actual[2], v, rtol=1e-6)
    np.testing.assert_allclose(actual[0], x - RATE * (g + 0.5 * v if mode == "nesterov" else v), rtol=1e-6)


def test_mismatched_inputs_are_refused() -> None:
    with pytest.raises(InvalidModelError, match="multiple"):
        eager("Adagrad", [RATE, np.array(0), *TENSORS[:4]], domain=DOMAIN, opset=1)
    with pytest.raises(InvalidModelError, match="mode"):
        eager("Momentum", [RATE, np.array(0), *TENSORS[:3]], domain=DOMAIN, opset=1, mode="other", alpha=0.5, beta=0.5,
              norm_coefficient=0.0)  # fmt: skip
