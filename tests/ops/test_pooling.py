"""Pools equal ONNX Runtime at random attributes, at known and at open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import ExecutionError, InvalidModelError, ShapeError
from tests.ops.agreement import assert_agrees, assert_equal, eager, traced

VERSIONS = {"MaxPool": (1, 8, 10, 12, 22), "AveragePool": (7, 10, 19, 22), "LpPool": (2, 11, 18, 22)}
FULL = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}
"""From which version on a pool has dilations."""


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("name", VERSIONS)
def test_pool(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, opset = 1 + seed % 3, VERSIONS[name][seed % len(VERSIONS[name])]
    kernel, strides = ([int(i) for i in rng.integers(1, 4, n)] for _ in range(2))
    dilations, outputs = [1] * n, 1
    options: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    match seed % 4:
        case 0 if all(k >= s for k, s in zip(kernel, strides, strict=True)):
            options["auto_pad"] = ["SAME_UPPER", "SAME_LOWER"][seed % 8 // 4]
        case 1:
            options["auto_pad"] = "VALID"
        case _:
            options["pads"] = [int(rng.integers(0, k)) for k in kernel] * 2
            if opset >= FULL[name]:
                dilations = options["dilations"] = [int(i) for i in rng.integers(1, 3, n)]
            if opset >= (18 if name == "LpPool" else 10):
                options["ceil_mode"] = int(rng.integers(0, 2))
    if name == "AveragePool" and opset >= 7:
        options["count_include_pad"] = int(rng.integers(0, 2))
    if name == "LpPool":
        options["p"] = int(rng.integers(1, 4))
    if name == "MaxPool" and opset >= 8:
        outputs, options["storage_order"] = 2, int(rng.integers(0, 2))
    sizes = [(k - 1) * d + 1 + int(rng.integers(0, 6)) for k, d in zip(kernel, dilations, strict=True)]
    shape = "N C " + " ".join("HWD"[:n])
    assert_agrees(name, [floats(rng, 2, 3, *sizes)], [shape], opset=opset, outputs=outputs, **options)


@pytest.mark.parametrize("name", ["GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_global_pool(name: str, n: int) -> None:
    x = floats(np.random.default_rng(n), 2, 3, *(4, 5, 2)[:n])
    assert_agrees(name, [x], ["N C " + " ".join("HWD"[:n])], opset=2 if name == "GlobalLpPool" else 1)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_max_pool_of_bytes_ignores_padding(dtype: Any) -> None:
    x = np.full((1, 1, 3, 3), -100 if dtype == np.int8 else 3, dtype)
    options: dict[str, Any] = {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}
    assert_agrees("MaxPool", [x], ["N C H W"], opset=12, outputs=2, **options)


def test_means_of_float16_are_summed_in_float32() -> None:
    x = np.full((1, 1, 64, 64), 60, np.float16)
    assert eager("GlobalAveragePool", [x])[0].item() == 60
    assert eager("AveragePool", [x], kernel_shape=[64, 64])[0].item() == 60


def test_same_padding_of_pools_is_never_negative() -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
    assert eager("MaxPool", [x], kernel_shape=[1], strides=[3], auto_pad="SAME_UPPER")[0].ravel().tolist() == [0, 3]


@pytest.mark.parametrize("pads", [None, [1, 1, 1, 1]])
def test_unpooling_restores_maxima(pads: list[int] | None) -> None:
    x = floats(np.random.default_rng(0), 2, 3, 6, 8)
    options: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2], **({"pads": pads} if pads else {})}
    y, indices = eager("MaxPool", [x], outputs=2, **options)
    actual = eager("MaxUnpool", [y, indices], **options)
    expected = np.zeros_like(x)
    expected.reshape(-1)[indices.reshape(-1)] = y.reshape(-1)
    assert_equal(actual, [expected])
    assert_equal(traced("MaxUnpool", [y, indices], ["N C H W", "N C H W"], **options), actual)
    assert_agrees("MaxUnpool", [y, indices], ["N C H W", "N C H W"], opset=11, **options)


IMAGE = np.zeros((1, 1, 4, 4), np.float32)
PLACES = np.zeros((1, 1, 4, 4), np.int64)


@pytest.mark.parametrize(
    ("name", "arrays", "options", "error"),
    [
        ("MaxPool", [IMAGE], {"kernel_shape": [2]}, InvalidModelError),
        ("MaxPool", [IMAGE], {"kernel_shape": [0, 2]}, InvalidModelError),
        ("MaxPool", [IMAGE], {"kernel_shape": [6, 6]}, ShapeError),
        ("MaxPool", [IMAGE[0, 0]], {"kernel_shape": [2, 2]}, ShapeError),
        ("AveragePool", [IMAGE], {"kernel_shape": [2, 2], "dilations": [0, 1]}, InvalidModelError),
        ("MaxUnpool", [IMAGE, PLACES + 99], {"kernel_shape": [2, 2]}, ExecutionError),
        ("MaxUnpool", [IMAGE, PLACES - 1], {"kernel_shape": [2, 2]}, ExecutionError),
        ("MaxUnpool", [IMAGE, PLACES[..., :3]], {"kernel_shape": [2, 2]}, ShapeError),
        ("MaxUnpool", [IMAGE, PLACES, np.array([1, 1, 4, 4])], {"kernel_shape": [2, 2]}, ShapeError),
    ],
)
def test_mismatched_inputs_are_refused(
    name: str, arrays: list[np.ndarray], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        eager(name, arrays, **options)
