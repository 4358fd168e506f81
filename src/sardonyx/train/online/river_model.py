"""Learners in the form of River's models: rows of named features, one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.core.ir.types import DType, is_float
from sardonyx.errors import FeedError, MissingDependencyError, OptionError
from sardonyx.train.online.prequential import sigmoid

if TYPE_CHECKING:
    from sardonyx.train.online.learner import Learner

_PLAIN = frozenset({int, float, bool})


class RiverModel:
    """A learner with the methods of River's models: rows are mappings of features to numbers.

    Args:
        learner: The learner of a model with one input, whose last axis is the features.
        features: The features, in the order of the input.
        classes: The labels in the order of the classes; None for a regression.

    Raises:
        OptionError: The model has another form.
    """

    def __init__(
        self, learner: Learner, features: Sequence[Any], classes: Sequence[Any] | None = (False, True)
    ) -> None:
        self._learner, self._trainer, self._features = learner, learner.trainer, list(features)
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
        self._has_logits = learner.answers_logits

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
        if self._classes is not None:
            y = self._class_of(y)
        declared = self._trainer.batch_types[self._label]
        label = _number(y, declared.dtype, "label")
        rank = len(declared.shape or ())
        self._learner.learn({self._input: self._row(x)}, label.reshape((1,) * max(rank, 1)))

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
        answer = self._learner.predict({self._input: self._row(x)})
        scores = np.ravel(answer.outputs[self._trainer.loss_output])
        expected = 1 if self._classes is None else len(self._classes)
        if len(scores) != expected and not (expected == 2 and len(scores) == 1):
            raise OptionError(f"expected {expected} numbers of a row, got {len(scores)}.", where="classes")
        return scores

    def _best(self, scores: np.ndarray) -> int:
        if len(scores) > 1:
            return int(scores.argmax())
        return int(scores[0] > (0.0 if self._has_logits else 0.5))


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
