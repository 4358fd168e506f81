"""Fitted estimators become models with the same labels, probabilities and numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import (
    calibration,
    compose,
    cross_decomposition,
    decomposition,
    ensemble,
    feature_extraction,
    frozen,
    gaussian_process,
    impute,
    kernel_approximation,
    linear_model,
    manifold,
    multiclass,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    semi_supervised,
    svm,
    tree,
)
from sklearn.base import BaseEstimator, TransformerMixin

import sardonyx
from sardonyx.errors import EvaluationError, ModelFileError, OptionError, UnsupportedError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 4)) * [1, 10, 0.1, 3]
Y = X @ [1.0, 0.1, 3.0, -1.0] + np.sin(3 * X[:, 0])
WORDS = np.array(["no", "maybe", "yes"])[np.digitize(Y, [-2, 2])]
SINGLE = np.abs(X).astype(np.float32)
MISSING = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
COLOURS = np.array(["red", "green", "blue"], object)[RNG.integers(0, 3, (120, 1))]
MIXED = np.concatenate([COLOURS, X[:, :2].astype(object)], axis=1)
TEXTS = np.array(
    [" ".join(RNG.choice(["a", "cat", "sat", "on", "the", "mat", "today"], 5)) for _ in range(120)], object
)


def columns() -> Any:
    encoder = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    numbers = pipeline.make_pipeline(impute.SimpleImputer(), preprocessing.StandardScaler())
    return compose.ColumnTransformer([("colour", encoder, [0]), ("numbers", numbers, [1, 2])])


def colours() -> Any:
    """Return an imputer ahead of an encoder for the colours alone, which refuses others."""
    filled = pipeline.make_pipeline(impute.SimpleImputer(strategy="most_frequent"), preprocessing.OneHotEncoder())
    return compose.ColumnTransformer([("colour", filled, [0])])


def imputed_texts(**options: Any) -> tuple[Any, Any, Any]:
    """Return an imputer of texts ahead of an encoder, and colours, some of which are missing; a column is empty."""
    imputer = impute.SimpleImputer(missing_values="?", strategy="most_frequent", **options)
    texts = np.where(RNG.random((120, 3)) < [0.2, 1, 0], "?", COLOURS).astype(object)
    encoder = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return pipeline.make_pipeline(imputer, encoder), texts, None


def encoded_holes(missing: Any, encoder: Any) -> tuple[Any, Any, Any]:
    """Return an encoder ahead of a classifier, and colours of which some are a missing value."""
    texts = np.where(RNG.random((120, 1)) < 0.3, np.array(missing, object), COLOURS)
    return pipeline.make_pipeline(encoder, linear_model.LogisticRegression()), texts, WORDS


def two_stages() -> tuple[Any, Any, Any]:
    """Return imputers of texts and numbers, ahead of an encoder and a scaler of their results."""
    imputed = compose.ColumnTransformer(
        [
            ("texts", impute.SimpleImputer(strategy="constant", fill_value="none"), [0]),
            ("numbers", impute.SimpleImputer(add_indicator=True), [1, 2]),
        ]
    )
    table = MIXED.copy()
    table[::7, 0], table[::5, 1] = np.nan, np.nan
    last = compose.ColumnTransformer(
        [
            ("texts", preprocessing.OneHotEncoder(handle_unknown="ignore"), [0]),
            ("rest", preprocessing.StandardScaler(), [2, 1]),
        ]
    )
    return pipeline.make_pipeline(imputed, last, linear_model.Ridge()), table, Y


CASES: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "a category that is missing": lambda: encoded_holes(np.nan, preprocessing.OneHotEncoder(handle_unknown="ignore")),
    "a category that is None": lambda: encoded_holes(None, preprocessing.OneHotEncoder(handle_unknown="ignore")),
    "a number for missing texts": lambda: encoded_holes(np.nan, preprocessing.OrdinalEncoder(encoded_missing_value=-9)),
    "means of missing categories": lambda: encoded_holes(np.nan, preprocessing.TargetEncoder()),
    "texts and numbers in two stages": two_stages,
    "labels of several types": lambda: (
        ensemble.ExtraTreesClassifier(3, max_depth=3),
        X,
        np.stack([WORDS, np.where(Y > 0, "a", "b")], axis=1),
    ),
    "a temperature of two classes": lambda: (
        calibration.CalibratedClassifierCV(svm.LinearSVC(), method="temperature", cv=2),
        X,
        Y > 0,
    ),
    "a temperature of shares": lambda: (
        calibration.CalibratedClassifierCV(tree.DecisionTreeClassifier(max_depth=3), method="temperature", cv=2),
        X,
        Y > 0,
    ),
    "votes of readers of texts and of numbers": lambda: (
        ensemble.VotingClassifier(
            [
                ("both", pipeline.make_pipeline(columns(), linear_model.LogisticRegression())),
                ("colours", pipeline.make_pipeline(colours(), linear_model.LogisticRegression())),
            ]
        ),
        MIXED,
        WORDS,
    ),
    "a kernel with means removed": lambda: (preprocessing.KernelCenterer(), X @ X.T, None),
    "texts without missing ones": imputed_texts,
    "texts with an indicator of missing ones": lambda: imputed_texts(add_indicator=True),
    "splines continued by lines": lambda: (preprocessing.SplineTransformer(4, extrapolation="linear"), X[:, :2], None),
    "periodic splines": lambda: (preprocessing.SplineTransformer(4, extrapolation="periodic"), X[:, :2], None),
    "coordinate descent": lambda: (decomposition.NMF(2, max_iter=50, alpha_W=0.01), np.abs(X), None),
    "multiplicative updates": lambda: (decomposition.MiniBatchNMF(2, max_iter=5, random_state=0), np.abs(X), None),
    "topics": lambda: (decomposition.LatentDirichletAllocation(2, max_iter=2, random_state=0), np.abs(X) // 1, None),
    "coordinate descent in float32": lambda: (decomposition.NMF(2, max_iter=50), SINGLE, None),
    "scaled descent in float32": lambda: (
        pipeline.make_pipeline(preprocessing.MinMaxScaler(), decomposition.NMF(2, max_iter=50)),
        SINGLE,
        None,
    ),
    "topics in float32": lambda: (
        decomposition.LatentDirichletAllocation(2, max_iter=2, random_state=0),
        SINGLE // 0.3,
        None,
    ),
    "constant splines continued by lines": lambda: (
        preprocessing.SplineTransformer(5, degree=0, extrapolation="linear"),
        X[:, :3],
        None,
    ),
    "a number for missing ones": lambda: (
        impute.SimpleImputer(strategy="constant", fill_value=-1, add_indicator=True),
        MISSING,
        None,
    ),
    "skewed features": lambda: (kernel_approximation.SkewedChi2Sampler(random_state=0), np.abs(X), None),
    "additive features": lambda: (kernel_approximation.AdditiveChi2Sampler(), np.abs(X) * (X > 0), None),
    "labels of neighbours": lambda: (
        semi_supervised.LabelSpreading(kernel="knn"),
        X,
        np.where(np.arange(120) % 3, -1, np.digitize(Y, [-2, 2])),
    ),
    "several labels against the rest": lambda: (
        multiclass.OneVsRestClassifier(svm.SVC()),
        X,
        np.stack([Y > 0, Y > 2], axis=1).astype(int),
    ),
    "n-grams across stop words": lambda: (
        feature_extraction.text.CountVectorizer(stop_words=["the", "on"], ngram_range=(1, 3)),
        TEXTS,
        None,
    ),
    "characters within words": lambda: (
        feature_extraction.text.TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4)),
        TEXTS,
        None,
    ),
    "words shorter than n-grams": lambda: (
        feature_extraction.text.CountVectorizer(analyzer="char_wb", ngram_range=(4, 5)),
        np.array([f"  {text}\t a  " for text in TEXTS], object),
        None,
    ),
    "count sketch": lambda: (kernel_approximation.PolynomialCountSketch(coef0=1, random_state=0), X, None),
    "locally linear": lambda: (manifold.LocallyLinearEmbedding(n_neighbors=4, random_state=0), X, None),
    "cosine neighbours": lambda: (neighbors.KNeighborsClassifier(3, metric="cosine"), X, WORDS),
    "known numbers as categories": lambda: (preprocessing.OneHotEncoder(), X.round(), None),
    "positive rows": lambda: (preprocessing.PowerTransformer("box-cox"), np.abs(X) + 0.1, None),
    "logistic": lambda: (linear_model.LogisticRegression(), X, WORDS),
    "forest": lambda: (ensemble.RandomForestClassifier(5, random_state=0), X, WORDS),
    "boosting": lambda: (ensemble.GradientBoostingRegressor(n_estimators=5), X, Y),
    "histograms with missing values": lambda: (ensemble.HistGradientBoostingClassifier(max_iter=5), MISSING, WORDS),
    "support vectors with probabilities": lambda: (svm.SVC(probability=True, random_state=0), X, WORDS),
    "neighbours": lambda: (neighbors.KNeighborsClassifier(weights="distance"), X, WORDS),
    **{
        f"rows without neighbours as {label}": lambda label=label: (
            neighbors.RadiusNeighborsClassifier(1.5, weights="distance", outlier_label=label),
            X,
            WORDS,
        )
        for label in ("none", str(WORDS[0]))
    },
    "graph of neighbours": lambda: (neighbors.KNeighborsTransformer(n_neighbors=3), X, Y),
    "graph within a radius": lambda: (neighbors.RadiusNeighborsTransformer(radius=5.0), X, Y),
    "isometric map": lambda: (manifold.Isomap(), X, Y),
    "learned metric": lambda: (neighbors.NeighborhoodComponentsAnalysis(max_iter=5), X, WORDS),
    "leaves of random trees": lambda: (ensemble.RandomTreesEmbedding(4, max_depth=3, random_state=0), X, Y),
    "shared directions": lambda: (cross_decomposition.PLSSVD(1), X, Y),
    "calibration of a frozen estimator": lambda: (
        calibration.CalibratedClassifierCV(frozen.FrozenEstimator(linear_model.LogisticRegression().fit(X, WORDS))),
        X,
        WORDS,
    ),
    "calibration": lambda: (calibration.CalibratedClassifierCV(svm.LinearSVC(), cv=3), X, WORDS),
    "one against one": lambda: (multiclass.OneVsOneClassifier(tree.DecisionTreeClassifier(max_depth=3)), X, WORDS),
    "perceptron": lambda: (neural_network.MLPRegressor(max_iter=20, random_state=0), X, np.stack([Y, -Y], axis=1)),
    "outliers": lambda: (ensemble.IsolationForest(n_estimators=5, random_state=0), X, None),
    "columns": lambda: (pipeline.make_pipeline(columns(), linear_model.LogisticRegression()), MIXED, WORDS),
    "texts": lambda: (
        pipeline.make_pipeline(feature_extraction.text.TfidfVectorizer(ngram_range=(1, 2)), linear_model.Ridge()),
        TEXTS,
        Y,
    ),
    "nearest rows for missing values": lambda: (impute.KNNImputer(n_neighbors=3), MISSING, None),
    "process": lambda: (gaussian_process.GaussianProcessRegressor(), X, Y),
    **{
        f"targets by {type(inverse).__name__}": lambda inverse=inverse: (
            compose.TransformedTargetRegressor(linear_model.Ridge(), transformer=inverse, check_inverse=False),
            X,
            np.abs(Y) + 0.1,
        )
        for inverse in (
            preprocessing.QuantileTransformer(n_quantiles=10, output_distribution="normal"),
            preprocessing.PowerTransformer(),
            preprocessing.RobustScaler(),
            pipeline.make_pipeline(preprocessing.PowerTransformer("box-cox"), preprocessing.MaxAbsScaler()),
        )
    },
    "stacking": lambda: (
        ensemble.StackingClassifier([("a", linear_model.LogisticRegression()), ("b", svm.SVC())], cv=2),
        X,
        WORDS,
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_an_estimator_is_proved(name: str) -> None:
    estimator, x, y = CASES[name]()
    estimator.fit(x, y)
    report = sardonyx.convert(estimator, exporter="sardonyx").report
    assert report.verdict.status == "proved", report.verdict.reason
    assert {1, 5} <= set(report.sizes["batch"])


@pytest.mark.parametrize(
    "estimator",
    [
        compose.TransformedTargetRegressor(
            linear_model.Ridge(),
            transformer=preprocessing.QuantileTransformer(n_quantiles=20, output_distribution="normal"),
        ),
        gaussian_process.GaussianProcessClassifier(),
        pipeline.make_pipeline(preprocessing.FunctionTransformer(np.arctan), linear_model.Ridge()),
    ],
)
def test_functions_of_float64_load_in_onnx_runtime(estimator: Any) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    classifies = hasattr(estimator, "predict_proba")
    estimator.fit(X[:40], WORDS[:40] if classifies else Y[:40])
    session = runtime.InferenceSession(sardonyx.convert(estimator).proto.SerializeToString())
    expected = estimator.predict_proba(X[40:60]) if classifies else estimator.predict(X[40:60])
    np.testing.assert_allclose(session.run(None, {"X": X[40:60]})[-1], expected, rtol=1e-7, atol=1e-9)


def test_missing_texts_of_a_caller_are_the_texts_that_numpy_prints() -> None:
    estimator, texts, labels = encoded_holes(np.nan, preprocessing.OneHotEncoder(handle_unknown="ignore"))
    converted = sardonyx.convert(estimator.fit(texts, labels), texts[:20])
    rows = texts.copy()
    rows[:5] = "unknown"
    feeds = {"X": np.array([[str(value)] for value in rows[:, 0]], object)}
    _, probabilities = sardonyx.Session(converted.model).run(None, feeds)
    np.testing.assert_allclose(probabilities, estimator.predict_proba(rows), rtol=1e-9)


def test_labels_are_texts_and_probabilities_rows() -> None:
    estimator = linear_model.LogisticRegression().fit(X, WORDS)
    session = sardonyx.Session(sardonyx.convert(estimator).model)
    label, probabilities = session.run(None, {"X": X[:7]})
    assert list(label) == list(estimator.predict(X[:7]))
    np.testing.assert_allclose(probabilities, estimator.predict_proba(X[:7]), rtol=1e-12)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=8, max_size=30, unique=True), st.integers(0, 1 << 30)
)
def test_trees_decide_thresholds_exactly(points: list[float], seed: int) -> None:
    x = np.array(points, np.float32).astype(np.float64)[:, None]
    y = np.random.default_rng(seed).integers(0, 2, len(x))
    estimator = tree.DecisionTreeClassifier().fit(x, y)
    thresholds = estimator.tree_.threshold[estimator.tree_.feature >= 0]
    near = np.concatenate([x[:, 0], thresholds, np.nextafter(thresholds, np.inf), np.nextafter(thresholds, -np.inf)])
    converted = sardonyx.convert(estimator, verify=False)
    (label, _) = sardonyx.Session(converted.model).run(None, {"X": near[:, None]})
    np.testing.assert_array_equal(label, estimator.predict(near[:, None]))


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_splines_continued_by_lines_are_those_of_scikit_learn_at_and_beyond_knots(degree: int) -> None:
    estimator = preprocessing.SplineTransformer(6, degree=degree, extrapolation="linear").fit(X[:, :3])
    knots = np.concatenate([spline.t for spline in estimator.bsplines_])
    points = np.repeat(np.concatenate([knots, X[:9, 0], [-50.0, 50.0]])[:, None], 3, axis=1)
    converted = sardonyx.convert(estimator, exporter="sardonyx", verify=False)
    (result,) = sardonyx.Session(converted.model, compile="off").run(None, {"X": points})
    np.testing.assert_allclose(result, estimator.transform(points), rtol=1e-12, atol=1e-12)


def test_texts_beside_an_indicator_are_refused_as_a_result() -> None:
    imputer = impute.SimpleImputer(missing_values="red", strategy="most_frequent", add_indicator=True).fit(COLOURS)
    with pytest.raises(UnsupportedError, match="texts and numbers in one result"):
        sardonyx.convert(imputer, exporter="sardonyx")


def test_a_sketch_whose_tables_would_be_large_is_refused() -> None:
    estimator = kernel_approximation.PolynomialCountSketch(n_components=1025, random_state=0).fit(X)
    with pytest.raises(UnsupportedError, match="1025 components, expected at most 1024"):
        sardonyx.convert(estimator, exporter="sardonyx")


class Refusing(TransformerMixin, BaseEstimator):
    """A transformer that accepts no rows."""

    def transform(self, x: Any) -> Any:
        if isinstance(x, np.ndarray):
            raise ValueError(f"{len(x)} rows are refused")
        return x


def test_the_refusal_of_the_callers_rows_is_named() -> None:
    with pytest.raises(EvaluationError, match="3 rows are refused"):
        sardonyx.convert(Refusing(), (X[:3],), exporter="sardonyx")


class Ratio(TransformerMixin, BaseEstimator):
    """A user's transformer in numpy."""

    def fit(self, x: Any, y: Any = None) -> Ratio:
        self.n_features_in_ = x.shape[1]
        self.mean_ = x.mean(axis=0)
        return self

    def transform(self, x: Any) -> Any:
        return np.log1p(np.abs(x / self.mean_)) - np.where(x > 0, 1.0, x)


def test_a_transformer_of_the_user_is_traced() -> None:
    estimator = pipeline.make_pipeline(Ratio(), linear_model.Ridge()).fit(X, Y)
    assert sardonyx.convert(estimator).report.verdict.status == "proved"


def test_a_function_that_cannot_be_traced_is_named_with_its_line() -> None:
    def rowwise(x: Any) -> Any:
        return np.array([row.tolist() for row in x])

    estimator = preprocessing.FunctionTransformer(rowwise).fit(X)
    with pytest.raises(UnsupportedError, match=r"test_tabular\.py:\d+"):
        sardonyx.convert(estimator, exporter="sardonyx")


def test_a_pickle_needs_trust(tmp_path: Path) -> None:
    path = tmp_path / "model.joblib"
    joblib.dump(linear_model.Ridge().fit(X, Y), path)
    with pytest.raises(OptionError, match="runs code"):
        sardonyx.convert(str(path))
    assert sardonyx.convert(str(path), trust=True).report.verdict.status == "proved"


def test_a_damaged_pickle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.joblib"
    joblib.dump(linear_model.Ridge().fit(X, Y), path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ModelFileError, match="joblib cannot read the file"):
        sardonyx.convert(str(path), trust=True)


def test_an_estimator_that_is_not_fitted_is_refused() -> None:
    with pytest.raises(OptionError, match="not fitted"):
        sardonyx.convert(linear_model.Ridge())


@pytest.mark.parametrize("suffix", [".lgb", ".txt"])
def test_a_lightgbm_file_is_read_without_a_pickle(tmp_path: Path, suffix: str) -> None:
    lightgbm = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    booster = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1).fit(MISSING, Y).booster_
    path = tmp_path / f"model{suffix}"
    booster.save_model(str(path))
    converted = sardonyx.convert(str(path), MISSING[:9])
    assert converted.report.verdict.status == "proved"


@pytest.mark.parametrize("suffix", [".ubj", ".json"])
def test_an_xgboost_file_is_read_without_a_pickle(tmp_path: Path, suffix: str) -> None:
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    path = tmp_path / f"model{suffix}"
    xgboost.XGBRegressor(n_estimators=5).fit(MISSING, Y).save_model(path)
    assert sardonyx.convert(str(path)).report.verdict.status == "proved"


def test_other_texts_and_objects_of_json_have_no_importer(tmp_path: Path) -> None:
    for name, text in (("model.json", '{"a": 1}'), ("model.txt", "tree of life")):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(OptionError, match=r"no importer reads this file.*\.json"):
            sardonyx.convert(str(path))
