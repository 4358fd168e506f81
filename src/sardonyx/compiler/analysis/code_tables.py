"""Tables of codes: 8-bit values that are elementwise functions of one 8-bit value, such as an activation between pairs.

``DequantizeLinear``, any functions of one operand, ``QuantizeLinear``: the result has at most 256 different elements,
which the interpreter computes once, so that a lookup gives the bits of the reference. An activation may contain pairs
of its own, as ``x * sigmoid(x)`` with a quantized ``sigmoid(x)`` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.analysis.constant_values import evaluate_closed, is_closed
from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.eval.tensor import FOLDED_ELEMENTS, Tensor, apply, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType

_CODES = (t.UINT8, t.INT8)

_MOST_INTERIOR = 32
"""Most values between a result and its source in :func:`code_table`."""


@dataclass(frozen=True)
class CodeTable:
    """An 8-bit value as a function of the elements of another.

    Attributes:
        source: The 8-bit value that is read.
        result: The 8-bit value that is computed, of the same sizes.
        interior: The values between the two, in topological order.
    """

    source: Value
    result: Value
    interior: tuple[Value, ...]

    def elements(self) -> np.ndarray:
        """Return the results as bytes, by the bytes of the source's elements."""
        bytes = np.arange(256, dtype=np.uint8)
        dtype = dtype_of(self.source)
        known: dict[Value, Tensor] = {self.source: constant(bytes.view(t.numpy_dtype(dtype)), dtype)}
        for value in (*self.interior, self.result):
            operands = [known[operand] if operand in known else _number(operand) for operand in value.operands]
            wide = [
                operand if shape_of(operand) == (256,) else apply("broadcast", operand, shape=(256,))
                for operand in operands
            ]
            known[value] = apply(value.op, *wide, **value.params)
        return np.ascontiguousarray(evaluate_closed(known[self.result])).view(np.uint8)


def find_code_tables(order: Sequence[Value], results: Iterable[Value]) -> list[CodeTable]:
    """Return the tables of a function, without those that only other tables read.

    Args:
        order: The values of the function in topological order.
        results: The results of the function.
    """
    sources: dict[Value, Value] = {}
    for value in order:
        source = _source(value, sources)
        if source is not None:
            sources[value] = source
    if not sources:
        return []
    escaping, roots = {*results}, list[Value]()
    for value in reversed(order):
        source = sources.get(value)
        if value in escaping and source is not None and dtype_of(value) in _CODES:
            roots.append(value)
        for operand in value.operands:
            # Floats that only tables read are not computed; codes that a table reads are part of it.
            is_read = source is None or sources.get(operand) is not source
            if is_read or (value in escaping and dtype_of(value) not in _CODES):
                escaping.add(operand)
    return [CodeTable(sources[root], root, _interior(root, sources[root])) for root in reversed(roots)]


def code_table(root: Value) -> CodeTable | None:
    """Return the function of another 8-bit value that computes an 8-bit value; None if another value is read."""
    shape, interior, source = shape_of(root), dict[Value, None](), set[Value]()
    waiting = [root]
    while waiting:
        value = waiting.pop()
        for operand in value.operands:
            if operand in interior or _is_number(operand):
                continue
            if not isinstance(operand.type, TensorType) or shape_of(operand) != shape:
                return None
            if dtype_of(operand) in _CODES and not is_closed(operand):
                source.add(operand)
            elif is_elementwise(operand) and len(interior) < _MOST_INTERIOR:
                interior[operand] = None
                waiting.append(operand)
            else:
                return None
    if len(source) != 1:
        return None
    (only,) = source
    return CodeTable(only, root, _interior(root, only))


def _source(value: Value, sources: Mapping[Value, Value]) -> Value | None:
    """Return the 8-bit value of whose elements alone a value is a function; None for other values."""
    if not isinstance(value.type, TensorType) or not is_elementwise(value) or is_closed(value):
        return None
    shape, candidates = shape_of(value), set[Value]()
    for operand in value.operands:
        if operand in sources:
            candidates.add(sources[operand])
        elif isinstance(operand.type, TensorType) and dtype_of(operand) in _CODES and not is_closed(operand):
            candidates.add(operand)
        elif not _is_number(operand):
            return None
    source = candidates.pop() if len(candidates) == 1 else None
    return source if source is not None and shape_of(source) == shape else None


def _is_number(value: Value) -> bool:
    """Return True for a constant of equal elements."""
    while value.op in ("broadcast", "reshape"):
        value = value.operands[0]
    if not is_closed(value):
        return False
    if math.prod(shape_of(value)) == 1 or not value.is_constant:
        return math.prod(shape_of(value)) == 1
    elements = np.asarray(value.known).reshape(-1)  # a repeated number that tracing has folded
    return 0 < elements.size <= FOLDED_ELEMENTS and bool((elements == elements[0]).all())


def _number(value: Value) -> Tensor:
    while value.op in ("broadcast", "reshape"):
        value = value.operands[0]
    return constant(evaluate_closed(value).reshape(-1)[:1], dtype_of(value))


def _interior(root: Value, source: Value) -> tuple[Value, ...]:
    """Return the values between a source and a result, in topological order."""
    done: dict[Value, None] = {}
    waiting = [root]
    while waiting:
        value = waiting[-1]
        missing = [
            operand for operand in value.operands
            if operand is not source and operand not in done and not _is_number(operand)
        ]  # fmt: skip
        if missing:
            waiting += missing
        else:
            waiting.pop()
            done[value] = None
    return tuple(value for value in done if value is not root)
