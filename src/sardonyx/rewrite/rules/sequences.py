"""Sequences and optionals of known content, replaced by their tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import EXACT, Match, Patch, Refusal, Replacement, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import (
    Concat,
    ConcatFromSequence,
    Gather,
    SequenceAt,
    SequenceConstruct,
    SplitToSequence,
    Transpose,
)
from sardonyx.rewrite.rules.signatures import apply_along, axis_from_front, build_slice, build_split
from sardonyx.rewrite.site import Site

LONGEST = 4096
"""Longest sequence that is followed."""


def elements_of(s: Site, value: ir.Value | None) -> tuple[list[ir.Value], list[ir.Node]] | None:
    """Return the tensors in a sequence of the same graph, and the nodes that build it, or None."""
    chain: list[ir.Node] = []
    while len(chain) < LONGEST:
        node = None if value is None else value.producer()
        if node is None or node.graph is not s.graph or node.domain not in ("", "ai.onnx"):
            return None
        chain.append(node)
        if node.op_type in ("SequenceConstruct", "SequenceEmpty"):
            break
        if node.op_type not in ("SequenceInsert", "SequenceErase", "Identity"):
            return None
        value = node.inputs[0]
    else:
        return None
    elements: list[ir.Value] = [v for v in chain[-1].inputs if v is not None]
    for node in reversed(chain[:-1]):
        if not _edit_elements(node, elements):
            return None
    return elements, chain


def _edit_elements(node: ir.Node, elements: list[ir.Value]) -> bool:
    """Apply the node's edit to the list; return False if the position is not known, or out of bounds."""
    if node.op_type == "Identity":
        return True
    at = 2 if node.op_type == "SequenceInsert" else 1
    position_operand = node.inputs[at] if len(node.inputs) > at else None
    length = len(elements)
    if node.op_type == "SequenceErase":
        position = length - 1 if position_operand is None else facts.scalar(position_operand)
        if position is None or not -length <= position < length:
            return False
        del elements[position]
        return True
    position = length if position_operand is None else facts.scalar(position_operand)
    tensor = node.inputs[1]
    if position is None or tensor is None or not -length <= position <= length:
        return False
    elements.insert(position + length if position < 0 else position, tensor)
    return True


@rule("eliminate_sequence_at", exactness=EXACT)
def element_of_known_sequence(sequence: V, position: V) -> Rewrite:
    """Replace an element of a sequence of known tensors by the tensor."""

    def element(m: Match) -> Result:
        known = elements_of(m.site, m.sequence)
        if known is None:
            return None
        position, length = facts.scalar(m.position), len(known[0])
        if position is None:
            return Refusal("the position is not constant")
        return known[0][position] if -length <= position < length else Refusal("the position is out of bounds")

    return SequenceAt(sequence, position) >> element


@rule("eliminate_sequence_length", on="SequenceLength", exactness=EXACT)
def length_of_known_sequence(s: Site) -> Result:
    """Replace the length of a sequence of known tensors, or of a known number of parts, by a constant."""
    known = elements_of(s, s.input(0))
    if known is not None:
        return _replace_by_int(s, len(known[0]))
    divided = s.producer(0, "SplitToSequence")
    sizes = None if divided is None else _part_sizes(s, divided)
    return None if sizes is None else _replace_by_int(s, len(sizes))


def _replace_by_int(s: Site, number: int) -> Result:
    nodes: list[ir.Node] = []
    value = s.workspace.new_constant(np.array(number, np.int64), s.graph, f"{s.output.name}_known", nodes)
    return Patch({s.output: value}, nodes=nodes)


@rule("fuse_sequence_inserts", on=("SequenceInsert", "SequenceErase"), exactness=EXACT)
def inserts_into_construct(s: Site) -> Result:
    """Replace a chain of inserts and erases by one SequenceConstruct."""
    if any(use.node.op_type in ("SequenceInsert", "SequenceErase") for use in s.output.uses()):
        return None
    known = elements_of(s, s.output)
    if known is None:
        return None
    elements, chain = known
    if not elements:
        return Refusal("the sequence is empty")
    if len(chain) < 2 or not all(facts.used_once(node.outputs[0]) for node in chain[1:]):
        return Refusal("an incomplete sequence has other readers")
    return SequenceConstruct(*elements)


@rule("rewrite_sequence_concat", on="ConcatFromSequence", exactness=EXACT)
def concat_of_known_sequence(s: Site) -> Result:
    """Replace ConcatFromSequence of known tensors by Concat."""
    known = elements_of(s, s.input(0))
    if known is None or not known[0]:
        return None
    elements, chain = known
    axis = s.attr("axis")
    if not s.attr("new_axis", 0):
        return elements[0] if len(elements) == 1 else Concat(*elements, axis=axis)
    freed = 1 + sum(1 for node in chain if facts.used_once(node.outputs[0]))
    if len(elements) + (len(elements) > 1) > freed:
        return Refusal("each tensor would need an Unsqueeze of its own")
    stretched = {element: apply_along(s, "Unsqueeze", element, [axis]) for element in elements}
    if len(elements) == 1:
        return stretched[elements[0]]
    return Concat(*(stretched[element] for element in elements), axis=axis)


@rule("rewrite_sequence_concat", exactness=EXACT)
def concat_of_parts(x: V) -> Rewrite:
    """Replace ConcatFromSequence of a split tensor by the tensor, or by its Transpose."""

    def whole(m: Match) -> Result:
        s, divided, rank = m.site, m.nodes[1], facts.rank(m.x)
        source: ir.Value = m.x
        stacked = bool(s.attr("new_axis", 0))
        away, back = s.attr("axis", 0, node=divided), s.attr("axis")
        if rank is None:
            is_whole = away == back and _parts_keep_axis(s, divided) and not stacked
            return source if is_whole else Refusal("the rank is not known")
        away, back = axis_from_front(away, rank), axis_from_front(back, rank)
        if away is None or back is None:
            return Refusal("an axis is out of range")
        if _parts_keep_axis(s, divided) != (not stacked):
            return Refusal("one of split and concatenation keeps the axis and the other does not")
        if away == back:
            return source
        if not stacked:
            return Refusal("the parts are concatenated along another axis")
        order = [axis for axis in range(rank) if axis != away]
        order.insert(back, away)
        return Transpose(source, perm=order)

    return ConcatFromSequence(SplitToSequence(x, ...)) >> whole


def _parts_keep_axis(s: Site, divided: ir.Node) -> bool | None:
    """Return True if the parts have the rank of the whole.

    None for ``keepdims=0`` with sizes: the specification ignores the attribute there, and engines do not.
    """
    if s.attr("keepdims", 1, node=divided):
        return True
    return None if len(divided.inputs) > 1 and divided.inputs[1] is not None else False


def _part_sizes(s: Site, divided: ir.Node) -> tuple[int, ...] | None:
    """Return the sizes of the parts along the axis; None if the sizes or their number are not known."""
    split = divided.inputs[1] if len(divided.inputs) > 1 else None
    size = facts.dim_at(divided.inputs[0], s.attr("axis", 0, node=divided))
    if split is not None and facts.rank(split) == 1:
        return facts.constant_ints(split)
    part_size = 1 if split is None else facts.scalar(split)
    if size is None or part_size is None or part_size < 1 or size > LONGEST * part_size:
        return None
    return tuple(min(part_size, size - start) for start in range(0, size, part_size))


@rule("rewrite_split_to_sequence", on="SequenceAt", after="SplitToSequence", exactness=EXACT)
def slice_at_position(s: Site) -> Result:
    """Replace SequenceAt of a split into single elements by Gather."""
    sequence, position = s.node.inputs
    divided = None if sequence is None else sequence.producer()
    if divided is None or sequence is None or not facts.is_op(divided, "SplitToSequence"):
        return None
    if _parts_keep_axis(s, divided) is not False:
        return None
    if facts.rank(position) != 0:
        return Refusal("expected a scalar position")
    if sequence.is_graph_output() or not all(facts.is_op(use.node, "SequenceAt") for use in sequence.uses()):
        return Refusal("a reader uses the sequence as a whole")
    return Gather(divided.inputs[0], position, axis=s.attr("axis", 0, node=divided))


@rule("rewrite_split_to_sequence", on="SplitToSequence", exactness=EXACT)
def parts_by_position(s: Site) -> Result:
    """Replace SplitToSequence with constant positions by Split, or by Slice for a single part."""
    uses = list(s.output.uses())
    if not uses or s.output.is_graph_output() or s.input(0) is None:
        return None
    readers = [use.node for use in uses]
    if not all(facts.is_op(node, "SequenceAt") and node.graph is s.graph for node in readers):
        return Refusal("a reader uses the sequence as a whole, or is in a body")
    axis = s.attr("axis", 0)
    keeps_axis = _parts_keep_axis(s, s.node)
    if not keeps_axis:
        return Refusal("engines disagree on keepdims=0 with sizes") if keeps_axis is None else None
    positions = [facts.scalar(node.inputs[1]) for node in readers]
    if any(position is None for position in positions):
        return Refusal("a position is not constant")
    sizes = _part_sizes(s, s.node)
    if sizes is None:
        return _replace_by_open_slices(s, readers, axis)
    if not all(-len(sizes) <= position < len(sizes) for position in positions):
        return Refusal("a position is out of bounds")
    part_index = {node: position % len(sizes) for node, position in zip(readers, positions, strict=True)}
    if len(set(part_index.values())) == 1:
        return _replace_by_slice(s, readers, axis, sizes, part_index[readers[0]])
    if sum(sizes) != facts.dim_at(s.input(0), axis):
        return Refusal("the sizes of the parts do not add up to the axis")
    parts = build_split(s, _input(s), sizes, axis)
    return _replace_readers(readers, lambda node: parts.out(part_index[node]))


def _input(s: Site) -> ir.Value:
    value = s.input(0)
    assert value is not None
    return value


def _replace_by_slice(s: Site, readers: Sequence[ir.Node], axis: int, sizes: Sequence[int], position: int) -> Result:
    start = sum(sizes[:position])
    part = build_slice(s, _input(s), {axis: (start, start + sizes[position], 1)})
    return None if part is None else _replace_readers(readers, lambda node: part)


def _replace_by_open_slices(s: Site, readers: Sequence[ir.Node], axis: int) -> Result:
    """Slice an axis of open size: the first parts of equal size have known starts."""
    split = s.input(1)
    part_size = 1 if split is None else facts.scalar(split) if facts.rank(split) == 0 else None
    positions = [int(facts.scalar(node.inputs[1])) for node in readers]
    if part_size is None or part_size < 1 or min(positions) < 0:
        return Refusal("neither the number of parts nor their starts are known")
    parts = {p: build_slice(s, _input(s), {axis: (p * part_size, (p + 1) * part_size, 1)}) for p in positions}
    if any(part is None for part in parts.values()):
        return None
    chosen = dict(zip(readers, positions, strict=True))
    return _replace_readers(readers, lambda node: parts[chosen[node]])


def _replace_readers(readers: Sequence[ir.Node], part: Callable[[ir.Node], Replacement | None]) -> Result:
    replacements = {node.outputs[0]: part(node) for node in readers}
    return Patch({old: new for old, new in replacements.items() if new is not None})


@rule("eliminate_optional", on=("OptionalGetElement", "OptionalHasElement"), exactness=EXACT)
def known_optional(s: Site) -> Result:
    """Replace the element of a known optional by the value, and OptionalHasElement by a constant."""
    optional = s.input(0)
    constructor = s.producer(0, "Optional")
    if constructor is None and (
        optional is None or isinstance(optional.type, ir.OptionalType) or optional.type is None
    ):
        return _replace_by_bool(s, False) if optional is None and s.node.op_type == "OptionalHasElement" else None
    content = optional if constructor is None else constructor.inputs[0] if constructor.inputs else None
    if s.node.op_type == "OptionalHasElement":
        return _replace_by_bool(s, content is not None)
    return content if content is not None else Refusal("the optional is empty")


def _replace_by_bool(s: Site, truth: bool) -> Result:
    nodes: list[ir.Node] = []
    value = s.workspace.new_constant(np.array(truth), s.graph, f"{s.output.name}_known", nodes)
    return Patch({s.output: value}, nodes=nodes)
