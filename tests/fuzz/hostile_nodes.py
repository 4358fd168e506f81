"""Nodes with attribute values out of range, for every version of every operator.

A node comes from the standard's schema, with random inputs of permitted types, or from an operator's random case whose
attributes are changed: the former reaches versions and inputs without a generator, the latter deeper code.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from sardonyx.ops import registry
from tests.fuzz.hostile_cases import CASES
from tests.ops.generators.draw import Case, Draw
from tests.ops.generators.retyped import DTYPES

INTEGERS = (0, 1, -1, 2, 3, -2, 5, 7, 16, 100, -100, 1 << 20, 2**31 - 1, 2**31, 10**12, -(10**12), 2**62, -(2**63))
FLOATS = (0.0, 1.0, -1.0, 0.5, 2.0, 1e-5, 1e30, -1e30, math.nan, math.inf, -math.inf)
WORDS = (
    "", "foo", "[", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", "constant", "reflect", "edge", "wrap", "nearest",
    "linear", "cubic", "bilinear", "half_pixel", "align_corners", "asymmetric", "floor", "forward", "reverse",
    "bidirectional", "Tanh", "Affine", "DCR", "CRD", "none", "add", "mul", "max", "min", "mean", "sum", "zeros",
    "border", "LEFT", "RIGHT", "avg", "tanh", "BRANCH_LEQ", "LEAF", "L2", "SOFTMAX", "TFIDF", "ij,jk->ik", "...i->i",
    "a,", "->", "circular", "not_larger", "UPPER", "RGB", "up", "gated_delta",
)  # fmt: skip
MOST_RANK = 5
MOST_LIST = 6

Attribute = tuple[int, Any]
"""The kind of an attribute (``AttributeProto.INT``, …) and its default; None without one."""


@dataclass(frozen=True)
class Source:
    """The operator of a node.

    Attributes:
        domain: The domain.
        name: The operator.
        version: The version of the domain.
        schema: The standard's schema; None if there is none.
    """

    domain: str
    name: str
    version: int
    schema: onnx.defs.OpSchema | None

    def __str__(self) -> str:
        return f"{self.domain}.{self.name}-{self.version}".lstrip(".")


@cache
def sources() -> Mapping[str, Source]:
    """Return every version of every operator, by label."""
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if not s.deprecated]
    versions = [Source(s.domain, s.name, s.since_version, s) for s in schemas]
    known = {(source.domain, source.name, source.version) for source in versions}
    for operator in registry.all_operators():
        if (operator.domain, operator.name, operator.since) not in known and not operator.is_user_defined:
            versions.append(Source(operator.domain, operator.name, operator.since, None))
    return {str(source): source for source in sorted(versions, key=lambda s: (s.domain, s.name, s.version))}


def draw_node(draw: Draw, source: Source) -> Case:
    """Return a node of the operator with some attribute values out of range."""
    generator = CASES.get(f"{source.domain}.{source.name}".removeprefix("ai.onnx.ml").lstrip("."))
    if generator is not None and (source.schema is None or draw.chance(0.5)):
        case = generator(draw)
        if draw.chance(0.3):
            case = replace(case, opset=source.version)
        count = draw.pick(1, 1, 2)
    else:
        case, count = case_by_schema(draw, source), 9
    known = _attributes(source)
    attributes = dict(case.attributes)
    for name in draw.random.sample(sorted(known), min(count, len(known))):
        kind, default = known[name]
        if count < 9 or draw.chance(0.7):
            value = _value(draw, kind, attributes.get(name, default))
            if value is None:
                attributes.pop(name, None)
            else:
                attributes[name] = value
    return replace(case, attributes=attributes)


def case_by_schema(draw: Draw, source: Source) -> Case:
    """Return a node with random inputs of the types that the schema permits, and no attributes."""
    if source.schema is None:
        operator = registry.find(source.domain, source.name, source.version)
        assert operator is not None
        count = max(len(operator.inputs), 1)
        arrays: list[Any] = [draw.array(draw.shape(0, 4)) for _ in range(draw.integer(1, count))]
        return Case(source.name, source.version, arrays, {}, 1, source.domain)
    shape = draw.shape(0, MOST_RANK, 4)
    variables: dict[str, Any] = {}
    inputs: list[Any] = []
    for parameter in source.schema.inputs:
        option = parameter.option
        if option == onnx.defs.OpSchema.FormalParameterOption.Optional and draw.chance(0.5):
            inputs.append(None)
            continue
        is_variadic = option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        for _ in range(draw.integer(1, 3) if is_variadic else 1):
            if parameter.type_str not in variables:
                variables[parameter.type_str] = _type(draw, sorted(parameter.types))
            inputs.append(_operand(draw, shape, *variables[parameter.type_str]))
    most = min(source.schema.max_output, 3)
    outputs = draw.integer(min(max(source.schema.min_output, 1), most), most)
    return Case(source.name, source.version, inputs, {}, outputs, source.domain)


def _type(draw: Draw, permitted: Sequence[str]) -> tuple[np.dtype, bool]:
    """Return an element type, and True for a sequence of tensors."""
    plain = [name for name in permitted if name in DTYPES]
    if plain:
        frequent = [name for name in plain if name in ("tensor(float)", "tensor(int64)", "tensor(int32)")]
        return DTYPES[draw.pick(*(frequent if frequent and draw.chance(0.7) else plain))], False
    elements = [name[4:-1] for name in permitted if name[4:-1] in DTYPES]
    return (DTYPES[draw.pick(*elements)], True) if elements else (np.dtype(np.float32), False)


def _operand(draw: Draw, shape: Sequence[int], dtype: np.dtype, is_sequence: bool) -> Any:
    if is_sequence:
        return [_operand(draw, shape, dtype, False) for _ in range(draw.integer(1, 2))]
    if dtype.kind in "iu" and draw.chance(0.4):
        shape, most = draw.pick((), (1,), (2,), (len(shape),), (2 * len(shape),)), 3
        return draw.array(shape, dtype, -most if dtype.kind == "i" else 0, most)
    own = draw.pick(shape, shape, draw.partner(shape), draw.shape(0, MOST_RANK, 4))
    if dtype.kind == "c":
        return (draw.array(own) + 1j * draw.array(own)).astype(dtype)
    return draw.array(own, dtype)


@cache
def _attributes(source: Source) -> Mapping[str, Attribute]:
    if source.schema is not None:
        return {name: _of_schema(attribute) for name, attribute in source.schema.attributes.items()}
    operator = registry.find(source.domain, source.name, source.version)
    assert operator is not None
    hints = inspect.signature(operator.definition).parameters
    return {
        name: (_kind_of_hint(str(hints[name].annotation)), None if default is registry.REQUIRED else default)
        for name, default in operator.attributes.items()
        if name in hints
    }


def _of_schema(attribute: onnx.defs.OpSchema.Attribute) -> Attribute:
    kind = int(attribute.type.value)
    if not attribute.default_value.type:
        return kind, None
    default = helper.get_attribute_value(attribute.default_value)
    return kind, list(default) if kind in (AttributeProto.INTS, AttributeProto.FLOATS) else default


_HINTS = {
    "Sequence[int]": AttributeProto.INTS, "Sequence[float]": AttributeProto.FLOATS,
    "Sequence[str]": AttributeProto.STRINGS, "int": AttributeProto.INT, "float": AttributeProto.FLOAT,
    "str": AttributeProto.STRING, "Tensor": AttributeProto.TENSOR, "Body": AttributeProto.GRAPH,
}  # fmt: skip


def _kind_of_hint(hint: str) -> int:
    return next((kind for text, kind in _HINTS.items() if text in hint), int(AttributeProto.INT))


def _value(draw: Draw, kind: int, old: Any) -> Any:
    """Return a value of a kind, often out of range; None to leave the attribute out."""
    if draw.chance(0.05):
        return None
    if draw.chance(0.03):
        kind = draw.pick(*_VALUES)
    return _VALUES[kind](draw, old) if kind in _VALUES else old


def _integers(draw: Draw, old: Any) -> list[int]:
    if isinstance(old, (list, tuple)) and old and all(isinstance(x, int) for x in old) and draw.chance(0.7):
        values = list(old)[: draw.pick(len(old), len(old), len(old) - 1)] + [1] * draw.pick(0, 0, 0, 1)
        if values:
            values[draw.integer(0, len(values) - 1)] = draw.pick(*INTEGERS)
        return values or [draw.pick(*INTEGERS)]
    small = draw.chance(0.5)
    return [draw.integer(-1, 3) if small else draw.pick(*INTEGERS) for _ in range(draw.integer(1, MOST_LIST))]


def _floats(draw: Draw, old: Any) -> list[float]:
    size = len(old) if isinstance(old, (list, tuple)) and draw.chance(0.5) else draw.integer(1, MOST_LIST)
    return [draw.pick(*FLOATS) for _ in range(max(size, 1))]


def _words(draw: Draw, old: Any) -> list[str]:
    return [draw.pick(*WORDS) for _ in range(draw.integer(1, MOST_LIST))]


def _tensor(draw: Draw, old: Any) -> onnx.TensorProto:
    dtype = draw.pick(np.float32, np.int64, np.uint8, np.float64, np.bool_, ml_dtypes.bfloat16, object)
    return numpy_helper.from_array(draw.array(draw.shape(0, 2, 3), dtype))


def _graph(draw: Draw, old: Any) -> onnx.GraphProto:
    """Return a graph of identities, with any number of inputs and outputs."""
    count, results = draw.integer(0, 3), draw.integer(0, 3)
    inputs = [onnx.ValueInfoProto(name=f"b{i}") for i in range(count)]
    source = draw.pick(*[f"b{i}" for i in range(count)], "x0")
    nodes = [helper.make_node("Identity", [source], [f"r{i}"]) for i in range(results)]
    return helper.make_graph(nodes, "body", inputs, [onnx.ValueInfoProto(name=f"r{i}") for i in range(results)])


_VALUES: Mapping[int, Callable[[Draw, Any], Any]] = {
    AttributeProto.INT: lambda draw, old: draw.pick(*INTEGERS) if draw.chance(0.7) else draw.integer(-6, 20),
    AttributeProto.FLOAT: lambda draw, old: draw.pick(*FLOATS),
    AttributeProto.STRING: lambda draw, old: draw.pick(*WORDS) if draw.chance(0.9) else b"\xff\xfe",
    AttributeProto.INTS: _integers,
    AttributeProto.FLOATS: _floats,
    AttributeProto.STRINGS: _words,
    AttributeProto.TENSOR: _tensor,
    AttributeProto.GRAPH: _graph,
}
"""A value of each kind of attribute, from the value to replace."""
