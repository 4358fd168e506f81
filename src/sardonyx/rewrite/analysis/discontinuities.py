"""Discontinuous operators: a last bit before ``Floor``, ``Cast`` to integers or a comparison is a whole step after.

Arithmetic before a discontinuity is left as the model has it: ``Ceil(x / 49 * 49)`` and ``Ceil(x)`` differ at 41.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Pow", "Reciprocal", "Sqrt", "Sum"})
"""Operators that compute exact results in the model's intention; layers and activations only approximate theirs."""

_DISCONTINUOUS = frozenset(
    {"Floor", "Ceil", "Round", "Sign", "Mod", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"}
)
"""``QuantizeLinear`` is left out, since its codes are approximations, and so are choices among many (``ArgMax``)."""

_PASSING = _ARITHMETIC | frozenset(
    {
        "Abs", "Clip", "Exp", "Log", "Max", "Min", "Relu", "Where", "Cast", "CastLike", "Identity", "Reshape",
        "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Expand", "Slice", "Concat", "Split", "Tile", "Gather",
    }
)  # fmt: skip

_FARTHEST = 64
"""Most values that are followed to a discontinuity."""


def precedes_discontinuity(value: ir.Value) -> bool:
    """Return True if arithmetic and movements lead from a float to a discontinuous operator."""
    seen = {value: None}
    stack = [value]
    while stack and len(seen) <= _FARTHEST:
        for use in stack.pop().uses():
            node = use.node
            if node.domain not in facts.STANDARD:
                continue
            if node.op_type in _DISCONTINUOUS or _truncates(node):
                return True
            if node.op_type in _PASSING:
                new = [output for output in node.outputs if output not in seen]
                seen.update(dict.fromkeys(new))
                stack += new
    return False


def _truncates(node: ir.Node) -> bool:
    """Return True for a conversion to integers or booleans."""
    kind = facts.dtype(node.outputs[0]) if node.op_type in ("Cast", "CastLike") else None
    return kind is not None and not kind.is_floating_point()


def computes_before_discontinuity(values: Iterable[ir.Value], nodes: Iterable[ir.Node]) -> bool:
    """Return True if nodes are arithmetic alone, and one of their floats precedes a discontinuity.

    Args:
        values: The results.
        nodes: The nodes that compute the results.
    """
    computing = [node for node in nodes if node.op_type != "Constant"]
    if not all(node.op_type in _ARITHMETIC and node.domain in facts.STANDARD for node in computing):
        return False
    floats = [v for v in values if (kind := facts.dtype(v)) is not None and kind.is_floating_point()]
    return any(map(precedes_discontinuity, floats))
