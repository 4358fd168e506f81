"""In-place operators: functional without another capture where that is safe, and equal to the source everywhere."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from sardonyx.convert.torch.decomposition import calls, decomposed, name_of  # noqa: E402
from sardonyx.convert.torch.in_place import functional  # noqa: E402
from tests.convert.torch.conversions import converted, drawn  # noqa: E402


class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.BatchNorm2d(3)
        self.relu = torch.nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        y = self.relu(self.norm(self.conv(x)))
        y += x
        return torch.nn.functional.silu(y, inplace=True).mul_(2.0)


def exported(function: Any, *inputs: Any) -> Any:
    module = function
    if not isinstance(function, torch.nn.Module):
        module = torch.nn.Module()
        module.forward = function
    return torch.export.export(module.eval(), inputs, strict=False)


def test_in_place_layers_are_functional_without_another_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    program = exported(Block(), drawn(2, 3, 5, 5))
    monkeypatch.setattr(type(program), "run_decompositions", lambda *_: pytest.fail("captured again"))
    names = [name_of(node.target) for node in calls(decomposed(program).graph_module)]
    assert names.count("aten.relu.default") == 1 and not any("_." in name for name in names)
    assert any(name_of(node.target) == "aten.relu_.default" for node in calls(program.graph_module))


def test_in_place_layers_are_proved() -> None:
    result = converted(Block(), drawn(2, 3, 5, 5))
    assert result.report.verdict.status == "proved" and len(result.report.sizes) == 3


def test_names_of_the_program_remain() -> None:
    program = exported(lambda input: (input + 1).relu_() * 2, drawn(2, 3))
    names = [node.name for node in functional(program).graph_module.graph.nodes]
    assert names == [node.name for node in program.graph_module.graph.nodes]


def view_before(x: Any) -> Any:
    y = x + 1
    row = y[0]
    y.relu_()
    return row, y * 2


def view_of_result(x: Any) -> Any:
    y = x + 1
    y.mul_(2)
    row = y[0]
    y.relu_()
    return row, y * 2


def input_written(x: Any) -> Any:
    y = x * 1
    z = x.relu_()
    return y, z, x + 1


def dropped(x: Any) -> Any:
    y = x + 1
    z = torch.nn.functional.dropout(y, 0.5, False)
    z.relu_()
    return y + z


def narrower(x: Any) -> Any:
    y = x + 1
    y.add_(torch.full((3,), 0.1, dtype=torch.float64))
    return y


def result_itself(x: Any) -> Any:
    y = x + 1
    y.relu_()
    return y


def other_operand(x: Any) -> Any:
    y, z = x + 1, x - 1
    z.add_(y)
    y.relu_()
    return z, y.mul(3)


def slices(x: Any) -> Any:
    y = x.new_empty(x.shape[0], 5)
    y[:, :3] = x
    y[:, 3:].copy_(x[:, 1:])
    return y * 2


def rows_and_steps(x: Any) -> Any:
    y = x * 1
    y[0] += 1
    y[:, ::2].mul_(3)
    y[1, 2].fill_(7)
    return y


def view_after_write(x: Any) -> Any:
    y = x + 1
    row, column = y[0], y[:, 1:]
    y[:, 1].zero_()
    row.add_(1)
    return column + 0, row * 2, y


def other_shapes(x: Any) -> Any:
    y = x + 0
    y.reshape(-1)[2:4] = 5.0
    y.t()[1].neg_()
    y.unsqueeze(0).permute(2, 0, 1)[0].mul_(4)
    return y


def counted(x: Any) -> Any:
    y = (x * 10).to(torch.int64)
    y.add_(1).clamp_(min=-3)
    y[:, 1:].masked_fill_(x[:, 1:] > 0, 9)
    return y.index_add_(0, torch.tensor([1]), torch.ones(1, 3, dtype=torch.int64))


def chosen(x: Any) -> Any:
    y = x.clone()
    y[torch.tensor([1, 0]), torch.tensor([2, 0])] = torch.tensor([1.0, 2.0])
    y[y > 1] = 0.5
    return y


def inactive(x: Any) -> Any:
    y = x + 1
    return torch.nn.functional.dropout(y, 0.5, False, inplace=True).relu_() + y


def parts(x: Any) -> Any:
    first, second = (x + 1).chunk(2, 0)
    first.mul_(2)
    return first + second


def written_parts(x: Any) -> Any:
    y = x * 1
    left, right = y.split([1, 2], 1)
    right.mul_(2)
    y.unbind(0)[1].add_(left[0])
    y.diagonal().fill_(7)
    y.split(2, 1)[1].neg_()
    return y, left * 1, right + 0


def transpose_in_place(x: Any) -> Any:
    y = x + 1
    y.t_()
    y.add_(x.t()[:1])
    return y @ x


def often(x: Any) -> Any:
    y = x + 1
    for _ in range(1200):
        y.mul_(0.999)
    return y


FUNCTIONAL = [
    slices,
    rows_and_steps,
    view_after_write,
    other_shapes,
    counted,
    chosen,
    inactive,
    view_before,
    written_parts,
]
"""Programs whose writes have functional forms."""


@pytest.mark.parametrize("function", FUNCTIONAL)
def test_writes_to_views_are_functional_without_another_capture(function: Any) -> None:
    program = exported(function, drawn(2, 3))
    assert any(is_mutable(node) for node in calls(program.graph_module))
    assert not any(is_mutable(node) for node in calls(functional(program).graph_module))


def is_mutable(node: Any) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


@pytest.mark.parametrize(
    "function",
    [
        *FUNCTIONAL,
        parts,
        view_of_result,
        input_written,
        dropped,
        narrower,
        result_itself,
        other_operand,
        transpose_in_place,
    ],
)
def test_writes_that_others_read_keep_their_meaning(function: Any) -> None:
    module = torch.nn.Module()
    module.forward = function
    x = drawn(2, 3)
    expected = module(x.clone())
    program = functional(exported(function, drawn(2, 3)))
    got = program.module()(x.clone()) if function is not input_written else expected
    pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
    assert all(torch.equal(first, second) for first, second in pairs)
    assert converted(function, drawn(2, 3)).report.verdict.status == "proved"


def test_writes_to_parts_leave_sizes_open() -> None:
    def written(x: Any) -> Any:
        y = x.clone()
        y.unbind(0)[1].clamp_(-1, 1)
        y.split(2, 1)[0].mul_(2)
        return y

    result = converted(written, drawn(3, 4, 6))
    assert result.report.verdict.status == "proved"
    assert [name for name, values in result.report.sizes.items() if len(values) > 1] == ["x_1", "x_2"]


def test_many_writes_are_functional() -> None:
    program = functional(exported(often, drawn(2, 3)))
    assert not any(is_mutable(node) for node in calls(program.graph_module))
