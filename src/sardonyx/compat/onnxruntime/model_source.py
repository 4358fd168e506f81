"""The model of a session, and the file of the rewritten model, by the session's options."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.compat.onnxruntime.enums import GraphOptimizationLevel
from sardonyx.compat.onnxruntime.errors import Fail, InvalidArgument
from sardonyx.compat.onnxruntime.options import SessionOptions

if TYPE_CHECKING:
    import onnx_ir as ir

EXTERNAL_FILE = "session.optimized_model_external_initializers_file_name"
EXTERNAL_BYTES = "session.optimized_model_external_initializers_min_size_in_bytes"
_EXTERNAL_BYTES = 1024
_CONFIG_KEY = "ort_config"


def select_source(path_or_bytes: Any, options: SessionOptions) -> Any:
    """Return the file or bytes; or a model, if the options hold initializers or their files.

    Raises:
        Fail: A replaced initializer is unknown, or has another type or shape.
    """
    values, files = options._initializer_arrays, options._files
    if not values and not files:
        return path_or_bytes
    from sardonyx.model import load
    from sardonyx.model.copying import copy_model

    model = copy_model(load(path_or_bytes, skip_external=lambda tensor, file: tensor in values or file in files))
    for name, array in values.items():
        _replace(model, name, array)
    for name, value in model.graph.initializers.items():
        location = getattr(value.const_value, "location", None)
        if name not in values and location in files:
            _replace(model, name, _read_file(value.const_value, files[location]))
    return model


def _replace(model: ir.Model, name: str, array: np.ndarray) -> None:
    import onnx_ir as ir

    if name not in model.graph.initializers:
        raise Fail(f"Failed to find existing initializer with name {name}.")
    value = model.graph.initializers[name]
    tensor = ir.tensor(array, name=name)
    old = value.const_value
    if old is not None and old.dtype != tensor.dtype:
        raise Fail(f"Replacement tensor's data type does not match: {name} is {old.dtype}, got {tensor.dtype}.")
    if old is not None and tuple(old.shape) != tuple(tensor.shape):
        raise Fail(f"Replacement tensor's dimensions do not match: {name} is {old.shape}, got {tensor.shape}.")
    value.const_value = tensor


def _read_file(tensor: Any, content: memoryview) -> np.ndarray:
    """Return the elements of a tensor with external data, from the content of its file."""
    end = tensor.offset + tensor.length
    if end > len(content):
        raise Fail(f"External initializer {tensor.name} ends at byte {end}, and its file has {len(content)} bytes.")
    dtype = tensor.dtype
    if dtype.bitwidth < 8:
        raise InvalidArgument(f"External initializer {tensor.name}: {dtype} cannot be read from a file in memory.")
    array: np.ndarray = np.frombuffer(content[tensor.offset : end], dtype.numpy()).reshape(tuple(tensor.shape))
    return array


def write_rewritten(model: ir.Model, options: SessionOptions) -> None:
    """Write the rewritten model, with large initializers in a separate file if requested."""
    from sardonyx.model import save
    from sardonyx.rewrite.optimize import optimize

    rewritten = optimize(model, target="portable", verify=False).model
    entries: Mapping[str, str] = options._entries
    path, file = Path(options.optimized_model_filepath), entries.get(EXTERNAL_FILE)
    if not file:
        save(rewritten, path)
        return
    threshold = int(entries.get(EXTERNAL_BYTES, _EXTERNAL_BYTES))
    save(rewritten, path, external_data=True, external_threshold=threshold, external_file=file)


def load_config(path_or_bytes: Any, options: SessionOptions) -> None:
    """Set the options in a model's metadata, if the environment variable requests this.

    Raises:
        Fail: The metadata are malformed.
    """
    if os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL") != "1":
        return
    from sardonyx.model import load

    text = load(path_or_bytes).metadata_props.get(_CONFIG_KEY)
    if text is None:
        return
    try:
        settings = json.loads(text)["session_options"]
        for name, value in settings.items():
            if name == "graph_optimization_level":
                options.graph_optimization_level = GraphOptimizationLevel(value)
            elif name in ("inter_op_num_threads", "intra_op_num_threads"):
                setattr(options, name, int(value))
            elif name == "enable_profiling":
                options.enable_profiling = bool(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Fail(f"The metadata entry {_CONFIG_KEY!r} is malformed: {error}.") from error
