"""Operators of ``ai.onnx.ml``: converted scikit-learn models predict like scikit-learn and ONNX Runtime."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.errors import InvalidModelError, UnsupportedError

sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed (extra: test)")
skl2onnx = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed (extra: test)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: test)")

from onnxruntime.capi import onnxruntime_pybind11_state as state  # noqa: E402
from sklearn import (  # noqa: E402
    datasets,
    ensemble,
    feature_extraction,
    impute,
    linear_model,
    pipeline,
    preprocessing,
    svm,
    tree,
)

IRIS = datasets.load_iris(return_X_y=True)
WORDS = np.array(["setosa", "versicolor", "virginica"])
THREE = (IRIS[0].astype(np.float32), IRIS[1])
NAMED = (THREE[0], WORDS[IRIS[1]])
TWO = (THREE[0][:100], THREE[1][:100])
NUMBERS = tuple(part.astype(np.float32)[:150] for part in datasets.load_diabetes(return_X_y=True))

CLASSIFIERS = [
    tree.DecisionTreeClassifier(random_state=0),
    ensemble.RandomForestClassifier(10, random_state=0),
    ensemble.GradientBoostingClassifier(n_estimators=8, random_state=0),
    ensemble.VotingClassifier(
        [("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier(random_state=0))],
        voting="soft",
        flatten_transform=False,
    ),
    linear_model.LogisticRegression(max_iter=300),
    svm.LinearSVC(),
    *[svm.SVC(kernel=kernel) for kernel in ("rbf", "linear", "poly", "sigmoid")],
    svm.SVC(probability=True, random_state=0),
    pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression()),
]
REGRESSORS = [
    tree.DecisionTreeRegressor(random_state=0),
    ensemble.RandomForestRegressor(10, random_state=0),
    ensemble.GradientBoostingRegressor(n_estimators=8, random_state=0),
    linear_model.LinearRegression(),
    svm.LinearSVR(random_state=0, max_iter=5000),
    svm.NuSVR(),
    *[svm.SVR(kernel=kernel) for kernel in ("rbf", "linear", "poly", "sigmoid")],
]
TRANSFORMERS = [
    *[preprocessing.Normalizer(norm) for norm in ("l1", "l2", "max")],
    preprocessing.StandardScaler(),
    preprocessing.MinMaxScaler(),
    preprocessing.Binarizer(threshold=1.5),
    preprocessing.PolynomialFeatures(2),
]


def named(models: list[Any]) -> list[Any]:
    return [pytest.param(model, id=f"{type(model).__name__}-{getattr(model, 'kernel', '')}") for model in models]


def fitted(model: Any, data: tuple[Any, Any], **options: Any) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sklearn.base.clone(model).fit(*data)
        return model, skl2onnx.to_onnx(model, data[0][:1], options=options or None)


def close(expected: Any, actual: Any) -> None:
    if isinstance(expected, list):
        assert [list(row) for row in expected] == [list(row) for row in actual]
        expected, actual = ([list(row.values()) for row in rows] for rows in (expected, actual))
    elif expected.dtype.kind in "OUS":
        assert expected.tolist() == actual.tolist()
        return
    else:
        assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def as_onnx_runtime(proto: Any, feeds: dict[str, Any]) -> list[Any]:
    """Our results, after comparing them with ONNX Runtime's where it runs the model."""
    actual = sardonyx.Session(proto).run(None, feeds)
    try:
        expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    except (state.NotImplemented, state.Fail) as error:
        print(f"not compared with ONNX Runtime, which refuses the model: {error}")
        return actual
    for one, other in zip(expected, actual, strict=True):
        close(one, other)
    return actual


@pytest.mark.parametrize("data", [THREE, NAMED, TWO], ids=["three", "named", "two"])
@pytest.mark.parametrize("model", named(CLASSIFIERS))
def test_classifiers(model: Any, data: tuple[Any, Any]) -> None:
    model, proto = fitted(model, data)
    labels, _ = as_onnx_runtime(proto, {proto.graph.input[0].name: data[0]})
    assert (labels == model.predict(data[0])).mean() > 0.99  # a float32 tie may fall to the other side


@pytest.mark.parametrize("model", named(REGRESSORS))
def test_regressors(model: Any) -> None:
    model, proto = fitted(model, NUMBERS)
    (actual,) = as_onnx_runtime(proto, {proto.graph.input[0].name: NUMBERS[0]})
    np.testing.assert_allclose(actual.ravel(), model.predict(NUMBERS[0]), rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("model", named(TRANSFORMERS))
def test_transformers(model: Any) -> None:
    model, proto = fitted(model, THREE)
    (actual,) = as_onnx_runtime(proto, {proto.graph.input[0].name: THREE[0]})
    np.testing.assert_allclose(actual, model.transform(THREE[0]), rtol=1e-4, atol=1e-5)


def test_outliers_of_one_class() -> None:
    model, proto = fitted(svm.OneClassSVM(), (NUMBERS[0], None))
    feeds = {proto.graph.input[0].name: NUMBERS[0]}
    actual, scores = sardonyx.Session(proto).run(None, feeds)
    labels, expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    close(expected, scores)
    sure = np.abs(expected.ravel()) > 1e-5  # on the boundary the label is a matter of rounding
    assert (actual == labels)[sure].all() and sure.mean() > 0.9
    assert (actual.ravel() == model.predict(NUMBERS[0]))[sure].all()


def test_missing_features_are_imputed() -> None:
    x = THREE[0].copy()
    x[::7, 1] = np.nan
    model, proto = fitted(impute.SimpleImputer(), (x, None))
    (actual,) = as_onnx_runtime(proto, {proto.graph.input[0].name: x})
    np.testing.assert_allclose(actual, model.transform(x), rtol=1e-5)


@pytest.mark.parametrize("words", [np.array([["a"], ["c"], ["b"], ["a"]]), np.array([[3], [1], [2], [3]], np.int64)])
def test_categories_one_hot(words: Any) -> None:
    model, proto = fitted(preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False), (words, None))
    (actual,) = as_onnx_runtime(
        proto, {proto.graph.input[0].name: words.astype(object) if words.dtype.kind == "U" else words}
    )
    np.testing.assert_array_equal(actual, model.transform(words))


def test_labels_encoded() -> None:
    model = preprocessing.LabelEncoder().fit(WORDS)
    proto = skl2onnx.convert_sklearn(model, initial_types=[("x", skl2onnx.common.data_types.StringTensorType([None]))])
    (actual,) = sardonyx.Session(proto).run(None, {"x": WORDS[[2, 0, 1]].astype(object)})
    assert actual.ravel().tolist() == [2, 0, 1]


def test_text() -> None:
    texts = np.array(["the cat sat", "a dog sat down", "the dog and the cat"], object)
    model = pipeline.make_pipeline(feature_extraction.text.TfidfVectorizer(), linear_model.LogisticRegression()).fit(
        texts, [0, 1, 1]
    )
    proto = skl2onnx.convert_sklearn(
        model, initial_types=[("x", skl2onnx.common.data_types.StringTensorType([None, 1]))]
    )
    labels, _ = as_onnx_runtime(proto, {"x": texts.reshape(-1, 1)})
    assert labels.tolist() == model.predict(texts).tolist()


def test_a_tree_with_a_bad_node_id_is_refused() -> None:
    _, proto = fitted(tree.DecisionTreeClassifier(random_state=0), THREE)
    (node,) = [node for node in proto.graph.node if node.op_type == "TreeEnsembleClassifier"]
    (children,) = [attribute for attribute in node.attribute if attribute.name == "nodes_truenodeids"]
    children.ints[0] = 999
    with pytest.raises(InvalidModelError, match=r"refers to the missing node 999"):
        sardonyx.Session(proto).run(None, {proto.graph.input[0].name: THREE[0]})


def test_a_tree_whose_nodes_form_a_cycle_is_refused() -> None:
    _, proto = fitted(tree.DecisionTreeClassifier(random_state=0), THREE)
    (node,) = [node for node in proto.graph.node if node.op_type == "TreeEnsembleClassifier"]
    by_name = {attribute.name: attribute for attribute in node.attribute}
    inner = max(i for i, mode in enumerate(by_name["nodes_modes"].strings) if mode != b"LEAF")
    by_name["nodes_falsenodeids"].ints[inner] = by_name["nodes_nodeids"].ints[inner]
    with pytest.raises(InvalidModelError, match=r"cycle|does not end"):
        sardonyx.Session(proto).run(None, {proto.graph.input[0].name: THREE[0]})


def test_a_target_table_of_gigabytes_is_refused() -> None:
    _, proto = fitted(tree.DecisionTreeRegressor(random_state=0), THREE)
    (node,) = [node for node in proto.graph.node if node.op_type == "TreeEnsembleRegressor"]
    (targets,) = [attribute for attribute in node.attribute if attribute.name == "n_targets"]
    targets.i = 2**62
    with pytest.raises(UnsupportedError, match=r"targets exceeds .* elements"):
        sardonyx.Session(proto, compile="off").run(None, {proto.graph.input[0].name: THREE[0]})
