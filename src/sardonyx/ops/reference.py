"""Reference provider: executes a model on Core's numpy interpreter, node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.core.eval.interpreter import match_type
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import Type
from sardonyx.errors import FeedError
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.feeds import as_value, to_python
from sardonyx.ops.graph import PreparedGraph, prepare

_MAX_CACHED_GRAPHS = 16
"""Most sets of requested outputs for which a reduced graph is cached."""


class ReferenceModel:
    """A model prepared for any number of runs on numpy, from any thread.

    Args:
        model: The model, which must not change.

    Attributes:
        graph: The graph, prepared.
        input_types: The declared type of every input, by name; None if undeclared.
        optional: Inputs that may be omitted: initializers provide their default values.
        output_names: The outputs, in order.

    Raises:
        UnsupportedError: An operator has no definition: the message lists all such operators and their nodes.
        InvalidModelError: The model violates the standard.
    """

    def __init__(self, model: ir.Model) -> None:
        self.graph = prepare(model)
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
        """Run the model once.

        Args:
            output_names: Names of the requested values, any of the main graph; None for all outputs.
            feeds: Arrays (lists for sequences, dicts for maps, None for an empty optional) by input name.
            context: The limits of this run.

        Returns:
            An array (list, dict, None) for each name.

        Raises:
            FeedError: An input is missing, unknown, or of another type or rank; an output is unknown.
            ShapeError: A size contradicts its declaration, or two inputs contradict each other.
            ExecutionError: A node has no result for these values.
            ResourceError: A limit is exceeded.
        """
        graph = self._graph_for(tuple(self.output_names if output_names is None else output_names))
        arguments = self.arguments(feeds)
        with running(context):
            return [to_python(value) for value in graph.call(arguments)]

    def _graph_for(self, names: tuple[str, ...]) -> PreparedGraph:
        """Return the graph reduced to the requested values: unrequested nodes neither run nor fail."""
        graph = self._narrowed.get(names)
        if graph is None:
            graph = self.graph.restricted_to([self._value(name) for name in names])
            if len(self._narrowed) >= _MAX_CACHED_GRAPHS:
                self._narrowed.clear()
            self._narrowed[names] = graph
        return graph

    def _value(self, name: str) -> ir.Value:
        if name not in self._by_name:
            known = ", ".join(self.output_names)
            raise FeedError("the model computes no such value.", where=name, remedy=f"Its outputs are: {known}.")
        return self._by_name[name]

    def arguments(self, feeds: Mapping[str, Any]) -> list[Value]:
        """Return the known values of all inputs.

        Raises:
            FeedError: An input is missing, unknown, or of another type or rank.
            ShapeError: A size contradicts its declaration, or two inputs contradict each other.
        """
        for name in feeds:
            if name not in self.input_types:
                known = ", ".join(self.input_types)
                raise FeedError("the model has no such input.", where=name, remedy=f"Its inputs are: {known}.")
        sizes: dict[str, int] = {}
        arguments = []
        for value in self.graph.inputs:
            name = str(value.name)
            declared = self.input_types[name]
            if name in feeds:
                argument = as_value(feeds[name], declared, name)
            elif name in self.optional:
                argument = self.graph.constants[value]
            else:
                raise FeedError("the input is not fed.", where=name, remedy=f"It takes {declared}.")
            if declared is not None:
                match_type(declared, argument.type, sizes, name)
            arguments.append(argument)
        return arguments
