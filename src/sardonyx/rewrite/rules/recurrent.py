"""Recurrent operators: optional operands that equal their default."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import EXACT, Op, Refusal, Result, rule
from sardonyx.rewrite.site import Site

MOVEMENT = frozenset(
    {
        "Expand",
        "Slice",
        "Reshape",
        "Transpose",
        "Unsqueeze",
        "Squeeze",
        "Identity",
        "Tile",
        "Gather",
        "Split",
        "Flatten",
    }
)
"""Operators whose output contains only elements of their first input."""

STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""Inputs that are initial states, by operator; an absent state is 0."""


def is_all_zero(value: ir.Value | None) -> bool:
    """Return True if every element is +0, through fills and data movement."""
    seen = 0
    stack = [value]
    while stack:
        current = stack.pop()
        seen += 1
        if current is None or seen > 32:
            return False
        tensor = facts.constant_tensor(current)
        if tensor is not None:
            if tensor.dtype == ir.DataType.STRING or tensor.size > facts.SMALL:
                return False
            array = tensor.numpy()
            if array.astype(np.float64).any() or np.signbit(array.astype(np.float64)).any():
                return False
            continue
        node = current.producer()
        if facts.is_op(node, "ConstantOfShape"):
            assert node is not None
            fill = node.attributes.get("value")
            if fill is not None and (fill.is_ref() or fill.as_tensor().numpy().any()):
                return False
        elif facts.is_op(node, *MOVEMENT):
            assert node is not None
            stack.append(node.inputs[0])
        elif facts.is_op(node, "Concat"):
            assert node is not None
            stack.extend(node.inputs)
        else:
            return False
    return True


def _has_state_shape(s: Site, index: int) -> bool:
    """Return True if an operand is known to have the shape of a state, [directions, batch, hidden].

    The operand constrains the batch: without the operand, a call with another batch would be answered.
    """
    x, weights, state = s.input(0), s.input(2), s.input(index)
    shapes = [None if value is None else value.shape for value in (x, weights, state)]
    if any(shape is None or len(shape) != 3 for shape in shapes):
        return False
    (x_shape, weights_shape, state_shape) = [list(shape) for shape in shapes if shape is not None]
    directions = 2 if s.attr("direction", "forward") == "bidirectional" else 1
    batch_axis, direction_axis = (0, 1) if s.attr("layout", 0) else (1, 0)
    return (
        state_shape[direction_axis] == directions
        and _is_same(state_shape[batch_axis], x_shape[0 if batch_axis == 0 else 1])
        and _is_same(state_shape[2], weights_shape[2])
    )


def _is_same(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> bool:
    return a == b if isinstance(a, int) else a.value is not None and a == b


@rule("eliminate_zero_initial_state", on=("LSTM", "GRU", "RNN"), exactness=EXACT, opset=7)
def zero_state(s: Site) -> Result:
    """Remove an initial state of zeros, which is the default."""
    zero = [i for i in STATES[s.node.op_type] if s.input(i) is not None and is_all_zero(s.input(i))]
    if not zero:
        return None
    if facts.refers_to_function_attribute(s.node):
        return Refusal("an attribute refers to an attribute of the enclosing function")
    if unfit := next((i for i in zero if not _has_state_shape(s, i)), None):
        return Refusal(f"the shape of input {unfit} is not known to be that of a state")
    operands = [None if i in zero else v for i, v in enumerate(s.node.inputs)]
    while operands[-1] is None:
        operands.pop()
    rebuilt = Op((s.node.op_type,))(*operands, n_outputs=len(s.node.outputs), **dict(s.node.attributes))
    return tuple(rebuilt.out(i) if not facts.unused(v) else None for i, v in enumerate(s.node.outputs))
