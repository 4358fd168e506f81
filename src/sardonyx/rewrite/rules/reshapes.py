"""Operators that keep elements in order and change only the shape: merged, moved together, or dropped."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, REASSOCIATES, Expr, Refusal, Result, rule
from sardonyx.rewrite.notation import Reshape
from sardonyx.rewrite.rules.broadcasting import keeps_shape
from sardonyx.rewrite.rules.shape_arithmetic import constant_target
from sardonyx.rewrite.rules.signatures import again, checks_sizes, read_only_by
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sizes import equal

FAMILY = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")

UNARY = frozenset(
    {"Abs", "Cast", "Ceil", "Celu", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"}
    | {"IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid"}
    | {"Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu"}
)
"""Element-wise operators of one tensor."""

BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Equal", "Less", "Greater", "And", "Or", "Xor", "Max", "Min"})
"""Element-wise operators that may have a single number for their second tensor."""

UNCHECKED = "a Squeeze takes an axis that is not known to be of size 1, and fails where it is not"

LONGEST_CHAIN = 8
"""Element-wise operators in a row that a shape change is looked for behind."""


def same_dims(s: Site, a: ir.Value | None, b: ir.Value | None) -> bool:
    """Whether two tensors surely have the same shape, open sizes included."""
    left, right = s.sizes.dims(a), s.sizes.dims(b)
    if left is None or right is None or len(left) != len(right):
        return False
    return all(equal(x, y) is True for x, y in zip(left, right, strict=True))


def in_shape_of(s: Site, x: ir.Value | None, like: ir.Value) -> Expr | ir.Value | None:
    """``x`` with its elements in the shape of ``like``: as it is, or reshaped; None where too many sizes are open."""
    dims, wanted = s.sizes.dims(x), s.sizes.dims(like)
    if x is None or dims is None or wanted is None:
        return None
    if same_dims(s, x, like):
        return x
    target = constant_target(wanted, dims)
    return None if target is None else Reshape(x, np.array(target, np.int64))


@rule("eliminate_nop_flatten", on="Flatten", exactness=EXACT)
def flatten_of_matrix(s: Site) -> Result:
    """Flatten of what has two dimensions already."""
    if s.rank(0) == 2 and s.attr("axis") in (1, -1):
        return s.input(0)
    return s.input(0) if same_dims(s, s.input(0), s.output) else None


@rule("eliminate_nop_reshape", on=("Reshape", "Squeeze"), exactness=EXACT)
def shape_kept(s: Site) -> Result:
    """A shape operator whose result has the shape of its input, open sizes included."""
    return s.input(0) if same_dims(s, s.input(0), s.output) else None


@rule("fuse_consecutive_reshapes", on=FAMILY, after=FAMILY, exactness=EXACT, opset=5)
def reshape_of_reshape(s: Site) -> Result:
    """Reshape, Flatten, Squeeze or Unsqueeze of another of these is one Reshape."""
    inner, between = s.producer(0, *FAMILY), s.input(0)
    if inner is None or between is None:
        return None
    if s.node.op_type == inner.op_type and inner.op_type in ("Squeeze", "Unsqueeze"):
        return None
    if checks_sizes(s, inner, s.node):
        return Refusal(UNCHECKED)
    source = inner.inputs[0]
    if source is not None and same_dims(s, source, s.output):
        return source
    if not read_only_by(between, *FAMILY):
        return Refusal(f"'{between.name}' is read by other operators too")
    merged = in_shape_of(s, source, s.output)
    if merged is not None:
        return merged
    target = s.sizes.constant(s.input(1)) if s.node.op_type == "Reshape" else None
    if target is not None and (0 not in target or s.attr("allowzero", 0)):
        return Reshape(source, s.input(1), allowzero=s.attr("allowzero", 0) or None)
    return Refusal("more than one size of the result is open")


@rule("eliminate_consecutive_idempotent_ops", on="Reshape", after="Reshape", exactness=EXACT, opset=5)
def reshape_twice(s: Site) -> Result:
    """Reshape of a Reshape to a shape that takes nothing from its input."""
    inner = s.producer(0, "Reshape")
    if inner is None or not facts.used_once(inner.outputs[0]):
        return None
    target = facts.constant_ints(s.input(1))
    if target is None or (0 in target and not s.attr("allowzero", 0)):
        return Refusal("the shape is not constant, or takes a size from the input")
    return Reshape(inner.inputs[0], s.input(1), allowzero=s.attr("allowzero", 0) or None)


@rule("eliminate_reshape_around_elementwise", on=FAMILY, exactness=EXACT, opset=5)
def reshape_around_elementwise(s: Site) -> Result:
    """A change of shape before an element-wise operator moves behind it, where another stands and takes it in."""
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
    if checks_sizes(s, shaper, s.node):
        return Refusal(UNCHECKED)
    source = shaper.inputs[0]
    if not facts.used_once(value) and not same_dims(s, source, s.output):
        return None
    moved = in_shape_of(s, source, s.output)
    if moved is None:
        return Refusal("more than one size of the result is open")
    for node, position in reversed(chain):
        others = [v for i, v in enumerate(node.inputs) if i != position]
        if node.op_type in BINARY and not keeps_shape(s, s.output, others):
            return Refusal("the number has more dimensions than the result")
        inputs: list[Expr | ir.Value | None] = list(node.inputs)
        inputs[position] = moved
        moved = again(node, *inputs)
    return moved


@rule("eliminate_reshape_around_elementwise", on=tuple(sorted(BINARY)), after=FAMILY, exactness=EXACT, opset=7)
def both_operands_reshaped(s: Site) -> Result:
    """An element-wise operator of two tensors of one shape, each put into another shape, comes before that change."""
    if len(s.node.inputs) != 2 or s.input(0) is s.input(1):
        return None
    left, right = s.producer(0, *FAMILY), s.producer(1, *FAMILY)
    if left is None or right is None:
        return None
    if not same_dims(s, left.inputs[0], right.inputs[0]) or not same_dims(s, s.input(0), s.input(1)):
        return None
    if not facts.used_once(left.outputs[0]) or not facts.used_once(right.outputs[0]):
        return Refusal("one of the shapes has other readers")
    if checks_sizes(s, right):
        return Refusal(UNCHECKED)
    return again(left, again(s.node, left.inputs[0], right.inputs[0]), *left.inputs[1:])


@rule("fuse_reshapes_around_matmul", on=FAMILY, after="MatMul", exactness=REASSOCIATES, opset=5)
def rows_made_for_product(s: Site) -> Result:
    """Axes joined to the rows of a matrix before its product with another, and parted after it, stay apart."""
    product = s.producer(0, "MatMul")
    if product is None or facts.rank(product.inputs[1]) != 2:
        return None
    rows = None if product.inputs[0] is None else product.inputs[0].producer()
    if rows is None or rows.graph is not s.graph or not facts.is_op(rows, *FAMILY):
        return None
    before, joined, after = (s.sizes.dims(v) for v in (rows.inputs[0], product.inputs[0], s.output))
    if before is None or joined is None or after is None or len(before) < 2 or len(before) != len(after):
        return None
    kept = all(equal(a, b) is True for a, b in zip(before[:-1], after[:-1], strict=True))
    if not kept or equal(before[-1], joined[-1]) is not True:
        return Refusal("the axes parted after the product are not those joined before it")
    if not facts.used_once(product.outputs[0]):
        return Refusal("the product has other readers")
    if checks_sizes(s, rows, s.node):
        return Refusal(UNCHECKED)
    return again(product, rows.inputs[0], product.inputs[1])


def _tensor_operand(node: ir.Node) -> int | None:
    """The operand that alone decides the shape: of a unary operator, or of a binary one with a number."""
    if node.op_type in UNARY:
        return 0
    if node.op_type not in BINARY:
        return None
    for number, tensor in ((1, 0), (0, 1)):
        found = facts.constant_tensor(node.inputs[number])
        if (
            found is not None
            and found.size == 1
            and len(found.shape) <= 1
            and not facts.is_constant(node.inputs[tensor])
        ):
            return tensor
    return None


@rule("rewrite_transpose_to_reshape", on="Transpose", exactness=EXACT, opset=5)
def transpose_that_moves_nothing(s: Site) -> Result:
    """Transpose that only moves axes of size 1 is a Reshape, where another shape operator stands next to it."""
    dims, perm = s.sizes.dims(s.input(0)), s.attr("perm")
    if dims is None:
        return None
    order = [axis for axis in (perm or reversed(range(len(dims)))) if dims[axis] != 1]
    if order != sorted(order):
        return None
    before = s.producer(0, *FAMILY)
    after = [use.node.op_type in FAMILY and use.idx == 0 for use in s.output.uses()]
    if before is None and not any(after):
        return None
    return in_shape_of(s, s.input(0), s.output)
