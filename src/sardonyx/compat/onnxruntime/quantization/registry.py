"""The classes that quantize operators, by ONNX Runtime's names; programs add operators of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sardonyx.compat.onnxruntime.quantization.operators import integer, qdq, qlinear
from sardonyx.compat.onnxruntime.quantization.operators.base_operator import QuantOperatorBase
from sardonyx.compat.onnxruntime.quantization.operators.qdq_base_operator import QDQOperatorBase
from sardonyx.compat.onnxruntime.quantization.quant_utils import QuantizationMode

if TYPE_CHECKING:
    import onnx

CommonOpsRegistry: dict[str, type[QuantOperatorBase]] = {
    "Gather": qlinear.GatherQuant,
    "Transpose": qlinear.Direct8BitOp,
    "EmbedLayerNormalization": integer.EmbedLayerNormalizationQuant,
}

IntegerOpsRegistry: dict[str, type[QuantOperatorBase]] = {
    "Conv": integer.ConvInteger,
    "MatMul": integer.MatMulInteger,
    "Attention": integer.AttentionQuant,
    "LSTM": integer.LSTMQuant,
    **CommonOpsRegistry,
}
"""Operators of dynamic quantization."""

QLinearOpsRegistry: dict[str, type[QuantOperatorBase]] = {
    "ArgMax": qlinear.QArgMax,
    "Conv": qlinear.QLinearConv,
    "Gemm": qlinear.QLinearGemm,
    "MatMul": qlinear.QLinearMatMul,
    **dict.fromkeys(("Add", "Mul"), qlinear.QLinearBinaryOp),
    **dict.fromkeys(("Relu", "Clip", "LeakyRelu", "Sigmoid"), qlinear.QLinearActivation),
    "MaxPool": qlinear.QMaxPool,
    "GlobalAveragePool": qlinear.QGlobalAveragePool,
    "Split": qlinear.QSplit,
    "Pad": qlinear.QPad,
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten"), qlinear.Direct8BitOp),
    "Resize": qlinear.QResize,
    "AveragePool": qlinear.QLinearPool,
    "Concat": qlinear.QLinearConcat,
    "Softmax": qlinear.QLinearSoftmax,
    "Where": qlinear.QLinearWhere,
    **CommonOpsRegistry,
}
"""Operators of static quantization with operators on integers."""

QDQRegistry: dict[str, type[QDQOperatorBase]] = {
    **dict.fromkeys(("Conv", "ConvTranspose"), qdq.QDQConv),
    "Gemm": qdq.QDQGemm,
    **dict.fromkeys(("Clip", "Relu"), qdq.QDQRemovableActivation),
    **dict.fromkeys(
        ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "AveragePool", "Slice", "TopK"), qdq.QDQDirect8BitOp
    ),
    "Resize": qdq.QDQResize,
    "MaxPool": qdq.QDQMaxPool,
    "Pad": qdq.QDQPad,
    "MatMul": qdq.QDQMatMul,
    "Split": qdq.QDQSplit,
    **dict.fromkeys(("Gather", "GatherElements"), qdq.QDQGather),
    "Where": qdq.QDQWhere,
    **dict.fromkeys(("InstanceNormalization", "LayerNormalization", "BatchNormalization"), qdq.QDQNormalization),
    "CumSum": QDQOperatorBase,
}
"""Operators of static quantization between QuantizeLinear and DequantizeLinear; all others have all tensors marked."""


def CreateDefaultOpQuantizer(onnx_quantizer: Any, node: onnx.NodeProto) -> QuantOperatorBase:
    """Return the class of a node that stays in float."""
    return QuantOperatorBase(onnx_quantizer, node)


def CreateOpQuantizer(onnx_quantizer: Any, node: onnx.NodeProto) -> QuantOperatorBase:
    """Return the class that replaces a node by operators on integers, or keeps the node."""
    is_dynamic = onnx_quantizer.mode == QuantizationMode.IntegerOps
    registry = IntegerOpsRegistry if is_dynamic else QLinearOpsRegistry
    if node.op_type in registry:
        quantizer = registry[node.op_type](onnx_quantizer, node)
        if quantizer.should_quantize():
            return quantizer
    return QuantOperatorBase(onnx_quantizer, node)


def CreateQDQQuantizer(onnx_quantizer: Any, node: onnx.NodeProto) -> QDQOperatorBase:
    """Return the class that marks the tensors of a node."""
    return QDQRegistry.get(node.op_type, QDQOperatorBase)(onnx_quantizer, node)
