"""Sizes as arguments that torch takes as plain integers: they remain open, and the model is equal at other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.nn import functional as F  # noqa: E402

from tests.convert.torch.conversions import converted, drawn  # noqa: E402


def upper_pairs(x: Any) -> Any:
    rows, columns = torch.triu_indices(x.shape[1], x.shape[1], 1)
    return (x @ x.mT)[:, rows, columns]


def lower_pairs(x: Any) -> Any:
    rows, columns = torch.tril_indices(x.shape[1], x.shape[1], -1)
    return (x @ x.mT)[:, rows, columns]


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "linspace": (lambda x: torch.linspace(-1, 1, x.shape[1]) * x, ((3, 8),)),
    "logspace": (lambda x: torch.logspace(-1, 1, x.shape[1]) * x, ((3, 8),)),
    "hann_window": (lambda x: torch.hann_window(x.shape[1]) * x, ((3, 8),)),
    "hamming_window": (lambda x: torch.hamming_window(x.shape[1], periodic=False) * x, ((3, 8),)),
    "blackman_window": (lambda x: torch.blackman_window(x.shape[1]) * x, ((3, 8),)),
    "bartlett_window": (lambda x: torch.bartlett_window(x.shape[1]) * x, ((3, 8),)),
    "kaiser_window": (lambda x: torch.kaiser_window(x.shape[1], True, 6.0) * x, ((3, 8),)),
    "fftfreq": (lambda x: torch.fft.fftfreq(x.shape[1], 0.5) * x, ((3, 7),)),
    "rfftfreq": (lambda x: torch.fft.rfftfreq(x.shape[1]) * x[:, :1], ((3, 6),)),
    "unfold": (lambda x: x.unfold(1, x.shape[1] // 2, 2).sum(-1), ((3, 9),)),
    "avg_pool2d of an image": (lambda x: F.avg_pool2d(x, x.size()[2:]).flatten(1), ((2, 3, 6, 8),)),
    "avg_pool1d of a half": (lambda x: F.avg_pool1d(x, x.shape[2] // 2, stride=1), ((2, 3, 8),)),
    "max_pool1d": (lambda x: F.max_pool1d(x, x.size(2)).squeeze(2), ((2, 3, 8),)),
    "max_pool2d of columns": (lambda x: F.max_pool2d(x, (x.size(2), 1)), ((2, 3, 8, 6),)),
    "lp_pool1d": (lambda x: F.lp_pool1d(x.abs(), 2, x.size(2)), ((2, 3, 8),)),
    "affine_grid": (lambda x: F.affine_grid(x.mean((1, 2, 3), keepdim=True)[0].expand(len(x), 2, 3), x.size()),
                    ((2, 3, 6, 8),)),
    "triu_indices": (upper_pairs, ((3, 5, 4),)),
    "tril_indices": (lower_pairs, ((3, 5, 4),)),
    "pdist": (lambda x: F.pdist(x), ((5, 4),)),
    "combinations": (lambda x: torch.combinations(x), ((5,),)),
    "vander": (lambda x: torch.vander(x), ((4,),)),
    "one_hot": (lambda x: F.one_hot(x.argmax(1), x.shape[1]) * x, ((5, 8),)),
    "take_along_dim": (lambda x: torch.take_along_dim(x, x.argsort(1), 1), ((5, 4),)),
    "kron": (lambda x, y: torch.kron(x, y), ((5, 4), (2, 3))),
    "gradient": (lambda x: torch.gradient(x, dim=1)[0], ((3, 6),)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sizes_as_arguments_remain_open(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    result = converted(function, *(drawn(*shape) for shape in shapes))
    assert result.report.verdict.status == "proved", result.report.verdict.reason
    assert sum(len(values) > 1 for values in result.report.sizes.values()) == sum(map(len, shapes))


def test_patches_are_folded_to_an_image_of_open_size() -> None:
    def blurred(x: Any) -> Any:
        return F.fold(F.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1)

    result = converted(blurred, drawn(2, 3, 6, 8))
    assert result.report.verdict.status == "proved"
    assert sum(len(values) > 1 for values in result.report.sizes.values()) >= 3


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool2d(x, x.shape[2], return_indices=True)[1],
        lambda x: F.avg_pool2d(x, x.shape[2], padding=1),
        lambda x: torch.combinations(x[0, 0, 0], 3),
        lambda x: x * torch.linspace(0, 5, x.shape[3], dtype=torch.int64),
    ],
    ids=("indices", "padding", "triples", "integers"),
)
def test_arguments_without_an_equal_program_remain_fixed(function: Any) -> None:
    assert converted(function, drawn(2, 3, 4, 4)).report.verdict.status == "proved"
