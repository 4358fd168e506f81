"""Static and dynamic quantization by ONNX Runtime's names."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx.compat.onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod, samples_of
from sardonyx.compat.onnxruntime.quantization.quant_utils import QuantFormat as QuantFormat
from sardonyx.compat.onnxruntime.quantization.quant_utils import QuantizationMode as QuantizationMode
from sardonyx.compat.onnxruntime.quantization.quant_utils import QuantType as QuantType
from sardonyx.compress.quantization.methods.table import METHODS
from sardonyx.compress.quantization.quantize import Draft, Mode
from sardonyx.compress.quantization.scheme import Scheme
from sardonyx.compress.quantization.targets import Form, quantization_target
from sardonyx.compress.samples import read_samples, split_samples
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model import load, save
from sardonyx.rewrite import facts
from sardonyx.rewrite.names import node_label

ModelInput = str | os.PathLike[str] | onnx.ModelProto

_CALIBRATIONS = {
    CalibrationMethod.MinMax: "minmax",
    CalibrationMethod.Entropy: "entropy",
    CalibrationMethod.Percentile: "percentile",
    CalibrationMethod.Distribution: "minmax",
}

WITHOUT_EFFECT = frozenset(
    {
        "extra.Sigmoid.nnapi", "EnableSubgraph", "ForceQuantizeNoInputCheck", "MatMulConstBOnly", "DedicatedQDQPair",
        "OpTypesToExcludeOutputQuantization", "QDQOpTypePerChannelSupportToAxis", "CalibMovingAverageConstant",
        "CalibMaxIntermediateOutputs", "SmoothQuantAlpha", "SmoothQuantFolding", "QDQKeepRemovableActivations",
        "QDQDisableWeightAdjustForInt32Bias", "CalibStridedMinMax", "CalibPercentile", "NumBins", "NumQuantizedBins",
        "scenario", "dual_feed",
    }
)  # fmt: skip
"""Keys of ``extra_options`` that do not apply to Sardonyx's placement and calibration; other values warn."""

APPLIED = frozenset(
    {"ActivationSymmetric", "WeightSymmetric", "CalibMovingAverage", "CalibTensorRangeSymmetric", "SmoothQuant"}
)
"""Keys of ``extra_options`` that apply."""


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
    """Return the options of static quantization of a whole model."""
    excluded: Sequence[str] = () if nodes_to_exclude is None or callable(nodes_to_exclude) else nodes_to_exclude
    if callable(nodes_to_exclude):
        proto = model_input if isinstance(model_input, onnx.ModelProto) else onnx.load(
            model_input, load_external_data=False
        )  # fmt: skip
        excluded = [node.name for node in proto.graph.node if nodes_to_exclude(proto, node)]
    options: dict[str, Any] = {
        "ActivationSymmetric": activation_symmetric,
        **({} if weight_symmetric is None else {"WeightSymmetric": weight_symmetric}),
        **({"QDQKeepRemovableActivations": True} if keep_removable_activations else {}),
        **({} if min_real_range is None else {"MinimumRealRange": min_real_range}),
        **({"TensorQuantOverrides": tensor_quant_overrides} if tensor_quant_overrides else {}),
        **({"CalibTensorRangeSymmetric": True} if (calibrate_args or {}).get("symmetric") else {}),
        **({"CalibMovingAverage": True} if (calibrate_args or {}).get("moving_average") else {}),
        **(extra_options or {}),
    }
    return StaticQuantConfig(
        calibration_data_reader, calibrate_method, QuantFormat.QDQ, activation_type, weight_type,
        op_types_to_quantize, None, excluded, per_channel, reduce_range, False, calibration_providers, options,
    )  # fmt: skip


def check_static_quant_arguments(quant_format: QuantFormat, activation_type: QuantType, weight_type: QuantType) -> None:
    """Refuse types that operators on integers do not have.

    Raises:
        ValueError: The types do not fit the format.
    """
    eight = (QuantType.QInt8, QuantType.QUInt8)
    if quant_format == QuantFormat.QOperator and not (activation_type in eight and weight_type in eight):
        raise ValueError(
            f"QuantFormat.QOperator needs 8-bit integers, got {activation_type} activations and {weight_type} weights."
        )
    if (activation_type == QuantType.QFLOAT8E4M3FN) != (weight_type == QuantType.QFLOAT8E4M3FN):
        raise ValueError("8-bit floats need the same type of activations and weights.")


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

    Raises:
        ValueError: The types do not fit the format, or there is no reader.
        OptionError: An option has no equivalent.
    """
    check_static_quant_arguments(quant_format, activation_type, weight_type)
    if calibration_cache_path is not None:
        raise OptionError("ranges are learned anew in each call.", where="calibration_cache_path")
    if calibration_data_reader is None:
        raise ValueError("expected a calibration_data_reader, got None.")
    options = _options(extra_options)
    scheme = Scheme(
        **_weights(weight_type, options), granularity="channel" if per_channel else "tensor", reduced=reduce_range,
        activations=_name(activation_type),
        symmetric_activations=bool(
            options.get("ActivationSymmetric") or options.get("CalibTensorRangeSymmetric")
            or activation_type == QuantType.QFLOAT8E4M3FN
        ),
    )  # fmt: skip
    calibration = "moving-average" if options.get("CalibMovingAverage") else _CALIBRATIONS[calibrate_method]
    method = "smoothquant" if options.get("SmoothQuant") else "nearest"
    source = load(_loadable(model_input))
    form: Form = "qoperator" if quant_format == QuantFormat.QOperator else "qdq"
    chosen = _excluded(source, op_types_to_quantize, nodes_to_quantize, nodes_to_exclude)
    samples = read_samples(samples_of(calibration_data_reader), source)
    draft = _draft(source, scheme, "static", chosen, form, method)
    if draft is None:
        save(source, model_output)
        return
    draft.learn(split_samples(samples, 0))
    _write(draft, calibration, model_output)


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
    """Quantize weights; products quantize their input in each call; and write the model.

    Raises:
        OptionError: An option has no equivalent.
    """
    options = _options(extra_options)
    scheme = Scheme(
        **_weights(weight_type, options), granularity="channel" if per_channel else "tensor", reduced=reduce_range
    )
    source = load(_loadable(model_input))
    chosen = _excluded(source, op_types_to_quantize, nodes_to_quantize, nodes_to_exclude)
    draft = _draft(source, scheme, "dynamic" if scheme.weights == "int8" else "weights", chosen, "qdq", "nearest")
    if draft is None:
        save(source, model_output)
        return
    draft.learn(None)
    _write(draft, "", model_output)


def quantize(model_input: ModelInput, model_output: str | os.PathLike[str], quant_config: QuantConfig) -> None:
    """Quantize a model as its configuration states, and write the model.

    Raises:
        TypeError: The configuration is neither static nor dynamic.
    """
    if not isinstance(quant_config, (StaticQuantConfig, DynamicQuantConfig)):
        raise TypeError(f"expected StaticQuantConfig or DynamicQuantConfig, got {type(quant_config).__name__}.")
    common: dict[str, Any] = {
        name: getattr(quant_config, name)
        for name in (
            "op_types_to_quantize", "nodes_to_quantize", "nodes_to_exclude", "per_channel", "reduce_range",
            "weight_type", "use_external_data_format",
        )
    }  # fmt: skip
    if isinstance(quant_config, StaticQuantConfig):
        quantize_static(
            model_input, model_output, quant_config.calibration_data_reader,
            calibrate_method=quant_config.calibrate_method, quant_format=quant_config.quant_format,
            activation_type=quant_config.activation_type, calibration_providers=quant_config.calibration_providers,
            extra_options=quant_config.extra_options, **common,
        )  # fmt: skip
    else:
        quantize_dynamic(model_input, model_output, extra_options=quant_config.extra_options, **common)


def _loadable(model: ModelInput) -> Any:
    return model if isinstance(model, onnx.ModelProto) else Path(model)


def _name(kind: QuantType) -> str:
    return "float8e4m3" if kind == QuantType.QFLOAT8E4M3FN else kind.name[1:].lower()


def _weights(kind: QuantType, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a scheme for a type of weights."""
    name = _name(kind)
    symmetric = bool(options.get("WeightSymmetric", not name.startswith("u")))
    return {"weights": name.removeprefix("u"), "symmetric": symmetric or name.startswith("float")}


def _options(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options that apply.

    Raises:
        OptionError: An option has no equivalent.
    """
    options = dict(extra or {})
    for name, value in options.items():
        if name in WITHOUT_EFFECT:
            warnings.warn(f"extra_options: {name} has no effect here.", stacklevel=3)
        elif name not in APPLIED and value not in (None, False, {}, []):
            raise OptionError(f"{name}={value!r} has no equivalent.", where="extra_options")
    return {name: value for name, value in options.items() if name in APPLIED}


def _excluded(
    model: ir.Model, op_types: Sequence[str] | None, nodes: Sequence[str] | None, excluded: Sequence[str] | None
) -> list[str]:
    """Return the labels of nodes that stay in float."""
    all_nodes = [node for graph in facts.graphs_of(model.graph) for node in graph]
    chosen = []
    for node in all_nodes:
        label = node_label(node)
        if (op_types and node.op_type not in op_types) or (nodes and label not in nodes) or label in (excluded or ()):
            chosen.append(label)
    return chosen


def _draft(
    model: ir.Model, scheme: Scheme, mode: Mode, excluded: Collection[str], form: Form, method: str
) -> Draft | None:
    """Return the quantization of a model as it is; None, with a warning, if no node can be quantized."""
    target = quantization_target("onnxruntime" if form == "qoperator" else "portable")
    try:
        return Draft(model, scheme, mode, METHODS[method], excluded, form=form, target=target, optimized=False)
    except UnsupportedError as error:
        warnings.warn(f"the model stays in float: {error}", stacklevel=3)
        return None


def _write(draft: Draft, calibration: str, path: str | os.PathLike[str]) -> None:
    result = draft.write(calibration)
    for note in draft.notes:
        if note.startswith("The operator set was raised"):
            warnings.warn(note, stacklevel=3)
    save(result, path)
