"""Loop and Scan in one form: loop-carried states, scan inputs and scan outputs by role.

This module has no rule; the loop rules share this reading of the two operators.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.rewrite_context import Workspace
from sardonyx.rewrite.rules.bodies import body_of, pass_through, prune, rebuild_node, release_outputs, substitute
from sardonyx.rewrite.rules.control_flow_if import decided_condition
from sardonyx.rewrite.site import Site


@dataclass(frozen=True)
class CarriedLoop:
    """A Loop or Scan (from version 9 on), with inputs and outputs by role.

    Attributes:
        node: The node.
        body: The body.
        lead: Number of inputs before the states: two of a Loop (trip count, condition), none of a Scan.
        states: Number of loop-carried states.
        sliced: Number of scan inputs.
    """

    node: ir.Node
    body: ir.Graph
    lead: int
    states: int
    sliced: int

    @property
    def conditions(self) -> int:
        """Number of body outputs before the states: 1 for a Loop (its condition), else 0."""
        return self.lead // 2

    def initial(self, state: int) -> ir.Value | None:
        """Return the value of a state before the first iteration."""
        return self.node.inputs[self.lead + state]

    def parameter(self, state: int) -> ir.Value:
        """Return the body input of a state."""
        return self.body.inputs[self.lead + state]

    def update(self, state: int) -> ir.Value:
        """Return the body output of a state."""
        return self.body.outputs[self.conditions + state]

    def slice_input(self, index: int) -> ir.Value | None:
        """Return a scan input of the node."""
        return self.node.inputs[self.lead + self.states + index]

    def slice_parameter(self, index: int) -> ir.Value:
        """Return the body input of a scan input."""
        return self.body.inputs[self.lead + self.states + index]

    @property
    def stacked(self) -> Sequence[ir.Value]:
        """Scan outputs of the body."""
        return self.body.outputs[self.conditions + self.states :]

    def axis(self, s: Site, name: str, index: int) -> int:
        """Return entry ``index`` of a Scan's list attribute, 0 if the attribute is absent."""
        written = s.attr(name, node=self.node)
        return int(written[index]) if written else 0


def read_loop(s: Site) -> CarriedLoop | None:
    """Return the Loop or Scan at the site by role; None if its signature is irregular."""
    node, body = s.node, body_of(s.node, "body")
    if body is None or facts.refers_to_function_attribute(node):
        return None
    if node.op_type == "Loop":
        loop = CarriedLoop(node, body, 2, len(node.inputs) - 2, 0)
    elif s.opset >= 9:
        sliced = int(s.attr("num_scan_inputs"))
        loop = CarriedLoop(node, body, 0, len(node.inputs) - sliced, sliced)
    else:
        return None
    is_consistent = len(body.inputs) == len(node.inputs) and len(body.outputs) == loop.conditions + len(node.outputs)
    has_all_inputs = all(value is not None for value in node.inputs[loop.lead :])
    return loop if is_consistent and has_all_inputs and loop.states >= 0 else None


def remove_from_loop(
    s: Site,
    loop: CarriedLoop,
    *,
    states: Collection[int] = (),
    sliced: Collection[int] = (),
    stacked: Collection[int] = (),
    collected: Sequence[ir.Value] = (),
) -> tuple[ir.Node, dict[ir.Value, ir.Value]]:
    """Rebuild a loop without some states, scan inputs and scan outputs.

    Returns:
        The new node, and the new value of each remaining output.

    Nothing that remains may depend on the removed values. ``collected`` values become scan outputs of a Loop, after all
    others.
    """
    remaining_states = [i for i in range(loop.states) if i not in states]
    remaining_sliced = [i for i in range(loop.sliced) if i not in sliced]
    remaining_stacked = [i for i in range(len(loop.stacked)) if i not in stacked]
    inputs = [*range(loop.lead), *(loop.lead + i for i in remaining_states)]
    inputs += [loop.lead + loop.states + i for i in remaining_sliced]
    outputs = [*remaining_states, *(loop.states + i for i in remaining_stacked)]
    old = release_outputs(loop.body)
    loop.body.outputs.extend([*old[: loop.conditions], *(old[loop.conditions + i] for i in outputs)])
    for value in collected:
        own = value.producer() is not None and value.graph is loop.body and value not in loop.body.outputs
        loop.body.outputs.append(value if own else pass_through(s.workspace, value, loop.body))
    prune(s.workspace, loop.body)
    for i in reversed(range(len(loop.body.inputs))):
        if i not in inputs:
            loop.body.inputs.pop(i)
    attributes: dict[str, ir.Attr] = {}
    if loop.node.op_type == "Scan":
        attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", len(remaining_sliced))
        for name, remaining in (("input", remaining_sliced), ("output", remaining_stacked)):
            for attribute in ("axes", "directions"):
                written = s.attr(f"scan_{name}_{attribute}", node=loop.node)
                if written:
                    key = f"scan_{name}_{attribute}"
                    attributes[key] = ir.AttrInt64s(key, [written[i] for i in remaining])
    left = [loop.node.inputs[i] for i in inputs]
    return rebuild_node(s.workspace, loop.node, left, outputs, attributes, collected)


def replace_parameter(workspace: Workspace, body: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Make the body read ``new`` instead of its parameter ``old``, as a body output too."""
    substitute(old, new)
    for i, value in enumerate(body.outputs):
        if value is old:
            body.outputs[i] = pass_through(workspace, new, body)


def trace_identity(value: ir.Value, body: ir.Graph) -> ir.Value:
    """Return the source of a body value, through Identity nodes."""
    node = value.producer()
    while node is not None and node.graph is body and facts.is_op(node, "Identity") and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def is_certain_to_run(s: Site, loop: CarriedLoop) -> bool:
    """Return True if the body runs at least once for all inputs."""
    if s.node.op_type == "Scan":
        size = facts.dim_at(loop.slice_input(0), loop.axis(s, "scan_input_axes", 0))
        return size is not None and size > 0
    trip_count = (1,) if s.input(0) is None else s.sizes.constant(s.input(0))
    condition = True if s.input(1) is None else decided_condition(s.sizes, s.input(1))
    return trip_count is not None and trip_count[0] > 0 and condition is True
