"""Parts of torchvision's detectors, which depend on the number of detections, as programs for any number."""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from sardonyx.convert.torch import detectors  # noqa: E402
from tests.convert.torch.conversions import converted, drawn  # noqa: E402

F = torch.nn.functional


def boxes_of(count: int, seed: int = 0) -> Any:
    """Return boxes within an image of 24 by 20."""
    corners = drawn(count, 4, seed=seed).sigmoid() * torch.tensor([10, 8, 10, 8])
    return torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:]], 1)


def one_by_one(maps: Any, rois: Any) -> tuple[Any, Any]:
    """Return the points of largest heat, with one heat map resized after another."""
    points, heats = [], []
    for heat, (x1, y1, x2, y2) in zip(maps, rois.tolist(), strict=True):
        width, height = max(x2 - x1, 1.0), max(y2 - y1, 1.0)
        size = (math.ceil(height), math.ceil(width))
        resized = F.interpolate(heat[:, None], size=size, mode="bicubic", align_corners=False)[:, 0]
        position = resized.flatten(1).argmax(1)
        x, y = position % size[1], position // size[1]
        columns = [(x + 0.5) * width / size[1] + x1, (y + 0.5) * height / size[0] + y1, torch.ones(len(heat))]
        points.append(torch.stack(columns, 1))
        heats.append(resized.flatten(1).gather(1, position[:, None])[:, 0])
    return torch.stack(points), torch.stack(heats)


@pytest.mark.parametrize("count", [1, 4])
def test_keypoints_are_those_of_heat_maps_resized_one_by_one(count: int) -> None:
    maps, rois = drawn(count, 3, 7, 7), boxes_of(count)
    rois[0, 2:] = rois[0, :2] + 0.25  # Smaller than a pixel.
    points, heats = detectors.keypoints(maps, rois)
    expected = one_by_one(maps, rois)
    np.testing.assert_allclose(points, expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(heats, expected[1], rtol=1e-5, atol=1e-5)


def test_keypoints_are_proved_for_any_number_of_boxes() -> None:
    report = converted(detectors.keypoints, drawn(3, 2, 5, 5), boxes_of(3)).report
    assert report.verdict.status == "proved" and len(report.sizes["batch"]) > 1


@pytest.mark.parametrize(("height", "original"), [(7, 100), (50, 200), (13, 13), (99, 70), (71, 100), (3, 1)])
def test_a_ratio_is_rounded_to_a_power_of_two(height: int, original: int) -> None:
    scale = detectors.power_of_two(torch.zeros(1, height, 4), (original, 5))
    assert scale == 2.0 ** round(math.log2(height / original))


def test_a_length_of_selected_rows_is_a_size() -> None:
    def selected(x: Any) -> Any:
        rows = x[x[:, 0] > 0]
        return rows.new_ones(len(rows), 2) * len(x)

    report = converted(selected, drawn(9, 3)).report
    assert report.verdict.status == "proved" and "batch" in report.sizes


def test_functions_of_torchvision_have_equal_programs() -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    heads = sys.modules["torchvision.models.detection.roi_heads"]
    coder = sys.modules["torchvision.models.detection._utils"].BoxCoder((10.0, 10.0, 5.0, 5.0))
    for count in (0, 1, 5):
        masks, boxes = drawn(count, 1, 6, 6).sigmoid(), boxes_of(count)
        expected = heads.paste_masks_in_image(masks, boxes, (20, 24))
        np.testing.assert_allclose(detectors.pasted_masks(masks, boxes, (20, 24)), expected, atol=1e-6)
        codes = drawn(count, 12)
        np.testing.assert_array_equal(
            detectors.decoded_boxes(coder, codes, [boxes]).flatten(), coder.decode(codes, [boxes]).flatten()
        )


@pytest.mark.parametrize("fixed", [None, (12, 18)])
def test_masks_of_a_target_are_resized_with_their_image(fixed: tuple[int, int] | None) -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    transform = importlib.import_module("torchvision.models.detection.transform")
    image, masks = drawn(3, 20, 30), (drawn(2, 20, 30) > 0).byte()
    for target in (None, {"masks": masks, "boxes": boxes_of(2)}):
        arguments = [image, 24, 40, target and dict(target), fixed]
        expected = vars(transform)["_resize_image_and_masks"](*arguments)
        actual = detectors.resized_image(image, 24, 40, target and dict(target), fixed)
        torch.testing.assert_close(actual, expected)


def test_images_of_any_size_are_resized_and_padded() -> None:
    torchvision: Any = pytest.importorskip("torchvision", reason="torchvision is not installed")
    transform = torchvision.models.detection.transform.GeneralizedRCNNTransform(24, 40, [0.5] * 3, [0.2] * 3)
    report = converted(lambda x: transform.eval()([x])[0].tensors, torch.rand(3, 20, 30)).report
    assert report.verdict.status == "proved" and len(report.sizes) == 2
    assert not report.notes
