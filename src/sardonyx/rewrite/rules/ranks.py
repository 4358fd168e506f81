"""Rank inference: the rank of an operator's output, and the ranks that its operands must have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.inference import BROADCASTING
from sardonyx.rewrite.analysis.sizes import Sizes

RankOf = Callable[[ir.Value | None], int | None]
"""Returns the rank of a value, or None if not known."""

LIKE_FIRST = frozenset(
    {
        "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "AveragePool", "BatchNormalization",
        "BitwiseNot", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Concat", "Conv", "ConvTranspose", "Cos",
        "Cosh", "CumSum", "DequantizeLinear", "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu",
        "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization", "HardSigmoid", "HardSwish", "Hardmax",
        "Identity", "InstanceNormalization", "IsInf", "IsNaN", "LRN", "LayerNormalization", "LeakyRelu", "Log",
        "LogSoftmax", "MaxPool", "Mish", "Neg", "Not", "Pad", "QuantizeLinear", "Reciprocal", "Relu", "Round",
        "ScatterElements", "ScatterND", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Slice", "Softmax",
        "Softplus", "Softsign", "Split", "Sqrt", "Tan", "Tanh", "ThresholdedRelu", "Tile", "Transpose", "Trilu",
        "Where",
    }
)  # fmt: skip
"""Operators whose outputs have the rank of their first input."""

RECURRENT = {"X": 0, "W": 1, "R": 2, "initial_h": 5, "initial_c": 6}
"""Inputs of LSTM, GRU and RNN that must have rank 3."""

REDUCTIONS = frozenset(
    {
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
        "ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin",
    }
)  # fmt: skip


def output_rank(node: ir.Node, index: int, rank: RankOf, sizes: Sizes) -> int | None:
    """Return the rank of output ``index`` from the ranks of the inputs, or None."""
    if facts.refers_to_function_attribute(node):
        return None
    first = rank(node.inputs[0]) if node.inputs else None
    match node.op_type:
        case "Shape" | "Size":
            return int(node.op_type == "Shape")
        case "LSTM" | "GRU" | "RNN":
            return 4 if index == 0 else 3
        case "Gemm" | "Flatten":
            return 2
        case op if op in BROADCASTING:
            ranks = [rank(value) for value in node.inputs]
            return max((r for r in ranks if r is not None), default=None) if None not in ranks else None
        case op if op in LIKE_FIRST:
            return first
        case "Unsqueeze" | "Squeeze":
            axes = axes_of(node, sizes)
            if first is None or axes is None:
                return None
            return first + len(axes) if node.op_type == "Unsqueeze" else first - len(axes)
        case "Gather":
            indices = rank(node.inputs[1])
            return None if first is None or indices is None else first + indices - 1
        case "MatMul":
            other = rank(node.inputs[1])
            return None if first is None or other is None or min(first, other) < 2 else max(first, other)
        case op if op in REDUCTIONS and sizes.attr(node, "keepdims", 1):
            return first
        case _:
            return None


def axes_of(node: ir.Node, sizes: Sizes) -> Sequence[int] | None:
    """Return the axes of a Squeeze, Unsqueeze or reduction, if written and known."""
    written = node.attributes.get("axes")
    if written is not None:
        return written.as_ints()
    operand = node.inputs[1] if len(node.inputs) > 1 else None
    return None if operand is None else sizes.constant(operand)


def is_certain_to_fail(node: ir.Node, rank: RankOf, sizes: Sizes) -> bool:
    """Return True if every run of the node fails, because of an operand's rank."""
    if facts.refers_to_function_attribute(node):
        return False
    first = rank(node.inputs[0]) if node.inputs else None
    match node.op_type:
        case "LSTM" | "GRU" | "RNN":
            ranks = [rank(node.inputs[i]) for i in RECURRENT.values() if i < len(node.inputs)]
            return any(r not in (None, 3) for r in ranks)
        case "Conv" | "ConvTranspose":
            weight = rank(node.inputs[1])
            return first is not None and weight is not None and first != weight
        case "AveragePool" | "MaxPool":
            kernel = node.attributes.get("kernel_shape")
            return first is not None and kernel is not None and first != len(kernel.as_ints()) + 2
        case "Transpose":
            perm = sizes.attr(node, "perm")
            return first is not None and perm is not None and first != len(perm)
        case "Squeeze" | "Unsqueeze":
            axes = axes_of(node, sizes)
            if first is None or axes is None:
                return False
            bound = first if node.op_type == "Squeeze" else first + len(axes)
            return not all(-bound <= axis < bound for axis in axes)
        case "Gather" | "Split":
            axis = sizes.attr(node, "axis", 0)
            return first is not None and not -first <= axis < first
        case _:
            return False
