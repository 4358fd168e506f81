"""User-defined operators: inferred, run, folded, proved; undefined ones are preserved, and refused by a session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx.cli import main
from sardonyx.core import language as L
from sardonyx.core.eval.host_function import unknown_size
from sardonyx.core.ir.types import INT64, TensorType
from sardonyx.errors import InvalidModelError, OptionError, UnsupportedError
from sardonyx.ops.operators_file import load_operators

MODEL = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17, "my.domain": 3]>
    g (float[N, 3] x) => (float[N, 3] y, int64[M] p) <float[3] w = {1.0, 2.0, 3.0}, float[3] zero = {0.0, 0.0, 0.0}> {
        [folded] c = my.domain.Cube <scale: float = 2.0> (w)
        [first] a = my.domain.Cube (x)
        [second] b = my.domain.Cube (x)
        d = Mul(a, b)  e = Add(d, c)  y = Add(e, zero)
        [places] p = my.domain.Positions (x) }
""")
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


@pytest.fixture
def defined() -> None:
    @sardonyx.operator("Cube", domain="my.domain", since=1)
    def cube(x: L.Tensor, *, scale: float = 1.0) -> L.Tensor:
        return x * x * x * scale

    def types(x: TensorType) -> tuple[TensorType]:
        return (TensorType(INT64, (unknown_size(),)),)

    @sardonyx.host_operator("Positions", domain="my.domain", since=1, types=types)
    def positions(x: np.ndarray) -> tuple[np.ndarray]:
        return (np.flatnonzero(x > 0),)


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_a_session_runs_user_operators(defined: None) -> None:
    y, p = sardonyx.Session(MODEL).run(None, {"x": X})
    np.testing.assert_array_equal(y, X**6 + 2 * np.array([1, 8, 27], np.float32))
    np.testing.assert_array_equal(p, [3, 4, 5])


def test_shapes_are_inferred_through_user_operators(defined: None) -> None:
    model = sardonyx.load(MODEL)
    sardonyx.infer_shapes(model)
    types = {value.name: f"{value.dtype} {value.shape}" for node in model.graph for value in node.outputs}
    assert (types["a"], types["c"], types["p"]) == ("FLOAT [N,3]", "FLOAT [3]", "INT64 [M]")


def test_the_optimizer_folds_merges_and_proves_user_operators(defined: None) -> None:
    result = sardonyx.optimize(MODEL)
    assert operators(result.model) == ["Cube", "Mul", "Add", "Positions"]
    assert result.report.verdict.status == "proved"
    assert "in this process" in result.report.verdict.notes[-1]
    got = sardonyx.Session(result.model).run(None, {"x": X})
    for one, other in zip(got, sardonyx.Session(MODEL).run(None, {"x": X}), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_random_operator_is_neither_folded_nor_merged() -> None:
    @sardonyx.operator("Cube", domain="my.domain", since=1)
    def noisy(x: L.Tensor, *, scale: float = 1.0, identity: str) -> L.Tensor:
        return x * scale

    assert operators(sardonyx.optimize(MODEL, verify=False).model).count("Cube") == 3


def test_undefined_operators_are_preserved() -> None:
    result = sardonyx.optimize(MODEL)
    assert [name for name in operators(result.model) if name in ("Cube", "Positions")] == ["Cube"] * 3 + ["Positions"]
    assert result.report.verdict.status == "proved by parts"
    assert [node.attributes["scale"].as_float() for node in result.model.graph if node.name == "folded"] == [2.0]
    assert result.model.opset_imports["my.domain"] == 3


def test_a_session_lists_undefined_operators_and_their_nodes() -> None:
    with pytest.raises(UnsupportedError) as caught:
        sardonyx.Session(MODEL)
    for part in ("my.domain.Cube (version 3 of my.domain)", "folded", "first", "second", "Positions", "places"):
        assert part in str(caught.value)


def test_a_version_holds_up_to_the_next(defined: None) -> None:
    @sardonyx.operator("Cube", domain="my.domain", since=4)
    def later(x: L.Tensor) -> L.Tensor:
        return x

    newer = onnx.ModelProto.FromString(MODEL.SerializeToString())
    del newer.graph.node[0].attribute[:]
    newer.opset_import[1].version = 4
    np.testing.assert_array_equal(sardonyx.Session(newer).run(["a"], {"x": X})[0], X)
    np.testing.assert_array_equal(sardonyx.Session(MODEL).run(["a"], {"x": X})[0], X**3)


def test_attributes_are_checked(defined: None) -> None:
    wrong = onnx.ModelProto.FromString(MODEL.SerializeToString())
    wrong.graph.node[0].attribute[0].name = "size"
    with pytest.raises(InvalidModelError, match=r"folded.*no attribute 'size'.*scale"):
        sardonyx.Session(wrong)


FILE = """
import sardonyx
from sardonyx.core.language import Tensor

@sardonyx.operator("Cube", domain="my.domain", since=1)
def cube(x: Tensor, *, scale: float = 1.0) -> Tensor:
    return x * x * x * scale

@sardonyx.operator("Positions", domain="my.domain", since=1)
def positions(x: Tensor) -> Tensor:
    return sardonyx.core.language.constant([1, 2])
"""


def test_the_command_line_accepts_a_file_of_definitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    onnx.save(MODEL, tmp_path / "model.onnx")
    with pytest.raises(SystemExit) as ended:
        main(["optimize", str(tmp_path / "model.onnx"), "--operators", str(tmp_path / "mine.py"), "--strict", "--json"])
    assert not ended.value.code
    assert '"proved"' in capsys.readouterr().out


@pytest.mark.parametrize(("text", "problem"), [("x = 1", "defines no operator"), ("1 / 0", "division by zero")])
def test_a_file_that_defines_nothing_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(OptionError, match=problem):
        load_operators(tmp_path / "mine.py")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="expected an existing Python file"):
        load_operators(tmp_path / "mine.py")
