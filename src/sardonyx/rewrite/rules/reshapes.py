"""Operators that only change the shape: merge, move, remove."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.inference import inferred_dims
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import (
    EXACT,
    REASSOCIATES,
    A,
    AnyOf,
    Expr,
    Match,
    Refusal,
    Result,
    Rewrite,
    V,
    guard,
    rule,
    unshared,
    where,
)
from sardonyx.rewrite.notation import Flatten, MatMul, Reshape, Transpose
from sardonyx.rewrite.rules.broadcasting import keeps_shape
from sardonyx.rewrite.rules.shape_arithmetic import constant_target
from sardonyx.rewrite.rules.signatures import is_read_only_by, may_reject_sizes, reapply
from sardonyx.rewrite.site import Site

FAMILY = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")

UNARY = frozenset(
    {"Abs", "Cast", "Ceil", "Celu", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"}
    | {"IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid"}
    | {"Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu"}
)
"""Elementwise operators of one tensor."""

BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Equal", "Less", "Greater", "And", "Or", "Xor", "Max", "Min"})
"""Elementwise operators whose other operand may be a number."""

UNCHECKED = "a removed Squeeze or Reshape is not known to accept the sizes, and fails if it does not"

LONGEST_CHAIN = 8
"""Consecutive elementwise operators after which a shape change is searched."""


def have_same_dims(s: Site, a: ir.Value | None, b: ir.Value | None) -> bool:
    """Return True if two tensors are known to have the same shape, including open sizes."""
    left, right = s.sizes.dims(a), s.sizes.dims(b)
    if left is None or right is None or len(left) != len(right):
        return False
    return all(equal(x, y) is True for x, y in zip(left, right, strict=True))


def reshape_like(s: Site, x: ir.Value | None, like: ir.Value) -> Expr | ir.Value | None:
    """Return ``x`` in the shape of ``like``: unchanged, or reshaped; None if too many sizes are open."""
    dims, shape = s.sizes.dims(x), s.sizes.dims(like)
    if x is None or dims is None or shape is None:
        return None
    if have_same_dims(s, x, like):
        return x
    target = constant_target(shape, dims)
    return None if target is None else Reshape(x, np.array(target, np.int64))


def output_has_dims(s: Site, x: ir.Value | None) -> bool:
    """Return True if the operands of the root give its output the shape of ``x``: declarations may be wrong."""
    if not have_same_dims(s, x, s.output):
        return False
    dims, inferred = s.sizes.dims(x), inferred_dims(s.node, s.sizes, s.workspace.opset_imports)
    if dims is None or inferred is None or len(dims) != len(inferred):
        return False
    return all(equal(x, y) is True for x, y in zip(dims, inferred, strict=True))


def keeps_dims(m: Match) -> bool:
    """Return True if the root's output is known to have the shape of x."""
    return output_has_dims(m.site, m.x)


@rule("eliminate_nop_flatten", exactness=EXACT)
def flatten_of_matrix(x: V, axis: A) -> Rewrite:
    """Remove a Flatten of a matrix."""
    is_matrix = guard(lambda m: (facts.rank(m.x) == 2 and m.axis in (1, -1)) or keeps_dims(m), "")
    return Flatten(x, axis=axis) >> x | where(is_matrix)


@rule("eliminate_nop_reshape", exactness=EXACT)
def shape_kept(x: V) -> Rewrite:
    """Remove a shape operator whose result has the shape of its input, including open sizes."""

    def cannot_fail(m: Match) -> bool:
        return not may_reject_sizes(m.site, m.nodes[0])

    return AnyOf("Reshape", "Squeeze")(x, ...) >> x | where(guard(keeps_dims, ""), guard(cannot_fail, ""))


@rule("fuse_consecutive_reshapes", on=FAMILY, after=FAMILY, exactness=EXACT, opset=5)
def reshape_of_reshape(s: Site) -> Result:
    """Fuse Reshape, Flatten, Squeeze or Unsqueeze of another of these into one Reshape."""
    inner, between = s.producer(0, *FAMILY), s.input(0)
    if inner is None or between is None:
        return None
    if s.node.op_type == inner.op_type and inner.op_type in ("Squeeze", "Unsqueeze"):
        return None
    if may_reject_sizes(s, inner, s.node):
        return Refusal(UNCHECKED)
    source = inner.inputs[0]
    if source is not None and output_has_dims(s, source):
        return source
    if not is_read_only_by(between, *FAMILY):
        return Refusal(f"'{between.name}' has other readers")
    merged = reshape_like(s, source, s.output)
    if merged is not None:
        return merged
    target = s.sizes.constant(s.input(1)) if s.node.op_type == "Reshape" else None
    if target is not None and (0 not in target or s.attr("allowzero", 0)):
        return Reshape(source, s.input(1), allowzero=s.attr("allowzero", 0) or None)
    return Refusal("more than one size of the result is open")


def copies_no_size(m: Match) -> Refusal | None:
    """Guard: the shape is constant, and no entry of it means a size of the input."""
    target = facts.constant_ints(m.shape)
    if target is None or (0 in target and not m.allowzero):
        return Refusal("the shape is not constant, or copies a size of the input")
    return None


def accepts_sizes(m: Match) -> Refusal | None:
    """Guard: the first of two shape operators cannot fail."""
    return Refusal(UNCHECKED) if may_reject_sizes(m.site, m.nodes[1]) else None


@rule("eliminate_consecutive_idempotent_ops", exactness=EXACT, opset=5)
def reshape_twice(x: V, shape: V, allowzero: A) -> Rewrite:
    """Remove the first of two Reshapes if the second copies no size."""
    once = Reshape(x, shape, allowzero=lambda m: m.allowzero or None)
    return Reshape(Reshape(x, ...), shape, allowzero=allowzero) >> once | where(unshared, copies_no_size, accepts_sizes)


@rule("eliminate_reshape_around_elementwise", on=FAMILY, exactness=EXACT, opset=5)
def reshape_around_elementwise(s: Site) -> Result:
    """Move a shape change from before elementwise operators to after them, next to another shape change."""
    chain: list[tuple[ir.Node, int]] = []
    value = s.input(0)
    while value is not None and len(chain) <= LONGEST_CHAIN:
        node = value.producer()
        if node is None or node.graph is not s.node.graph or node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type in FAMILY:
            break
        position = _tensor_operand(node)
        if position is None or not facts.used_once(value):
            return None
        chain.append((node, position))
        value = node.inputs[position]
    if not chain or value is None or (shaper := value.producer()) is None or shaper.op_type not in FAMILY:
        return None
    if may_reject_sizes(s, shaper, s.node):
        return Refusal(UNCHECKED)
    source = shaper.inputs[0]
    if not facts.used_once(value) and not output_has_dims(s, source):
        return None
    moved = reshape_like(s, source, s.output)
    if moved is None:
        return Refusal("more than one size of the result is open")
    for node, position in reversed(chain):
        others = [v for i, v in enumerate(node.inputs) if i != position]
        if node.op_type in BINARY and not keeps_shape(s, s.output, others):
            return Refusal("the other operand has a higher rank than the result")
        inputs: list[Expr | ir.Value | None] = list(node.inputs)
        inputs[position] = moved
        moved = reapply(node, *inputs)
    return moved


@rule("eliminate_reshape_around_elementwise", exactness=EXACT, opset=7)
def both_operands_reshaped(x: V, y: V) -> Rewrite:
    """Move equal shape changes of both operands of an elementwise operator to its result."""

    def move(m: Match) -> Result:
        s, (operator, left, right) = m.site, m.nodes
        if left is right or not have_same_dims(s, m.x, m.y):
            return None
        if not have_same_dims(s, left.outputs[0], right.outputs[0]):
            return None
        if not facts.used_once(left.outputs[0]) or not facts.used_once(right.outputs[0]):
            return Refusal("a reshaped operand has other readers")
        if may_reject_sizes(s, right):
            return Refusal(UNCHECKED)
        inputs = [m.x, m.y] if operator.inputs[0] is left.outputs[0] else [m.y, m.x]
        return reapply(left, reapply(operator, *inputs), *left.inputs[1:])

    return AnyOf(*sorted(BINARY))(AnyOf(*FAMILY)(x, ...), AnyOf(*FAMILY)(y, ...)) >> move


@rule("fuse_reshapes_around_matmul", exactness=REASSOCIATES, opset=5)
def rows_made_for_product(x: V, w: V) -> Rewrite:
    """Remove the Reshapes around a product with a matrix that merge and split the axes of its rows."""

    def multiply(m: Match) -> Result:
        s, (_, product, rows) = m.site, m.nodes
        if facts.rank(m.w) != 2:
            return None
        before, joined, after = (s.sizes.dims(v) for v in (m.x, rows.outputs[0], s.output))
        if before is None or joined is None or after is None or len(before) < 2 or len(before) != len(after):
            return None
        has_same_lead = all(equal(a, b) is True for a, b in zip(before[:-1], after[:-1], strict=True))
        if not has_same_lead or equal(before[-1], joined[-1]) is not True:
            return Refusal("the axes split after the product are not the axes merged before")
        if not facts.used_once(product.outputs[0]):
            return Refusal("the product has other readers")
        if may_reject_sizes(s, rows, s.node):
            return Refusal(UNCHECKED)
        return MatMul(m.x, m.w)

    return AnyOf(*FAMILY)(MatMul(AnyOf(*FAMILY)(x, ...), w), ...) >> multiply


def _tensor_operand(node: ir.Node) -> int | None:
    """Return the index of the operand that alone decides the shape, or None."""
    if node.op_type in UNARY:
        return 0
    if node.op_type not in BINARY:
        return None
    for number, tensor in ((1, 0), (0, 1)):
        constant = facts.constant_tensor(node.inputs[number])
        if (
            constant is not None
            and constant.size == 1
            and len(constant.shape) <= 1
            and not facts.is_constant(node.inputs[tensor])
        ):
            return tensor
    return None


@rule("rewrite_transpose_to_reshape", exactness=EXACT, opset=5)
def transpose_that_moves_nothing(x: V, perm: A) -> Rewrite:
    """Replace a Transpose that only moves axes of size 1 by Reshape, next to another shape operator."""

    def reshape(m: Match) -> Result:
        s, dims = m.site, m.site.sizes.dims(m.x)
        if dims is None:
            return None
        order = [axis for axis in (m.perm or reversed(range(len(dims)))) if dims[axis] != 1]
        if order != sorted(order):
            return None
        is_before_shape = any(use.node.op_type in FAMILY and use.idx == 0 for use in s.output.uses())
        if s.producer(0, *FAMILY) is None and not is_before_shape:
            return None
        return reshape_like(s, m.x, s.output)

    return Transpose(x, perm=perm) >> reshape
