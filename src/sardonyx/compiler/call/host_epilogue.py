"""Programs of native code followed by host functions: one generated call, then these functions.

Results that are constants, or that repeat, are copied.
"""

from __future__ import annotations

import copy
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


def find_host_tail(steps: Sequence[Step], results: Sequence[Value], known: Sequence[Value]) -> list[Value] | None:
    """Return the host functions after the first step, and their selected results.

    The result is None if other steps follow.

    Args:
        steps: The steps of a program.
        results: The results of the program.
        known: The inputs, and the values that the first step leaves.
    """
    tail: list[Value] = []
    for step in steps[1:]:
        if not isinstance(step, Value) or step.op not in ("host", "get"):
            return None
        if not all(operand.is_constant or operand in known or operand in tail for operand in step.operands):
            return None
        # Later types may mention a counted size.
        if step.op == "host" and step.params["symbols"]:
            return None
        tail.append(step)
    return tail if all(value in known or value in tail for value in results) else None


class HostTailEntry:
    """A generated call followed by host functions, and by copies of results.

    Args:
        entry: The call.
        outputs: The results of the call.
        inputs: The inputs, by name.
        tail: See :func:`find_host_tail`.
        results: The results of the program.

    Attributes:
        call: Function of feeds; returns the results, or None for calls outside of its fast path.
    """

    def __init__(
        self, entry: Entry, outputs: Sequence[Value], inputs: Mapping[str, Value], tail: Sequence[Value],
        results: Sequence[Value],
    ) -> None:  # fmt: skip
        native = entry.call
        names = list(inputs)
        sizes_at = _symbol_axes(inputs, tail)
        read_values = [*(operand for value in tail for operand in value.operands), *results]
        constants = list(dict.fromkeys(value for value in read_values if value.is_constant))
        arrays = [value.known for value in constants]
        numbers = {value: number for number, value in enumerate((*outputs, *inputs.values(), *constants, *tail))}
        steps = [(value, [numbers[operand] for operand in value.operands]) for value in tail]
        selected = [numbers[value] for value in results]
        copied = [i for i, value in enumerate(results) if value.is_constant or value in results[:i]]

        def call(feeds: Mapping[str, Any]) -> list[Any] | None:
            native_results = native(feeds)
            if native_results is None:
                return None
            values = [*native_results, *[feeds[name] for name in names], *arrays]
            sizes = {symbol: feeds[name].shape[axis] for symbol, name, axis in sizes_at}
            if steps:
                with running(RunContext()):
                    for value, read in steps:
                        if value.op == "get":
                            values.append(values[read[0]][value.params["index"]])
                        else:
                            values.append(
                                located(value, call_host_function, value, [values[number] for number in read], sizes)
                            )
            selection = [values[number] for number in selected]
            for position in copied:
                selection[position] = copy.deepcopy(selection[position])
            return selection

        self.call = call


def _symbol_axes(inputs: Mapping[str, Value], tail: Sequence[Value]) -> list[tuple[str, str, int]]:
    """Return the symbols in the result types of host functions, each with an input and axis of this size."""
    names = set(symbols_in(tuple(value.type for value in tail)))
    axes = {
        size.atom.name: (name, axis)
        for name, value in inputs.items()
        for axis, size in enumerate(shape_of(value))
        if isinstance(size, Dim) and size.atom is not None and size.atom.name in names
    }
    return [(symbol, name, axis) for symbol, (name, axis) in axes.items()]
