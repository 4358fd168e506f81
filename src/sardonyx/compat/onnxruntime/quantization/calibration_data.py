"""Statistics of tensors, and their files, by ONNX Runtime's names."""

from __future__ import annotations

import json
import tempfile
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np


class CalibrationMethod(Enum):
    """The choice of ranges."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class TensorData:
    """Statistics of a tensor: ``lowest``, ``highest``, ``avg``, ``std``, ``hist``, ``hist_edges``, ``bins``."""

    _FLOATS = ("avg", "std", "lowest", "highest", "hist_edges")
    _NAMES = (*_FLOATS, "hist", "bins")

    def __init__(self, **kwargs: Any) -> None:
        self._attrs = list(kwargs)
        for name, value in kwargs.items():
            if name not in self._NAMES:
                raise ValueError(f"expected one of {', '.join(self._NAMES)}, got {name!r}.")
            if name in self._FLOATS and getattr(value, "dtype", None) not in (np.float16, np.float32):
                raise ValueError(f"expected an array of float16 or float32 for {name}, got {type(value).__name__}.")
            setattr(self, name, value)

    @property
    def range_value(self) -> tuple[Any, Any]:
        """The least and the greatest value."""
        return self._pair("lowest", "highest")

    @property
    def avg_std(self) -> tuple[Any, Any]:
        """The mean and the standard deviation."""
        return self._pair("avg", "std")

    def _pair(self, first: str, second: str) -> tuple[Any, Any]:
        if first not in self._attrs or second not in self._attrs:
            raise AttributeError(f"{first} and {second} are missing; the tensor has {', '.join(self._attrs)}.")
        return getattr(self, first), getattr(self, second)

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as data for JSON."""
        return {**{name: getattr(self, name) for name in self._attrs}, "CLS": "TensorData"}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> TensorData:
        """Return the statistics that :meth:`to_dict` gave."""
        values = {}
        for name, value in d.items():
            if isinstance(value, dict) and value.get("CLS") == "numpy.array":
                value = np.array(value["data"], np.dtype(value["dtype"]))
            elif name in cls._FLOATS and isinstance(value, (int, float)):
                value = np.array(value, np.float32)
            if name != "CLS":
                values[name] = value
        return cls(**values)


class TensorsData:
    """Statistics of tensors by name."""

    def __init__(self, calibration_method: CalibrationMethod, data: Mapping[str, Any]) -> None:
        self.calibration_method = calibration_method
        self.data: dict[str, TensorData] = {}
        is_range = calibration_method == CalibrationMethod.MinMax
        for name, value in data.items():
            if not isinstance(name, str):
                raise TypeError(f"expected the name of a tensor, got {type(name).__name__}.")
            if isinstance(value, tuple):
                if len(value) == 4:
                    value = TensorData(lowest=value[0], highest=value[1], hist=value[2], bins=value[3])
                elif is_range and len(value) == 2:
                    value = TensorData(lowest=value[0], highest=value[1])
                else:
                    raise TypeError(f"expected a pair of limits for {name}, got {len(value)} values.")
            if not isinstance(value, TensorData):
                raise TypeError(f"expected TensorData or a pair of limits for {name}, got {type(value).__name__}.")
            self.data[name] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def __getitem__(self, key: str) -> TensorData:
        return self.data[key]

    def __setitem__(self, key: str, value: TensorData) -> None:
        if key not in self.data:
            raise RuntimeError(f"unknown tensor {key!r}.")
        self.data[key] = value

    def keys(self) -> KeysView[str]:
        """Return the names of tensors."""
        return self.data.keys()

    def values(self) -> ValuesView[TensorData]:
        """Return the statistics."""
        return self.data.values()

    def items(self) -> ItemsView[str, TensorData]:
        """Return names with statistics."""
        return self.data.items()

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as data for JSON."""
        return {"CLS": "TensorsData", "data": self.data, "calibration_method": self.calibration_method}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> TensorsData:
        """Return the statistics that :meth:`to_dict` gave."""
        method = d["calibration_method"]
        if isinstance(method, Mapping):
            method = CalibrationMethod[str(method["value"]).rpartition(".")[2]]
        data = {k: v if isinstance(v, TensorData) else TensorData.from_dict(v) for k, v in d["data"].items()}
        return cls(method, data)


class CalibrationCacheEncoder(json.JSONEncoder):
    """Encoder of statistics of tensors."""

    def default(self, obj: Any) -> Any:
        """Return an object as data that JSON has."""
        if isinstance(obj, (TensorData, TensorsData)):
            return obj.to_dict()
        if isinstance(obj, np.ndarray):
            return {"data": obj.tolist(), "dtype": str(obj.dtype), "CLS": "numpy.array"}
        if isinstance(obj, CalibrationMethod):
            return {"CLS": "CalibrationMethod", "value": str(obj)}
        return obj.item() if isinstance(obj, np.generic) else super().default(obj)


def save_tensors_data(tensors_data: TensorsData, path: str | Path, *, smooth_quant: bool = False) -> None:
    """Write statistics of tensors as JSON, all or nothing."""
    content = {**tensors_data.to_dict(), "smooth_quant": smooth_quant}
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    part = Path(name)
    try:
        with open(handle, "w") as file:  # noqa: PTH123
            json.dump(content, file, cls=CalibrationCacheEncoder)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load_tensors_data(path: str | Path) -> TensorsData:
    """Return statistics of tensors from JSON.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The path is no file of such statistics.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"Calibration cache not found: {path}")
    if not Path(path).is_file():
        raise ValueError(f"Calibration cache path is not a file: {path}")
    try:
        return TensorsData.from_dict(json.loads(Path(path).read_text()))
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} holds no statistics of tensors: {error!r}.") from error
