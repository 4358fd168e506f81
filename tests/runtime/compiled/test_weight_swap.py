"""Other weights of compiled models with control flow: prepared without another trace, equal to a fresh session."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from sardonyx import Session
from sardonyx.runtime.compiled import frontend

HEADER = '<ir_version: 10, opset_import: ["": 21]>'

GRAPHS = {
    "lstm": """g (float[5, N, 6] x) => (float[5, 1, N, 8] y)
        <float[1, 32, 6] w, float[1, 32, 8] r, float[1, 64] b> { y = LSTM <hidden_size = 8> (x, w, r, b) }""",
    "gru of both directions": """g (float[5, N, 6] x) => (float[5, 2, N, 8] y)
        <float[2, 24, 6] w, float[2, 24, 8] r, float[2, 48] b> {
            y = GRU <hidden_size = 8, direction = "bidirectional", linear_before_reset = 1> (x, w, r, b) }""",
    "gru of both directions, of some units": """g (float[5, N, 40] x) => (float[5, 2, N, 96] y)
        <float[2, 288, 40] w, float[2, 288, 96] r, float[2, 576] b> {
            y = GRU <hidden_size = 96, direction = "bidirectional", linear_before_reset = 1> (x, w, r, b) }""",
    "rnn after a layer": """g (float[5, N, 6] x) => (float[N, 3] y)
        <float[6, 6] d, float[1, 8, 6] w, float[1, 8, 8] r, float[1, 16] b, float[8, 3] h> {
            i = MatMul(x, d) s, last = RNN <hidden_size = 8> (i, w, r, b)
            axis = Constant <value_ints = [0]> () z = Squeeze(last, axis) y = MatMul(z, h) }""",
    "scan with a body that reads a weight": """g (float[N, 7, 6] x, float[N, 6] s) =>
        (float[N, 6] y, float[N, 7, 6] rows)
        <float[6, 6] w, float[6] b> {
            y, rows = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
                body = step (float[N, 6] h, float[N, 6] row) => (float[N, 6] next, float[N, 6] out) {
                    a = Add(h, row) p = MatMul(a, w) q = Add(p, b) next = Tanh(q) out = Relu(next) }> (s, x) }""",
    "loop with an open count": """g (float[N, 6] x, int64 count) => (float[N, 6] y) <float[6, 6] w> {
            yes = Constant <value = bool {1}> ()
            y = Loop <body = step (int64 i, bool go, float[N, 6] h) => (bool on, float[N, 6] next) {
                on = Identity(go) t = Transpose(w) p = MatMul(h, t) next = Tanh(p) }> (count, yes, x) }""",
    "branches with weights": """g (float[N, 6] x, bool c) => (float[N, 6] y) <float[6, 6] w, float[6, 6] v> {
            y = If (c) <then_branch = a () => (float[N, 6] p) { p = MatMul(x, w) },
                else_branch = b () => (float[N, 6] q) { t = Transpose(v) r = MatMul(x, t) q = Relu(r) }>
            }""",
    "a product of two weights": """g (float[N, 6] x) => (float[N, 9] y) <float[6, 8] w, float[8, 9] v> {
            p = MatMul(w, v) y = MatMul(x, p) }""",
}
IN_TRACE = {"scan with a body that reads a weight", "loop with an open count", "branches with weights"}
"""Graphs with bodies, which each update traces."""


def model_of(name: str, seed: int) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{HEADER} {GRAPHS[name]}")
    weights = weights_of(model, seed)
    del model.graph.value_info[:]
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def weights_of(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {info.name: [d.dim_value for d in info.type.tensor_type.shape.dim] for info in model.graph.value_info}
    return {name: rng.standard_normal(shape).astype(np.float32) / 3 for name, shape in shapes.items()}


def feeds_of(session: Session) -> dict[str, np.ndarray]:
    rng, feeds = np.random.default_rng(9), {}
    for info in session.get_inputs():
        shape = [3 if isinstance(size, str) else size for size in info.shape or ()]
        if info.type == "tensor(float)":
            feeds[info.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            feeds[info.name] = np.array(4) if info.type == "tensor(int64)" else np.array(True)
    return feeds


@pytest.mark.parametrize("name", GRAPHS)
def test_later_weights_answer_as_a_fresh_session_without_a_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(model_of(name, 0), compile="wait", threads=1)
    feeds = feeds_of(session)
    initial = {tensor.name: numpy_helper.to_array(tensor) for tensor in model_of(name, 0).graph.initializer}
    traces = list[str]()
    trace = frontend.trace_model
    for seed in range(1, 5):
        if seed == 2:
            monkeypatch.setattr(frontend, "trace_model", lambda *a, **k: traces.append("trace") or trace(*a, **k))
        weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model_of(name, seed).graph.initializer}
        assert weights.keys() == initial.keys()
        session.update_weights(weights)
        answers = session.run(None, feeds)
        count = len(traces)
        fresh = Session(model_of(name, seed), compile="wait", threads=1).run(None, feeds)
        del traces[count:]
        for answer, expected in zip(answers, fresh, strict=True):
            np.testing.assert_array_equal(answer, expected)
    assert bool(traces) == (name in IN_TRACE)


@pytest.mark.parametrize("name", ["lstm", "scan with a body that reads a weight"])
def test_some_of_the_weights_are_replaced(name: str) -> None:
    session = Session(model_of(name, 0), compile="wait", threads=1)
    feeds = feeds_of(session)
    weights = [
        {tensor.name: numpy_helper.to_array(tensor) for tensor in model_of(name, seed).graph.initializer}
        for seed in range(4)
    ]
    session.update_weights({"w": weights[1]["w"]})
    session.update_weights({"w": weights[2]["w"]})
    session.update_weights({"b": weights[3]["b"]})
    model = model_of(name, 0)
    expected = {**weights[0], "w": weights[2]["w"], "b": weights[3]["b"]}
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(expected[tensor.name], tensor.name))
    for answer, own in zip(
        session.run(None, feeds), Session(model, compile="wait", threads=1).run(None, feeds), strict=True
    ):
        np.testing.assert_array_equal(answer, own)


@pytest.mark.parametrize("name", [name for name in GRAPHS if "directions" in name])
def test_directions_of_equal_weights_may_differ_later(name: str) -> None:
    def with_equal_directions(model: onnx.ModelProto) -> onnx.ModelProto:
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor).copy()
            array[1] = array[0]
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        return model

    session = Session(with_equal_directions(model_of(name, 0)), compile="wait", threads=1)
    feeds = feeds_of(session)
    equal = with_equal_directions(model_of(name, 4))
    for model in (model_of(name, 1), model_of(name, 2), equal, model_of(name, 3)):
        session.update_weights({tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer})
        fresh = Session(model, compile="wait", threads=1).run(None, feeds)
        for answer, expected in zip(session.run(None, feeds), fresh, strict=True):
            np.testing.assert_array_equal(answer, expected)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("name", ["lstm", "gru of both directions", "rnn after a layer"])
def test_biases_of_equal_elements_may_differ_later(name: str, number: int) -> None:
    """Code may hold the element of a constant whose elements are equal, also of one computed from several biases."""

    def with_equal_biases(model: onnx.ModelProto) -> onnx.ModelProto:
        for tensor in model.graph.initializer:
            if tensor.name == "b":
                array = np.full_like(numpy_helper.to_array(tensor), number)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        return model

    session = Session(with_equal_biases(model_of(name, 0)), compile="wait", threads=1)
    feeds = feeds_of(session)
    equal = [with_equal_biases(model_of(name, seed)) for seed in (1, 2)]
    for model in (*equal, model_of(name, 3), model_of(name, 4), equal[0]):
        session.update_weights({tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer})
        fresh = Session(model, compile="wait", threads=1).run(None, feeds)
        for answer, expected in zip(session.run(None, feeds), fresh, strict=True):
            np.testing.assert_array_equal(answer, expected)
