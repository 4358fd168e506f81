"""Sequences and optionals whose content is known: their elements are tensors, and tensors need no sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, Patch, Refusal, Replacement, Result, rule
from sardonyx.rewrite.notation import Concat, Gather, SequenceConstruct, Transpose
from sardonyx.rewrite.rules.signatures import sliced, split, with_axes
from sardonyx.rewrite.site import Site

LONGEST = 4096
"""Elements up to which a sequence is followed."""


def elements_of(s: Site, value: ir.Value | None) -> tuple[list[ir.Value], list[ir.Node]] | None:
    """The tensors in a sequence of the same graph, and the nodes that put it together; None where that is not known."""
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
    found: list[ir.Value] = [v for v in chain[-1].inputs if v is not None]
    for node in reversed(chain[:-1]):
        if not _edited(node, found):
            return None
    return found, chain


def _edited(node: ir.Node, elements: list[ir.Value]) -> bool:
    """Do to the list what the node does to its sequence; False where its position is not known, or is out of bounds."""
    if node.op_type == "Identity":
        return True
    at = 2 if node.op_type == "SequenceInsert" else 1
    given = node.inputs[at] if len(node.inputs) > at else None
    length = len(elements)
    if node.op_type == "SequenceErase":
        position = length - 1 if given is None else facts.scalar(given)
        if position is None or not -length <= position < length:
            return False
        del elements[position]
        return True
    position = length if given is None else facts.scalar(given)
    tensor = node.inputs[1]
    if position is None or tensor is None or not -length <= position <= length:
        return False
    elements.insert(position + length if position < 0 else position, tensor)
    return True


@rule("eliminate_sequence_at", on="SequenceAt", exactness=EXACT)
def element_of_known_sequence(s: Site) -> Result:
    """An element of a sequence put together from known tensors is that tensor."""
    known = elements_of(s, s.input(0))
    if known is None:
        return None
    position = facts.scalar(s.input(1))
    if position is None:
        return Refusal("the position is not constant")
    length = len(known[0])
    return known[0][position] if -length <= position < length else Refusal("the position is out of bounds")


@rule("eliminate_sequence_length", on="SequenceLength", exactness=EXACT)
def length_of_known_sequence(s: Site) -> Result:
    """The length of a sequence of known tensors, or of parts of a known number, is a constant."""
    known = elements_of(s, s.input(0))
    if known is not None:
        return _number(s, len(known[0]))
    divided = s.producer(0, "SplitToSequence")
    sizes = None if divided is None else _part_sizes(s, divided)
    return None if sizes is None else _number(s, len(sizes))


def _number(s: Site, number: int) -> Result:
    nodes: list[ir.Node] = []
    value = s.workspace.new_constant(np.array(number, np.int64), s.graph, f"{s.output.name}_known", nodes)
    return Patch({s.output: value}, nodes=nodes)


@rule("fuse_sequence_inserts", on=("SequenceInsert", "SequenceErase"), exactness=EXACT)
def inserts_into_construct(s: Site) -> Result:
    """A sequence that tensors are put into one by one is constructed at once."""
    if any(use.node.op_type in ("SequenceInsert", "SequenceErase") for use in s.output.uses()):
        return None
    known = elements_of(s, s.output)
    if known is None:
        return None
    elements, chain = known
    if not elements:
        return Refusal("the sequence is empty")
    if len(chain) < 2 or not all(facts.used_once(node.outputs[0]) for node in chain[1:]):
        return Refusal("the sequence is read before it is complete")
    return SequenceConstruct(*elements)


@rule("rewrite_sequence_concat", on="ConcatFromSequence", exactness=EXACT)
def concat_of_known_sequence(s: Site) -> Result:
    """ConcatFromSequence of known tensors is a Concat of them."""
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
    stretched = {element: with_axes(s, "Unsqueeze", element, [axis]) for element in elements}
    if len(elements) == 1:
        return stretched[elements[0]]
    return Concat(*(stretched[element] for element in elements), axis=axis)


@rule("rewrite_sequence_concat", on="ConcatFromSequence", after="SplitToSequence", exactness=EXACT)
def concat_of_parts(s: Site) -> Result:
    """Parts of a tensor put together again are the tensor; slices stacked elsewhere are its transpose."""
    divided = s.producer(0, "SplitToSequence")
    if divided is None or divided.inputs[0] is None:
        return None
    x = divided.inputs[0]
    rank = facts.rank(x)
    stacked = bool(s.attr("new_axis", 0))
    away, back = s.attr("axis", 0, node=divided), s.attr("axis")
    if rank is None:
        return x if away == back and _keeps_axis(s, divided) and not stacked else Refusal("the rank is not known")
    away, back = away % rank, back % rank
    if _keeps_axis(s, divided) != (not stacked):
        return Refusal("the parts are put together in another way than they were taken")
    if away == back:
        return x
    if not stacked:
        return Refusal("the parts are put together along another axis")
    order = [axis for axis in range(rank) if axis != away]
    order.insert(back, away)
    return Transpose(x, perm=order)


def _keeps_axis(s: Site, divided: ir.Node) -> bool | None:
    """Whether the parts have the rank of the whole.

    None where ``keepdims=0`` stands beside given sizes: the specification ignores it there, and engines do not.
    """
    if s.attr("keepdims", 1, node=divided):
        return True
    return None if len(divided.inputs) > 1 and divided.inputs[1] is not None else False


def _part_sizes(s: Site, divided: ir.Node) -> tuple[int, ...] | None:
    """The sizes of the parts along the axis; None where they or their number are not known."""
    given = divided.inputs[1] if len(divided.inputs) > 1 else None
    size = facts.dim_at(divided.inputs[0], s.attr("axis", 0, node=divided))
    if given is not None and facts.rank(given) == 1:
        return facts.constant_ints(given)
    each = 1 if given is None else facts.scalar(given)
    if size is None or each is None or each < 1 or size > LONGEST * each:
        return None
    return tuple(min(each, size - start) for start in range(0, size, each))


@rule("rewrite_split_to_sequence", on="SequenceAt", after="SplitToSequence", exactness=EXACT)
def slice_at_position(s: Site) -> Result:
    """SequenceAt of the slices of a tensor is a Gather."""
    sequence, position = s.node.inputs
    divided = None if sequence is None else sequence.producer()
    if divided is None or sequence is None or not facts.is_op(divided, "SplitToSequence"):
        return None
    if _keeps_axis(s, divided) is not False:
        return None
    if facts.rank(position) != 0:
        return Refusal("the position is no scalar")
    if sequence.is_graph_output() or not all(facts.is_op(use.node, "SequenceAt") for use in sequence.uses()):
        return Refusal("the sequence is read as a whole")
    return Gather(divided.inputs[0], position, axis=s.attr("axis", 0, node=divided))


@rule("rewrite_split_to_sequence", on="SplitToSequence", exactness=EXACT)
def parts_by_position(s: Site) -> Result:
    """SplitToSequence whose parts are read by position is a Split, or a Slice where only one part is read."""
    uses = list(s.output.uses())
    if not uses or s.output.is_graph_output() or s.input(0) is None:
        return None
    readers = [use.node for use in uses]
    if not all(facts.is_op(node, "SequenceAt") and node.graph is s.graph for node in readers):
        return Refusal("the sequence is read as a whole, or in a body")
    axis = s.attr("axis", 0)
    keeps_axis = _keeps_axis(s, s.node)
    if not keeps_axis:
        return Refusal("keepdims=0 beside given sizes is read differently") if keeps_axis is None else None
    positions = [facts.scalar(node.inputs[1]) for node in readers]
    if any(position is None for position in positions):
        return Refusal("a position is not constant")
    sizes = _part_sizes(s, s.node)
    if sizes is None:
        return _open_slices(s, readers, axis)
    if not all(-len(sizes) <= position < len(sizes) for position in positions):
        return Refusal("a position is out of bounds")
    wanted = {node: position % len(sizes) for node, position in zip(readers, positions, strict=True)}
    if len(set(wanted.values())) == 1:
        return _one_slice(s, readers, axis, sizes, wanted[readers[0]])
    if sum(sizes) != facts.dim_at(s.input(0), axis):
        return Refusal("the parts may not make up the whole")
    parts = split(s, _given(s), sizes, axis)
    return _replaced(readers, lambda node: parts.out(wanted[node]))


def _given(s: Site) -> ir.Value:
    value = s.input(0)
    assert value is not None
    return value


def _one_slice(s: Site, readers: Sequence[ir.Node], axis: int, sizes: Sequence[int], position: int) -> Result:
    start = sum(sizes[:position])
    part = sliced(s, _given(s), {axis: (start, start + sizes[position], 1)})
    return None if part is None else _replaced(readers, lambda node: part)


def _open_slices(s: Site, readers: Sequence[ir.Node], axis: int) -> Result:
    """The axis is open: the first parts of one size can still be told by where they start."""
    given = s.input(1)
    each = 1 if given is None else facts.scalar(given) if facts.rank(given) == 0 else None
    positions = [int(facts.scalar(node.inputs[1])) for node in readers]
    if each is None or each < 1 or min(positions) < 0:
        return Refusal("neither the number of parts nor where they start is known")
    parts = {p: sliced(s, _given(s), {axis: (p * each, (p + 1) * each, 1)}) for p in positions}
    if any(part is None for part in parts.values()):
        return None
    chosen = dict(zip(readers, positions, strict=True))
    return _replaced(readers, lambda node: parts[chosen[node]])


def _replaced(readers: Sequence[ir.Node], part: Callable[[ir.Node], Replacement | None]) -> Result:
    found = {node.outputs[0]: part(node) for node in readers}
    return Patch({old: new for old, new in found.items() if new is not None})


@rule("eliminate_optional", on=("OptionalGetElement", "OptionalHasElement"), exactness=EXACT)
def known_optional(s: Site) -> Result:
    """The content of an optional made of a value is the value, and whether it has one is a constant."""
    optional = s.input(0)
    made = s.producer(0, "Optional")
    if made is None and (optional is None or isinstance(optional.type, ir.OptionalType) or optional.type is None):
        return _truth(s, False) if optional is None and s.node.op_type == "OptionalHasElement" else None
    content = optional if made is None else made.inputs[0] if made.inputs else None
    if s.node.op_type == "OptionalHasElement":
        return _truth(s, content is not None)
    return content if content is not None else Refusal("the optional is empty")


def _truth(s: Site, truth: bool) -> Result:
    nodes: list[ir.Node] = []
    value = s.workspace.new_constant(np.array(truth), s.graph, f"{s.output.name}_known", nodes)
    return Patch({s.output: value}, nodes=nodes)
