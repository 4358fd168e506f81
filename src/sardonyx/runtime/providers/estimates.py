"""Estimated costs of nodes by their sizes: precise enough to avoid crossings to another engine for a `Relu`."""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.core import dim as algebra
from sardonyx.core.dim import Size
from sardonyx.errors import SizeLimitError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.arithmetic import MACS
from sardonyx.rewrite.analysis.sizes import Sizes

MACS_PER_SECOND = 2e10
BYTES_PER_SECOND = 1e10
STARTING_SECONDS = 1e-6
"""Seconds of a kernel without data."""

OPEN_SIZE = 32
"""The assumed value of an open size."""

_BODY_RUNS = 10
"""The assumed number of executions of a body."""


def node_seconds(model: ir.Model) -> dict[ir.Node, float]:
    """Return the estimated seconds of every node of the main graph on one core of a current processor."""
    sizes = Sizes(model.graph.opset_imports.get("", 1))
    return {node: _seconds(node, sizes) for node in model.graph}


def _seconds(node: ir.Node, sizes: Sizes) -> float:
    inside = sum(_seconds(inner, sizes) for body in facts.bodies(node) for inner in body)
    macs = _number(_macs(node, sizes))
    moved = sum(_bytes(value, sizes) for value in (*node.inputs, *node.outputs) if value is not None)
    return STARTING_SECONDS + macs / MACS_PER_SECOND + moved / BYTES_PER_SECOND + _BODY_RUNS * inside


def _macs(node: ir.Node, sizes: Sizes) -> Size | None:
    count = MACS.get(node.op_type)
    try:
        return None if count is None else count(node, sizes)
    except SizeLimitError:  # The product of the sizes is too long: only bytes count.
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
    """Return the bytes of the weights that a node and its bodies read."""
    readers = [node, *(inner for body in facts.bodies(node) for inner in facts.nodes_of(body))]
    weights = {value for reader in readers for value in reader.inputs if value is not None and value.is_initializer()}
    return sum(value.const_value.nbytes for value in weights if value.const_value is not None)
