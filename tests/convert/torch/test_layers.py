"""Pooling, resizing, recurrent layers, packed sequences and simulated quantization."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.convert.torch.programs import require_equal  # noqa: E402


def x(*shape: int) -> Any:
    return torch.randn(*shape)


IMAGES = ((x(2, 6, 9, 11),), (x(3, 6, 9, 11),), (x(2, 6, 13, 17),))


class Unpool(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)

    def forward(self, x: Any) -> Any:
        return self.unpool(*self.pool(x))


class Packed(nn.Module):  # type: ignore[misc]
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer(5, 7, batch_first=True, bidirectional=True)

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, state = self.layer(packed)
        return nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0], state


POOLING = {
    "max": nn.MaxPool2d(3, 2, 1),
    "max, ceil": nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "max, dilated": nn.MaxPool2d(3, 1, 1, dilation=2),
    "max with indices": nn.MaxPool2d(2, 2, return_indices=True),
    "average": nn.AvgPool2d(3, 2, 1),
    "average, ceil": nn.AvgPool2d(3, 2, 1, ceil_mode=True),
    "average of elements": nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "average with a divisor": nn.AvgPool2d(2, divisor_override=3),
    "adaptive to one": nn.AdaptiveAvgPool2d(1),
    "adaptive, uneven": nn.AdaptiveAvgPool2d((4, 5)),
    "adaptive, one axis": nn.AdaptiveAvgPool2d((3, None)),
    "adaptive max": nn.AdaptiveMaxPool2d((4, 5), return_indices=True),
    "windows as columns": nn.Unfold((2, 3), dilation=2, padding=1, stride=2),
}


@pytest.mark.parametrize("name", POOLING)
def test_pooling(name: str) -> None:
    require_equal(POOLING[name], *IMAGES)


def test_pooling_in_other_ranks() -> None:
    require_equal(nn.MaxPool1d(3), (x(2, 4, 17),))
    require_equal(nn.AvgPool3d(2), (x(2, 4, 6, 6, 8),))
    require_equal(nn.MaxPool2d(2), (x(4, 8, 8),))
    require_equal(Unpool(), (x(2, 3, 8, 10),))
    require_equal(nn.Fold((8, 9), (2, 3), padding=1, stride=2), (x(2, 6, 25),))


def test_fractional_pooling_at_drawn_places() -> None:
    require_equal(
        lambda x, u: F.fractional_max_pool2d(x, 2, (4, 5), _random_samples=u), (x(2, 6, 9, 11), torch.rand(2, 6, 2))
    )


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_resizing(mode: str) -> None:
    require_equal(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode), *IMAGES)
    require_equal(lambda x: F.interpolate(x, size=(5, 7), mode=mode), *IMAGES)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resizing_with_aligned_corners_or_antialiasing(mode: str) -> None:
    require_equal(lambda x: F.interpolate(x, size=(15, 17), mode=mode, align_corners=True), *IMAGES)
    require_equal(lambda x: F.interpolate(x, size=(5, 6), mode=mode, antialias=True), *IMAGES[:1])


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_sampling_at_a_grid(mode: str, padding: str) -> None:
    require_equal(lambda x, g: F.grid_sample(x, g, mode, padding, False), (x(2, 6, 9, 11), x(2, 4, 5, 2) * 0.8))


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}], ids=str
)
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_have_open_steps_and_batch(layer: Any, options: dict[str, Any]) -> None:
    require_equal(layer(5, 7, **options), (x(6, 3, 5),), (x(4, 2, 5),))


def test_projected_states_are_a_loop() -> None:
    require_equal(nn.LSTM(5, 7, proj_size=3, num_layers=2, bidirectional=True), (x(6, 3, 5),), (x(4, 2, 5),))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences(layer: Any) -> None:
    require_equal(Packed(layer), (x(3, 6, 5), torch.tensor([4, 6, 2])), (x(2, 4, 5), torch.tensor([4, 3])))


def test_simulated_quantization() -> None:
    require_equal(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255), (x(2, 6),), (x(3, 6),))
    require_equal(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -7, 7), (x(2, 6),))


def test_a_view_keeps_the_numbers_of_the_program_at_other_sizes() -> None:
    require_equal(lambda x: x.view(2, 2, -1) + 1, (x(4, 6),), (x(8, 6),))
