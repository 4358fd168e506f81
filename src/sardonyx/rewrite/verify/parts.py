"""Cuts of a model at tensors, so that each side of the cut is compared by itself.

*Opaque* nodes are the nodes no evaluator here runs. Their outputs become inputs of the model, and
their inputs become outputs: the remaining model is run and compared like any other.

*Comparisons* are cut in the same way: at a decision (e.g. the larger of two numbers), the operands become outputs, and
all readers use supplied numbers. Both models then decide on the same bits, and only a different decision on equal
numbers is a difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from sardonyx.errors import EvaluationError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label

DECIDING = frozenset(
    {
        "ArgMax", "ArgMin", "TopK", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal", "NonMaxSuppression",
        "Round", "Ceil", "Floor", "Sign", "Cast", "QuantizeLinear", "DynamicQuantizeLinear", "NonZero", "Mod", "Unique",
        "Hardmax",
    }
)  # fmt: skip
"""Operators that turn floats into decisions: a last-bit difference before may be a whole step after."""

RUN_BY_ENGINES = frozenset(
    {
        "", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training",
        "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc",
    }
)  # fmt: skip
"""Domains with operators that an evaluator may know."""


@dataclass(frozen=True)
class Opaque:
    """A node excluded from evaluation.

    Attributes:
        label: Label of the node in messages.
        signature: Operator and attributes without bodies; must be equal in the result.
        bodies: True if the node has graphs, which are then not compared.
        kinds: Type and shape of each output; None for unread outputs.
    """

    label: str
    signature: bytes
    bodies: bool
    kinds: tuple[tuple[ir.TypeProtocol, ir.Shape] | None, ...]


def find_opaque(model: ir.Model, also: Sequence[str] = ()) -> list[ir.Node]:
    """Return the nodes of the main graph that no evaluator runs, in order.

    Args:
        model: The model.
        also: Names of further nodes (or of their outputs) refused by evaluators.
    """
    named = set(also)
    return [
        node
        for node in model.graph
        if _is_foreign(model, node) or node.name in named or any(v.name in named for v in node.outputs)
    ]


def _is_foreign(model: ir.Model, node: ir.Node, depth: int = 0) -> bool:
    function = model.functions.get(node.op_identifier())
    if function is not None:
        return depth > 8 or any(_is_foreign(model, inner, depth + 1) for inner in function)
    if node.domain not in RUN_BY_ENGINES:
        return True
    if node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type):
        return True
    return any(_is_foreign(model, inner, depth) for body in facts.bodies(node) for inner in body)


def refused_nodes(reason: str) -> list[str]:
    """Return the names of the nodes blamed in an evaluator's message."""
    return list(
        dict.fromkeys(n for n in re.findall(r"(?:[Nn]ode with name |[Nn]ame:|[Nn]ode \()\s?'?([^')]+)'?", reason))
    )


def describe_opaque(model: ir.Model, nodes: Sequence[ir.Node]) -> list[Opaque]:
    """Describe opaque nodes, with the types of their outputs.

    Raises:
        EvaluationError: the type or rank of an output is unknown.
    """
    return [
        Opaque(
            label=f"{node_label(node)} ({node.domain + '::' if node.domain else ''}{node.op_type})",
            signature=_signature(node),
            bodies=bool(facts.bodies(node)) or node.op_identifier() in model.functions,
            kinds=tuple(None if facts.unused(v) else _kind(node, v) for v in node.outputs),
        )
        for node in nodes
    ]


def _kind(node: ir.Node, value: ir.Value) -> tuple[ir.TypeProtocol, ir.Shape]:
    # Without a declared or inferred type, assume the type and shape of the first input, as for most operators.
    like = next((v for v in node.inputs if v is not None and v.dtype is not None and v.shape is not None), None)
    kind = value.type or (like.type if like is not None else None)
    shape = value.shape if value.shape is not None else (like.shape if like is not None else None)
    if kind is None or shape is None:
        raise EvaluationError("unknown type or rank of an output", where=node_label(node))
    return kind, shape


def _signature(node: ir.Node) -> bytes:
    message = ir.serde.serialize_node(node)
    for field in ("input", "output", "name", "doc_string", "metadata_props"):
        message.ClearField(field)
    plain = sorted((a for a in message.attribute if not a.HasField("g") and not a.graphs), key=lambda a: str(a.name))
    del message.attribute[:]
    message.attribute.extend(plain)
    content: bytes = message.SerializeToString(deterministic=True)
    return content


def cut_opaque(model: ir.Model, opaque: Sequence[Opaque]) -> str:
    """Remove opaque nodes, in place: their outputs become inputs, their inputs become outputs.

    Args:
        model: The original, or a candidate.
        opaque: The result of ``describe_opaque`` for the original.

    Returns:
        The difference if the model's nodes are not the original's, else an empty string.
    """
    waiting = list(model.graph)
    for number, node_ in enumerate(opaque):
        node = next((n for n in waiting if _signature(n) == node_.signature), None)
        if node is None:
            return f"{node_.label} is missing or changed"
        waiting.remove(node)
        for i, value in enumerate(node.inputs):
            if value is not None:
                expose_value(model.graph, value, f"into:{number}:{i}", before=node)
        for i, (value, kind) in enumerate(zip(node.outputs, node_.kinds, strict=False)):
            if kind is not None:
                entry = ir.Value(name=f"given:{number}:{i}", type=kind[0], shape=kind[1])
                _replace_by_input(model.graph, value, entry)
        model.graph.remove(node, safe=True)
    return ""


def compared_values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the computed floats of the main graph that are operands of decisions."""
    values: dict[ir.Value, None] = {}
    for node in facts.nodes_of(model.graph):
        if node.op_type not in DECIDING:
            continue
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if value is None or producer is None or producer.graph is not model.graph or facts.is_constant(value):
                continue
            if value.dtype is not None and value.dtype.is_floating_point():
                values[value] = None
    yield from values


def expose(model: ir.Model, names: Sequence[str]) -> None:
    """Make values of the main graph outputs, in place, as ``compared:NAME``."""
    for value in _named(model, names):
        expose_value(model.graph, value, f"compared:{value.name}")


def cut_comparisons(model: ir.Model, names: Sequence[str]) -> list[str]:
    """Cut at the values called ``names``, in place: computed values become outputs, readers use inputs.

    Returns:
        The names present in the model.
    """
    values = list(_named(model, names))
    for value in values:
        readers = tuple(value.uses())
        expose_value(model.graph, value, f"compared:{value.name}")
        entry = ir.Value(name=f"given:{value.name}", type=value.type)
        model.graph.inputs.append(entry)
        for use in readers:
            use.node.replace_input_with(use.idx, entry)
    return [str(v.name) for v in values]


def _named(model: ir.Model, names: Sequence[str]) -> Iterator[ir.Value]:
    chosen = set(names)
    for node in list(model.graph):
        yield from (v for v in node.outputs if v.name in chosen and v.type is not None)


def expose_value(graph: ir.Graph, value: ir.Value, name: str, *, before: ir.Node | None = None) -> None:
    """Make a value of the main graph an output, in place, under another name."""
    node = ir.Node("", "Identity", [value], name=name)
    node.outputs[0].name, node.outputs[0].type = name, value.type
    if before is None:
        graph.append(node)
    else:
        graph.insert_before(before, node)
    graph.outputs.append(node.outputs[0])


def _replace_by_input(graph: ir.Graph, value: ir.Value, entry: ir.Value) -> None:
    """Replace ``value`` by the graph input ``entry`` in all readers; a graph output retains its name."""
    graph.inputs.append(entry)
    for use in tuple(value.uses()):
        use.node.replace_input_with(use.idx, entry)
    for i, output in enumerate(graph.outputs):
        if output is value:
            node = ir.Node("", "Identity", [entry], name=f"{entry.name}:output")
            name, value.name = value.name, f"{value.name}:opaque"
            node.outputs[0].name, node.outputs[0].type = name, entry.type
            graph.append(node)
            graph.outputs[i] = node.outputs[0]
