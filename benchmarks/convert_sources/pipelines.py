"""Pipelines and estimators of scikit-learn with other options than the defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convert_sources.tabular import COLOURS, LABELS, NUMBERS, TARGET, TEXTS, Builder, fitted_later

HOLES = np.where(np.abs(NUMBERS) > 1.2 * NUMBERS.std(0), np.nan, NUMBERS)
TWO = (TARGET > 0).astype(int)
MANY = np.stack([TARGET, -TARGET + NUMBERS[:, 1]], axis=1)
MARKS = np.stack([TARGET > 0, NUMBERS[:, 0] > 0, NUMBERS[:, 3] > 1], axis=1).astype(int)


def _members() -> dict[str, Builder]:
    """Return builders with their rows and targets."""
    from sklearn import (
        calibration,
        decomposition,
        ensemble,
        feature_extraction,
        feature_selection,
        gaussian_process,
        impute,
        kernel_approximation,
        linear_model,
        mixture,
        multiclass,
        multioutput,
        naive_bayes,
        neighbors,
        neural_network,
        preprocessing,
        svm,
        tree,
    )
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
    from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
    from sklearn.pipeline import FeatureUnion, make_pipeline

    p, s = preprocessing, make_pipeline
    logistic = linear_model.LogisticRegression
    cases: dict[str, tuple[Callable[[], Any], Any, Any]] = {}

    def add(name: str, build: Callable[[], Any], x: Any = NUMBERS, y: Any = TARGET) -> None:
        cases[name] = (build, x, y)

    # Preprocessing.
    add("minmax-clip", lambda: p.MinMaxScaler((-1, 2), clip=True))
    add("robust", lambda: p.RobustScaler(quantile_range=(10, 80), unit_variance=True))
    add("standard-no-mean", lambda: p.StandardScaler(with_mean=False))
    add("normalizer-max", lambda: p.Normalizer("max"))
    add("power-box-cox", lambda: p.PowerTransformer("box-cox"), np.abs(NUMBERS) + 0.1)
    add("power-yeo", lambda: p.PowerTransformer(standardize=False))
    add("quantile-normal", lambda: p.QuantileTransformer(n_quantiles=20, output_distribution="normal"))
    add("bins-onehot", lambda: p.KBinsDiscretizer(4, encode="onehot-dense", strategy="uniform"))
    add("bins-kmeans", lambda: p.KBinsDiscretizer(3, encode="ordinal", strategy="kmeans"))
    add("splines", lambda: p.SplineTransformer(4, degree=2, extrapolation="linear", include_bias=False))
    add("splines-periodic", lambda: p.SplineTransformer(5, extrapolation="periodic"))
    add("polynomial", lambda: p.PolynomialFeatures(3, interaction_only=True))
    add("onehot-drop", lambda: p.OneHotEncoder(drop="first"), COLOURS)
    add("onehot-ignore", lambda: p.OneHotEncoder(handle_unknown="ignore", sparse_output=False), COLOURS)
    add("onehot-rare", lambda: p.OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=2), COLOURS)
    add("ordinal-unknown", lambda: p.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), COLOURS)
    add("target-encoder", lambda: p.TargetEncoder(), COLOURS)
    add("target-encoder-classes", lambda: p.TargetEncoder(), COLOURS, LABELS)
    add("function-log", lambda: p.FunctionTransformer(np.log1p), np.abs(NUMBERS))
    add("impute-median", lambda: impute.SimpleImputer(strategy="median", add_indicator=True), HOLES)
    add("impute-constant", lambda: impute.SimpleImputer(strategy="constant", fill_value=7.0), HOLES)
    add("impute-frequent", lambda: impute.SimpleImputer(strategy="most_frequent"), COLOURS)
    add("impute-knn", lambda: impute.KNNImputer(n_neighbors=3, weights="distance"), HOLES)
    add("impute-iterative", lambda: _iterative(), HOLES)
    # Texts.
    add("count-bigrams", lambda: CountVectorizer(ngram_range=(1, 2), binary=True), TEXTS)
    add("count-chars", lambda: CountVectorizer(analyzer="char", ngram_range=(2, 3)), TEXTS)
    add("count-char-wb", lambda: CountVectorizer(analyzer="char_wb", ngram_range=(2, 2)), TEXTS)
    add("tfidf-sublinear", lambda: TfidfVectorizer(sublinear_tf=True, norm="l1", min_df=2), TEXTS)
    add("tfidf-stop", lambda: TfidfVectorizer(stop_words=["the", "on"], lowercase=False), TEXTS)
    add("hashing", lambda: HashingVectorizer(n_features=32), TEXTS)
    add("tfidf-logistic", lambda: s(TfidfVectorizer(), logistic()), TEXTS, LABELS)
    add("tfidf-svc", lambda: s(TfidfVectorizer(), svm.LinearSVC()), TEXTS, LABELS)
    add("count-bayes", lambda: s(CountVectorizer(), naive_bayes.MultinomialNB()), TEXTS, LABELS)
    add("tfidf-svd", lambda: s(TfidfVectorizer(), decomposition.TruncatedSVD(3), logistic()), TEXTS, LABELS)
    # Selection and decomposition.
    add("select-k", lambda: s(feature_selection.SelectKBest(k=2), logistic()), NUMBERS, LABELS)
    add("select-model", lambda: s(feature_selection.SelectFromModel(linear_model.Lasso(0.1)), linear_model.Ridge()))
    add("rfe", lambda: feature_selection.RFE(linear_model.Ridge(), n_features_to_select=2))
    add("pca-whiten", lambda: s(p.StandardScaler(), decomposition.PCA(3, whiten=True)))
    add("pca-fraction", lambda: decomposition.PCA(0.9))
    add("kernel-pca", lambda: decomposition.KernelPCA(3, kernel="poly", degree=2, gamma=0.1))
    add("nmf", lambda: decomposition.NMF(3, max_iter=400), np.abs(NUMBERS))
    add("ica", lambda: decomposition.FastICA(3, random_state=0))
    add("lda-topics", lambda: decomposition.LatentDirichletAllocation(3, random_state=0), np.abs(NUMBERS).round())
    add("nystroem", lambda: s(kernel_approximation.Nystroem(n_components=10, random_state=0), linear_model.Ridge()))
    add("union", lambda: s(FeatureUnion([("a", decomposition.PCA(2)), ("b", p.MinMaxScaler())]), linear_model.Ridge()))
    # Columns.
    add(
        "columns",
        lambda: s(
            ColumnTransformer([("n", p.StandardScaler(), [0, 1]), ("d", "drop", [2])], remainder="passthrough"),
            linear_model.Ridge(),
        ),
    )
    add("columns-mixed", lambda: _mixed(logistic()), _table(), LABELS)
    add("columns-mixed-forest", lambda: _mixed(ensemble.RandomForestClassifier(5, random_state=0)), _table(), LABELS)
    add("columns-mixed-boosting", lambda: _mixed(ensemble.HistGradientBoostingRegressor(max_iter=5)), _table())
    # Linear.
    add("logistic-two", lambda: logistic(C=0.1), NUMBERS, TWO)
    add("logistic-balanced", lambda: logistic(class_weight="balanced"), NUMBERS, LABELS)
    add("one-vs-rest", lambda: multiclass.OneVsRestClassifier(logistic()), NUMBERS, LABELS)
    add("one-vs-rest-marks", lambda: multiclass.OneVsRestClassifier(logistic()), NUMBERS, MARKS)
    add("one-vs-one", lambda: multiclass.OneVsOneClassifier(svm.LinearSVC()), NUMBERS, LABELS)
    add("output-code", lambda: multiclass.OutputCodeClassifier(logistic(), random_state=0), NUMBERS, LABELS)
    add("chain", lambda: multioutput.ClassifierChain(logistic()), NUMBERS, MARKS)
    add("regressor-chain", lambda: multioutput.RegressorChain(linear_model.Ridge()), NUMBERS, MANY)
    add(
        "multi-output",
        lambda: multioutput.MultiOutputClassifier(tree.DecisionTreeClassifier(max_depth=3)),
        NUMBERS,
        MARKS,
    )
    add("sgd-log", lambda: linear_model.SGDClassifier(loss="log_loss", random_state=0), NUMBERS, LABELS)
    add("sgd-huber", lambda: linear_model.SGDClassifier(loss="modified_huber", random_state=0), NUMBERS, LABELS)
    add("ridge-many", lambda: linear_model.Ridge(), NUMBERS, MANY)
    add("poisson", lambda: linear_model.PoissonRegressor(), NUMBERS, np.exp(TARGET / 20))
    add("tweedie-log", lambda: linear_model.TweedieRegressor(power=1.5, link="log"), NUMBERS, np.exp(TARGET / 20))
    add(
        "target-log",
        lambda: TransformedTargetRegressor(linear_model.Ridge(), func=np.log, inverse_func=np.exp),
        NUMBERS,
        np.exp(TARGET / 20),
    )
    add("target-scaled", lambda: TransformedTargetRegressor(linear_model.Ridge(), transformer=p.StandardScaler()))
    add("lda-classes", lambda: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"), NUMBERS, LABELS)
    add("qda", lambda: QuadraticDiscriminantAnalysis(reg_param=0.1), NUMBERS, LABELS)
    # Kernels and neighbours.
    for kernel in ("linear", "poly", "sigmoid"):
        add(f"svc-{kernel}", lambda kernel=kernel: svm.SVC(kernel=kernel, degree=2), NUMBERS, LABELS)
    add("svc-probability", lambda: s(p.StandardScaler(), svm.SVC(probability=True, random_state=0)), NUMBERS, LABELS)
    add("svc-ovo", lambda: svm.SVC(decision_function_shape="ovo"), NUMBERS, LABELS)
    add("nu-svr", lambda: svm.NuSVR(kernel="poly", degree=2))
    add("one-class", lambda: svm.OneClassSVM(nu=0.2))
    add("knn-distance", lambda: neighbors.KNeighborsClassifier(3, weights="distance"), NUMBERS, LABELS)
    add("knn-manhattan", lambda: neighbors.KNeighborsRegressor(4, p=1), NUMBERS, MANY)
    add("knn-cosine", lambda: neighbors.KNeighborsClassifier(3, metric="cosine"), NUMBERS, LABELS)
    add("radius", lambda: neighbors.RadiusNeighborsRegressor(30.0))
    add("centroid", lambda: neighbors.NearestCentroid(shrink_threshold=0.2), NUMBERS, LABELS)
    add(
        "gp-rbf",
        lambda: gaussian_process.GaussianProcessRegressor(
            gaussian_process.kernels.RBF() * 2.0 + gaussian_process.kernels.WhiteKernel()
        ),
    )
    add("gp-matern", lambda: gaussian_process.GaussianProcessRegressor(gaussian_process.kernels.Matern(nu=2.5)))
    add("gp-classifier", lambda: gaussian_process.GaussianProcessClassifier(), NUMBERS[:40], TWO[:40])
    add("bayes-complement", lambda: naive_bayes.ComplementNB(norm=True), np.abs(NUMBERS), LABELS)
    add("mixture-tied", lambda: mixture.GaussianMixture(3, covariance_type="tied", random_state=0))
    add("mixture-diag", lambda: mixture.GaussianMixture(2, covariance_type="diag", random_state=0))
    add("kmeans", lambda: s(p.StandardScaler(), KMeans(4, n_init=1, random_state=0)))
    add("kmeans-batch", lambda: MiniBatchKMeans(3, n_init=1, random_state=0))
    # Trees and ensembles.
    add("tree-many", lambda: tree.DecisionTreeRegressor(max_depth=4), NUMBERS, MANY)
    add("tree-holes", lambda: tree.DecisionTreeClassifier(max_depth=4), HOLES, LABELS)
    add("forest-holes", lambda: ensemble.RandomForestRegressor(5, random_state=0), HOLES)
    add("forest-many", lambda: ensemble.RandomForestClassifier(5, random_state=0), NUMBERS, MARKS)
    add("extra", lambda: ensemble.ExtraTreesClassifier(5, random_state=0), NUMBERS, TWO)
    add(
        "boosting-exponential",
        lambda: ensemble.GradientBoostingClassifier(loss="exponential", n_estimators=5),
        NUMBERS,
        TWO,
    )
    add("boosting-init", lambda: ensemble.GradientBoostingRegressor(init=linear_model.Ridge(), n_estimators=5))
    add("boosting-quantile", lambda: ensemble.GradientBoostingRegressor(loss="quantile", n_estimators=5))
    add("histogram-holes", lambda: ensemble.HistGradientBoostingClassifier(max_iter=5), HOLES, LABELS)
    add(
        "histogram-poisson",
        lambda: ensemble.HistGradientBoostingRegressor(loss="poisson", max_iter=5),
        NUMBERS,
        np.exp(TARGET / 20),
    )
    add("ada", lambda: ensemble.AdaBoostRegressor(n_estimators=5, loss="square", random_state=0))
    add("bagging-columns", lambda: ensemble.BaggingRegressor(linear_model.Ridge(), 5, max_features=3, random_state=0))
    add(
        "voting-soft",
        lambda: ensemble.VotingClassifier(
            [("a", logistic()), ("b", naive_bayes.GaussianNB())], voting="soft", weights=[1, 3]
        ),
        NUMBERS,
        LABELS,
    )
    add(
        "voting-hard",
        lambda: ensemble.VotingClassifier([("a", logistic()), ("b", naive_bayes.GaussianNB())]),
        NUMBERS,
        LABELS,
    )
    add(
        "stacking-passthrough",
        lambda: ensemble.StackingClassifier(
            [("a", logistic()), ("b", tree.DecisionTreeClassifier(max_depth=3))], passthrough=True
        ),
        NUMBERS,
        LABELS,
    )
    add(
        "calibrated-isotonic",
        lambda: calibration.CalibratedClassifierCV(svm.LinearSVC(), method="isotonic", cv=3),
        NUMBERS,
        LABELS,
    )
    add(
        "calibrated-forest",
        lambda: calibration.CalibratedClassifierCV(ensemble.RandomForestClassifier(5, random_state=0), cv=2),
        NUMBERS,
        TWO,
    )
    add("isolation", lambda: ensemble.IsolationForest(n_estimators=8, contamination=0.1, random_state=0))
    add("embedding", lambda: s(ensemble.RandomTreesEmbedding(4, random_state=0), linear_model.Ridge()))
    add("mlp-tanh", lambda: neural_network.MLPClassifier((6, 4), activation="tanh", max_iter=30), NUMBERS, LABELS)
    add("mlp-marks", lambda: neural_network.MLPClassifier((5,), max_iter=30), NUMBERS, MARKS)
    add(
        "mlp-many",
        lambda: neural_network.MLPRegressor(hidden_layer_sizes=(5,), activation="logistic", max_iter=30),
        NUMBERS,
        MANY,
    )
    add("search", lambda: _search())
    add("threshold", lambda: _threshold(), NUMBERS, TWO)
    add("hasher-columns", lambda: feature_extraction.FeatureHasher(8, input_type="string"), COLOURS)
    return cases


def _iterative() -> Any:
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    return IterativeImputer(max_iter=3, random_state=0)


def _search() -> Any:
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return GridSearchCV(make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": [0.1, 1.0]}, cv=2)


def _threshold() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import FixedThresholdClassifier

    return FixedThresholdClassifier(LogisticRegression(), threshold=0.3)


def _mixed(model: Any) -> Any:
    from sklearn import impute, preprocessing
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    numbers = make_pipeline(impute.SimpleImputer(), preprocessing.StandardScaler())
    encoder = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    parts = [
        ("numbers", numbers, ["a", "b"]),
        ("colours", encoder, ["colour"]),
        ("text", TfidfVectorizer(), "text"),
    ]
    return make_pipeline(ColumnTransformer(parts, sparse_threshold=0.0), model)


def _table() -> Any:
    import pandas

    return pandas.DataFrame({"a": HOLES[:, 0], "b": NUMBERS[:, 1], "colour": COLOURS[:, 0], "text": TEXTS})


def cases() -> dict[str, Callable[[], tuple[Any, None]]]:
    """Return fitted pipelines by name."""
    return fitted_later(_members())
