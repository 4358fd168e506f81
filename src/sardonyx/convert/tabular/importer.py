"""The importer of fitted estimators: scikit-learn, xgboost, lightgbm, catboost, and pipelines of them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.graph_builder import GraphBuilder, Names
from sardonyx.convert.imported import Answers, Call, Feeds, Imported, Options, Size, Way
from sardonyx.convert.tabular import (
    boosting,
    clusters,
    composition,
    ensembles,
    imputation,
    inverses,
    iterations,
    kernels,
    lightgbm,
    linear,
    neighbourhoods,
    preprocessing,
    projections,
    sparse_coding,
    text,
    trees,
)
from sardonyx.convert.tabular.arrays import IR_VERSION, OPSETS, Array
from sardonyx.convert.tabular.columns import TEXT, Columns, columns_of, examples, number_type, parts_of
from sardonyx.convert.tabular.methods import Table, apply, required_translation
from sardonyx.errors import (
    ConversionError,
    EvaluationError,
    MissingDependencyError,
    ModelFileError,
    OptionError,
    UnsupportedError,
)

FAMILIES = (
    boosting,
    clusters,
    composition,
    ensembles,
    imputation,
    inverses,
    iterations,
    kernels,
    lightgbm,
    linear,
    neighbourhoods,
    preprocessing,
    projections,
    sparse_coding,
    text,
    trees,
)
"""Modules that register translations."""

PICKLES = (".joblib", ".pkl", ".pickle", ".skops")
"""Suffixes of files that execute code when they are read."""


def ways(source: Any, options: Options) -> Sequence[Way]:
    """Return the ways to read a fitted estimator.

    Args:
        source: A fitted estimator, or the path of a file: a joblib file, or a model of xgboost, lightgbm or catboost.
        options: See :class:`Options`.

    Raises:
        OptionError: The source is not an estimator, or a pickle without ``trust``.
        ModelFileError: The file cannot be read.
    """
    estimator = _loaded(source, options) if isinstance(source, (str, os.PathLike)) else source
    if not any(hasattr(estimator, name) for name in ("predict", "transform")):
        raise OptionError(
            f"expected an estimator with predict or transform, got {type(estimator).__name__}", where="source"
        )
    result = [Way("sardonyx", lambda: _read(estimator, options))]
    if importlib.util.find_spec("skl2onnx") is not None and type(estimator).__module__.startswith("sklearn"):
        result.append(Way("skl2onnx", lambda: _read_skl2onnx(estimator, options)))
    if options.exporter != "auto":
        result = [way for way in result if way.name == options.exporter]
    if not result:
        raise OptionError(
            f"unknown exporter '{options.exporter}'", where="exporter", remedy="Use sardonyx or skl2onnx."
        )
    return result


def _loaded(source: str | os.PathLike[str], options: Options) -> Any:
    path = Path(source)
    if path.suffix.lower() not in PICKLES:
        return boosting.model_from_file(path)
    if not options.trust:
        raise OptionError(
            "a pickle runs code of whoever wrote the file when it is read",
            where=str(path),
            remedy="If you trust its origin, set `trust=True` (`--trust`).",
        )
    if importlib.util.find_spec("joblib") is None:
        raise MissingDependencyError("reading joblib files needs joblib", remedy="pip install sardonyx[sklearn]")
    import joblib

    try:
        return joblib.load(path)
    except Exception as error:  # Readers of pickles raise what the classes of the file raise.
        problem = f"joblib cannot read the file: {type(error).__name__}: {str(error)[:200]}"
        raise ModelFileError(problem, where=str(path)) from error


def _example(options: Options) -> Any:
    rows = options.examples
    if isinstance(rows, list) and rows and all(isinstance(row, Mapping) for row in rows):
        return rows  # Rows that are dictionaries, not one argument each.
    if isinstance(rows, Mapping):
        return next(iter(rows.values())) if len(rows) == 1 else None
    return rows[0] if len(rows) else None


def result_names(estimator: Any) -> list[tuple[str, str]]:
    """Return the model's outputs as pairs of name and method."""
    if not hasattr(estimator, "predict"):
        return [("transformed", "transform")]
    is_classifier = hasattr(estimator, "classes_") or hasattr(estimator, "predict_proba")
    is_detector = hasattr(estimator, "score_samples") and hasattr(estimator, "offset_")
    is_cluster = any(hasattr(estimator, name) for name in ("cluster_centers_", "subcluster_centers_", "labels_"))
    names = [("label" if is_classifier or is_detector or is_cluster else "prediction", "predict")]
    # Gaussian processes of pairs of classes have the method, which always fails.
    is_of_pairs = getattr(estimator, "multi_class", None) == "one_vs_one" and hasattr(estimator, "base_estimator_")
    if hasattr(estimator, "predict_proba") and not (is_of_pairs and len(estimator.classes_) > 2):
        names.append(("probabilities", "predict_proba"))
    elif hasattr(estimator, "decision_function"):
        names.append(("scores", "decision_function"))
    return names


def _read(estimator: Any, options: Options) -> Imported:
    example = _example(options)
    results = result_names(estimator)
    for _, method in results:
        required_translation(method, estimator)
    columns = replace(columns_of(estimator, example), number=number_type(estimator))
    builder = GraphBuilder(Names())
    inputs, x = _inputs(builder, columns)
    outputs: list[ir.Value] = []
    for name, method in results:
        value = apply(method, estimator, x)
        for i, part in enumerate(value if isinstance(value, list) else [value]):
            outputs.append(_output(builder, part, f"{name}_{i}" if isinstance(value, list) else name))
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=builder.nodes,
        initializers=list(builder.initializers.values()),
        opset_imports=dict(OPSETS),
        name=type(estimator).__name__,
    )
    used = {node.domain for node in graph.all_nodes()}
    for domain in ("ai.onnx.ml", "com.microsoft"):
        if domain not in used:
            del graph.opset_imports[domain]
    model = ir.Model(graph, ir_version=IR_VERSION, producer_name="sardonyx")
    feeds = [columns.feeds(example)] if example is not None else []
    trials, known = _accepted(estimator, columns, results, (*feeds, *examples(estimator, columns)))
    # Rows that the caller gave are tried even if the estimator refuses them.
    trials = [*feeds, *(trial for trial in trials if not any(trial is one for one in feeds))]
    for value in outputs:
        shape = known[str(value.name)].shape
        value.shape = ir.Shape(["batch", *shape[1:]])
    calls = tuple(Call(type(part).__name__, "converted") for part in parts_of(estimator))
    return Imported(
        model,
        lambda arrays: _as_declared(answers(estimator, columns, results, arrays), columns, outputs),
        sizes=_sizes(columns, trials[0]),
        examples=tuple(trials),
        calls=calls,
    )


def _as_declared(results: Answers, columns: Columns, outputs: Sequence[ir.Value]) -> Answers:
    """Return answers in the model's types: pandas gives parts of dates as integers where no date is missing."""
    if not columns.dates:
        return results
    is_float = {str(value.name): value.dtype == ir.DataType.DOUBLE for value in outputs}
    return {n: a.astype(np.float64) if is_float[n] and a.dtype.kind in "iu" else a for n, a in results.items()}


def _sizes(columns: Columns, feeds: Feeds) -> dict[str, Size]:
    """Return the open sizes with their values in feeds."""
    shape = np.shape(next(iter(feeds.values())))
    return {str(name): Size(int(size)) for name, size in zip(columns.sizes(), shape, strict=True) if name != size}


def _accepted(
    estimator: Any, columns: Columns, results: Sequence[tuple[str, str]], trials: Sequence[Feeds]
) -> tuple[list[Feeds], Answers]:
    """Return the rows that the estimator accepts, and its results for the first.

    Raises:
        EvaluationError: The estimator accepts none.
    """
    accepted: list[Feeds] = []
    first: Answers | None = None
    refusal: EvaluationError | None = None
    for feeds in trials:
        try:
            result = answers(estimator, columns, results, feeds)
        except EvaluationError as error:
            refusal = refusal or error  # The caller's rows are the first.
            continue
        accepted.append(feeds)
        first = result if first is None else first
    if first is None:
        raise refusal or EvaluationError("no rows to try", where=type(estimator).__name__)
    return accepted, first


def _inputs(builder: GraphBuilder, columns: Columns) -> tuple[list[ir.Value], Any]:
    """Return the graph's inputs, and the estimator's input over them."""
    values, arrays = [], []
    for i, name in enumerate(columns.input_names()):
        dtype = columns.element_type(i)
        element = _data_type(dtype)
        values.append(
            ir.Value(name=builder.names.fresh(name), shape=ir.Shape(columns.sizes()), type=ir.TensorType(element))
        )
        arrays.append(Array(builder, values[-1], dtype))
    if columns.is_mixed:
        table = Table(arrays, [1] * len(arrays), columns.names)
        table.known = columns.known
        return values, table
    arrays[0].names, arrays[0].known = columns.names, columns.known
    return values, arrays[0]


def _data_type(dtype: np.dtype[Any]) -> ir.DataType:
    """Return the element type of a value; dates are whole numbers of ticks."""
    if dtype.kind in "mM":
        return ir.DataType.INT64
    return ir.DataType.STRING if dtype.kind == "O" else ir.DataType.from_numpy(dtype)


def _output(builder: GraphBuilder, array: Array | Table, name: str) -> ir.Value:
    if isinstance(array, Table):
        raise UnsupportedError("texts and numbers in one result have no translation", where=name)
    if array.dtype.kind in "mM":
        raise UnsupportedError("dates in the result have no translation", where=name)
    value = builder.node("Identity", array.value)
    value.name = name
    value.type = ir.TensorType(_data_type(array.dtype))
    return value


def answers(estimator: Any, columns: Columns, results: Sequence[tuple[str, str]], feeds: Feeds) -> Answers:
    """Return the estimator's own results for feeds.

    Raises:
        EvaluationError: The estimator refuses the rows.
    """
    try:
        rows = columns.rows(feeds)
        answer: dict[str, Any] = {}
        for name, method in results:
            value = getattr(estimator, method)(rows)
            for i, part in enumerate(value if isinstance(value, list) else [value]):
                part = part.toarray() if hasattr(part, "toarray") else np.asarray(part)
                if not part.ndim or len(part) != len(rows):
                    raise ValueError(f"{method} gives {part.shape} for {len(rows)} rows")
                part = part.astype(object) if part.dtype.kind in "US" else part
                answer[f"{name}_{i}" if isinstance(value, list) else name] = part
        return answer
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise EvaluationError(f"the estimator refuses the rows: {error}", where=type(estimator).__name__) from error


def _read_skl2onnx(estimator: Any, options: Options) -> Imported:
    import skl2onnx
    from skl2onnx.common.data_types import DoubleTensorType, StringTensorType

    from sardonyx import model as model_io

    example = _example(options)
    columns = columns_of(estimator, example)
    width = 1 if columns.is_mixed or columns.is_vector else len(columns.kinds)
    types = [
        (name, (StringTensorType if kind == TEXT else DoubleTensorType)([None, width]))
        for name, kind in zip(columns.input_names(), columns.kinds, strict=False)
    ]
    try:
        proto = skl2onnx.to_onnx(
            estimator,
            initial_types=types,
            options={"zipmap": False} if hasattr(estimator, "predict_proba") else None,
        )
    except Exception as error:
        raise ConversionError(
            f"skl2onnx: {type(error).__name__}: {str(error)[:300]}", where=type(estimator).__name__
        ) from error
    model = model_io.from_proto(proto)
    results = [
        (str(value.name), method)
        for value, (_, method) in zip(model.graph.outputs, result_names(estimator), strict=False)
    ]
    if columns.is_vector:
        raise UnsupportedError("one value per row has another form in skl2onnx", where=type(estimator).__name__)
    return Imported(
        model,
        lambda arrays: answers(estimator, columns, results, arrays),
        sizes={},
        examples=tuple(_accepted(estimator, columns, results, examples(estimator, columns))[0]),
        calls=(Call(type(estimator).__name__, "converted"),),
    )
