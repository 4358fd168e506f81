"""Static and dynamic quantization by ONNX Runtime's names and conventions."""

from __future__ import annotations

import copy
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from sardonyx.compat.onnxruntime.quantization.calibrate import (
    CalibraterBase,
    CalibrationDataReader,
    CalibrationMethod,
    TensorsData,
    create_calibrator,
    load_tensors_data,
    samples_of,
    save_tensors_data,
)
from sardonyx.compat.onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from sardonyx.compat.onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from sardonyx.compat.onnxruntime.quantization.quant_utils import (
    MODEL_SIZE_THRESHOLD,
    QuantFormat,
    QuantizationMode,
    QuantType,
    get_opset_version,
    load_model_with_shape_infer,
    model_has_pre_process_metadata,
    save_and_reload_model_with_shape_infer,
    update_opset_version,
)
from sardonyx.compat.onnxruntime.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry
from sardonyx.compat.onnxruntime.quantization.tensor_quant_overrides import TensorQuantOverridesHelper

ModelInput = str | os.PathLike[str] | onnx.ModelProto

_LOG = logging.getLogger(__name__)

_CALIBRATION_OPTIONS = {
    "CalibTensorRangeSymmetric": "symmetric",
    "CalibMovingAverage": "moving_average",
    "CalibMovingAverageConstant": "averaging_constant",
    "CalibMaxIntermediateOutputs": "max_intermediate_outputs",
    "CalibPercentile": "percentile",
}
"""Arguments of calibraters by the key of ``extra_options``."""

OPTIONS = {
    **dict.fromkeys(_CALIBRATION_OPTIONS, "calibration"),
    **dict.fromkeys(
        ("ActivationSymmetric", "WeightSymmetric", "ActivationRestrictedAsymmetric", "MinimumRealRange"), "ranges"
    ),
    "TensorQuantOverrides": "type, scale, zero point, range or conversion of single tensors",
    **dict.fromkeys(
        ("ForceQuantizeNoInputCheck", "MatMulConstBOnly", "EnableSubgraph", "DefaultTensorType", "extra.Sigmoid.nnapi"),
        "choice of nodes",
    ),
    **dict.fromkeys(
        (
            "AddQDQPairToWeight", "QuantizeBias", "OpTypesToExcludeOutputQuantization", "DedicatedQDQPair",
            "QDQOpTypePerChannelSupportToAxis", "UseQDQContribOps", "QDQKeepRemovableActivations",
            "QDQDisableWeightAdjustForInt32Bias", "BlockSize",
        ),
        "pairs of nodes",
    ),
    "CalibStridedMinMax": "calibration, some samples at a time",
    "SmoothQuant": "rescales channels by Sardonyx's estimate of the error, which needs neither of the next two",
}  # fmt: skip
"""Keys of ``extra_options`` and their subjects."""

WITHOUT_EFFECT = frozenset({"SmoothQuantAlpha", "SmoothQuantFolding"})
"""Keys of ``extra_options`` that warn, with no effect."""


class QuantConfig:
    """Options that static and dynamic quantization have in common."""

    def __init__(
        self,
        activation_type: QuantType = QuantType.QUInt8,
        weight_type: QuantType = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
    ) -> None:
        self.activation_type, self.weight_type = activation_type, weight_type
        self.op_types_to_quantize = list(op_types_to_quantize or [])
        self.nodes_to_quantize = list(nodes_to_quantize or [])
        self.nodes_to_exclude = list(nodes_to_exclude or [])
        self.per_channel, self.reduce_range = per_channel, reduce_range
        self.use_external_data_format = use_external_data_format


class StaticQuantConfig(QuantConfig):
    """Options of static quantization."""

    def __init__(
        self,
        calibration_data_reader: CalibrationDataReader,
        calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
        quant_format: QuantFormat = QuantFormat.QDQ,
        activation_type: QuantType = QuantType.QInt8,
        weight_type: QuantType = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
        calibration_providers: Sequence[str] | None = None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            activation_type, weight_type, op_types_to_quantize, nodes_to_quantize, nodes_to_exclude, per_channel,
            reduce_range, use_external_data_format,
        )  # fmt: skip
        self.calibration_data_reader, self.calibrate_method = calibration_data_reader, calibrate_method
        self.quant_format, self.calibration_providers = quant_format, calibration_providers
        self.extra_options = dict(extra_options or {})


class DynamicQuantConfig(QuantConfig):
    """Options of dynamic quantization."""

    def __init__(
        self,
        weight_type: QuantType = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            weight_type=weight_type, op_types_to_quantize=op_types_to_quantize, nodes_to_quantize=nodes_to_quantize,
            nodes_to_exclude=nodes_to_exclude, per_channel=per_channel, reduce_range=reduce_range,
            use_external_data_format=use_external_data_format,
        )  # fmt: skip
        self.extra_options = dict(extra_options or {})


def get_qdq_config(
    model_input: ModelInput,
    calibration_data_reader: CalibrationDataReader,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    calibrate_args: Mapping[str, Any] | None = None,
    activation_type: QuantType = QuantType.QUInt8,
    weight_type: QuantType = QuantType.QInt8,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    keep_removable_activations: bool = False,
    min_real_range: float | None = None,
    tensor_quant_overrides: Mapping[str, Any] | None = None,
    calibration_providers: Sequence[str] | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | Callable[[onnx.ModelProto, onnx.NodeProto], bool] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> StaticQuantConfig:
    """Return the options of static quantization of all nodes of a model, or of those of some operators."""
    if isinstance(model_input, onnx.ModelProto):
        model = model_input
    else:
        model = onnx.load(str(model_input), load_external_data=False)
    overrides = TensorQuantOverridesHelper(copy.deepcopy(dict(tensor_quant_overrides or {})))
    excluded = set() if nodes_to_exclude is None or callable(nodes_to_exclude) else set(nodes_to_exclude)
    op_types = set()
    for node in model.graph.node:
        if (op_types_to_quantize and node.op_type not in op_types_to_quantize) or node.name in excluded:
            continue
        if callable(nodes_to_exclude) and nodes_to_exclude(model, node):
            excluded.add(node.name)
        else:
            op_types.add(node.op_type)
    options: dict[str, Any] = {
        "MinimumRealRange": min_real_range,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric,
        "ForceQuantizeNoInputCheck": True,
        "TensorQuantOverrides": overrides.get_dict(),
    }
    arguments = calibrate_args or {}
    options |= {key: arguments[name] for key, name in _CALIBRATION_OPTIONS.items() if name in arguments}
    types = {activation_type, weight_type, *overrides.get_quant_types()}
    is_raised = bool(types & {QuantType.QInt16, QuantType.QUInt16})
    if get_opset_version(model) < 21 and not is_raised and types & {QuantType.QInt4, QuantType.QUInt4}:
        options["UseQDQContribOps"] = True
    has_external_data = any(map(onnx.external_data_helper.uses_external_data, model.graph.initializer))
    return StaticQuantConfig(
        calibration_data_reader, calibrate_method, QuantFormat.QDQ, activation_type, weight_type,
        list(op_types_to_quantize or op_types - {"Cast", "DequantizeLinear", "QuantizeLinear"}), None, list(excluded),
        per_channel, reduce_range, has_external_data or model.ByteSize() >= MODEL_SIZE_THRESHOLD,
        calibration_providers, {**options, **(extra_options or {})},
    )  # fmt: skip


def check_static_quant_arguments(quant_format: QuantFormat, activation_type: QuantType, weight_type: QuantType) -> None:
    """Refuse types that operators on integers do not have.

    Raises:
        ValueError: The types do not fit the format, or each other.
    """
    floats = [kind == QuantType.QFLOAT8E4M3FN for kind in (activation_type, weight_type)]
    types = f"activation_type={activation_type}, weight_type={weight_type}"
    if (activation_type, weight_type) == (QuantType.QInt8, QuantType.QUInt8) or floats[0] != floats[1]:
        raise ValueError(f"ONNXRuntime quantization doesn't support data format: {types}")
    is_wide = {activation_type, weight_type} & {QuantType.QInt16, QuantType.QUInt16}
    if is_wide and quant_format != QuantFormat.QDQ:
        raise ValueError(f"Only QuantFormat.QDQ supports 16-bit quantization types, got {types}.")


def quantize_static(
    model_input: ModelInput,
    model_output: str | os.PathLike[str],
    calibration_data_reader: CalibrationDataReader | None = None,
    quant_format: QuantFormat = QuantFormat.QDQ,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: QuantType = QuantType.QInt8,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    calibration_providers: Sequence[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
    calibration_cache_path: str | os.PathLike[str] | None = None,
) -> None:
    """Quantize weights and activations, with ranges learned from the samples of a reader, and write the model.

    Ranges are read from ``calibration_cache_path`` if the file exists, and written there otherwise.

    Raises:
        ValueError: The types do not fit the format, there is neither a reader nor a file of ranges, or an option is
            invalid.
    """
    if QuantType.QFLOAT8E4M3FN in (activation_type, weight_type) and calibrate_method != CalibrationMethod.Distribution:
        raise ValueError("Only Distribution calibration method is supported for float quantization.")
    options = dict(extra_options or {})
    check_static_quant_arguments(quant_format, activation_type, weight_type)
    op_types = list(op_types_to_quantize or {**QLinearOpsRegistry, **QDQRegistry})
    excluded = list(nodes_to_exclude or [])
    model = _with_shapes(model_input)
    _warn_of_options(options)
    if options.get("SmoothQuant"):
        if calibration_data_reader is None:
            raise ValueError("SmoothQuant needs a calibration_data_reader; a file of ranges holds no samples.")
        names = {node.name for node in model.graph.node}
        samples = list(samples_of(calibration_data_reader))
        calibration_data_reader = _List(samples)
        model = _smoothed(model, samples)
        excluded.extend(node.name for node in model.graph.node if node.name not in names)
    overrides, blocks = options.get("TensorQuantOverrides"), options.get("BlockSize", 0)
    model = update_opset_version(model, weight_type, activation_type, overrides, blocks)
    cache = None if calibration_cache_path is None else Path(calibration_cache_path)
    ranges = _stored_ranges(cache, calibrate_method, bool(options.get("SmoothQuant")))
    if ranges is None:
        if calibration_data_reader is None:
            raise ValueError("Either calibration_data_reader or an existing calibration_cache_path must be provided.")
        ranges = _learned_ranges(
            model, op_types, calibration_data_reader, calibrate_method, calibration_providers, options
        )
        if cache is not None:
            save_tensors_data(ranges, cache, smooth_quant=bool(options.get("SmoothQuant")))
    choice = (weight_type, activation_type, ranges, nodes_to_quantize or [], excluded, op_types, options)
    quantizer: ONNXQuantizer | QDQQuantizer
    if quant_format == QuantFormat.QOperator:
        quantizer = ONNXQuantizer(model, per_channel, reduce_range, QuantizationMode.QLinearOps, True, *choice)
    else:
        quantizer = QDQQuantizer(model, per_channel, reduce_range, *choice)
    quantizer.quantize_model()
    quantizer.model.save_model_to_file(model_output, use_external_data_format)


def _warn_of_options(options: Mapping[str, Any]) -> None:
    for name in sorted(options.keys() - OPTIONS.keys()):
        _LOG.warning("extra_options: %s has no effect here.", name)


def _with_shapes(model_input: ModelInput) -> onnx.ModelProto:
    """Return a copy of a model with inferred shapes, with the advice to prepare a model that is not marked."""
    if isinstance(model_input, onnx.ModelProto):
        model = save_and_reload_model_with_shape_infer(model_input)
    else:
        model = load_model_with_shape_infer(Path(model_input))
    if not model_has_pre_process_metadata(model):
        _LOG.warning("Please consider to run pre-processing before quantization: quant_pre_process.")
    return model


def _stored_ranges(path: Path | None, method: CalibrationMethod, is_smoothed: bool) -> TensorsData | None:
    """Return the ranges of a file; None if the file does not exist, or is of a model with other channels.

    Raises:
        ValueError: The path is no file, or the ranges are of another method.
    """
    if path is None or not path.exists():
        return None
    if not path.is_file():
        raise ValueError(f"calibration_cache_path is not a file: {path}")
    if bool(json.loads(path.read_text()).get("smooth_quant", False)) != is_smoothed:
        _LOG.warning("%s holds ranges of a model with another smooth_quant; they are learned anew.", path)
        return None
    ranges = load_tensors_data(path)
    if ranges.calibration_method != method:
        raise ValueError(
            f"Calibration cache at {path} was produced with {ranges.calibration_method}, but quantize_static was "
            f"called with calibrate_method={method}. Delete the cache or pass a matching calibrate_method."
        )
    return ranges


def _learned_ranges(
    model: onnx.ModelProto,
    op_types: Sequence[str],
    reader: CalibrationDataReader,
    method: CalibrationMethod,
    providers: Sequence[str] | None,
    options: Mapping[str, Any],
) -> TensorsData:
    settings = {name: options[key] for key, name in _CALIBRATION_OPTIONS.items() if key in options}
    calibrater: CalibraterBase = create_calibrator(model, op_types, None, method, False, providers, settings)
    stride = options.get("CalibStridedMinMax")
    if not stride:
        calibrater.collect_data(reader)
        return calibrater.compute_data()
    if len(reader) % stride:
        raise ValueError(f"Total data size ({len(reader)}) is not divisible by stride size ({stride}).")
    for start in range(0, len(reader), stride):
        reader.set_range(start_index=start, end_index=start + stride)
        calibrater.collect_data(reader)
    return calibrater.compute_data()


class _List(CalibrationDataReader):
    def __init__(self, samples: Sequence[Mapping[str, Any]]) -> None:
        self._samples, self._range = samples, range(len(samples))
        self._rest = iter(self._range)

    def get_next(self) -> Any:
        index = next(self._rest, None)
        return None if index is None else self._samples[index]

    def __len__(self) -> int:
        return len(self._samples)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._rest = iter(range(start_index, end_index))


def _smoothed(model: onnx.ModelProto, samples: Sequence[Mapping[str, Any]]) -> onnx.ModelProto:
    """Return a model in which large channels of activations are smaller, and the weights that read them larger."""
    from sardonyx.compress.quantization.methods.smoothing import smooth
    from sardonyx.compress.quantization.steps import Preview
    from sardonyx.compress.samples import read_samples
    from sardonyx.model import load, to_proto

    source = load(model)
    smooth(source, Preview(read_samples(samples, source)))
    return save_and_reload_model_with_shape_infer(to_proto(source))


def quantize_dynamic(
    model_input: ModelInput,
    model_output: str | os.PathLike[str],
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: Mapping[str, Any] | None = None,
) -> None:
    """Quantize weights, let products quantize their input in each call, and write the model."""
    options = {"MatMulConstBOnly": True, **(extra_options or {})}
    _warn_of_options(options)
    model = update_opset_version(_with_shapes(model_input), weight_type)
    quantizer = ONNXQuantizer(
        model, per_channel, reduce_range, QuantizationMode.IntegerOps, False, weight_type, QuantType.QUInt8, None,
        nodes_to_quantize or [], nodes_to_exclude or [], op_types_to_quantize or list(IntegerOpsRegistry), options,
    )  # fmt: skip
    quantizer.quantize_model()
    quantizer.model.save_model_to_file(model_output, use_external_data_format)


def quantize(model_input: ModelInput, model_output: str | os.PathLike[str], quant_config: Any) -> None:
    """Quantize a model as its configuration states, and write the model.

    Raises:
        TypeError: The configuration is neither static, nor dynamic, nor one of weights.
    """
    from sardonyx.compat.onnxruntime.quantization.matmul_nbits_quantizer import (
        MatMulNBitsQuantizer,
        WeightOnlyQuantConfig,
    )

    if isinstance(quant_config, WeightOnlyQuantConfig):
        quantizer = MatMulNBitsQuantizer(model_input, algo_config=quant_config)
        quantizer.process()
        quantizer.model.save_model_to_file(model_output, True)
        return
    if not isinstance(quant_config, (StaticQuantConfig, DynamicQuantConfig)):
        raise TypeError(
            "Invalid quantization config type, it must be either StaticQuantConfig, DynamicQuantConfig, or "
            f"WeightOnlyQuantConfig, got {type(quant_config).__name__}."
        )
    common: dict[str, Any] = {
        name: getattr(quant_config, name)
        for name in (
            "op_types_to_quantize", "nodes_to_quantize", "nodes_to_exclude", "per_channel", "reduce_range",
            "weight_type", "use_external_data_format", "extra_options",
        )
    }  # fmt: skip
    if isinstance(quant_config, StaticQuantConfig):
        quantize_static(
            model_input, model_output, quant_config.calibration_data_reader,
            calibrate_method=quant_config.calibrate_method, quant_format=quant_config.quant_format,
            activation_type=quant_config.activation_type, calibration_providers=quant_config.calibration_providers,
            **common,
        )  # fmt: skip
    else:
        quantize_dynamic(model_input, model_output, **common)
