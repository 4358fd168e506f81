"""Calibration by ONNX Runtime's names: readers of samples, calibraters, and ranges of tensors."""

from __future__ import annotations

import abc
import json
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sardonyx.compress.quantization.calibration import Observation
from sardonyx.compress.quantization.ranges import Statistics
from sardonyx.errors import OptionError
from sardonyx.model import load, save, to_proto
from sardonyx.rewrite.inference import infer_shapes


class CalibrationMethod(Enum):
    """The choice of ranges."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class CalibrationDataReader(abc.ABC):
    """A source of samples, which programs implement."""

    @classmethod
    def __subclasshook__(cls, subclass: type) -> Any:
        return callable(getattr(subclass, "get_next", None)) or NotImplemented

    @abc.abstractmethod
    def get_next(self) -> Any:
        """Return the next sample as arrays by input, or None at the end."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        sample = self.get_next()
        if sample is None:
            raise StopIteration
        return sample

    def __len__(self) -> int:
        """Return the number of samples; readers that do not know it raise, as those of ONNX Runtime do."""
        raise NotImplementedError

    def set_range(self, start_index: int, end_index: int) -> None:
        """Restrict the samples to a range of indices."""
        raise NotImplementedError


def samples_of(reader: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the samples of a reader, until None."""
    while (sample := reader.get_next()) is not None:
        yield sample


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
                if not is_range and len(value) == 4:
                    value = TensorData(lowest=value[0], highest=value[1], hist=value[2], hist_edges=value[3])
                elif len(value) == 2:
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
    """Write statistics of tensors as JSON."""
    content = {**tensors_data.to_dict(), "smooth_quant": smooth_quant}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(content, cls=CalibrationCacheEncoder))


def load_tensors_data(path: str | Path) -> TensorsData:
    """Return statistics of tensors from JSON."""
    try:
        return TensorsData.from_dict(json.loads(Path(path).read_text()))
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} holds no statistics of tensors: {error!r}.") from error


class CalibraterBase:
    """Learns ranges of tensors from samples, in one pass on compiled code; memory does not grow with the samples.

    Args:
        model_path: The path of the model, or the model.
        op_types_to_calibrate: Operators whose inputs and outputs are observed; None for all.
        augmented_model_path: The file of :meth:`augment_graph`; nothing else needs the file.
        symmetric: If True, ranges are symmetric around 0.
        use_external_data_format: Accepted for compatibility: files above 2 GB always have external data.
        per_channel: Only False: a tensor has one range.
    """

    method = CalibrationMethod.MinMax
    ranges = "minmax"

    def __init__(
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        per_channel: bool = False,
    ) -> None:
        if per_channel:
            raise OptionError("activations have one range each.", where="per_channel")
        self._source = load(model_path if isinstance(model_path, onnx.ModelProto) else str(model_path))
        infer_shapes(self._source)
        self.model = to_proto(self._source)
        self.op_types_to_calibrate = op_types_to_calibrate
        self.augmented_model_path = augmented_model_path
        self.symmetric = symmetric
        self.use_external_data_format = use_external_data_format
        self.augment_model = self.model
        self.execution_providers = ["CPUExecutionProvider"]
        self._observation: Observation | None = None

    def set_execution_providers(self, execution_providers: Sequence[str] = ("CPUExecutionProvider",)) -> None:
        """Note the providers; compiled code observes."""
        self.execution_providers = list(execution_providers)

    def create_inference_session(self) -> None:
        """Do nothing: the first samples compile the model."""

    def select_tensors_to_calibrate(self, model: onnx.ModelProto) -> tuple[set[str], dict[str, Any]]:
        """Return the names of the float tensors that are observed, and the descriptions of values by name."""
        infos = {info.name: info for info in (*model.graph.value_info, *model.graph.output, *model.graph.input)}
        constants = {tensor.name for tensor in model.graph.initializer}
        names: set[str] = set()
        for node in model.graph.node:
            if not self.op_types_to_calibrate or node.op_type in self.op_types_to_calibrate:
                names.update(name for name in (*node.input, *node.output) if name in infos)
        floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
        chosen = {name for name in names - constants if infos[name].type.tensor_type.elem_type in floats}
        return chosen, infos

    def augment_graph(self) -> None:
        """Write the model with all observed tensors as outputs."""
        model = load(self.model)
        chosen, _ = self.select_tensors_to_calibrate(self.model)
        present = {value.name for value in model.graph.outputs}
        values = {value.name: value for node in model.graph for value in node.outputs}
        model.graph.outputs.extend(values[name] for name in sorted(chosen & values.keys()) if name not in present)
        save(model, self.augmented_model_path)
        self.augment_model = to_proto(model)

    def get_augment_model(self) -> onnx.ModelProto:
        """Return the model with all observed tensors as outputs."""
        return self.augment_model

    def collect_data(self, data_reader: CalibrationDataReader) -> None:
        """Observe the samples of a reader.

        Raises:
            ValueError: There is no sample.
        """
        if self._observation is None:
            names = sorted(self.select_tensors_to_calibrate(self.model)[0])
            self._observation = Observation(self._source, names, ())
        before = self._observation.count
        self._observation.add(samples_of(data_reader))
        if self._observation.count == before:
            raise ValueError("No data is collected.")

    def clear_collected_data(self) -> None:
        """Forget the samples."""
        self._observation = None

    def compute_data(self) -> TensorsData:
        """Return the ranges of the tensors.

        Raises:
            ValueError: No sample was observed.
        """
        if self._observation is None or not self._observation.count:
            raise ValueError("No data is collected.")
        seen = {name: one for name, one in self._observation.statistics.items() if one.count}
        return TensorsData(self.method, {name: self._data(one) for name, one in seen.items()})

    def _data(self, seen: Statistics) -> TensorData:
        low, high = seen.interval(self.ranges)
        if self.symmetric:
            low, high = -max(-low, high), max(-low, high)
        return TensorData(lowest=np.array(low, np.float32), highest=np.array(high, np.float32))


class MinMaxCalibrater(CalibraterBase):
    """Ranges from extremes, or from running means of extremes."""

    def __init__(
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        moving_average: bool = False,
        averaging_constant: float = 0.01,
        max_intermediate_outputs: int | None = None,
        per_channel: bool = False,
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, symmetric, use_external_data_format, per_channel
        )
        if moving_average and not 0 < averaging_constant < 1:
            raise ValueError("Invalid averaging constant, which should not be < 0 or > 1.")
        self.moving_average = moving_average
        self.averaging_constant = averaging_constant
        self.max_intermediate_outputs = max_intermediate_outputs
        self.ranges = "moving-average" if moving_average else "minmax"


class HistogramCalibrater(CalibraterBase):
    """Ranges from histograms.

    Args:
        model_path: The path of the model, or the model.
        op_types_to_calibrate: Operators whose inputs and outputs are observed; None for all.
        augmented_model_path: See :class:`CalibraterBase`.
        use_external_data_format: See :class:`CalibraterBase`.
        method: ``"entropy"``, ``"percentile"`` or ``"distribution"``.
        symmetric: If True, ranges are symmetric around 0.
        num_bins: Accepted for compatibility: the number of bins follows from the range.
        num_quantized_bins: Accepted for compatibility.
        percentile: Only 99.999 or 99.99: the share of elements inside of the range is 99.99 %.
        scenario: Accepted for compatibility.
    """

    def __init__(
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 2048,
        percentile: float = 99.999,
        scenario: str = "same",
    ) -> None:
        super().__init__(model_path, op_types_to_calibrate, augmented_model_path, symmetric, use_external_data_format)
        if not 0 <= percentile <= 100:
            raise ValueError("Invalid percentile. Must be in range 0 <= percentile <= 100.")
        names = {"entropy": "entropy", "percentile": "percentile", "distribution": "minmax"}
        if method not in names:
            raise ValueError(f"expected one of {', '.join(names)}, got {method!r}.")
        self.method = CalibrationMethod[method.capitalize()]
        self.ranges = names[method]
        self.num_bins, self.num_quantized_bins, self.percentile = num_bins, num_quantized_bins, percentile


class EntropyCalibrater(HistogramCalibrater):
    """Ranges of the least divergence."""

    def __init__(
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "entropy",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 128,
        percentile: float = 99.999,
        scenario: str = "same",
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format, method, symmetric,
            num_bins, num_quantized_bins, percentile, scenario,
        )  # fmt: skip


class PercentileCalibrater(HistogramCalibrater):
    """Ranges that leave out a share of the elements."""


class DistributionCalibrater(HistogramCalibrater):
    """Ranges for 8-bit floats: the extremes."""

    def __init__(
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "distribution",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 2048,
        percentile: float = 99.999,
        scenario: str = "same",
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format, method, symmetric,
            num_bins, num_quantized_bins, percentile, scenario,
        )  # fmt: skip


def create_calibrator(
    model: str | Path | onnx.ModelProto,
    op_types_to_calibrate: Sequence[str] | None = None,
    augmented_model_path: str = "augmented_model.onnx",
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    use_external_data_format: bool = False,
    providers: Sequence[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> CalibraterBase:
    """Return a calibrater of a method.

    Raises:
        ValueError: Unknown method.
    """
    options = dict(extra_options or {})
    classes: dict[CalibrationMethod, type[CalibraterBase]] = {
        CalibrationMethod.MinMax: MinMaxCalibrater,
        CalibrationMethod.Entropy: EntropyCalibrater,
        CalibrationMethod.Percentile: PercentileCalibrater,
        CalibrationMethod.Distribution: DistributionCalibrater,
    }
    if calibrate_method not in classes:
        raise ValueError(f"Unsupported calibration method {calibrate_method}")
    calibrater = classes[calibrate_method](
        model, op_types_to_calibrate, augmented_model_path, use_external_data_format=use_external_data_format, **options
    )
    if providers:
        calibrater.set_execution_providers(providers)
    return calibrater
