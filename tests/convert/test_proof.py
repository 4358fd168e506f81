"""The proof of a conversion, on sources written in numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import load
from sardonyx.convert.conversion import Attempt, ConversionReport, Converted
from sardonyx.convert.drawing import assignments
from sardonyx.convert.imported import Call, Imported, Size, summarized
from sardonyx.convert.proof import Witness
from sardonyx.errors import EvaluationError, VerificationError
from sardonyx.rewrite.verify import Verdict

NET = """<ir_version: 9, opset_import: ["": 18]> net (float[N, 4] x) => (float[N, 4] y)
{ a = Exp(x)  b = Mul(a, x)  y = Neg(b) }"""


def net() -> Any:
    return load(onnx.parser.parse_model(NET))


def source(feeds: Mapping[str, Any]) -> dict[str, Any]:
    return {"y": -(np.exp(feeds["x"]) * feeds["x"])}


def imported(run: Any = source, **more: Any) -> Imported:
    return Imported(net(), run, sizes={"N": Size(3)}, **more)


def test_equal_answers_are_proved_at_several_sizes() -> None:
    proof = Witness(imported()).judge(net())
    assert proof.verdict.status == "proved"
    assert {1, 3} < set(proof.confirmed["N"])


def test_a_difference_at_one_size_alone_is_detected() -> None:
    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return source(feeds) if len(feeds["x"]) != 1 else {"y": feeds["x"]}

    verdict = Witness(imported(run)).judge(net()).verdict
    assert verdict.status == "different" and "{'N': 1}" in verdict.reason


def test_the_first_wrong_layer_is_named() -> None:
    def inner(feeds: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
        yield "a", "layer 1", np.exp(feeds["x"])
        yield "b", "layer 2 (net.py:7)", np.exp(feeds["x"]) + feeds["x"]
        yield "y", "layer 3", -(np.exp(feeds["x"]) + feeds["x"])

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": -(np.exp(feeds["x"]) + feeds["x"])}

    proof = Witness(imported(run, inner=inner)).judge(net())
    assert proof.verdict.status == "different"
    assert proof.guilty.startswith("layer 2 (net.py:7)")


def test_sizes_that_the_source_refuses_are_left_out() -> None:
    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        if len(feeds["x"]) != 3:
            raise EvaluationError("expected three rows")
        return source(feeds)

    proof = Witness(imported(run)).judge(net())
    assert proof.verdict.status == "proved" and proof.confirmed["N"] == (3,)


def test_a_source_that_magnifies_rounding_errors_decides_nothing() -> None:
    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        noise = np.sin(feeds["x"].astype(np.float64) * 1e9)
        return {"y": (source(feeds)["y"] * (1 + 0.1 * noise)).astype(np.float32)}

    verdict = Witness(imported(run)).judge(net()).verdict
    assert verdict.status == "not proved" and "last bits" in verdict.reason


def coarse(feeds: Mapping[str, Any], shift: float = 0.0) -> dict[str, Any]:
    """Answer like a source that computes with 8-bit codes: one code is 1/40."""
    exact = source(feeds)["y"] + shift
    return {"y": (np.round(exact * 40) / 40).astype(np.float32)}


def test_a_quantized_source_may_differ_by_a_code_of_its_inputs() -> None:
    proof = Witness(imported(coarse, code_bits=8)).judge(net())
    assert proof.verdict.status == "proved" and "8-bit" in " ".join(proof.verdict.notes)


def test_a_quantized_source_may_differ_by_a_code_of_its_outputs() -> None:
    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": source(feeds)["y"] + np.float32(0.09) * (feeds["x"].max() > 0)}

    # The answers do not move with the codes of the inputs, and are off by less than one code of the output.
    assert Witness(imported(run, code_bits=16)).judge(net()).verdict.status == "different"
    verdict = Witness(imported(run, code_bits=16, code_steps={"y": 0.1})).judge(net()).verdict
    assert verdict.status == "proved" and "16-bit outputs" in " ".join(verdict.notes)


TWO = """<ir_version: 9, opset_import: ["": 18]> net (float[N, 4] x) => (float[N, 4] y, float[N, 4] z)
{ y = Neg(x)  a = Abs(x)  z = Mul(a, x) }"""


@pytest.mark.parametrize("code_steps", [{}, {"y": 20.0}, {"y": 0.01}])
def test_a_code_of_one_output_explains_no_other(code_steps: Mapping[str, float]) -> None:
    def two() -> Any:
        return load(onnx.parser.parse_model(TWO))

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": -feeds["x"], "z": -np.abs(feeds["x"]) * feeds["x"]}

    sizes = {"N": Size(3)}
    verdict = Witness(Imported(two(), run, sizes=sizes, code_bits=8, code_steps=code_steps)).judge(two()).verdict
    assert verdict.status == "different" and "'z'" in verdict.reason


def test_a_code_as_large_as_the_output_decides_nothing() -> None:
    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": -source(feeds)["y"]}

    verdict = Witness(imported(run, code_bits=8, code_steps={"y": 1e6})).judge(net()).verdict
    assert verdict.status == "not proved" and "too much to decide" in verdict.reason


def test_a_change_of_the_weights_in_the_last_bits_is_noise() -> None:
    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": source(feeds)["y"] * np.float32(1.001)}

    def shaken(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
        return {"y": run(feeds)["y"] * np.float32(1.002)}

    assert Witness(imported(run)).judge(net()).verdict.status == "different"
    verdict = Witness(imported(run, shaken=shaken)).judge(net()).verdict
    assert "last bits" in " ".join((verdict.reason, *verdict.notes))


@pytest.mark.parametrize("scale", [np.inf, np.nan, 5.0])
def test_a_large_change_by_the_weights_explains_no_wrong_model(scale: float) -> None:
    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": source(feeds)["y"] * np.float32(1.5)}

    def shaken(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
        return {"y": run(feeds)["y"] * np.float32(scale)}

    assert Witness(imported(run, shaken=shaken)).judge(net()).verdict.status == "different"


def test_a_wrong_model_of_a_quantized_source_is_detected() -> None:
    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return coarse(feeds, shift=0.5)

    assert Witness(imported(run, code_bits=8)).judge(net()).verdict.status == "different"


def test_a_source_that_cannot_run_is_not_proved_with_its_reason() -> None:
    without = Imported(net(), None, reason="tensorflow is not installed")
    assert Witness(without).judge(net()).verdict.reason == "tensorflow is not installed"


def test_numbers_keep_the_range_of_the_example() -> None:
    seen: list[np.ndarray] = []

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        seen.append(feeds["x"])
        return source(feeds)

    example = {"x": np.random.default_rng(0).uniform(0.2, 0.8, (3, 4)).astype(np.float32)}
    Witness(imported(run, examples=(example,)))
    assert len(seen) > 3 and all(x.min() >= 0.2 and x.max() <= 0.8 for x in seen)


def test_every_open_size_is_changed_by_itself() -> None:
    tried = list(assignments({"N": Size(4), "T": Size(6, low=3, high=8)}, {"N": True}))
    assert tried[0] == {"N": 4, "T": 6} and tried[1] == {"N": 1, "T": 6}
    assert any(one["N"] == 4 and one["T"] != 6 for one in tried)
    assert all(3 <= one["T"] <= 8 for one in tried)


def test_a_model_that_is_not_proved_is_not_written(tmp_path: Path) -> None:
    report = ConversionReport(
        "net", "sardonyx", Verdict("different", reason="y"), attempts=(Attempt("a", "different"),)
    )
    converted = Converted(net(), report)
    with pytest.raises(VerificationError, match="not proved equal to its source"):
        converted.save(tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())
    converted.save(tmp_path / "net.onnx", unproved=True)
    assert (tmp_path / "net.onnx").exists()


def test_equal_calls_are_counted() -> None:
    calls = [Call("aten.relu", "converted", "a"), Call("aten.add", "converted"), Call("aten.relu", "converted", "b")]
    assert summarized(calls) == (Call("aten.relu", "converted", "a", 2), Call("aten.add", "converted", "", 1))


def test_a_source_that_answers_equal_inputs_differently_proves_nothing() -> None:
    calls: list[int] = []

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return {"y": source(feeds)["y"] * (1 + max(0, len(calls) - 2))}

    verdict = Witness(imported(run)).judge(net()).verdict
    assert verdict.status == "not proved" and "equal inputs differently" in verdict.reason


def test_a_source_whose_first_call_differs_proves_nothing() -> None:
    example = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)}
    first = {"y": source(example)["y"] * 10}
    verdict = Witness(imported(examples=(example,), first=first)).judge(net()).verdict
    assert verdict.status == "not proved" and "equal inputs differently" in verdict.reason
