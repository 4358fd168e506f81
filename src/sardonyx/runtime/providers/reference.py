"""The numpy interpreter of Core as a provider: supports every operator with a definition, slowly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import OptionError
from sardonyx.ops.reference import ReferenceModel
from sardonyx.ops.registry import canonical, find
from sardonyx.rewrite.analysis import facts
from sardonyx.runtime.providers.estimates import node_seconds
from sardonyx.runtime.providers.protocol import Answer, Claim, Refusal, Settings

SLOWER = 20.0
"""Estimated time of numpy over the time of compiled code."""


def without_definition(node: ir.Node, model: ir.Model) -> str:
    """Return an operator without definition in a node, its bodies or its functions; empty if all have definitions."""
    pending = [(node, model.graph.opset_imports)]
    seen: set[ir.OperatorIdentifier] = set()
    while pending:
        current, imports = pending.pop()
        function = model.functions.get(current.op_identifier())
        if function is not None:
            if current.op_identifier() not in seen:
                seen.add(current.op_identifier())
                pending.extend((inner, function.opset_imports) for inner in function)
            continue
        pending.extend((inner, imports) for body in facts.bodies(current) for inner in body)
        version = imports.get(current.domain, imports.get(canonical(current.domain), 1))
        if find(current.domain, current.op_type, version) is None:
            return f"{current.domain}.{current.op_type}".lstrip(".")
    return ""


class ReferenceRunner:
    """A partition on numpy.

    Args:
        part: The partition.
    """

    def __init__(self, part: ir.Model) -> None:
        self._model = ReferenceModel(part)
        self._names = [str(value.name) for value in part.graph.inputs]

    def run(self, values: Sequence[Any], context: RunContext) -> Sequence[Any]:
        """Run once; see :class:`~sardonyx.runtime.providers.protocol.Runner`."""
        return self._model.run(None, dict(zip(self._names, values, strict=True)), context)


class ReferenceProvider:
    """The numpy interpreter, node by node.

    Args:
        settings: The settings, without device and options.
    """

    name = "reference"

    def __init__(self, settings: Settings) -> None:
        if settings.device or settings.options:
            raise OptionError("the reference provider has no devices and no options.", where="providers")

    def capability(self, model: ir.Model) -> Mapping[ir.Node, Answer]:
        """Claim all nodes whose operators have a definition."""
        answers: dict[ir.Node, Answer] = {}
        for node, seconds in node_seconds(model).items():
            missing = without_definition(node, model)
            answers[node] = (
                Refusal(f"{missing} has no definition") if missing else Claim(SLOWER * seconds, "it has a definition")
            )
        return answers

    def compile(self, part: ir.Model) -> ReferenceRunner:
        """Prepare the partition."""
        return ReferenceRunner(part)
