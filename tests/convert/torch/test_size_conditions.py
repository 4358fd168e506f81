"""Programs whose open sizes need too many conditions are captured with open first sizes, then with none."""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from sardonyx.convert.torch import capture, size_conditions, size_guards  # noqa: E402
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


def test_marks_of_axes_in_the_examples_stay_as_they_are() -> None:
    x = drawn(3, 17)
    importlib.import_module("torch._dynamo").mark_dynamic(x, 0)
    before = {name: copy.copy(mark) for name, mark in vars(x).items()}
    assert converted(windows, x).report.verdict.status == "proved"
    assert vars(x) == before


def test_a_branch_on_a_ratio_of_sizes_is_a_guard() -> None:
    def branching(x: Any) -> Any:
        wide = int(x.shape[1] * min(7.5 / x.shape[0], 3.0)) >= 10
        return x * 2 if wide else x - 1

    result = converted(branching, drawn(3, 9))
    report = result.report
    assert report.verdict.status == "proved" and set(report.sizes) == {"batch", "x_1"}
    assert any("refuses sizes" in note and "test_size_conditions.py" in note for note in report.notes)


@pytest.mark.parametrize(
    "is_small",
    [
        lambda size: size * 0.1 >= 0.3,
        lambda size: size**0.5 <= 2.1,
        lambda size: round(size / 3) < 2,
        lambda size: torch.sym_sqrt(size) <= 2.1,
    ],
    ids=["tenth", "power", "rounded", "root"],
)
def test_a_branch_on_a_number_of_a_size_is_a_guard(is_small: Callable[[Any], bool]) -> None:
    """The examples are within the guard, also if a number is not a number of float32."""
    report = converted(lambda x: x * 2 if is_small(x.shape[0]) else x - 1, drawn(3, 9)).report
    assert report.verdict.status == "proved" and set(report.sizes) == {"batch", "x_1"}
    assert any("refuses sizes" in note for note in report.notes)


def test_a_branch_is_told_from_the_conditions_of_torch() -> None:
    def branching(x: Any) -> Any:
        return x * 2 if x.shape[0] > 40 else x - 1

    module = torch.nn.Module()
    module.forward = branching
    with size_conditions.limited_conditions():
        axes = dict.fromkeys((0, 1), torch.export.Dim.AUTO)
        program = torch.export.export(module, (drawn(3, 9),), dynamic_shapes={"x": axes}, strict=False)
    first, *others = size_guards.size_guards(program, ["x"])
    assert first.is_branch and "40" in first.label and "test_size_conditions.py" in first.label
    assert not any(guard.is_branch for guard in others)
