"""Open sizes of inputs that weights determine: the channels of a convolution, the rows of a product."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.core import dim as algebra
from sardonyx.core.dim import Size
from sardonyx.errors import ShapeError
from sardonyx.ops.inference import UNNAMED
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import parsed

LARGEST = 4096
"""Largest size that is tried for an expression with one open size."""


def required_sizes(model: ir.Model) -> dict[str, int]:
    """Return the open sizes of inputs that must be the given numbers, by the names of ``inputs.open_sizes``.

    Args:
        model: The model, with inferred shapes.
    """
    names = {
        f"{mark}{value.name}.{axis}": f"{value.name}[{axis}]"
        for value in model.graph.inputs
        for axis in range(facts.rank(value) or 0)
        for mark in UNNAMED
    }
    required: dict[str, int] = {}
    # Not in bodies: a branch that needs another size would never be taken.
    for node in model.graph:
        for size, number in _pairs(node):
            symbols = algebra.symbols(size)
            if len(symbols) == 1 and (solution := _solution(size, min(symbols), number)) is not None:
                (symbol,) = symbols
                required.setdefault(names.get(symbol, symbol), solution)
    return required


def _pairs(node: ir.Node) -> Iterator[tuple[Size, int]]:
    """Yield sizes of operands and the numbers that they must be, as the weights of the node tell."""
    if node.domain not in facts.STANDARD or len(node.inputs) < 2:
        return
    x, w = node.inputs[0], node.inputs[1]
    match node.op_type:
        case "Conv":
            yield from _pair(x, 1, w, 1, _integer(node, "group", 1))
        case "ConvTranspose":
            yield from _pair(x, 1, w, 0)
        case "MatMul":
            yield from _pair(x, -1, w, -2)
            yield from _pair(w, -2, x, -1)
        case "Gemm":
            yield from _pair(x, 0 if _integer(node, "transA", 0) else 1, w, 1 if _integer(node, "transB", 0) else 0)
        case "LSTM" | "GRU" | "RNN":
            yield from _pair(x, 2, w, 2)
        case "BatchNormalization" | "InstanceNormalization":
            yield from _pair(x, 1, w, 0)
        case "PRelu" if x is not None:
            # Slopes align with the last axes; until opset 6, a vector of slopes aligned with the channels.
            rank, slopes = facts.rank(x) or 0, facts.rank(w) or 0
            for axis in range(1, slopes + 1 if slopes > 1 or rank == 2 else 1):
                yield from _stretched(x, -axis, w, -axis)
        case "LayerNormalization" | "RMSNormalization" if _integer(node, "axis", -1) == -1:
            yield from _stretched(x, -1, w, -1)


def _pair(
    x: ir.Value | None, axis: int, weight: ir.Value | None, of: int, factor: int = 1
) -> Iterator[tuple[Size, int]]:
    if weight is None or x is None or x.shape is None:
        return
    # The default of an input that callers may override has the input's shape.
    tensor, shape = weight.const_value if weight.is_initializer() else facts.constant_tensor(weight), x.shape
    if tensor is None:
        return
    sizes = tensor.shape.numpy()
    if -len(shape) <= axis < len(shape) and -len(sizes) <= of < len(sizes):
        size = shape[axis]
        if not isinstance(size, int):
            name = size.value or f"{UNNAMED[0]}{x.name}.{axis % len(shape)}"
            yield parsed(name), int(sizes[of]) * factor


def _stretched(x: ir.Value | None, axis: int, weight: ir.Value | None, of: int) -> Iterator[tuple[Size, int]]:
    """Yield the pair of an axis along which a weight of size 1 suits every size."""
    return ((size, number) for size, number in _pair(x, axis, weight, of) if number != 1)


def _integer(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else int(attribute.as_int())


def _solution(size: Size, symbol: str, number: int) -> int | None:
    """Return the smallest value of a symbol for which a size is a number; None without one."""
    if str(size) == symbol:
        return number
    for value in range(1, LARGEST):
        try:
            if algebra.evaluate(size, {symbol: value}) == number:
                return value
        except (ShapeError, ZeroDivisionError):
            continue
    return None
