"""Bad samples end in a named error in every function of compression, and samples that are given judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.compress.evidence.labels import stored_metric
from sardonyx.compress.float16 import auto_mixed_precision
from sardonyx.compress.recovery import distill
from sardonyx.errors import EvaluationError, OptionError
from sardonyx.model import load
from tests.compress.perceptron import TEXT, network, samples, weight

VERBS: Mapping[str, Callable[[bytes, Any], Any]] = {
    "quantize": sardonyx.quantize,
    "quantize dynamic": lambda model, data: sardonyx.quantize(model, data, mode="dynamic"),
    "quantize int4": lambda model, data: sardonyx.quantize(model, data, weights="int4"),
    "prune channels": lambda model, data: sardonyx.prune(model, data, channels=0.3),
    "prune channels alone": lambda model, data: sardonyx.prune(model, data, channels=0.3, recover="none"),
    "prune zeros": lambda model, data: sardonyx.prune(model, data, sparsity=0.5),
    "prune zeros alone": lambda model, data: sardonyx.prune(
        model, data, sparsity=0.5, criterion="magnitude", recover="none"
    ),
    "cluster": sardonyx.cluster,
    "factorize": lambda model, data: sardonyx.factorize(model, data, rank=0.3),
    "compress": lambda model, data: sardonyx.compress(model, data, trials=2, measured=False),
    "fp16": lambda model, data: auto_mixed_precision(model, data, tolerance=0.01),
    "fine-tune": lambda model, data: distill(load(model), load(model), data, steps=6),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("number", [0, 3])  # Sample 3 is held back to judge.
def test_a_sample_with_nan_is_named(verb: str, number: int) -> None:
    data = samples()
    data[number]["x"][1, 2] = np.nan
    with pytest.raises(EvaluationError, match=rf"sample {number}, x: the sample holds NaN"):
        VERBS[verb](network(), data)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "fine-tune"])
def test_what_holds_no_samples_is_named(verb: str) -> None:
    with pytest.raises(OptionError, match="got int"):
        VERBS[verb](network(), 3)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.startswith("prune")])
def test_all_samples_are_read_and_those_held_back_judge(verb: str) -> None:
    evidence = VERBS[verb](network(), samples(9)).report.evidence
    assert (evidence.samples, evidence.judged, len(evidence.outputs)) == (9, "held out", 1)
    with pytest.raises(OptionError, match="sample 6: expected FLOAT"):
        VERBS[verb](network(), [*samples(), {"x": weight(4, 9)}])


def test_a_labelled_sample_with_nan_is_named_with_its_file(tmp_path: Path) -> None:
    x = np.concatenate([one["x"] for one in samples(2)])
    x[5, 2] = np.nan
    np.savez(tmp_path / "eval.npz", x=x, labels=np.zeros(len(x), np.int64))
    with pytest.raises(EvaluationError, match=r"eval\.npz, sample 5, x: the sample holds NaN"):
        stored_metric("top1", tmp_path / "eval.npz", load(network()))


def test_nan_for_a_missing_value_is_a_sample() -> None:
    text = TEXT.replace(
        "h = Gemm(x,", "s = Squeeze(x) n = IsNaN(s) z = CastLike(zero, x) w = Where(n, z, s) h = Gemm(w,"
    ).replace("float[N, 8] x)", "float[1, N, 8] x)")
    model = onnx.load_from_string(network(text))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(0, np.float32), "zero"))
    data = [{"x": one["x"][None]} for one in samples()]
    data[0]["x"][0, 1, 2] = np.nan
    assert sardonyx.quantize(model.SerializeToString(), data).report.samples == 6


def test_infinity_of_both_signs_is_no_nan() -> None:
    text = TEXT.replace("h = Gemm(x,", "k = Clip(x, low, high) h = Gemm(k,")
    model = onnx.load_from_string(network(text))
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(bound, np.float32), name) for name, bound in (("low", -1), ("high", 1))
    )
    data = samples()
    data[0]["x"][0, :2] = np.inf, -np.inf
    assert sardonyx.prune(model.SerializeToString(), data, channels=0.3).report.evidence.samples == 6


@pytest.mark.parametrize("verb", ["quantize int4", "prune zeros", "cluster", "factorize"])
def test_outputs_without_elements_have_no_error(verb: str) -> None:
    evidence = VERBS[verb](network(), [{"x": weight(0, 8)}] * 6).report.evidence
    assert not evidence.outputs
    assert (evidence.verdict, evidence.reason) == ("not judged", "no output has elements in the judged samples")


def test_answers_that_are_not_finite_cannot_be_learned() -> None:
    data = samples()
    data[2]["x"][0, 0] = np.inf
    with pytest.raises(EvaluationError, match="sample 2, y: the original computes NaN or infinity"):
        VERBS["fine-tune"](network(), data)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "fine-tune"])
def test_data_that_raise_are_named(verb: str) -> None:
    def failing() -> Any:
        yield samples()[0]
        raise OSError("disk full")

    with pytest.raises(EvaluationError, match="sample 1: the iterable raised OSError: disk full"):
        VERBS[verb](network(), failing())


EXCLUDING: Mapping[str, Callable[[Any], Any]] = {
    "quantize": lambda exclude: sardonyx.quantize(network(), exclude=exclude),
    "prune": lambda exclude: sardonyx.prune(network(), channels=0.3, exclude=exclude),
    "factorize": lambda exclude: sardonyx.factorize(network(), exclude=exclude),
    "cluster": lambda exclude: sardonyx.cluster(network(), exclude=exclude),
}


@pytest.mark.parametrize("verb", EXCLUDING)
def test_a_text_is_one_excluded_name(verb: str) -> None:
    with pytest.raises(OptionError, match="no operator nobody"):
        EXCLUDING[verb]("nobody")
    with pytest.raises(OptionError, match="exclude: expected a collection of names, got 3"):
        EXCLUDING[verb](3)


def test_numbers_that_stand_for_infinity_in_all_samples_are_the_reason() -> None:
    data = [{"x": np.full_like(one["x"], 1e10)} for one in samples()]
    with pytest.raises(OptionError, match=r"has a range \(.*: numbers of 10\^8 or more, as for infinity"):
        sardonyx.quantize(network(), data)
