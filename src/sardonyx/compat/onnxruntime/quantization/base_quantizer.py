"""State and arithmetic that quantizers of both formats share, by ONNX Runtime's names."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from sardonyx.compat.onnxruntime.quantization.arithmetic import (
    FLOAT8_TYPES,
    ONNX_TYPE_TO_NP_TYPE,
    TENSOR_NAME_QUANT_SUFFIX,
    compute_scale_zp,
    compute_scale_zp_float8,
    get_qmin_qmax_for_qType,
    snap_zero_point_to_uint8,
    tensor_proto_to_array,
)
from sardonyx.compat.onnxruntime.quantization.calibration_data import TensorData
from sardonyx.compat.onnxruntime.quantization.onnx_model import ONNXModel
from sardonyx.compat.onnxruntime.quantization.quant_utils import (
    DEQUANT_OP_NAME,
    QUANT_OP_NAME,
    get_opset_version,
    model_has_infer_metadata,
    save_and_reload_model_with_shape_infer,
)
from sardonyx.compat.onnxruntime.quantization.tensor_quant_overrides import TensorQuantOverridesHelper

_LOG = logging.getLogger(__name__)
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_SIGNED = (TensorProto.INT4, TensorProto.INT8, TensorProto.INT16, TensorProto.FLOAT8E4M3FN)
_BIAS_MARGIN = 1.0001
"""The factor by which the scale of a bias exceeds the least one that int32 can hold."""


class QuantizationParams:
    """The scale, the zero point and the type of a tensor, by name."""

    def __init__(self, **data: Any) -> None:
        self.data: dict[str, Any] = {}
        for name, value in data.items():
            if name == "axis":
                if value is not None and not isinstance(value, int):
                    raise TypeError(f"Axis value must be an int or None, not {type(value)}.")
            elif not isinstance(value, (int, str, np.ndarray, float)):
                raise TypeError(f"Values must be numpy arrays, int, float, str not {type(value)} for k={name!r}.")
            if name == "scale" and value.dtype not in (np.float32, np.float16):
                raise ValueError(f"scale must a float32 or float16 numpy element but is {value.dtype}.")
            self.data[name] = value

    def get(self, key: str, default_value: Any = None) -> Any:
        """Return a value, or a default."""
        return self.data.get(key, default_value)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.data[key] = value

    def __len__(self) -> int:
        return len(self.data)


class BaseQuantizer:
    """A model with the options of its quantization.

    Args:
        model: The model; quantization changes it.
        per_channel: If True, weights have a scale for each output channel.
        reduce_range: If True, weights use half of the integers.
        weight_qType: The type of weights.
        activation_qType: The type of activations.
        tensors_range: The ranges of activations; None for ranges of each call.
        nodes_to_quantize: The names of the nodes to quantize; empty for all.
        nodes_to_exclude: The names of nodes that stay in float.
        op_types_to_quantize: The operators to quantize.
        extra_options: Further options by name.

    Raises:
        TypeError: A range has another type than ``TensorData``.
        ValueError: An override of a tensor is invalid.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        per_channel: bool,
        reduce_range: bool,
        weight_qType: Any,
        activation_qType: Any,
        tensors_range: Any,
        nodes_to_quantize: Any,
        nodes_to_exclude: Any,
        op_types_to_quantize: Any,
        extra_options: dict[str, Any] | None = None,
    ) -> None:
        if not model_has_infer_metadata(model):
            model = save_and_reload_model_with_shape_infer(model)
        self.extra_options: dict[str, Any] = extra_options or {}
        self._adopt(model)
        self.opset_version = get_opset_version(model)
        self.per_channel, self.reduce_range = per_channel, reduce_range
        self.enable_subgraph_quantization = bool(self.extra_options.get("EnableSubgraph"))
        self.force_quantize_no_input_check = bool(self.extra_options.get("ForceQuantizeNoInputCheck"))
        self.parent: Any = None
        self._is_weight_symmetric: bool | None = self.extra_options.get("WeightSymmetric")
        self.is_activation_symmetric = bool(self.extra_options.get("ActivationSymmetric", False))
        self.is_activation_restricted_asymmetric = self.extra_options.get("ActivationRestrictedAsymmetric", False)
        self.min_real_range = self.extra_options.get("MinimumRealRange")
        self.activation_qType: int = getattr(activation_qType, "tensor_type", activation_qType)
        self.weight_qType: int = getattr(weight_qType, "tensor_type", weight_qType)
        if tensors_range is not None and any(not isinstance(one, TensorData) for one in tensors_range.values()):
            types = sorted({type(one).__name__ for one in tensors_range.values()})
            raise TypeError(f"tensors_range contains unexpected types {types}, not TensorData.")
        self.tensors_range = tensors_range
        self.nodes_to_quantize, self.nodes_to_exclude = nodes_to_quantize, nodes_to_exclude
        self.op_types_to_quantize = op_types_to_quantize
        self.tensor_quant_overrides = TensorQuantOverridesHelper(self.extra_options.get("TensorQuantOverrides") or {})
        self.initializers = {tensor.name: tensor for tensor in self.model.initializer()}
        is_valid, problem = self.tensor_quant_overrides.is_valid(
            self.initializers, self.value_infos.keys(), activation_qType
        )
        if not is_valid:
            raise ValueError(problem)
        self.tensor_quant_override_qtypes = self.tensor_quant_overrides.get_quant_types()

    def _adopt(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.value_infos = {info.name: info for info in (*graph.value_info, *graph.output, *graph.input)}
        self.model = ONNXModel(model)

    def is_weight_symmetric(self, weight_quant_type: int) -> bool:
        """Return True if 0 is the middle of the integers of a type of weights."""
        return weight_quant_type in _SIGNED if self._is_weight_symmetric is None else self._is_weight_symmetric

    def quantize_model(self) -> onnx.ModelProto:
        """Quantize the model and return it."""
        raise NotImplementedError

    def is_input_a_initializer(self, input_name: str) -> bool:
        """Return True if a tensor is an initializer."""
        return self.model.get_initializer(input_name) is not None

    def is_per_channel(self) -> bool:
        """Return True if weights have a scale for each channel."""
        return self.per_channel

    def is_valid_quantize_weight(self, weight_name: str) -> bool:
        """Return True if a tensor is a float initializer, of an outer graph too where bodies are quantized."""
        weight = self.model.get_initializer(weight_name)
        if weight is not None:
            return weight.data_type in _FLOATS
        if not self.enable_subgraph_quantization or self.parent is None:
            return False
        return bool(self.parent.is_valid_quantize_weight(weight_name))

    def should_quantize_node(self, node: onnx.NodeProto) -> bool:
        """Return True if the options choose a node."""
        return (
            (not self.nodes_to_quantize or node.name in self.nodes_to_quantize)
            and node.op_type in self.op_types_to_quantize
            and node.op_type not in (DEQUANT_OP_NAME, QUANT_OP_NAME)
            and not (self.nodes_to_exclude and node.name in self.nodes_to_exclude)
        )

    def adjust_tensor_ranges(self) -> None:
        """Let the input of Relu and Clip have the range of its output, and the output of Softmax that from 0 to 1."""
        if self.tensors_range is None:
            return
        readers = self.model.input_name_to_nodes()
        for node in self.model.nodes():
            if node.op_type not in ("Clip", "Relu", "Softmax") or not self.should_quantize_node(node):
                continue
            source, result = node.input[0], node.output[0]
            if node.op_type == "Softmax":
                if result in self.tensors_range:
                    self.tensors_range[result] = TensorData(lowest=np.float32(0.0), highest=np.float32(1.0))
            elif len(readers[source]) == 1 and source in self.tensors_range and result in self.tensors_range:
                self.tensors_range[source] = self.tensors_range[result]

    def params_of_range(self, tensor_data: TensorData, override: Mapping[str, Any]) -> QuantizationParams:
        """Return the scale and the zero point of an activation for its range and its override."""
        kind = override["quant_type"].tensor_type if "quant_type" in override else self.activation_qType
        if "scale" in override and "zero_point" in override:
            zero_point = np.asarray(override["zero_point"], ONNX_TYPE_TO_NP_TYPE[kind])
            scale = np.asarray(override["scale"])
            scale = scale if scale.dtype in (np.float32, np.float16) else scale.astype(np.float32)
        elif kind in FLOAT8_TYPES:
            zero_point, scale = compute_scale_zp_float8(kind, tensor_data.avg_std[1])
        else:
            low, high = (
                np.asarray(override.get(name, limit), dtype=limit.dtype)
                for name, limit in zip(("rmin", "rmax"), tensor_data.range_value, strict=True)
            )
            symmetric = override.get("symmetric", self.is_activation_symmetric)
            qmin, qmax = get_qmin_qmax_for_qType(kind, override.get("reduce_range", False), symmetric)
            zero_point, scale = compute_scale_zp(low, high, qmin, qmax, symmetric, self.min_real_range)
            if self.is_activation_restricted_asymmetric and kind == TensorProto.UINT8 and not symmetric:
                zero_point, scale = snap_zero_point_to_uint8(low, high, qmin, qmax, self.min_real_range)
        return QuantizationParams(zero_point=zero_point.squeeze(), scale=scale.squeeze(), quant_type=kind)

    def adjust_weight_scale(
        self, input_scale: np.ndarray, weight_scale: np.ndarray, weight_name: str, bias: np.ndarray
    ) -> np.ndarray | None:
        """Return the scales of a weight with which int32 holds the bias; None if the present ones do.

        Source: quantization_utils.cc of TensorFlow Lite, ``EnsureBiasScaleCompatible``.
        """
        if not weight_scale.size:
            return None
        magnitude = np.abs(bias.astype(np.float64)).reshape(-1)
        if not weight_scale.ndim:
            magnitude = magnitude.max(initial=0.0)
        least = _BIAS_MARGIN * 2.0 * magnitude / (np.float64(np.iinfo(np.int32).max) * 2)
        scale = input_scale.astype(np.float64).reshape(()) * weight_scale.astype(np.float64)
        is_small = (scale < least) & (scale > 0)
        if not np.any(is_small):
            return None
        _LOG.info("The scale of weight %s grows so that 32-bit integers hold the bias.", weight_name)
        enlarged = np.where(
            is_small, weight_scale.astype(np.float64) * (least / np.where(is_small, scale, 1)), weight_scale
        )
        rounded = enlarged.astype(weight_scale.dtype)
        if weight_scale.dtype == np.float16:  # Rounding down would let the bias overflow again.
            rounded = np.where(rounded < enlarged, np.nextafter(rounded, np.float16(np.inf)), rounded)
        return np.asarray(np.where(is_small, rounded, weight_scale), dtype=weight_scale.dtype)

    def quantize_bias_static_impl(
        self,
        bias_name: str,
        input_scale: np.ndarray,
        weight_scale: np.ndarray,
        beta: float = 1.0,
        bias_scale_dtype: Any = None,
    ) -> tuple[str, str, str, np.ndarray, str, int]:
        """Add the initializers of a quantized bias.

        Returns:
            The names of the integers, the scale and the zero point, the scale, the operator that gives the float bias,
            and its type.
        """
        tensor = self.model.get_initializer(bias_name)
        if tensor is None:
            raise ValueError(f"expected the bias {bias_name} as an initializer.")
        bias = tensor_proto_to_array(tensor)
        if beta == 0:
            bias, beta = np.zeros_like(bias), 1.0
        name = bias_name + TENSOR_NAME_QUANT_SUFFIX
        names = name, name + "_scale", name + "_zero_point"
        if self.weight_qType in FLOAT8_TYPES:
            # Products of 8-bit floats add a bias in float.
            scale = np.ones(1, np.float32)
            tensors = [
                onnx.numpy_helper.from_array(bias.astype(np.float32), name),
                onnx.numpy_helper.from_array(scale, names[1]),
                onnx.helper.make_tensor(names[2], self.weight_qType, [1], [0.0]),
            ]
            self.model.initializer_extend(tensors)
            return *names, scale, "Cast", int(tensor.data_type)
        dtype = bias.dtype if bias_scale_dtype is None else np.dtype(bias_scale_dtype)
        wide = input_scale * weight_scale * beta
        limits = np.iinfo(np.int32)
        if bias_scale_dtype is not None:
            least = np.abs(bias.astype(np.float64)) / limits.max
            least = least.max(initial=0.0) if wide.size == 1 else least
            wide = np.maximum(wide, least * _BIAS_MARGIN).astype(dtype)
            wide = np.where(wide == 0, np.ones_like(wide), wide)
        with np.errstate(divide="ignore", invalid="ignore"):
            integers = np.round(np.asarray(bias, np.float64) / np.asarray(wide, np.float64))
        if np.any(integers < limits.min) or np.any(integers > limits.max):
            _LOG.warning("Quantized bias `%s` exceeds the range of a int32. The bias scale is too small.", bias_name)
        clipped = np.nan_to_num(np.clip(integers, limits.min, limits.max)).astype(np.int32).reshape(tensor.dims)
        scale = np.asarray(wide, dtype=dtype).reshape(-1)
        zero_point = np.zeros(scale.shape if scale.size > 1 else (), np.int32)
        arrays: list[tuple[np.ndarray, str]] = list(zip((clipped, scale, zero_point), names, strict=True))
        self.model.initializer_extend([onnx.numpy_helper.from_array(array, one) for array, one in arrays])
        return *names, scale, DEQUANT_OP_NAME, self.weight_qType
