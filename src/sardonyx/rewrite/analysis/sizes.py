"""Value propagation over Dim: the results of shape arithmetic as expressions of the size symbols.

``dims(value)`` is a tensor's shape and ``elements(value)`` the content of a small integer tensor, both as ``Size`` (an
int, or a ``Dim``). Together they evaluate the ``Shape → Gather → Mul → Concat → Reshape`` chains of any exporter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.core import dim as algebra
from sardonyx.core.dim import POSITIVE, Dim, Size, product
from sardonyx.errors import ShapeError
from sardonyx.ops.core_values import is_unnamed
from sardonyx.ops.inference import UNNAMED
from sardonyx.rewrite.analysis import facts

LONGEST = 64
"""Elements up to which a tensor is followed as shape arithmetic."""

INTEGRAL = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})
"""Element types of shape arithmetic."""

Elements = tuple[int, tuple[Size, ...]]
"""Rank (0 or 1) and elements, booleans as 0 and 1."""


class Sizes:
    """Memoized shape facts about one model; a fact about a value object stays true under rewriting.

    Args:
        opset: Version of the default operator set, which decides attribute defaults.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self._dims: dict[ir.Value, tuple[ir.Shape, tuple[Size, ...]]] = {}
        self._elements: dict[ir.Value, Elements | None] = {}
        self._anonymous = 0

    def dims(self, value: ir.Value | None) -> tuple[Size, ...] | None:
        """Return the shape, with a fresh symbol for each unnamed dimension; None if the rank is unknown."""
        if value is None:
            return None
        node = value.producer()
        if node is not None and node.op_type == "Shape" and not node.attributes and node.inputs[0] is not None:
            # The length is the rank: a symbol for an unknown rank would outlive its discovery.
            rank = self.rank(node.inputs[0])
            return None if rank is None else (rank,)
        shape = value.shape
        if shape is None:
            return facts.static_shape(value)
        known = self._dims.get(value)
        if known is not None and known[0] is shape:
            return known[1]
        dims = tuple([dim if type(dim) is int else self._size(dim) for dim in shape])
        self._dims[value] = (shape, dims)
        return dims

    def rank(self, value: ir.Value | None) -> int | None:
        """Return the rank of a value, or None if unknown."""
        return facts.rank(value)

    def forget_unknown(self) -> None:
        """Forget elements that were unknown or depend on made-up symbols, because more is known now."""
        self._elements = {
            value: elements for value, elements in self._elements.items() if elements and _is_named(elements[1])
        }

    def _size(self, dim: int | ir.SymbolicDim) -> Size:
        if isinstance(dim, int):
            return dim
        if is_unnamed(dim):
            self._anonymous += 1
            return Dim.symbol(f"?{self._anonymous}")
        return parsed(str(dim.value))

    def elements(self, value: ir.Value | None) -> Elements | None:
        """Return the elements of a small integer or boolean tensor of rank 0 or 1, or None."""
        if value is None:
            return None
        if value in self._elements:
            return self._elements[value]
        pending = [value]
        while pending:
            # Post-order without recursion: shape arithmetic may be thousands of nodes deep.
            current = pending[-1]
            if current in self._elements:
                pending.pop()
                continue
            missing = [v for v in _operands(current) if v not in self._elements]
            if missing:
                # A value may be pending twice if two paths lead to it; the graph has no cycles.
                pending.extend(missing)
                continue
            self._elements[current] = self._compute(current)
            pending.pop()
        return self._elements[value]

    def _compute(self, value: ir.Value) -> Elements | None:
        tensor = facts.constant_tensor(value)
        if tensor is not None:
            return _of_constant(tensor)
        node = value.producer()
        if node is None or node.domain not in ("", "ai.onnx"):
            return None
        if not _is_integral(value):
            return None
        rule = RULES.get(node.op_type)
        if rule is None:
            return None
        try:
            elements = rule(self, node, value)
        except (ShapeError, ZeroDivisionError, OverflowError, facts.UnknownAttribute):
            return None
        return elements if elements is not None and len(elements[1]) <= LONGEST else None

    def constant(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the elements if all are numbers, else None."""
        elements = self.elements(value)
        if elements is None or not all(isinstance(e, int) for e in elements[1]):
            return None
        return tuple(e for e in elements[1] if isinstance(e, int))

    def attr(self, node: ir.Node, name: str, default: Any = None) -> Any:
        """Return an attribute, or the schema's default."""
        return facts.attribute(node, name, self.opset, default)


def _is_named(sizes: Sequence[Size]) -> bool:
    return all(type(size) is int or not any(n.startswith(UNNAMED) for n in algebra.symbols(size)) for size in sizes)


def parsed(text: str) -> Size:
    """Return the Dim of a dimension name; a name that is not an expression is a symbol."""
    try:
        return Dim.parse(text)
    except ShapeError:
        return Dim.symbol(text)


def _is_integral(value: ir.Value) -> bool:
    kind = facts.dtype(value)
    return kind is None or kind in INTEGRAL


_STARTING = frozenset({"Shape", "Size", "Constant"})
"""Operators with whose results shape arithmetic begins."""


def _operands(value: ir.Value) -> list[ir.Value]:
    """Return the operands whose elements decide the elements of ``value``: none at the start of a chain."""
    node = value.producer()
    if node is None or node.op_type not in RULES or node.op_type in _STARTING:
        return []
    if not _is_integral(value) or facts.constant_tensor(value) is not None:
        return []
    return [v for v in node.inputs if v is not None]


def _of_constant(tensor: ir.TensorProtocol) -> Elements | None:
    if tensor.dtype not in INTEGRAL or len(tensor.shape) > 1 or facts.count(tensor) > LONGEST:
        return None
    return len(tensor.shape), tuple(map(int, tensor.numpy().reshape(-1).tolist()))


# -- one function an operator: (sizes, node, output) -> elements ---------------------------------


def _shape(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    dims = s.dims(node.inputs[0])
    if dims is None:
        return None
    start, end = s.attr(node, "start", 0) or 0, s.attr(node, "end")
    return 1, dims[slice(start, end)]


def _size_of(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    dims = s.dims(node.inputs[0])
    return None if dims is None else (0, (product(dims),))


def _gather(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    data, indices = s.elements(node.inputs[0]), s.elements(node.inputs[1])
    if data is None or indices is None or data[0] != 1:
        return None
    picked = []
    for index in indices[1]:
        if not isinstance(index, int) or not -len(data[1]) <= index < len(data[1]):
            return None
        picked.append(data[1][index])
    return indices[0], tuple(picked)


def _slice(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    data = s.elements(node.inputs[0])
    if data is None or data[0] != 1:
        return None
    if s.opset < 10:
        starts, ends = s.attr(node, "starts"), s.attr(node, "ends")
        if len(starts) != 1:
            return None
        return 1, data[1][starts[0] : ends[0]]
    operands = [s.constant(v) if v is not None else None for v in node.inputs[1:]]
    if any(v is not None and o is None for v, o in zip(node.inputs[1:], operands, strict=True)):
        return None
    found_starts, found_ends = operands[0], operands[1]
    steps = operands[3] if len(operands) > 3 and operands[3] is not None else (1,)
    if found_starts is None or found_ends is None or len(found_starts) != 1 or steps[0] == 0:
        return None
    if steps[0] < 0 and found_ends[0] >= 2**31 - 1:
        return None  # "to the end" of a walk backwards: engines differ
    return 1, tuple(data[1][i] for i in _walked(found_starts[0], found_ends[0], steps[0], len(data[1])))


def _walked(start: int, end: int, step: int, length: int) -> range:
    """Return the indices that a Slice reads: unlike Python's, a start before index 0 is index 0."""
    start, end = start + length * (start < 0), end + length * (end < 0)
    if step > 0:
        return range(min(max(start, 0), length), min(max(end, 0), length), step)
    return range(min(max(start, 0), length - 1), min(max(end, -1), length - 1), step)


def _concat(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    parts = [s.elements(v) for v in node.inputs]
    if any(p is None or p[0] != 1 for p in parts):
        return None
    return 1, tuple(e for p in parts if p is not None for e in p[1])


def _axes(s: Sizes, node: ir.Node) -> Sequence[int] | None:
    """Return the axes of a node by attribute or input, empty if the node has none; None if the axes are unknown."""
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return s.constant(node.inputs[1])
    return tuple(s.attr(node, "axes", ()) or ())


def _as_vector(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    data, axes = s.elements(node.inputs[0]), _axes(s, node)
    return (1, data[1]) if data is not None and data[0] == 0 and axes is not None and len(axes) == 1 else None


def _as_scalar(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    data, axes = s.elements(node.inputs[0]), _axes(s, node)
    if data is None or axes is None or (not axes and len(node.inputs) > 1 and node.inputs[1] is not None):
        return None
    return (0, data[1]) if data[0] == 1 and len(data[1]) == 1 else None


def _reshape(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    data, target = s.elements(node.inputs[0]), s.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if data is None or target is None or len(target) > 1:
        return None
    if not target:
        return (0, data[1]) if len(data[1]) == 1 else None
    return 1, data[1]


def _same(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    return s.elements(node.inputs[0])


def _cast(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    data = s.elements(node.inputs[0])
    if data is None or s.attr(node, "to") != ir.DataType.BOOL:
        return data
    return (data[0], tuple(int(e != 0) for e in data[1])) if all(isinstance(e, int) for e in data[1]) else None


def _cast_like(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    data = s.elements(node.inputs[0])
    integral = facts.dtype(node.inputs[1]) in (ir.DataType.INT64, ir.DataType.INT32)
    return data if integral else None


def _elementwise(
    operation: Callable[[Size, Size], Size | None],
) -> Callable[[Sizes, ir.Node, ir.Value], Elements | None]:
    def compute(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
        parts = [s.elements(v) for v in node.inputs]
        if any(p is None for p in parts):
            return None
        known = [p for p in parts if p is not None]
        length = max(len(p[1]) for p in known)
        if any(len(p[1]) not in (1, length) for p in known) or any(len(p[1]) == 0 for p in known):
            return None
        columns = [p[1] * length if len(p[1]) == 1 else p[1] for p in known]
        out: list[Size] = []
        for row in zip(*columns, strict=True):
            result: Size | None = row[0]
            for other in row[1:]:
                result = None if result is None else operation(result, other)
            if result is None:
                return None
            out.append(result)
        return max(p[0] for p in known), tuple(out)

    return compute


def at_least(a: Size, b: Size) -> bool | None:
    """Return True if ``a >= b`` for all sizes, False if for none, None if unknown; a symbol may be 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a >= b
    return algebra.at_least(a, b)


def equal(a: Size, b: Size) -> bool | None:
    """Return True if two sizes are certainly equal, False if certainly different, else None; a symbol may be 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return a is b or algebra.equal(a, b)


def inferred_size(total: Size, rest: Size) -> Size | None:
    """Return the size for which a Reshape writes −1, or None if unknown; common factors of the sizes cancel.

    Sound where a symbol is 0: a copied size cancels in a Reshape too, and a 0 without a size to copy is an error there.
    Only a computed 0 at an axis of another size, which copies that size, gives an empty tensor of another shape;
    compiled code has a guard for it.
    """
    if algebra.at_least(rest, 1, POSITIVE) is not True:
        return None
    return algebra.floor_div(total, rest, POSITIVE)


def _divide(a: Size, b: Size) -> Size | None:
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            return None
        magnitude = abs(a) // abs(b)
        return magnitude if (a >= 0) == (b >= 0) else -magnitude
    # ONNX divides toward zero, Dim toward minus infinity: equal only if nothing is negative. A divisor that may be 0
    # ends a run with an error, which a folded division would hide.
    if at_least(a, 0) is True and at_least(b, 1) is True:
        return algebra.floor_div(a, b)
    return None


def _modulo(a: Size, b: Size) -> Size | None:
    if at_least(b, 1) is True and at_least(a, 0) is True:
        return a % b
    return None


def _compare(decide: Callable[[Size, Size], bool | None]) -> Callable[[Size, Size], Size | None]:
    def operation(a: Size, b: Size) -> Size | None:
        decision = decide(a, b)
        return None if decision is None else int(decision)

    return operation


def _not(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    data = s.elements(node.inputs[0])
    return None if data is None else (data[0], tuple(1 - e for e in data[1]))


def _negate(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    data = s.elements(node.inputs[0])
    return None if data is None else (data[0], tuple(-1 * e for e in data[1]))


def _absolute(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    data = s.elements(node.inputs[0])
    if data is None or not all(at_least(e, 0) is True for e in data[1]):
        return None
    return data


def _where(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    condition, yes, no = (s.elements(v) for v in node.inputs)
    if condition is None:
        return None
    if yes is None or no is None:
        return None
    length = max(len(p[1]) for p in (condition, yes, no))
    if any(len(p[1]) not in (1, length) for p in (condition, yes, no)):
        return None

    def column(part: Elements) -> tuple[Size, ...]:
        return part[1] * length if len(part[1]) == 1 else part[1]

    rows = zip(column(condition), column(yes), column(no), strict=True)
    return max(condition[0], yes[0], no[0]), tuple(b if c else a for c, b, a in rows)


def _reduce(operation: Callable[[Sequence[Size]], Size]) -> Callable[[Sizes, ir.Node, ir.Value], Elements | None]:
    def compute(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
        data, axes = s.elements(node.inputs[0]), _axes(s, node)
        if data is None or not data[1] or axes is None or any(axis not in (0, -1) for axis in axes):
            return None
        if not axes and s.attr(node, "noop_with_empty_axes", 0):
            return data
        return (1 if data[0] == 1 and s.attr(node, "keepdims", 1) else 0), (operation(data[1]),)

    return compute


def _constant_of_shape(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    target = s.constant(node.inputs[0])
    if target is None or len(target) > 1:
        return None
    fill = node.attributes.get("value")
    number = 0 if fill is None else int(fill.as_tensor().numpy().reshape(-1)[0])
    if not target:
        return 0, (number,)
    return (1, (number,) * target[0]) if 0 <= target[0] <= LONGEST else None


def _expand(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    data, target = s.elements(node.inputs[0]), s.constant(node.inputs[1])
    if data is None or target is None or len(target) > 1:
        return None
    if not target or (target[0] == 1 and data[0] == 1):
        return data
    if len(data[1]) == 1 and 0 <= target[0] <= LONGEST:
        return 1, data[1] * target[0]
    return (1, data[1]) if len(data[1]) == target[0] else None


def _range(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    bounds = [s.constant(v) for v in node.inputs]
    if any(b is None or len(b) != 1 for b in bounds):
        return None
    start, limit, step = (b[0] for b in bounds if b is not None)
    if step == 0 or len(range(start, limit, step)) > LONGEST:
        return None
    return 1, tuple(range(start, limit, step))


def _split(s: Sizes, node: ir.Node, value: ir.Value) -> Elements | None:
    data = s.elements(node.inputs[0])
    if data is None or data[0] != 1:
        return None
    parts = s.attr(node, "split") if s.opset < 13 else s.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if parts is None:
        count = len(node.outputs)
        size = -(-len(data[1]) // count)
        parts = [min(size, len(data[1]) - i * size) for i in range(count)]
    index = value.index() or 0
    start = sum(parts[:index])
    return 1, data[1][start : start + parts[index]]


RULES: dict[str, Callable[[Sizes, ir.Node, ir.Value], Elements | None]] = {
    "Shape": _shape,
    "Size": _size_of,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Unsqueeze": _as_vector,
    "Squeeze": _as_scalar,
    "Reshape": _reshape,
    "Identity": _same,
    "CastLike": _cast_like,
    "Cast": _cast,
    "Add": _elementwise(lambda a, b: a + b),
    "Sub": _elementwise(lambda a, b: a - b),
    "Mul": _elementwise(lambda a, b: a * b),
    "Div": _elementwise(_divide),
    "Mod": _elementwise(_modulo),
    "Min": _elementwise(lambda a, b: algebra.dim_min(a, b)),
    "Max": _elementwise(lambda a, b: algebra.dim_max(a, b)),
    "Equal": _elementwise(_compare(equal)),
    "Less": _elementwise(_compare(lambda a, b: _invert(at_least(a, b)))),
    "Greater": _elementwise(_compare(lambda a, b: _invert(at_least(b, a)))),
    "GreaterOrEqual": _elementwise(_compare(at_least)),
    "LessOrEqual": _elementwise(_compare(lambda a, b: at_least(b, a))),
    "And": _elementwise(lambda a, b: a * b),
    "Or": _elementwise(lambda a, b: algebra.dim_max(a, b)),
    "Not": _not,
    "Neg": _negate,
    "Abs": _absolute,
    "Where": _where,
    "ReduceProd": _reduce(product),
    "ReduceSum": _reduce(lambda sizes: functools.reduce(lambda a, b: a + b, sizes)),
    "ReduceMax": _reduce(lambda sizes: algebra.dim_max(*sizes)),
    "ReduceMin": _reduce(lambda sizes: algebra.dim_min(*sizes)),
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Range": _range,
    "Split": _split,
}
"""Operators that shape arithmetic is written with."""


def _invert(decision: bool | None) -> bool | None:
    return None if decision is None else not decision
