"""Types, names and helpers of quantization, by ONNX Runtime's names."""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from sardonyx.compat.onnxruntime.quantization.arithmetic import (  # noqa: F401
    FLOAT8_DISTRIBUTIONS,
    FLOAT8_TYPES,
    ONNX_INT_TYPE_RANGE,
    ONNX_INT_TYPE_REDUCED_RANGE,
    ONNX_INT_TYPE_SYMMETRIC_RANGE,
    ONNX_TYPE_TO_NP_TYPE,
    TENSOR_NAME_QUANT_SUFFIX,
    compute_data_quant_params,
    compute_scale_zp,
    compute_scale_zp_blocked,
    compute_scale_zp_float8,
    get_qmin_qmax_for_qType,
    get_qrange_for_qType,
    normalize_axis,
    pack_bytes_to_4bit,
    quantize_data,
    quantize_nparray,
    quantize_onnx_initializer,
    snap_zero_point_to_uint8,
    tensor_proto_to_array,
)
from sardonyx.compat.onnxruntime.quantization.calibration_table import write_calibration_table  # noqa: F401

__producer__ = "onnx.quantize"
__version__ = "0.1.0"
onnx_domain = "ai.onnx"
ms_domain = "com.microsoft"
QUANT_OP_NAME = "QuantizeLinear"
DEQUANT_OP_NAME = "DequantizeLinear"
QUANT_INPUT_SUFFIX = "_QuantizeLinear_Input"
DEQUANT_OUTPUT_SUFFIX = "_DequantizeLinear_Output"
MODEL_SIZE_THRESHOLD = 2147483648

type_to_name = {number: name for name, number in TensorProto.DataType.items()}

_LOG = logging.getLogger(__name__)
_PREPROCESSED = "onnx.quant.pre_process"
_INFERRED = "onnx.infer"


class _FromText(Enum):
    """An enumeration that programs read from command lines."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_string(cls, text: str) -> Any:
        """Return the member of a name.

        Raises:
            ValueError: Unknown name.
        """
        try:
            return cls[text]
        except KeyError:
            raise ValueError(f"expected one of {', '.join(cls.__members__)}, got {text!r}.") from None


class QuantizationMode(_FromText):
    """Products of integers with ranges of each call, or with learned ranges."""

    IntegerOps = 0
    QLinearOps = 1


class QuantizedValueType(_FromText):
    """The origin of a quantized value."""

    Input = 0
    Initializer = 1


class QuantType(_FromText):
    """Types of quantized numbers."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6
    QInt2 = 7
    QUInt2 = 8

    @property
    def tensor_type(self) -> int:
        """The element type in models."""
        return _ELEMENTS[self]


class QuantFormat(_FromText):
    """Operators on integers, or float operators between QuantizeLinear and DequantizeLinear."""

    QOperator = 0
    QDQ = 1


_ELEMENTS = {
    QuantType.QInt8: TensorProto.INT8,
    QuantType.QUInt8: TensorProto.UINT8,
    QuantType.QFLOAT8E4M3FN: TensorProto.FLOAT8E4M3FN,
    QuantType.QInt16: TensorProto.INT16,
    QuantType.QUInt16: TensorProto.UINT16,
    QuantType.QInt4: TensorProto.INT4,
    QuantType.QUInt4: TensorProto.UINT4,
    QuantType.QInt2: TensorProto.INT2,
    QuantType.QUInt2: TensorProto.UINT2,
}


def add_quant_suffix(tensor_name: str) -> str:
    """Return the name of the node that quantizes a tensor."""
    return tensor_name + "_QuantizeLinear"


def add_quant_input_suffix(tensor_name: str) -> str:
    """Return the name of the input of the node that quantizes a tensor."""
    return tensor_name + QUANT_INPUT_SUFFIX


def add_quant_output_suffix(tensor_name: str) -> str:
    """Return the name of the output of the node that quantizes a tensor."""
    return tensor_name + "_QuantizeLinear_Output"


def add_dequant_suffix(tensor_name: str) -> str:
    """Return the name of the node that dequantizes a tensor."""
    return tensor_name + "_DequantizeLinear"


def add_dequant_input_suffix(tensor_name: str) -> str:
    """Return the name of the input of the node that dequantizes a tensor."""
    return tensor_name + "_DequantizeLinear_Input"


def add_dequant_output_suffix(tensor_name: str) -> str:
    """Return the name of the output of the node that dequantizes a tensor."""
    return tensor_name + DEQUANT_OUTPUT_SUFFIX


class QuantizedInitializer:
    """A quantized weight."""

    def __init__(
        self,
        name: str,
        initializer: TensorProto,
        rmins: Any,
        rmaxs: Any,
        zero_points: Any,
        scales: Any,
        data: Any = (),
        quantized_data: Any = (),
        axis: int | None = None,
    ) -> None:
        self.name, self.initializer, self.rmins, self.rmaxs = name, initializer, rmins, rmaxs
        self.zero_points, self.scales, self.axis = zero_points, scales, axis
        self.data, self.quantized_data = list(data), list(quantized_data)


class QuantizedValue:
    """The names of a quantized tensor, its scale and its zero point."""

    def __init__(
        self,
        name: str,
        new_quantized_name: str | None,
        scale_name: str,
        zero_point_name: str,
        quantized_value_type: Any,
        axis: int | None = None,
        node_type: str | None = None,
        node_qtype: int | None = None,
        scale_type: int | None = None,
    ) -> None:
        self.original_name, self.q_name = name, new_quantized_name
        self.scale_name, self.zp_name = scale_name, zero_point_name
        self.value_type, self.axis = quantized_value_type, axis
        self.node_type, self.node_qtype, self.scale_type = node_type, node_qtype, scale_type


class BiasToQuantize:
    """A bias with the names of the tensors whose scales give its own."""

    def __init__(self, bias_name: str, input_name: str, weight_name: str) -> None:
        self.bias_name, self.input_name, self.weight_name = bias_name, input_name, weight_name


def attribute_to_kwarg(attribute: onnx.AttributeProto) -> dict[str, Any]:
    """Return an attribute as a keyword argument of ``onnx.helper.make_node``.

    Raises:
        ValueError: The attribute has no type.
    """
    if not attribute.type:
        raise ValueError(f"attribute {attribute.name} does not have type specified.")
    return {attribute.name: onnx.helper.get_attribute_value(attribute)}


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def find_by_name(item_name: str, item_list: Any) -> Any:
    """Return the first item of a name, or None."""
    return next((item for item in item_list if item.name == item_name), None)


def get_elem_index(elem_name: str, elem_list: Any) -> int:
    """Return the last index of a name in a list, or -1."""
    matches = [index for index, name in enumerate(elem_list) if name == elem_name]
    return matches[-1] if matches else -1


def get_mul_node(inputs: Any, output: str, name: str) -> onnx.NodeProto:
    """Return a node that multiplies."""
    return onnx.helper.make_node("Mul", list(inputs), [output], name)


def generate_identified_filename(filename: Path, identifier: str) -> Path:
    """Return a path with a suffix of the file's stem."""
    return filename.with_name(f"{filename.stem}{identifier}{filename.suffix}")


def smooth_distribution(p: np.ndarray, eps: float = 0.0001) -> np.ndarray | None:
    """Return counts in which zeros are small positive numbers, taken from the others; None if all counts are 0."""
    zeros = p == 0
    if zeros.all():
        return None
    share = eps * float(zeros.sum()) / float(p.size - zeros.sum())
    if share >= 1:
        raise ValueError(f"{zeros.sum()} of {p.size} counts are 0, too many for eps={eps}.")
    return p.astype(np.float32) + np.where(zeros, eps, -share).astype(np.float32)


def model_has_external_data(model_path: Path) -> bool:
    """Return True if a weight of a model is in another file."""
    model = onnx.load(str(model_path), load_external_data=False)
    return any(onnx.external_data_helper.uses_external_data(tensor) for tensor in model.graph.initializer)


def optimize_model(model_path: Path, opt_model_path: Path) -> None:
    """Write an optimized model."""
    from sardonyx.model import load, save
    from sardonyx.rewrite.optimize import optimize

    save(optimize(load(Path(model_path)), verify=False).model, opt_model_path)


def get_opset_version(model: onnx.ModelProto) -> int:
    """Return the operator set of the standard domain.

    Raises:
        ValueError: The model imports none, or several.
    """
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", onnx_domain)]
    if len(versions) != 1:
        raise ValueError("Failed to find proper ai.onnx domain, expected one operator set.")
    return int(versions[0])


def _types_of_overrides(overrides: Any) -> set[Any]:
    """Return the types that overrides of tensors name, as far as the overrides are well formed."""
    types = set()
    for channels in overrides.values() if isinstance(overrides, Mapping) else ():
        for channel in channels if isinstance(channels, (list, tuple)) else ():
            if isinstance(channel, Mapping):
                convert = channel.get("convert")
                types |= {
                    channel.get("quant_type"),
                    convert.get("quant_type") if isinstance(convert, Mapping) else None,
                }
    return types


def update_opset_version(
    model: onnx.ModelProto,
    weight_type: Any,
    activation_type: Any = None,
    tensor_quant_overrides: Mapping[str, Any] | None = None,
    block_size: int = 0,
) -> onnx.ModelProto:
    """Return a model in an operator set that has the types of its quantization; the model itself if it has them."""
    version = get_opset_version(model)
    types = {getattr(kind, "tensor_type", kind) for kind in (weight_type, activation_type)}
    names = types | {getattr(kind, "tensor_type", None) for kind in _types_of_overrides(tensor_quant_overrides)}
    target, lacking = version, ""
    if version < 21 and block_size > 0:
        target, lacking = 21, "block-wise quantization natively"
    elif version < 19 and getattr(weight_type, "tensor_type", weight_type) == TensorProto.FLOAT8E4M3FN:
        target, lacking = 19, "quantization to float 8"
    elif version < 21 and names & {TensorProto.INT16, TensorProto.UINT16}:
        target, lacking = 21, "16-bit integer quantization natively"
    elif version == 10:
        lacking = "node fusions"
    elif version < 10:
        target, lacking = 11, "quantization"
    if lacking:
        action = f"The result has opset {target}; verify it." if target != version else "Update the model to opset 11."
        _LOG.warning("The original model opset version is %d, which does not support %s. %s", version, lacking, action)
    if target == version:
        return model
    converted: onnx.ModelProto = onnx.version_converter.convert_version(model, target)
    return save_and_reload_model_with_shape_infer(converted)


def load_model_with_shape_infer(model_path: Path) -> onnx.ModelProto:
    """Return the model of a file with the shapes that onnx infers, on which the choice of tensors depends."""
    with tempfile.TemporaryDirectory(prefix="quantize.") as folder:
        inferred = Path(folder) / "inferred.onnx"
        onnx.shape_inference.infer_shapes_path(str(model_path), str(inferred))
        model = onnx.load(str(inferred), load_external_data=False)
    onnx.external_data_helper.load_external_data_for_model(model, str(Path(model_path).parent))
    add_infer_metadata(model)
    return model


def save_and_reload_model_with_shape_infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model with the shapes that onnx infers."""
    if model.ByteSize() < MODEL_SIZE_THRESHOLD // 2:
        inferred = onnx.shape_inference.infer_shapes(model)
        add_infer_metadata(inferred)
        return inferred
    with tempfile.TemporaryDirectory(prefix="quantize.") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save_model(copy.deepcopy(model), str(path), save_as_external_data=True)
        return load_model_with_shape_infer(path)


def _add_metadata(model: onnx.ModelProto, key: str) -> None:
    entries = {entry.key: entry.value for entry in model.metadata_props} | {key: "onnxruntime.quant"}
    onnx.helper.set_model_props(model, entries)


def _has_metadata(model: onnx.ModelProto, key: str) -> bool:
    return any(entry.key == key and entry.value == "onnxruntime.quant" for entry in model.metadata_props)


def add_pre_process_metadata(model: onnx.ModelProto) -> None:
    """Mark a model as prepared for quantization."""
    _add_metadata(model, _PREPROCESSED)


def model_has_pre_process_metadata(model: onnx.ModelProto) -> bool:
    """Return True if a model is marked as prepared for quantization."""
    return _has_metadata(model, _PREPROCESSED)


def add_infer_metadata(model: onnx.ModelProto) -> None:
    """Mark a model as one with inferred shapes."""
    _add_metadata(model, _INFERRED)


def model_has_infer_metadata(model: onnx.ModelProto) -> bool:
    """Return True if a model is marked as one with inferred shapes."""
    return _has_metadata(model, _INFERRED)
