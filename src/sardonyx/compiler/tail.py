"""Programs that are native code but for host functions at the end: one generated call, then those functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sardonyx.compiler.entry import Entry
from sardonyx.compiler.steps import Step
from sardonyx.core.graph import Value
from sardonyx.core.run_context import RunContext, running


def tail_of(steps: Sequence[Step], results: Sequence[Value], known: Sequence[Value]) -> list[Value] | None:
    """The host functions behind the first step, and what is taken of them; None where there is more to do.

    Args:
        steps: The steps of a program.
        results: What it gives.
        known: The inputs, and what the first step leaves.
    """
    tail: list[Value] = []
    for step in steps[1:]:
        if not isinstance(step, Value) or step.op not in ("host", "get"):
            return None
        if not all(operand.is_constant or operand in known or operand in tail for operand in step.operands):
            return None
        # A size that is counted may be one of what follows.
        if step.op == "host" and step.params["symbols"]:
            return None
        tail.append(step)
    return tail if all(value in known or value in tail for value in results) else None


class Tailed:
    """A generated call with host functions behind it.

    Args:
        entry: The call.
        made: What it gives.
        inputs: The inputs, by name.
        tail: See :func:`tail_of`.
        results: What is given in the end.
        interpret: Computes a value from others.

    Attributes:
        call: A function of feeds: results, or None to ask otherwise.
    """

    def __init__(
        self, entry: Entry, made: Sequence[Value], inputs: Mapping[str, Value], tail: Sequence[Value],
        results: Sequence[Value], interpret: Callable[[Value, dict[Value, Any], dict[str, int]], None],
    ) -> None:  # fmt: skip
        native = entry.call

        def call(feeds: Mapping[str, Any]) -> list[Any] | None:
            found = native(feeds)
            if found is None:
                return None
            env: dict[Value, Any] = dict(zip(made, found, strict=True))
            env.update((value, feeds[name]) for name, value in inputs.items())
            with running(RunContext()):
                for value in tail:
                    interpret(value, env, {})
            return [env[value] for value in results]

        self.call = call
