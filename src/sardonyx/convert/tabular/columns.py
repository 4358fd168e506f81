"""The inputs of an estimator: one matrix, texts, or columns of several types; and rows to try."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sardonyx.convert.tabular import records
from sardonyx.convert.tabular.categories import frame_categories
from sardonyx.convert.tabular.composition import column_indices
from sardonyx.convert.tabular.dates import date_type
from sardonyx.errors import OptionError, UnsupportedError

TEXT, NUMBER, DATE = "text", "number", "date"
"""Kinds of columns; durations are of the kind of dates."""

_ROWS = (5, 1, 7)
"""Numbers of rows of the examples."""

_WORDS = ["one", "two", "three", "four", "five", "six", "seven"]


@dataclass(frozen=True)
class Columns:
    """The inputs of a model.

    Attributes:
        kinds: The kind of each column.
        names: Names of columns; empty unless the estimator was fitted with names.
        is_vector: True if the estimator accepts one value per row: a text, a label, a number.
        number: The element type of numbers.
        categories: The categories of columns of a data frame of pandas' type `category`.
        missing: Missing values of columns of texts by the texts that stand for them: ``nan`` and ``None``.
        known: Categories of columns that catboost knows by their hashes, from example rows.
        dates: Element types of columns of dates or durations, with their earliest and latest example.
        form: The form of rows that are not of one length, of :mod:`.records`; empty for rows of a matrix or frame.
        reader: The part of the estimator that reads such rows.
    """

    kinds: tuple[str, ...]
    names: tuple[str, ...] = ()
    is_vector: bool = False
    number: npt.DTypeLike = np.float64
    categories: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    missing: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    dates: Mapping[int, tuple[np.dtype[Any], int, int]] = field(default_factory=dict)
    form: str = ""
    reader: Any = None

    @property
    def is_mixed(self) -> bool:
        """True if columns are inputs of their own."""
        return len(set(self.kinds)) > 1 or DATE in self.kinds

    def element_type(self, index: int) -> np.dtype[Any]:
        """Return the element type of an input, as arrays of the graph have it."""
        kind = self.kinds[index]
        return np.dtype(object) if kind == TEXT else self.dates[index][0] if kind == DATE else np.dtype(self.number)

    def sizes(self) -> list[int | str]:
        """Return the sizes of an input."""
        if self.form == records.BAGS:
            return ["batch", "labels"]
        if self.is_vector:
            return ["batch"]
        return ["batch", 1 if self.is_mixed else len(self.kinds)]

    def input_names(self) -> list[str]:
        """Return the names of the model's inputs."""
        if not self.is_mixed:
            return ["X"]
        return [str(name) for name in self.names] or [f"x{i}" for i in range(len(self.kinds))]

    def feeds(self, rows: Any) -> dict[str, Any]:
        """Return rows (an array, a data frame or a sequence) as feeds of the model."""
        if self.form == records.BAGS:
            return {"X": records.padded(rows, self.kinds[0] == TEXT)}
        if self.form == records.MAPPINGS:
            pairs = zip(self.names, self.kinds, strict=True)
            parts = [records.column(rows, name, kind == TEXT, self.number) for name, kind in pairs]
            return dict(zip(self.input_names(), parts, strict=True)) if self.is_mixed else {"X": np.hstack(parts)}
        if self.is_mixed:
            columns = [self._elements(_column(rows, i), i) for i in range(len(self.kinds))]
            return {name: column.reshape(-1, 1) for name, column in zip(self.input_names(), columns, strict=True)}
        array = np.asarray(rows.to_numpy() if hasattr(rows, "to_numpy") else rows)
        array = self._texts(array) if self.kinds[0] == TEXT else array.astype(self.number)
        return {"X": array.reshape(-1) if self.is_vector else array}

    def _elements(self, column: Any, index: int) -> npt.NDArray[Any]:
        """Return a column as texts, numbers, or whole numbers of ticks of dates."""
        if self.kinds[index] == TEXT:
            return self._texts(column)
        if self.kinds[index] == DATE:
            array = np.asarray(column)
            return (
                array.astype(self.dates[index][0]).astype(np.int64) if array.dtype.kind in "mM" else array.astype(int)
            )
        return np.asarray(column, self.number)

    def _texts(self, values: Any) -> npt.NDArray[Any]:
        """Return values as texts; missing ones are ``nan`` or ``None``."""
        array = np.asarray(values, object)
        other = "nan" if "nan" in self.missing and "None" not in self.missing else "None"
        texts = [other if value is None else str(value) for value in array.reshape(-1)]
        return np.array([*texts, None], object)[:-1].reshape(array.shape)

    def _source_values(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return texts of feeds as the estimator knows them, with its missing values."""
        result = array.astype(object)
        for text, value in self.missing.items():
            result[array == text] = value
        return result

    def rows(self, feeds: Mapping[str, Any]) -> Any:
        """Return feeds as the estimator accepts them."""
        arrays = [np.asarray(feeds[name]) for name in self.input_names()]
        if self.form == records.BAGS:
            return records.bags(arrays[0], self.reader)
        if self.form == records.MAPPINGS:
            return records.mappings(arrays if self.is_mixed else list(arrays[0].T), self.names)
        if self.missing:
            pairs = zip(arrays, self.kinds, strict=False)
            arrays = [self._source_values(array) if kind == TEXT else array for array, kind in pairs]
        if not self.is_mixed and not self.known:
            return self._named(arrays[0]) if self.names and not self.is_vector else arrays[0]
        matrix = np.concatenate([array.astype(object) for array in arrays], axis=1)
        for i in self.known:
            if self.kinds[i] == NUMBER:
                matrix[:, i] = [int(value) for value in matrix[:, i]]
        return self._named(matrix)

    def _named(self, matrix: Any) -> Any:
        if not self.names:
            return matrix
        import pandas

        # Columns of texts stay objects: in pandas' own type for texts, every missing value is NaN.
        frame = pandas.DataFrame(matrix, columns=list(self.names), dtype=matrix.dtype)
        if self.is_mixed or self.known:
            for i, (name, kind) in enumerate(zip(self.names, self.kinds, strict=True)):
                if kind == NUMBER:
                    frame[name] = frame[name].astype(np.int64 if i in self.known else self.number)
                if kind == DATE:
                    frame[name] = frame[name].to_numpy().astype(np.int64).astype(self.dates[i][0])
        for i, categories in self.categories.items():
            values = frame[self.names[i]]
            known = values.where(values.isin(list(categories)), None)
            frame[self.names[i]] = pandas.Categorical(known, categories=list(categories))
        return frame


def _column(rows: Any, index: int) -> Any:
    return rows.iloc[:, index].to_numpy() if hasattr(rows, "iloc") else np.asarray(rows, object)[:, index]


def columns_of(estimator: Any, example: Any) -> Columns:
    """Return the inputs of a fitted estimator, from an example or from what it was fitted on.

    Args:
        estimator: A fitted estimator.
        example: Rows of the user, or None.

    Raises:
        OptionError: The estimator is not fitted, or its columns are not known.
    """
    if (reader := records.reader_of(estimator)) is not None:
        return _columns_of_records(reader, example)
    names = tuple(str(name) for name in getattr(estimator, "feature_names_in_", ()))
    missing = missing_texts(estimator)
    categories = next((known for part in parts_of(estimator) if (known := frame_categories(part))), {})
    if len(names) <= max(categories, default=-1):
        categories = {}
    if example is not None:
        columns = _columns_of_example(example, names)
        return replace(columns, categories=categories, missing=missing, known=_known(estimator, example, columns))
    kinds, is_vector = _kinds(estimator)
    if not kinds:
        raise OptionError(
            "the number of columns is not known: the estimator is not fitted, or does not record it",
            where=type(estimator).__name__,
            remedy="Fit the estimator, or give example rows.",
        )
    return Columns(tuple(kinds), () if is_vector else names, is_vector, categories=categories, missing=missing)


def _columns_of_records(reader: Any, example: Any) -> Columns:
    form = records.form_of(reader)
    if form == records.BAGS:
        return Columns((TEXT if records.has_texts(reader, example) else NUMBER,), form=form, reader=reader)
    keys = records.keys_of(reader, example)
    kinds = tuple(TEXT if is_text else NUMBER for is_text in keys.values())
    return Columns(kinds, tuple(keys), form=form, reader=reader)


def _known(estimator: Any, example: Any, columns: Columns) -> dict[int, list[Any]]:
    """Return the categories of example rows in columns that catboost knows by their hashes."""
    if type(estimator).__module__.partition(".")[0] != "catboost":
        return {}
    result = {}
    for i in estimator.get_cat_feature_indices():
        values = _column(example, i)
        result[i] = sorted({str(v) for v in values} if columns.kinds[i] == TEXT else {int(v) for v in values})
    return result


def missing_texts(estimator: Any) -> dict[str, Any]:
    """Return the missing values that encoders and imputers of texts know, by the texts that stand for them."""
    result: dict[str, Any] = {}
    for part in parts_of(estimator):
        known: list[Any] = [value for values in getattr(part, "categories_", ()) for value in values]
        if any(isinstance(statistic, str) for statistic in np.ravel(getattr(part, "statistics_", ()))):
            known = [part.missing_values, ""]
        if any(isinstance(value, str) for value in known):
            result |= {str(value): value for value in known if value is None or value != value}
        for member in _members(part):
            result |= {} if member is estimator else missing_texts(member)
    return result


def _columns_of_example(example: Any, names: tuple[str, ...]) -> Columns:
    if hasattr(example, "iloc"):
        kinds = [
            NUMBER if np.asarray(example.iloc[:, i]).dtype.kind in "fiub" else TEXT for i in range(example.shape[1])
        ]
        dates = {}
        for i in range(example.shape[1]):
            if getattr(example.dtypes.iloc[i], "tz", None) is not None:
                raise UnsupportedError(
                    f"column '{example.columns[i]}' has dates with a time zone, which have no translation",
                    remedy="Give the dates in UTC without a time zone: column.dt.tz_convert(None).",
                )
            values = np.asarray(example.iloc[:, i])
            if values.dtype.kind in "mM":
                kinds[i] = DATE
                known = values[~np.isnat(values)].astype(np.int64) if not np.isnat(values).all() else np.zeros(1, int)
                dates[i] = (date_type(values), int(known.min()), int(known.max()))
        return Columns(tuple(kinds), names or tuple(str(name) for name in example.columns), dates=dates)
    array = np.asarray(example)
    if array.ndim == 1:
        return Columns((NUMBER if array.dtype.kind in "fiub" else TEXT,), (), True)
    if array.dtype.kind != "O":
        kind = NUMBER if array.dtype.kind in "fiub" else TEXT
        return Columns((kind,) * array.shape[1], names)
    kinds = [TEXT if any(isinstance(v, str) for v in array[:, i]) else NUMBER for i in range(array.shape[1])]
    return Columns(tuple(kinds), names)


_INNER = ("best_estimator_", "estimator_", "regressor_", "_final_estimator", "estimator")


def _members(estimator: Any) -> list[Any]:
    """Return the estimators that read the same columns as an estimator of estimators."""
    members = [getattr(estimator, name) for name in _INNER if hasattr(estimator, name)]
    for name in ("estimators_", "calibrated_classifiers_"):
        several = getattr(estimator, name, ())
        members += several if isinstance(several, (list, tuple)) else []
    members += [one for _, one in getattr(estimator, "transformer_list", ())]
    members = [getattr(one, "estimator", one) if "_Calibrated" in type(one).__name__ else one for one in members]
    return [one for one in members if one is not None and not isinstance(one, str)]


def _steps(pipeline: Any) -> list[Any]:
    return [step for _, step in pipeline.steps if step is not None and step != "passthrough"]


def _kinds(estimator: Any) -> tuple[list[str], bool]:
    """Return the kind of each column, and True if the estimator accepts one value per row."""
    name = type(estimator).__name__
    preprocessor = getattr(estimator, "_preprocessor", None)
    if hasattr(preprocessor, "transformers_"):
        return _kinds(preprocessor)
    if hasattr(estimator, "steps"):
        steps = _steps(estimator)
        return _kinds(steps[0]) if steps else ([], False)
    if hasattr(estimator, "vocabulary_") or name == "HashingVectorizer":
        return [TEXT], True
    if name in ("LabelEncoder", "LabelBinarizer"):
        return [_kind(estimator.classes_)], True
    if name == "IsotonicRegression":
        return [NUMBER], True
    count = int(getattr(estimator, "n_features_in_", 0) or 0)
    categories = frame_categories(estimator)
    if categories:
        return [_kind(categories[i]) if i in categories else NUMBER for i in range(count)], False
    if hasattr(estimator, "transformers_") and hasattr(estimator, "sparse_threshold"):
        names = [str(one) for one in getattr(estimator, "feature_names_in_", ())]
        kinds = [NUMBER] * count
        for _, transformer, columns in estimator.transformers_:
            if isinstance(transformer, str):
                continue
            indices = column_indices(columns, names)
            inner, _ = _kinds(transformer)
            for i, kind in zip(indices, inner, strict=False):
                kinds[i] = TEXT if kind == TEXT else kinds[i]
        return kinds, False
    if hasattr(estimator, "categories_"):
        return [_kind(categories) for categories in estimator.categories_], False
    if hasattr(estimator, "statistics_"):
        # Statistics of numbers may be objects, as a constant is.
        is_text = any(isinstance(statistic, str) for statistic in estimator.statistics_)
        return [TEXT if is_text else NUMBER] * count, False
    if hasattr(estimator, "support_"):
        return [NUMBER] * count, False
    kinds = [NUMBER] * count
    for member in _members(estimator):
        inner, is_vector = _kinds(member)
        if is_vector:
            return inner, True
        kinds = kinds or [NUMBER] * len(inner)
        if len(inner) == len(kinds):
            kinds = [TEXT if TEXT in pair else NUMBER for pair in zip(kinds, inner, strict=True)]
    return kinds, False


def _kind(values: Any) -> str:
    return TEXT if np.asarray(values).dtype.kind in "OUS" else NUMBER


def parts_of(estimator: Any, depth: int = 8) -> Iterator[Any]:
    """Yield the estimator and the estimators that it contains."""
    yield estimator
    if depth == 0:
        return
    inner: list[Any] = [step for _, step in getattr(estimator, "steps", ())]
    inner += [one for _, one, *_ in getattr(estimator, "transformers_", ())]
    inner += [one for _, one in getattr(estimator, "transformer_list", ())]
    inner += [getattr(estimator, name) for name in ("best_estimator_", "regressor_") if hasattr(estimator, name)]
    for one in inner:
        if one is not None and not isinstance(one, str):
            yield from parts_of(one, depth - 1)


def number_type(estimator: Any) -> np.dtype[Any]:
    """Return the type of numbers that an estimator accepts: ``NMF`` refuses another than that of its fit."""
    for part in parts_of(estimator):
        if any(base.__name__ == "NMF" for base in type(part).__mro__):
            return np.dtype(part.components_.dtype)
    return np.dtype(np.float64)


def examples(estimator: Any, columns: Columns) -> Sequence[Mapping[str, Any]]:
    """Return feeds of several row counts, with known categories, words of vocabularies, missing values."""
    if columns.form:
        keys = {name: kind == TEXT for name, kind in zip(columns.names, columns.kinds, strict=False)}
        return [columns.feeds(rows) for rows in records.examples(columns.reader, columns.form, keys, None)]
    known: list[Any] = []
    for part in parts_of(estimator):
        known += [v for values in getattr(part, "categories_", ()) for v in values if isinstance(v, str)]
        known += [term for term in getattr(part, "vocabulary_", ()) if isinstance(term, str)][:200]
        if len(columns.kinds) == 1:
            known += [v for v in getattr(part, "classes_", ()) if isinstance(v, str)]
    generator = np.random.default_rng(0)
    scale = _scales(estimator, len(columns.kinds))
    result = []
    for number, rows in enumerate(_ROWS):
        table = np.empty((rows, len(columns.kinds)), object)
        for i, kind in enumerate(columns.kinds):
            if i in columns.known:
                table[:, i] = generator.choice(np.array(columns.known[i], object), rows)
            elif kind == DATE:
                _, low, high = columns.dates[i]
                table[:, i] = generator.integers(low, high + 1, rows)
            elif kind == TEXT:
                words = known or _WORDS
                length = 6 if columns.is_vector and any(hasattr(p, "vocabulary_") for p in parts_of(estimator)) else 1
                table[:, i] = [" ".join(generator.choice(words, length)) for _ in range(rows)]
                table[:, i] = _category(estimator, i, generator, rows, table[:, i])
            else:
                table[:, i] = _numbers(estimator, i, generator, rows, scale[i])
        if number == len(_ROWS) - 1 and columns.missing:
            table[0, [i for i, kind in enumerate(columns.kinds) if kind == TEXT]] = next(iter(columns.missing))
        if number == 0 and _allows_missing(estimator):
            table[0, [i for i, kind in enumerate(columns.kinds) if kind == NUMBER][:1]] = np.nan
        result.append(columns.feeds(table[:, 0] if columns.is_vector else table))
    return [*result, *_others(estimator, result)]


def _others(estimator: Any, feeds: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield feeds that more estimators accept: numbers without signs, whole, none missing, and rows of the fit."""
    for changed in (np.abs, lambda x: np.floor(np.abs(x)), np.nan_to_num):
        for one in feeds:
            yield {name: changed(value) if value.dtype.kind == "f" else value for name, value in one.items()}
    fitted: Any = next((part._fit_X for part in parts_of(estimator) if hasattr(part, "_fit_X")), None)
    for one in feeds if isinstance(fitted, np.ndarray) else ():
        name, value = next(iter(one.items()))
        if len(one) == 1 and value.ndim == 2 and fitted.shape[1:] == value.shape[1:] and len(fitted) >= len(value):
            yield {name: np.asarray(fitted[: len(value)] * (1 + 1e-3), value.dtype)}


def _category(estimator: Any, index: int, generator: Any, rows: int, fallback: Any) -> Any:
    values = _categories(estimator, index)
    return fallback if values is None else np.array([str(v) for v in generator.choice(values, rows)], object)


def _numbers(estimator: Any, index: int, generator: Any, rows: int, scale: tuple[float, float]) -> Any:
    values = _categories(estimator, index)
    if values is not None and np.asarray(values).dtype.kind in "fiu":
        return generator.choice(np.asarray(values, np.float64), rows)
    return generator.normal(scale[0], scale[1], rows)


def _categories(estimator: Any, index: int) -> Any:
    """Return the categories of an input column, if an encoder reads the column first."""
    frame = frame_categories(estimator)
    if index in frame:
        return np.asarray(frame[index], object if _kind(frame[index]) == TEXT else None)
    if hasattr(estimator, "steps"):
        for step in _steps(estimator):
            categories = _categories(step, index)
            if categories is not None or not _keeps_columns(step):
                return categories
        return None
    if hasattr(estimator, "categories_") and index < len(estimator.categories_):
        return np.asarray(estimator.categories_[index])
    if hasattr(estimator, "transformers_") and hasattr(estimator, "sparse_threshold"):
        names = [str(one) for one in getattr(estimator, "feature_names_in_", ())]
        for _, transformer, columns in estimator.transformers_:
            indices = column_indices(columns, names)
            if index in indices and not isinstance(transformer, str):
                categories = _categories(transformer, indices.index(index))
                if categories is not None:
                    return categories
        return None
    if getattr(estimator, "_preprocessor", None) is not None:
        return _categories(estimator._preprocessor, index)
    by_member = (_categories(member, index) for member in _members(estimator))
    return next((categories for categories in by_member if categories is not None), None)


def _keeps_columns(step: Any) -> bool:
    """Return True if a step of a pipeline gives its columns in order, as imputers do."""
    return hasattr(step, "statistics_") and "nan" not in np.asarray(step.statistics_).astype(str)


def _scales(estimator: Any, count: int) -> list[tuple[float, float]]:
    """Return mean and deviation of each column, as far as a part of the estimator records them."""
    for part in parts_of(estimator):
        low, high = getattr(part, "data_min_", None), getattr(part, "data_max_", None)
        mean, deviation = getattr(part, "mean_", None), getattr(part, "scale_", None)
        if low is not None and high is not None and np.shape(low) == (count,):
            return [(float(a + b) / 2, float(b - a) / 4 or 1.0) for a, b in zip(low, high, strict=True)]
        if mean is not None and deviation is not None and np.shape(mean) == np.shape(deviation) == (count,):
            return [(float(a), float(b) or 1.0) for a, b in zip(mean, deviation, strict=True)]
        fitted = getattr(part, "_fit_X", getattr(part, "X_train_", None))
        if isinstance(fitted, np.ndarray) and fitted.ndim == 2 and fitted.shape[1] == count:
            spread = np.nanstd(fitted, axis=0)
            return [(float(a), float(b) or 1.0) for a, b in zip(np.nanmean(fitted, axis=0), spread, strict=True)]
        variance = getattr(part, "var_", None)
        if variance is not None and np.ndim(variance) == 2 and np.shape(variance)[1] == count:
            theta = np.asarray(part.theta_)
            return [
                (float(a), float(b))
                for a, b in zip(theta.mean(0), np.sqrt(variance.mean(0)) + theta.std(0), strict=True)
            ]
    return [(0.0, 1.0)] * count


def _allows_missing(estimator: Any) -> bool:
    try:
        return bool(estimator.__sklearn_tags__().input_tags.allow_nan)
    except AttributeError:
        return False
