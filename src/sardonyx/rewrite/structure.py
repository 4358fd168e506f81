"""What must hold of a model before anything walks it: names, order, nesting, and functions that end.

It is the structural part of ``sardonyx.model.check``, which no hostile model can hurt; recursive walks and
the C++ of onnx come after it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import onnx
import onnx_ir as ir

from sardonyx.errors import InvalidModelError
from sardonyx.model.check.functions import check_functions
from sardonyx.model.check.scopes import MAX_DEPTH
from sardonyx.model.check.structure import check_values
from sardonyx.model.types import DATA_TYPES
from sardonyx.rewrite import facts

FATAL = frozenset(
    {
        "function-depth", "function-duplicate", "function-expansion", "function-recursive", "graph-cycle",
        "nesting-too-deep", "output-undefined", "value-undefined",
    }
)  # fmt: skip
"""Findings after which a rewrite means nothing, or does not end."""


def require_structure(model: onnx.ModelProto) -> None:
    """Refuse a model that cannot be rewritten.

    Args:
        model: The message, with or without its weights; it is not changed.

    Raises:
        InvalidModelError: a cycle, an undefined value, a recursive or exploding function, bodies nested too deep, or
            a node with fewer inputs or outputs than its operator has; names the place.
    """
    for check in (check_functions, check_values):
        for finding in check(model):
            if finding.severity == "error" and finding.code in FATAL:
                raise InvalidModelError(finding.reason, where=str(finding.where), remedy=finding.remedy)
    for value in (*model.graph.input, *model.graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type not in DATA_TYPES:
            raise InvalidModelError(
                "is of an element type that does not exist.",
                where=f"tensor '{value.name}'",
                remedy="`sardonyx check` says what is wrong with it.",
            )
    _require_arity(model.graph.node, model.opset_import)
    for function in model.functions:
        _require_arity(function.node, function.opset_import)


def _require_arity(nodes: Iterable[onnx.NodeProto], imports: Iterable[onnx.OperatorSetIdProto]) -> None:
    versions = {entry.domain: entry.version for entry in imports}
    standard = versions.get("", versions.get("ai.onnx", 1))
    pending = [nodes]
    while pending:
        for node in pending.pop():
            if node.domain in ("", "ai.onnx"):
                inputs, outputs = _fewest(node.op_type, standard)
                if len(node.input) < inputs or len(node.output) < outputs:
                    raise InvalidModelError(
                        f"has {len(node.input)} inputs and {len(node.output)} outputs, and its operator at least"
                        f" {inputs} and {outputs}",
                        where=f"node '{node.name or next(iter(node.output), '')}' ({node.op_type})",
                        remedy="`sardonyx check` says what is wrong with it.",
                    )
            pending.extend(attribute.g.node for attribute in node.attribute if attribute.HasField("g"))


@functools.lru_cache(maxsize=4096)
def _fewest(op_type: str, version: int) -> tuple[int, int]:
    """The fewest inputs and outputs of a standard operator; none of one that is not known."""
    try:
        schema = onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return 0, 0
    return schema.min_input, schema.min_output


def plainly_sound(model: ir.Model) -> bool:
    """Whether one look shows that ``require_structure`` would find nothing: the common case, told cheaply.

    So it is where there are no functions, every value is defined before it is read, standard operators have the inputs
    and outputs they need, and bodies end in good time. An interface without types has none that does not exist.
    """
    opset = model.graph.opset_imports.get("", 1)
    return not model.functions and _reads_only_known(model.graph, opset, set(), 1)


def _reads_only_known(graph: ir.Graph, opset: int, known: set[ir.Value | None], depth: int) -> bool:
    if depth > MAX_DEPTH:
        return False
    known.update((None, *graph.inputs, *graph.initializers.data.values()))
    for node in graph:
        if not known.issuperset(node.inputs):
            return False
        if node.domain in facts.STANDARD:
            inputs, outputs = _fewest(node.op_type, opset)
            if len(node.inputs) < inputs or len(node.outputs) < outputs:
                return False
        if facts.may_hold_bodies(node):
            for body in facts.bodies(node):
                if not _reads_only_known(body, opset, known, depth + 1):
                    return False
        known.update(node.outputs)
    return all(value in known and value.graph is graph for value in graph.outputs)
