"""Estimators of scikit-learn with their defaults, and with unusual inputs, targets and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convert_sources.pipelines import HOLES, MANY, MARKS, TWO
from convert_sources.tabular import COLOURS, LABELS, NUMBERS, TARGET, TEXTS, Builder, fitted_later

CODES = np.floor(np.abs(NUMBERS)) % 4
POSITIVE = np.abs(NUMBERS)
_members: dict[str, Builder] = {}


def cases() -> dict[str, Callable[[], tuple[Any, None]]]:
    """Return fitted estimators by name."""
    _defaults()
    _columns()
    _texts()
    _targets()
    _functions()
    return fitted_later(_members)


def add(name: str, build: Callable[[], Any], x: Any = NUMBERS, y: Any = TARGET) -> None:
    """Register a builder with rows and targets."""
    _members[name] = (build, x, y)


# Estimators with their defaults

_INNER = ("estimator", "base_estimator", "estimators", "transformers", "transformer_list", "steps", "param_grid")


def _required(kind: Any) -> dict[str, Any] | None:
    """Return the arguments that a class requires; None if they are not known here."""
    import inspect

    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.preprocessing import StandardScaler

    is_regressor = "Regressor" in kind.__name__ or kind.__name__ == "RegressorChain"
    inner: Any = Ridge() if is_regressor else LogisticRegression()
    known: dict[str, Any] = {
        "estimator": inner,
        "base_estimator": inner,
        "estimators": [("a", inner), ("b", type(inner)())],
        "transformers": [("a", StandardScaler(), [0, 1])],
        "transformer_list": [("a", StandardScaler())],
        "steps": [("a", StandardScaler()), ("b", inner)],
        "param_grid": {},
        "param_distributions": {},
        "dictionary": np.eye(NUMBERS.shape[1]),
    }
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    required = [one.name for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    return {name: known[name] for name in required} if all(name in known for name in required) else None


def _defaults() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.utils import all_estimators

    data: dict[str, tuple[Any, Any]] = {
        **dict.fromkeys(("CategoricalNB", "ComplementNB", "MultinomialNB"), (CODES, LABELS)),
        **dict.fromkeys(
            ("NMF", "MiniBatchNMF", "LatentDirichletAllocation", "AdditiveChi2Sampler", "SkewedChi2Sampler"),
            (POSITIVE, None),
        ),
        **dict.fromkeys(("GammaRegressor", "PoissonRegressor", "TweedieRegressor"), (NUMBERS, np.abs(TARGET))),
        **dict.fromkeys(("CCA", "PLSCanonical", "PLSRegression", "PLSSVD"), (NUMBERS, MANY)),
        **dict.fromkeys(("CountVectorizer", "TfidfVectorizer", "HashingVectorizer"), (TEXTS, None)),
        **dict.fromkeys(("LabelEncoder", "LabelBinarizer"), (LABELS, None)),
        **dict.fromkeys(("ClassifierChain", "MultiOutputClassifier"), (NUMBERS, MARKS)),
        **dict.fromkeys(
            ("MultiTaskElasticNet", "MultiTaskElasticNetCV", "MultiTaskLasso", "MultiTaskLassoCV"), (NUMBERS, MANY)
        ),
        **dict.fromkeys(("MultiOutputRegressor", "RegressorChain"), (NUMBERS, MANY)),
        **dict.fromkeys(("FixedThresholdClassifier", "TunedThresholdClassifierCV"), (NUMBERS, TWO)),
        **dict.fromkeys(("OneHotEncoder", "OrdinalEncoder"), (COLOURS, None)),
        "TargetEncoder": (COLOURS, TARGET),
        "SelfTrainingClassifier": (NUMBERS, np.where(np.arange(len(TWO)) % 5 == 0, -1, TWO)),
        "IsotonicRegression": (NUMBERS[:, 0], TARGET),
        "MissingIndicator": (HOLES, None),
        "SimpleImputer": (HOLES, None),
        "KNNImputer": (HOLES, None),
        "IterativeImputer": (HOLES, None),
        "KernelCenterer": (NUMBERS @ NUMBERS.T, None),
        "TfidfTransformer": (CODES, None),
        "DictVectorizer": ([{"a": float(row[0]), "b": "x"} for row in NUMBERS], None),
        "FeatureHasher": ([{"a": float(row[0])} for row in NUMBERS], None),
        "PatchExtractor": (NUMBERS.reshape(len(NUMBERS), -1, 1), None),
        "MultiLabelBinarizer": ([["a", "b"], ["c"]], None),
    }
    for name, kind in all_estimators():
        if not any(hasattr(kind, method) for method in ("predict", "transform")):
            continue
        arguments = _required(kind)
        if arguments is not None:
            arguments |= {"n_components": 3} if name.endswith("RandomProjection") else {}
            arguments |= {"novelty": True} if name == "LocalOutlierFactor" else {}
            arguments |= {"estimator": LogisticRegression()} if name == "SelfTrainingClassifier" else {}
        if arguments is None:
            continue
        target = LABELS if hasattr(kind, "predict_proba") or "Classifier" in name else TARGET
        tags = getattr(kind, "_estimator_type", "")
        is_of_classes = tags == "classifier" or name.startswith(
            ("LinearSVC", "Perceptron", "Neighborhood", "Select", "Sequential", "Generic")
        )
        target = LABELS if is_of_classes else target
        x, y = data.get(name, (NUMBERS, target))
        add(f"default-{name}", lambda kind=kind, arguments=arguments: kind(**arguments), x, y)


# Tables


def _frame() -> Any:
    import pandas

    size = np.array(["small", "large", "medium"], object)[np.arange(120) % 3]
    return pandas.DataFrame(
        {"a": HOLES[:, 0], "b": NUMBERS[:, 1], "n": np.arange(120) % 7, "colour": COLOURS[:, 0], "size": size}
    )


def _columns() -> None:
    from sklearn import compose, ensemble, feature_selection, impute, linear_model, pipeline, preprocessing, svm

    encoder, imputer = preprocessing.OneHotEncoder, impute.SimpleImputer
    join, column = pipeline.make_pipeline, compose.make_column_transformer
    numbers, texts = ["a", "b", "n"], ["colour", "size"]
    frame = _frame()
    add(
        "frame-names-of-types",
        lambda: join(
            column(
                (join(imputer(), preprocessing.StandardScaler()), compose.make_column_selector(dtype_include="number")),
                (encoder(handle_unknown="ignore"), compose.make_column_selector(dtype_exclude="number")),
            ),
            linear_model.LogisticRegression(),
        ),
        frame,
        LABELS,
    )
    add(
        "frame-rare",
        lambda: join(
            column((encoder(min_frequency=50, handle_unknown="infrequent_if_exist"), texts), remainder="drop"),
            linear_model.Ridge(),
        ),
        frame,
    )
    add(
        "frame-remainder",
        lambda: join(
            column((preprocessing.OrdinalEncoder(), texts), remainder="passthrough"),
            ensemble.HistGradientBoostingRegressor(max_iter=5),
        ),
        frame,
    )
    add(
        "frame-unknown",
        lambda: join(
            column(
                (
                    preprocessing.OrdinalEncoder(
                        handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2
                    ),
                    texts,
                ),
                (imputer(strategy="most_frequent"), ["a"]),
            ),
            svm.SVC(),
        ),
        frame,
        LABELS,
    )
    add(
        "frame-orders",
        lambda: join(
            column(
                (preprocessing.OrdinalEncoder(categories=[["small", "medium", "large"]]), ["size"]),
                (imputer(strategy="constant", fill_value=-1.0, add_indicator=True), ["a", "b"]),
            ),
            linear_model.Ridge(),
        ),
        frame,
    )
    add(
        "frame-dropped",
        lambda: join(
            column((encoder(drop="first", sparse_output=False), texts), ("drop", ["n"]), ("passthrough", ["b"])),
            linear_model.LinearRegression(),
        ),
        frame,
    )
    add(
        "frame-binary",
        lambda: join(
            column(
                (encoder(drop="if_binary"), texts),
                (
                    preprocessing.KBinsDiscretizer(3, encode="onehot-dense", quantile_method="averaged_inverted_cdf"),
                    ["b"],
                ),
            ),
            linear_model.Ridge(),
        ),
        frame,
    )
    add(
        "frame-categories-filled",
        lambda: join(
            column(
                (join(imputer(strategy="constant", fill_value="none"), encoder()), texts),
                (imputer(strategy="median"), numbers),
            ),
            ensemble.RandomForestClassifier(5),
        ),
        frame,
        LABELS,
    )
    add(
        "frame-target",
        lambda: join(
            column((preprocessing.TargetEncoder(cv=2), texts), (preprocessing.PowerTransformer(), ["b"])),
            linear_model.Ridge(),
        ),
        frame,
    )
    add(
        "frame-selected",
        lambda: join(
            column((encoder(), texts), (imputer(), numbers)),
            feature_selection.SelectKBest(k=4),
            preprocessing.MaxAbsScaler(),
            linear_model.SGDClassifier(loss="modified_huber"),
        ),
        frame,
        LABELS,
    )
    add(
        "frame-histogram",
        lambda: ensemble.HistGradientBoostingClassifier(max_iter=5, categorical_features=["colour", "size"]),
        frame.astype({"colour": "category", "size": "category"}),
        LABELS,
    )
    add(
        "frame-histogram-types",
        lambda: ensemble.HistGradientBoostingRegressor(max_iter=5, categorical_features="from_dtype"),
        frame.astype({"colour": "category", "size": "category"}),
    )
    add(
        "frame-in-frame",
        lambda: join(
            column((encoder(sparse_output=False), texts), remainder=imputer()).set_output(transform="pandas"),
            linear_model.Ridge(),
        ),
        frame,
    )
    add(
        "frame-transformed-target",
        lambda: compose.TransformedTargetRegressor(
            join(column((encoder(), texts), (imputer(), numbers)), linear_model.Ridge()),
            func=np.cbrt,
            inverse_func=lambda y: y**3,
        ),
        frame,
    )
    add(
        "frame-voted",
        lambda: ensemble.VotingClassifier(
            [
                ("a", join(column((encoder(), texts)), linear_model.LogisticRegression())),
                ("b", join(column((imputer(), numbers)), svm.LinearSVC())),
            ]
        ),
        frame,
        LABELS,
    )
    add(
        "frame-stacked",
        lambda: ensemble.StackingClassifier(
            [
                ("a", join(column((encoder(), texts)), linear_model.LogisticRegression())),
                ("b", join(column((imputer(), numbers)), ensemble.ExtraTreesClassifier(5))),
            ],
            passthrough=False,
            cv=2,
        ),
        frame,
        LABELS,
    )
    add(
        "matrix-of-objects",
        lambda: join(column((encoder(), [0]), (preprocessing.StandardScaler(), [1])), linear_model.Ridge()),
        np.column_stack([COLOURS[:, 0], NUMBERS[:, 1]]).astype(object),
    )


# Texts


def _texts() -> None:
    from sklearn import decomposition, linear_model, naive_bayes, pipeline
    from sklearn.feature_extraction import text

    join = pipeline.make_pipeline
    for name, options in {
        "bigrams": {"ngram_range": (1, 2), "min_df": 2},
        "letters": {"analyzer": "char", "ngram_range": (2, 3)},
        "letters-of-words": {"analyzer": "char_wb", "ngram_range": (1, 3), "max_features": 40},
        "words-of-one": {"token_pattern": r"(?u)\b\w+\b"},
        "words-of-letters": {"token_pattern": r"[a-zA-Z]{2,}"},
        "groups": {"token_pattern": r"(?u)\b(\w{2})\w*\b"},
        "numbers": {"token_pattern": r"\b[a-z0-9]{3,}\b", "lowercase": True},
        "accents": {"strip_accents": "unicode"},
        "accents-ascii": {"strip_accents": "ascii"},
        "stop": {"stop_words": "english", "ngram_range": (1, 2)},
        "cased": {"lowercase": False, "binary": True},
        "logarithms": {"sublinear_tf": True, "norm": "l1", "smooth_idf": False},
        "plain": {"use_idf": False, "norm": None},
        "spaces": {"token_pattern": r"\S+"},
        "split": {"tokenizer": str.split, "token_pattern": None},
        "prepared": {"preprocessor": str.lower},
    }.items():
        add(
            f"text-{name}",
            lambda options=options: join(text.TfidfVectorizer(**options), linear_model.LogisticRegression()),
            TEXTS,
            LABELS,
        )
    add(
        "text-topics",
        lambda: join(text.CountVectorizer(), decomposition.LatentDirichletAllocation(3, max_iter=3)),
        TEXTS,
        LABELS,
    )
    add(
        "text-meanings",
        lambda: join(text.TfidfVectorizer(), decomposition.TruncatedSVD(4), linear_model.Ridge()),
        TEXTS,
    )
    add(
        "text-bayes",
        lambda: join(text.CountVectorizer(), text.TfidfTransformer(), naive_bayes.ComplementNB()),
        TEXTS,
        LABELS,
    )
    add("text-hashes", lambda: join(text.HashingVectorizer(n_features=64), linear_model.Ridge()), TEXTS)
    add(
        "text-hashes-counted",
        lambda: join(
            text.HashingVectorizer(n_features=32, alternate_sign=False, norm=None, ngram_range=(1, 2)),
            linear_model.LogisticRegression(),
        ),
        TEXTS,
        LABELS,
    )


# Targets and calibrations


def _targets() -> None:
    from sklearn import (
        calibration,
        ensemble,
        isotonic,
        linear_model,
        multiclass,
        multioutput,
        neighbors,
        neural_network,
        pipeline,
        preprocessing,
        semi_supervised,
        svm,
        tree,
    )

    boost = ensemble.HistGradientBoostingClassifier
    for method in ("sigmoid", "isotonic", "temperature"):
        add(
            f"calibrated-{method}",
            lambda method=method: calibration.CalibratedClassifierCV(svm.LinearSVC(), method=method, cv=2),
            NUMBERS,
            LABELS,
        )
        add(
            f"calibrated-{method}-one",
            lambda method=method: calibration.CalibratedClassifierCV(
                tree.DecisionTreeClassifier(max_depth=3), method=method, cv=2, ensemble=False
            ),
            NUMBERS,
            TWO,
        )
    add(
        "histogram-quantile",
        lambda: ensemble.HistGradientBoostingRegressor(loss="quantile", quantile=0.2, max_iter=5),
        HOLES,
    )
    add(
        "histogram-gamma",
        lambda: ensemble.HistGradientBoostingRegressor(loss="gamma", max_iter=5),
        HOLES,
        np.abs(TARGET) + 0.1,
    )
    add(
        "histogram-codes",
        lambda: boost(max_iter=5, categorical_features=[0, 1, 2, 3]),
        np.where(CODES > 2, np.nan, CODES),
        LABELS,
    )
    add(
        "histogram-two",
        lambda: boost(max_iter=5, max_leaf_nodes=5, interaction_cst="no_interactions"),
        HOLES,
        TWO.astype(bool),
    )
    add("outputs-forest", lambda: ensemble.ExtraTreesRegressor(4), NUMBERS, MANY)
    add(
        "outputs-labels",
        lambda: multioutput.MultiOutputClassifier(boost(max_iter=3)),
        HOLES,
        np.stack([LABELS, LABELS[::-1]], 1),
    )
    add("outputs-neighbours", lambda: neighbors.KNeighborsRegressor(3, weights="distance", p=1), NUMBERS, MANY)
    add(
        "outputs-chain",
        lambda: multioutput.RegressorChain(tree.DecisionTreeRegressor(max_depth=3), order=[1, 0]),
        NUMBERS,
        MANY,
    )
    add(
        "outputs-network",
        lambda: neural_network.MLPClassifier((8, 4), activation="logistic", max_iter=30),
        NUMBERS,
        MARKS,
    )
    add("one-against-one", lambda: multiclass.OneVsOneClassifier(svm.SVC()), NUMBERS, LABELS)
    add(
        "codes-of-classes",
        lambda: multiclass.OutputCodeClassifier(linear_model.Perceptron(), code_size=3, random_state=0),
        NUMBERS,
        LABELS,
    )
    add(
        "support-nu",
        lambda: svm.NuSVC(kernel="poly", degree=2, probability=False, decision_function_shape="ovo"),
        NUMBERS,
        LABELS,
    )
    add("support-sigmoid", lambda: svm.SVR(kernel="sigmoid", C=10))
    add(
        "missing-forest", lambda: ensemble.RandomForestClassifier(5, criterion="entropy", ccp_alpha=0.01), HOLES, LABELS
    )
    add("missing-tree", lambda: tree.DecisionTreeRegressor(criterion="absolute_error", max_depth=4), HOLES)
    add(
        "boosted-huber",
        lambda: ensemble.GradientBoostingRegressor(loss="huber", n_estimators=5, init=linear_model.Ridge()),
    )
    add(
        "boosted-exponential",
        lambda: ensemble.GradientBoostingClassifier(loss="exponential", n_estimators=5),
        NUMBERS,
        TWO,
    )
    add("boosted-zero", lambda: ensemble.GradientBoostingClassifier(init="zero", n_estimators=5), NUMBERS, LABELS)
    add(
        "bagged-features",
        lambda: ensemble.BaggingRegressor(
            linear_model.Lasso(), max_features=0.5, n_estimators=4, bootstrap_features=True
        ),
    )
    add("forest-outliers", lambda: ensemble.IsolationForest(n_estimators=10, contamination=0.1, max_features=2))
    add("neighbour-outliers", lambda: neighbors.LocalOutlierFactor(novelty=True, n_neighbors=5, contamination=0.1))
    add(
        "support-outliers",
        lambda: pipeline.make_pipeline(preprocessing.RobustScaler(quantile_range=(10, 90)), svm.OneClassSVM(nu=0.2)),
    )
    add(
        "leaves-embedded",
        lambda: pipeline.make_pipeline(
            ensemble.RandomTreesEmbedding(4, max_depth=2, sparse_output=False), linear_model.LogisticRegression()
        ),
        NUMBERS,
        LABELS,
    )
    add(
        "splines",
        lambda: pipeline.make_pipeline(
            preprocessing.SplineTransformer(4, degree=2, extrapolation="periodic"), linear_model.Ridge()
        ),
    )
    add(
        "splines-linear",
        lambda: pipeline.make_pipeline(
            preprocessing.SplineTransformer(5, knots="quantile", extrapolation="linear", include_bias=False),
            linear_model.Ridge(),
        ),
    )
    add(
        "quantiles-normal",
        lambda: pipeline.make_pipeline(
            preprocessing.QuantileTransformer(n_quantiles=20, output_distribution="normal"), linear_model.Ridge()
        ),
    )
    add(
        "propagated",
        lambda: semi_supervised.LabelSpreading(kernel="knn", n_neighbors=4),
        NUMBERS,
        np.where(np.arange(120) % 3 == 0, -1, TWO),
    )
    add(
        "isotonic-clipped",
        lambda: isotonic.IsotonicRegression(out_of_bounds="clip", increasing=False),
        NUMBERS[:, 0],
        TARGET,
    )


# Functions and classes of users


def _functions() -> None:
    import pandas
    from sklearn import linear_model, pipeline, preprocessing

    wrap, join = preprocessing.FunctionTransformer, pipeline.make_pipeline
    ridge = linear_model.Ridge
    for name, function in {
        "assigned": _assigned,
        "filled": _filled,
        "columns": lambda x: np.c_[x, x[:, 0] / (np.abs(x[:, 1]) + 1)],
        "cyclic": lambda x: np.column_stack([np.sin(2 * np.pi * x[:, 0] / 24), np.cos(2 * np.pi * x[:, 0] / 24)]),
        "binned": lambda x: np.hstack([x, np.digitize(x[:, :1], [-1, 0, 1])]),
        "outer": lambda x: (x[:, :, None] * x[:, None, :]).reshape(x.shape[0], -1),
        "ordered": lambda x: np.sort(x, axis=1),
        "row-statistics": lambda x: np.stack(
            [x.mean(1), x.std(1, ddof=1), np.median(x, axis=1), np.ptp(x, axis=1)], axis=1
        ),
        "quantity": lambda x: np.log1p(np.clip(x, 0, None)),
        "periods": lambda x: np.hstack([x % 0.7, x // 0.7]),
    }.items():
        add(f"function-{name}", lambda function=function: join(wrap(function), ridge()))
    frame = pandas.DataFrame(NUMBERS[:, :3], columns=["a", "b", "c"])
    add("frame-function", lambda: join(wrap(lambda x: x[["a", "b"]]), ridge()), frame)
    add("frame-ratio", lambda: join(wrap(_ratio), ridge()), frame)
    add("frame-assigned", lambda: join(wrap(lambda x: x.assign(d=x["a"] * x["b"]).drop(columns=["c"])), ridge()), frame)
    add("function-clip-options", lambda: join(wrap(np.clip, kw_args={"a_min": -1, "a_max": 1}), ridge()))


def _assigned(x: Any) -> Any:
    x = np.array(x, dtype=float)
    x[x < 0] = 0
    x[:, 0] = np.log1p(x[:, 0])
    return x


def _filled(x: Any) -> Any:
    result = np.empty((x.shape[0], 2))
    result[:, 0] = x.sum(axis=1)
    result[:, 1] = x.max(axis=1)
    return result


def _ratio(x: Any) -> Any:
    x = x.copy()
    x["ratio"] = x["a"] / (x["b"].abs() + 1)
    return x
