"""What a node costs, as far as its sizes tell: enough to see that crossing to another engine is not worth a `Relu`."""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.core import dim as algebra
from sardonyx.core.dim import Size
from sardonyx.errors import SizeLimitError
from sardonyx.rewrite import facts
from sardonyx.rewrite.arithmetic import MACS
from sardonyx.rewrite.sizes import Sizes

MACS_PER_SECOND = 2e10
BYTES_PER_SECOND = 1e10
STARTING_SECONDS = 1e-6
"""Of a kernel, however small its data."""

OPEN_SIZE = 32
"""What a size that is not known is taken as."""

_BODY_RUNS = 10
"""How often the nodes of a body are taken to run."""


def node_seconds(model: ir.Model) -> dict[ir.Node, float]:
    """Seconds of every node of the main graph on a processor core of our time, by its sizes."""
    sizes = Sizes(model.graph.opset_imports.get("", 1))
    return {node: _seconds(node, sizes) for node in model.graph}


def _seconds(node: ir.Node, sizes: Sizes) -> float:
    inside = sum(_seconds(each, sizes) for body in facts.bodies(node) for each in body)
    macs = _number(_macs(node, sizes))
    moved = sum(_bytes(value, sizes) for value in (*node.inputs, *node.outputs) if value is not None)
    return STARTING_SECONDS + macs / MACS_PER_SECOND + moved / BYTES_PER_SECOND + _BODY_RUNS * inside


def _macs(node: ir.Node, sizes: Sizes) -> Size | None:
    count = MACS.get(node.op_type)
    try:
        return None if count is None else count(node, sizes)
    except SizeLimitError:  # Of sizes that are too long to multiply, bytes alone count.
        return None


def _bytes(value: ir.Value, sizes: Sizes) -> int:
    dims = sizes.dims(value)
    if dims is None or value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return 0
    return math.prod(map(_number, dims)) * value.dtype.bitwidth // 8


def _number(size: Size | None) -> int:
    if size is None or isinstance(size, int):
        return size or 0
    return algebra.evaluate(size, dict.fromkeys(algebra.symbols(size), OPEN_SIZE))


def weight_bytes(node: ir.Node) -> int:
    """Bytes of the weights that a node reads, those in its bodies among them."""
    readers = [node, *(each for body in facts.bodies(node) for each in facts.nodes_of(body))]
    weights = {value for each in readers for value in each.inputs if value is not None and value.is_initializer()}
    return sum(value.const_value.nbytes for value in weights if value.const_value is not None)
