"""Quantization with operators on integers, by ONNX Runtime's names and conventions."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from sardonyx.compat.onnxruntime.quantization.arithmetic import (
    FLOAT8_TYPES,
    ONNX_TYPE_TO_NP_TYPE,
    TENSOR_NAME_QUANT_SUFFIX,
    initializer_of,
    normalize_axis,
    quantize_along,
    quantize_data,
    quantize_nparray,
    tensor_proto_to_array,
)
from sardonyx.compat.onnxruntime.quantization.base_quantizer import BaseQuantizer, QuantizationParams
from sardonyx.compat.onnxruntime.quantization.dynamic_ranges import range_nodes
from sardonyx.compat.onnxruntime.quantization.quant_utils import (
    QuantizationMode,
    QuantizedValue,
    QuantizedValueType,
    __producer__,
    __version__,
    add_infer_metadata,
    attribute_to_kwarg,
    find_by_name,
    ms_domain,
    save_and_reload_model_with_shape_infer,
)
from sardonyx.compat.onnxruntime.quantization.registry import CreateOpQuantizer

_LOG = logging.getLogger(__name__)
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_BODY_PRODUCER = "onnx-quantizer"

Quantized = tuple[Any, Any, Any, Any]
"""Names of integers, zero points and scales, with the nodes that compute them; four None without a range."""


class ONNXQuantizer(BaseQuantizer):
    """Quantizes a model with operators on integers.

    Args:
        model: The model; quantization changes it.
        per_channel: See :class:`BaseQuantizer`.
        reduce_range: See :class:`BaseQuantizer`.
        mode: The kind of operators.
        static: If True, activations have the ranges of `tensors_range`.
        *args: See :class:`BaseQuantizer`, from ``weight_qType`` on.
        **kwargs: See :class:`BaseQuantizer`.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        per_channel: bool,
        reduce_range: bool,
        mode: QuantizationMode,
        static: bool,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, per_channel, reduce_range, *args, **kwargs)
        if not static:
            overrides = copy.deepcopy(self.tensor_quant_overrides.overrides)
            self.tensor_quant_overrides.overrides = overrides  # The caller's stay as they are.
            for name, source in self.model.replace_gemm_with_matmul().items():
                if source in overrides:
                    overrides[name] = [
                        {**one, "axis": 1 - one["axis"] % 2} if "axis" in one else dict(one)
                        for one in overrides[source]
                    ]
            self._adopt(save_and_reload_model_with_shape_infer(self.model.model))
        if mode not in QuantizationMode:
            raise ValueError(f"unsupported quantization mode {mode}")
        self.mode, self.static = mode, static
        self.fuse_dynamic_quant = self.opset_version > 10
        self.q_matmul_const_b_only = bool(self.extra_options.get("MatMulConstBOnly"))
        self.new_nodes: list[NodeProto] = []
        self.graph_scope = "/"
        graph = self.model.graph()
        values = (*(value.name for value in (*graph.output, *graph.input)), *(o for n in graph.node for o in n.output))
        self.tensor_names = dict.fromkeys(values, 1)
        self.quantization_params = self.calculate_quantization_params()
        self.quantized_value_map: dict[str, QuantizedValue] = {}
        self.generated_value_names = self.model.get_non_initializer_inputs()

    def quantize_subgraph(self, subgraph: onnx.GraphProto, graph_key: str) -> onnx.GraphProto:
        """Return a quantized body."""
        imports = self.model.model.opset_import
        body = onnx.helper.make_model(subgraph, producer_name=_BODY_PRODUCER, opset_imports=imports)
        add_infer_metadata(body)
        quantizer = ONNXQuantizer(
            body, self.per_channel, self.reduce_range, self.mode, self.static, self.weight_qType, self.activation_qType,
            self.tensors_range, self.nodes_to_quantize, self.nodes_to_exclude, self.op_types_to_quantize,
            self.extra_options,
        )  # fmt: skip
        quantizer.parent = self
        quantizer.graph_scope = f"{self.graph_scope}{graph_key}/"
        quantizer.quantize_model()
        return quantizer.model.model.graph

    def quantize_node_with_sub_graph(self, node: NodeProto) -> NodeProto:
        """Return a node with quantized bodies."""
        if all(one.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for one in node.attribute):
            return node
        name = node.name or f"{node.op_type}_node_count_{len(self.new_nodes)}"
        options: dict[str, Any] = {}
        for one in node.attribute:
            if one.type == AttributeProto.GRAPH:
                options[one.name] = self.quantize_subgraph(one.g, f"{name}:{one.name}")
            elif one.type == AttributeProto.GRAPHS:
                bodies = enumerate(one.graphs)
                options[one.name] = [self.quantize_subgraph(body, f"{name}:{one.name}:{i}") for i, body in bodies]
            else:
                options.update(attribute_to_kwarg(one))
        return onnx.helper.make_node(
            node.op_type, node.input, node.output, name=node.name, domain=node.domain, **options
        )

    def has_QDQ_nodes(self) -> bool:
        """Return True if the model has QuantizeLinear or DequantizeLinear nodes."""
        return any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in self.model.nodes())

    def find_initializer_in_path(self, initializer_name: str) -> bool:
        """Return True if an initializer of the graph, or of one around it, has a name."""
        if self.is_input_a_initializer(initializer_name):
            return True
        return self.parent is not None and self.parent.find_initializer_in_path(initializer_name)

    def add_new_nodes(self, nodes: Sequence[NodeProto]) -> None:
        """Append nodes to the result."""
        self.new_nodes.extend(nodes)
        self.generated_value_names.update(name for node in nodes for name in node.output)

    def quantize_model(self) -> onnx.ModelProto:
        """Quantize the model and return it.

        Raises:
            RuntimeError: A node of the result reads a tensor that nothing computes.
        """
        if self.has_QDQ_nodes():
            _LOG.warning("Please check if the model is already quantized: it has QuantizeLinear or DequantizeLinear.")
        for node in self.model.nodes():
            whole = self.quantize_node_with_sub_graph(node) if self.enable_subgraph_quantization else node
            count = len(self.new_nodes)
            CreateOpQuantizer(self, whole).quantize()
            self.generated_value_names.update(name for one in self.new_nodes[count:] for name in one.output)
        self._dequantize_outputs()
        graph = self.model.graph()
        del graph.node[:]
        graph.node.extend(self.new_nodes)
        if self.parent is None:
            missing = self.model.clean_initializers()[1]
            if missing:
                raise RuntimeError(f"Invalid model with unknown initializers/tensors: {', '.join(sorted(missing))}.")
        self.model.model.producer_name, self.model.model.producer_version = __producer__, __version__
        domains = {entry.domain for entry in self.model.model.opset_import}
        if ms_domain not in domains and any(node.domain == ms_domain for node in graph.node):
            self.model.set_opset_import(ms_domain, 1)
        return self.model.model

    def get_tensor_type(self, tensor_name: str, mandatory: bool = False) -> int | None:
        """Return the element type of a tensor, or None.

        Raises:
            RuntimeError: The type is needed and unknown.
        """
        weight = self.model.get_initializer(tensor_name)
        kind = None if weight is None else int(weight.data_type)
        info = self.value_infos.get(tensor_name)
        if kind is None and info is not None and info.type.HasField("tensor_type"):
            kind = int(info.type.tensor_type.elem_type)
        if kind is None and self.enable_subgraph_quantization and self.parent is not None:
            kind = self.parent.get_tensor_type(tensor_name)
        if kind or not mandatory:
            return kind
        if "DefaultTensorType" in self.extra_options:
            return int(self.extra_options["DefaultTensorType"])
        raise RuntimeError(
            f"Unable to find data type for weight_name={tensor_name!r}: shape inference gave none. Name it by the "
            "option DefaultTensorType of extra_options, usually onnx.TensorProto.FLOAT."
        )

    def is_float_tensor(self, tensor_name: str) -> bool:
        """Return True if a tensor is known to be float."""
        if self.is_input_a_initializer(tensor_name):
            return self.is_valid_quantize_weight(tensor_name)
        if tensor_name in self.value_infos:
            return self.get_tensor_type(tensor_name) in _FLOATS
        if self.enable_subgraph_quantization and self.parent is not None:
            return bool(self.parent.is_float_tensor(tensor_name))
        _LOG.warning("Failed to infer data type of tensor: %r. Please add data type info for this tensor.", tensor_name)
        return False

    def _get_quantization_params(self, param_name: str, use_scale: Any = None, use_zeropoint: Any = None) -> Quantized:
        """Add the initializers of the scale and the zero point of an activation.

        Returns:
            True, the name of the scale, the name of the zero point, and two empty shapes; False and texts without a
            range.
        """
        if self.quantization_params is None or param_name not in self.quantization_params:
            return False, "", "", "", ""  # type: ignore[return-value]
        params = self.quantization_params[param_name]
        zero_point, scale, kind = params["zero_point"], params["scale"], params["quant_type"]
        if use_scale is not None and use_zeropoint is not None:
            zero_point, scale, kind = (
                np.asarray(use_zeropoint),
                np.asarray(use_scale, scale.dtype),
                self.activation_qType,
            )
        names = param_name + "_scale", param_name + "_zero_point"
        number = zero_point.astype(np.float32).item()
        self.model.add_initializer(
            onnx.helper.make_tensor(names[1], kind, [], [number if kind in FLOAT8_TYPES else int(number)])
        )
        float_kind = TensorProto.FLOAT if scale.dtype == np.float32 else TensorProto.FLOAT16
        self.model.add_initializer(onnx.helper.make_tensor(names[0], float_kind, [], [scale.item()]))
        return True, *names, [], []  # type: ignore[return-value]

    def _get_quantize_input_nodes(
        self,
        node: NodeProto,
        input_index: int,
        qType: int,
        given_scale_name: str | None = None,
        given_zp_name: str | None = None,
        initial_type: int | None = None,
    ) -> list[NodeProto] | None:
        """Return the nodes that quantize an input of a node; None for static ranges without one of the input.

        Raises:
            ValueError: The input has no name.
        """
        source = node.input[input_index]
        if not source:
            raise ValueError(f"input {input_index} of {node.name} is absent.")
        names = source + TENSOR_NAME_QUANT_SUFFIX, source + "_scale", source + "_zero_point"
        name = source + "_QuantizeLinear"
        nodes: list[NodeProto] = []
        if given_scale_name is not None and given_zp_name is not None:
            names = names[0], given_scale_name, given_zp_name
        elif not self._get_quantization_params(source)[0]:
            if self.static:
                return None
            if self.fuse_dynamic_quant and qType == TensorProto.UINT8:
                nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", [source], list(names), name))
            else:
                nodes, tensors, zero_point = range_nodes(source, qType, initial_type or TensorProto.FLOAT)
                names = names[0], names[1], zero_point
                for tensor in tensors:
                    self.model.add_initializer(tensor)
        if not nodes or nodes[-1].op_type != "DynamicQuantizeLinear":
            nodes.append(onnx.helper.make_node("QuantizeLinear", [source, *names[1:]], [names[0]], name))
        self.quantized_value_map[source] = QuantizedValue(source, *names, qType)
        return nodes

    def find_quantized_value(self, input_name: str) -> QuantizedValue | None:
        """Return the names of a quantized tensor of the graph, or of one around it; None without."""
        if input_name in self.quantized_value_map or self.parent is None:
            return self.quantized_value_map.get(input_name)
        return self.parent.find_quantized_value(input_name)  # type: ignore[no-any-return]

    def _array(self, name: str) -> np.ndarray:
        tensor = self.model.get_initializer(name)
        if tensor is None:
            raise ValueError(f"expected {name} as an initializer: its scale is not of each call.")
        return onnx.numpy_helper.to_array(tensor)

    def quantize_bias_static(self, bias_name: str, input_name: str, weight_name: str, beta: float = 1.0) -> str:
        """Add the initializers of a bias, and return the name of its integers.

        Raises:
            ValueError: The input has no range.
        """
        if bias_name in self.quantized_value_map:
            return str(self.quantized_value_map[bias_name].q_name)
        weight = self.quantized_value_map[weight_name]
        if input_name in self.quantized_value_map:
            scale_name = self.quantized_value_map[input_name].scale_name
        elif self.quantization_params is not None and input_name in self.quantization_params:
            scale_name = self._get_quantization_params(input_name)[1]
        else:
            raise ValueError(f"Expected {input_name} to be in quantized value map for static quantization")
        input_scale, weight_scale = self._array(scale_name), self._array(weight.scale_name)
        zero_point = self._array(weight.zp_name)
        if self.weight_qType == TensorProto.INT8 and zero_point.size and not zero_point.any():
            grown = self.adjust_weight_scale(input_scale, weight_scale, weight_name, self._array(bias_name))
            if grown is not None:
                self._requantize_weight(weight_name, weight, grown, zero_point)
                weight_scale = grown
        name, scale_name, zero_name, scale, node_type, kind = self.quantize_bias_static_impl(
            bias_name, input_scale, weight_scale, beta
        )
        self.quantized_value_map[bias_name] = QuantizedValue(
            bias_name, name, scale_name, zero_name, QuantizedValueType.Initializer, 0 if scale.size > 1 else None,
            node_type=node_type, node_qtype=kind,
        )  # fmt: skip
        return name

    def _requantize_weight(self, name: str, value: QuantizedValue, scale: np.ndarray, zero_point: np.ndarray) -> None:
        """Quantize a weight anew with other scales."""
        tensor = self.model.get_initializer(name)
        if tensor is None:
            raise ValueError(f"expected {name} as an initializer.")
        data = quantize_along(tensor_proto_to_array(tensor), self.weight_qType, zero_point, scale, value.axis)
        dims = list(tensor.dims)
        for old in (value.scale_name, str(value.q_name)):
            self.model.remove_initializer(TensorProto(name=old))
        self.model.add_initializer(onnx.numpy_helper.from_array(scale, value.scale_name))
        self.model.add_initializer(initializer_of(str(value.q_name), data, self.weight_qType, dims))

    def contains_tensor(self, tensor_name: str) -> bool:
        """Return True if a tensor, other than an initializer, belongs to the graph."""
        tables: tuple[Any, ...] = (self.value_infos, self.tensor_names, self.generated_value_names)
        return any(tensor_name in table for table in tables)

    def quantize_activation(self, node: NodeProto, indices: Sequence[int], from_subgraph: bool = False) -> Quantized:
        """Quantize inputs of a node with the type of activations."""
        return self._quantize_inputs(node, indices, self.activation_qType, from_subgraph=from_subgraph)

    def quantize_weight(
        self,
        node: NodeProto,
        indices: Sequence[int],
        reduce_range: bool = False,
        op_level_per_channel: bool = False,
        axis: int = -1,
        from_subgraph: bool = False,
    ) -> Quantized:
        """Quantize inputs of a node; initializers have the type of weights."""
        return self._quantize_inputs(
            node, indices, self.weight_qType, reduce_range, op_level_per_channel, axis, from_subgraph
        )

    def _quantize_inputs(
        self,
        node: NodeProto,
        indices: Sequence[int],
        weight_type: int,
        reduce_range: bool = False,
        op_level_per_channel: bool = False,
        axis: int = -1,
        from_subgraph: bool = False,
    ) -> Quantized:
        integers: list[str] = []
        zero_points: list[str] = []
        scales: list[str] = []
        nodes: list[NodeProto] = []
        for index in indices:
            source = node.input[index]
            if source in self.quantized_value_map or not source:
                value = self.quantized_value_map.get(source)
                names = ("", "", "") if value is None else (value.q_name, value.zp_name, value.scale_name)
            elif (weight := self.model.get_initializer(source)) is not None:
                if self.per_channel and op_level_per_channel:
                    names = self.quantize_weight_per_channel(source, weight_type, axis, reduce_range)
                else:
                    names = self.quantize_initializer(weight, weight_type, reduce_range)
            elif self.contains_tensor(source):
                quantize = find_by_name(source + "_QuantizeLinear", self.new_nodes) or find_by_name(
                    source + "_QuantizeLinear", self.model.graph().node
                )
                if quantize is None:
                    kind = self.get_tensor_type(source) if source in self.value_infos else self.tensor_names.get(source)
                    added = self._get_quantize_input_nodes(node, index, self.activation_qType, initial_type=kind)
                    if added is None:
                        return None, None, None, None
                    if from_subgraph:
                        self.add_new_nodes(added)
                    else:
                        nodes.extend(added)
                    quantize = added[-1]
                if quantize.op_type == "QuantizeLinear":
                    names = quantize.output[0], quantize.input[2], quantize.input[1]
                else:
                    names = quantize.output[0], quantize.output[2], quantize.output[1]
            elif self.parent is not None:
                outer = self.parent._quantize_inputs(
                    node, [index], self.parent.weight_qType if weight_type == self.weight_qType else weight_type,
                    reduce_range, op_level_per_channel, axis, True,
                )  # fmt: skip
                names = outer[0][0], outer[1][0], outer[2][0]
            else:
                raise ValueError(f"Invalid tensor name to quantize: {source} @graph scope{self.graph_scope}")
            for values, name in zip((integers, zero_points, scales), names, strict=True):
                values.append(str(name))
        return integers, zero_points, scales, nodes

    def quantize_initializer(
        self, weight: TensorProto, qType: int, reduce_range: bool = False, keep_float_weight: bool = False
    ) -> tuple[str, str, str]:
        """Quantize an initializer with one scale; return the names of integers, zero point and scale."""
        if weight.name in self.quantized_value_map:
            return self._names(self.quantized_value_map[weight.name])
        override = self.tensor_quant_overrides.get_per_tensor_overrides(weight.name, default_val={})
        kind = override["quant_type"].tensor_type if "quant_type" in override else qType
        symmetric = self.is_weight_symmetric(kind) if kind == self.weight_qType else self.is_activation_symmetric
        data = tensor_proto_to_array(weight)
        result = self._quantized(data.reshape(-1), kind, override, symmetric, self.reduce_range and reduce_range)
        return self._add_weight(weight.name, list(weight.dims), kind, *result, None, keep_float_weight)

    def quantize_weight_per_channel(
        self,
        weight_name: str,
        weight_qType: int,
        channel_axis: int,
        reduce_range: bool = True,
        keep_float_weight: bool = False,
    ) -> tuple[str, str, str]:
        """Quantize an initializer with a scale for each index of an axis; return the names as with one scale.

        Raises:
            ValueError: The weight is no initializer, or the axis or the overrides do not fit its shape.
        """
        if weight_name in self.quantized_value_map:
            return self._names(self.quantized_value_map[weight_name])
        tensor = self.model.get_initializer(weight_name)
        if tensor is None:
            raise ValueError(f"{weight_name} is not an initializer")
        data = tensor_proto_to_array(tensor)
        is_inside, axis = normalize_axis(channel_axis, data.ndim)
        if not is_inside:
            raise ValueError(
                f"Weight {weight_name} has a per-channel axis with value {channel_axis} that is out-of-bounds for "
                f"rank {data.ndim}"
            )
        overrides = self.tensor_quant_overrides.get_per_channel_overrides(weight_name, default_val=[{"axis": axis}])
        if len(overrides) not in (1, data.shape[axis]) or normalize_axis(overrides[0]["axis"], data.ndim)[1] != axis:
            raise ValueError(
                f"Per-channel tensor quantization overrides for {weight_name} must have 1 or {data.shape[axis]} "
                f"elements, and axis {axis}."
            )
        first = overrides[0]
        kind = first["quant_type"].tensor_type if "quant_type" in first else weight_qType
        symmetric, reduced = self.is_weight_symmetric(kind), self.reduce_range and reduce_range
        channels = np.moveaxis(data, axis, 0).reshape(data.shape[axis], -1)
        shared = {name: first[name] for name in ("symmetric", "reduce_range") if name in first}
        parts = [
            self._quantized(channel, kind, {**overrides[min(i, len(overrides) - 1)], **shared}, symmetric, reduced)
            for i, channel in enumerate(channels)
        ]
        zero_point, scale = (np.hstack([part[i] for part in parts]) for i in range(2))
        moved = [data.shape[axis], *(size for i, size in enumerate(data.shape) if i != axis)]
        integers = np.moveaxis(np.stack([part[2] for part in parts]).reshape(moved), 0, axis)
        dims = list(tensor.dims)
        return self._add_weight(weight_name, dims, kind, zero_point, scale, integers, channel_axis, keep_float_weight)

    def _quantized(
        self, data: np.ndarray, kind: int, override: Any, symmetric: bool, reduced: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the zero point, the scale and the integers of the elements that share a scale."""
        if "scale" in override and "zero_point" in override:
            zero_point = np.array(override["zero_point"], dtype=ONNX_TYPE_TO_NP_TYPE[kind])
            scale = np.array(override["scale"], dtype=data.dtype)
            return zero_point, scale, quantize_nparray(kind, data, scale, zero_point)
        return quantize_data(
            data, kind, override.get("symmetric", symmetric), override.get("reduce_range", reduced),
            self.min_real_range, override.get("rmin"), override.get("rmax"),
        )  # fmt: skip

    @staticmethod
    def _names(value: QuantizedValue) -> tuple[str, str, str]:
        return str(value.q_name), value.zp_name, value.scale_name

    def _add_weight(
        self,
        name: str,
        dims: list[int],
        kind: int,
        zero_point: np.ndarray,
        scale: np.ndarray,
        integers: np.ndarray,
        axis: int | None,
        keep_float_weight: bool,
    ) -> tuple[str, str, str]:
        value = QuantizedValue(
            name, name + TENSOR_NAME_QUANT_SUFFIX, name + "_scale", name + "_zero_point",
            QuantizedValueType.Initializer, axis,
        )  # fmt: skip
        shape: list[int] = [] if axis is None else [dims[axis]]
        scale = np.asarray(scale).reshape(-1)
        float_kind = onnx.helper.np_dtype_to_tensor_dtype(scale.dtype)
        zeros = np.asarray(zero_point).reshape(-1).astype(np.float32 if kind in FLOAT8_TYPES else np.int64)
        tensors = [
            onnx.helper.make_tensor(value.scale_name, float_kind, shape, scale.tolist()),
            onnx.helper.make_tensor(value.zp_name, kind, shape, zeros.tolist()),
        ]
        if not keep_float_weight:
            tensors.append(initializer_of(str(value.q_name), integers, kind, dims))
        self.model.initializer_extend(tensors)
        self.quantized_value_map[name] = value
        return self._names(value)

    def _dequantize_value(self, value_name: str) -> NodeProto | None:
        """Return a node that gives a quantized tensor in float; None if it is present in float.

        Raises:
            ValueError: A node of the name has another result.
        """
        if value_name not in self.quantized_value_map or value_name in self.generated_value_names:
            return None
        value = self.quantized_value_map[value_name]
        name = value_name + "_DequantizeLinear"
        present = find_by_name(name, self.new_nodes) or find_by_name(name, self.model.graph().node)
        if present is None:
            inputs = [str(value.q_name), value.scale_name, value.zp_name]
            return onnx.helper.make_node("DequantizeLinear", inputs, [value_name], name, axis=value.axis)
        if present.output[0] != value_name:
            raise ValueError(f"the node {name} gives {present.output[0]}, not {value_name}.")
        return None

    def _dequantize_outputs(self) -> None:
        for output in self.model.graph().output:
            node = self._dequantize_value(output.name)
            if node is not None:
                self.new_nodes.append(node)

    def calculate_quantization_params(self) -> dict[str, QuantizationParams] | None:
        """Return the scales and zero points of the activations that have a range; None without ranges."""
        if self.tensors_range is None:
            return None
        self.adjust_tensor_ranges()
        return {
            name: self.params_of_range(data, self.tensor_quant_overrides.get_per_tensor_overrides(name, default_val={}))
            for name, data in self.tensors_range.items()
        }
