"""Calibration by ONNX Runtime's names: readers of samples, calibraters, and ranges of tensors."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sardonyx.compat.onnxruntime.quantization.augmentation import with_extremes
from sardonyx.compat.onnxruntime.quantization.calibration_data import (
    CalibrationCacheEncoder as CalibrationCacheEncoder,
)
from sardonyx.compat.onnxruntime.quantization.calibration_data import CalibrationMethod as CalibrationMethod
from sardonyx.compat.onnxruntime.quantization.calibration_data import TensorData as TensorData
from sardonyx.compat.onnxruntime.quantization.calibration_data import TensorsData as TensorsData
from sardonyx.compat.onnxruntime.quantization.calibration_data import load_tensors_data as load_tensors_data
from sardonyx.compat.onnxruntime.quantization.calibration_data import save_tensors_data as save_tensors_data
from sardonyx.compat.onnxruntime.quantization.histograms import HistogramCollector as HistogramCollector
from sardonyx.compat.onnxruntime.quantization.histograms import entropy as entropy
from sardonyx.compat.onnxruntime.quantization.quant_utils import (
    load_model_with_shape_infer,
    save_and_reload_model_with_shape_infer,
)
from sardonyx.model import load
from sardonyx.runtime.session import Session

_MOST_HELD = 1 << 28
"""Bytes of samples that are held ahead of a histogram: a collection of fewer has the histogram of all at once."""


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
    """Yield the samples of a reader, until None or an empty one."""
    while sample := reader.get_next():
        yield sample


class CalibraterBase:
    """Learns ranges of tensors from samples, on compiled code.

    Args:
        model_path: The path of the model, or the model.
        op_types_to_calibrate: Operators whose inputs and outputs are observed; None for all.
        augmented_model_path: The file of :meth:`augment_graph`; nothing else needs the file.
        symmetric: If True, ranges are symmetric around 0.
        use_external_data_format: If True, that file has its tensors in another one.
        per_channel: If True, a tensor has a range for each index of axis 1.
    """

    def __init__(
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | None = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        per_channel: bool = False,
    ) -> None:
        if isinstance(model_path, onnx.ModelProto):
            self.model = save_and_reload_model_with_shape_infer(model_path)
        else:
            self.model = load_model_with_shape_infer(Path(model_path))
        self.op_types_to_calibrate = op_types_to_calibrate
        self.augmented_model_path = augmented_model_path
        self.symmetric, self.per_channel = symmetric, per_channel
        self.use_external_data_format = use_external_data_format
        self.augment_model: onnx.ModelProto | None = None
        self.infer_session: Session | None = None
        self.execution_providers = ["CPUExecutionProvider"]
        self._names: list[str] = []

    def set_execution_providers(self, execution_providers: Sequence[str] = ("CPUExecutionProvider",)) -> None:
        """Note the providers; compiled code observes."""
        self.execution_providers = list(execution_providers)

    def create_inference_session(self) -> None:
        """Compile the model with the observed tensors as outputs."""
        chosen = sorted(self.select_tensors_to_calibrate(self.model)[0])
        source = load(self.model)
        values = {value.name: value for node in source.graph for value in node.outputs}
        self._names = [name for name in chosen if name in values]
        source.graph.outputs[:] = [values[name] for name in self._names]
        self.infer_session = Session(source, compile="wait") if self._names else None

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
        """Write the model with all observed tensors as outputs, to ``augmented_model_path``."""
        augmented = onnx.ModelProto()
        augmented.CopyFrom(self.model)
        chosen, infos = self.select_tensors_to_calibrate(self.model)
        present = {value.name for value in augmented.graph.output}
        augmented.graph.output.extend(infos[name] for name in sorted(chosen) if name not in present)
        self._write_augmented(augmented)

    def _write_augmented(self, model: onnx.ModelProto) -> None:
        self.augment_model = model
        if self.augmented_model_path is not None:
            copy = onnx.ModelProto()
            copy.CopyFrom(model)  # Tensors that are written to another file leave the model.
            onnx.save(copy, self.augmented_model_path, save_as_external_data=self.use_external_data_format)

    def get_augment_model(self) -> onnx.ModelProto:
        """Return the model with the outputs that :meth:`augment_graph` adds; the model itself ahead of it."""
        return self.augment_model or self.model

    def collect_data(self, data_reader: CalibrationDataReader) -> None:
        """Observe the samples of a reader.

        Raises:
            ValueError: There is no sample.
        """
        if not self._names:
            self.create_inference_session()
        chosen = self.select_tensors_to_calibrate(self.model)[0]
        count = 0
        for sample in samples_of(data_reader):
            results = [] if self.infer_session is None else self.infer_session.run(None, sample)
            values = dict(zip(self._names, results, strict=True))
            values |= {name: np.asarray(array) for name, array in sample.items() if name in chosen}
            self._observe(values)
            count += 1
        if not count:
            raise ValueError("No data is collected.")
        self._end_of_samples()

    def _observe(self, values: Mapping[str, np.ndarray]) -> None:
        raise NotImplementedError

    def _end_of_samples(self) -> None:
        """Do nothing; for observations that hold back values."""

    def clear_collected_data(self) -> None:
        """Forget samples whose ranges are not computed; none are."""

    def compute_data(self) -> TensorsData:
        """Return the ranges of the tensors.

        Raises:
            ValueError: No sample was observed.
        """
        raise NotImplementedError


class MinMaxCalibrater(CalibraterBase):
    """Ranges from extremes, or from running means of extremes; memory does not grow with the samples."""

    def __init__(
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | None = "augmented_model.onnx",
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
        if moving_average and not 0 <= averaging_constant <= 1:
            raise ValueError("Invalid averaging constant, which should not be < 0 or > 1.")
        self.moving_average = moving_average
        self.averaging_constant = averaging_constant
        self.max_intermediate_outputs = max_intermediate_outputs
        self.calibrate_tensors_range: TensorsData | None = None
        self._current: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._counts: dict[str, int] = {}

    def augment_graph(self) -> None:
        """Write the model with the least and the greatest value of each observed tensor as outputs."""
        self._write_augmented(
            with_extremes(self.model, *self.select_tensors_to_calibrate(self.model), self.per_channel)
        )

    def _observe(self, values: Mapping[str, np.ndarray]) -> None:
        for name, value in values.items():
            array = np.asarray(value)
            if not array.size:
                continue
            if self.per_channel and array.ndim > 1:
                axes: Any = tuple(axis for axis in range(array.ndim) if axis != 1)
                low, high = np.nanmin(array, axis=axes), np.nanmax(array, axis=axes)
            else:
                low, high = np.nanmin(array).reshape(1), np.nanmax(array).reshape(1)
            if name in self._current:
                before_low, before_high = self._current[name]
                if self.moving_average:
                    low, high = before_low + low, before_high + high
                else:
                    low, high = np.fmin(before_low, low), np.fmax(before_high, high)
            self._current[name] = low, high
            self._counts[name] = self._counts.get(name, 0) + 1

    def _end_of_samples(self) -> None:
        ranges = {}
        for name, (low, high) in self._current.items():
            if self.moving_average:
                low, high = ((limit / self._counts[name]).astype(limit.dtype) for limit in (low, high))
            if self.symmetric:
                high = np.fmax(np.abs(low), np.abs(high))
                low = -high
            ranges[name] = low, high
        self._current, self._counts = {}, {}
        before = self.calibrate_tensors_range
        for name, (low, high) in ranges.items() if before is not None else ():
            if before is None or name not in before:
                continue
            old_low, old_high = before[name].range_value
            share = np.asarray(self.averaging_constant, low.dtype)
            if self.moving_average:
                ranges[name] = old_low + share * (low - old_low), old_high + share * (high - old_high)
            else:
                ranges[name] = np.fmin(old_low, low), np.fmax(old_high, high)
        present = {} if before is None else {name: before[name].range_value for name in before}
        self.calibrate_tensors_range = TensorsData(CalibrationMethod.MinMax, {**present, **ranges})

    def compute_data(self) -> TensorsData:
        """Return the ranges of the tensors.

        Raises:
            ValueError: No sample was observed.
        """
        if self.calibrate_tensors_range is None:
            raise ValueError("No data is collected.")
        return self.calibrate_tensors_range


class HistogramCalibrater(CalibraterBase):
    """Ranges from histograms.

    Args:
        model_path: The path of the model, or the model.
        op_types_to_calibrate: Operators whose inputs and outputs are observed; None for all.
        augmented_model_path: See :class:`CalibraterBase`.
        use_external_data_format: See :class:`CalibraterBase`.
        method: ``"entropy"``, ``"percentile"`` or ``"distribution"``.
        symmetric: If True, ranges are symmetric around 0.
        num_bins: See :class:`HistogramCollector`.
        num_quantized_bins: See :class:`HistogramCollector`.
        percentile: See :class:`HistogramCollector`.
        scenario: See :class:`HistogramCollector`.
    """

    def __init__(
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | None = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 2048,
        percentile: float = 99.999,
        scenario: str = "same",
    ) -> None:
        super().__init__(model_path, op_types_to_calibrate, augmented_model_path, symmetric, use_external_data_format)
        self.method, self.num_bins, self.num_quantized_bins = method, num_bins, num_quantized_bins
        self.percentile, self.scenario = percentile, scenario
        self.collector: HistogramCollector | None = None
        self._held: dict[str, list[np.ndarray]] = {}
        self._held_bytes = 0

    def _observe(self, values: Mapping[str, np.ndarray]) -> None:
        # The edges of a histogram follow from the first values that it gets, so that these are as many as fit.
        for name, value in values.items():
            array = np.array(value)
            self._held.setdefault(name, []).append(array)
            self._held_bytes += array.nbytes
        if self._held_bytes > _MOST_HELD:
            self._end_of_samples()

    def _end_of_samples(self) -> None:
        if self.collector is None:
            self.collector = HistogramCollector(
                self.method, self.symmetric, self.num_bins, self.num_quantized_bins, self.percentile, self.scenario
            )
        self.collector.collect(self._held)
        self.clear_collected_data()

    def clear_collected_data(self) -> None:
        """Forget the samples that are not in histograms yet."""
        self._held, self._held_bytes = {}, 0

    def compute_data(self) -> TensorsData:
        """Return the ranges of the tensors.

        Raises:
            ValueError: No sample was observed.
        """
        if self.collector is None:
            raise ValueError("No collector created and can't generate calibration data.")
        results = self.collector.compute_collection_result()
        data = {name: TensorData(**one) if isinstance(one, dict) else one for name, one in results.items()}
        return TensorsData(CalibrationMethod[self.method.capitalize()], data)


class EntropyCalibrater(HistogramCalibrater):
    """Ranges of the least divergence."""

    def __init__(
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | None = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "entropy",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 128,
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format, method, symmetric,
            num_bins, num_quantized_bins,
        )  # fmt: skip


class PercentileCalibrater(HistogramCalibrater):
    """Ranges that leave out a share of the elements."""

    def __init__(
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | None = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 2048,
        percentile: float = 99.999,
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format, method, symmetric,
            num_bins, percentile=percentile,
        )  # fmt: skip


class DistributionCalibrater(HistogramCalibrater):
    """Statistics for 8-bit floats."""

    def __init__(
        self,
        model_path: str | Path | onnx.ModelProto,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | None = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "distribution",
        num_bins: int = 128,
        scenario: str = "same",
    ) -> None:
        super().__init__(
            model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format, method,
            num_bins=num_bins, scenario=scenario,
        )  # fmt: skip


_CLASSES: dict[CalibrationMethod, tuple[type[CalibraterBase], dict[str, Any]]] = {
    CalibrationMethod.MinMax: (
        MinMaxCalibrater,
        {
            "symmetric": False, "moving_average": False, "averaging_constant": 0.01, "max_intermediate_outputs": None,
            "per_channel": False,
        },
    ),
    CalibrationMethod.Entropy: (EntropyCalibrater, {"symmetric": False, "num_bins": 128, "num_quantized_bins": 128}),
    CalibrationMethod.Percentile: (
        PercentileCalibrater, {"symmetric": True, "num_bins": 2048, "percentile": 99.999}
    ),
    CalibrationMethod.Distribution: (DistributionCalibrater, {"num_bins": 2048, "scenario": "same"}),
}  # fmt: skip
"""Classes of calibraters, with the options that ``create_calibrator`` passes on and their defaults."""


def create_calibrator(
    model: str | Path | onnx.ModelProto,
    op_types_to_calibrate: Sequence[str] | None = None,
    augmented_model_path: str | None = "augmented_model.onnx",
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    use_external_data_format: bool = False,
    providers: Sequence[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> Any:
    """Return a calibrater of a method, ready for samples; options of other methods are ignored.

    Raises:
        ValueError: Unknown method.
    """
    if calibrate_method not in _CLASSES:
        raise ValueError(f"Unsupported calibration method {calibrate_method}")
    make, defaults = _CLASSES[calibrate_method]
    options = {name: (extra_options or {}).get(name, default) for name, default in defaults.items()}
    calibrater = make(
        model, op_types_to_calibrate, augmented_model_path, use_external_data_format=use_external_data_format, **options
    )
    if providers:
        calibrater.set_execution_providers(providers)
    if augmented_model_path is not None:
        calibrater.augment_graph()
    calibrater.create_inference_session()
    return calibrater
