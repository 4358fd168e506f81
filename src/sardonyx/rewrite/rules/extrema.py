"""Nested maxima and minima: one operator with all operands, and one constant."""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import REASSOCIATES, Op, Result, rule
from sardonyx.rewrite.site import Site

_EXTREMA = {"Max": np.maximum, "Min": np.minimum}


@rule("fuse_consecutive_extrema", on=_EXTREMA, after=_EXTREMA, exactness=REASSOCIATES, opset=8)
def nested_extrema(s: Site) -> Result:
    """Fuse max(max(x, a), b) into max(x, a, b), and constants into one; zeros may change their sign. Min likewise."""
    operands: list[ir.Value] = []
    inner = 0
    for value in s.node.inputs:
        if value is None:
            continue
        node = value.producer()
        if node is not None and node.graph is s.graph and facts.is_op(node, s.node.op_type) and facts.used_once(value):
            operands += [operand for operand in node.inputs if operand is not None]
            inner += 1
        else:
            operands.append(value)
    if not inner:
        return None
    constants = {value: array for value in operands if (array := facts.small_constant(value)) is not None}
    merged = _merged(s.node.op_type, list(constants.values()))
    if merged is None:
        return Op((s.node.op_type,))(*dict.fromkeys(operands))
    return Op((s.node.op_type,))(*dict.fromkeys(v for v in operands if v not in constants), merged)


def _merged(op_type: str, constants: list[np.ndarray]) -> np.ndarray | None:
    """Return the extremum of constants if it is no larger than the largest of them; None for fewer than two."""
    if len(constants) < 2 or any(np.isnan(array).any() for array in constants if array.dtype.kind == "f"):
        return None
    try:
        merged = np.asarray(functools.reduce(_EXTREMA[op_type], constants), constants[0].dtype)
    except ValueError:  # the shapes do not broadcast, which the run of the model reports
        return None
    return merged if merged.size == max(array.size for array in constants) else None
