"""Batched products that turn and scale their operands by themselves, as ONNX Runtime contributes them.

It is looked for when Transposes have been moved, and where attention has become one operator: what is left of both
goes into the product.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.engine import Engine
from sardonyx.rewrite.language import REASSOCIATES, Patch, Refusal, Result, microsoft
from sardonyx.rewrite.rules.contributed import DOMAIN, ONNXRUNTIME
from sardonyx.rewrite.rules.normalization import made_by
from sardonyx.rewrite.rules.polynomials import number_of
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sweep import sweep

_ON_THE_WAY = ("Add", "Div", "Mul", "Where")
"""What stands between the scores of attention and their Softmax."""

_FARTHEST = 4


@sweep("fuse_matmul_transpose", exactness=REASSOCIATES, on=("MatMul",), emits=DOMAIN, targets=ONNXRUNTIME)
def turned_operands(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """A product of transposed tensors, or times a number, is ONNX Runtime's FusedMatMul."""
    for inner in engine.graphs(graph):
        for node in [node for node in inner if facts.is_op(node, "MatMul")]:
            if engine.alive(node):
                yield node, _fused(Site(engine, node))


def _fused(s: Site) -> Result:
    operands = [_turned(s, value) for value in s.node.inputs]
    end, alpha = _scaled(s)
    if alpha is None and not any(turned for _, turned in operands):
        return None
    if facts.dtype(s.output) != ir.DataType.FLOAT:
        return Refusal("its kernel takes 32-bit floats only")
    if any((facts.rank(value) or 0) < 2 for value in s.node.inputs):
        return Refusal("an operand is a vector, or its rank is not known")
    if _of_attention(s):
        return Refusal("engines look for attention as it stands")
    flags = {name: 1 for name, (_, turned) in zip(("transA", "transB"), operands, strict=True) if turned}
    return Patch({end: microsoft("FusedMatMul")(*(value for value, _ in operands), alpha=alpha, **flags)})


def _turned(s: Site, value: ir.Value | None) -> tuple[ir.Value | None, bool]:
    """The tensor of which ``value`` has the last two axes changed over, and whether there is one."""
    node = made_by(s, value, "Transpose")
    rank = facts.rank(value)
    if node is None or value is None or rank is None or rank < 2 or not facts.used_once(value):
        return value, False
    perm = s.attr("perm", tuple(reversed(range(rank))), node=node)
    last_two = tuple(perm) == (*range(rank - 2), rank - 1, rank - 2)
    return (node.inputs[0], True) if last_two else (value, False)


def _scaled(s: Site) -> tuple[ir.Value, float | None]:
    """What the product becomes by one number that it is multiplied by or divided by, and the number."""
    if not facts.used_once(s.output) or any(facts.is_constant(value) for value in s.node.inputs):
        return s.output, None
    ((node, index),) = s.output.uses()
    if not facts.is_op(node, "Mul", "Div") or node.graph is not s.graph or (node.op_type == "Div" and index):
        return s.output, None
    number = number_of(node.inputs[1 - index])
    if not number or facts.rank(node.outputs[0]) != facts.rank(s.output):
        return s.output, None
    return node.outputs[0], number if node.op_type == "Mul" else 1 / number


def _of_attention(s: Site) -> bool:
    """Whether a Softmax makes an operand of the product, or is made of it on a short way."""
    if any(made_by(s, value, "Softmax") is not None for value in s.node.inputs):
        return True
    front = [s.output]
    for _ in range(_FARTHEST):
        readers = [use.node for value in front for use in value.uses()]
        if any(facts.is_op(node, "Softmax") for node in readers):
            return True
        front = [node.outputs[0] for node in readers if facts.is_op(node, *_ON_THE_WAY)]
    return False
