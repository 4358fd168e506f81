"""Constants that several nodes read: weights lose the same channels everywhere, or stay whole.

A weight that is shared, such as that of a branch applied twice or of an embedding that is the last layer too, is stored
once. The channels of all its readers are united, so that their joint importance decides; if a reader needs all
elements, the weight stays whole. A copy of the weight per reader would make the file larger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from sardonyx.compress.pruning.channels import ChannelGraph, Cut, SizeEntry
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label


def unite_shared(graph: ChannelGraph, *, vectors: bool) -> None:
    """Let all readers of a constant lose the same channels, so that the constant stays shared.

    Args:
        graph: The channels.
        vectors: If False, biases, scales and such vectors may differ: equal ones of layers that have nothing in common
            are one constant of many files, and a copy is small.
    """
    for value, cuts in _cuts_by_constant(graph).items():
        if len(_readers_of(value, cuts)) > 1 and (vectors or any(cut.is_weight for cut in cuts)):
            _unite_readers(graph, value, cuts)
    _unite_sizes(graph)


def _cuts_by_constant(graph: ChannelGraph) -> dict[ir.Value, list[Cut]]:
    result: dict[ir.Value, list[Cut]] = {}
    for cut in graph.cuts:
        result.setdefault(cut.constant, []).append(cut)
    return result


def _readers(value: ir.Value, transposes: Collection[ir.Node]) -> list[tuple[ir.Node | None, int]]:
    """Return the inputs of nodes that are the constant, or a Transpose of it.

    An output of the model is a reader without a node.
    """
    readers: list[tuple[ir.Node | None, int]] = []
    for use in value.uses():
        if use.node in transposes:
            readers += _readers(use.node.outputs[0], ())
        else:
            readers.append((use.node, use.idx))
    return [*readers, (None, 0)] if value.is_graph_output() else readers


def _readers_of(value: ir.Value, cuts: Iterable[Cut]) -> list[tuple[ir.Node | None, int]]:
    return _readers(value, {cut.transpose for cut in cuts if cut.transpose is not None})


def _unite_readers(graph: ChannelGraph, value: ir.Value, cuts: list[Cut]) -> None:
    """Unite the channels of all readers of a weight, axis by axis; fix these if a reader needs all elements."""
    axes: dict[int, list[Cut]] = {}
    for cut in cuts:
        axes.setdefault(cut.axis, []).append(cut)
    readers = _readers_of(value, cuts)
    for alike in axes.values():
        others = [node for node, index in readers if all((cut.node, cut.index) != (node, index) for cut in alike)]
        if others:
            _fix_all(graph, alike, f"'{value.name}' is read whole by {_label(others[0])}")
        elif len({(cut.groups, len(cut.ids)) for cut in alike}) > 1:
            _fix_all(graph, alike, f"'{value.name}' is shared by layers of other groups")
        else:
            _name_reasons(graph, value, alike)
            for first, second in pairwise(alike):
                graph.unite(first.ids, second.ids, f"shares '{value.name}' with '{node_label(first.node)}'")


def _name_reasons(graph: ChannelGraph, value: ir.Value, alike: list[Cut]) -> None:
    """Fix the channels whose element of a shared weight another reader needs."""
    fixed = graph.fixed_roots()
    roots = [graph.roots(cut.ids).tolist() for cut in alike]
    for position, column in enumerate(zip(*roots, strict=True)):
        needed = next((number for number, root in enumerate(column) if root in fixed), None)
        if needed is None:
            continue
        reason = f"shares '{value.name}' with '{node_label(alike[needed].node)}': {fixed[column[needed]]}"
        for cut, root in zip(alike, column, strict=True):
            if root not in fixed:
                graph.fix(cut.ids[position : position + 1], reason)


def _fix_all(graph: ChannelGraph, cuts: list[Cut], reason: str) -> None:
    for cut in cuts:
        graph.fix(cut.ids, reason)


def _label(node: ir.Node | None) -> str:
    return "the output of the model" if node is None else f"{node.op_type} '{node_label(node)}'"


def _unite_sizes(graph: ChannelGraph) -> None:
    """Let channels that one element of a list of sizes counts go alike, and record the element once."""
    entries: dict[tuple[ir.Node, int, int], list[SizeEntry]] = {}
    for entry in graph.sizes:
        entries.setdefault((entry.node, entry.index, entry.position), []).append(entry)
    for alike in entries.values():
        for first, second in pairwise(alike):
            if len(first.ids) == len(second.ids):
                graph.unite(first.ids, second.ids, f"counted by '{node_label(first.node)}' with channels that stay")
            elif not np.array_equal(np.unique(first.ids), np.unique(second.ids)):
                for one in (first, second):
                    graph.fix(one.ids, f"counted by '{node_label(one.node)}' with others")
    graph.sizes[:] = [alike[0] for alike in entries.values()]


def bytes_of_constants(graph: ChannelGraph, removed: set[int]) -> tuple[int, int]:
    """Return the bytes of the constants that belong to channels, before and after a removal.

    Args:
        graph: The channels.
        removed: The representing channels to remove.
    """
    before = after = 0
    for value, cuts in _cuts_by_constant(graph).items():
        shape, dtype = facts.static_shape(value), facts.dtype(value)
        assert shape is not None and dtype is not None
        before += _bytes(shape, dtype)
        after += sum(_bytes(size, dtype) for size in _sizes_after(graph, value, shape, cuts, removed))
    return before, after


def _bytes(shape: tuple[int, ...], dtype: ir.DataType) -> int:
    return int(np.prod(shape, dtype=np.int64) * facts.element_bytes(dtype))


def _sizes_after(
    graph: ChannelGraph, value: ir.Value, shape: tuple[int, ...], cuts: list[Cut], removed: set[int]
) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of the constants that replace a constant: one for each choice of elements that stay."""
    choices: dict[tuple[object, ...], tuple[int, ...]] = {}
    for reader in _readers_of(value, cuts):
        own = sorted((cut for cut in cuts if (cut.node, cut.index) == reader), key=lambda cut: cut.axis)
        size, key = list(shape), list[object]()
        for cut in own:
            stays = np.array([root not in removed for root in graph.roots(cut.ids).tolist()], bool)
            if not stays.all():
                size[cut.axis] = size[cut.axis] * int(stays.sum()) // max(len(stays), 1)
                key.append((cut.axis, cut.groups, stays.tobytes()))
        choices[tuple(key)] = tuple(size)
    yield from choices.values()
