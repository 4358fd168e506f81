"""Decomposition of operators that have no translation, by torch's own tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch

from sardonyx.convert.torch.custom_operators import custom_translation
from sardonyx.convert.torch.fast_paths import RULES
from sardonyx.convert.torch.in_place import functional
from sardonyx.convert.torch.list_operators import rule_of_lists
from sardonyx.convert.torch.operators.registry import translation_of
from sardonyx.convert.torch.sources import place_of
from sardonyx.convert.torch.storage_views import over_storage
from sardonyx.errors import ConversionError

_GENERAL_EIGENVALUES = (
    "Use `torch.linalg.eigh` if the matrix is symmetric: eigenvalues of other matrices have no translation, "
    "and ONNX has no operator for them."
)

REMEDIES = {
    "aten.linalg_eig.default": _GENERAL_EIGENVALUES,
    "aten.linalg_eigvals.default": _GENERAL_EIGENVALUES,
    "aten._linalg_eigvals.default": _GENERAL_EIGENVALUES,
}
"""Remedies of operators that no registration helps."""

ROUNDS = 6
"""Maximum number of decompositions in sequence: results of one may need another."""


def decomposed(exported: Any, opaque: Collection[str] = ()) -> Any:
    """Return an equal program of functional operators that all have translations.

    Args:
        exported: The program.
        opaque: Names of the operators that become opaque nodes.

    Raises:
        ConversionError: Operators without translation and decomposition; names all of them with the source lines.
    """
    if all(_is_ready(node, opaque) for node in calls(exported.graph_module)):
        return over_storage(exported)
    without_writes = functional(exported)
    if all(_is_ready(node, opaque) for node in calls(without_writes.graph_module)):
        return over_storage(without_writes)
    exported = exported.run_decompositions(_table())
    for _ in range(ROUNDS):
        missing = {node.target for node in calls(exported.graph_module) if not _is_translated(node, opaque)}
        rules = {target: rule for target in missing if (rule := _rule(target)) is not None}
        if not rules:
            break
        exported = exported.run_decompositions(rules)
    unknown: dict[str, str] = {}
    for node in calls(exported.graph_module):
        if not _is_translated(node, opaque):
            unknown.setdefault(name_of(node.target), place_of(node))
    if unknown:
        listed = "; ".join(f"{name} ({location})" if location else name for name, location in unknown.items())
        raise ConversionError(
            f"{'an operator has' if len(unknown) == 1 else f'{len(unknown)} operators have'} no translation: {listed}",
            where=next(iter(unknown.values())),
            remedy=next(
                (REMEDIES[name] for name in unknown if name in REMEDIES),
                _remedy(next(iter(unknown))),
            ),
        )
    return over_storage(exported)


def _remedy(name: str) -> str:
    """Return the three ways out for an operator without translation, ``my_ops.scale.default``."""
    space, operator, overload = name.split(".")
    return (
        f"Register a decomposition (`torch._decomp.decomposition_table[torch.ops.{space}.{operator}.{overload}] = "
        f"function`), define the operator (`@sardonyx.operator('{operator}', domain='{space}', since=1)`), or leave it "
        f"as an opaque node (`opaque=['{space}::{operator}']`, `--opaque {space}::{operator}`)."
    )


def calls(module: Any) -> Iterator[Any]:
    """Yield the calls of a graph, those of its branches and loop bodies included."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from (node for node in part.graph.nodes if node.op == "call_function")


def name_of(target: Any) -> str:
    """Return the name of a called function, as the registry has it."""
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target._schema.name.partition('::')[2]}.{target._overloadname}"
    return f"python.{getattr(target, '__name__', str(target))}.default"


def _is_translated(node: Any, opaque: Collection[str]) -> bool:
    name = name_of(node.target)
    if name == "python.getitem.default" or translation_of(name) is not None:
        return True
    return custom_translation(node.target, opaque) is not None


def _is_ready(node: Any, opaque: Collection[str]) -> bool:
    schema = getattr(node.target, "_schema", None)
    return (
        _is_translated(node, opaque)
        and not (schema is not None and schema.is_mutable)
        and not _is_higher_order(node.target)
    )


def _is_higher_order(target: Any) -> bool:
    return isinstance(target, torch._ops.HigherOrderOperator)


def _table() -> Any:
    """Return torch's decompositions of operators that have no translation."""
    table = torch.export.default_decompositions()
    for target in list(table.keys()):
        if isinstance(target, torch._ops.OpOverload) and translation_of(name_of(target)) is not None:
            table.pop(target)
    return table


def _rule(target: Any) -> Any:
    if not isinstance(target, torch._ops.OpOverload):
        return None
    rule = RULES.get(target) or torch._decomp.decomposition_table.get(target) or rule_of_lists(target)
    if rule is None and target._can_decompose():
        return target.decompose
    return rule
