"""Integers, strings and keys permitted by the readers of an input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from sardonyx.core import dim as algebra
from sardonyx.errors import ShapeError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import parsed

FOLLOWED = frozenset(
    {
        "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Concat", "Expand", "Slice",
        "Split", "Tile", "Gather", "Abs", "Clip", "Where", "Max", "Min", "GatherElements", "GatherND",
    }
)  # fmt: skip
"""Operators that preserve the meaning of an integer: a bound of the output bounds the input."""

SCALED = frozenset({"Neg", "Mul", "Div", "Add", "Sub"})
"""Operators that, with those above, preserve infinity and NaN."""

SHIFTED: Mapping[str, int] = {"Add": -1, "Sub": 1}
"""Operators that shift bounds by a constant, and the sign of the inverse."""

INDEXED: Mapping[str, tuple[int, int]] = {
    "Gather": (0, 1),
    "GatherElements": (0, 1),
    "GatherND": (0, 1),
    "ScatterElements": (0, 1),
    "Scatter": (0, 1),
    "ScatterND": (0, 1),
    "ArrayFeatureExtractor": (0, 1),
}
"""Operator → (indexed input, input with the indices)."""

LENGTHS: Mapping[str, int] = {"LSTM": 4, "GRU": 4, "RNN": 4, "ReverseSequence": 1}
"""Operator → input with lengths along the sequence."""

FARTHEST = 400
"""Maximum number of values followed from one input."""


@dataclass(frozen=True)
class Range:
    """Inclusive bounds of an integer input, with the reason."""

    low: int
    high: int
    why: str


@dataclass(frozen=True)
class Choice:
    """Numbers from which an input is drawn, with the reason."""

    options: tuple[int, ...]
    why: str


def permitted_values(value: ir.Value, sizes: Mapping[str, int]) -> Range | Choice | None:
    """Return the bounds set by the readers of an integer value; None without bounds.

    Args:
        value: A graph input.
        sizes: The open sizes, by name.
    """
    ranges: list[Range] = []
    choices: list[Choice] = []
    seen: set[ir.Value] = set()
    stack = [(value, 0)]
    while stack and len(seen) < FARTHEST:
        current, offset = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in current.uses():
            bound = _bound_by(use.node, use.idx, sizes)
            if isinstance(bound, Choice):
                if not current.shape or current is value:
                    choices.append(Choice(tuple(o - offset for o in bound.options), bound.why))
            elif bound is not None:
                ranges.append(Range(bound.low - offset, bound.high - offset, bound.why))
            elif use.node.op_type in SHIFTED and use.idx == 0 and facts.scalar(use.node.inputs[1]) is not None:
                step = -SHIFTED[use.node.op_type] * int(facts.scalar(use.node.inputs[1]))
                stack.append((use.node.outputs[0], offset + step))
            elif use.node.op_type in FOLLOWED and not (use.node.op_type in INDEXED and use.idx > 0):
                stack.extend((output, offset) for output in use.node.outputs)
    if "mask" in (value.name or "").lower():
        ranges.append(Range(0, 1, "it is called a mask"))
    if ranges:
        low, high = max(r.low for r in ranges), min(r.high for r in ranges)
        return Range(max(low, min(0, high)), high, "; ".join(r.why for r in ranges))
    if choices:
        return Choice(tuple(dict.fromkeys(o for c in choices for o in c.options)), "; ".join(c.why for c in choices))
    return None


def tests_of(value: ir.Value) -> frozenset[str]:
    """Return the tests that readers of a float value make of its numbers: of ``IsInf``, ``IsNaN`` and ``Equal``."""
    tests: set[str] = set()
    seen: set[ir.Value] = set()
    stack = [value]
    while stack and len(seen) < FARTHEST:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in current.uses():
            if use.node.op_type in ("IsInf", "IsNaN", "Equal"):
                tests.add(use.node.op_type)
            elif use.node.op_type in FOLLOWED or use.node.op_type in SCALED:
                stack.extend(use.node.outputs)
    return frozenset(tests)


def _bound_by(node: ir.Node, index: int, sizes: Mapping[str, int]) -> Range | Choice | None:
    op = node.op_type
    label = node.name or op
    if op in INDEXED and index == INDEXED[op][1]:
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1 if op[0] == "A" else 0
        size = _known_size(node.inputs[INDEXED[op][0]], axis, sizes)
        return Range(0, max((size or 2) - 1, 0), f"it indexes an axis of {size} in {label}")
    if op in LENGTHS and index == LENGTHS[op]:
        size = _known_size(
            node.inputs[0], node.attributes["time_axis"].as_int() if "time_axis" in node.attributes else 0, sizes
        )
        return Range(1, size or 1, f"it is a length in {label}")
    if op == "OneHot" and index == 0:
        depth = facts.scalar(node.inputs[1])
        return Range(0, max(int(depth) - 1, 0) if depth else 3, f"it is one-hot encoded in {label}")
    if op == "Loop" and index == 0:
        return Range(1, 4, f"it is the trip count of {label}")
    if op in ("Range", "Tile", "ConstantOfShape", "Pad", "Resize", "Upsample") or (
        op in ("Expand", "Reshape") and index >= 1
    ):
        # Data of Tile, Pad and Resize is bounded by the readers of the output, not by the operator.
        return (
            None if index == 0 and op not in ("Range", "ConstantOfShape") else Range(1, 4, f"it is a size in {label}")
        )
    if op == "TopK" and index == 1:
        return Range(1, _known_size(node.inputs[0], -1, sizes) or 1, f"it is the k of {label}")
    if op == "Equal":
        constants = facts.constant_ints(node.inputs[1 - index])
        if constants:
            other = max(constants) // 2 + 1
            while other in constants:
                other += 1
            return Choice((*constants, other), f"it is compared with {constants} in {label}")
    if op == "LabelEncoder":
        keys = node.attributes.get("keys_int64s")
        if keys is not None:
            return Range(int(min(keys.value)), int(max(keys.value)), f"it is looked up in {label}")
    return None


def _known_size(value: ir.Value | None, axis: int, sizes: Mapping[str, int]) -> int | None:
    shape: Any = None if value is None else value.shape
    if shape is None:
        shape = facts.static_shape(value)
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    dim = shape[axis]
    if isinstance(dim, int):
        return dim
    if not dim.value:
        return None
    size = parsed(dim.value)
    if not all(name in sizes for name in algebra.symbols(size)):
        return None
    try:
        return algebra.evaluate(size, sizes)
    except (ShapeError, ZeroDivisionError):
        return None


def known_strings(value: ir.Value) -> list[str]:
    """Return the strings in a lookup table that reads the value."""
    for use in value.uses():
        for name in ("keys_strings", "classlabels_strings", "cats_strings", "string_vocabulary"):
            attr = use.node.attributes.get(name)
            if attr is not None:
                return [s.decode() if isinstance(s, bytes) else str(s) for s in attr.value][:50]
    return []


def known_keys(value: ir.Value) -> list[Any]:
    """Return keys for an input of map type, taken from the vocabulary of a reader."""
    for use in value.uses():
        attr = use.node.attributes.get("int64_vocabulary")
        if attr is not None:
            return [int(key) for key in attr.value][:50]
    return known_strings(value) or [0, 1, 2]
