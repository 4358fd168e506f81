"""Nodes that compute the scale and the zero point of a tensor in each call."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto, TensorProto, helper

from sardonyx.compat.onnxruntime.quantization.arithmetic import get_qrange_for_qType


def range_nodes(source: str, quant_type: int, float_type: int) -> tuple[list[NodeProto], list[TensorProto], str]:
    """Return the nodes, the initializers that they read, and the name of the zero point.

    The scale has the name of the tensor and ``_scale``. Zero points of signed integers are 0.

    Raises:
        ValueError: The type is neither int8 nor uint8.
    """
    nodes: list[NodeProto] = []

    def add(kind: str, inputs: list[str], name: str, result: str = "", **options: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [result or name + ":0"], name, **options))
        return result or name + ":0"

    low = add("ReduceMin", [source], source + "_ReduceMin", keepdims=0)
    high = add("ReduceMax", [source], source + "_ReduceMax", keepdims=0)
    scale = source + "_scale"
    if quant_type == TensorProto.INT8:
        limits = [add("Abs", [limit], limit.removesuffix(":0") + "_Abs") for limit in (low, high)]
        largest = add("Max", limits, source + "_Abs_Max")
        add("Div", [largest, "fixed_quantization_range_int8"], source + "scale_Div", scale)
        levels = get_qrange_for_qType(quant_type) / 2.0
        tensors = [
            helper.make_tensor("fixed_quantization_range_int8", float_type, [], [levels]),
            helper.make_tensor("fixed_zero_zp", quant_type, [], [0]),
        ]
        return nodes, tensors, "fixed_zero_zp"
    if quant_type != TensorProto.UINT8:
        raise ValueError(f"Unexpected value for qType={quant_type}, expected int8 or uint8.")
    width = add("Sub", [high, low], scale + "_Sub")
    add("Div", [width, "fixed_quantization_range_uint8"], scale + "_Div", scale)
    zero_point = source + "_zero_point"
    negated = add("Sub", ["fixed_zero", low], zero_point + "_Sub")
    floored = add("Floor", [add("Div", [negated, scale], zero_point + "_Div")], zero_point + "_Floor")
    add("Cast", [floored], zero_point + "_Cast", zero_point, to=quant_type)
    levels = get_qrange_for_qType(quant_type)
    tensors = [
        helper.make_tensor("fixed_quantization_range_uint8", float_type, [], [levels]),
        helper.make_tensor("fixed_zero", float_type, [], [0.0]),
    ]
    return nodes, tensors, zero_point
