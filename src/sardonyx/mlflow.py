"""MLflow: models saved with the stock ``onnx`` flavor and a ``sardonyx`` flavor, whose pyfunc runs a session.

``mlflow.onnx.load_model`` loads these models without Sardonyx, and :func:`load_model` loads models of either flavor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.base.extras import require
from sardonyx.errors import FeedError, ModelFileError
from sardonyx.model import load, to_proto
from sardonyx.model.load import Loadable, require_plain
from sardonyx.runtime.foreign_values import numpy_type, read_rows, read_values
from sardonyx.runtime.model_info import ValueInfo
from sardonyx.runtime.session import Session

FLAVOR_NAME = "sardonyx"


def signature_of(session: Session) -> Any:
    """Return the MLflow signature of a session: names, types, and -1 for open sizes; None if a type is unknown.

    Raises:
        MissingDependencyError: MLflow is not installed.
    """
    require("mlflow", "mlflow", "MLflow")
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    schemas = []
    for infos in (session.get_inputs(), session.get_outputs()):
        specs = []
        for info in infos:
            dtype = numpy_type(info.type)
            if dtype is None or info.shape is None:
                return None
            dtype = np.dtype(str) if dtype.kind == "O" else dtype
            specs.append(TensorSpec(dtype, [size if isinstance(size, int) else -1 for size in info.shape], info.name))
        schemas.append(Schema(specs))
    return ModelSignature(inputs=schemas[0], outputs=schemas[1])


def save_model(
    model: Loadable,
    path: str | os.PathLike[str],
    *,
    mlflow_model: Any = None,
    signature: Any = None,
    input_example: Any = None,
    threads: int | None = None,
    report: str | None = None,
    **options: Any,
) -> None:
    """Save a model in MLflow's format.

    Args:
        model: The model.
        path: The folder to write.
        mlflow_model: The record of MLflow to extend; for :func:`log_model`.
        signature: The signature; None: names, types and open sizes of the model.
        input_example: An example of inputs.
        threads: Threads of sessions that load the model; None for all processors.
        report: The text of a proof report, saved as ``report.txt``.
        options: Further arguments of ``mlflow.onnx.save_model``, e.g. ``metadata``.

    Raises:
        MissingDependencyError: MLflow is not installed.
        SardonyxError: The model cannot be loaded or run.
    """
    require("mlflow", "mlflow", "MLflow")
    import mlflow
    from mlflow.models import Model

    loaded = load(model)
    require_plain(loaded)
    record = Model() if mlflow_model is None else mlflow_model
    inferred = signature or signature_of(Session(loaded, compile="off"))
    mlflow.onnx.save_model(
        to_proto(loaded), str(path), mlflow_model=record, signature=inferred, input_example=input_example, **options
    )
    data = record.flavors["onnx"]["data"]
    record.add_flavor(FLAVOR_NAME, data=data, threads=threads)
    pyfunc = record.flavors["python_function"]
    pyfunc["loader_module"] = "sardonyx.mlflow"
    if report is not None:
        (Path(path) / "report.txt").write_text(report, encoding="utf-8")
    record.save(str(Path(path) / "MLmodel"))


def log_model(model: Loadable, name: str, **options: Any) -> Any:
    """Log a model to the active run of MLflow; see :func:`save_model` for the options.

    Returns:
        MLflow's description of the logged model.
    """
    require("mlflow", "mlflow", "MLflow")
    import sys

    from mlflow.models import Model

    return Model.log(artifact_path=None, name=name, flavor=sys.modules[__name__], model=model, **options)


def load_model(uri: str, **options: Any) -> Session:
    """Return a session of a model that MLflow holds, of this flavor or the stock ``onnx`` flavor.

    Args:
        uri: The model's address in MLflow, or a folder.
        options: Options of the session.

    Raises:
        ModelFileError: The model has neither flavor.
    """
    require("mlflow", "mlflow", "MLflow")
    from mlflow.artifacts import download_artifacts

    return _open(Path(download_artifacts(artifact_uri=uri)), options)


def _open(folder: Path, options: Mapping[str, Any]) -> Session:
    from mlflow.models import Model

    flavors = Model.load(str(folder / "MLmodel")).flavors
    flavor = flavors.get(FLAVOR_NAME) or flavors.get("onnx")
    if flavor is None:
        raise ModelFileError(f"expected the flavor sardonyx or onnx, got {', '.join(flavors)}.", where=str(folder))
    data = folder / str(flavor["data"])
    if not data.resolve().is_relative_to(folder.resolve()):
        raise ModelFileError("names a file outside of its folder.", where=str(folder))
    return Session(data, **{"threads": flavor.get("threads"), **options})


class PyFunc:
    """The object that MLflow calls: a session over data frames, dictionaries and arrays."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_raw_model(self) -> Session:
        """Return the session."""
        return self._session

    def predict(self, data: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Return the outputs by name; a data frame for a data frame.

        Args:
            data: A dictionary of arrays, a data frame, or one array or series for the only input. A data frame has a
                column for each input, or columns of numbers, which are the columns of the only input. Missing numbers
                are NaN.
            params: Not used.

        Raises:
            FeedError: An input is missing, or cannot be read.
            SardonyxError: The values have no result.
        """
        infos = self._session.get_inputs()
        is_only = len(infos) == 1
        if is_only and isinstance(data, np.ndarray):
            data = {infos[0].name: data}
        elif is_only and hasattr(data, "to_frame") and hasattr(data, "dtypes"):  # A series.
            data = data.to_frame(infos[0].name)
        is_frame = hasattr(data, "dtypes") and hasattr(data, "columns")
        if not is_frame and not isinstance(data, Mapping):
            shown = type(data).__name__
            raise FeedError(f"expected a data frame, or a dictionary of arrays, got {shown}.", where="predict")
        if is_frame and is_only and infos[0].name not in data and all(d.kind in "biuf" for d in data.dtypes):
            feeds = {infos[0].name: read_values(data.to_numpy(), numpy_type(infos[0].type), infos[0].name)}
        else:
            feeds = {info.name: _rows(data, info) for info in infos}
        names = [info.name for info in self._session.get_outputs()]
        outputs = dict(zip(names, self._session.run(names, feeds), strict=True))
        if not is_frame:
            return outputs
        columns = {name: _column(output, len(data), name) for name, output in outputs.items()}
        return type(data)(columns, index=data.index)


def _rows(data: Any, info: ValueInfo) -> np.ndarray:
    """Return the rows of a column as one array; the value of an input without axes.

    Raises:
        FeedError: The column is missing, or cannot be read.
    """
    name, dtype = info.name, numpy_type(info.type)
    if name not in data:
        raise FeedError(f"the data have no column '{name}'.", where="predict")
    values = data[name]
    if info.shape == [] or (isinstance(values, np.ndarray) and values.ndim == 0):
        return read_values(values, dtype, name)
    sizes = [size if isinstance(size, int) else 1 for size in (info.shape or [])[1:]]
    rows = read_rows(values, dtype, name, sizes)
    if isinstance(rows, list):
        raise FeedError("expected rows of one shape.", where=name, remedy="Predict the rows of each shape apart.")
    return rows


def _column(output: Any, rows: int, name: str) -> Any:
    """Return an output as a column of a data frame; an output without axes is repeated.

    Raises:
        FeedError: The output has another number of rows.
    """
    if isinstance(output, (np.ndarray, np.generic)) and output.ndim == 0:
        return np.full(rows, output)
    if len(output) != rows:
        raise FeedError(
            f"the output has {len(output)} rows, the data frame {rows}.", where=name,
            remedy="Pass a dictionary of arrays, whose answer is one.",
        )  # fmt: skip
    return output if isinstance(output, np.ndarray) and output.ndim == 1 else list(output)


def _load_pyfunc(path: str) -> PyFunc:
    """Return the pyfunc of a saved model: MLflow passes the path of the model file."""
    return PyFunc(Session(path, compile="wait"))
