"""Which nodes of a model a kernel stands for, those among them that the optimizer put into others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from sardonyx.compiler.explain import KernelNote

_OF_SHAPES = {"Shape", "Size"}


def with_absorbed(model: ir.Model, notes: Sequence[KernelNote], others: Collection[str]) -> list[KernelNote]:
    """The kernels, each with the nodes that went into what it computes, as a convolution into its normalization.

    A node of which no kernel knows the result belongs to the kernel of what reads that. Where the node that most of a
    kernel's operations are for has taken one with weights of several axes into it, those are for that one.

    Args:
        model: The model as it was given.
        notes: The kernels.
        others: Tensors that are computed elsewhere.
    """
    owners: dict[str, int] = {}
    for number, note in enumerate(notes):
        owners.update(dict.fromkeys(note.tensors, number))
    # Others may read it in another form, or compute it once more on their way.
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
    """The nodes that compute from inputs, and not from shapes alone."""
    values = {value for value in model.graph.inputs if not value.is_initializer()}
    found = set()
    for node in model.graph:
        if node.op_type not in _OF_SHAPES and not values.isdisjoint(node.inputs):
            found.add(node)
            values.update(node.outputs)
    return found


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
