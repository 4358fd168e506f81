"""Inputs for a model, drawn in the range that its graph allows.

An integer that indexes is drawn below the size that it indexes, a mask is 0 or 1, a length at
most the size that it bounds, a trip count small; a key that a table knows is taken from the table. What
the graph says nothing about is a standard normal, or a small integer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import EvaluationError
from sardonyx.rewrite import facts

FOLLOWED = frozenset(
    {
        "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Concat", "Expand", "Slice",
        "Split", "Tile", "Gather", "Abs", "Clip", "Sub", "Add", "Mul", "Where", "Max", "Min",
    }
)  # fmt: skip
"""Operators through which an integer keeps its meaning: what is said of the output bounds the input."""

INDEXED: Mapping[str, tuple[int, int]] = {
    "Gather": (0, 1),
    "GatherElements": (0, 1),
    "GatherND": (0, 1),
    "ScatterElements": (0, 1),
    "ScatterND": (0, 1),
    "ArrayFeatureExtractor": (0, 1),
}
"""Operator → (input that is indexed, input that holds the indices)."""

LENGTHS: Mapping[str, int] = {"LSTM": 4, "GRU": 4, "RNN": 4, "ReverseSequence": 1}
"""Operator → input that holds lengths along the sequence."""


@dataclass(frozen=True)
class Range:
    """Inclusive bounds of an integer input, with the reason."""

    low: int
    high: int
    why: str



CANDIDATES: tuple[tuple[int, int], ...] = (
    (2, 8), (1, 16), (3, 5), (1, 1), (1, 32), (2, 64), (1, 64), (1, 128), (4, 4), (1, 96), (1, 160), (1, 224), (1, 256), (1, 320),
)  # fmt: skip
"""(batch, other sizes) tried in turn for symbolic dimensions until the model runs."""


def symbolic_dimensions(model: ir.Model) -> list[str]:
    """Names of the sizes that the graph inputs leave open; unnamed ones get a name each."""
    names: dict[str, None] = {}
    for value in required_inputs(model):
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int):
                names[dimension_name(value, axis)] = None
    return list(names)


def dimension_name(value: ir.Value, axis: int) -> str:
    """The name of an open size: as declared, else made from the input's name and the axis."""
    assert value.shape is not None
    dim = value.shape[axis]
    declared = None if isinstance(dim, int) else dim.value
    return declared or f"{value.name}[{axis}]"


def required_inputs(model: ir.Model) -> list[ir.Value]:
    """Graph inputs that have no initializer."""
    return [v for v in model.graph.inputs if not v.is_initializer()]


def sizes_to_try(model: ir.Model) -> Iterator[dict[str, int]]:
    """Assignments of the open sizes, in the order of trying; one empty one where none is open."""
    names = symbolic_dimensions(model)
    if not names:
        yield {}
        return
    first = {dimension_name(v, 0) for v in required_inputs(model) if v.shape is not None and len(v.shape) and not isinstance(v.shape[0], int)}
    for batch, other in CANDIDATES:
        sizes: dict[str, int] = {}
        for i, name in enumerate(names):
            if name in first or "batch" in name.lower():
                sizes[name] = batch
            else:
                # Unequal sizes tell rows from columns; multiples keep strided models happy.
                sizes[name] = other + (other if i % 2 and other >= 16 else 0)
        yield sizes


def draw(model: ir.Model, sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
    """One set of inputs.

    Raises:
        EvaluationError: an input has no tensor type, or no known rank.
    """
    rng = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    for value in required_inputs(model):
        feeds[str(value.name)] = _draw_value(value, sizes, rng, seed)
    return feeds


def _draw_value(value: ir.Value, sizes: Mapping[str, int], rng: np.random.Generator, seed: int) -> Any:
    if isinstance(value.type, ir.SequenceType) or isinstance(value.type, ir.OptionalType):
        inner = value.type.elem_type
        if isinstance(inner, ir.TensorType) and value.shape is not None:
            shape = tuple(_size(value, i, sizes) for i in range(len(value.shape)))
            item = rng.standard_normal(shape).astype(inner.dtype.numpy())
            return [item, item + 1] if isinstance(value.type, ir.SequenceType) else item
        raise EvaluationError("inputs of this type cannot be drawn", where=str(value.name), remedy="Give real inputs.")
    if value.dtype is None or not isinstance(value.type, ir.TensorType):
        raise EvaluationError("its type is not declared", where=str(value.name), remedy="Give real inputs.")
    if value.shape is None:
        raise EvaluationError("its rank is not declared", where=str(value.name), remedy="Give real inputs.")
    shape = tuple(_size(value, i, sizes) for i in range(len(value.shape)))
    if value.dtype == ir.DataType.STRING:
        keys = _known_strings(value) or ["a", "b", "word", ""]
        return np.array([keys[int(i)] for i in rng.integers(0, len(keys), shape).reshape(-1)], object).reshape(shape)
    kind = value.dtype.numpy()
    if value.dtype == ir.DataType.BOOL:
        return rng.random(shape) < 0.7
    if value.dtype.is_integer():
        bounds = integer_range(value, sizes)
        info = np.iinfo(kind) if kind.kind in "iu" else None
        low, high = (bounds.low, bounds.high) if bounds else (0, 255 if value.dtype == ir.DataType.UINT8 else 4)
        if info is not None:
            low, high = max(low, int(info.min)), min(high, int(info.max))
        return rng.integers(low, max(high, low) + 1, shape).astype(kind)
    scale = (1.0, 1.0, 0.25, 3.0)[seed % 4]
    return (rng.standard_normal(shape) * scale).astype(kind)


def _size(value: ir.Value, axis: int, sizes: Mapping[str, int]) -> int:
    assert value.shape is not None
    dim = value.shape[axis]
    return dim if isinstance(dim, int) else sizes.get(dimension_name(value, axis), 2)


def integer_range(value: ir.Value, sizes: Mapping[str, int]) -> Range | None:
    """The bounds that the readers of an integer value put on it; None where none does."""
    found: list[Range] = []
    seen: set[ir.Value] = set()
    stack = [value]
    while stack and len(seen) < 400:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in current.uses():
            bound = _bound_by(use.node, use.idx, current, sizes)
            if bound is not None:
                found.append(bound)
            elif use.node.op_type in FOLLOWED:
                if use.node.op_type == "Gather" and use.idx == 1:
                    continue
                stack.extend(use.node.outputs)
    name = (value.name or "").lower()
    if "mask" in name:
        found.append(Range(0, 1, "it is called a mask"))
    if not found:
        return None
    return Range(max(r.low for r in found), min(r.high for r in found), "; ".join(r.why for r in found))


def _bound_by(node: ir.Node, index: int, value: ir.Value, sizes: Mapping[str, int]) -> Range | None:
    op = node.op_type
    if op in INDEXED and index == INDEXED[op][1]:
        data = node.inputs[INDEXED[op][0]]
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        size = _known_size(data, axis, sizes)
        return Range(0, max((size or 2) - 1, 0), f"it indexes an axis of {size} in {node.name or op}")
    if op in LENGTHS and index == LENGTHS[op]:
        size = _known_size(node.inputs[0], 0, sizes)
        return Range(1, size or 1, f"it is a length in {node.name or op}")
    if op == "OneHot" and index == 0:
        depth = facts.scalar(node.inputs[1])
        return Range(0, int(depth) - 1 if depth else 3, f"it is one-hot encoded in {node.name or op}")
    if op == "Loop" and index == 0:
        return Range(1, 4, f"it is the trip count of {node.name or op}")
    if op in ("Range", "Tile", "ConstantOfShape") or (op in ("Expand", "Reshape", "Resize") and index >= 1):
        return Range(1, 4, f"it is a size in {node.name or op}")
    if op == "TopK" and index == 1:
        return Range(1, _known_size(node.inputs[0], -1, sizes) or 1, "it is the k of a TopK")
    if op == "Equal":
        other = node.inputs[1 - index]
        constants = facts.constant_ints(other)
        if constants and value.is_graph_input():
            return Range(min(constants), max(constants), f"it is compared with {constants} in {node.name or op}")
    if op == "LabelEncoder":
        keys = node.attributes.get("keys_int64s")
        if keys is not None:
            return Range(int(min(keys.value)), int(max(keys.value)), "it is looked up")
    return None


def _known_size(value: ir.Value | None, axis: int, sizes: Mapping[str, int]) -> int | None:
    shape = None if value is None else value.shape
    if shape is None:
        static = facts.static_shape(value)
        return static[axis] if static and -len(static) <= axis < len(static) else None
    if not -len(shape) <= axis < len(shape):
        return None
    dim = shape[axis]
    if isinstance(dim, int):
        return dim
    return sizes.get(dim.value) if dim.value else None


def _known_strings(value: ir.Value) -> list[str]:
    for use in value.uses():
        for name in ("keys_strings", "classlabels_strings", "cats_strings"):
            attr = use.node.attributes.get(name)
            if attr is not None:
                return [s.decode() if isinstance(s, bytes) else str(s) for s in attr.value][:50]
    return []
