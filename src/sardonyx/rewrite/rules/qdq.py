"""Quantization: pairs that give back what they were given, movement while quantized, limits that it keeps anyway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.errors import SardonyxError
from sardonyx.rewrite import facts
from sardonyx.rewrite.engine import Engine
from sardonyx.rewrite.language import EXACT, Patch, Refusal, Result, rule
from sardonyx.rewrite.names import node_label
from sardonyx.rewrite.notation import Concat
from sardonyx.rewrite.rules.fold import evaluate_constants
from sardonyx.rewrite.rules.signatures import again
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sweep import sweep

LIMITS = {
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT16: (-32768, 32767),
    ir.DataType.UINT16: (0, 65535),
}
"""Quantized types whose steps a float32 tells apart, with their least and largest number."""


@dataclass(frozen=True)
class Parameters:
    """How a QuantizeLinear or DequantizeLinear maps numbers: ``real = (quantized - zero) * scale``.

    Attributes:
        kind: The quantized type.
        scale: Scales: one, or one for each place along ``axis``.
        zero: Zero points, as many.
        axis: The axis that several scales go along; 0 for one.
        block: Elements that share a scale along the axis, 0 for all.
    """

    kind: ir.DataType
    scale: np.ndarray
    zero: np.ndarray
    axis: int
    block: int

    @property
    def single(self) -> bool:
        """Whether one scale goes for the whole tensor."""
        return self.scale.size == 1

    def same(self, other: Parameters) -> bool:
        """Whether the two map alike."""
        along = (self.axis, self.block) == (other.axis, other.block)
        arrays = np.array_equal(self.scale, other.scale) and np.array_equal(self.zero, other.zero)
        return self.kind == other.kind and self.scale.dtype == other.scale.dtype and along and arrays


def parameters(s: Site, node: ir.Node) -> Parameters | None:
    """The parameters of a quantization node, where they are constant and rounding surely inverts them."""
    quantized = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    kind = facts.dtype(quantized)
    given = node.inputs[2] if len(node.inputs) > 2 else None
    scale = facts.small_constant(node.inputs[1])
    zero = np.zeros_like(scale, np.int32) if given is None else facts.small_constant(given)
    if kind not in LIMITS or scale is None or zero is None or zero.size != scale.size or scale.ndim > 1:
        return None
    if s.attr("precision", 0, node=node) or s.attr("output_dtype", 0, node=node):
        return None
    axis = 0
    if scale.size > 1:
        rank = facts.rank(quantized)
        written = s.attr("axis", 1, node=node)
        axis = written if rank is None else written % rank
    widest = LIMITS[kind][1] - LIMITS[kind][0]
    if not _invertible(scale, widest):
        return None
    block = int(s.attr("block_size", 0, node=node) or 0)
    return Parameters(kind, scale.reshape(-1), zero.reshape(-1).astype(np.int32), axis, block)


def _invertible(scale: np.ndarray, widest: int) -> bool:
    """Whether ``round(n * scale / scale) == n`` for all ``n`` up to ``widest``, with no over- or underflow."""
    kind = scale.dtype
    if kind not in (np.float32, np.float16):
        return False
    info = np.finfo(kind)
    steps = scale.astype(np.float64)
    in_range = np.all((steps >= float(info.smallest_normal)) & (steps * widest <= float(info.max)))
    return bool(in_range) and widest * 2.0 * float(info.eps) < 0.5


@rule("eliminate_dequantize_quantize", on="QuantizeLinear", after="DequantizeLinear", exactness=EXACT)
def quantized_again(s: Site) -> Result:
    """Quantizing what was just dequantized by the same scale and zero point gives it back."""
    inner = s.producer(0, "DequantizeLinear")
    if inner is None:
        return None
    mine, its = parameters(s, s.node), parameters(s, inner)
    if mine is None or its is None:
        return Refusal("a scale or zero point is not constant, or not surely inverted by rounding")
    return inner.inputs[0] if mine.same(its) else Refusal("the scales, zero points or types differ")


MOVEMENT = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Expand", "Tile", "Identity"}
)
"""Operators that move the elements of their first input, of any type."""


@rule("fuse_quantized_movement", on="QuantizeLinear", after=(*MOVEMENT, "Concat"), exactness=EXACT)
def moved_while_quantized(s: Site) -> Result:
    """Data movement between DequantizeLinear and QuantizeLinear of one scale moves the quantized elements."""
    node = s.producer(0, *MOVEMENT, "Concat")
    if node is None:
        return None
    sources = list(node.inputs) if node.op_type == "Concat" else list(node.inputs[:1])
    inner = [None if v is None else v.producer() for v in sources]
    if not all(d is not None and facts.is_op(d, "DequantizeLinear") and d.graph is s.graph for d in inner):
        return None
    if not facts.used_once(node.outputs[0]):
        return Refusal(f"the {node.op_type} has other readers")
    mine = parameters(s, s.node)
    if mine is None or not mine.single:
        return Refusal("there is no single constant scale")
    for found in (parameters(s, d) for d in inner if d is not None):
        if found is None or not mine.same(found):
            return Refusal("the scales, zero points or types differ")
    quantized = [d.inputs[0] for d in inner if d is not None]
    if node.op_type == "Concat":
        return Concat(*quantized, axis=s.attr("axis", node=node))
    return again(node, quantized[0], *node.inputs[1:])


@rule("eliminate_limit_before_quantize", on="QuantizeLinear", after=("Relu", "Clip"), exactness=EXACT)
def limited_by_quantization(s: Site) -> Result:
    """Relu or Clip before a QuantizeLinear that cannot go beyond these limits anyway."""
    node = s.producer(0, "Relu", "Clip")
    if node is None:
        return None
    bounds = _bounds(s, node)
    mine = parameters(s, s.node)
    if bounds is None or mine is None:
        return Refusal("the limits or the quantization are not constant")
    least, largest = LIMITS[mine.kind]
    scale = mine.scale.astype(np.float64)
    # A limit that is itself quantized to the end of the range changes nothing: rounding keeps order.
    low = np.rint(bounds[0] / scale) + mine.zero <= least
    high = np.rint(bounds[1] / scale) + mine.zero >= largest
    if not (np.all(low) and np.all(high)):
        return Refusal("the quantized type goes beyond the limits")
    return again(s.node, node.inputs[0], *s.node.inputs[1:])


def _bounds(s: Site, node: ir.Node) -> tuple[float, float] | None:
    if node.op_type == "Relu":
        return 0.0, np.inf
    if s.opset < 11:
        return float(s.attr("min", -np.inf, node=node)), float(s.attr("max", np.inf, node=node))
    found = []
    for place, default in ((1, -np.inf), (2, np.inf)):
        given = node.inputs[place] if len(node.inputs) > place else None
        value = default if given is None else facts.scalar(given)
        if value is None or np.isnan(value):
            return None
        found.append(float(value))
    return found[0], found[1]


@sweep("fold_quantized_weights", exactness=EXACT, on=("QuantizeLinear",))
def quantized_weights(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """QuantizeLinear of a weight is the quantized weight."""
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
