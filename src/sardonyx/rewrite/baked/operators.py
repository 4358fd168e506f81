"""Detection and repair of baked sizes, by operator."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.core.dim import Size, product
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.baked.demand import demand
from sardonyx.rewrite.baked.factors import distribute, merged_sizes, split
from sardonyx.rewrite.baked.walk import Repairs, Walk

END = (1 << 63) - 1
"""A slice end beyond every axis."""


def _flatten(walk: Walk, node: ir.Node) -> bool:
    """Record merged sizes; a Flatten contains no baked sizes."""
    then, now, result = walk.original(node.inputs[0]), walk.current(node.inputs[0]), walk.original(node.outputs[0])
    if then is not None and now is not None and result is not None and then != now:
        parts = distribute(split(then, now, walk.merged), result)
        walk.merged.update(merged_sizes(parts or ()))
    return False


def _reshape(walk: Walk, node: ir.Node) -> bool:
    then, now, result = walk.original(node.inputs[0]), walk.current(node.inputs[0]), walk.original(node.outputs[0])
    if then is None or now is None or result is None or then == now:
        return False
    parts = distribute(split(then, now, walk.merged), result)
    walk.merged.update(merged_sizes(parts or ()))
    computed = inference.output_sizes(node, walk.sizes) if len(node.inputs) > 1 else None
    if parts is None:
        if computed is not None and walk.are_equal([product(computed)], [product(now)]):
            return False
        raise walk.refusal(
            node,
            f"reshapes {list(then)} to {list(result)} by a constant, incompatible with sizes {list(map(str, now))}",
        )
    sizes = [product([factor.new for factor in factors]) for factors in parts]
    if walk.are_equal(computed, sizes):
        return False
    if len(node.inputs) < 2:
        raise walk.refusal(node, "stores its target in an attribute, which cannot hold an open size")
    walk.write(node, 1, _target(walk, node, now, sizes))
    return True


def _target(walk: Walk, node: ir.Node, now: Sequence[Size], sizes: Sequence[Size]) -> list[Size]:
    """Return a Reshape target with as many numbers as 0 (copy from operand) and one −1 (the rest) allow."""
    target = list(sizes)
    copies = not walk.sizes.attr(node, "allowzero", 0) and 0 not in sizes
    if copies:
        target = [
            0 if not isinstance(size, int) and i < len(now) and now[i] == size else size
            for i, size in enumerate(target)
        ]
    left = [i for i, size in enumerate(target) if not isinstance(size, int)]
    if left and 0 not in sizes:
        target[left[0]] = -1
    return target


def _expand(walk: Walk, node: ir.Node) -> bool:
    """Replace the old size of the operand by 1 in an Expand target: the operand's size remains."""
    then, now, elements = (
        walk.original(node.inputs[0]),
        walk.current(node.inputs[0]),
        walk.sizes.elements(node.inputs[1]),
    )
    if then is None or now is None or elements is None or then == now:
        return False
    target = list(elements[1])
    shift = len(target) - len(now)
    for axis, (old, new) in enumerate(zip(then, now, strict=True)):
        position = axis + shift
        if position >= 0 and old != new and old > 1 and target[position] == old:
            target[position] = 1
    if target == list(elements[1]):
        return False
    walk.write(node, 1, target)
    return True


def _resize(walk: Walk, node: ir.Node) -> bool:
    """Preserve the ratio of a Resize to fixed sizes."""
    if len(node.inputs) < 4 or node.inputs[3] is None or node.attributes.get("axes") is not None:
        return False
    then, now, elements = (
        walk.original(node.inputs[0]),
        walk.current(node.inputs[0]),
        walk.sizes.elements(node.inputs[3]),
    )
    if then is None or now is None or elements is None or then == now:
        return False
    target = list(elements[1])
    for axis, (old, new) in enumerate(zip(then, now, strict=True)):
        size = target[axis]
        if old == new or not isinstance(size, int):
            continue
        if size % old:
            raise walk.refusal(node, f"resizes {old} to {size}, expected an integer ratio for an open size")
        target[axis] = new * (size // old)
    if target == list(elements[1]):
        return False
    walk.write(node, 3, target)
    return True


def _slice(walk: Walk, node: ir.Node) -> bool:
    """Extend a Slice up to the old size of the axis to its end."""
    if len(node.inputs) < 3 or not walk.has_changed(node.inputs[0]):
        return False
    then, now = walk.original(node.inputs[0]), walk.current(node.inputs[0])
    ends = walk.sizes.elements(node.inputs[2])
    axes = walk.sizes.constant(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else None
    if then is None or now is None or ends is None:
        return False
    if axes is None:
        axes = tuple(range(len(ends[1])))
    target = list(ends[1])
    for position, axis in enumerate(axes):
        if then[axis] != now[axis] and target[position] == then[axis]:
            target[position] = END
    if target == list(ends[1]):
        return False
    walk.write(node, 2, target)
    return True


def _broadcast(walk: Walk, node: ir.Node) -> bool:
    """Require equal sizes of operands that were of equal size."""
    dims = [(v, walk.current(v), walk.original(v)) for v in node.inputs if v is not None]
    known = [(v, now, then) for v, now, then in dims if now is not None and then is not None]
    rank = max((len(now) for _, now, _ in known), default=0)
    for axis in range(1, rank + 1):
        sizes = [(v, now[-axis], then[-axis]) for v, now, then in known if axis <= len(now)]
        opened = next(((new, old) for _, new, old in sizes if new != old), None)
        if opened is None or opened[1] == 1:
            continue
        for value, new, old in sizes:
            if new == old == opened[1]:
                demand(walk, node, value, -axis, opened[0])
                return True
    return False


def _matmul(walk: Walk, node: ir.Node) -> bool:
    """Require equal inner sizes, and leading axes that broadcast."""
    pairs = [(v, walk.current(v), walk.original(v)) for v in node.inputs[:2] if v is not None]
    if any(now is None or then is None for _, now, then in pairs) or len(pairs) < 2:
        return False
    (a, a_now, a_then), (b, b_now, b_then) = pairs
    assert a_now is not None and a_then is not None and b_now is not None and b_then is not None
    inner = -2 if len(b_now) > 1 else -1
    if a_now and b_now and a_then[-1] == b_then[inner]:
        for value, axis, mine, other in ((a, -1, a_now[-1], b_now[inner]), (b, inner, b_now[inner], a_now[-1])):
            if mine == a_then[-1] and other != a_then[-1]:
                demand(walk, node, value, axis, other)
                return True
    for axis in range(3, min(len(a_now), len(b_now)) + 1):
        old = a_then[-axis]
        if old == b_then[-axis] and old > 1 and a_now[-axis] != b_now[-axis]:
            for value, mine, other in ((a, a_now[-axis], b_now[-axis]), (b, b_now[-axis], a_now[-axis])):
                if mine == old:
                    demand(walk, node, value, -axis, other)
                    return True
    return False


def _concat(walk: Walk, node: ir.Node) -> bool:
    """Require equal sizes along all axes but the concatenated one."""
    known = [(v, walk.current(v), walk.original(v)) for v in node.inputs if v is not None]
    first = next((now for _, now, _ in known if now is not None), None)
    if first is None:
        return False
    along = walk.sizes.attr(node, "axis", 1) % len(first)
    for axis in range(len(first)):
        if axis == along:
            continue
        opened = next((now[axis] for _, now, then in known if now and then and now[axis] != then[axis]), None)
        for value, now, then in known:
            if opened is not None and now and then and now[axis] == then[axis]:
                demand(walk, node, value, axis, opened)
                return True
    return False


def _recurrent(walk: Walk, node: ir.Node) -> bool:
    """Require the batch of the sequence in initial states and lengths."""
    then, now = walk.original(node.inputs[0]), walk.current(node.inputs[0])
    batch_first = walk.sizes.attr(node, "layout", 0) == 1
    axis = 0 if batch_first else 1
    if then is None or now is None or then[axis] == now[axis]:
        return False
    for index, state_axis in ((4, 0), (5, axis), (6, axis)):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None and (dims := walk.current(value)) is not None and dims[state_axis] == then[axis]:
            demand(walk, node, value, state_axis, now[axis])
            return True
    return False


REPAIRS: Repairs = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Expand": _expand,
    "Resize": _resize,
    "Slice": _slice,
    "MatMul": _matmul,
    "Concat": _concat,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    **dict.fromkeys(sorted(inference.BROADCASTING), _broadcast),
}
"""Operator → function of (walk, node): returns True after a repair, raises ``ShapeError`` on failure."""
