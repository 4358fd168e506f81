"""Boosting, bagging, voting, stacking, calibration, several classes and outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, concatenated, sigmoid, softmax, where
from sardonyx.convert.tabular.linear import normalized, two_columns
from sardonyx.convert.tabular.methods import Table, apply, labels, method, number_matrix, supports
from sardonyx.convert.tabular.trees import LESS_OR_EQUAL, MEMBER, Tree, ensemble, scikit_tree, single_precision
from sardonyx.errors import UnsupportedError


def constant_rows(x: Any, value: Any) -> Array:
    """Return a value for every row: a scalar as [rows], a vector as [rows, columns]."""
    matrix = x.parts[0] if isinstance(x, Table) else x
    row = np.asarray(value)
    dtype = np.dtype(object) if row.dtype.kind in "OUS" else row.dtype
    size = matrix.node("Shape", dtype=np.int64, end=1)
    if row.ndim == 0:
        return matrix.constant(row.reshape(1), dtype).node("Expand", size)
    sizes = size.node("Concat", np.array([row.shape[0]]), axis=0)
    return matrix.constant(row.reshape(1, -1), dtype).node("Expand", sizes)


def selected(x: Any, features: Any) -> Any:
    """Return columns of a matrix or table."""
    return x.select([int(i) for i in features]) if isinstance(x, Table) else x.columns(np.asarray(features))


# Gradient boosting


def _boosted(estimator: Any, x: Any) -> Array:
    """Return raw predictions of gradient boosting, [rows, trees per stage]."""
    stages = estimator.estimators_
    trees, targets = [], []
    for stage in stages:
        for k, tree in enumerate(stage):
            values = tree.tree_.value.reshape(-1, 1) * estimator.learning_rate
            trees.append(scikit_tree(tree, values))
            targets.append(k)
    count = stages.shape[1]
    total = ensemble(single_precision(x), trees, targets, count)
    if isinstance(estimator.init_, str):
        return total
    return total + _initial(estimator, x, count)


def _initial(estimator: Any, x: Any, count: int) -> Any:
    """Return raw predictions of the model that boosting begins with."""
    init, epsilon = estimator.init_, float(np.finfo(np.float32).eps)
    is_classifier = hasattr(estimator, "classes_")
    if type(init).__name__ in ("DummyClassifier", "DummyRegressor"):
        sample = np.zeros((1, estimator.n_features_in_), np.float32)
        return estimator._raw_predict_init(sample)[0].astype(np.float64)
    if not is_classifier:
        return apply("predict", init, x).reshape(-1, 1)
    share = apply("predict_proba", init, x).clip(epsilon, 1 - epsilon)
    if count == 1:
        second = share.columns([1])
        return np.log(second / (1.0 - second))
    return np.log(share) - np.log(share).mean(1, keepdims=True)


@method("predict", "GradientBoostingRegressor")
def gradient_boosting(estimator: Any, x: Any) -> Array:
    """Translate the sum of trees."""
    return _boosted(estimator, x).ravel()


@method("predict_proba", "GradientBoostingClassifier")
def gradient_boosting_proba(estimator: Any, x: Any) -> Array:
    """Translate probabilities of the loss."""
    raw = _boosted(estimator, x)
    if len(estimator.classes_) > 2:
        return softmax(raw)
    return two_columns(sigmoid(raw * 2.0 if estimator.loss == "exponential" else raw))


@method("predict", "GradientBoostingClassifier")
def gradient_boosting_labels(estimator: Any, x: Any) -> Array:
    """Translate labels by the raw prediction."""
    raw = _boosted(estimator, x)
    if len(estimator.classes_) == 2:
        return labels(estimator.classes_, (raw.ravel() >= 0.0).cast(np.int64))
    return labels(estimator.classes_, raw.argmax(1))


def histogram_tree(predictor: Any) -> Tree:
    """Return a tree of histogram boosting; a set of categories is a node of membership."""
    nodes = predictor.nodes
    is_leaf = nodes["is_leaf"].astype(bool)
    number = np.where(is_leaf, -np.cumsum(is_leaf), np.cumsum(~is_leaf) - 1)
    inner = np.flatnonzero(~is_leaf)
    members = {}
    is_set = nodes["is_categorical"].astype(bool)[inner]
    for i in np.flatnonzero(is_set):
        words = predictor.raw_left_cat_bitsets[int(nodes["bitset_idx"][inner[i]])]
        members[int(i)] = [float(c) for c in range(256) if int(words[c // 32]) >> (c % 32) & 1]
    empty = [i for i, values in members.items() if not values]
    for index in empty:
        members[index] = [-1.0]
    return Tree(
        nodes["feature_idx"][inner].astype(np.int64),
        np.where(is_set, 0.0, nodes["num_threshold"][inner]),
        number[nodes["left"][inner].astype(np.int64)],
        number[nodes["right"][inner].astype(np.int64)],
        nodes["missing_go_to_left"][inner].astype(bool),
        np.where(is_set, MEMBER, LESS_OR_EQUAL).astype(np.uint8),
        nodes["value"][is_leaf].astype(np.float64),
        members,
    )


def _histogram(estimator: Any, x: Any) -> Array:
    """Return raw predictions of histogram boosting, [rows, trees per iteration]."""
    if getattr(estimator, "_preprocessor", None) is not None:
        x = apply("transform", estimator._preprocessor, x)
    features = number_matrix(x)
    trees, targets = [], []
    for stage in estimator._predictors:
        for k, predictor in enumerate(stage):
            trees.append(histogram_tree(predictor))
            targets.append(k)
    baseline = np.asarray(estimator._baseline_prediction, np.float64).reshape(-1)
    return ensemble(features, trees, targets, len(estimator._predictors[0])) + baseline


@method("predict", "HistGradientBoostingRegressor")
def histogram_boosting(estimator: Any, x: Any) -> Array:
    """Translate the sum of trees under the inverse of the link."""
    raw = _histogram(estimator, x).ravel()
    link = type(estimator._loss.link).__name__
    if link == "LogLink":
        return np.exp(raw)
    if link != "IdentityLink":
        raise UnsupportedError(f"link {link} has no translation", where="HistGradientBoostingRegressor")
    return raw


@method("predict_proba", "HistGradientBoostingClassifier")
def histogram_proba(estimator: Any, x: Any) -> Array:
    """Translate probabilities of the raw predictions."""
    raw = _histogram(estimator, x)
    return two_columns(sigmoid(raw)) if len(estimator.classes_) == 2 else softmax(raw)


@method("predict", "HistGradientBoostingClassifier")
def histogram_labels(estimator: Any, x: Any) -> Array:
    """Translate the most probable class."""
    raw = _histogram(estimator, x)
    if len(estimator.classes_) == 2:
        return labels(estimator.classes_, (raw.ravel() > 0.0).cast(np.int64))
    return labels(estimator.classes_, raw.argmax(1))


# Adaptive boosting


@method("decision_function", "AdaBoostClassifier")
def adaptive_decision(estimator: Any, x: Any) -> Array:
    """Translate weighted votes of the stages."""
    count = len(estimator.classes_)
    total: Any = None
    for stage, weight in zip(estimator.estimators_, estimator.estimator_weights_, strict=False):
        vote = _one_hot(apply("predict", stage, x), estimator.classes_)
        part = (vote * 2.0 - 1.0) * weight if count == 2 else where(vote > 0.5, float(weight), -weight / (count - 1))
        total = part if total is None else total + part
    total = total / float(np.sum(estimator.estimator_weights_))
    return total.columns(1) * 2.0 if count == 2 else total


def _one_hot(predicted: Array, classes: Any) -> Array:
    """Return 1 where a label is the class of the column, [rows, classes]."""
    column = predicted.reshape(-1, 1)
    dtype = np.dtype(object) if np.asarray(classes).dtype.kind in "OUS" else column.dtype
    return column.node("Equal", column.constant(classes, dtype), dtype=bool).cast(np.float64)


@method("predict", "AdaBoostClassifier")
def adaptive_labels(estimator: Any, x: Any) -> Array:
    """Translate the class of most votes."""
    decision = adaptive_decision(estimator, x)
    if len(estimator.classes_) == 2:
        return labels(estimator.classes_, (decision > 0.0).cast(np.int64))
    return labels(estimator.classes_, decision.argmax(1))


@method("predict_proba", "AdaBoostClassifier")
def adaptive_proba(estimator: Any, x: Any) -> Array:
    """Translate probabilities of the votes."""
    decision = adaptive_decision(estimator, x)
    count = len(estimator.classes_)
    if count == 2:
        column = decision.reshape(-1, 1)
        return softmax(concatenated([column * -0.5, column * 0.5], axis=1))
    return softmax(decision / float(count - 1))


@method("predict", "AdaBoostRegressor")
def adaptive_regression(estimator: Any, x: Any) -> Array:
    """Translate the weighted median of the stages."""
    parts = [apply("predict", stage, x).reshape(-1, 1) for stage in estimator.estimators_]
    values = concatenated(parts, axis=1)
    weights = np.asarray(estimator.estimator_weights_[: len(parts)], np.float64)
    builder = values.builder
    count = builder.constant([len(parts)], np.int64)
    ordered, order = builder.nodes_of("TopK", 2, values.value, count, axis=1, largest=0)
    ascending, index = Array(builder, ordered, np.float64), Array(builder, order, np.int64)
    total = ascending.constant(weights).rows(index).node("CumSum", np.int64(1))
    reached = (total >= 0.5 * float(weights.sum())).argmax(1).reshape(-1, 1)
    return ascending.node("GatherElements", reached, axis=1).ravel()


# Bagging, voting, stacking


@method("predict_proba", "BaggingClassifier")
def bagging_proba(estimator: Any, x: Any) -> Array:
    """Translate the mean of the members' probabilities, or of their votes."""
    total: Any = None
    for one, features in zip(estimator.estimators_, estimator.estimators_features_, strict=True):
        part = selected(x, features)
        if supports("predict_proba", one):
            share = apply("predict_proba", one, part)
            if len(one.classes_) != len(estimator.classes_):
                share = share @ np.eye(len(estimator.classes_))[np.asarray(one.classes_, np.int64)]
        else:
            share = _one_hot(apply("predict", one, part), np.arange(len(estimator.classes_)))
        total = share if total is None else total + share
    return total / float(len(estimator.estimators_))


@method("predict", "BaggingClassifier")
def bagging_labels(estimator: Any, x: Any) -> Array:
    """Translate the most probable class."""
    return labels(estimator.classes_, bagging_proba(estimator, x).argmax(1))


@method("predict", "BaggingRegressor")
def bagging_regression(estimator: Any, x: Any) -> Array:
    """Translate the mean of the members."""
    pairs = zip(estimator.estimators_, estimator.estimators_features_, strict=True)
    return sum(apply("predict", one, selected(x, features)) for one, features in pairs) / float(
        len(estimator.estimators_)
    )


def _weights(estimator: Any) -> Any:
    weights = estimator._weights_not_none
    return np.full(len(estimator.estimators_), 1.0) if weights is None else np.asarray(weights, np.float64)


@method("predict_proba", "VotingClassifier")
def voting_proba(estimator: Any, x: Any) -> Array:
    """Translate the weighted mean of probabilities."""
    weights = _weights(estimator)
    parts = [apply("predict_proba", one, x) * w for one, w in zip(estimator.estimators_, weights, strict=True)]
    return sum(parts[1:], parts[0]) / float(weights.sum())


@method("predict", "VotingClassifier")
def voting_labels(estimator: Any, x: Any) -> Array:
    """Translate the most probable class, or the class of most votes."""
    if estimator.voting == "soft":
        return labels(estimator.classes_, voting_proba(estimator, x).argmax(1))
    known = np.arange(len(estimator.classes_))
    votes = [
        _one_hot(apply("predict", one, x), known) * w
        for one, w in zip(estimator.estimators_, _weights(estimator), strict=True)
    ]
    return labels(estimator.classes_, sum(votes[1:], votes[0]).argmax(1))


@method("predict", "VotingRegressor")
def voting_regression(estimator: Any, x: Any) -> Array:
    """Translate the weighted mean of predictions."""
    weights = _weights(estimator)
    parts = [apply("predict", one, x) * w for one, w in zip(estimator.estimators_, weights, strict=True)]
    return sum(parts[1:], parts[0]) / float(weights.sum())


def _stacked_features(estimator: Any, x: Any) -> Array:
    columns: list[Array] = []
    for one, name in zip(estimator.estimators_, estimator.stack_method_, strict=True):
        part = apply(name, one, x)
        if name == "predict_proba" and len(estimator.classes_) == 2:
            part = part.columns([1])
        columns.append(part.reshape(-1, 1) if name == "predict" or _is_vector(one, name) else part)
    if estimator.passthrough:
        columns.append(number_matrix(x))
    return concatenated([column.cast(np.float64) for column in columns], axis=1)


def _is_vector(estimator: Any, name: str) -> bool:
    return name == "decision_function" and len(estimator.classes_) == 2


@method("predict", "_BaseStacking", "StackingClassifier", "StackingRegressor")
def stacking_predict(estimator: Any, x: Any) -> Array:
    """Translate the last estimator over the members' predictions."""
    result = apply("predict", estimator.final_estimator_, _stacked_features(estimator, x))
    return labels(estimator.classes_, result) if hasattr(estimator, "_label_encoder") else result


@method("predict_proba", "StackingClassifier")
def stacking_proba(estimator: Any, x: Any) -> Array:
    """Translate probabilities of the last estimator."""
    return apply("predict_proba", estimator.final_estimator_, _stacked_features(estimator, x))


# Calibration and thresholds


@method("predict_proba", "CalibratedClassifierCV")
def calibrated_proba(estimator: Any, x: Any) -> Array:
    """Translate the mean of calibrated probabilities."""
    parts = [_calibrated(one, x) for one in estimator.calibrated_classifiers_]
    return sum(parts[1:], parts[0]) / float(len(parts))


def _calibrated(calibrated: Any, x: Any) -> Array:
    inner, classes = calibrated.estimator, calibrated.classes
    count = len(classes)
    if supports("decision_function", inner):
        scores = apply("decision_function", inner, x)
        scores = scores.reshape(-1, 1) if count == 2 else scores
    elif supports("predict_proba", inner):
        scores = apply("predict_proba", inner, x)
        scores = scores.columns([1]) if count == 2 else scores
    else:
        raise UnsupportedError("the inner estimator has no scores", where=type(inner).__name__)
    if calibrated.method == "temperature":
        return softmax(_logits(inner, scores) * float(calibrated.calibrators[0].beta_))
    columns = []
    for i, calibrator in enumerate(calibrated.calibrators):
        column = scores.columns(i)
        if type(calibrator).__name__ == "_SigmoidCalibration":
            column = sigmoid((column * float(calibrator.a_) + float(calibrator.b_)) * -1.0)
        else:
            column = apply("predict", calibrator, column)
        columns.append(column.reshape(-1, 1))
    if count == 2:
        return concatenated([1.0 - columns[0], columns[0]], axis=1).clip(0.0, 1.0)
    shares = concatenated(columns, axis=1)
    total = shares.sum(1, keepdims=True)
    is_zero = np.equal(total, 0.0)
    shares = where(is_zero, 1.0 / count, shares / where(is_zero, 1.0, total))
    return where((shares > 1.0) & (shares <= 1.0 + 1e-5), 1.0, shares)


_SMALLEST_SHARE = 1e-12
"""The number that scikit-learn adds to probabilities ahead of logarithms."""


def _logits(inner: Any, scores: Array) -> Array:
    """Return scores of all classes: (-x, x) for a score of two classes, logarithms of probabilities."""
    is_single = scores.sizes()[-1] == 1
    if supports("decision_function", inner):
        return concatenated([-scores, scores], axis=1) if is_single else scores
    shares = concatenated([1.0 - scores, scores], axis=1) if is_single else scores
    return np.log(shares + _SMALLEST_SHARE)


@method("predict", "CalibratedClassifierCV")
def calibrated_labels(estimator: Any, x: Any) -> Array:
    """Translate the most probable class."""
    return labels(estimator.classes_, calibrated_proba(estimator, x).argmax(1))


@method("predict", "BaseThresholdClassifier", "FixedThresholdClassifier", "TunedThresholdClassifierCV")
def threshold_labels(estimator: Any, x: Any) -> Array:
    """Translate labels by a threshold of the score."""
    inner = estimator.estimator_
    requested = estimator.response_method
    names = ("predict_proba", "decision_function") if requested == "auto" else (requested,)
    name = next((one for one in names if supports(one, inner)), None)
    if name is None or getattr(estimator, "pos_label", None) is not None:
        raise UnsupportedError("expected a score and no pos_label", where=type(estimator).__name__)
    score = apply(name, inner, x)
    score = score.columns(1) if name == "predict_proba" else score
    threshold = getattr(estimator, "best_threshold_", None)
    if threshold is None:
        threshold = estimator.threshold
        threshold = (0.5 if name == "predict_proba" else 0.0) if threshold == "auto" else threshold
    return labels(estimator.classes_, (score >= float(threshold)).cast(np.int64))


@method("predict_proba", "BaseThresholdClassifier", "FixedThresholdClassifier", "TunedThresholdClassifierCV")
def threshold_proba(estimator: Any, x: Any) -> Array:
    """Translate the inner estimator's probabilities."""
    return apply("predict_proba", estimator.estimator_, x)


for _name in ("predict", "predict_proba", "decision_function"):

    def _delegated(estimator: Any, x: Any, name: str = _name) -> Any:
        return apply(name, estimator.estimator_, x)

    method(_name, "SelfTrainingClassifier")(_delegated)


# Several classes and outputs


def binary_score(estimator: Any, x: Any) -> tuple[Array, float]:
    """Return the score of the second class and the threshold between the classes."""
    if type(estimator).__name__ == "_ConstantPredictor":
        return constant_rows(x, float(estimator.y_[0])), 0.0
    if supports("decision_function", estimator):
        return apply("decision_function", estimator, x), 0.0
    return apply("predict_proba", estimator, x).columns(1), 0.5


def _positive_share(estimator: Any, x: Any) -> Array:
    if type(estimator).__name__ == "_ConstantPredictor":
        return constant_rows(x, float(estimator.y_[0])).reshape(-1, 1)
    return apply("predict_proba", estimator, x).columns([1])


@method("predict_proba", "OneVsRestClassifier")
def rest_proba(estimator: Any, x: Any) -> Array:
    """Translate probabilities of each class against the rest."""
    shares = concatenated([_positive_share(one, x) for one in estimator.estimators_], axis=1)
    if len(estimator.estimators_) == 1:
        return concatenated([1.0 - shares, shares], axis=1)
    return shares if estimator.multilabel_ else normalized(shares)


@method("decision_function", "OneVsRestClassifier")
def rest_decision(estimator: Any, x: Any) -> Array:
    """Translate the scores of each class against the rest."""
    scores = [apply("decision_function", one, x) for one in estimator.estimators_]
    return scores[0] if len(scores) == 1 else concatenated([score.reshape(-1, 1) for score in scores], axis=1)


@method("predict", "OneVsRestClassifier")
def rest_labels(estimator: Any, x: Any) -> Array:
    """Translate the class of the greatest score; several outputs are 0 or 1 each."""
    scores = [binary_score(one, x) for one in estimator.estimators_]
    if estimator.multilabel_:
        columns = [(score.reshape(-1, 1) > threshold).cast(np.int64) for score, threshold in scores]
        return concatenated(columns, axis=1)
    if len(scores) == 1:
        return labels(estimator.classes_, (scores[0][0] > scores[0][1]).cast(np.int64))
    return labels(estimator.classes_, concatenated([score.reshape(-1, 1) for score, _ in scores], axis=1).argmax(1))


@method("decision_function", "OneVsOneClassifier")
def one_vs_one_decision(estimator: Any, x: Any) -> Array:
    """Translate votes of pairs, with confidences as tie breaks."""
    count = len(estimator.classes_)
    wins, total = np.zeros((len(estimator.estimators_), count)), np.zeros((len(estimator.estimators_), count))
    losses = wins.copy()
    columns, votes = [], []
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    for row, (one, (i, j)) in enumerate(zip(estimator.estimators_, pairs, strict=True)):
        score, _ = binary_score(one, x)
        columns.append(score.reshape(-1, 1))
        predicted = (
            constant_rows(x, float(one.y_[0]))
            if type(one).__name__ == "_ConstantPredictor"
            else apply("predict", one, x)
        )
        votes.append(predicted.cast(np.float64).reshape(-1, 1))
        wins[row, j] = losses[row, i] = 1
        total[row, i], total[row, j] = -1, 1
    vote = concatenated(votes, axis=1)
    won = vote @ wins + (1.0 - vote) @ losses
    confidence = concatenated(columns, axis=1) @ total
    result = won + confidence / ((np.absolute(confidence) + 1.0) * 3.0)
    return result.columns(1) if count == 2 else result


@method("predict", "OneVsOneClassifier")
def one_vs_one_labels(estimator: Any, x: Any) -> Array:
    """Translate the class of most votes."""
    if len(estimator.classes_) == 2:
        score, threshold = binary_score(estimator.estimators_[0], x)
        return labels(estimator.classes_, (score > threshold).cast(np.int64))
    return labels(estimator.classes_, one_vs_one_decision(estimator, x).argmax(1))


@method("predict", "OutputCodeClassifier")
def code_labels(estimator: Any, x: Any) -> Array:
    """Translate the class of the nearest code."""
    columns = [binary_score(one, x)[0].reshape(-1, 1) for one in estimator.estimators_]
    scores = concatenated(columns, axis=1)
    gaps = scores.node("Unsqueeze", [1]) - np.asarray(estimator.code_book_, np.float64)
    return labels(estimator.classes_, (gaps * gaps).sum(2).argmin(1))


@method("predict", "_MultiOutputEstimator", "MultiOutputRegressor", "MultiOutputClassifier")
def outputs_predict(estimator: Any, x: Any) -> Array:
    """Translate one estimator for each output."""
    return concatenated([apply("predict", one, x).reshape(-1, 1) for one in estimator.estimators_], axis=1)


@method("predict_proba", "MultiOutputClassifier")
def outputs_proba(estimator: Any, x: Any) -> list[Array]:
    """Translate probabilities of each output."""
    return [apply("predict_proba", one, x) for one in estimator.estimators_]


def _chained(estimator: Any, x: Any, name: str) -> Array:
    """Return results of a chain of estimators, each over the features and the predictions before."""
    features = number_matrix(x)
    results: list[Array] = []
    columns: list[Array] = []
    for one in estimator.estimators_:
        previous = concatenated([features, *results], axis=1) if results else features
        value = apply("predict", one, previous).reshape(-1, 1).cast(np.float64)
        if getattr(estimator, "chain_method_", "predict") == "predict_proba":
            value = apply("predict_proba", one, previous).columns([1])
        results.append(value)
        if name == "predict_proba":
            columns.append(apply("predict_proba", one, previous).columns([1]))
        else:
            columns.append(apply("predict", one, previous).reshape(-1, 1).cast(np.float64))
    inverse = np.argsort(estimator.order_)
    return concatenated([columns[i] for i in inverse], axis=1)


@method("predict", "_BaseChain", "RegressorChain", "ClassifierChain")
def chain_predict(estimator: Any, x: Any) -> Array:
    """Translate predictions of a chain."""
    return _chained(estimator, x, "predict")


@method("predict_proba", "ClassifierChain")
def chain_proba(estimator: Any, x: Any) -> Array:
    """Translate probabilities of a chain."""
    return _chained(estimator, x, "predict_proba")


# Estimators without features


@method("predict", "DummyRegressor")
def dummy_regression(estimator: Any, x: Any) -> Array:
    """Translate a constant."""
    value = np.asarray(estimator.constant_, np.float64).reshape(-1)
    return constant_rows(x, value[0] if len(value) == 1 else value)


@method("predict_proba", "DummyClassifier")
def dummy_proba(estimator: Any, x: Any) -> Array:
    """Translate constant probabilities."""
    if estimator.strategy not in ("prior", "most_frequent", "constant") or isinstance(estimator.n_classes_, list):
        raise UnsupportedError(f"strategy {estimator.strategy!r}", where="DummyClassifier")
    row = np.asarray(estimator.class_prior_, np.float64)
    if estimator.strategy == "most_frequent":
        row = np.eye(len(row))[row.argmax()]
    elif estimator.strategy == "constant":
        row = (np.asarray(estimator.classes_) == np.ravel(estimator.constant)[0]).astype(float)
    return constant_rows(x, row)


@method("predict", "DummyClassifier")
def dummy_labels(estimator: Any, x: Any) -> Array:
    """Translate a constant label."""
    return labels(estimator.classes_, dummy_proba(estimator, x).argmax(1))
