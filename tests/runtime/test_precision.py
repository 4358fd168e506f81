"""Sessions that compress a model when they load it, within a tolerance that is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.compiler.target.description import NAMED
from sardonyx.compress.at_load import compression
from sardonyx.errors import EvaluationError, OptionError

SIZE = 320


def network(opset: int = 17) -> onnx.ModelProto:
    """Two layers with an activation."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((SIZE, SIZE), np.float32) / np.float32(SIZE**0.5), name)
        for name in ("w", "v")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["y"]),
    ]  # fmt: skip
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SIZE]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def samples(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((4, SIZE), np.float32)} for _ in range(count)]


def error(session: sardonyx.Session, feeds: dict[str, Any]) -> float:
    (expected,) = sardonyx.run(network(), feeds).values()
    (actual,) = session.run(None, feeds)
    assert actual.dtype == np.float32
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", ml_dtypes.bfloat16), ("int8", np.int8)])
def test_a_fixed_precision_is_proved_on_samples(precision: str, dtype: Any) -> None:
    session = sardonyx.Session(
        network(), precision=precision, precision_tolerance=0.05, precision_data=iter(samples(12)), compile="wait"
    )
    report = session.precision
    assert report is not None
    assert (report.requested, report.chosen, report.samples) == (precision, precision, "8 given")
    assert [form.name for form in report.forms] == ["float32", precision]
    assert 0 < (report.forms[1].error or 0) <= 0.05
    weights = {value.const_value.numpy().dtype for value in session.model.graph.initializers.values()}  # type: ignore[union-attr]
    assert np.dtype(dtype) in weights
    assert error(session, samples(1)[0]) <= 0.05


def test_drawn_samples_prove_a_form_too() -> None:
    session = sardonyx.Session(network(), precision="bf16", compile="wait")
    assert session.precision is not None
    assert session.precision.samples.endswith("drawn")
    assert error(session, samples(1)[0]) <= 0.02


def test_products_by_transposed_weights_become_bfloat16() -> None:
    """Frameworks write the weights of a layer as outputs by inputs, and a Transpose ahead of each product."""
    model = network()
    for node, weight in ((model.graph.node[0], "w"), (model.graph.node[2], "v")):
        node.input[1] = weight + "_transposed"
    nodes = [
        helper.make_node("Transpose", [name], [name + "_transposed"], perm=[1, 0]) for name in ("w", "v")
    ] + list(model.graph.node)  # fmt: skip
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    session = sardonyx.Session(model, precision="bf16", precision_data=samples(2), compile="wait")
    weights = [value.const_value.numpy().dtype for value in session.model.graph.initializers.values()]  # type: ignore[union-attr]
    assert weights.count(np.dtype(ml_dtypes.bfloat16)) == 2


def test_auto_chooses_the_fastest_form_within_the_tolerance() -> None:
    session = sardonyx.Session(network(), precision="auto", precision_data=samples(8), compile="wait")
    report = session.precision
    assert report is not None
    assert [form.name for form in report.forms] == ["float32", "bf16", "int8", "int8 weights"]
    chosen = next(form for form in report.forms if form.name == report.chosen)
    allowed = [form for form in report.forms if form.error is not None and form.error <= report.tolerance]
    assert chosen in allowed
    assert chosen.name in str(report)
    # The model as given stays unless another form is clearly faster.
    assert all((chosen.seconds or 0) * 0.97 <= (form.seconds or 0) for form in allowed)


def test_auto_keeps_the_model_if_no_form_is_within_the_tolerance() -> None:
    session = sardonyx.Session(network(), precision="auto", precision_tolerance=1e-9, precision_data=samples(4))
    assert session.precision is not None
    assert session.precision.chosen == "float32"
    dtypes = {value.const_value.numpy().dtype for value in session.model.graph.initializers.values()}  # type: ignore[union-attr]
    assert dtypes == {np.dtype(np.float32)}
    assert error(session, samples(1)[0]) <= 2e-6  # Compiled and interpreted products round differently.


def test_a_fixed_precision_above_the_tolerance_is_refused() -> None:
    with pytest.raises(EvaluationError, match="above the tolerance"):
        sardonyx.Session(network(), precision="int8", precision_tolerance=1e-6, precision_data=samples(4))


@pytest.mark.parametrize("options", [{"precision": "int7"}, {"precision_tolerance": 0.0}, {"precision_data": []}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        sardonyx.Session(network(), **{"precision": "bf16", **options})


def test_a_watched_file_is_not_compressed(tmp_path: Any) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(network(), path)
    with pytest.raises(OptionError, match="watched"):
        sardonyx.Session(path, precision="bf16", watch=True)


def test_older_operator_sets_are_converted_to_the_first_with_bfloat16() -> None:
    session = sardonyx.Session(network(opset=12), precision="bf16", precision_data=samples(2))
    assert session.model.graph.opset_imports[""] == 13
    assert 0 < error(session, samples(1)[0]) <= 0.02


def convolutions() -> onnx.ModelProto:
    """Pointwise convolutions with a residual connection, and one of a window, which Winograd's algorithm computes."""
    rng = np.random.default_rng(0)
    shapes = {"stem": (64, 3, 3, 3), "a": (64, 64, 1, 1), "b": (64, 64, 3, 3), "c": (64, 64, 1, 1)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape, np.float32) / np.float32(np.prod(shape[1:]) ** 0.5), name)
        for name, shape in shapes.items()
    ]
    text = """<ir_version: 8, opset_import: ["": 17]> net (float[1, 3, 56, 56] x) => (float[1, 64, 56, 56] y) {
        s = Conv <pads = [1, 1, 1, 1]> (x, stem)
        t = Conv (s, a)
        r = Relu (t)
        u = Conv <pads = [1, 1, 1, 1]> (r, b)
        v = Add (u, s)
        y = Conv (v, c)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(weights)
    return model


FAST = replace(NAMED["avx512bf16"], fast_pairs=True)


def rounded(session: sardonyx.Session) -> list[str]:
    """Return the weights of the convolutions whose images are rounded to bfloat16."""
    nodes = [node for node in session.model.graph if node.op_type == "Conv"]
    producers = [node.inputs[0].producer() for node in nodes]  # type: ignore[union-attr]
    return [
        str(node.inputs[1].name).split("_")[0]  # type: ignore[union-attr]
        for node, producer in zip(nodes, producers, strict=True) if producer is not None and producer.op_type == "Cast"
    ]  # fmt: skip


def test_convolutions_that_are_faster_read_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "host", lambda: FAST)
    session = sardonyx.Session(convolutions(), precision="bf16", compile="wait")
    assert rounded(session) == ["a", "c"]
    (addition,) = (node for node in session.model.graph if node.op_type == "Add")
    assert addition.inputs[1].producer().op_type == "Cast"  # type: ignore[union-attr]
    x = np.random.default_rng(1).standard_normal((1, 3, 56, 56), np.float32)
    (expected,) = sardonyx.run(convolutions(), {"x": x}).values()
    (actual,) = session.run(None, {"x": x})
    assert 0 < np.abs(actual - expected).max() <= 0.02 * np.abs(expected).max()


def test_processors_without_fast_pairs_keep_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "host", lambda: replace(FAST, fast_pairs=False))
    assert rounded(sardonyx.Session(convolutions(), precision="bf16")) == []


def test_convolutions_stay_in_float32_until_the_error_is_within_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "host", lambda: FAST)
    session = sardonyx.Session(convolutions(), precision="bf16")
    report = session.precision
    assert report is not None
    tolerance = (report.forms[1].error or 0) * 0.9
    session = sardonyx.Session(convolutions(), precision="bf16", precision_tolerance=tolerance)
    assert rounded(session) == ["a"]


def test_other_sessions_have_no_report() -> None:
    assert sardonyx.Session(network(), compile="off").precision is None


def test_the_last_convolutions_are_rounded_if_the_first_are_too_inexact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences of almost equal images of the first convolution lose digits; those of the last one do not."""
    monkeypatch.setattr(compression, "host", lambda: FAST)
    rng = np.random.default_rng(0)
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (float[1, 64, 8, 8] x) => (float[1, 64, 8, 8] y) {
            a = Conv (x, first)
            b = Sub (a, near)
            y = Conv (b, last)
        }"""
    model = onnx.parser.parse_model(text)
    first = rng.standard_normal((64, 64, 1, 1), np.float32)
    last = rng.standard_normal((64, 64, 1, 1), np.float32)
    x = rng.standard_normal((1, 64, 8, 8), np.float32)
    near = (
        np.einsum("mc,nchw->nmhw", first[:, :, 0, 0], x) + rng.standard_normal((1, 64, 8, 8)).astype(np.float32) / 100
    )
    for name, array in (("first", first), ("last", last), ("near", near)):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    session = sardonyx.Session(model, precision="bf16", precision_data=[{"x": x}])
    assert rounded(session) == ["last"]
