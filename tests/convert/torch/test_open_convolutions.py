"""Convolutions with a group for every sample, or with an image as kernel: their sizes remain open."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.convert.torch.conversions import converted, drawn  # noqa: E402


def open_sizes(result: Any) -> set[str]:
    assert result.report.verdict.status == "proved", result.report.verdict.reason
    return {name for name, values in result.report.sizes.items() if len(values) > 1}


class KernelsOfSamples(nn.Module):  # type: ignore[misc]
    """A mixture of kernels for every sample, as a convolution with a group for each."""

    def __init__(self) -> None:
        super().__init__()
        self.route, self.kernels = nn.Linear(4, 3), nn.Parameter(drawn(3, 8, 2, 3, 3))

    def forward(self, x: Any) -> Any:
        count, _, *sizes = x.shape
        weights = self.route(x.mean((2, 3))).softmax(-1)
        kernels = torch.einsum("be,eoihw->boihw", weights, self.kernels).flatten(0, 1)
        y = F.conv2d(x.reshape(1, -1, *sizes), kernels, stride=2, padding=1, dilation=2, groups=2 * count)
        return y.view(count, -1, *y.shape[2:])


class ModulatedUpsampling(nn.Module):  # type: ignore[misc]
    """Weights scaled by a style of the sample, and a transposed convolution with a group for each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.style, self.bias = nn.Parameter(drawn(4, 6, 3, 3)), nn.Linear(5, 4), nn.Parameter(drawn(6))

    def forward(self, x: Any, style: Any) -> Any:
        count, _, *sizes = x.shape
        weight = (self.weight * self.style(style)[:, :, None, None, None]).flatten(0, 1)
        bias = self.bias.repeat(count)
        y = F.conv_transpose2d(
            x.reshape(1, -1, *sizes), weight, bias, stride=2, padding=1, output_padding=1, groups=count
        )
        return y.view(count, -1, *y.shape[2:])


def test_kernels_of_samples_leave_the_batch_open() -> None:
    assert open_sizes(converted(KernelsOfSamples(), drawn(2, 4, 9, 11))) == {"batch", "x_2", "x_3"}


def test_transposed_convolutions_with_kernels_of_samples_leave_the_batch_open() -> None:
    assert open_sizes(converted(ModulatedUpsampling(), drawn(2, 4, 6, 7), drawn(2, 5))) >= {"batch", "x_2", "x_3"}


@pytest.mark.parametrize("padding", [0, 2, "same", "valid"])
def test_an_image_is_the_kernel_of_a_correlation(padding: Any) -> None:
    result = converted(lambda x, kernel: F.conv2d(x, kernel, padding=padding), drawn(2, 3, 9, 11), drawn(2, 3, 4, 5))
    assert open_sizes(result) >= {"batch", "x_2", "x_3", "kernel_2", "kernel_3"}


def test_channels_are_correlated_one_by_one() -> None:
    def correlated(x: Any, kernel: Any) -> Any:
        count, channels = x.shape[:2]
        y = F.conv2d(x.flatten(0, 1)[None], kernel.flatten(0, 1)[:, None], groups=count * channels)
        return y.view(count, channels, *y.shape[2:])

    assert len(open_sizes(converted(correlated, drawn(2, 3, 9, 11), drawn(2, 3, 4, 5)))) == 8


def test_fixed_convolutions_are_one_node() -> None:
    result = converted(nn.Conv2d(4, 6, 3, padding=1, groups=2), drawn(2, 4, 6, 7))
    assert [node.op_type for node in result.model.graph] == ["Conv"]
