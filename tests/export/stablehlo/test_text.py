"""StableHLO text: readable operations, open sizes, refusals by name, and equality as run by XLA."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import onnx
import pytest

import sardonyx
from sardonyx.errors import UnsupportedError
from tests.export.agreement import disagreement
from tests.ops.differential import GENERATORS
from tests.random_cases import cases

with_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed (extra: jax)")

NET = """<ir_version: 9, opset_import: ["": 18]> small_net (float[N, 4] x) => (float[N, 4] y)
<float[4, 4] w = {1., 2., 3., 4., 5., 6., 7., 8., 9., 1., 2., 3., 4., 5., 6., 7.}>
{ a = MatMul(x, w)  b = Softmax(a)  y = Exp(b) }"""

LOOP = """<ir_version: 9, opset_import: ["": 20]>
net (float[T, 4] x, float[4] start) => (float[4] last, float[T, 4] steps)
{
   last, steps = Scan <num_scan_inputs = 1, body = step (float[4] s, float[4] row) => (float[4] next, float[4] out) {
      sum = Add(s, row)
      next = Tanh(sum)
      out = Mul(next, row)
   }> (start, x)
}"""

BRANCH = """<ir_version: 9, opset_import: ["": 20]> net (float[N] x) => (float[N] y)
{
   total = ReduceSum <keepdims = 0> (x)
   zero = Constant <value = float {0}> ()
   positive = Greater(total, zero)
   y = If (positive) <
      then_branch = first () => (float[N] a) { a = Neg(x) },
      else_branch = second () => (float[N] b) { b = Exp(x) }
   >
}"""

COUNTED = """<ir_version: 9, opset_import: ["": 20]> net (float[N, 4] x) => (int64[2, M] y) { y = NonZero(x) }"""

COUNTED_SIZE = """<ir_version: 9, opset_import: ["": 20]> net (float[N] x, int64[1] n) => (float[M] y)
{ y = Expand(x, n) }"""


def proto(text: str = NET) -> Any:
    return onnx.parser.parse_model(text)


def test_text_names_values_as_the_model_does() -> None:
    text = sardonyx.convert_to(proto(), "stablehlo", verify=False).artifact
    assert "module @SmallNet {" in text
    assert "func.func public @main(%x: tensor<?x4xf32>) -> (tensor<?x4xf32>)" in text
    assert "%y = stablehlo.exponential %b : tensor<?x4xf32>" in text


def test_fixed_sizes_are_static() -> None:
    text = sardonyx.convert_to(proto(), "stablehlo", sizes={"N": 3}, verify=False).artifact
    assert "?" not in text and "dynamic" not in text


@pytest.mark.parametrize("text", [COUNTED, COUNTED_SIZE], ids=["NonZero", "Expand"])
def test_sizes_decided_by_data_are_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match=r"StableHLO has no|decided by data"):
        sardonyx.convert_to(proto(text), "stablehlo")
    (finding,) = sardonyx.check(proto(text), target="stablehlo")
    assert finding.code == "target-form"


def test_sizes_computed_in_floats_are_refused() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> net (float[N] x) => (float[M] y) <float[1] half = {0.5}>
    { s = Shape(x)  f = Cast <to = 1> (s)  h = Mul(f, half)  n = Cast <to = 7> (h)
      o = ConstantOfShape <value = float[1] {2.0}> (n)  m = ReduceMean(x)  y = Mul(o, m) }"""
    with pytest.raises(UnsupportedError, match="computed in floats"):
        sardonyx.convert_to(proto(text), "stablehlo")
    (finding,) = sardonyx.check(proto(text), target="stablehlo")
    assert finding.code == "target-form"
    assert sardonyx.convert_to(proto(text), "stablehlo", sizes={"N": 6}).report.verdict.status != "different"


def test_without_jax_the_text_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "jax" else find(name, *rest))
    verdict = sardonyx.convert_to(proto(), "stablehlo").report.verdict
    assert verdict.status == "not proved" and "jax is not installed" in verdict.reason


@with_jax
@pytest.mark.parametrize("text", [NET, LOOP, BRANCH], ids=["layers", "Scan", "If"])
def test_xla_gives_the_answers_of_the_model_at_several_sizes(text: str, tmp_path: Path) -> None:
    result = sardonyx.convert_to(proto(text), "stablehlo")
    assert result.report.verdict.status == "proved", result.report.verdict
    assert all(len(values) > 1 for values in result.report.sizes.values())
    assert [file.name for file in result.save(tmp_path / "net.mlir")] == ["net.mlir"]


@with_jax
@pytest.mark.long
@pytest.mark.parametrize("operator", sorted(GENERATORS))
def test_an_operator_run_by_xla_equals_its_definition(operator: str) -> None:
    from sardonyx.export.stablehlo import exporter

    for seed in range(cases(3)):
        assert disagreement(exporter, operator, seed) is None
