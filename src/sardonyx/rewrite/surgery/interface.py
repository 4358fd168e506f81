"""What cutting, joining and renaming share: values by name, and the types of what becomes an input or output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from sardonyx.core import dim as algebra
from sardonyx.core.dim import Size
from sardonyx.model.carry import QUANTIZATION_KEY
from sardonyx.ops.inference import UNNAMED
from sardonyx.rewrite import facts
from sardonyx.rewrite.sizes import parsed


def graphs_of(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, every function's, and all bodies in them."""
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        yield root
        yield from bodies_within(root)


def bodies_within(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The bodies of a graph's nodes, at any depth."""
    for node in facts.nodes_of(graph):
        yield from facts.bodies(node)


def values_of(graph: ir.Graph) -> dict[str, ir.Value]:
    """The values that a graph itself defines, by name; not those of its bodies."""
    values = (*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs))
    return {value.name: value for value in values if value.name}


def forget_made_up_sizes(values: Iterable[ir.Value]) -> None:
    """Leaves sizes open whose names inference made up: in a file they would be taken for the author's."""
    for value in values:
        if value.shape is None:
            continue
        dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        told = [None if isinstance(dim, str) and any(mark in dim for mark in UNNAMED) else dim for dim in dims]
        if told != dims:
            value.shape = ir.Shape(told)


def annotated(model: ir.Model) -> frozenset[ir.Value]:
    """The results of nodes whose types are known now."""
    return frozenset(value for graph in graphs_of(model) for node in graph for value in node.outputs if value.type)


def keep_annotations(model: ir.Model, listed: frozenset[ir.Value]) -> None:
    """Forgets what inference told of results of nodes: a file lists what it listed, and its interface."""
    forget_made_up_sizes(all_values(model))
    for graph in graphs_of(model):
        outputs = set(graph.outputs)
        for node in graph:
            for value in node.outputs:
                if value not in listed and value not in outputs:
                    value.type, value.shape = None, None


def all_values(model: ir.Model) -> Iterator[ir.Value]:
    """Every value of a model, bodies and functions included."""
    for graph in graphs_of(model):
        yield from values_of(graph).values()


def shown(names: Iterable[object], most: int = 12) -> str:
    """Names for a message, not too many."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "") or "none"


def drop_unused_functions(model: ir.Model) -> None:
    """Removes the functions that nothing calls any more."""
    called: set[ir.OperatorIdentifier] = set()
    pending = [node.op_identifier() for node in facts.nodes_of(model.graph)]
    while pending:
        identifier = pending.pop()
        function = model.functions.get(identifier)
        if function is not None and identifier not in called:
            called.add(identifier)
            pending.extend(node.op_identifier() for node in facts.nodes_of(function.graph))
    for identifier in [known for known in model.functions if known not in called]:
        del model.functions[identifier]


def rename_values(model: ir.Model, names: Mapping[str, str]) -> None:
    """Renames values in every graph, and where quantization annotations name them."""
    for graph in graphs_of(model):
        found = [(value, names[name]) for name, value in values_of(graph).items() if name in names]
        ir.convenience.rename_values([value for value, _ in found], [new for _, new in found])
    for value in all_values(model):
        annotation = value.meta.get(QUANTIZATION_KEY)
        if annotation:
            value.meta[QUANTIZATION_KEY] = {key: names.get(name, name) for key, name in annotation.items()}


def symbols_in(dim: int | ir.SymbolicDim) -> frozenset[str]:
    """The names that a size is written with."""
    if isinstance(dim, int) or dim.value is None:
        return frozenset()
    return algebra.symbols(parsed(dim.value))


def substituted(dim: int | ir.SymbolicDim, meaning: Mapping[str, Size]) -> int | str | None:
    """A size with names replaced; a text in which none is replaced stays as it was written."""
    if isinstance(dim, int) or dim.value is None:
        return dim if isinstance(dim, int) else None
    size = parsed(dim.value)
    if dim.value in meaning:
        found = meaning[dim.value]
    elif algebra.symbols(size) & meaning.keys():
        found = algebra.substitute(size, meaning)
    else:
        return dim.value
    return found if isinstance(found, int) else str(found)
