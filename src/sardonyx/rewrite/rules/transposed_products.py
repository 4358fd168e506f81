"""Batched products with transposed and scaled operands, as ONNX Runtime's FusedMatMul.

The pass runs after the Transposes have been moved and attention has been fused: the rest goes into the product.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import REASSOCIATES, Patch, Refusal, Result, microsoft
from sardonyx.rewrite.rules.contributed import DOMAIN, ONNXRUNTIME
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.polynomials import number_of
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sweep import sweep

_BEFORE_SOFTMAX = ("Add", "Div", "Mul", "Where")
"""Operators between the scores of attention and their Softmax."""

_FARTHEST = 4


@sweep("fuse_matmul_transpose", exactness=REASSOCIATES, on=("MatMul",), emits=DOMAIN, targets=ONNXRUNTIME)
def turned_operands(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Fuse transposed operands and a scalar factor of a product into ONNX Runtime's FusedMatMul."""
    for inner in engine.graphs(graph):
        for node in [node for node in inner if facts.is_op(node, "MatMul")]:
            if engine.alive(node):
                yield node, _fuse(Site(engine, node))


def _fuse(s: Site) -> Result:
    operands = [_match_transposed(s, value) for value in s.node.inputs]
    end, alpha = _match_scale(s)
    if alpha is None and not any(is_transposed for _, is_transposed in operands):
        return None
    if facts.dtype(s.output) != ir.DataType.FLOAT:
        return Refusal("the kernel supports float32 only")
    if any((facts.rank(value) or 0) < 2 for value in s.node.inputs):
        return Refusal("an operand is a vector, or its rank is not known")
    if _is_in_attention(s):
        return Refusal("engines match attention in its unfused form")
    flags = {name: 1 for name, (_, is_transposed) in zip(("transA", "transB"), operands, strict=True) if is_transposed}
    return Patch({end: microsoft("FusedMatMul")(*(value for value, _ in operands), alpha=alpha, **flags)})


def _match_transposed(s: Site, value: ir.Value | None) -> tuple[ir.Value | None, bool]:
    """Return the tensor before a swap of the last two axes and True, else ``value`` and False."""
    node = producer_of(s, value, "Transpose")
    rank = facts.rank(value)
    if node is None or value is None or rank is None or rank < 2 or not facts.used_once(value):
        return value, False
    perm = s.attr("perm", tuple(reversed(range(rank))), node=node)
    last_two = tuple(perm) == (*range(rank - 2), rank - 1, rank - 2)
    return (node.inputs[0], True) if last_two else (value, False)


def _match_scale(s: Site) -> tuple[ir.Value, float | None]:
    """Return the product after a scalar factor, and the factor; None as factor if there is none."""
    if not facts.used_once(s.output) or any(facts.is_constant(value) for value in s.node.inputs):
        return s.output, None
    ((node, index),) = s.output.uses()
    if not facts.is_op(node, "Mul", "Div") or node.graph is not s.graph or (node.op_type == "Div" and index):
        return s.output, None
    number = number_of(node.inputs[1 - index])
    if not number or facts.rank(node.outputs[0]) != facts.rank(s.output):
        return s.output, None
    return node.outputs[0], number if node.op_type == "Mul" else 1 / number


def _is_in_attention(s: Site) -> bool:
    """Return True if a Softmax produces an operand of the product, or reads its result within a few nodes."""
    if any(producer_of(s, value, "Softmax") is not None for value in s.node.inputs):
        return True
    front = [s.output]
    for _ in range(_FARTHEST):
        readers = [use.node for value in front for use in value.uses()]
        if any(facts.is_op(node, "Softmax") for node in readers):
            return True
        front = [node.outputs[0] for node in readers if facts.is_op(node, *_BEFORE_SOFTMAX)]
    return False
