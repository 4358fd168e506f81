"""The reference provider: a model on the numpy interpreter of Core, node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.core.eval.interpreter import match_type
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import Type
from sardonyx.errors import FeedError
from sardonyx.ops.definitions import (  # noqa: F401  Nearly every model has operators of theirs: no session waits.
    activations,
    arithmetic,
    convolution,
    elementwise,
    indexing,
    movement,
    normalization,
    pooling,
    products,
    reductions,
    regions,
    sources,
)
from sardonyx.ops.feeds import as_value, returned
from sardonyx.ops.graph import PreparedGraph, declared_type, prepare

_REMEMBERED = 16
"""Sets of outputs that were asked for."""


class ReferenceModel:
    """A model ready to run on numpy, any number of times and from any thread.

    Args:
        model: The model; it must stay as it is.

    Attributes:
        input_types: The declared type of every input, None where the file does not say, by name.
        optional: Inputs that need not be fed: initializers stand behind them.
        output_names: The outputs, in order.

    Raises:
        UnsupportedError: An operator has no definition: the message names all of them, and where.
        InvalidModelError: The model breaks the standard.
    """

    def __init__(self, model: ir.Model) -> None:
        self._graph = prepare(model)
        self._narrowed: dict[tuple[str, ...], PreparedGraph] = {}
        graph = model.graph
        initializers = set(graph.initializers.values())
        self.input_types: dict[str, Type | None] = {str(value.name): declared_type(value) for value in graph.inputs}
        self.optional = frozenset(str(value.name) for value in graph.inputs if value in initializers)
        self.output_names = [str(value.name) for value in graph.outputs]
        self._by_name = {value.name: value for value in graph.initializers.values()}
        self._by_name |= {output.name: output for node in graph for output in node.outputs if output.name}
        self._by_name |= {value.name: value for value in (*graph.inputs, *graph.outputs)}

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], context: RunContext) -> list[Any]:
        """Run once.

        Args:
            output_names: What is asked for, any value of the main graph by name; None for all outputs.
            feeds: Arrays (lists for sequences, dicts for maps, None for an empty optional) by input name.
            context: The limits of this run.

        Returns:
            An array (list, dict, None) for each name.

        Raises:
            FeedError: An input is missing, unknown, or of another type or rank; an output is unknown.
            ShapeError: A size does not fit what is declared, or two inputs contradict each other.
            ExecutionError: A node has no result for these values.
            ResourceError: A limit is passed.
        """
        graph = self._giving(tuple(self.output_names if output_names is None else output_names))
        arguments = self._arguments(feeds)
        with running(context):
            return [returned(value) for value in graph.call(arguments)]

    def _giving(self, names: tuple[str, ...]) -> PreparedGraph:
        """The graph as far as some values need it: what nobody asks for has no say in whether there is a result."""
        found = self._narrowed.get(names)
        if found is None:
            found = self._graph.giving([self._value(name) for name in names])
            if len(self._narrowed) >= _REMEMBERED:
                self._narrowed.clear()
            self._narrowed[names] = found
        return found

    def _value(self, name: str) -> ir.Value:
        if name not in self._by_name:
            known = ", ".join(self.output_names)
            raise FeedError("the model computes no such value.", where=name, remedy=f"Its outputs are: {known}.")
        return self._by_name[name]

    def _arguments(self, feeds: Mapping[str, Any]) -> list[Value]:
        for name in feeds:
            if name not in self.input_types:
                known = ", ".join(self.input_types)
                raise FeedError("the model has no such input.", where=name, remedy=f"Its inputs are: {known}.")
        sizes: dict[str, int] = {}
        arguments = []
        for value in self._graph.inputs:
            name = str(value.name)
            declared = self.input_types[name]
            if name in feeds:
                argument = as_value(feeds[name], declared, name)
            elif name in self.optional:
                argument = self._graph.constants[value]
            else:
                raise FeedError("the input is not fed.", where=name, remedy=f"It takes {declared}.")
            if declared is not None:
                match_type(declared, argument.type, sizes, name)
            arguments.append(argument)
        return arguments
