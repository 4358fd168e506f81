"""The worklist: each node once, and again after a change within its reach."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.engine.worklist import NEAR, REACH, Worklist


def chain(length: int) -> list[ir.Node]:
    nodes = [ir.Node("", "Relu", [ir.Value(name="x")], name="0")]
    while len(nodes) < length:
        nodes.append(ir.Node("", "Relu", nodes[-1].outputs, name=str(len(nodes))))
    ir.Graph([], [], nodes=nodes)
    return nodes


def tried(nodes: list[ir.Node], changes: dict[int, int]) -> list[int]:
    """Return the indices of nodes in the order of trial; the first trial of a key of ``changes`` touches its value."""
    worklist = Worklist(lambda node: node.graph is not None)
    worklist.restart(nodes)
    order = []
    for node in worklist.drain():
        index = nodes.index(node)
        if index in changes and index not in order:
            worklist.touch([nodes[changes[index]]])
        order.append(index)
    return order


def test_without_changes_each_node_is_tried_once_in_order() -> None:
    assert tried(chain(5), {}) == [0, 1, 2, 3, 4]


def test_a_node_tried_after_a_change_is_not_tried_again() -> None:
    # The node that changed and the one before it had their turn; those behind it still have theirs.
    assert tried(chain(15), {5: 5}) == [*range(15), 5, 4]


def test_nodes_within_reach_of_a_change_are_tried_again() -> None:
    nodes = chain(20)
    assert tried(nodes, {19: 1}) == [*range(20), 1, 0, *range(2, 2 + NEAR), *range(2 + NEAR, 2 + REACH)]


def test_a_later_change_downstream_has_its_own_reach() -> None:
    order = tried(chain(30), {28: 3, 29: 6})
    again = order[30:]
    assert sorted(again) == sorted({2, 3, 4, 5, 6, 7, 8, *range(9, 7 + REACH)})
    assert len(again) == len(set(again))
