"""Files of ranges of tensors, as ONNX Runtime and TensorRT read them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.compat.onnxruntime.quantization.calibration_data import CalibrationCacheEncoder
from sardonyx.errors import MissingDependencyError, OptionError


def write_calibration_table(calibration_cache: Mapping[str, Any], dir: str | os.PathLike[str] = ".") -> None:
    """Write ranges as ``calibration.json``, ``calibration.flatbuffers``, and ``calibration.cache`` (text, two columns).

    The text and the flatbuffer hold the greater limit of each range.

    Raises:
        MissingDependencyError: flatbuffers is not installed.
        OptionError: The folder cannot be written.
    """
    rows = {name: str(_greater_limit(calibration_cache[name])) for name in sorted(calibration_cache.keys())}
    files = {
        "calibration.json": json.dumps(calibration_cache, cls=CalibrationCacheEncoder).encode(),
        "calibration.flatbuffers": _flatbuffer(rows),
        "calibration.cache": "".join(f"{name} {value}\n" for name, value in rows.items()).encode(),
    }
    try:
        for name, content in files.items():
            (Path(dir) / name).write_bytes(content)
    except OSError as error:
        raise OptionError(f"cannot be written: {error}", where=str(dir)) from error


def _greater_limit(data: Any) -> float:
    if isinstance(data, (tuple, list)):
        return float(max(np.max(data[0]), np.max(data[1])))
    values = data.to_dict()
    return max(float(np.max(values.get(name, 0.0))) for name in ("highest", "lowest"))


def _flatbuffer(rows: Mapping[str, str]) -> bytes:
    """Return a table with one vector of pairs of texts."""
    try:
        import flatbuffers
    except ImportError as error:
        raise MissingDependencyError(
            "tables of calibration require flatbuffers.", remedy="Install it: pip install flatbuffers."
        ) from error
    builder = flatbuffers.Builder(1024)
    pairs = []
    for name, value in rows.items():
        texts = builder.CreateString(name), builder.CreateString(value)
        builder.StartObject(2)
        for slot, text in enumerate(texts):
            builder.PrependUOffsetTRelativeSlot(slot, text, 0)
        pairs.append(builder.EndObject())
    builder.StartVector(4, len(pairs), 4)
    for pair in pairs:
        builder.PrependUOffsetTRelative(pair)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())
