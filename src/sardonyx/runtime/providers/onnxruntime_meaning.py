"""Whether ONNX Runtime means by a model what this package means, so that its answer may stand for ours.

What it has kernels for is not enough: where its results are others than the standard's (docs/reference/differences.md
tells them), where the numbers of a run are drawn, and where users defined an operator, nobody but us may answer. Its
rounding is its own; everything else must be the same.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from sardonyx.core.types import TensorType
from sardonyx.ops.graph import declared_type
from sardonyx.rewrite import facts

_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})

_NUMBERS = frozenset(
    {
        ir.DataType.FLOAT, ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64,
        ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64,
    }
)  # fmt: skip
"""Element types of which it means the same: floats of 16 bits it computes in its own ways, doubles not everywhere as
doubles, and texts not everywhere at all."""

_DRAWN = {
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
}  # fmt: skip
_COUNTED = {"Compress", "NonMaxSuppression", "NonZero", "Unique"}
"""There may be nothing that is counted: of sums and products over nothing it gives something else."""

_DIFFERENT = {
    "AffineGrid", "Attention", "MeanVarianceNormalization", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
    "ReduceMin", "Sign",
}  # fmt: skip
"""They differ on numbers that a look at the model does not rule out, such as NaN, 0 over 0, or integers."""

_GREATEST = (1 << 63) - 1

_LEFT_OUT = frozenset(_DRAWN | _COUNTED | _DIFFERENT)


def _is_given(node: ir.Node, position: int) -> bool:
    return len(node.inputs) > position and node.inputs[position] is not None


def _text(node: ir.Node, name: str) -> str:
    attribute = node.attributes.get(name)
    return "" if attribute is None or attribute.is_ref() else attribute.as_string()


def _reaches_no_end(node: ir.Node) -> bool:
    """Whether no step goes back from the greatest int64, which it takes for -1."""
    if not _is_given(node, 4):
        return True
    steps, ends = facts.constant_ints(node.inputs[4]), facts.constant_ints(node.inputs[2])
    forward = steps is not None and all(step > 0 for step in steps)
    return forward or (ends is not None and all(end < _GREATEST for end in ends))


def _resizes_to_integers(node: ir.Node) -> bool:
    """Whether corners are not aligned to those of an image of a fractional size."""
    return _text(node, "coordinate_transformation_mode") != "align_corners" or _is_given(node, 3)


def _keeps_split_axis(node: ir.Node) -> bool:
    keepdims = node.attributes.get("keepdims")
    return not _is_given(node, 1) or keepdims is None or keepdims.as_int() == 1


def _clips_on_both_sides(node: ir.Node) -> bool:
    # Before version 11 bounds are attributes, whose defaults are finite.
    return len(node.inputs) == 1 or (_is_given(node, 1) and _is_given(node, 2))


def _pads_as_told(node: ir.Node) -> bool:
    return not _text(node, "auto_pad").startswith("SAME")


def _does_not_clip(node: ir.Node) -> bool:
    return "clip" not in node.attributes


_SAME_IF: dict[str, Callable[[ir.Node], bool]] = {
    "AveragePool": _pads_as_told,
    "Clip": _clips_on_both_sides,
    "ConvTranspose": _pads_as_told,
    "Dropout": lambda node: len(node.inputs) < 3 and len(node.outputs) == 1,
    "GRU": _does_not_clip,
    "LSTM": _does_not_clip,
    "Loop": lambda node: _is_given(node, 1),
    "LpPool": _pads_as_told,
    "MaxPool": _pads_as_told,
    "RNN": _does_not_clip,
    "Resize": _resizes_to_integers,
    "Slice": _reaches_no_end,
    "SplitToSequence": _keeps_split_axis,
}
"""Operators that it means the same by in most nodes, and in which."""


def other_meaning(model: ir.Model) -> str:
    """Why ONNX Runtime may not answer in our place; empty where it may.

    Args:
        model: The model; operators that users defined are the caller's to look for.
    """
    if model.functions:
        return "the model has functions"
    for value in (*model.graph.inputs, *model.graph.outputs):
        declared = declared_type(value)
        if not isinstance(declared, TensorType) or declared.shape is None or value.dtype not in _NUMBERS:
            return f"{value.name} is no tensor of integers or float32 of known rank"
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is None or value.const_value.dtype not in _NUMBERS:
                return f"{value.name} is of another element type than integers and float32"
    for node in model.graph.all_nodes():
        if found := _other_meaning(node):
            return f"{node.op_type}: {found}"
    return ""


def _other_meaning(node: ir.Node) -> str:
    if node.domain not in _DOMAINS:
        return "of another domain"
    if node.op_type in _LEFT_OUT:
        return "it means something else by it, or draws its numbers"
    if node.op_type.startswith(("Optional", "String")):
        return "of other values than numbers"
    same = _SAME_IF.get(node.op_type)
    if same is not None and not same(node):
        return "it means something else by this one"
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return "of a function's attributes"
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype not in _NUMBERS:
            return "a constant of another element type than integers and float32"
        if name in ("to", "dtype") and ir.DataType(attribute.as_int()) not in _NUMBERS:
            return "another element type than integers and float32"
    return ""
