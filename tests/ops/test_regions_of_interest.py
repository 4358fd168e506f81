"""Regions of interest equal ONNX Runtime, at known and at open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import ExecutionError, ShapeError
from tests.ops.agreement import assert_agrees, eager


def regions(rng: np.random.Generator, count: int) -> np.ndarray:
    """Rows (x1, y1, x2, y2), some of them beyond an image of 10 by 8."""
    starts, sizes = rng.random((2, count, 2)) * 14 - 2
    return np.concatenate([starts, starts + np.abs(sizes)], 1).astype(np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("count", [0, 4])
@pytest.mark.parametrize("transformation", [None, "half_pixel", "output_half_pixel"])
def test_roi_align(mode: str, ratio: int, count: int, transformation: str | None) -> None:
    rng = np.random.default_rng(count)
    x = rng.standard_normal((2, 3, 8, 10)).astype(np.float32)
    options: dict[str, Any] = {
        "mode": mode,
        "sampling_ratio": ratio,
        "output_height": 2,
        "output_width": 3,
        "spatial_scale": 0.5,
    }
    if transformation is not None:
        options["coordinate_transformation_mode"] = transformation
    arrays = [x, regions(rng, count), rng.integers(0, 2, count)]
    assert_agrees("RoiAlign", arrays, ["N C H W", "R 4", "R"], opset=10 if transformation is None else 16, **options)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align_of_doubles(mode: str) -> None:
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal((2, 3, 8, 10)), regions(rng, 4).astype(np.float64), rng.integers(0, 2, 4)]
    options: dict[str, Any] = {"mode": mode, "output_height": 2, "output_width": 3}
    assert_agrees("RoiAlign", arrays, ["N C H W", "R 4", "R"], opset=16, rtol=1e-12, **options)


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("count", [0, 4])
def test_max_roi_pool(scale: float, count: int) -> None:
    rng = np.random.default_rng(count)
    x = rng.standard_normal((2, 3, 8, 10)).astype(np.float32)
    rois = np.concatenate([rng.integers(0, 2, (count, 1)), regions(rng, count)], 1).astype(np.float32)
    options: dict[str, Any] = {"pooled_shape": [2, 3], "spatial_scale": scale}
    assert_agrees("MaxRoiPool", [x, rois], ["N C H W", "R 5"], opset=1, **options)


def test_bins_of_halves_are_those_of_floats() -> None:
    """A bin's end is a product of two numbers of 16 bits, whose rounding would move pixels to the next bin."""
    x = np.arange(64, dtype=np.float16).reshape(1, 1, 1, 64)
    rois = np.array([[0, 0, 0, 62, 0]], np.float16)
    options: dict[str, Any] = {"pooled_shape": [1, 31], "opset": 1}
    (narrow,) = eager("MaxRoiPool", [x, rois], **options)
    (wide,) = eager("MaxRoiPool", [x.astype(np.float32), rois.astype(np.float32)], **options)
    np.testing.assert_array_equal(narrow, wide)


def test_mismatched_inputs_are_refused() -> None:
    x, rois = np.zeros((1, 1, 4, 4), np.float32), np.array([[0, 0, 3, 3]], np.float32)
    for image in (1, -1):
        with pytest.raises(ExecutionError):
            eager("RoiAlign", [x, rois, np.array([image])])
    for images in ([0, 0], []):
        with pytest.raises(ShapeError):
            eager("RoiAlign", [x, rois, np.array(images, np.int64)])
    with pytest.raises(ShapeError):
        eager("RoiAlign", [x, rois[:, :3], np.array([0])])
    with pytest.raises(ShapeError):
        eager("MaxRoiPool", [x, rois], pooled_shape=[2, 2])
