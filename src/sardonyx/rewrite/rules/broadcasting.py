"""Broadcasting: which operand keeps its shape, and Expands that broadcasting makes redundant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import CONSTANT, EXACT, REASSOCIATES, Expr, Guard, Refusal, Result, V, guard, rule
from sardonyx.rewrite.notation import ConstantOfShape
from sardonyx.rewrite.rules.ranges import value_range
from sardonyx.rewrite.rules.signatures import reapply
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.weight_dependencies import query

BROADCASTING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater"}
    | {"GreaterOrEqual", "Sum", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"}
)
"""Operators whose operands all broadcast against each other."""

CHOOSING = frozenset({"Where", "Max", "Min", "Mean"})
"""Operators whose ONNX Runtime kernel for operands of one shape gives zeros another sign."""

LARGEST_MASK = 1 << 20
"""Elements up to which a constant mask is read."""

_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")

_DEEPEST = 4

WRITTEN_OUT = 1024
"""Bytes up to which a tensor of one repeated number is written as a constant rather than as its shape."""


def keeps_shape(s: Site, x: ir.Value | None, others: Iterable[ir.Value | None]) -> bool:
    """Return True if broadcasting ``x`` with the others certainly gives the shape of ``x``."""
    dims = s.sizes.dims(x)
    for other in others:
        shape = s.sizes.dims(other)
        if shape is None:
            return False
        if not shape:
            continue
        if dims is None or len(shape) > len(dims):
            return False
        tail = dims[len(dims) - len(shape) :]
        if not all(size == 1 or equal(size, have) is True for size, have in zip(shape, tail, strict=True)):
            return False
    return True


def broadcasts_into(x: V, *others: V) -> Guard:
    """Guard: broadcasting x with the others certainly gives the shape of x."""
    return guard(
        lambda m: keeps_shape(m.site, m.bound[x.name], [m.bound[other.name] for other in others]),
        f"{' and '.join(other.name for other in others)} may broadcast {x.name} to another shape",
    )


REPEATING = (CONSTANT, "ConstantOfShape", "Expand", "Reshape", "Unsqueeze", "Where", *_COMPARISONS)
"""Producers of the tensors that ``repeated_number`` evaluates."""


def repeated_number(s: Site, value: ir.Value | None, depth: int = 0) -> Any:
    """Return the number that a tensor holds everywhere, or None: constants, fills and choices."""
    tensor = facts.constant_tensor(value)
    if tensor is not None:
        known: dict[ir.TensorProtocol, Any] = s.workspace.memo.setdefault("repeated", {})
        if tensor in known:
            return known[tensor]
        if facts.count(tensor) <= (LARGEST_MASK if tensor.dtype == ir.DataType.BOOL else facts.SMALL):
            number = known[tensor] = query(_everywhere, tensor)
            return number
    node = None if value is None else value.producer()
    if node is None or depth > _DEEPEST:
        return None
    if facts.is_op(node, "Expand", "Reshape", "Unsqueeze"):
        return repeated_number(s, node.inputs[0], depth + 1)
    if facts.is_op(node, "ConstantOfShape"):
        fill = node.attributes.get("value")
        if fill is None:
            return 0.0
        return None if fill.is_ref() else fill.as_tensor().numpy().reshape(-1)[0].item()
    if facts.is_op(node, "Where"):
        condition = repeated_number(s, node.inputs[0], depth + 1)
        return None if condition is None else repeated_number(s, node.inputs[1 if condition else 2], depth + 1)
    return _decided(s, node) if facts.is_op(node, *_COMPARISONS) else None


def _everywhere(array: np.ndarray) -> Any:
    if array.size == 0 or array.dtype.kind not in "fiub":
        return None
    flat = array.reshape(-1)
    first = flat[0].tobytes()
    # The ends of most tensors differ.
    same = flat[-1].tobytes() == first and (array.size <= 2 or array.tobytes() == first * array.size)
    return flat[0].item() if same else None


def _decided(s: Site, node: ir.Node) -> bool | None:
    """Return the result of a comparison of integers everywhere, if their ranges decide it."""
    kind = facts.dtype(node.inputs[0])
    if kind is None or not kind.is_integer():
        return None
    greater = node.op_type.startswith("Greater")
    (low, high), (other_low, other_high) = (value_range(s, v) for v in (node.inputs if greater else node.inputs[::-1]))
    equal_too = node.op_type.endswith("OrEqual")
    if low is not None and other_high is not None and (low >= other_high if equal_too else low > other_high):
        return True
    surely_less = high is not None and other_low is not None and (high < other_low if equal_too else high <= other_low)
    return False if surely_less else None


def fill_tensor(shape: Sequence[int], number: object, kind: ir.DataType) -> np.ndarray | Expr:
    """Return a tensor of one repeated number: a constant if small, else a ConstantOfShape."""
    one = np.array([number]).astype(kind.numpy())
    if one.nbytes * int(np.prod(shape, dtype=object)) <= WRITTEN_OUT:
        return np.full(tuple(shape), one[0], one.dtype)
    return ConstantOfShape(np.array(shape, np.int64), value=ir.AttrTensor("value", ir.Tensor(one)))


@rule("eliminate_nop_expand", on=BROADCASTING, after="Expand", exactness=EXACT)
def expand_before_broadcast(s: Site) -> Result:
    """Remove an Expand before an operator that broadcasts to the same shape."""
    return _without_expand(s)


@rule("eliminate_nop_expand", on=CHOOSING, exactness=REASSOCIATES)
def expand_before_choice(s: Site) -> Result:
    """Remove an Expand before Where, Max, Min or Mean that broadcasts to the same shape."""
    return _without_expand(s)


def _without_expand(s: Site) -> Result:
    near: Result = None
    for i, value in enumerate(s.node.inputs):
        expand = s.producer(i, "Expand")
        if expand is None or value is None:
            continue
        if _broadcast_anyway(s, i, value, expand.inputs[0]):
            inputs = list(s.node.inputs)
            inputs[i] = expand.inputs[0]
            return reapply(s.node, *inputs)
        near = Refusal("the Expand decides the shape of the result")
    return near


def _broadcast_anyway(s: Site, index: int, expanded: ir.Value, source: ir.Value | None) -> bool:
    """Return True if the other operands give every size that the Expand gives."""
    want, have = s.sizes.dims(expanded), s.sizes.dims(source)
    others = [s.sizes.dims(v) for i, v in enumerate(s.node.inputs) if i != index]
    if want is None or have is None:
        return False
    for back, size in enumerate(reversed(want), 1):
        if _size_at(have, back, size) or any(o is not None and _size_at(o, back, size) for o in others):
            continue
        # A new axis of size 1 broadcasts to any size, but another operand must have the axis.
        if size != 1 or back <= len(have) or not any(o is not None and back <= len(o) for o in others):
            return False
    return True


def _size_at(dims: Sequence[Size], back: int, size: Size) -> bool:
    """Return True if the axis ``back`` from the end certainly has this size."""
    return back <= len(dims) and equal(dims[-back], size) is True
