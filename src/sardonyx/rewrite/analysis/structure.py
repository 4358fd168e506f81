"""Structural requirements checked before any walk of a model: names, order, nesting, finite functions.

This is the structural part of ``sardonyx.model.check``, safe on hostile models; recursive walks and the C++ of onnx run
only afterwards.
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
from sardonyx.model.schemas import get_schema
from sardonyx.model.types import DATA_TYPES
from sardonyx.rewrite.analysis import facts

FATAL = frozenset(
    {
        "function-depth", "function-duplicate", "function-expansion", "function-recursive", "graph-cycle",
        "nesting-too-deep", "output-undefined", "value-undefined",
    }
)  # fmt: skip
"""Findings after which a rewrite is meaningless or does not terminate."""


def require_structure(model: onnx.ModelProto) -> None:
    """Refuse a model that cannot be rewritten.

    Args:
        model: The message, with or without its weights; unchanged.

    Raises:
        InvalidModelError: a cycle, an undefined value, a recursive or exploding function, bodies nested too deep, or
            a node with fewer inputs or outputs than its operator requires; names the node, value or function.
    """
    for check_part in (check_functions, check_values):
        for finding in check_part(model):
            if finding.severity == "error" and finding.code in FATAL:
                raise InvalidModelError(finding.reason, where=str(finding.where), remedy=finding.remedy)
    for value in (*model.graph.input, *model.graph.output):
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type not in DATA_TYPES:
            raise InvalidModelError(
                f"unknown tensor element type {value.type.tensor_type.elem_type}.",
                where=f"tensor '{value.name}'",
                remedy="Run `sardonyx check`, which lists the faults of the model.",
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
                        f"expected at least {inputs} inputs and {outputs} outputs, got {len(node.input)} and"
                        f" {len(node.output)}",
                        where=f"node '{node.name or next(iter(node.output), '')}' ({node.op_type})",
                        remedy="Run `sardonyx check`, which lists the faults of the model.",
                    )
            pending.extend(attribute.g.node for attribute in node.attribute if attribute.HasField("g"))


@functools.lru_cache(maxsize=4096)
def _fewest(op_type: str, version: int) -> tuple[int, int]:
    """Return the minimum numbers of inputs and outputs of a standard operator; zeros if unknown."""
    try:
        schema = get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return 0, 0
    return schema.min_input, schema.min_output


def require_valid(model: ir.Model) -> None:
    """Refuse a model with errors that ``sardonyx check`` reports, before a file is written.

    Raises:
        InvalidModelError: The first error, and the number of the others.
    """
    from sardonyx.model.check import check

    errors = [finding for finding in check(model) if finding.severity == "error"]
    if errors:
        more = f" ({len(errors) - 1} more errors)" if errors[1:] else ""
        raise InvalidModelError(
            f"the result violates the standard: {errors[0].reason.rstrip('.')}{more}.",
            where=str(errors[0].where),
            remedy="Run `sardonyx check` on the original, which lists its faults.",
        )


def is_evidently_sound(model: ir.Model) -> bool:
    """Return True if a cheap scan shows that ``require_structure`` would pass: the common case.

    Sufficient: no functions, every value defined before its readers, enough inputs and outputs of standard operators,
    and bounded nesting. Element types need no check: ``onnx_ir`` represents only known ones.
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
