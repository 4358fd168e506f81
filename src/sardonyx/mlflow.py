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
from sardonyx.model.load import Loadable
from sardonyx.runtime.session import Session

FLAVOR_NAME = "sardonyx"
_TYPES = {name: np.dtype(name) for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "float16")}
_TYPES |= {"float": np.dtype("f4"), "double": np.dtype("f8"), "string": np.dtype(str)}


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
            dtype = _TYPES.get(info.type.removeprefix("tensor(").removesuffix(")"))
            if dtype is None or info.shape is None:
                return None
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


class _PyFunc:
    """The object that MLflow calls: a session over data frames, dictionaries and arrays."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_raw_model(self) -> Session:
        """Return the session."""
        return self._session

    def predict(self, data: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Return the outputs by name; a data frame for a data frame.

        Args:
            data: A dictionary of arrays, a data frame, or one array for the only input. A data frame has a column for
                each input, or columns of numbers, which are the columns of the only input.
            params: Not used.

        Raises:
            FeedError: An input is missing.
        """
        inputs = self._session.get_inputs()
        if isinstance(data, np.ndarray) and len(inputs) == 1:
            data = {inputs[0].name: data}
        is_frame = hasattr(data, "dtypes")
        if is_frame and len(inputs) == 1 and inputs[0].name not in data and all(d.kind in "biuf" for d in data.dtypes):
            feeds = {inputs[0].name: data.to_numpy()}
        else:
            feeds = {info.name: _rows(data, info.name) for info in inputs}
        for info in inputs:
            dtype = _TYPES.get(info.type.removeprefix("tensor(").removesuffix(")"))
            feeds[info.name] = feeds[info.name].astype(dtype or feeds[info.name].dtype)
        names = [info.name for info in self._session.get_outputs()]
        outputs = dict(zip(names, self._session.run(names, feeds), strict=True))
        if not is_frame:
            return outputs
        columns = {name: array if np.ndim(array) == 1 else list(array) for name, array in outputs.items()}
        return type(data)(columns, index=data.index)


def _rows(data: Any, name: str) -> np.ndarray:
    """Return the rows of a column as one array."""
    if isinstance(data, np.ndarray) or name not in data:
        raise FeedError(f"the data have no column '{name}'.", where="predict")
    values = data[name]
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values
    return np.stack([np.asarray(row) for row in values])


def _load_pyfunc(path: str) -> _PyFunc:
    """Return the pyfunc of a saved model: MLflow passes the path of the model file."""
    return _PyFunc(Session(path, compile="wait"))
