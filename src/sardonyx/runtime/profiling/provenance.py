"""The provenance of kernels: the nodes of a model that a kernel computes, including nodes that the optimizer merged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from sardonyx.compiler.explain import KernelNote

_OF_SHAPES = {"Shape", "Size"}


def with_absorbed(model: ir.Model, notes: Sequence[KernelNote], others: Collection[str]) -> list[KernelNote]:
    """Return the kernels, each with the merged nodes, such as a normalization merged into a convolution.

    A node whose result no kernel computes belongs to the kernel of its reader. If the main node of a kernel absorbed a
    node with weights of several axes, this node becomes the main node.

    Args:
        model: The original model.
        notes: The kernels.
        others: Tensors that are not computed by kernels.
    """
    owners: dict[str, int] = {}
    for number, note in enumerate(notes):
        owners.update(dict.fromkeys(note.tensors, number))
    # Other kernels may list the same tensor; the kernel with the most operations for the tensor owns it.
    for number, note in sorted(enumerate(notes), key=lambda pair: pair[1].operations or 0):
        if note.operations and note.main:
            owners[note.main] = number
    known = {*owners, *others}
    varying = _varying(model)
    absorbed: dict[int, list[str]] = {}
    for node in reversed(list(model.graph)):
        outputs = [str(output.name) for output in node.outputs if output.name]
        if node not in varying or not known.isdisjoint(outputs):
            continue
        readers = (output.name for value in node.outputs for user in value.consumers() for output in user.outputs)
        owner = next((owners[name] for name in readers if name in owners), None)
        if owner is not None:
            owners.update(dict.fromkeys(outputs, owner))
            absorbed.setdefault(owner, []).extend(outputs)
    makers = {str(output.name): node for node in model.graph for output in node.outputs}
    return [_joined(note, absorbed.get(number, [])[::-1], makers) for number, note in enumerate(notes)]


def _varying(model: ir.Model) -> set[ir.Node]:
    """Return the nodes that depend on elements of inputs, not only on shapes."""
    values = {value for value in model.graph.inputs if not value.is_initializer()}
    nodes = set()
    for node in model.graph:
        if node.op_type not in _OF_SHAPES and not values.isdisjoint(node.inputs):
            nodes.add(node)
            values.update(node.outputs)
    return nodes


def _joined(note: KernelNote, absorbed: Sequence[str], makers: dict[str, ir.Node]) -> KernelNote:
    if not absorbed:
        return note
    main, node = note.main, makers.get(note.main)
    while node is not None and not _has_weights(node.inputs):
        source = next((value for value in node.inputs if value is not None and value.name in absorbed), None)
        node = None if source is None else source.producer()
        if node is not None and _has_weights(node.inputs):
            main = str(node.outputs[0].name)
    return replace(note, main=main, tensors=tuple(dict.fromkeys((*absorbed, *note.tensors))))


def _has_weights(inputs: Iterable[ir.Value | None]) -> bool:
    return any(
        value is not None and value.const_value is not None and len(value.const_value.shape) > 1 for value in inputs
    )
