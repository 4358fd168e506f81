"""Rows that are not of one length: dictionaries of features, and bags of labels.

A dictionary is a row of columns, one for each key; a missing key is NaN or an empty text. A bag is a row of labels,
filled up with NaN or empty texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sardonyx.convert.tabular.arrays import Array, concatenated, where
from sardonyx.convert.tabular.methods import Table, method
from sardonyx.errors import OptionError, UnsupportedError

MAPPINGS, BAGS = "mappings", "bags"
"""Forms of rows."""

READERS = ("DictVectorizer", "FeatureHasher", "MultiLabelBinarizer")
"""Classes that read such rows."""

_SEPARATOR = "="
"""Joins a key and a text in scikit-learn's hashes."""


def reader_of(estimator: Any) -> Any:
    """Return the part of an estimator that reads its input, if it reads rows of no fixed length; else None."""
    for name in ("best_estimator_", "estimator_"):
        if hasattr(estimator, name):
            return reader_of(getattr(estimator, name))
    if hasattr(estimator, "steps"):
        steps = [step for _, step in estimator.steps if step is not None and step != "passthrough"]
        return reader_of(steps[0]) if steps else None
    return estimator if any(base.__name__ in READERS for base in type(estimator).__mro__) else None


def form_of(reader: Any) -> str:
    """Return the form of the rows that a reader accepts.

    Raises:
        UnsupportedError: The reader accepts pairs, which have no translation.
    """
    kind = getattr(reader, "input_type", None)
    if kind == "pair":
        raise UnsupportedError(
            "input_type='pair' has no translation", where="FeatureHasher", remedy="Use input_type='dict'."
        )
    return BAGS if kind == "string" or hasattr(reader, "classes_") else MAPPINGS


def keys_of(reader: Any, example: Any) -> dict[str, bool]:
    """Return the keys of dictionaries in order; True for those of texts.

    Raises:
        OptionError: The keys are not known: the reader records none, and there are no example rows.
        UnsupportedError: A key has numbers and texts, or lists of texts.
    """
    if example is None and not hasattr(reader, "feature_names_"):
        raise OptionError(
            "the keys of the dictionaries are not known: the class does not record them",
            where=type(reader).__name__,
            remedy="Give example rows.",
        )
    result: dict[str, bool] = {}
    if example is None:
        for name in reader.feature_names_:
            key, between, _ = name.partition(reader.separator)
            if result.setdefault(key, bool(between)) != bool(between):
                raise UnsupportedError(f"key '{key}' has numbers and texts", where=type(reader).__name__)
        return result
    for key, value in (item for row in example for item in row.items()):
        if not isinstance(value, (str, int, float, np.number, np.bool_)):
            raise UnsupportedError(
                f"key '{key}' has values of type {type(value).__name__}, expected numbers or texts",
                where=type(reader).__name__,
            )
        if result.setdefault(str(key), isinstance(value, str)) != isinstance(value, str):
            raise UnsupportedError(f"key '{key}' has numbers and texts", where=type(reader).__name__)
    return dict(sorted(result.items()))


def _rows(example: Any) -> Sequence[Any]:
    """Return example rows, none without an example."""
    return [] if example is None else list(example)


def has_texts(reader: Any, example: Any) -> bool:
    """Return True if the labels of bags are texts."""
    labels = getattr(reader, "classes_", None)
    labels = labels if labels is not None else [label for row in _rows(example) for label in row] or [""]
    return np.asarray(labels).dtype.kind in "OUS"


def column(rows: Sequence[Mapping[str, Any]], key: str, is_text: bool, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the values of a key in dictionaries, [rows, 1]."""
    values = [row.get(key, "" if is_text else np.nan) for row in rows]
    return np.array(values, object if is_text else dtype).reshape(-1, 1)


def mappings(columns: Sequence[npt.NDArray[Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return columns [rows, 1] as dictionaries without missing keys."""
    rows = zip(*(values.reshape(-1).tolist() for values in columns), strict=True)
    return [{name: v for name, v in zip(names, row, strict=True) if _is_present(v)} for row in rows]


def padded(rows: Sequence[Sequence[Any]], is_text: bool) -> npt.NDArray[Any]:
    """Return bags of labels as a matrix."""
    width = max([1, *(len(list(row)) for row in rows)])
    result = np.full((len(rows), width), "" if is_text else np.nan, object if is_text else np.float64)
    for i, row in enumerate(rows):
        result[i, : len(list(row))] = list(row)
    return result


def bags(matrix: npt.NDArray[Any], reader: Any) -> list[list[Any]]:
    """Return a matrix as bags of labels of the type that a reader knows."""
    is_whole = np.asarray(getattr(reader, "classes_", [""])).dtype.kind in "iu"
    return [[int(v) if is_whole and v.is_integer() else v for v in row if _is_present(v)] for row in matrix.tolist()]


def _is_present(value: Any) -> bool:
    return value != "" and value == value


def examples(reader: Any, form: str, keys: Mapping[str, bool], example: Any) -> list[list[Any]]:
    """Return rows of several counts, with known texts and labels, some of them missing."""
    generator = np.random.default_rng(0)
    known: dict[str, list[str]] = {}
    for name in getattr(reader, "feature_names_", ()):
        key, _, text = name.partition(reader.separator)
        known.setdefault(key, []).append(text)
    for row in _rows(example) if form == MAPPINGS else ():
        for key, value in row.items():
            known.setdefault(str(key), []).append(str(value))
    labels = list(getattr(reader, "classes_", [label for row in _rows(example) for label in row] or ["a", "b", "c"]))
    result: list[list[Any]] = []
    for count in (5, 1, 7):
        rows: list[Any] = []
        for _ in range(count):
            if form == BAGS:
                size = int(generator.integers(1, min(len(labels), 4) + 1))
                rows.append(list(generator.choice(np.array(labels), size, replace=False)))
                continue
            row = {
                key: str(generator.choice([*known.get(key, ["one"]), "other"])) if is_text else generator.normal()
                for key, is_text in keys.items()
            }
            dropped = generator.random(len(row)) < 0.2
            rows.append({key: v for (key, v), drop in zip(row.items(), dropped, strict=True) if not drop or not rows})
        result.append(rows)
    return result


def _parts(x: Any) -> dict[str, Array]:
    """Return the columns of dictionaries by key, [rows]."""
    if isinstance(x, Table):
        return {name: part.ravel() for name, part in zip(x.names, x.parts, strict=True)}
    return {name: x.columns(i) for i, name in enumerate(x.names)}


@method("transform", "DictVectorizer")
def vectorized(estimator: Any, x: Any) -> Array:
    """Translate numbers, and one column for each text of a key."""
    columns = []
    values = _parts(x)
    for name in estimator.feature_names_:
        key, between, text = name.partition(estimator.separator)
        if between:
            column = np.equal(values[key], text).cast(np.float64)
        else:
            column = where(np.isnan(values[key]), 0.0, values[key])
        columns.append(column.reshape(-1, 1))
    return concatenated(columns, axis=1).cast(estimator.dtype)


@method("transform", "FeatureHasher")
def hashed(estimator: Any, x: Any) -> Array:
    """Translate numbers added to the columns that hashes of keys name, and texts counted there."""
    if form_of(estimator) == BAGS:
        return _scattered(estimator, x, np.not_equal(x, "").cast(np.float64)).cast(estimator.dtype)
    total: Any = 0.0
    for key, values in _parts(x).items():
        column = values.reshape(-1, 1)
        if column.dtype == object:
            is_present = np.not_equal(column, "").cast(np.float64)
            texts = column.constant(np.array(key + _SEPARATOR, object)).node("StringConcat", column, dtype=object)
            total = _scattered(estimator, texts, is_present) + total
            continue
        number = where(np.isnan(column), 0.0, column)
        total = number * _signed_column(estimator, key) + total
    return total.cast(estimator.dtype)


def _signed_column(estimator: Any, key: str) -> npt.NDArray[np.float64]:
    """Return the row of zeros and one sign by which scikit-learn counts a key, from the class itself."""
    return np.asarray(estimator.transform([{key: 1.0}]).toarray(), np.float64)


def _scattered(estimator: Any, texts: Array, weights: Array) -> Array:
    """Return weights of texts [rows, texts] added to the columns of their hashes."""
    width = int(estimator.n_features)
    code = texts.node("MurmurHash3", domain="com.microsoft", dtype=np.int32, seed=0, positive=0).cast(np.int64)
    sign = where(code < np.int64(0), -1.0, 1.0) if estimator.alternate_sign else 1.0
    rows = texts.node("Shape", dtype=np.int64, start=0, end=1)
    shape = concatenated([rows, texts.constant([width], np.int64)])
    zeros = texts.constant(0.0, np.float64).node("Expand", shape)
    index = np.absolute(code) % np.int64(width)
    return zeros.node("ScatterElements", index, weights * sign, axis=1, reduction="add")


@method("transform", "MultiLabelBinarizer")
def binarized(estimator: Any, x: Array) -> Array:
    """Translate one column for each label, 1 where a bag has the label."""
    classes = np.asarray(estimator.classes_)
    classes = classes.astype(object if classes.dtype.kind in "OUS" else np.float64)
    return np.equal(x.node("Unsqueeze", [2]), classes).any(1).cast(np.int64)
