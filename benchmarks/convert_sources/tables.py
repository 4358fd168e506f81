"""Pipelines over mixed tables: boosting, categories, own transformers, sparse features, resampling."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from convert_sources.pipelines import HOLES, MANY, MARKS, TWO
from convert_sources.tabular import COLOURS, LABELS, NUMBERS, TARGET, TEXTS, Builder, fitted_later

CLASSES = np.digitize(TARGET, [-2, 2])
POSITIVE = np.exp(TARGET / 20)
_members: dict[str, Builder] = {}


def cases() -> dict[str, Callable[[], tuple[Any, None]]]:
    """Return fitted estimators by name; packages that are not installed are left out."""
    _catboost()
    _boosting()
    _scikit()
    _resampling()
    return fitted_later(_members)


def add(name: str, build: Callable[[], Any], x: Any = NUMBERS, y: Any = TARGET) -> None:
    """Register a builder with rows and targets."""
    _members[name] = (build, x, y)


def _frame(*, categories: bool = False) -> Any:
    import pandas

    frame = pandas.DataFrame({"a": HOLES[:, 0], "b": NUMBERS[:, 1], "n": np.arange(120) % 7, "colour": COLOURS[:, 0]})
    return frame.astype({"colour": "category"}) if categories else frame


def _texts() -> Any:
    return _frame().assign(text=TEXTS)


def _catboost() -> None:
    if importlib.util.find_spec("catboost") is None:
        return
    from catboost import CatBoostClassifier, CatBoostRegressor

    quiet = {"iterations": 8, "verbose": 0, "allow_writing_files": False, "depth": 4}
    regressor = lambda **options: CatBoostRegressor(**quiet, **options)  # noqa: E731
    classifier = lambda **options: CatBoostClassifier(**quiet, **options)  # noqa: E731
    for loss in (
        "RMSE",
        "MAE",
        "Quantile:alpha=0.3",
        "Poisson",
        "Huber:delta=1",
        "LogCosh",
        "MAPE",
        "Tweedie:variance_power=1.5",
    ):
        add(
            f"catboost-{loss.partition(':')[0].lower()}",
            lambda loss=loss: regressor(loss_function=loss),
            NUMBERS,
            POSITIVE,
        )
    add("catboost-many", lambda: regressor(loss_function="MultiRMSE"), NUMBERS, MANY)
    add("catboost-uncertain", lambda: regressor(loss_function="RMSEWithUncertainty"))
    add("catboost-holes", lambda: regressor(nan_mode="Max"), HOLES)
    add("catboost-texts-of-classes", classifier, NUMBERS, LABELS)
    add("catboost-two", classifier, NUMBERS, TWO)
    add("catboost-truth", classifier, NUMBERS, TWO.astype(bool))
    add("catboost-ova", lambda: classifier(loss_function="MultiClassOneVsAll"), NUMBERS, CLASSES)
    add("catboost-entropy", lambda: classifier(loss_function="CrossEntropy"), NUMBERS, TWO)
    add("catboost-marks", lambda: classifier(loss_function="MultiLogloss"), NUMBERS, MARKS)
    add("catboost-lossguide", lambda: regressor(grow_policy="Lossguide"))
    add("catboost-depthwise", lambda: classifier(grow_policy="Depthwise"), HOLES, CLASSES)
    add("catboost-plain", lambda: regressor(boosting_type="Ordered", bootstrap_type="Bernoulli", l2_leaf_reg=1))
    add("catboost-categories", lambda: classifier(cat_features=["colour"], one_hot_max_size=10), _frame(), TWO)
    add("catboost-counters", lambda: classifier(cat_features=["colour"], one_hot_max_size=1), _frame(), TWO)
    add("catboost-balanced", lambda: classifier(auto_class_weights="Balanced"), NUMBERS, CLASSES)
    add("catboost-search", _catboost_search)
    add("catboost-pipeline", lambda: _pipeline(regressor()))
    add("catboost-stacked", lambda: _stacked(regressor()))


def _pipeline(model: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), model)


def _stacked(model: Any) -> Any:
    from sklearn.ensemble import StackingRegressor
    from sklearn.linear_model import Ridge

    return StackingRegressor([("a", model), ("b", Ridge())], cv=2)


def _catboost_search() -> Any:
    from catboost import CatBoostRegressor
    from sklearn.model_selection import GridSearchCV

    model = CatBoostRegressor(iterations=5, verbose=0, allow_writing_files=False)
    return GridSearchCV(model, {"depth": [2, 3]}, cv=2)


def _boosting() -> None:
    if importlib.util.find_spec("xgboost") is not None:
        import xgboost as x

        few = {"n_estimators": 8}
        add(
            "xgboost-categories",
            lambda: x.XGBRegressor(**few, enable_categorical=True, tree_method="hist"),
            _frame(categories=True),
        )
        add("xgboost-many", lambda: x.XGBRegressor(**few), NUMBERS, MANY)
        add("xgboost-vector-leaves", lambda: x.XGBRegressor(**few, multi_strategy="multi_output_tree"), NUMBERS, MANY)
        add(
            "xgboost-quantiles",
            lambda: x.XGBRegressor(**few, objective="reg:quantileerror", quantile_alpha=np.array([0.2, 0.8])),
        )
        add("xgboost-marks", lambda: x.XGBClassifier(**few), NUMBERS, MARKS)
        add("xgboost-hinge", lambda: x.XGBClassifier(**few, objective="binary:hinge"), NUMBERS, TWO)
        add("xgboost-missing", lambda: x.XGBRegressor(**few, missing=0.0), np.round(NUMBERS), TARGET)
        add(
            "xgboost-monotone",
            lambda: x.XGBRegressor(**few, monotone_constraints="(1,0,-1,0,0)", grow_policy="lossguide", max_leaves=7),
        )
        add("xgboost-base-score", lambda: x.XGBClassifier(**few, base_score=0.3, scale_pos_weight=3), NUMBERS, TWO)
        add("xgboost-tweedie", lambda: x.XGBRegressor(**few, objective="reg:tweedie"), NUMBERS, POSITIVE)
        add("xgboost-absolute", lambda: x.XGBRegressor(**few, objective="reg:absoluteerror"))
        add("xgboost-calibrated", lambda: _calibrated(x.XGBClassifier(**few)), NUMBERS, CLASSES)
        add("xgboost-pipeline", lambda: _table_pipeline(x.XGBClassifier(**few)), _frame(), TWO)
    if importlib.util.find_spec("lightgbm") is not None:
        import lightgbm as g

        few = {"n_estimators": 8, "verbose": -1}
        add(
            "lightgbm-categories",
            lambda: g.LGBMClassifier(**few, min_child_samples=3),
            _frame(categories=True),
            CLASSES,
        )
        add("lightgbm-texts-of-classes", lambda: g.LGBMClassifier(**few), NUMBERS, LABELS)
        add("lightgbm-ova", lambda: g.LGBMClassifier(**few, objective="multiclassova"), NUMBERS, CLASSES)
        add("lightgbm-zero-missing", lambda: g.LGBMRegressor(**few, zero_as_missing=True), np.round(HOLES))
        add("lightgbm-linear-trees", lambda: g.LGBMRegressor(**few, linear_tree=True))
        add("lightgbm-forest", lambda: g.LGBMRegressor(**few, boosting_type="rf", bagging_freq=1, bagging_fraction=0.7))
        add("lightgbm-gamma", lambda: g.LGBMRegressor(**few, objective="gamma"), NUMBERS, POSITIVE)
        add("lightgbm-huber", lambda: g.LGBMRegressor(**few, objective="huber"))
        add("lightgbm-cross-entropy", lambda: g.LGBMRegressor(**few, objective="cross_entropy"), NUMBERS, TWO)
        add("lightgbm-many", lambda: _many(g.LGBMRegressor(**few)), NUMBERS, MANY)
        add("lightgbm-pipeline", lambda: _table_pipeline(g.LGBMRegressor(**few)), _frame(), TARGET)


def _calibrated(model: Any) -> Any:
    from sklearn.calibration import CalibratedClassifierCV

    return CalibratedClassifierCV(model, cv=2, method="isotonic")


def _many(model: Any) -> Any:
    from sklearn.multioutput import MultiOutputRegressor

    return MultiOutputRegressor(model)


def _table_pipeline(model: Any, *, sparse: bool = False) -> Any:
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=sparse)
    columns = make_column_transformer((numbers, ["a", "b"]), (encoder, ["colour"]), remainder="passthrough")
    return make_pipeline(columns, model)


def _scikit() -> None:
    from sklearn import ensemble, feature_selection, kernel_approximation, linear_model, naive_bayes, neighbors
    from sklearn import preprocessing as p
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.compose import ColumnTransformer, make_column_selector, make_column_transformer
    from sklearn.decomposition import PCA, TruncatedSVD
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer, TfidfVectorizer
    from sklearn.frozen import FrozenEstimator
    from sklearn.impute import KNNImputer, MissingIndicator, SimpleImputer
    from sklearn.model_selection import TunedThresholdClassifierCV
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import FeatureUnion, make_pipeline, make_union
    from sklearn.semi_supervised import SelfTrainingClassifier
    from sklearn.svm import SVC, LinearSVC

    logistic, ridge = linear_model.LogisticRegression, linear_model.Ridge

    class Clipped(TransformerMixin, BaseEstimator):  # type: ignore[misc]
        """Clips columns to quantiles."""

        def fit(self, x: Any, y: Any = None) -> Any:
            """Store the quantiles."""
            self.n_features_in_ = x.shape[1]
            self.low_, self.high_ = np.quantile(x, [0.1, 0.9], axis=0)
            return self

        def transform(self, x: Any) -> Any:
            """Return the columns within the quantiles."""
            return np.clip(x, self.low_, self.high_)

    class Ratios(TransformerMixin, BaseEstimator):  # type: ignore[misc]
        """Appends ratios and logarithms."""

        def fit(self, x: Any, y: Any = None) -> Any:
            """Store nothing."""
            self.n_features_in_ = x.shape[1]
            return self

        def transform(self, x: Any) -> Any:
            """Return the columns with further ones."""
            ratio = x[:, 0] / (np.abs(x[:, 1]) + 1)
            return np.hstack([x, ratio[:, None], np.log1p(np.abs(x[:, 2:3])), np.where(x[:, :1] > 0, 1.0, 0.0)])

    add("table-logistic", lambda: _table_pipeline(logistic()), _frame(), LABELS)
    add("table-sparse", lambda: _table_pipeline(logistic(), sparse=True), _frame(), LABELS)
    add("table-forest", lambda: _table_pipeline(ensemble.RandomForestRegressor(5, random_state=0)), _frame())
    add("table-knn", lambda: _table_pipeline(neighbors.KNeighborsClassifier(3)), _frame(), CLASSES)
    add(
        "table-histogram",
        lambda: _table_pipeline(ensemble.HistGradientBoostingClassifier(max_iter=5)),
        _frame(),
        LABELS,
    )
    add(
        "histogram-categories",
        lambda: ensemble.HistGradientBoostingRegressor(max_iter=5, categorical_features="from_dtype"),
        _frame(categories=True),
    )
    add(
        "histogram-categories-by-name",
        lambda: ensemble.HistGradientBoostingClassifier(max_iter=5, categorical_features=["n"]),
        _frame()[["a", "b", "n"]],
        LABELS,
    )
    add(
        "histogram-monotone",
        lambda: ensemble.HistGradientBoostingRegressor(max_iter=5, monotonic_cst=[1, 0, 0, -1, 0]),
        HOLES,
    )
    add(
        "selectors",
        lambda: make_pipeline(
            make_column_transformer(
                (p.StandardScaler(), make_column_selector(dtype_include=np.number)),
                (p.OrdinalEncoder(), make_column_selector(dtype_exclude=np.number)),
            ),
            SimpleImputer(),
            ridge(),
        ),
        _frame(),
    )
    add(
        "texts-in-table",
        lambda: make_pipeline(
            ColumnTransformer(
                [
                    ("t", TfidfVectorizer(ngram_range=(1, 2)), "text"),
                    ("c", p.OneHotEncoder(), ["colour"]),
                    ("n", SimpleImputer(), ["a", "b"]),
                ]
            ),
            LinearSVC(),
        ),
        _texts(),
        LABELS,
    )
    add(
        "two-texts",
        lambda: make_pipeline(
            ColumnTransformer([("a", CountVectorizer(), "text"), ("b", CountVectorizer(analyzer="char"), "colour")]),
            TruncatedSVD(3),
            logistic(),
        ),
        _texts(),
        TWO,
    )
    add(
        "tfidf-parts",
        lambda: make_pipeline(
            CountVectorizer(), TfidfTransformer(use_idf=False), linear_model.SGDClassifier(random_state=0)
        ),
        TEXTS,
        LABELS,
    )
    add(
        "tfidf-vocabulary",
        lambda: make_pipeline(
            TfidfVectorizer(vocabulary=["cat", "sat", "mat"], token_pattern=r"\b\w+\b"), naive_bayes.MultinomialNB()
        ),
        TEXTS,
        TWO,
    )
    add(
        "tfidf-selected",
        lambda: make_pipeline(
            TfidfVectorizer(), feature_selection.SelectKBest(feature_selection.chi2, k=3), logistic()
        ),
        TEXTS,
        LABELS,
    )
    add(
        "tfidf-random-forest",
        lambda: make_pipeline(TfidfVectorizer(max_features=4), ensemble.RandomForestClassifier(5, random_state=0)),
        TEXTS,
        LABELS,
    )
    add("own-clip", lambda: make_pipeline(Clipped(), ridge()))
    add("own-ratios", lambda: make_pipeline(Ratios(), p.StandardScaler(), logistic()), NUMBERS, LABELS)
    add("own-in-union", lambda: make_pipeline(make_union(Ratios(), PCA(2)), ridge()))
    add(
        "function-of-two",
        lambda: make_pipeline(p.FunctionTransformer(lambda x: np.hypot(x[:, :1], x[:, 1:2])), ridge()),
    )
    add("function-inverse", lambda: _transformed(ridge()), NUMBERS, np.exp(TARGET / 10))
    add(
        "union-nested",
        lambda: make_pipeline(
            FeatureUnion(
                [("u", FeatureUnion([("a", PCA(2)), ("b", p.PolynomialFeatures(2))])), ("s", p.StandardScaler())],
                transformer_weights={"s": 0.5},
            ),
            ridge(),
        ),
    )
    add(
        "columns-nested",
        lambda: ColumnTransformer(
            [
                ("in", ColumnTransformer([("s", p.StandardScaler(), [0])], remainder="passthrough"), [0, 1, 2]),
                ("m", p.MinMaxScaler(), slice(3, 5)),
            ]
        ),
    )
    add(
        "columns-boolean",
        lambda: make_column_transformer((p.RobustScaler(), [True, False, True, False, False]), ("passthrough", [3])),
    )
    add("indicator-union", lambda: make_pipeline(make_union(SimpleImputer(), MissingIndicator()), ridge()), HOLES)
    add("knn-imputed", lambda: make_pipeline(KNNImputer(), p.PowerTransformer(), logistic()), HOLES, LABELS)
    add(
        "target-encoded",
        lambda: make_pipeline(
            ColumnTransformer([("t", p.TargetEncoder(), ["colour"]), ("n", SimpleImputer(), ["a"])]), ridge()
        ),
        _frame(),
    )
    add("binned", lambda: make_pipeline(p.KBinsDiscretizer(4, encode="onehot"), logistic()), NUMBERS, LABELS)
    add("binarized", lambda: make_pipeline(p.Binarizer(threshold=0.5), naive_bayes.BernoulliNB()), NUMBERS, LABELS)
    add("categorical-bayes", lambda: make_pipeline(p.OrdinalEncoder(), naive_bayes.CategoricalNB()), COLOURS, LABELS)
    add(
        "self-training",
        lambda: SelfTrainingClassifier(logistic()),
        NUMBERS,
        np.where(np.arange(120) % 3 == 0, -1, CLASSES),
    )
    add("tuned-threshold", lambda: TunedThresholdClassifierCV(logistic(), cv=2), NUMBERS, TWO)
    add("frozen", lambda: make_pipeline(FrozenEstimator(p.StandardScaler().fit(NUMBERS)), ridge()))
    add("ova-marks", lambda: OneVsRestClassifier(SVC(probability=False)), NUMBERS, MARKS)
    add(
        "chain-forest",
        lambda: ClassifierChain(ensemble.RandomForestClassifier(4, random_state=0), order=[2, 0, 1]),
        NUMBERS,
        MARKS,
    )
    add("marks-of-texts", lambda: MultiOutputClassifier(logistic()), NUMBERS, np.stack([LABELS, COLOURS[:, 0]], 1))
    add(
        "bagged-trees",
        lambda: ensemble.BaggingClassifier(n_estimators=4, max_samples=0.7, random_state=0),
        NUMBERS,
        LABELS,
    )
    add(
        "voting-regressors",
        lambda: ensemble.VotingRegressor(
            [("a", ridge()), ("b", ensemble.GradientBoostingRegressor(n_estimators=5))], weights=[1, 2]
        ),
    )
    add(
        "stacking-nested",
        lambda: ensemble.StackingClassifier(
            [
                ("f", _pipeline(logistic())),
                ("v", ensemble.VotingClassifier([("a", logistic()), ("b", naive_bayes.GaussianNB())], voting="soft")),
            ],
            ensemble.RandomForestClassifier(4, random_state=0),
            cv=2,
        ),
        NUMBERS,
        LABELS,
    )
    add("ada-stumps", lambda: ensemble.AdaBoostClassifier(n_estimators=6, random_state=0), NUMBERS, LABELS)
    add("calibrated-temperature", lambda: _temperature(), NUMBERS, CLASSES)
    add(
        "fourier",
        lambda: make_pipeline(
            kernel_approximation.RBFSampler(n_components=8, random_state=0), linear_model.SGDClassifier(random_state=0)
        ),
        NUMBERS,
        TWO,
    )
    add("network-two", lambda: _pipeline(MLPClassifier((6,), max_iter=30, random_state=0)), NUMBERS, TWO)
    add(
        "polynomial-lasso",
        lambda: make_pipeline(
            p.PolynomialFeatures(2, include_bias=False), p.StandardScaler(), linear_model.LassoCV(cv=2)
        ),
    )
    add("logistic-elastic", lambda: linear_model.LogisticRegressionCV(Cs=3, cv=2, max_iter=50), NUMBERS, LABELS)
    add("quantile-linear", lambda: linear_model.QuantileRegressor(quantile=0.8, alpha=0.01))
    add("ransac", lambda: linear_model.RANSACRegressor(random_state=0))
    add(
        "dictionaries",
        lambda: make_pipeline(DictVectorizer(), ridge()),
        [{"a": float(a), "c": c} for a, c in zip(NUMBERS[:, 0], COLOURS[:, 0], strict=True)],
    )


def _transformed(model: Any) -> Any:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import PowerTransformer

    return TransformedTargetRegressor(model, transformer=PowerTransformer())


def _temperature() -> Any:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.linear_model import LogisticRegression

    return CalibratedClassifierCV(LogisticRegression(), method="temperature", cv=2)


def _resampling() -> None:
    if importlib.util.find_spec("imblearn") is None:
        return
    from imblearn.ensemble import BalancedBaggingClassifier, BalancedRandomForestClassifier, EasyEnsembleClassifier
    from imblearn.over_sampling import SMOTE
    from imblearn.pipeline import make_pipeline
    from imblearn.under_sampling import RandomUnderSampler
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    add("smote", lambda: make_pipeline(StandardScaler(), SMOTE(random_state=0), LogisticRegression()), NUMBERS, TWO)
    add(
        "undersampled",
        lambda: make_pipeline(RandomUnderSampler(random_state=0), RandomForestClassifier(4, random_state=0)),
        NUMBERS,
        CLASSES,
    )
    add("balanced-forest", lambda: BalancedRandomForestClassifier(4, random_state=0), NUMBERS, CLASSES)
    add("balanced-bagging", lambda: BalancedBaggingClassifier(n_estimators=3, random_state=0), NUMBERS, TWO)
    add("easy-ensemble", lambda: EasyEnsembleClassifier(n_estimators=2, random_state=0), NUMBERS, TWO)
