"""DictVectorizer in each combination of key and value types, and maps of other types, which are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from sardonyx import Session
from sardonyx.errors import FeedError, InvalidModelError

KEYS: dict[int, tuple[str, list[Any]]] = {
    TensorProto.STRING: ("string_vocabulary", ["b", "a", "c"]),
    TensorProto.INT64: ("int64_vocabulary", [7, -1, 3]),
}
VALUES: dict[int, list[Any]] = {
    TensorProto.STRING: ["u", "v"],
    TensorProto.INT64: [2**40, -3],
    TensorProto.FLOAT: [1.5, -0.25],
    TensorProto.DOUBLE: [0.1, 1e300],
}
PAIRS = [(key, value) for key in KEYS for value in VALUES if key != value]


def model(key: int, value: int, **vocabularies: Any) -> onnx.ModelProto:
    """Return a model of one operator over a map."""
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))
    node = helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", **vocabularies)
    graph = helper.make_graph(
        [node], "g", [helper.make_value_info("x", kind)], [helper.make_tensor_value_info("y", value, None)]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(("key", "value"), PAIRS)
@pytest.mark.parametrize("present", [(), (0,), (2, 1)], ids=str)
def test_values_are_in_the_order_of_the_vocabulary(key: int, value: int, present: tuple[int, ...]) -> None:
    name, vocabulary = KEYS[key]
    proto, dtype = model(key, value, **{name: vocabulary}), helper.tensor_dtype_to_np_dtype(value)
    feed = {vocabulary[i]: VALUES[value][n] for n, i in enumerate(present)}
    absent = "" if value == TensorProto.STRING else 0
    for mode in ("off", "wait"):
        (y,) = Session(proto, compile=mode).run(None, {"x": feed})
        assert y.dtype == dtype and y.tolist() == [[feed.get(word, absent) for word in vocabulary]]
    if value == TensorProto.FLOAT and feed:  # ONNX Runtime's Python interface feeds maps of floats alone.
        (expected,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": feed})
        np.testing.assert_array_equal(y, expected)


def test_the_type_of_the_keys_selects_the_vocabulary() -> None:
    proto = model(TensorProto.STRING, TensorProto.FLOAT, int64_vocabulary=[1, 2], string_vocabulary=["a"])
    feeds = {"x": {"a": 1.5}}
    (expected,) = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
    np.testing.assert_array_equal(Session(proto, compile="off").run(None, feeds)[0], expected)


@pytest.mark.parametrize("vocabularies", [{}, {"int64_vocabulary": [1]}], ids=str)
def test_a_vocabulary_of_other_keys_is_refused(vocabularies: dict[str, Any]) -> None:
    proto = model(TensorProto.STRING, TensorProto.FLOAT, **vocabularies)
    with pytest.raises(InvalidModelError, match="string_vocabulary"):
        Session(proto, compile="off").run(None, {"x": {"a": 1.0}})


@pytest.mark.parametrize(
    ("key", "value", "feed"),
    [
        (TensorProto.STRING, TensorProto.FLOAT, {1: 1.0}),
        (TensorProto.INT64, TensorProto.FLOAT, {"a": 1.0}),
        (TensorProto.INT64, TensorProto.FLOAT, {2**63: 1.0}),
        (TensorProto.STRING, TensorProto.FLOAT, {"a": "1"}),
        (TensorProto.STRING, TensorProto.INT64, {"a": 1.5}),
        (TensorProto.STRING, TensorProto.INT64, {"a": float("nan")}),
        (TensorProto.STRING, TensorProto.INT64, {"a": 2**70}),
        (TensorProto.INT64, TensorProto.STRING, {1: 2}),
        (TensorProto.STRING, TensorProto.FLOAT, {"a": None}),
    ],
    ids=str,
)
def test_maps_of_other_types_are_refused(key: int, value: int, feed: dict[Any, Any]) -> None:
    name, vocabulary = KEYS[key]
    with pytest.raises(FeedError, match="x"):
        Session(model(key, value, **{name: vocabulary}), compile="off").run(None, {"x": feed})
