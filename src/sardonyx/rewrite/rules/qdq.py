"""Quantization: inverse pairs, data movement on quantized elements, limits implied by the type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.errors import SardonyxError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT, AnyOf, Match, Patch, Refusal, Result, Rewrite, V, rule, where
from sardonyx.rewrite.notation import Concat, DequantizeLinear, QuantizeLinear
from sardonyx.rewrite.rules.fold import evaluate_constants
from sardonyx.rewrite.rules.signatures import axis_from_front, reapply
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sweep import sweep

LIMITS = {
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT16: (-32768, 32767),
    ir.DataType.UINT16: (0, 65535),
}
"""Quantized types whose steps float32 represents, with their least and largest number."""


@dataclass(frozen=True)
class Parameters:
    """Parameters of a quantization node: ``real = (quantized - zero) * scale``.

    Attributes:
        kind: The quantized type.
        scale: Scales, one or one per index along ``axis``.
        zero: Zero points, as many.
        axis: The axis of several scales; 0 for one.
        block: Number of elements per scale along the axis, 0 for all.
    """

    kind: ir.DataType
    scale: np.ndarray
    zero: np.ndarray
    axis: int
    block: int

    @property
    def is_per_tensor(self) -> bool:
        """True if one scale applies to the whole tensor."""
        return self.scale.size == 1

    def is_same(self, other: Parameters) -> bool:
        """Return True if both nodes use the same mapping."""
        along = (self.axis, self.block) == (other.axis, other.block)
        arrays = np.array_equal(self.scale, other.scale) and np.array_equal(self.zero, other.zero)
        return self.kind == other.kind and self.scale.dtype == other.scale.dtype and along and arrays


def read_parameters(s: Site, node: ir.Node) -> Parameters | None:
    """Return the parameters of a quantization node, if they are constant and rounding inverts the scaling."""
    quantized = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    kind = facts.dtype(quantized)
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    scale = facts.small_constant(node.inputs[1])
    zero = np.zeros_like(scale, np.int32) if zero_point is None else facts.small_constant(zero_point)
    if kind not in LIMITS or scale is None or zero is None or zero.size != scale.size or scale.ndim > 1:
        return None
    if s.attr("precision", 0, node=node) or s.attr("output_dtype", 0, node=node):
        return None
    axis = 0
    if scale.size > 1:
        rank = facts.rank(quantized)
        written = s.attr("axis", 1, node=node)
        front = written if rank is None else axis_from_front(written, rank)
        if front is None:
            return None
        axis = front
    widest = LIMITS[kind][1] - LIMITS[kind][0]
    if not _is_invertible(scale, widest):
        return None
    block = int(s.attr("block_size", 0, node=node) or 0)
    return Parameters(kind, scale.reshape(-1), zero.reshape(-1).astype(np.int32), axis, block)


def _is_invertible(scale: np.ndarray, widest: int) -> bool:
    """Return True if ``round(n * scale / scale) == n`` up to ``widest``, without overflow or underflow."""
    kind = scale.dtype
    if kind not in (np.float32, np.float16):
        return False
    info = np.finfo(kind)
    steps = scale.astype(np.float64)
    in_range = np.all((steps >= float(info.smallest_normal)) & (steps * widest <= float(info.max)))
    return bool(in_range) and widest * 2.0 * float(info.eps) < 0.5


def quantizes_alike(m: Match) -> Refusal | None:
    """Guard: both quantization nodes of the match have equal constant parameters."""
    outer, inner = (read_parameters(m.site, node) for node in m.nodes)
    if outer is None or inner is None:
        return Refusal("a scale or zero point is not constant, or rounding may not invert the scaling")
    return None if outer.is_same(inner) else Refusal("the scales, zero points or types differ")


@rule("eliminate_dequantize_quantize", exactness=EXACT)
def quantized_again(x: V) -> Rewrite:
    """Remove DequantizeLinear and QuantizeLinear with equal scale and zero point."""
    return QuantizeLinear(DequantizeLinear(x, ...), ...) >> x | where(quantizes_alike)


MOVEMENT = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Expand", "Tile", "Identity"}
)
"""Operators that move the elements of their first input, of any type."""


@rule("fuse_quantized_movement", on="QuantizeLinear", after=(*MOVEMENT, "Concat"), exactness=EXACT)
def moved_while_quantized(s: Site) -> Result:
    """Move quantized elements instead of dequantizing, moving and quantizing with one scale."""
    node = s.producer(0, *MOVEMENT, "Concat")
    if node is None:
        return None
    sources = list(node.inputs) if node.op_type == "Concat" else list(node.inputs[:1])
    inner = [None if v is None else v.producer() for v in sources]
    if not all(d is not None and facts.is_op(d, "DequantizeLinear") and d.graph is s.graph for d in inner):
        return None
    if not facts.used_once(node.outputs[0]):
        return Refusal(f"the {node.op_type} has other readers")
    mine = read_parameters(s, s.node)
    if mine is None or not mine.is_per_tensor:
        return Refusal("expected one constant scale per tensor")
    for theirs in (read_parameters(s, d) for d in inner if d is not None):
        if theirs is None or not mine.is_same(theirs):
            return Refusal("the scales, zero points or types differ")
    quantized = [d.inputs[0] for d in inner if d is not None]
    if node.op_type == "Concat":
        return Concat(*quantized, axis=s.attr("axis", node=node))
    return reapply(node, quantized[0], *node.inputs[1:])


def implies_limits(m: Match) -> Refusal | None:
    """Guard: the range of the quantized type is within the limits of the Relu or Clip."""
    bounds, quantization = _clip_bounds(m.site, m.nodes[1]), read_parameters(m.site, m.root)
    if bounds is None or quantization is None:
        return Refusal("the limits or the quantization parameters are not constant")
    least, largest = LIMITS[quantization.kind]
    scale = quantization.scale.astype(np.float64)
    # A limit that quantizes to the end of the range has no effect, because rounding is monotone.
    low = np.rint(bounds[0] / scale) + quantization.zero <= least
    high = np.rint(bounds[1] / scale) + quantization.zero >= largest
    return None if np.all(low) and np.all(high) else Refusal("the range of the quantized type exceeds the limits")


@rule("eliminate_limit_before_quantize", exactness=EXACT)
def limited_by_quantization(x: V) -> Rewrite:
    """Remove Relu or Clip before a QuantizeLinear whose type implies the limits."""
    quantized = QuantizeLinear(AnyOf("Relu", "Clip")(x, ...), ...)
    return quantized >> (lambda m: reapply(m.root, m.x, *m.root.inputs[1:])) | where(implies_limits)


def _clip_bounds(s: Site, node: ir.Node) -> tuple[float, float] | None:
    if node.op_type == "Relu":
        return 0.0, np.inf
    if s.opset < 11:
        return float(s.attr("min", -np.inf, node=node)), float(s.attr("max", np.inf, node=node))
    bounds = []
    for index, default in ((1, -np.inf), (2, np.inf)):
        operand = node.inputs[index] if len(node.inputs) > index else None
        value = default if operand is None else facts.scalar(operand)
        if value is None or np.isnan(value):
            return None
        bounds.append(float(value))
    return bounds[0], bounds[1]


@sweep("fold_quantized_weights", exactness=EXACT, on=("QuantizeLinear",))
def quantized_weights(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Fold QuantizeLinear of a weight into a quantized weight."""
    if engine.in_function:
        return
    nodes = [
        node
        for node in facts.nodes_of(graph)
        if facts.is_op(node, "QuantizeLinear")
        and facts.dtype(node.outputs[0]) in LIMITS
        and all(value is None or facts.is_constant(value) for value in node.inputs)
    ]
    for node in nodes:
        try:
            array = evaluate_constants(engine, [node], node.outputs)[node.outputs[0]]
        except SardonyxError as error:
            engine.refused[("fold_quantized_weights", node_label(node))] = str(error)
            continue
        assert node.graph is not None
        value = engine.new_constant(array, node.graph, f"{node.outputs[0].name}_folded", [])
        yield node, Patch({node.outputs[0]: value})
