"""Loops whose state grows by one row per run: the rows become slices, joined once after the loop."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import EXACT, Patch, Refusal, Replacement, Result, rule
from sardonyx.rewrite.notation import Concat, Transpose
from sardonyx.rewrite.rules.loop_carried import CarriedLoop, is_certain_to_run, read_loop, remove_from_loop
from sardonyx.rewrite.rules.signatures import apply_along
from sardonyx.rewrite.site import Site


@dataclass(frozen=True)
class _Growing:
    """A state that a run of the body only appends to.

    Attributes:
        state: Index of the state.
        row: The value that a run appends.
        by: The node of the body that appends: a Concat or a SequenceInsert.
    """

    state: int
    row: ir.Value
    by: ir.Node


def _growing(loop: CarriedLoop, state: int) -> _Growing | None:
    """Return how a state grows; None if the body reads the state otherwise, or the state does not grow."""
    parameter, update = loop.parameter(state), loop.update(state)
    node = update.producer()
    if node is None or node.graph is not loop.body or not facts.is_op(node, "Concat", "SequenceInsert"):
        return None
    inputs = node.inputs
    if len(inputs) != 2 or inputs[0] is not parameter or inputs[1] is None or inputs[1] is parameter:
        return None
    if not facts.used_once(parameter) or list(update.uses()) or list(loop.body.outputs).count(update) != 1:
        return None
    return _Growing(state, inputs[1], node)


@rule("rewrite_growing_loop_state", on="Loop", exactness=EXACT)
def joined_row_by_row(s: Site) -> Result:
    """Replace state that grows by Concat with a row per run by the rows as slices, joined once."""
    loop = read_loop(s)
    for state in range(0 if loop is None else loop.states):
        assert loop is not None
        grown = _growing(loop, state)
        if grown is None or grown.by.op_type != "Concat":
            continue
        axis, rank = s.attr("axis", node=grown.by), facts.rank(grown.row)
        if rank is None:
            return Refusal("the rank of the rows is not known")
        axis %= rank
        if facts.dim_at(grown.row, axis) != 1:
            return Refusal("the value that a run appends is not known to be one row")
        if facts.static_shape(grown.row) is None and s.target != "native" and not is_certain_to_run(s, loop):
            # Engines differ in the shape of zero slices of open sizes.
            return Refusal("the sizes of the rows are open, and the body may never run")
        return Patch(build=lambda grown=grown, axis=axis: _joined(s, loop, grown, axis))  # type: ignore[misc]
    return None


def _joined(s: Site, loop: CarriedLoop, grown: _Growing, axis: int) -> Patch:
    initial, rank = loop.initial(grown.state), facts.rank(grown.row)
    assert initial is not None
    assert rank is not None
    node, pairs, rows = _collected(s, loop, grown)
    joined = Concat(initial, _laid_along(s, apply_along(s, "Squeeze", rows, [axis + 1]), axis, rank), axis=axis)
    return Patch({**pairs, s.node.outputs[grown.state]: joined}, nodes=[node], edit=lambda: list(loop.body))


@rule("rewrite_growing_loop_state", on="Loop", exactness=EXACT)
def inserted_one_by_one(s: Site) -> Result:
    """Replace a sequence that grows by one tensor per run, joined later, by the tensors as slices."""
    loop = read_loop(s)
    for state in range(0 if loop is None else loop.states):
        assert loop is not None
        grown = _growing(loop, state)
        if grown is None or grown.by.op_type != "SequenceInsert":
            continue
        initial, sequence = loop.initial(state), s.node.outputs[state]
        begins = None if initial is None else initial.producer()
        if not facts.is_op(begins, "SequenceEmpty"):
            continue
        readers = [use.node for use in sequence.uses()]
        if sequence.is_graph_output() or not readers or not all(_joins(s, reader) for reader in readers):
            return Refusal("the sequence is read in other ways than being joined")
        rank = facts.rank(grown.row)
        if rank is None:
            return Refusal("the rank of the tensors is not known")
        for reader in readers:
            if not s.attr("new_axis", 0, node=reader) and facts.dim_at(grown.row, s.attr("axis", node=reader)) != 1:
                return Refusal("the tensor that a run inserts is not known to be one row")
        return Patch(build=lambda grown=grown, readers=readers: _joined_by(s, loop, grown, readers))  # type: ignore[misc]
    return None


def _joins(s: Site, node: ir.Node) -> bool:
    return node.graph is s.graph and facts.is_op(node, "ConcatFromSequence")


def _joined_by(s: Site, loop: CarriedLoop, grown: _Growing, readers: list[ir.Node]) -> Patch:
    rank = facts.rank(grown.row)
    assert rank is not None
    node, pairs, rows = _collected(s, loop, grown)
    replaced: dict[ir.Value, Replacement] = dict(pairs)
    for reader in readers:
        axis = s.attr("axis", node=reader)
        if s.attr("new_axis", 0, node=reader):
            replaced[reader.outputs[0]] = _laid_along(s, rows, axis % (rank + 1), rank + 1)
        else:
            axis %= rank
            replaced[reader.outputs[0]] = _laid_along(s, apply_along(s, "Squeeze", rows, [axis + 1]), axis, rank)
    return Patch(replaced, nodes=[node], remove=readers, edit=lambda: list(loop.body))


def _collected(s: Site, loop: CarriedLoop, grown: _Growing) -> tuple[ir.Node, dict[ir.Value, ir.Value], ir.Value]:
    """Return the loop that puts out the rows, old outputs with their replacements, and the joined rows."""
    node, pairs = remove_from_loop(s, loop, states={grown.state}, collected=[grown.row])
    return node, pairs, node.outputs[-1]


def _laid_along(s: Site, rows: Replacement, axis: int, rank: int) -> Replacement:
    """Move the first axis of the rows to ``axis``."""
    return Transpose(rows, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank)]) if axis else rows
