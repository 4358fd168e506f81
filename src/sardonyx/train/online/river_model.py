"""Learners and trainers in the form of River's models: rows of named features, one at a time or many."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.core.ir.types import DType, is_float
from sardonyx.errors import FeedError, MissingDependencyError, OptionError
from sardonyx.train.online.prequential import sigmoid
from sardonyx.train.trainer.trainer import Trainer

if TYPE_CHECKING:
    from sardonyx.train.online.learner import Learner

_PLAIN = frozenset({int, float, bool})

_LABEL_TYPES = frozenset({int, bool, str})
"""Types of labels whose arrays are kept by label."""


class RiverModel:
    """A learner or a trainer with the methods of River's models: rows are mappings of features to numbers.

    A learner answers from the session's weights, and learns in the background. A trainer learns at once: a row is
    answered by the weights that all rows before it have trained.

    Args:
        learner: The learner or trainer of a model with one input, whose last axis is the features.
        features: The features, in the order of the input.
        classes: The labels in the order of the classes; None for a regression.

    Raises:
        OptionError: The model has another form.
    """

    def __init__(
        self, learner: Learner | Trainer, features: Sequence[Any], classes: Sequence[Any] | None = (False, True)
    ) -> None:
        if isinstance(learner, Trainer):
            self._learner, self._trainer, self._has_logits = None, learner, not learner.reads_probabilities
        else:
            self._learner, self._trainer, self._has_logits = learner, learner.trainer, learner.answers_logits
        self._features = list(features)
        self._classes = None if classes is None else list(classes)
        self._label = self._trainer.loss.label
        inputs = {name: type for name, type in self._trainer.batch_types.items() if name != self._label}
        if len(inputs) != 1 or self._label not in self._trainer.batch_types:
            raise OptionError(
                f"expected a model with one input, and one label, got {', '.join(inputs)}.", where="learner"
            )
        ((self._input, self._type),) = inputs.items()
        shape = self._type.shape
        if shape is None or len(shape) != 2 or (isinstance(shape[1], int) and shape[1] != len(self._features)):
            raise OptionError(
                f"expected an input [samples, {len(self._features)}], got {self._type}.", where="features"
            )
        if not self._features or len(set(self._features)) < len(self._features):
            raise OptionError("expected different features, at least one.", where="features")
        declared = self._trainer.batch_types[self._label]
        self._label_dtype, self._label_rank = declared.dtype, max(len(declared.shape or ()), 1)
        self._output = self._trainer.loss_output
        self._label_arrays: dict[tuple[type, Any], np.ndarray] = {}

    def estimator(self) -> Any:
        """Return the model as a classifier or regressor of River, for ``river.evaluate`` and pipelines.

        Raises:
            MissingDependencyError: River is not installed.
        """
        try:
            from river import base
        except ImportError as error:
            raise MissingDependencyError(
                "estimators of River require river.", remedy='Install it: pip install "sardonyx[online]".'
            ) from error
        kind: Any = base.Regressor if self._classes is None else base.Classifier

        class Estimator(kind):  # type: ignore[misc]
            _multiclass = True

            def __init__(self, model: RiverModel) -> None:
                self.model = model
                self.predict_one, self.learn_one = model.predict_one, model.learn_one
                if model._classes is not None:
                    self.predict_proba_one = model.predict_proba_one

        # The methods of an instance implement the abstract ones.
        Estimator.__abstractmethods__ = frozenset()
        return Estimator(self)

    def predict_one(self, x: Mapping[Any, Any]) -> Any:
        """Return the label of a row, or the number of a regression.

        Raises:
            FeedError: A feature is missing, or is not a number that the input can represent.
        """
        scores = self._scores(x)
        if self._classes is None:
            return float(scores[0])
        return self._classes[self._best(scores)]

    def predict_proba_one(self, x: Mapping[Any, Any]) -> dict[Any, float]:
        """Return the probability of each label of a row.

        Raises:
            FeedError: A feature is missing, or is not a number that the input can represent.
            OptionError: The model computes a regression.
        """
        if self._classes is None:
            raise OptionError("a regression has no classes.", where="classes", remedy="Give `classes=`.")
        scores = self._scores(x).astype(np.float64)
        if self._has_logits:
            if len(scores) == 1:
                scores = np.array([sigmoid(float(scores[0]))])
            else:
                scores = np.exp(scores - scores.max())
                scores /= scores.sum()
        shares = [1 - scores[0], scores[0]] if len(scores) == 1 else list(scores)
        return dict(zip(self._classes, map(float, shares), strict=True))

    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Queue a row with its label.

        Raises:
            FeedError: The label is none of the classes or not a number of the label's type, or a feature is missing
                or is not a number that the input can represent.
        """
        is_plain = self._classes is not None and type(y) in _LABEL_TYPES
        label = self._label_arrays.get((type(y), y)) if is_plain else None
        if label is None:
            number = y if self._classes is None else self._class_of(y)
            label = _number(number, self._label_dtype, "label").reshape((1,) * self._label_rank)
            if is_plain:
                self._label_arrays[type(y), y] = label
        self._learn(self._row(x), label)

    def predict_many(self, X: Any) -> Any:
        """Return the labels of rows, or the numbers of a regression.

        Args:
            X: Columns by feature: a data frame of pandas, or a mapping of arrays.

        Returns:
            An array; for a data frame a series with its index.

        Raises:
            FeedError: A feature is missing, or is not a column of numbers that the input can represent.
        """
        return _like(X, self._labels(self._outputs(self._rows(X))))

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn from rows with their labels, as one batch.

        Args:
            X: As of :meth:`predict_many`.
            y: The labels.

        Raises:
            FeedError: See :meth:`predict_many` and :meth:`learn_one`.
        """
        rows = self._rows(X)
        self._learn(rows, self._label_rows(y, len(rows)))

    def progress_many(self, X: Any, y: Any) -> Any:
        """Predict each row and learn from it before the next one; return the predictions.

        The predictions and the new weights are those of :meth:`predict_one` and :meth:`learn_one` for one row after the
        other, if the model computes in training what it computes in inference: no dropout, no statistics of batches.
        Native code takes the steps; see :meth:`.Trainer.step_samples`.

        Args:
            X: As of :meth:`predict_many`.
            y: The labels.

        Raises:
            OptionError: The model is a learner's, which learns in the background.
            FeedError: See :meth:`predict_many` and :meth:`learn_one`.
        """
        if self._learner is not None:
            raise OptionError(
                "a learner learns in the background, so that its answers follow no order.",
                where="progress_many",
                remedy="Make the RiverModel of a Trainer.",
            )
        rows = self._rows(X)
        batch = {self._input: rows, self._label: self._label_rows(y, len(rows))}
        _, outputs = self._trainer.step_samples(batch)
        return _like(X, self._labels(outputs[self._output]))

    def _learn(self, rows: np.ndarray, labels: np.ndarray) -> None:
        if self._learner is None:
            self._trainer.step({self._input: rows, self._label: labels})
        else:
            self._learner.learn({self._input: rows}, labels)

    def _rows(self, X: Any) -> np.ndarray:
        if not hasattr(X, "keys"):
            raise FeedError("expected a data frame, or a mapping of features to columns.", where="rows")
        missing = [feature for feature in self._features if feature not in X]
        if missing:
            raise FeedError(f"the feature {missing[0]!r} is missing.", where="rows")
        dtype = self._type.dtype
        columns = [_column(X[feature], dtype, f"rows, {feature!r}") for feature in self._features]
        if len({len(column) for column in columns}) > 1:
            raise FeedError("expected columns of one length.", where="rows")
        return np.stack(columns, axis=1)

    def _label_rows(self, y: Any, count: int) -> np.ndarray:
        dtype = self._label_dtype
        if self._classes is None:
            labels = _column(y, dtype, "label")
        else:
            kinds, positions = _distinct(y)
            labels = np.array([self._class_of(kind) for kind in kinds], dtype.numpy())[np.array(positions, np.intp)]
        if len(labels) != count:
            raise FeedError(f"expected {count} labels, got {len(labels)}.", where="label")
        return labels.reshape((-1,) + (1,) * (self._label_rank - 1))

    def _labels(self, outputs: np.ndarray) -> np.ndarray:
        """Return the labels of outputs, samples in axis 0."""
        rows = outputs.reshape(len(outputs), -1)
        self._require_width(rows.shape[1])
        if self._classes is None:
            return rows[:, 0]
        best = rows.argmax(1) if rows.shape[1] > 1 else (rows[:, 0] > self._threshold).astype(np.int64)
        labels: np.ndarray = np.array(self._classes)[best]
        return labels

    @property
    def _threshold(self) -> float:
        return 0.0 if self._has_logits else 0.5

    def _class_of(self, y: Any) -> int:
        """Return the index of a label."""
        assert self._classes is not None
        index = next((i for i, one in enumerate(self._classes) if _is_equal(one, y)), None)
        if index is None:
            raise FeedError(f"expected one of {', '.join(map(repr, self._classes))}, got {y!r}.", where="label")
        return index

    def _row(self, x: Mapping[Any, Any]) -> np.ndarray:
        if not hasattr(x, "keys"):
            raise FeedError(f"expected a mapping of features to numbers, got {x!r}.", where="row")
        missing = [feature for feature in self._features if feature not in x]
        if missing:
            raise FeedError(f"the feature {missing[0]!r} is missing.", where="row")
        dtype, values = self._type.dtype, [x[feature] for feature in self._features]
        row = _plain_row(values, dtype)
        if row is not None:
            return row
        numbers = zip(self._features, values, strict=True)
        return np.array([[_number(value, dtype, f"row, {feature!r}") for feature, value in numbers]])

    def _scores(self, x: Mapping[Any, Any]) -> np.ndarray:
        scores = self._outputs(self._row(x)).ravel()
        self._require_width(len(scores))
        return scores

    def _outputs(self, rows: np.ndarray) -> np.ndarray:
        feeds = {self._input: rows}
        outputs = self._trainer.forward(feeds) if self._learner is None else self._learner.predict(feeds).outputs
        return outputs[self._output]

    def _require_width(self, width: int) -> None:
        expected = 1 if self._classes is None else len(self._classes)
        if width != expected and not (expected == 2 and width == 1):
            raise OptionError(f"expected {expected} numbers of a row, got {width}.", where="classes")

    def _best(self, scores: np.ndarray) -> int:
        return int(scores.argmax()) if len(scores) > 1 else int(scores[0] > self._threshold)


def _like(X: Any, values: np.ndarray) -> Any:
    """Return values in the form of the rows that they are of: a series of pandas for a data frame."""
    pandas = sys.modules.get("pandas")
    return values if pandas is None or not isinstance(X, pandas.DataFrame) else pandas.Series(values, index=X.index)


def _distinct(labels: Any) -> tuple[list[Any], list[int]]:
    """Return the different labels of a column, and the position of each element's label among them."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise FeedError(f"expected a column of labels, got shape {list(array.shape)}.", where="label")
    numbers: dict[tuple[type, Any], int] = {}
    try:
        positions = [numbers.setdefault((type(label), label), len(numbers)) for label in array.tolist()]
    except TypeError as error:
        raise FeedError(f"expected labels, got {error}.", where="label") from error
    return [label for _, label in numbers], positions


def _column(values: Any, dtype: DType, where: str) -> np.ndarray:
    """Return numbers as an array of an element type; integers are not rounded."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "biufO":
        raise FeedError(f"expected a column of numbers, got {array.dtype} of shape {list(array.shape)}.", where=where)
    if array.dtype.kind == "O":
        return np.array([_number(value, dtype, where) for value in array])
    with np.errstate(all="ignore"):  # The comparison below decides.
        column = array.astype(dtype.numpy())
        wrong = np.isinf(column) & ~np.isinf(array) if is_float(dtype) else column != array
    if wrong.any():
        raise _refusal(array[wrong][0], dtype, where)
    return column


def _is_equal(one: Any, y: Any) -> bool:
    """Return True if a comparison is one truth: arrays compare element by element, signaling NaN raise an error."""
    try:
        same = one == y
    except (ArithmeticError, TypeError, ValueError):
        return False
    return isinstance(same, bool | np.bool_) and bool(same)


def _plain_row(values: list[Any], dtype: DType) -> np.ndarray | None:
    """Return a row of Python's own numbers in one step; None if one of them needs a look by :func:`_number`."""
    if not _PLAIN.issuperset(map(type, values)):
        return None
    try:
        with np.errstate(all="ignore"):  # The comparison below decides.
            row = np.array([values if _is_of_numpy(dtype) else list(map(float, values))], dtype.numpy())
            is_exact = not np.isinf(row).any() if is_float(dtype) else row[0].tolist() == values
    except (ArithmeticError, TypeError, ValueError):
        return None
    return row if is_exact else None


def _is_of_numpy(dtype: DType) -> bool:
    """Return False for types that numpy does not have, e.g. bfloat16, which convert few kinds of numbers."""
    return dtype.numpy().isbuiltin == 1


def _number(value: Any, dtype: DType, where: str) -> np.ndarray:
    """Return a scalar of an element type; integers are not rounded."""
    plain = value
    if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
        plain = value.item()
    if not isinstance(plain, Real | Decimal | np.bool_):
        raise FeedError(f"expected a number, got {value!r}.", where=where)
    try:
        with np.errstate(all="ignore"):  # The comparison below decides.
            number = np.asarray(plain if _is_of_numpy(dtype) else float(plain), dtype.numpy())
            differs = bool(np.isinf(number) and abs(plain) != np.inf) if is_float(dtype) else bool(number != plain)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise _refusal(value, dtype, where) from error
    if differs:
        raise _refusal(value, dtype, where)
    return number


def _refusal(value: Any, dtype: DType, where: str) -> FeedError:
    return FeedError(f"expected a number of the type {dtype}, got {value!r}.", where=where)
