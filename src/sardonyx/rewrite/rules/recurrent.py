"""Recurrent operators: optional operands that equal their default."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
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


@rule("eliminate_zero_initial_state", on=("LSTM", "GRU", "RNN"), exactness=EXACT, opset=7)
def zero_state(s: Site) -> Result:
    """Remove an initial state of zeros, which is the default."""
    zero = [i for i in STATES[s.node.op_type] if s.input(i) is not None and is_all_zero(s.input(i))]
    if not zero:
        return None
    if facts.refers_to_function_attribute(s.node):
        return Refusal("an attribute refers to an attribute of the enclosing function")
    operands = [None if i in zero else v for i, v in enumerate(s.node.inputs)]
    while operands[-1] is None:
        operands.pop()
    rebuilt = Op((s.node.op_type,))(*operands, n_outputs=len(s.node.outputs), **dict(s.node.attributes))
    return tuple(rebuilt.out(i) if not facts.unused(v) else None for i, v in enumerate(s.node.outputs))
