"""What a check says: findings, the places they point at, and the registry of their codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "lint"]


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding.

    Attributes:
        name: The stable name, as printed and as used in ``--json``.
        severity: ``error`` (not a legal model, or not runnable by the target), ``warning`` (legal, and likely to
            be refused or misread) or ``lint`` (legal, and worse than it need be).
        meaning: What is wrong, in one sentence.
        repair: What to do about it, in one sentence.
    """

    name: str
    severity: Severity
    meaning: str
    repair: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a model a finding is.

    Attributes:
        graph: The path of the graph from the main graph (``If_3.then_branch``, ``function local::f``); empty for the
            main graph.
        node: The node's name, or ``OpType(first output)`` where it has none.
        op_type: The node's operator, with its domain where that is not ``ai.onnx``.
        tensor: The name of a tensor: an input, an output, a weight.
        item: Anything else: a function, an opset import, a file.
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
    """One thing that a check found.

    Attributes:
        severity: ``error``, ``warning`` or ``lint``.
        code: The name of its kind; ``docs/reference/check.md`` lists them all.
        reason: What is wrong here, in one sentence.
        where: The place.
        remedy: What to do about it, in words.
        command: The ``sardonyx`` command line that repairs it; empty where no command can.
    """

    severity: Severity
    code: str
    reason: str
    where: Place
    remedy: str
    command: str = ""

    def as_dict(self) -> dict[str, str]:
        """The finding as a flat dictionary of strings, ready for JSON."""
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
