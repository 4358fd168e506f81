"""The worklist: each node once, and again where something in its reach changed since."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.worklist import NEAR, REACH, Worklist


def chain(length: int) -> list[ir.Node]:
    nodes = [ir.Node("", "Relu", [ir.Value(name="x")], name="0")]
    while len(nodes) < length:
        nodes.append(ir.Node("", "Relu", nodes[-1].outputs, name=str(len(nodes))))
    ir.Graph([], [], nodes=nodes)
    return nodes


def tried(nodes: list[ir.Node], changes: dict[int, int]) -> list[int]:
    """The places of nodes in the order in which they are tried, while at the first try of some others change."""
    worklist = Worklist(lambda node: node.graph is not None)
    worklist.restart(nodes)
    order = []
    for node in worklist.drain():
        place = nodes.index(node)
        if place in changes and place not in order:
            worklist.touch([nodes[changes[place]]])
        order.append(place)
    return order


def test_without_changes_each_node_is_tried_once_in_order() -> None:
    assert tried(chain(5), {}) == [0, 1, 2, 3, 4]


def test_what_is_tried_after_a_change_is_not_tried_again_for_it() -> None:
    # The node that changed and the one before it had their turn; those behind it still have theirs.
    assert tried(chain(15), {5: 5}) == [*range(15), 5, 4]


def test_what_was_tried_before_a_change_is_tried_again_as_far_as_it_reaches() -> None:
    nodes = chain(20)
    assert tried(nodes, {19: 1}) == [*range(20), 1, 0, *range(2, 2 + NEAR), *range(2 + NEAR, 2 + REACH)]


def test_a_later_change_downstream_passes_on_its_own_reach() -> None:
    order = tried(chain(30), {28: 3, 29: 6})
    again = order[30:]
    assert sorted(again) == sorted({2, 3, 4, 5, 6, 7, 8, *range(9, 7 + REACH)})
    assert len(again) == len(set(again))
