"""Programs that are native code but for host functions at the end: one generated call, then those functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.call.interpreted import located
from sardonyx.compiler.call.native_entry import Entry
from sardonyx.compiler.plan.segments import Step
from sardonyx.core.dim import Dim
from sardonyx.core.eval.interpreter import call_host_function
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.ir.graph import Value, symbols_in


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

    Attributes:
        call: A function of feeds: results, or None to ask otherwise.
    """

    def __init__(
        self, entry: Entry, made: Sequence[Value], inputs: Mapping[str, Value], tail: Sequence[Value],
        results: Sequence[Value],
    ) -> None:  # fmt: skip
        native = entry.call
        names = list(inputs)
        sizes_at = _places(inputs, tail)
        constants = list(dict.fromkeys(each for value in tail for each in value.operands if each.is_constant))
        arrays = [value.known for value in constants]
        numbers = {value: number for number, value in enumerate((*made, *inputs.values(), *constants, *tail))}
        steps = [(value, [numbers[operand] for operand in value.operands]) for value in tail]
        wanted = [numbers[value] for value in results]

        def call(feeds: Mapping[str, Any]) -> list[Any] | None:
            found = native(feeds)
            if found is None:
                return None
            there = [*found, *[feeds[name] for name in names], *arrays]
            sizes = {symbol: feeds[name].shape[axis] for symbol, name, axis in sizes_at}
            with running(RunContext()):
                for value, read in steps:
                    if value.op == "get":
                        there.append(there[read[0]][value.params["index"]])
                    else:
                        there.append(
                            located(value, call_host_function, value, [there[number] for number in read], sizes)
                        )
            return [there[number] for number in wanted]

        self.call = call


def _places(inputs: Mapping[str, Value], tail: Sequence[Value]) -> list[tuple[str, str, int]]:
    """The symbols that types of host functions' results speak of, each an axis of an input."""
    wanted = set(symbols_in(tuple(value.type for value in tail)))
    found = {
        size.atom.name: (name, axis)
        for name, value in inputs.items()
        for axis, size in enumerate(shape_of(value))
        if isinstance(size, Dim) and size.atom is not None and size.atom.name in wanted
    }
    return [(symbol, name, axis) for symbol, (name, axis) in found.items()]
