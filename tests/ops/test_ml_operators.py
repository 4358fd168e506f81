"""Every operator of ``ai.onnx.ml`` alone equals ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.errors import InvalidModelError
from sardonyx.ops.registry import all_operators

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 3)).astype(np.float32)
WORDS = np.array(["b", "a", "c", "a", "?"], object)
NUMBERS = np.array([3, 1, 2, 1, 9])
HOLES = np.where(X > 1, np.float32(np.nan), X)
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING

TREE: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2, 0, 1, 2], "nodes_featureids": [0, 0, 0, 2, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
    "nodes_values": [0.1, 0, 0, -0.2, 0, 0], "nodes_truenodeids": [1, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
}  # fmt: skip
LEAVES: dict[str, list[float]] = {"treeids": [0, 0, 1, 1], "nodeids": [1, 2, 1, 2], "ids": [0, 1, 1, 0]}
WEIGHTS = [0.5, 0.25, 1.0, -0.75]
SVM: dict[str, Any] = {
    "kernel_type": "RBF", "kernel_params": [0.5, 0.0, 3.0],
    "support_vectors": [0.1, 0.2, 0.3, -1.0, 0.5, 2.0, 1.0, 1.0, -1.0],
}  # fmt: skip

CASES: list[tuple[str, int, list[Any], dict[str, Any]]] = [
    ("ArrayFeatureExtractor", 1, [X, np.array([2, 0])], {}),
    ("ArrayFeatureExtractor", 1, [WORDS[None], np.array([3])], {}),
    ("Binarizer", 1, [X], {"threshold": 0.25}),
    ("CastMap", 1, [{1: 0.5, 4: 2.0}], {"cast_to": "TO_FLOAT"}),
    ("CastMap", 1, [{1: 0.5, 4: 2.0}], {"cast_to": "TO_FLOAT", "map_form": "SPARSE", "max_map": 6}),
    ("CategoryMapper", 1, [WORDS], {"cats_strings": ["a", "b", "c"], "cats_int64s": [4, 5, 6], "default_int64": -7}),
    ("CategoryMapper", 1, [NUMBERS], {"cats_strings": ["a", "b"], "cats_int64s": [1, 2], "default_string": "none"}),
    ("DictVectorizer", 1, [{"a": 1.5, "c": 2.5}], {"string_vocabulary": ["a", "b", "c"]}),
    ("DictVectorizer", 1, [{3: 1.5, 1: 2.5}], {"int64_vocabulary": [1, 2, 3]}),
    ("FeatureVectorizer", 1, [X, X[:, :2]], {"inputdimensions": [3, 2]}),
    ("Imputer", 1, [HOLES], {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": np.nan}),
    ("Imputer", 1, [NUMBERS[None]], {"imputed_value_int64s": [7], "replaced_value_int64": 9}),
    ("LabelEncoder", 2, [WORDS], {"keys_strings": ["a", "b"], "values_floats": [0.5, 1.5], "default_float": -1.0}),
    ("LabelEncoder", 2, [NUMBERS], {"keys_int64s": [1, 3], "values_strings": ["x", "y"], "default_string": "?"}),
    ("LabelEncoder", 4, [X[0]], {"keys_floats": [float(X[0, 1]), 2.0], "values_int64s": [4, 5], "default_int64": -1}),
    ("LinearClassifier", 1, [X], {"coefficients": [0.5, -1, 2, 1, 1, 1], "intercepts": [0.1, -0.1],
                                  "classlabels_ints": [4, 9], "post_transform": "SOFTMAX"}),
    ("LinearClassifier", 1, [X], {"coefficients": [0.5, -1, 2, 1, 1, 1, 0, 0, 1], "intercepts": [0.1, -0.1, 0.2],
                                  "classlabels_strings": ["a", "b", "c"], "post_transform": "LOGISTIC"}),
    ("LinearRegressor", 1, [X], {"coefficients": [0.5, -1, 2, 1, 1, 1], "intercepts": [0.1, -0.1], "targets": 2}),
    *[("Normalizer", 1, [X], {"norm": norm}) for norm in ("MAX", "L1", "L2")],
    ("OneHotEncoder", 1, [NUMBERS], {"cats_int64s": [1, 2, 3]}),
    ("OneHotEncoder", 1, [WORDS], {"cats_strings": ["c", "a", "b"]}),
    ("SVMRegressor", 1, [X], {**SVM, "coefficients": [1.0, -2.0, 0.5], "rho": [0.25], "n_supports": 3}),
    ("SVMClassifier", 1, [X], {**SVM, "coefficients": [1.0, -2.0, 0.5], "rho": [0.25], "vectors_per_class": [1, 2],
                               "classlabels_ints": [2, 5]}),
    ("Scaler", 1, [X], {"offset": [0.5, 0, -0.5], "scale": [2.0, 1, 0.5]}),
    ("Scaler", 1, [NUMBERS[None]], {"offset": [0.5], "scale": [2.0]}),
    *[
        ("TreeEnsembleRegressor", 1, [X], {
            **TREE, "n_targets": 2, "aggregate_function": how, "target_weights": WEIGHTS,
            **{f"target_{k}": v for k, v in LEAVES.items()},
        })
        for how in ("SUM", "AVERAGE", "MIN", "MAX")
    ],
    *[
        ("TreeEnsembleClassifier", 1, [X], {
            **TREE, "classlabels_int64s": [3, 8, 5], "post_transform": post, "class_weights": [0.5, 0.25, 1.0, 0.75],
            **{f"class_{k}": v for k, v in LEAVES.items()}, "class_ids": [0, 1, 2, 0],
        })
        for post in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    ],
    ("TreeEnsemble", 5, [X], {
        "n_targets": 2, "aggregate_function": 1, "tree_roots": [0], "nodes_featureids": [0, 2],
        "nodes_modes": np.array([0, 4], np.uint8), "nodes_splits": np.array([0.1, -0.2], np.float32),
        "nodes_truenodeids": [1, 0], "nodes_trueleafs": [0, 1], "nodes_falsenodeids": [2, 1],
        "nodes_falseleafs": [1, 1], "leaf_targetids": [0, 1, 1], "leaf_weights": np.array([0.5, 2, -1], np.float32),
    }),
    ("ZipMap", 1, [X], {"classlabels_int64s": [3, 1, 2]}),
    ("ZipMap", 1, [X], {"classlabels_strings": ["a", "ä", "b"]}),
]  # fmt: skip


def value_info(name: str, x: Any) -> onnx.ValueInfoProto:
    if isinstance(x, Mapping):
        (key, value) = next(iter(x.items()))
        kinds = {int: INT64, float: FLOAT, str: STRING}
        return helper.make_value_info(
            name, helper.make_map_type_proto(kinds[type(key)], helper.make_tensor_type_proto(kinds[type(value)], None))
        )
    kind = STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)
    return helper.make_tensor_value_info(name, kind, [None] * x.ndim)


def model(name: str, version: int, inputs: list[Any], attributes: Mapping[str, Any]) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(inputs))]
    outputs = ["y", "z"] if name.endswith("Classifier") else ["y"]
    plain = {k: onnx.numpy_helper.from_array(v, k) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}
    node = helper.make_node(name, names, outputs, domain="ai.onnx.ml", **plain)
    graph = helper.make_graph(
        [node], "g", list(map(value_info, names, inputs)), [onnx.ValueInfoProto(name=output) for output in outputs]
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize(("name", "version", "inputs", "attributes"), CASES, ids=[case[0] for case in CASES])
def test_equals_onnx_runtime(name: str, version: int, inputs: list[Any], attributes: dict[str, Any]) -> None:
    proto = model(name, version, inputs, attributes)
    feeds = {f"x{i}": x for i, x in enumerate(inputs)}
    actual = sardonyx.Session(proto).run(None, feeds)
    expected = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    for ours, theirs in zip(actual, expected, strict=True):
        if isinstance(theirs, list):
            # Numbers of the same kinds, in the same order.
            assert repr(ours) == repr(theirs)
        elif theirs.dtype.kind in "OU":
            assert ours.tolist() == theirs.tolist()
        else:
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "version", "attributes"),
    [
        ("LabelEncoder", 2, {"keys_strings": ["a", "b", "a"], "values_int64s": [5, 7, 9]}),
        ("OneHotEncoder", 1, {"cats_strings": ["a", "b"]}),
    ],
)
def test_words_are_looked_up_not_compared(name: str, version: int, attributes: dict[str, Any]) -> None:
    """A table of thousands of words costs a call as much as a table of two."""
    session = sardonyx.Session(model(name, version, [WORDS], attributes), compile="wait")
    expected = {"LabelEncoder": [7, 5, -1, 5, -1], "OneHotEncoder": [[0, 1], [1, 0], [0, 0], [1, 0], [0, 0]]}[name]
    assert session.run(None, {"x0": WORDS})[0].tolist() == expected
    assert session.program is not None
    assert {value.op for value in session.program.grouping.host} <= {"host", "get"}


def test_every_operator_has_a_case() -> None:
    assert {case[0] for case in CASES} == {
        operator.name for operator in all_operators() if operator.domain == "ai.onnx.ml"
    }


@pytest.mark.parametrize("targets", [0, 1 << 40])
def test_a_regressor_without_coefficients_is_refused(targets: int) -> None:
    node = helper.make_node("LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", targets=targets)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1]) for name in ("x", "y")]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    with pytest.raises(InvalidModelError, match="coefficients"):
        sardonyx.Session(model).run(None, {"x": np.ones((1, 1), np.float32)})


def test_large_terms_of_a_support_vector_machine_cancel() -> None:
    """Terms of 3·10⁷ leave 0.25, which sums in single precision lose."""
    node = helper.make_node(
        "SVMClassifier", ["x"], ["label", "score"], domain="ai.onnx.ml", kernel_type="LINEAR", kernel_params=[0.0] * 3,
        coefficients=[3e7, 1.0, -3e7], support_vectors=[1.0, 0.25, 1.0], vectors_per_class=[2, 1], rho=[0.0],
        classlabels_ints=[0, 1],
    )  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1])
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("score", TensorProto.FLOAT, [1, 2]),
    ]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], outputs), opset_imports=imports, ir_version=8)
    for mode in ("off", "wait"):
        _, score = sardonyx.Session(model, compile=mode).run(None, {"x": np.ones((1, 1), np.float32)})
        np.testing.assert_array_equal(np.abs(score), [[0.25, 0.25]])
