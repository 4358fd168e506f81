"""Programs with branches on data become models of the recorded branches, which refuse all other inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import sardonyx  # noqa: E402
from sardonyx.convert.imported import Imported  # noqa: E402
from sardonyx.convert.proof import Witness  # noqa: E402
from sardonyx.errors import ConversionError, SardonyxError  # noqa: E402

ONES = np.ones((4, 6), np.float32)


def module_of(function: Any) -> Any:
    module = torch.nn.Module()
    module.forward = function
    return module.eval()


def branch(x: Any) -> Any:
    return x * 2 if x.sum() > 0 else x - 1


def loop(x: Any) -> Any:
    for _ in range(20):
        if not x.sum() < 100:
            break
        x = x * 2 + 1
    return x.sum(), x


def count(x: Any) -> Any:
    for i in range(int((x > 0).sum())):
        x = x + i
    return x


def comparison(x: Any) -> Any:
    if torch.equal(x, x.sort(1).values) or not torch.allclose(x, x + 1):
        return x + 1
    return x * 2


def until_no_rows_are_left(x: Any) -> Any:
    rows, firsts = x, []
    while rows.shape[0] > 0:
        firsts.append(rows[0])
        rows = rows[1:][(rows[1:] - rows[0]).abs().amax(1) > 1]
    return torch.stack(firsts)


def until_one_row_is_left(x: Any) -> Any:
    while x.shape[0] > 1:
        x = x[1:][x[1:, 0] >= 0] + 1
    return x


@pytest.mark.parametrize("function", [until_no_rows_are_left, until_one_row_is_left])
def test_the_condition_on_a_count_that_ended_a_loop_is_a_guard(function: Any) -> None:
    x = torch.tensor([[0.0, 0], [0.5, 0], [3, 3], [-2, 0]])
    result = sardonyx.convert(module_of(function), (x,), dynamic=False)
    assert (result.report.way, result.report.verdict.status) == ("recorded", "proved")
    other = np.array([[0, 0], [3, 3], [6, 6], [9, 9]], np.float32)
    with pytest.raises(SardonyxError, match="guard: "):
        sardonyx.Session(result.model).run(None, {"x": other})


@pytest.mark.parametrize("function", [branch, loop, count, comparison])
def test_a_branch_on_data_is_recorded_and_proved(function: Any) -> None:
    result = sardonyx.convert(module_of(function), (torch.rand(4, 6),))
    assert (result.report.way, result.report.verdict.status) == ("recorded", "proved")
    assert any("branches of the examples" in note for note in result.report.notes)


class Experts(torch.nn.Module):
    """A mixture of experts; the experts with rows are chosen by a branch, or by iterating over their indices."""

    def __init__(self, iterate: bool) -> None:
        super().__init__()
        self.gate, self.experts = torch.nn.Linear(8, 4), torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
        self.iterate = iterate

    def forward(self, x: Any) -> Any:
        chosen, out = self.gate(x).argmax(-1), torch.zeros_like(x)
        if self.iterate:
            hits = torch.nn.functional.one_hot(chosen, 4).transpose(0, 1)
            for k in (hits.sum(-1) > 0).nonzero():
                (rows,) = torch.where(hits[k[0]])
                out.index_add_(0, rows, self.experts[int(k)](x[rows]))
            return out
        for k, expert in enumerate(self.experts):
            if (chosen == k).any():
                out[chosen == k] = expert(x[chosen == k])
        return out


@pytest.mark.parametrize("iterate", [False, True])
def test_branches_that_depend_on_parameters_are_those_of_the_example(iterate: bool) -> None:
    torch.manual_seed(0)
    module = Experts(iterate).eval()
    x = torch.randn(9, 8)
    result = sardonyx.convert(module, (x,))
    assert (result.report.way, result.report.verdict.status) == ("recorded", "proved")
    (answer,) = sardonyx.Session(result.model).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(answer, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("simplify", [True, False])
def test_inputs_of_other_branches_are_refused_with_the_line(simplify: bool, tmp_path: Path) -> None:
    result = sardonyx.convert(module_of(branch), (torch.rand(4, 6),), simplify=simplify)
    session = sardonyx.Session(result.model)
    assert np.array_equal(session.run(None, {"x": ONES})[0], ONES * 2)
    with pytest.raises(SardonyxError, match=r"guard: .*test_recorded\.py:\d+ \(return x \* 2 if x\.sum\(\) > 0"):
        session.run(None, {"x": -ONES})


def test_onnxruntime_refuses_inputs_of_other_branches(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    result = sardonyx.convert(module_of(branch), (torch.rand(4, 6),))
    result.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert np.array_equal(session.run(None, {"x": ONES})[0], ONES * 2)
    with pytest.raises(Exception, match="guard"):
        session.run(None, {"x": -ONES})


def test_refused_captures_print_nothing_of_torch(capfd: pytest.CaptureFixture[str]) -> None:
    def branches(x: Any) -> Any:
        print("the program's own words")
        return x * 2 if x.sum() > 0 else x + 1

    assert sardonyx.convert(module_of(branches), (torch.ones(3, 2),)).report.way == "recorded"
    printed = capfd.readouterr()
    assert "the program's own words" in printed.out
    assert not printed.err


def test_checks_of_the_program_are_guards() -> None:
    check = vars(torch)["_check"]

    def checked(x: Any) -> Any:
        check(x.sum().item() > 0)
        return x + 1

    result = sardonyx.convert(module_of(checked), (torch.rand(4, 6),))
    assert (result.report.way, result.report.verdict.status) == ("sardonyx", "proved")
    with pytest.raises(SardonyxError, match="guard: "):
        sardonyx.Session(result.model).run(None, {"x": -ONES})


def test_checks_of_distributions_are_guards() -> None:
    def likelihood(x: Any) -> Any:
        # torch's compiler switches the checks off for the process.
        return torch.distributions.Normal(x, x.abs() + 0.5, validate_args=True).log_prob(x.flip(0))

    result = sardonyx.convert(module_of(likelihood), (torch.randn(4, 6),))
    assert (result.report.way, result.report.verdict.status) == ("recorded", "proved")
    with pytest.raises(SardonyxError, match="guard: "):
        sardonyx.Session(result.model).run(None, {"x": ONES * np.nan})


def test_a_value_in_floating_point_as_a_number_is_named_with_its_line() -> None:
    def frozen(x: Any) -> Any:
        return x * np.float32(x.abs().sum().item())

    with pytest.raises(ConversionError, match=r"value in floating point as a Python number"):
        sardonyx.convert(module_of(frozen), (torch.rand(4, 6),), exporter="recorded")


def test_a_model_that_answers_inputs_of_other_branches_is_not_proved() -> None:
    result = sardonyx.convert(module_of(lambda x: x * 2), (torch.rand(4, 6),))
    imported = Imported(
        result.model,
        lambda feeds: {str(result.model.graph.outputs[0].name): feeds["x"] * 2},
        examples=({"x": ONES},),
        refused=lambda: ({"x": -ONES},),
    )
    verdict = Witness(imported).judge(result.model).verdict
    assert (verdict.status, "other branches" in verdict.reason) == ("different", True)
