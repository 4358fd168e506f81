"""Outputs that no number of an input reaches: their values depend on the sizes of the inputs alone."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts


def outputs_of_sizes(model: ir.Model) -> frozenset[str]:
    """Return the names of outputs without elements, or whose numbers the numbers of no input decide.

    One sample of such an output is complete evidence at its sizes, even if it is one repeated number.

    Args:
        model: The model, with inferred shapes.
    """
    inputs = {value for value in model.graph.inputs if not value.is_initializer()}
    return frozenset(
        str(output.name) for output in model.graph.outputs if 0 in (output.shape or ()) or not _reaches(output, inputs)
    )


def _reaches(output: ir.Value, inputs: set[ir.Value]) -> bool:
    """Return True if a number of an input is read on a path to the output."""
    seen: set[ir.Value] = set()
    stack = [output]
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in inputs:
            return True
        node = value.producer()
        if node is not None:
            stack.extend(operand for operand in _read_numbers(node) if operand is not None)
    return False


def _read_numbers(node: ir.Node) -> Iterator[ir.Value | None]:
    yield from (operand for index, operand in enumerate(node.inputs) if facts.reads_elements(node, index))
    for body in facts.bodies(node):
        yield from body.outputs
        for inner in facts.nodes_of(body):
            yield from inner.inputs
