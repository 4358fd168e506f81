"""The steps of a program: kernels that run in one native call, and values that the interpreter computes between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sardonyx.compiler.launch import Launch
from sardonyx.core.graph import Value


@dataclass
class Segment:
    """Kernels that run in one native call.

    Attributes:
        launches: The kernels.
        counted: What is all of it and counts a size of what follows: a loop its iterations, a host its results.
    """

    launches: list[Launch] = field(default_factory=list)
    counted: Value | None = None


Step = Segment | Value
"""Kernels, or a value that the interpreter computes."""


def not_native(steps: Iterable[Step], host: Mapping[Value, str]) -> list[str]:
    """What of a program more than native code runs, in words: the interpreter, or a plan with sizes that were counted.

    Args:
        steps: The steps.
        host: What the interpreter computes, and why.
    """
    counted = [step.counted for step in steps if isinstance(step, Segment) and step.counted is not None]
    left = [f"{_named(value)} is left to the interpreter ({reason})" for value, reason in host.items()]
    return left + [f"{_named(value)} counts sizes while it runs" for value in counted]


def _named(value: Value) -> str:
    name = f"host {value.params['function'].name}" if value.op == "host" else value.op
    return f"{name} ({value.origin})" if value.origin else name
