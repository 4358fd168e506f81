"""Drop-in for ``onnxconverter_common.float16`` and ``onnxmltools.utils.float16_converter`` 1.16.

Names, signatures and results are the original's; ``sardonyx.compress.float16`` does the conversion. The how-to page
lists the differences: cases in which the original's model does not load or is silently wrong.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from sardonyx import model as model_io
from sardonyx.compress import float16
from sardonyx.errors import OptionError

DEFAULT_OP_BLOCK_LIST = [
    "ArrayFeatureExtractor",
    "Binarizer",
    "CastMap",
    "CategoryMapper",
    "DictVectorizer",
    "FeatureVectorizer",
    "Imputer",
    "LabelEncoder",
    "LinearClassifier",
    "LinearRegressor",
    "Normalizer",
    "OneHotEncoder",
    "RandomUniformLike",
    "SVMClassifier",
    "SVMRegressor",
    "Scaler",
    "TreeEnsembleClassifier",
    "TreeEnsembleRegressor",
    "ZipMap",
    "NonMaxSuppression",
    "TopK",
    "RoiAlign",
    "Resize",
    "Range",
    "CumSum",
    "Min",
    "Max",
    "Upsample",
]
"""Operators that stay in float32 as in the original; others may stay too because of their types."""


class ConverterError(OptionError, ValueError):
    """Invalid argument; also a ``ValueError``, which callers of the original catch."""


def convert_np_to_float16(
    np_array: NDArray[Any], min_positive_val: float = 1e-7, max_finite_val: float = 1e4
) -> NDArray[np.float16]:
    """Convert an array to float16, preserving sign and finiteness; warn if the clamp changes an element.

    Args:
        np_array: Any shape, float32 or float64.
        min_positive_val: 0 < |x| < ``min_positive_val`` becomes ± ``min_positive_val``.
        max_finite_val: Finite |x| > ``max_finite_val`` becomes ± ``max_finite_val``.

    Raises:
        OptionError: A limit is impossible.
    """
    array = np.asarray(np_array)
    clamp = float16.Clamp(ir.DataType.FLOAT16, min_positive_val, max_finite_val)
    if (clipped := clamp.clipped("the array", array)) is not None:
        _warn(clipped, clamp)
    return clamp.apply(array).astype(np.float16, copy=False)


def convert_tensor_float_to_float16(
    tensor: onnx.TensorProto, min_positive_val: float = 1e-7, max_finite_val: float = 1e4
) -> onnx.TensorProto:
    """Convert a float32 ``TensorProto`` to float16 in place and return it; skip other element types.

    Raises:
        ValueError: ``tensor`` is not a ``TensorProto``.
        OptionError: A limit is impossible.
    """
    if not isinstance(tensor, onnx.TensorProto):
        raise ConverterError(f"expected an onnx.TensorProto, got {type(tensor).__name__}", where="tensor")
    if tensor.data_type != onnx.TensorProto.FLOAT:
        return tensor
    stored_as_list = bool(tensor.float_data)
    converted = convert_np_to_float16(numpy_helper.to_array(tensor), min_positive_val, max_finite_val)
    tensor.data_type = onnx.TensorProto.FLOAT16
    tensor.ClearField("float_data")
    if stored_as_list:
        tensor.int32_data[:] = converted.view(np.uint16).ravel().tolist()
    else:
        tensor.raw_data = converted.astype("<f2").tobytes()
    return tensor


def make_value_info_from_tensor(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    """Return the ``ValueInfoProto`` with a tensor's name, element type and shape."""
    return helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


def convert_float_to_float16(
    model: onnx.ModelProto,
    min_positive_val: float = 1e-7,
    max_finite_val: float = 1e4,
    keep_io_types: bool | Iterable[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Collection[str] | None = None,
    node_block_list: Collection[str] | None = None,
    check_fp16_ready: bool = True,
) -> onnx.ModelProto:
    """Convert a model to float16.

    Args:
        model: The model; unlike in the original, it is not changed.
        min_positive_val: As for ``convert_np_to_float16``.
        max_finite_val: As for ``convert_np_to_float16``.
        keep_io_types: True preserves float32 inputs and outputs; a list of names, only these.
        disable_shape_infer: Use only the types written in the model.
        op_block_list: Operators to leave in float32; None means ``DEFAULT_OP_BLOCK_LIST``.
        node_block_list: Names of nodes to leave in float32; unknown names cause a warning.
        check_fp16_ready: Refuse a model that holds float16 values already.

    Returns:
        The converted model. Each clipped tensor causes a warning.

    Raises:
        ValueError: ``model`` is not a ``ModelProto``, or holds float16 values with ``check_fp16_ready`` set.
        OptionError: An option is impossible.
        ModelTooLargeError: The result does not fit into a message; ``sardonyx.compress.float16`` has no such limit.
    """
    if not isinstance(model, onnx.ModelProto):
        raise ConverterError(f"expected an onnx.ModelProto, got {type(model).__name__}", where="model")
    return _convert(
        model_io.from_proto(model),
        float16.Clamp(ir.DataType.FLOAT16, min_positive_val, max_finite_val),
        keep_io_types,
        disable_shape_infer,
        DEFAULT_OP_BLOCK_LIST if op_block_list is None else op_block_list,
        node_block_list or (),
        check_fp16_ready,
    )


def convert_float_to_float16_model_path(
    model_path: str | os.PathLike[str],
    min_positive_val: float = 1e-7,
    max_finite_val: float = 1e4,
    keep_io_types: bool | Iterable[str] = False,
) -> onnx.ModelProto:
    """Convert a model file, including external data; see ``convert_float_to_float16``.

    Raises:
        ModelFileError: The file cannot be read.
        ValueError: The model holds float16 values already.
        OptionError: An option is impossible.
        ModelTooLargeError: The result does not fit into a message.
    """
    clamp = float16.Clamp(ir.DataType.FLOAT16, min_positive_val, max_finite_val)
    return _convert(model_io.load(model_path), clamp, keep_io_types, False, DEFAULT_OP_BLOCK_LIST, (), True)


def check_if_fp16_ready(graph_proto: onnx.GraphProto) -> bool:
    """Return True for a graph with float16 inputs, outputs, value infos or initializers, or such a Cast."""
    values = (*graph_proto.output, *graph_proto.input, *graph_proto.value_info)
    return (
        any(value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16 for value in values)
        or any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in graph_proto.initializer)
        or any(
            attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT16
            for node in graph_proto.node
            if node.op_type == "Cast"
            for attribute in node.attribute
        )
    )


def _convert(
    model: ir.Model,
    clamp: float16.Clamp,
    keep_io_types: bool | Iterable[str],
    disable_shape_infer: bool,
    op_block_list: Collection[str],
    node_block_list: Collection[str],
    check_fp16_ready: bool,
) -> onnx.ModelProto:
    if check_fp16_ready and check_if_fp16_ready(model_io.to_proto(model, weights=False).graph):
        raise ConverterError(
            "the model holds float16 values already",
            where="check_fp16_ready",
            remedy="Set check_fp16_ready=False to convert the remaining float32 values.",
        )
    conversion = float16.convert_float16(
        model,
        clamp.min_positive_val,
        clamp.max_finite_val,
        keep_io_types,
        disable_shape_infer,
        {*op_block_list, *float16.DEFAULT_OP_BLOCK_LIST},
        _known(model, node_block_list),
    )
    for clipped in conversion.clipped:
        _warn(clipped, clamp)
    return model_io.to_proto(conversion.model)


def _known(model: ir.Model, names: Collection[str]) -> list[str]:
    roots = (model.graph, *(function.graph for function in model.functions.values()))
    present = {node.name for root in roots for node in root.all_nodes()}
    for name in names:
        if name not in present:
            warnings.warn(f"node_block_list: the model has no node named {name!r}", stacklevel=4)
    return [name for name in names if name in present]


def _warn(clipped: float16.ClippedTensor, clamp: float16.Clamp) -> None:
    parts = []
    if clipped.raised:
        parts.append(f"{clipped.raised} below {clamp.min_positive_val:g} (the smallest is {clipped.smallest:g})")
    if clipped.lowered:
        parts.append(f"{clipped.lowered} above {clamp.max_finite_val:g} (the largest is {clipped.largest:g})")
    warnings.warn(f"{clipped.name}: elements truncated to these limits: {' and '.join(parts)}", stacklevel=4)
