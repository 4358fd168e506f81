"""The numpy interpreter of Core as a provider: it takes whatever has a definition, slowly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import OptionError
from sardonyx.ops.reference import ReferenceModel
from sardonyx.ops.registry import canonical, find
from sardonyx.rewrite import facts
from sardonyx.runtime.providers.estimates import node_seconds
from sardonyx.runtime.providers.protocol import Answer, Claim, Refusal, Settings

SLOWER = 20.0
"""How much longer numpy takes than compiled code, about."""


def without_definition(node: ir.Node, model: ir.Model) -> str:
    """Which operator of a node, its bodies and the functions that it calls has no definition; empty if all have."""
    pending = [(node, model.graph.opset_imports)]
    seen: set[ir.OperatorIdentifier] = set()
    while pending:
        each, imports = pending.pop()
        function = model.functions.get(each.op_identifier())
        if function is not None:
            if each.op_identifier() not in seen:
                seen.add(each.op_identifier())
                pending.extend((inner, function.opset_imports) for inner in function)
            continue
        pending.extend((inner, imports) for body in facts.bodies(each) for inner in body)
        version = imports.get(each.domain, imports.get(canonical(each.domain), 1))
        if find(each.domain, each.op_type, version) is None:
            return f"{each.domain}.{each.op_type}".lstrip(".")
    return ""


class ReferenceRunner:
    """A part on numpy.

    Args:
        part: The part.
    """

    def __init__(self, part: ir.Model) -> None:
        self._model = ReferenceModel(part)
        self._names = [str(value.name) for value in part.graph.inputs]

    def run(self, values: Sequence[Any], context: RunContext) -> Sequence[Any]:
        """Run once; see :class:`~sardonyx.runtime.providers.protocol.Runner`."""
        return self._model.run(None, dict(zip(self._names, values, strict=True)), context)


class ReferenceProvider:
    """Numpy, node by node.

    Args:
        settings: A device or options are refused.
    """

    name = "reference"

    def __init__(self, settings: Settings) -> None:
        if settings.device or settings.options:
            raise OptionError("the reference has no devices and no options.", where="providers")

    def capability(self, model: ir.Model) -> Mapping[ir.Node, Answer]:
        """All nodes of operators with a definition."""
        answers: dict[ir.Node, Answer] = {}
        for node, seconds in node_seconds(model).items():
            missing = without_definition(node, model)
            answers[node] = (
                Refusal(f"{missing} has no definition") if missing else Claim(SLOWER * seconds, "it has a definition")
            )
        return answers

    def compile(self, part: ir.Model) -> ReferenceRunner:
        """Prepare the part."""
        return ReferenceRunner(part)
