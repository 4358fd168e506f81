"""Programs whose open sizes need too many conditions are captured with open first sizes, then with none."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from sardonyx.convert.torch import capture, size_conditions  # noqa: E402
from tests.convert.torch.conversions import converted, drawn  # noqa: E402


def windows(x: Any) -> Any:
    """Return sums over windows of 3, for a size that is rounded up twice."""
    for width in (3, 2):
        x = torch.nn.functional.pad(x, (0, (width - x.shape[-1] % width) % width))
        x = x.reshape(*x.shape[:-1], x.shape[-1] // width, width).sum(-1)
    return x


@pytest.mark.parametrize(
    ("most", "batch", "opened"),
    [(10_000, 2, {"batch", "x_1"}), (1_000, 2, {"batch"}), (1_000, 1, {"batch"}), (0, 2, set())],
)
def test_more_conditions_than_the_limit_leave_fewer_sizes_open(
    most: int, batch: int, opened: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = functools.partial(size_conditions.limited_conditions, most)
    monkeypatch.setattr(capture, "limited_conditions", limited)
    report = converted(windows, drawn(batch, 17)).report
    assert report.verdict.status == "proved"
    assert {name for name, sizes in report.sizes.items() if len(sizes) > 1} == opened
    assert any(f"more than {most} terms" in note for note in report.notes) == (opened != {"batch", "x_1"})


def test_a_branch_on_a_ratio_of_sizes_is_a_guard() -> None:
    def branching(x: Any) -> Any:
        wide = int(x.shape[1] * min(7.5 / x.shape[0], 3.0)) >= 10
        return x * 2 if wide else x - 1

    result = converted(branching, drawn(3, 9))
    report = result.report
    assert report.verdict.status == "proved" and set(report.sizes) == {"batch", "x_1"}
    assert any("refuses sizes" in note for note in report.notes)
