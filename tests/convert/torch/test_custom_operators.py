"""A user's operators of torch: by a decomposition, by a definition in Sardonyx, or as opaque nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch._decomp import decomposition_table  # noqa: E402

import sardonyx  # noqa: E402
from sardonyx.core import language as L  # noqa: E402
from sardonyx.core.language import Tensor  # noqa: E402
from sardonyx.errors import ConversionError, OptionError, VerificationError  # noqa: E402
from sardonyx.ops import registry  # noqa: E402

SPACE = "sardonyx_custom_tests"


def scaled(x: Any, y: Any, factor: float, axes: Any = (0,)) -> Any:
    return x * factor + y.sum(tuple(axes), keepdim=True)


def halves(x: Any) -> Any:
    return x[::2].clone(), x[1::2].clone()


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    one = torch.library.Library(SPACE, "FRAGMENT")
    one.define("scaled(Tensor x, Tensor? y, float factor, int[] axes=[0]) -> Tensor")
    one.define("halves(Tensor x) -> (Tensor, Tensor)")
    one.impl("scaled", scaled, "CompositeExplicitAutograd")
    one.impl("halves", halves, "CompositeExplicitAutograd")
    yield getattr(torch.ops, SPACE)
    del one  # torch removes the operators with the library.


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, library: Any) -> None:
        super().__init__()
        self.library, self.layer = [library], torch.nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return self.library[0].scaled(self.layer(x), x, 0.5, [0]).relu()


def test_an_operator_without_translation_names_the_line_and_three_ways_out(library: Any) -> None:
    with pytest.raises(ConversionError, match=r"scaled.*test_custom_operators\.py:\d+") as caught:
        sardonyx.convert(Net(library), (torch.randn(4, 3),), exporter="sardonyx")
    assert all(text in caught.value.remedy for text in ("decomposition_table", "@sardonyx.operator", "--opaque"))


def test_a_decomposition_in_torch_is_used(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decomposition_table, library.scaled.default, scaled)
    report = sardonyx.convert(Net(library), (torch.randn(4, 3),)).report
    assert (report.way, report.verdict.status) == ("sardonyx", "proved") and len(report.sizes["batch"]) > 1


def test_a_definition_in_sardonyx_is_a_node_of_its_domain(library: Any) -> None:
    @sardonyx.operator("scaled", domain=SPACE, since=2)
    def definition(x: Tensor, y: Tensor | None = None, *, factor: float, axes: tuple[int, ...] = ()) -> Tensor:
        assert y is not None
        return x * factor + L.reduce_sum(y, list(axes), keepdims=True)

    try:
        result = sardonyx.convert(Net(library), (torch.randn(4, 3),))
        assert (result.report.way, result.report.verdict.status) == ("sardonyx", "proved")
        (node,) = [node for node in result.model.graph if node.domain == SPACE]
        assert node.op_type == "scaled" and list(node.attributes["axes"].as_ints()) == [0]
        assert result.model.opset_imports[SPACE] == 2
    finally:
        registry.remove("scaled", domain=SPACE)


@pytest.mark.parametrize("name", [f"{SPACE}::scaled", f"{SPACE}.scaled", SPACE])
def test_an_opaque_operator_is_a_node_and_not_proved(library: Any, name: str, tmp_path: Path) -> None:
    result = sardonyx.convert(Net(library), (torch.randn(4, 3),), opaque=[name], exporter="sardonyx")
    report = result.report
    assert report.verdict.status == "not proved" and "opaque" in report.verdict.reason
    assert any("opaque" in note for note in report.notes)
    assert [call.outcome for call in report.calls if "scaled" in call.operator] == ["opaque"]
    (node,) = [node for node in result.model.graph if node.domain == SPACE]
    assert node.attributes["factor"].as_float() == 0.5 and list(node.outputs[0].shape or ()) == ["batch", 3]
    with pytest.raises(VerificationError):
        result.save(tmp_path / "model.onnx")
    result.save(tmp_path / "model.onnx", unproved=True)


def test_an_opaque_model_answers_once_its_operator_is_defined(library: Any) -> None:
    class Halved(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            first, second = library.halves(x + 1)
            return first - second

    result = sardonyx.convert(Halved(), (torch.randn(4, 3),), opaque=[SPACE], exporter="sardonyx")

    @sardonyx.operator("halves", domain=SPACE, since=1)
    def definition(x: Tensor) -> tuple[Tensor, Tensor]:
        pairs = L.reshape(x, (2, 2, 3))
        return L.entry(pairs, 0, 1), L.entry(pairs, 1, 1)

    try:
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        name = str(result.model.graph.inputs[0].name)
        (answer,) = sardonyx.Session(result.model, providers=["reference"]).run(None, {name: x})
        np.testing.assert_array_equal(answer, np.full((2, 3), -3, np.float32))
    finally:
        registry.remove("halves", domain=SPACE)


def test_one_text_is_no_list_of_opaque_operators() -> None:
    with pytest.raises(OptionError, match="expected a list of names"):
        sardonyx.convert(torch.nn.ReLU(), (torch.randn(2),), opaque="my_ops::scale")
