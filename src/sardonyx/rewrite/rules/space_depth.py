"""Reshape, Transpose and Reshape that move blocks of pixels between depth and space."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, Refusal, Result, rule
from sardonyx.rewrite.notation import DepthToSpace, SpaceToDepth
from sardonyx.rewrite.site import Site

_DEPTH_TO_SPACE: dict[tuple[int, ...], str] = {(0, 3, 4, 1, 5, 2): "DCR", (0, 1, 4, 2, 5, 3): "CRD"}
_SPACE_TO_DEPTH = (0, 3, 5, 1, 2, 4)


def _parts(s: Site) -> tuple[ir.Value, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """The input, its shape, the shape of six axes, their order, and the output's shape."""
    turned = s.producer(0, "Transpose")
    first = None if turned is None or turned.inputs[0] is None else turned.inputs[0].producer()
    if turned is None or first is None or first.graph is not s.node.graph or not facts.is_op(first, "Reshape"):
        return None
    perm = s.attr("perm", node=turned)
    if perm is None or tuple(perm) not in (*_DEPTH_TO_SPACE, _SPACE_TO_DEPTH):
        return None
    source = first.inputs[0]
    shapes = [facts.static_shape(v) for v in (source, first.outputs[0], s.output)]
    before, six, after = shapes
    if source is None or before is None or six is None or after is None or len(before) != 4 or len(after) != 4:
        return None
    return source, before, six, tuple(perm), after


@rule("fuse_depth_to_space", on="Reshape", after="Transpose", exactness=EXACT, opset=11)
def reshape_transpose_reshape(s: Site) -> Result:
    """Reshape, Transpose and Reshape are one DepthToSpace or SpaceToDepth, where they move square blocks."""
    parts = _parts(s)
    if parts is None:
        return None
    source, (n, c, h, w), six, perm, after = parts
    turned = s.producer(0, "Transpose")
    assert turned is not None and turned.inputs[0] is not None
    if not facts.used_once(turned.outputs[0]) or not facts.used_once(turned.inputs[0]):
        return Refusal("a tensor in between has other readers")
    kind = facts.dtype(source)
    if kind not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return Refusal("engines take these operators for 32- and 64-bit floats only")
    if perm == _SPACE_TO_DEPTH:
        block = six[3]
        if six == (n, c, h // block, block, w // block, block) and after == (n, c * block**2, h // block, w // block):
            return SpaceToDepth(source, blocksize=block)
        return Refusal("the blocks are not square, or the result is grouped otherwise")
    mode = _DEPTH_TO_SPACE[perm]
    block = six[1] if mode == "DCR" else six[2]
    inner = (block, block, c // block**2) if mode == "DCR" else (c // block**2, block, block)
    if six == (n, *inner, h, w) and after == (n, c // block**2, h * block, w * block):
        return DepthToSpace(source, blocksize=block, mode=mode)
    return Refusal("the blocks are not square, or the result is grouped otherwise")
