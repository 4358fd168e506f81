"""Elements of tensors as numbers of Python: computed by the model, compared under guards."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import sardonyx  # noqa: E402
from sardonyx.errors import ConversionError, SardonyxError  # noqa: E402


def module_of(function: Any) -> Any:
    module = torch.nn.Module()
    module.forward = function
    return module.eval()


def branch(x: Any) -> Any:
    return x * 2 if x.mean().item() > 0 else x - 1


def branch_on_float(x: Any) -> Any:
    return x if float(x.sum()) > 0 else -x


def loop(x: Any) -> Any:
    steps = 0
    while x.norm().item() > 1.0 and steps < 20:
        x, steps = x / 2, steps + 1
    return x


def range_of_values(x: Any) -> Any:
    low, high = x.min().item(), x.max().item()
    return torch.zeros_like(x) if high - low < 1e-6 else (x - low) / (high - low)


def until_close(x: Any) -> Any:
    error, y = float("inf"), torch.ones_like(x)
    while error > 1e-2:
        following = 0.5 * (y + (x.abs() + 1) / y)
        error, y = (following - y).abs().max().item(), following
    return y


def best_row(x: Any) -> Any:
    best, at = -math.inf, 0
    for i, value in enumerate(x.mean(1).tolist()):
        if value > best:
            best, at = value, i
    return x[at], torch.tensor(best)


def steps_of_ceiling(x: Any) -> Any:
    for _ in range(math.ceil(x.abs().max().item())):
        x = x + 1
    return x


def bounded(x: Any) -> Any:
    scale = x.std().item()
    return x.clamp(-2 * scale, 2 * scale), x * max(scale, 0.1)


def checked(x: Any) -> Any:
    if math.isnan(x.sum().item()) or not isinstance(x.max().item(), float):
        raise ValueError("expected numbers")
    return x / abs(x.sum().item())


@pytest.mark.parametrize(
    "function",
    [branch, branch_on_float, loop, range_of_values, until_close, best_row, steps_of_ceiling, bounded, checked],
)
def test_conditions_on_numbers_in_floating_point_are_guards(function: Any) -> None:
    torch.manual_seed(0)
    result = sardonyx.convert(module_of(function), (torch.rand(4, 6) + 0.1,))
    assert (result.report.way, result.report.verdict.status) == ("recorded", "proved")


@pytest.mark.parametrize("function", [branch, branch_on_float, loop, steps_of_ceiling])
def test_other_branches_are_refused(function: Any) -> None:
    result = sardonyx.convert(module_of(function), (torch.full((4, 6), 0.5),))
    with pytest.raises(SardonyxError, match=r"guard: .*test_numbers_of_python\.py:\d+"):
        sardonyx.Session(result.model).run(None, {"x": np.full((4, 6), -9, np.float32)})


def scaled(x: Any) -> Any:
    return x / float(x.abs().max()), x * round(x.sum().item(), 1)


def first_rows(x: Any) -> Any:
    return x[: int(x.shape[0] * 0.5) + 1]


def functions(x: Any) -> Any:
    a = x.abs().mean().item()
    return x * math.exp(-a), x + math.tanh(a), x * math.sqrt(a), x - math.log(a)


def types(x: Any) -> Any:
    mean = x.mean().item()
    return x.double() * mean, x.half() * mean, x.long() * mean, x.mean() * (mean / 2), (mean + 1) * x.long()


@pytest.mark.parametrize("function", [scaled, first_rows, functions, types])
def test_numbers_without_conditions_leave_all_sizes_open(function: Any) -> None:
    torch.manual_seed(0)
    result = sardonyx.convert(module_of(function), (torch.rand(4, 6) * 3,))
    assert (result.report.way, result.report.verdict.status) == ("sardonyx", "proved")
    assert set(result.report.sizes) == {"batch", "x_1"}


def test_printed_numbers_are_no_part_of_the_model() -> None:
    def printing(x: Any) -> Any:
        print(f"{x.mean().item():.3f} {x.sum():8.1e} {x.shape[0]:>5}")
        return x * 2

    result = sardonyx.convert(module_of(printing), (torch.rand(4, 6),))
    assert (result.report.way, result.report.verdict.status) == ("sardonyx", "proved")


def test_the_remedy_of_a_line_without_a_branch_names_no_branch() -> None:
    def leaving(x: Any) -> Any:
        return x - torch.from_numpy(x.numpy().mean(0))

    with pytest.raises(ConversionError, match="numpy") as raised:
        sardonyx.convert(module_of(leaving), (torch.rand(4, 6),))
    assert "test_numbers_of_python.py" in raised.value.where
    assert "torch.cond" not in raised.value.remedy


@pytest.mark.parametrize(
    "body",
    [
        "torch.zeros(3, dtype=int) + len(x)",
        "x * (2 if type(len(x.shape)) is int else 5)",
        "x * (2 if type(0.5) == float else 5)",
        "x * {int: 2, float: 3}[type(1)]",
        "x + torch.from_numpy(numpy.ones((4, 6), int))",
    ],
    ids=("element type", "identity", "equality", "key", "position"),
)
def test_a_module_with_types_as_values_keeps_them(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"with_types_{abs(hash(body))}"
    text = f"import numpy\nimport torch\n\ndef f(x: int | float):\n    return {body}\n"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    function = importlib.import_module(name).f
    assert sardonyx.convert(module_of(function), (torch.rand(4, 6),)).report.verdict.status == "proved"


def test_an_operator_that_torch_does_not_capture_is_named_with_its_line() -> None:
    def nested(x: Any) -> Any:
        return torch.nested.to_padded_tensor(torch.nested.nested_tensor([x[0, :2], x[1]]), 0.0)

    with pytest.raises(ConversionError, match=r"aten\._nested_tensor_from_tensor_list") as raised:
        sardonyx.convert(module_of(nested), (torch.rand(4, 6),), exporter="sardonyx")
    assert "test_numbers_of_python.py" in raised.value.where
    assert "torch.cond" not in raised.value.remedy
