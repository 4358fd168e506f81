"""Reshape, Transpose and Reshape that move blocks of pixels between depth and space."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import EXACT, A, Match, Refusal, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import DepthToSpace, Reshape, SpaceToDepth, Transpose

_DEPTH_TO_SPACE: dict[tuple[int, ...], str] = {(0, 3, 4, 1, 5, 2): "DCR", (0, 1, 4, 2, 5, 3): "CRD"}
_SPACE_TO_DEPTH = (0, 3, 5, 1, 2, 4)

_NOT_SQUARE = "the blocks are not square, or the result has another shape"


@rule("fuse_depth_to_space", exactness=EXACT, opset=11)
def reshape_transpose_reshape(x: V, perm: A) -> Rewrite:
    """Fuse Reshape, Transpose and Reshape that move square blocks into DepthToSpace or SpaceToDepth."""

    def fuse(m: Match) -> Result:
        s, (_, transpose, reshape), perm = m.site, m.nodes, tuple(m.perm or ())
        if perm not in (*_DEPTH_TO_SPACE, _SPACE_TO_DEPTH):
            return None
        before, six, after = (facts.static_shape(v) for v in (m.x, reshape.outputs[0], s.output))
        if before is None or six is None or after is None or len(before) != 4 or len(after) != 4:
            return None
        if not facts.used_once(transpose.outputs[0]) or not facts.used_once(reshape.outputs[0]):
            return Refusal("an intermediate tensor has other readers")
        if facts.dtype(m.x) not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            return Refusal("engines have kernels for float32 and float64 only")
        n, c, h, w = before
        if perm == _SPACE_TO_DEPTH:
            block = six[3]
            blocks = (n, c, h // block, block, w // block, block)
            if six == blocks and after == (n, c * block**2, h // block, w // block):
                return SpaceToDepth(m.x, blocksize=block)
            return Refusal(_NOT_SQUARE)
        mode = _DEPTH_TO_SPACE[perm]
        block = six[1] if mode == "DCR" else six[2]
        inner = (block, block, c // block**2) if mode == "DCR" else (c // block**2, block, block)
        if six == (n, *inner, h, w) and after == (n, c // block**2, h * block, w * block):
            return DepthToSpace(m.x, blocksize=block, mode=mode)
        return Refusal(_NOT_SQUARE)

    return Reshape(Transpose(Reshape(x, ...), perm=perm), ...) >> fuse
