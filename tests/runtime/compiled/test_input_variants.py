"""Inputs with a default value: compiled as constants, and overridden by any call."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.errors import FeedError, ShapeError

TEXT = """<ir_version: {version}, opset_import: ["": 18]>
    net (float[N, 8] x, float[8, 6] w, float[6] b, int64[K] shape) => (y, float[N, 6] s) {{
        h = MatMul(x, w)
        t = Add(h, b)
        s = Softmax(t)
        y = Reshape(s, shape)
    }}"""
RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 8)).astype(np.float32)
DEFAULTS: dict[str, np.ndarray] = {
    "w": RNG.standard_normal((8, 6)).astype(np.float32),
    "b": RNG.standard_normal(6).astype(np.float32),
    "shape": np.array([-1, 3, 2]),
}
OTHERS: dict[str, np.ndarray] = {"w": -DEFAULTS["w"], "b": DEFAULTS["b"] + 1, "shape": np.array([2, -1])}
SUBSETS = [names for count in range(4) for names in itertools.combinations(DEFAULTS, count)]


def net(version: int = 9, producer: str = "") -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT.format(version=version))
    model.producer_name = producer
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in DEFAULTS.items())
    return model


def session_of(model: Any, **options: Any) -> sardonyx.Session:
    return sardonyx.Session(model, **{"compile": "wait", "threads": 1, **options})


def feeds_of(names: tuple[str, ...]) -> dict[str, np.ndarray]:
    return {"x": X, **{name: OTHERS[name] for name in names}}


def expected(names: tuple[str, ...], defaults: dict[str, np.ndarray] | None = None) -> list[np.ndarray]:
    values = {**DEFAULTS, **(defaults or {}), **feeds_of(names)}
    h = X @ values["w"] + values["b"]
    e = np.exp(h - h.max(axis=1, keepdims=True))
    s = e / e.sum(axis=1, keepdims=True)
    return [s.reshape(values["shape"]), s]


def require_answers(
    session: sardonyx.Session, names: tuple[str, ...], defaults: dict[str, np.ndarray] | None = None
) -> None:
    for actual, reference in zip(session.run(None, feeds_of(names)), expected(names, defaults), strict=True):
        assert actual.shape == reference.shape
        np.testing.assert_allclose(actual, reference, rtol=1e-5, atol=1e-6)


def calls(session: sardonyx.Session) -> dict[str, int]:
    return {note.name: note.calls for note in session.answerers if note.calls}


def variants(session: sardonyx.Session) -> list[str]:
    """The variants of the session, as named in the memory report."""
    return sorted({plan.where for plan in session.memory().plans if " fed" in plan.where})


@pytest.mark.parametrize(("version", "producer"), [(9, ""), (3, ""), (9, "pytorch")])
def test_native_code_answers_calls_for_the_defaults(version: int, producer: str) -> None:
    session = session_of(net(version, producer))
    require_answers(session, ())
    assert calls(session) == {"native": 1}
    assert {placement.provider for placement in session.placement} == {"native"}


@pytest.mark.parametrize("options", [{}, {"compile": "off"}, {"optimization": "none"}, {"optimization": "basic"}])
def test_any_subset_of_the_defaults_can_be_overridden(options: dict[str, Any]) -> None:
    session = session_of(net(), **options)
    for names in [*SUBSETS, *reversed(SUBSETS)]:
        require_answers(session, names)


def test_compiled_code_answers_calls_that_override_weights() -> None:
    session = session_of(net())
    for names in (("w",), ("b",), ("w", "b"), ("b",)):
        require_answers(session, names)
    assert calls(session) == {"input variant": 4}
    assert variants(session) == ["with b fed", "with w fed", "with w, b fed"]


def test_one_general_program_answers_after_the_first_sets_of_inputs() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        net (float[N] x, float[N] a, float[N] b, float[N] c) => (float[N] y) { y = Sum(x, a, b, c) }""")
    default = {name: np.full(2, value, np.float32) for name, value in (("a", 1), ("b", 10), ("c", 100))}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in default.items())
    session = session_of(model)
    subsets = [names for count in (1, 2, 3) for names in itertools.combinations("abc", count)]
    for names in subsets * 2:
        fed = {name: np.full(2, 1000, np.float32) for name in names}
        (actual,) = session.run(None, {"x": np.zeros(2, np.float32), **fed})
        np.testing.assert_array_equal(actual, sum({**default, **fed}.values()))
    assert calls(session) == {"input variant": 14}
    assert variants(session) == ["with a fed", "with a, b, c fed", "with b fed", "with c fed"]


def test_calls_are_answered_before_a_variant_is_compiled() -> None:
    session = session_of(net(), compile="background")
    for names in SUBSETS:
        require_answers(session, names)
    assert session.wait()
    for names in SUBSETS:
        require_answers(session, names)


def test_threads_override_different_defaults() -> None:
    session = session_of(net(), compile="background")
    with ThreadPoolExecutor(4) as pool:
        for result in [pool.submit(require_answers, session, names) for names in SUBSETS * 6]:
            result.result()


def test_edits_of_a_default_change_calls_that_do_not_override_the_default() -> None:
    session = session_of(net())
    for names in ((), ("w",), ("b",)):
        require_answers(session, names)
    edited = {"w": 2 * DEFAULTS["w"]}
    session.set_weight("w", edited["w"])
    for names in ((), ("w",), ("b",), ("w", "b")):
        require_answers(session, names, edited)
    assert calls(session) == {"native": 1, "input variant": 3}
    assert [info.name for info in session.get_overridable_initializers()] == ["w", "b", "shape"]
    session.undo()
    for names in ((), ("b",)):
        require_answers(session, names)


def test_a_stored_program_serves_defaults_and_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "net.onnx"
    onnx.save(net(), file)
    os.utime(file, (1e9, 1e9))
    declared = session_of(file).get_overridable_initializers()
    with monkeypatch.context() as patch:
        patch.setattr("sardonyx.runtime.live.model_version.ModelVersion.compile", None)
        restored = session_of(file)
    assert [repr(info) for info in restored.get_overridable_initializers()] == [repr(info) for info in declared]
    for names in SUBSETS:
        require_answers(restored, names)


def test_a_compiled_file_holds_the_defaults_as_constants(tmp_path: Path) -> None:
    session_of(net()).save_compiled(tmp_path / "net.sdx")
    session = session_of(tmp_path / "net.sdx")
    assert [info.name for info in session.get_inputs()] == ["x"]
    assert session.get_overridable_initializers() == []
    require_answers(session, ())
    with pytest.raises(FeedError, match="holds the default of this input as a constant") as raised:
        session.run(None, feeds_of(("b",)))
    assert raised.value.where == "b"


@pytest.mark.parametrize("compile", ["off", "wait"])
def test_sizes_that_contradict_a_default_are_refused(compile: str) -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        net (float[N] x, float[N] w) => (float[1] y, v) { y = ReduceSum(x) v = Relu(w) }""")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    session = session_of(model, compile=compile)
    assert session.run(None, {"x": np.ones(3, np.float32)})[0].tolist() == [3]
    with pytest.raises(ShapeError):
        session.run(None, {"x": np.ones(4, np.float32)})
    four = np.ones(4, np.float32)
    assert session.run(None, {"x": four, "w": four})[0].tolist() == [4]


@pytest.mark.parametrize("compile", ["off", "wait"])
def test_invalid_feeds_of_inputs_with_a_default_are_refused(compile: str) -> None:
    session = session_of(net(), compile=compile)
    for feeds in ({"w": OTHERS["w"]}, {"x": X, "u": X}, {"x": X, "w": OTHERS["w"].astype(np.float64)}):
        with pytest.raises(FeedError):
            session.run(None, feeds)
    with pytest.raises(ShapeError):
        session.run(None, {"x": X, "w": np.ones((9, 6), np.float32)})


def test_a_program_for_values_of_inputs_accepts_overrides() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        net (float[N, 6] x, int64[K] shape, float[1] by) => (y) { t = Mul(x, by) y = Reshape(t, shape) }""")
    model.graph.initializer.append(numpy_helper.from_array(np.full(1, 2, np.float32), "by"))
    session = session_of(model)
    x = np.ones((2, 6), np.float32)
    for fed, value in (({}, 2), ({"by": np.full(1, 5, np.float32)}, 5)):
        (actual,) = session.run(None, {"x": x, "shape": np.array([3, 4]), **fed})
        np.testing.assert_array_equal(actual, np.full((3, 4), value, np.float32))
    assert calls(session) == {"specialization": 1, "input variant": 1}


def test_inner_results_of_a_call_with_overrides_are_computed() -> None:
    session = session_of(net())
    for names in SUBSETS:
        (t,) = session.run(["t"], feeds_of(names))
        values = {**DEFAULTS, **feeds_of(names)}
        np.testing.assert_allclose(t, X @ values["w"] + values["b"], rtol=1e-5, atol=1e-5)


def test_a_binding_feeds_an_input_with_a_default() -> None:
    session = session_of(net())
    binding = session.bind(feeds_of(("b",)))
    binding()
    np.testing.assert_allclose(binding.outputs["s"], expected(("b",))[1], rtol=1e-5, atol=1e-6)


def test_a_text_can_be_a_default() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        net (float[N] x, string[1] note, float[1] by) => (float[N] y, string[1] copy) {
            y = Mul(x, by) copy = Identity(note) }""")
    model.graph.initializer.append(onnx.helper.make_tensor("note", onnx.TensorProto.STRING, [1], [b"default"]))
    model.graph.initializer.append(numpy_helper.from_array(np.full(1, 2, np.float32), "by"))
    session = session_of(model)
    x = np.ones(2, np.float32)
    for fed, by, note in (({}, 2, "default"), ({"by": x[:1]}, 1, "default"), ({"note": np.array(["fed"])}, 2, "fed")):
        y, copy = session.run(None, {"x": x, **fed})
        assert y.tolist() == [by, by] and copy.tolist() == [note]
