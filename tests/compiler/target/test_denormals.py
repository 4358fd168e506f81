"""Denormal numbers: found in constants, and kept or flushed by every way to run a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import sardonyx
from sardonyx.compiler.target.denormals import holds_denormals
from sardonyx.errors import OptionError

pytestmark = pytest.mark.sampled

TINY = np.finfo(np.float32).smallest_normal
LARGE = 1 << 20
"""Enough numbers for all threads."""

FEEDS = {"x": np.full(LARGE, TINY, np.float32), "y": np.full(LARGE, 0.5, np.float32)}
PRODUCT = """<ir_version: 8, opset_import: ["": 17]>
    net (float[N] x, float[N] y) => (float[N] z) { z = Mul(x, y) }"""
WEIGHTED = """<ir_version: 8, opset_import: ["": 17]>
    net (float[4, 2] x) => (float[4, 2] z) { z = MatMul(x, w) }"""


@given(arrays(np.uint32, st.integers(0, 40)))
def test_denormals_are_found_by_their_bits(bits: np.ndarray) -> None:
    floats = bits.view(np.float32)
    expected = ((floats != 0) & (np.abs(floats) < TINY)).any()
    assert holds_denormals([np.zeros(3, np.float32), floats]) == expected


@pytest.mark.parametrize("number", [TINY, -TINY, 0.0, -0.0, np.inf, -np.inf, np.nan, 1.0])
def test_other_numbers_are_none(number: float) -> None:
    assert not holds_denormals([np.full(5, number, np.float32)])


@pytest.mark.parametrize("at", [0, 262143, 262144, 299999])
@pytest.mark.parametrize("number", [1e-45, -1e-45, 1.1754942e-38])
def test_one_among_many_is_found(number: float, at: int) -> None:
    many = np.ones(300_000, np.float32)
    many[at] = number
    assert holds_denormals([many])


def test_arrays_of_other_types_are_passed_over() -> None:
    assert not holds_denormals([np.ones(8, np.int32), np.full(8, 1e-7, np.float16)])


def session(text: str, **options: Any) -> sardonyx.Session:
    return sardonyx.Session(onnx.parser.parse_model(text), compile="wait", **options)


@pytest.mark.parametrize(("denormals", "expected"), [("keep", TINY / 2), ("flush", 0.0), ("auto", TINY / 2)])
@pytest.mark.parametrize("threads", [1, 2])
def test_all_ways_to_run_do_as_asked(denormals: Any, expected: float, threads: int) -> None:
    created = session(PRODUCT, denormals=denormals, threads=threads)
    # The third run in a row is generated code's.
    for _ in range(4):
        (actual,) = created.run(None, FEEDS)
        assert (actual == np.float32(expected)).all()
    binding = created.bind(FEEDS)
    binding.outputs["z"][...] = 1
    binding()
    assert (binding.outputs["z"] == np.float32(expected)).all()
    assert created.profile(FEEDS, runs=1).kernels
    assert np.float32(TINY) * np.float32(0.5) == TINY / 2, "the caller's own mode is as it was"


def weighted(weight: float) -> onnx.ModelProto:
    model = onnx.parser.parse_model(WEIGHTED)
    weights = np.array([[1.0, 2.0], [0.5, weight]], np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


@pytest.mark.parametrize(("weight", "expected"), [(1e-40, 0.0), (1e-30, TINY / 2)])
def test_by_default_weights_decide(
    weight: float, expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    file, compiled = tmp_path / "net.onnx", tmp_path / "net.sdx"
    onnx.save(weighted(weight), file)
    x = np.tile(np.array([0, TINY], np.float32), (4, 1))
    first = sardonyx.Session(file, compile="wait")
    first.save_compiled(compiled)
    for created in (first, sardonyx.Session(file, compile="wait"), sardonyx.Session(compiled, compile="wait")):
        assert (created.run(None, {"x": x})[0][:, 0] == np.float32(expected)).all()
    for source in (file, compiled):
        for denormals, requested in (("keep", TINY / 2), ("flush", 0.0)):
            created = sardonyx.Session(source, compile="wait", denormals=denormals)  # type: ignore[arg-type]
            assert (created.run(None, {"x": x})[0][:, 0] == np.float32(requested)).all()


def test_nothing_else_can_be_asked_for() -> None:
    with pytest.raises(OptionError, match="'auto', 'keep', 'flush'"):
        session(PRODUCT, denormals="maybe")
