"""Recursive filters of torchaudio, whose loop over samples is a custom operator there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from sardonyx.convert.torch.equal_functions import recursive_filter  # noqa: E402
from tests.convert.torch.conversions import converted, drawn  # noqa: E402


@pytest.mark.parametrize("order", [0, 1, 2])
def test_a_recursive_filter_is_its_difference_equation(order: int) -> None:
    x, a, b = drawn(2, 3, 7), drawn(3, order + 1, seed=1).abs() + 1, drawn(3, order + 1, seed=2)
    y = torch.zeros(2, 3, 7)
    for t in range(7):
        fed = sum(b[:, k] * x[..., t - k] for k in range(order + 1) if k <= t)
        y[..., t] = (fed - sum(a[:, k] * y[..., t - k] for k in range(1, order + 1) if k <= t)) / a[:, 0]
    np.testing.assert_allclose(recursive_filter(x, a, b), y, rtol=1e-4, atol=1e-5)


def test_a_recursive_filter_has_any_number_of_samples() -> None:
    a, b = torch.tensor([[1.0, -0.5, 0.2]]), torch.tensor([[0.3, 0.2, 0.1]])
    report = converted(lambda x: recursive_filter(x, a, b), drawn(2, 1, 7)).report
    assert report.verdict.status == "proved" and len(report.sizes) == 2


def test_a_filter_of_torchaudio_is_proved() -> None:
    torchaudio: Any = pytest.importorskip("torchaudio", reason="torchaudio is not installed")
    result = converted(lambda x: torchaudio.functional.lowpass_biquad(x, 8000, 1000.0), drawn(2, 12))
    assert result.report.verdict.status == "proved" and len(result.report.sizes) == 2
