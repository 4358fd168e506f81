"""The record of one optimization: sizes before and after, patches by pass, proof and refusals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Self

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label, value_names
from sardonyx.rewrite.engine.engine import Applied, Engine
from sardonyx.rewrite.language import Exactness
from sardonyx.rewrite.verify import Verdict

NEEDS_OPSET = "needs opset "
"""Start of the reason of a match whose replacement needs a newer operator set."""


@dataclass(frozen=True)
class Count:
    """Size of a model: nodes (bodies and functions included), operators by type, weights."""

    nodes: int
    operators: dict[str, int]
    weights: tuple[ir.TensorProtocol, ...] = field(repr=False, default=())

    @cached_property
    def parameters(self) -> int:
        """Elements of all weights."""
        return sum(t.size for t in self.weights)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all weights, strings apart."""
        return sum(
            math.ceil(kind.itemsize * facts.count(t)) for t in self.weights if (kind := t.dtype) != ir.DataType.STRING
        )

    @classmethod
    def of(cls, model: ir.Model) -> Count:
        """Count a model."""
        operators: Counter[str] = Counter()
        weights: list[ir.TensorProtocol] = []
        for root in (model.graph, *(f.graph for f in model.functions.values())):
            for graph, nodes in facts.levels(root):
                weights.extend([v.const_value for v in graph.initializers.data.values() if v.const_value is not None])
                here = Counter([node.op_type for node in nodes])
                operators.update(here)
                if "Constant" in here:
                    constants = [v for node in nodes if node.op_type == "Constant" for v in node.outputs]
                    weights.extend(filter(None, map(facts.constant_tensor, constants)))
        ordered = dict(sorted(operators.items(), key=lambda item: (-item[1], item[0])))
        return cls(operators.total(), ordered, tuple(weights))

    def as_dict(self) -> dict[str, Any]:
        """Return the count as plain data."""
        return {
            "nodes": self.nodes,
            "operators": self.operators,
            "parameters": self.parameters,
            "weight_bytes": self.weight_bytes,
        }


@dataclass(frozen=True)
class Dropped:
    """A patch that changed an output and was reverted."""

    rule: str
    site: str
    reason: str


@dataclass
class Report:
    """The result of ``optimize`` in numbers.

    Attributes:
        target: The target in force.
        before: Size of the original model.
        after: Size of the result.
        applied: Patches in order.
        dropped: Reverted patches, with the difference that each caused.
        refused: Near matches that did not fire: pass, site, reason.
        verdict: The verdict of the proof.
        names: Old node → nodes of the result made from the old node.
        seconds: Time without verification.
        verify_seconds: Time of verification and of the target's gate.
        gate: Measurements or counts of the target's gate, and the passes given up for the gate.
    """

    target: str
    before: Count
    after: Count
    file_bytes: int
    applied: list[Applied] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    verdict: Verdict = field(default_factory=lambda: Verdict("not proved"))
    names: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0
    verify_seconds: float = 0.0
    gate: str = ""

    @classmethod
    def begin(cls, model: ir.Model, file_bytes: int, target: str) -> Self:
        """Return the record before any rewrite."""
        count = Count.of(model)
        return cls(target, count, count, file_bytes)

    def finish(
        self,
        model: ir.Model,
        engine: Engine,
        verdict: Verdict,
        dropped: Sequence[Dropped],
        *,
        seconds: float,
        verify_seconds: float,
    ) -> None:
        """Complete the record after the run."""
        self.after = Count.of(model)
        self.applied = list(engine.applied)
        self.dropped = list(dropped)
        waiting = any(reason.startswith(NEEDS_OPSET) for reason in engine.refused.values())
        values = set(value_names(model)) if waiting else set()
        self.refused = [
            (rule, site, reason)
            for (rule, site), reason in engine.refused.items()
            # A site that another rule has rewritten since no longer waits for an operator set.
            if not reason.startswith(NEEDS_OPSET) or site in values
        ]
        self.verdict = verdict
        self.seconds, self.verify_seconds = seconds, verify_seconds
        for node, origins in engine.origin.items():
            if engine.alive(node):
                for origin in origins:
                    self.names.setdefault(origin, []).append(node_label(node))

    def by_pass(self) -> dict[str, int]:
        """Return the number of patches per pass, most first."""
        return dict(Counter(patch.rule.split("/")[0] for patch in self.applied).most_common())

    def rules_of(self, name: str) -> list[str]:
        """Return the labels of the rules of a pass that fired, most often first."""
        fired = Counter(patch.rule for patch in self.applied if patch.rule.split("/")[0] == name)
        return [label for label, _ in fired.most_common()]

    def promise_of(self, name: str) -> str:
        """Return the weakest promise among the patches of a pass."""
        promises = [exactness.value for exactness in Exactness]
        promised = (patch.exactness for patch in self.applied if patch.rule.split("/")[0] == name)
        return max(promised, key=promises.index)

    def gains(self) -> dict[str, int]:
        """Return, per pass, the number of removed nodes less the number of inserted nodes."""
        gained: Counter[str] = Counter()
        for patch in self.applied:
            gained[patch.rule.split("/")[0]] += len(patch.removed) - len(patch.added)
        return dict(gained.most_common())

    def refused_for_opset(self) -> dict[str, int]:
        """Return needed opset → number of sites at which it would permit a fusion.

        Each site counts once, at the lowest sufficient opset.
        """
        lowest: dict[str, int] = {}
        for _, site, reason in self.refused:
            if reason.startswith(NEEDS_OPSET):
                needed = int(reason.removeprefix(NEEDS_OPSET))
                lowest[site] = min(needed, lowest.get(site, needed))
        return {str(opset): count for opset, count in sorted(Counter(lowest.values()).items())}

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, for ``--json``."""
        return {
            "target": self.target,
            "before": self.before.as_dict(),
            "after": self.after.as_dict(),
            "file_bytes": self.file_bytes,
            "by_pass": self.by_pass(),
            "gains": self.gains(),
            "applied": [asdict(patch) for patch in self.applied],
            "dropped": [asdict(patch) for patch in self.dropped],
            "refused": [dict(zip(("rule", "site", "reason"), entry, strict=True)) for entry in self.refused],
            "verdict": self.verdict.as_dict(),
            "names": self.names,
            "seconds": self.seconds,
            "verify_seconds": self.verify_seconds,
            "gate": self.gate,
        }
