"""Results of a check: findings, their locations, and the type of their codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "lint"]


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding.

    Attributes:
        name: The stable name, as printed and as used in ``--json``.
        severity: ``error`` (illegal model, or not runnable by the target), ``warning`` (legal, and likely to be refused
            or misread) or ``lint`` (legal, but wasteful or risky).
        meaning: The problem, in one sentence.
        repair: The repair, in one sentence.
    """

    name: str
    severity: Severity
    meaning: str
    repair: str


@dataclass(frozen=True, slots=True)
class Location:
    """Location of a finding in a model.

    Attributes:
        graph: The path of the graph from the main graph (``If_3.then_branch``, ``function local::f``); empty for the
            main graph.
        node: The node's name, or ``OpType(first output)`` for a node without one.
        op_type: The node's operator, with its domain unless ``ai.onnx``.
        tensor: The name of a tensor: an input, an output, a weight.
        item: Any other part: a function, an opset import, a file.
    """

    graph: str = ""
    node: str = ""
    op_type: str = ""
    tensor: str = ""
    item: str = ""

    def __str__(self) -> str:
        parts = [self.graph] if self.graph else []
        if self.node:
            plain = self.node.startswith(f"{self.op_type}(") or not self.op_type
            parts.append(f"node {self.node}" if plain else f"node {self.node} ({self.op_type})")
        if self.tensor:
            parts.append(f"tensor {self.tensor!r}")
        if self.item:
            parts.append(self.item)
        return ", ".join(parts) or "model"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check.

    Attributes:
        severity: ``error``, ``warning`` or ``lint``.
        code: The name of its code; ``docs/reference/check.md`` lists all codes.
        reason: The problem at this location, in one sentence.
        where: The location.
        remedy: The remedy in words.
        command: The ``sardonyx`` command line that repairs the problem; empty if no command can.
    """

    severity: Severity
    code: str
    reason: str
    where: Location
    remedy: str
    command: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding as a flat dictionary of strings, ready for JSON."""
        return {
            "severity": self.severity,
            "code": self.code,
            "reason": self.reason,
            "where": str(self.where),
            "graph": self.where.graph,
            "node": self.where.node,
            "op_type": self.where.op_type,
            "tensor": self.where.tensor,
            "item": self.where.item,
            "remedy": self.remedy,
            "command": self.command,
        }

    def __str__(self) -> str:
        text = f"{self.severity} [{self.code}] {self.where}: {self.reason} {self.remedy}"
        return f"{text} Run `{self.command}`." if self.command else text
