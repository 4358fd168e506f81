"""Quantization with pairs of QuantizeLinear and DequantizeLinear, by ONNX Runtime's names and conventions."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from sardonyx.compat.onnxruntime.quantization.arithmetic import (
    FLOAT8_TYPES,
    ONNX_TYPE_TO_NP_TYPE,
    compute_data_quant_params,
    compute_scale_zp_blocked,
    normalize_axis,
    quantize_onnx_initializer,
    tensor_proto_to_array,
)
from sardonyx.compat.onnxruntime.quantization.base_quantizer import BaseQuantizer, QuantizationParams
from sardonyx.compat.onnxruntime.quantization.qdq_nodes import QDQNodes
from sardonyx.compat.onnxruntime.quantization.quant_utils import (
    DEQUANT_OP_NAME,
    QuantizedValue,
    QuantizedValueType,
    __producer__,
    __version__,
    add_dequant_output_suffix,
    add_dequant_suffix,
    ms_domain,
)
from sardonyx.compat.onnxruntime.quantization.registry import CreateQDQQuantizer

_LOG = logging.getLogger(__name__)
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_SINCE_21 = (TensorProto.UINT16, TensorProto.INT16, TensorProto.UINT4, TensorProto.INT4)

T = TypeVar("T")


class QDQQuantTensorType(Enum):
    """The role of a tensor."""

    ACTIVATION = 0
    WEIGHT = 1
    BIAS = 2


@dataclass
class QDQQuantParamProvider:
    """The input of a node whose scale another tensor shares."""

    input_name: str
    node_name: str


@dataclass
class QDQTensorQuantInfo:
    """A tensor to quantize."""

    tensor_type: QDQQuantTensorType = QDQQuantTensorType.ACTIVATION
    quant_para_provider: QDQQuantParamProvider | None = None
    axis: int | None = None
    data_type: int | None = None

    @property
    def is_shared(self) -> bool:
        """Return True if the tensor has the scale of another one."""
        return self.quant_para_provider is not None


@dataclass
class QDQBiasQuantInfo:
    """A bias to quantize."""

    node_name: str
    input_name: str
    weight_name: str
    beta: float


@dataclass
class _Converted(Generic[T]):
    """Data of a tensor as its producer stores it, and as some of its readers do."""

    original: T
    converted: T | None = None
    converted_recv_nodes: set[str] | None = None

    def get_for_consumer(self, consumer_node_name: str) -> T:
        """Return the data for a reader."""
        readers = self.converted_recv_nodes
        is_converted = self.converted is not None and (readers is None or consumer_node_name in readers)
        return self.converted if is_converted and self.converted is not None else self.original


class QDQTensorQuantParams(_Converted[QuantizationParams]):
    """The scales and zero points of a tensor."""


class QDQTensorQuantizedValue(_Converted[QuantizedValue]):
    """The names of a quantized tensor."""


class QDQQuantizer(QDQNodes, BaseQuantizer):
    """Quantizes a model with pairs of QuantizeLinear and DequantizeLinear; see :class:`BaseQuantizer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = self.extra_options
        self.tensors_to_quantize: dict[str, QDQTensorQuantInfo] = {}
        self.bias_to_quantize: dict[str, QDQBiasQuantInfo] = {}
        self.nodes_to_remove: list[NodeProto] = []
        self.op_types_to_exclude_output_quantization = options.get("OpTypesToExcludeOutputQuantization") or []
        self.add_qdq_pair_to_weight = options.get("AddQDQPairToWeight", False)
        self.quantize_bias = options.get("QuantizeBias", True)
        self.dedicated_qdq_pair = options.get("DedicatedQDQPair", False)
        self.tensor_to_its_receiving_nodes: dict[str, list[NodeProto]] = {}
        self.tensor_to_producing_dq: dict[str, NodeProto] = {}
        self.qdq_op_type_per_channel_support_to_axis = options.get("QDQOpTypePerChannelSupportToAxis") or {}
        self.qdq_op_domain = ms_domain if options.get("UseQDQContribOps") else None
        self.qdq_keep_removable_activations = options.get("QDQKeepRemovableActivations", False)
        self.qdq_disable_weight_adjust_for_int32_bias = options.get("QDQDisableWeightAdjustForInt32Bias", False)
        self.block_size: int = options.get("BlockSize", 0)
        types = {self.activation_qType, self.weight_qType}
        types |= {kind.tensor_type for kind in self.tensor_quant_override_qtypes}
        if self.opset_version < 21 and not self.qdq_op_domain and types & set(_SINCE_21):
            _LOG.warning(
                "ONNX QuantizeLinear and DequantizeLinear operators do not support 16-bit/4-bit integer quantization "
                "types prior to opset 21. The nodes have the domain '%s'.", ms_domain,
            )  # fmt: skip
            self.qdq_op_domain = ms_domain
        self.quantization_params = self.calc_graph_quant_params()
        self.initializer_quant_params: dict[str, QuantizationParams] = {}
        self.quantized_value_map: dict[str, QDQTensorQuantizedValue] = {}

    def _get_tensor_type(self, tensor_name: str) -> int | None:
        """Return the element type of an initializer or a value, or None."""
        weight = self.model.get_initializer(tensor_name)
        if weight is not None:
            return int(weight.data_type)
        info = self.value_infos.get(tensor_name)
        return int(info.type.tensor_type.elem_type) if info is not None and info.type.HasField("tensor_type") else None

    def _is_tensor_quantizable(self, tensor_name: str) -> bool:
        if not self.is_input_a_initializer(tensor_name) and tensor_name not in self.value_infos:
            _LOG.warning("failed to infer the type of tensor: %s. The tensor is not quantized.", tensor_name)
            return False
        return self._get_tensor_type(tensor_name) in _FLOATS

    def _mark(
        self, name: str, provider: QDQQuantParamProvider | None = None,
        role: QDQQuantTensorType = QDQQuantTensorType.ACTIVATION,
    ) -> None:  # fmt: skip
        if self._is_tensor_quantizable(name) and (provider is not None or name not in self.tensors_to_quantize):
            info = QDQTensorQuantInfo(role, provider, data_type=self._get_tensor_type(name))
            self.tensors_to_quantize[name] = info

    def quantize_activation_tensor(self, tensor_name: str) -> None:
        """Mark an activation for quantization."""
        self._mark(tensor_name)

    def quantize_output_same_as_input(self, output_name: str, input_name: str, node_name: str) -> None:
        """Mark an output for quantization with the scale of an input."""
        self._mark(output_name, QDQQuantParamProvider(input_name, node_name))

    def quantize_weight_tensor(self, tensor_name: str) -> None:
        """Mark a weight for quantization with one scale."""
        self._mark(tensor_name, role=QDQQuantTensorType.WEIGHT)

    def quantize_weight_tensor_per_channel(self, tensor_name: str, axis: int) -> None:
        """Mark a weight for quantization with a scale for each index of an axis."""
        weight = self.model.get_initializer(tensor_name)
        if weight is None:
            _LOG.warning("only support per-channel quantization on weight. Tensor: %s is not quantized.", tensor_name)
        elif weight.data_type in _FLOATS:
            info = QDQTensorQuantInfo(QDQQuantTensorType.WEIGHT, axis=axis, data_type=weight.data_type)
            self.tensors_to_quantize[tensor_name] = info

    def quantize_bias_tensor(
        self, node_name: str, bias_name: str, input_name: str, weight_name: str, beta: float = 1.0
    ) -> None:
        """Mark a bias for quantization with the product of two scales; a bias of several nodes is duplicated."""
        if self.tensor_quant_overrides.get(bias_name):
            is_per_channel, axis = self.is_tensor_per_channel(bias_name, 0)
            if is_per_channel and axis is not None:
                self.quantize_weight_tensor_per_channel(bias_name, axis)
            else:
                self.quantize_weight_tensor(bias_name)
            return
        bias = self.model.get_initializer(bias_name)
        if bias is None:
            _LOG.warning("Expected bias '%s' to be an initializer", bias_name)
        elif bias.data_type in _FLOATS:
            name = bias_name
            if bias_name in self.bias_to_quantize:
                copy = TensorProto()
                copy.CopyFrom(bias)
                name = copy.name = f"{bias_name}{self.model.get_largest_initializer_name_suffix(bias_name) + 1}"
                self.model.add_initializer(copy)
                self.model.replace_input_of_nodes(bias_name, name, {node_name})
            self.bias_to_quantize[name] = QDQBiasQuantInfo(node_name, input_name, weight_name, beta)

    def remove_node(self, node: NodeProto) -> None:
        """Mark a node for removal."""
        self.nodes_to_remove.append(node)

    def remove_nodes(self) -> None:
        """Remove the marked nodes."""
        self.model.remove_nodes(self.nodes_to_remove)

    def quantize_model(self) -> onnx.ModelProto:
        """Quantize the model and return it."""
        for node in self.model.nodes():
            if self.should_quantize_node(node):
                CreateQDQQuantizer(self, node).quantize()
                for name in node.input:
                    self.tensor_to_its_receiving_nodes.setdefault(name, []).append(node)
            if node.op_type == DEQUANT_OP_NAME:
                self.tensor_to_producing_dq.update(dict.fromkeys(node.output, node))
        self.initializer_quant_params = self._calc_initializer_quant_params()
        self._adjust_weight_quant_params_for_bias_tensors()
        self._quantize_normal_tensors()
        self._quantize_sharing_param_tensors()
        if self.quantize_bias:
            self._quantize_bias_tensors()
        self.remove_nodes()
        if not self.add_qdq_pair_to_weight:
            self.model.clean_initializers()
        self.model.model.producer_name, self.model.model.producer_version = __producer__, __version__
        if self.qdq_op_domain == ms_domain:
            self.model.set_opset_import(ms_domain, 1)
        return self.model.model

    def try_replacing_upstream_output(self, upstream_output_name: str, output_name: str) -> bool:
        """Let the node ahead of a removed one compute its output, if nothing else reads the tensor between."""
        params = self.quantization_params
        if (
            output_name not in params or params[output_name].converted is not None
            or upstream_output_name not in params or params[upstream_output_name].converted is not None
            or len(self.model.input_name_to_nodes()[upstream_output_name]) != 1
            or self.model.is_graph_output(upstream_output_name) or self.model.is_graph_input(upstream_output_name)
        ):  # fmt: skip
            return False
        self.model.replace_output_of_all_nodes(upstream_output_name, output_name)
        self.tensors_to_quantize.pop(upstream_output_name, None)
        return True

    def is_tensor_quantized(self, tensor_name: str) -> bool:
        """Return True if a tensor is marked for quantization."""
        return tensor_name in self.tensors_to_quantize or tensor_name in self.bias_to_quantize

    def is_tensor_per_channel(
        self, tensor_name: str, default_axis: int, op_type: str | None = None
    ) -> tuple[bool, int | None]:
        """Return True with the axis if a weight has a scale for each channel, else False with None."""
        weight = self.initializers.get(tensor_name)
        overrides = self.tensor_quant_overrides
        has_axis = overrides.has_per_channel_overrides(tensor_name)
        if weight is None or overrides.has_per_tensor_overrides(tensor_name) or not (self.per_channel or has_axis):
            return False, None
        axis = (
            default_axis if op_type is None else self.qdq_op_type_per_channel_support_to_axis.get(op_type, default_axis)
        )
        axis = overrides[tensor_name][0]["axis"] if has_axis else axis
        is_inside, axis = normalize_axis(axis, len(weight.dims))
        if not is_inside:
            _LOG.warning("Axis %d is out of range for weight '%s' of rank %d", axis, tensor_name, len(weight.dims))
            return False, None
        return True, axis

    def calc_quant_params(self, tensor_data: Any, quant_overrides: dict[str, Any]) -> QuantizationParams:
        """Return the scale and the zero point of an activation for its range and its override."""
        return self.params_of_range(tensor_data, quant_overrides)

    def calc_graph_quant_params(self) -> dict[str, QDQTensorQuantParams]:
        """Return the scales and zero points of the activations that have a range."""
        if self.tensors_range is None:
            return {}
        self.adjust_tensor_ranges()
        params = {}
        for name in self.tensors_range.keys():  # noqa: SIM118
            override = self.tensor_quant_overrides.get_per_tensor_overrides(name, default_val={})
            params[name] = QDQTensorQuantParams(self.calc_quant_params(self.tensors_range[name], override))
            if "convert" in override:
                params[name].converted = self.calc_quant_params(self.tensors_range[name], override["convert"])
                params[name].converted_recv_nodes = override["convert"].get("recv_nodes")
        return params

    def _calc_initializer_quant_params(self) -> dict[str, QuantizationParams]:
        return {
            name: self._params_of_initializer(name, info, tensor_proto_to_array(tensor))
            for name, info in self.tensors_to_quantize.items()
            if (tensor := self.model.get_initializer(name)) is not None
        }

    def _params_of_initializer(self, name: str, info: QDQTensorQuantInfo, data: np.ndarray) -> QuantizationParams:
        is_weight = info.tensor_type is QDQQuantTensorType.WEIGHT
        overrides = self.tensor_quant_overrides.get(name) or [{}]
        first = overrides[0]
        kind = self.weight_qType if is_weight else self.activation_qType
        kind = first["quant_type"].tensor_type if "quant_type" in first else kind
        axis = first.get("axis", info.axis)
        blocks = self.block_size if is_weight and self.block_size > 0 else 0
        if axis is not None or blocks:
            is_inside, axis = normalize_axis(0 if axis is None else axis, data.ndim)
            if not is_inside:
                raise ValueError(f"Weight {name} has an axis {axis} that is out-of-bounds for rank {data.ndim}")
        if self.tensor_quant_overrides.overrides_scale_zp(name):
            pairs = overrides if "axis" in first else [first]
            zero_point = np.array([one["zero_point"] for one in pairs], dtype=ONNX_TYPE_TO_NP_TYPE[kind])
            scale = np.array([one["scale"] for one in pairs], dtype=data.dtype)
            if "axis" not in first:
                return QuantizationParams(zero_point=zero_point.reshape(()), scale=scale.reshape(()), quant_type=kind)
            return QuantizationParams(zero_point=zero_point, scale=scale, quant_type=kind, axis=axis)
        # Operators on integers need the same zero point in all channels.
        by_default = axis is not None and not blocks
        by_default = by_default or (self.is_weight_symmetric(kind) if is_weight else self.is_activation_symmetric)
        symmetric = first.get("symmetric", by_default)
        if blocks and axis is not None:
            zero_point, scale = compute_scale_zp_blocked(data, kind, axis, blocks, symmetric)
            return QuantizationParams(zero_point=zero_point, scale=scale, quant_type=kind, axis=axis, block_size=blocks)
        channels = [data.reshape(-1)] if axis is None else np.moveaxis(data, axis, 0).reshape(data.shape[axis], -1)
        results = []
        for index, channel in enumerate(channels):
            own = overrides[index] if index < len(overrides) else {}
            results.append(
                compute_data_quant_params(
                    channel, kind, symmetric, first.get("reduce_range", self.reduce_range), self.min_real_range,
                    own.get("rmin"), own.get("rmax"),
                )
            )  # fmt: skip
        zero_point, scale = (np.asarray([one[i] for one in results]) for i in range(2))
        if axis is None:
            zero_point, scale = zero_point.reshape(()), scale.reshape(())
        return QuantizationParams(zero_point=zero_point, scale=scale, quant_type=kind, axis=axis)

    def _adjust_weight_quant_params_for_bias_tensors(self) -> None:
        """Let the scales of weights grow where 32-bit integers cannot hold the bias."""
        if self.qdq_disable_weight_adjust_for_int32_bias:
            return
        for bias_name, info in self.bias_to_quantize.items():
            source, weight = (
                self.tensors_to_quantize.get(info.input_name),
                self.initializer_quant_params.get(info.weight_name),
            )
            params = self.quantization_params.get(info.input_name)
            if source is None or weight is None or params is None:
                continue
            if weight["quant_type"] not in (TensorProto.INT8, TensorProto.INT16) or weight["zero_point"].any():
                continue
            scale = np.asarray(
                params.get_for_consumer(info.node_name)["scale"],
                onnx.helper.tensor_dtype_to_np_dtype(source.data_type or TensorProto.FLOAT),
            )
            bias = self.model.get_initializer(bias_name)
            if bias is not None and weight["scale"].ndim < 2:
                grown = self.adjust_weight_scale(scale, weight["scale"], info.weight_name, tensor_proto_to_array(bias))
                weight["scale"] = weight["scale"] if grown is None else grown

    def _quantize_normal_tensors(self) -> None:
        for name, info in list(self.tensors_to_quantize.items()):
            if name in self.quantized_value_map or info.is_shared:
                continue
            if (weight := self.model.get_initializer(name)) is not None:
                self._add_qdq_nodes_for_initializer(weight)
            elif name not in self.tensor_to_producing_dq:
                if name not in self.quantization_params:
                    raise ValueError(
                        f"Quantization parameters are not specified for param {name}. "
                        "Static quantization needs ranges of the inputs and outputs of nodes to be quantized."
                    )
                params = self.quantization_params[name]
                names = self._make_scale_zp_initializers(name, params.original)
                self._add_activation(name, names, params, info.data_type)
            del self.tensors_to_quantize[name]

    def _quantize_sharing_param_tensors(self) -> None:
        while self.tensors_to_quantize:
            ready = {
                name: provider
                for name, info in self.tensors_to_quantize.items()
                if (provider := info.quant_para_provider) and provider.input_name in self.quantized_value_map
            }
            if not ready:
                names = ", ".join(self.tensors_to_quantize)
                raise ValueError(f"tensors that are to share the scale of a tensor without scale: {names}.")
            for name, provider in ready.items():
                del self.tensors_to_quantize[name]
                value = self.quantized_value_map[provider.input_name].get_for_consumer(provider.node_name)
                if self.is_input_a_initializer(name):
                    raise ValueError("Quantization parameter shared mode is not supported for weight yet")
                if name in self.tensor_to_producing_dq:
                    raise ValueError(f"Quantization parameter sharing is invalid for the quantized tensor {name}.")
                params = self.quantization_params.get(name)
                self._add_activation(name, (value.scale_name, value.zp_name), params, None)

    def _add_activation(
        self, name: str, scale_zp: tuple[str, str], params: QDQTensorQuantParams | None, data_type: int | None
    ) -> None:
        """Add the nodes of an activation, with those of a conversion if its readers need one."""
        if params is None or params.converted is None:
            value = self.add_pair(name, *scale_zp, data_type)
            self.quantized_value_map[name] = QDQTensorQuantizedValue(value)
            return
        converted = self._make_scale_zp_initializers(name, params.converted, "_convert")
        values = self.add_conversion(name, scale_zp, converted, params.converted_recv_nodes, data_type)
        self.quantized_value_map[name] = QDQTensorQuantizedValue(*values)

    def _add_qdq_nodes_for_initializer(self, weight: TensorProto) -> None:
        """Quantize an initializer, or write a pair of nodes after its float values."""
        name, params = weight.name, self.initializer_quant_params[weight.name]
        names = self._make_scale_zp_initializers(name, params)
        axis, block_size = params.get("axis"), params.get("block_size", 0)
        result = add_dequant_output_suffix(name)
        self.model.replace_input_of_all_nodes(name, result)
        quantized: str | None = None
        if self.add_qdq_pair_to_weight:
            self.create_pair(name, result, name, *names, axis=axis, block_size=block_size)
        else:
            tensor = quantize_onnx_initializer(
                weight, params["quant_type"], params["zero_point"], params["scale"], axis, block_size=block_size
            )
            quantized = tensor.name
            self.model.add_initializer(tensor)
            self.create_dequantize(tensor.name, result, add_dequant_suffix(name), *names, axis, block_size)
        value = QuantizedValue(name, quantized, *names, QuantizedValueType.Initializer, axis=axis)
        self.quantized_value_map[name] = QDQTensorQuantizedValue(value)

    def _make_scale_zp_initializers(
        self, param_name: str, quant_params: QuantizationParams, init_name_suffix: str = ""
    ) -> tuple[str, str]:
        """Add the initializers of a scale and a zero point, and return their names."""
        zero_point, scale = quant_params["zero_point"], quant_params["scale"]
        names = f"{param_name}_scale{init_name_suffix}", f"{param_name}_zero_point{init_name_suffix}"
        values = zero_point.astype(np.float32 if quant_params["quant_type"] in FLOAT8_TYPES else np.int64)
        integers = onnx.helper.make_tensor(
            names[1], quant_params["quant_type"], zero_point.shape, values.reshape(-1).tolist()
        )
        kind = TensorProto.FLOAT if scale.dtype == np.float32 else TensorProto.FLOAT16
        self.model.add_initializer(integers)
        self.model.add_initializer(onnx.helper.make_tensor(names[0], kind, scale.shape, scale.reshape(-1).tolist()))
        return names

    def _scale_of(self, tensor_name: str, reader: str) -> np.ndarray:
        """Return the scale of a tensor for a reader.

        Raises:
            ValueError: The tensor is not quantized.
        """
        name = None
        if tensor_name in self.quantized_value_map:
            name = self.quantized_value_map[tensor_name].get_for_consumer(reader).scale_name
        elif tensor_name in self.tensor_to_producing_dq:
            name = self.tensor_to_producing_dq[tensor_name].input[1]
        tensor = None if name is None else self.model.get_initializer(name)
        if tensor is None:
            raise ValueError(f"Unable to get valid quantization scale for input '{tensor_name}' of {reader}.")
        return tensor_proto_to_array(tensor)

    def quantize_bias_static(self, bias_name: str, bias_info: QDQBiasQuantInfo) -> str:
        """Add the initializers of a bias, and return the name of its integers."""
        if bias_name in self.quantized_value_map:
            return str(self.quantized_value_map[bias_name].original.q_name)
        weight_scale = self._scale_of(bias_info.weight_name, bias_info.node_name)
        input_scale = self._scale_of(bias_info.input_name, bias_info.node_name)
        bias = self.model.get_initializer(bias_name)
        dtype = None
        if bias is not None and bias.data_type == TensorProto.FLOAT16 and self.weight_qType not in FLOAT8_TYPES:
            half = np.asarray(input_scale * weight_scale * bias_info.beta, np.float16).astype(np.float64)
            magnitude = np.abs(tensor_proto_to_array(bias).astype(np.float64))
            if np.any(half == 0) or np.any(magnitude > np.iinfo(np.int32).max * half):
                # A scale in single precision, and a cast, keep a bias that half precision would lose.
                dtype = np.float32
                input_scale, weight_scale = input_scale.astype(dtype), weight_scale.astype(dtype)
        name, scale_name, zero_point_name, scale, node_type, node_type_of_result = self.quantize_bias_static_impl(
            bias_name, input_scale, weight_scale, bias_info.beta, dtype
        )
        value = QuantizedValue(
            bias_name, name, scale_name, zero_point_name, QuantizedValueType.Initializer,
            0 if scale.size > 1 else None, node_type=node_type, node_qtype=node_type_of_result,
        )  # fmt: skip
        self.quantized_value_map[bias_name] = QDQTensorQuantizedValue(value)
        return name

    def _quantize_bias_tensors(self) -> None:
        """Replace each bias by its integers and the node that gives it under its own name."""
        for name, info in self.bias_to_quantize.items():
            bias = self.model.get_initializer(name)
            if name in self.quantized_value_map or bias is None:
                continue
            self.quantize_bias_static(name, info)
            kind = bias.data_type
            self.model.remove_initializer(bias)
            value = self.quantized_value_map[name].original
            if value.node_type == "Cast":
                node = onnx.helper.make_node(
                    "Cast", [str(value.q_name)], [name], name=add_dequant_suffix(name), to=kind
                )
                self.model.add_node(node)
                continue
            scale, result = self.model.get_initializer(value.scale_name), name
            if kind == TensorProto.FLOAT16 and scale is not None and scale.data_type == TensorProto.FLOAT:
                result = add_dequant_output_suffix(name)
                self.model.add_node(onnx.helper.make_node("Cast", [result], [name], name=name + "_Cast", to=kind))
            self.create_dequantize(
                str(value.q_name), result, add_dequant_suffix(name), value.scale_name, value.zp_name, value.axis
            )
