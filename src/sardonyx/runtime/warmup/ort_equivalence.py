"""Whether ONNX Runtime means by a model what this package means, so that its answer may stand for ours.

What it has kernels for is not enough: where its results are others than the standard's (docs/reference/differences.md
tells them), where the numbers of a run are drawn, and where users defined an operator, nobody but us may answer. Its
rounding is its own; everything else must be the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.compiler.target.description import host
from sardonyx.core.ir.types import TensorType
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
_COUNTED = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
"""There may be nothing that is counted: of sums and products over nothing it gives something else."""

_FOR_EACH = frozenset({
    "Add", "Cast", "Concat", "Div", "Gather", "GatherND", "Identity", "Mul", "Slice", "Squeeze", "Sub", "Transpose",
    "Unsqueeze",
})  # fmt: skip
"""Operators that give something for each element, and nothing for none."""

_DIFFERENT = {
    "AffineGrid", "Attention", "MeanVarianceNormalization", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "Sign",
}  # fmt: skip
"""They differ on numbers that a look at the model does not rule out, such as NaN, 0 over 0, or integers."""

_BY_BYTES = frozenset({
    "ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat",
    "QAttention", "QGemm", "QLinearConv", "QLinearMatMul",
})  # fmt: skip
"""Products of bytes: on x86 without VNNI it adds two at a time in 16 bits, and cuts off what is too large for them."""

_GREATEST_OF = frozenset({"GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin"})
"""Of finite numbers it means the same by them; others it passes over, or not, by where they stand."""

_GREATEST = (1 << 63) - 1

_LEFT_OUT = frozenset(_DRAWN | _DIFFERENT)


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
    if _text(node, "coordinate_transformation_mode") != "align_corners" or _is_given(node, 3):
        return True
    held = node.inputs[2] if _is_given(node, 2) else None
    if held is None:
        return False
    # Who gives another value for an initializer asks us.
    scales = held.const_value.numpy() if held.const_value is not None else facts.constant(held)
    return scales is not None and bool(np.all(scales == np.floor(scales)))


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


class Meaning(NamedTuple):
    """What ONNX Runtime means by a model.

    Attributes:
        other: Why it may not answer in our place; empty where it may.
        watched: Values of the main graph that have to be finite, else it may not.
    """

    other: str
    watched: tuple[str, ...] = ()


def meaning(model: ir.Model) -> Meaning:
    """What ONNX Runtime means by a model.

    Args:
        model: The model; operators that users defined are the caller's to look for.
    """
    if other := _other_values(model):
        return Meaning(other)
    watched: dict[str, None] = {}
    for node in model.graph.all_nodes():
        is_inside = node.graph is not model.graph
        if other := _other_meaning(node, is_inside):
            return Meaning(f"{node.op_type}: {other}")
        if node.op_type in _GREATEST_OF:
            if is_inside:
                return Meaning(f"{node.op_type}: in a body, where nobody sees whether numbers are finite")
            watched[str(node.inputs[0].name)] = None  # type: ignore[union-attr]
    return Meaning("", tuple(watched))


_SUM = "sardonyx: sum of "


def watching(model: bytes | str, watched: Sequence[str]) -> tuple[bytearray, list[str]]:
    """A model that tells what is watched, and the names of the outputs that it has for that.

    The sum of all elements is finite where each is; where the sum alone is not, one too many is taken for infinite.

    Args:
        model: The bytes of the model, or the path of its file.
        watched: Names of values of its main graph.

    Raises:
        OSError: The file cannot be read.
    """
    names = [f"{_SUM}{name}" for name in watched]
    added = onnx.GraphProto(
        node=[
            onnx.NodeProto(op_type="ReduceSum", input=[name], output=[output], attribute=[_WHOLE])
            for name, output in zip(watched, names, strict=True)
        ],
        output=[onnx.ValueInfoProto(name=output) for output in names],
    )
    # What follows a message is merged with it: nodes and outputs go to the end of those that are there.
    more = onnx.ModelProto(graph=added).SerializeToString()
    if isinstance(model, bytes):
        return bytearray(model) + more, names
    with Path(model).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # Once in memory: weights are in it.
        contents = bytearray(size + len(more))
        if file.readinto(memoryview(contents)[:size]) != size:
            raise OSError(f"{model} was cut off while it was read.")
    contents[size:] = more
    return contents, names


_WHOLE = onnx.helper.make_attribute("keepdims", 0)


def _other_values(model: ir.Model) -> str:
    """Why it may not answer, by what values of a model are."""
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
    return ""


def _is_for_each(counted: ir.Node) -> bool:
    """Whether all that is made of what a node counts is made for each, and not of all of it."""
    seen: set[ir.Node] = set()
    waiting = [counted]
    while waiting:
        for value in waiting.pop().outputs:
            for node in value.consumers():
                if node not in seen:
                    if node.op_type not in _FOR_EACH or node.graph is not counted.graph:
                        return False
                    seen.add(node)
                    waiting.append(node)
    return True


def _cuts_off() -> bool:
    """Whether sums of two products of bytes have 16 bits."""
    return host().triple.startswith("x86_64") and host().saturates


def _other_meaning(node: ir.Node, is_inside: bool) -> str:
    if node.domain not in _DOMAINS:
        return "of another domain"
    if node.op_type in _BY_BYTES and _cuts_off():
        return "it cuts off sums of products on this processor"
    if node.op_type in _LEFT_OUT:
        return "it means something else by it, or draws its numbers"
    if node.op_type in _COUNTED and (is_inside or not _is_for_each(node)):
        return "there may be nothing that is counted, and of nothing it makes something else"
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
