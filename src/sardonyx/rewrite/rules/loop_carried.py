"""Loop and Scan alike: what is carried from one run of the body to the next, what is read and put out by slices.

No rule stands here: the rules on loops share this reading of the two operators.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.rewrite_context import Workspace
from sardonyx.rewrite.rules.bodies import body_of, passed_on, prune, rebuilt, release_outputs, substitute
from sardonyx.rewrite.rules.control_flow_if import known_condition
from sardonyx.rewrite.site import Site


@dataclass(frozen=True)
class Carried:
    """A Loop or Scan (from version 9 on), its inputs and outputs by role.

    Attributes:
        node: The node.
        body: Its body.
        lead: Inputs before the states: two of a Loop (trip count, condition), none of a Scan.
        states: How many values are carried.
        sliced: How many inputs a Scan reads by slices.
    """

    node: ir.Node
    body: ir.Graph
    lead: int
    states: int
    sliced: int

    @property
    def conditions(self) -> int:
        """Body outputs before the states: the condition of a Loop."""
        return self.lead // 2

    def initial(self, state: int) -> ir.Value | None:
        """What a state is before the first run."""
        return self.node.inputs[self.lead + state]

    def parameter(self, state: int) -> ir.Value:
        """What a state is called in the body."""
        return self.body.inputs[self.lead + state]

    def update(self, state: int) -> ir.Value:
        """What a state is after a run of the body."""
        return self.body.outputs[self.conditions + state]

    def slice_input(self, index: int) -> ir.Value | None:
        """A value that a Scan reads by slices."""
        return self.node.inputs[self.lead + self.states + index]

    def slice_parameter(self, index: int) -> ir.Value:
        """The slice, as the body calls it."""
        return self.body.inputs[self.lead + self.states + index]

    @property
    def stacked(self) -> Sequence[ir.Value]:
        """What the body puts out as slices."""
        return self.body.outputs[self.conditions + self.states :]

    def axis(self, s: Site, name: str, index: int) -> int:
        """Entry ``index`` of a Scan's list attribute, which may be left out for zeros."""
        written = s.attr(name, node=self.node)
        return int(written[index]) if written else 0


def carried(s: Site) -> Carried | None:
    """The Loop or Scan at hand by role; None where it is of another form."""
    node, body = s.node, body_of(s.node, "body")
    if body is None or facts.refers_to_function_attribute(node):
        return None
    if node.op_type == "Loop":
        found = Carried(node, body, 2, len(node.inputs) - 2, 0)
    elif s.opset >= 9:
        sliced = int(s.attr("num_scan_inputs"))
        found = Carried(node, body, 0, len(node.inputs) - sliced, sliced)
    else:
        return None
    whole = len(body.inputs) == len(node.inputs) and len(body.outputs) == found.conditions + len(node.outputs)
    given = all(value is not None for value in node.inputs[found.lead :])
    return found if whole and given and found.states >= 0 else None


def without(
    s: Site,
    loop: Carried,
    *,
    states: Collection[int] = (),
    sliced: Collection[int] = (),
    stacked: Collection[int] = (),
    collected: Sequence[ir.Value] = (),
) -> tuple[ir.Node, dict[ir.Value, ir.Value]]:
    """The loop without these states, inputs and outputs, and each output that stays with what takes its place.

    Nothing that stays may depend on what is left out. Values ``collected`` are put out as slices by a Loop too, by
    outputs behind all others.
    """
    kept_states = [i for i in range(loop.states) if i not in states]
    kept_sliced = [i for i in range(loop.sliced) if i not in sliced]
    kept_stacked = [i for i in range(len(loop.stacked)) if i not in stacked]
    inputs = [*range(loop.lead), *(loop.lead + i for i in kept_states)]
    inputs += [loop.lead + loop.states + i for i in kept_sliced]
    outputs = [*kept_states, *(loop.states + i for i in kept_stacked)]
    old = release_outputs(loop.body)
    loop.body.outputs.extend([*old[: loop.conditions], *(old[loop.conditions + i] for i in outputs)])
    for value in collected:
        own = value.producer() is not None and value.graph is loop.body and value not in loop.body.outputs
        loop.body.outputs.append(value if own else passed_on(s.workspace, value, loop.body))
    prune(s.workspace, loop.body)
    for i in reversed(range(len(loop.body.inputs))):
        if i not in inputs:
            loop.body.inputs.pop(i)
    attributes: dict[str, ir.Attr] = {}
    if loop.node.op_type == "Scan":
        attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", len(kept_sliced))
        for name, kept in (("input", kept_sliced), ("output", kept_stacked)):
            for what in ("axes", "directions"):
                written = s.attr(f"scan_{name}_{what}", node=loop.node)
                if written:
                    key = f"scan_{name}_{what}"
                    attributes[key] = ir.AttrInt64s(key, [written[i] for i in kept])
    left = [loop.node.inputs[i] for i in inputs]
    return rebuilt(s.workspace, loop.node, left, outputs, attributes, collected)


def supplant(workspace: Workspace, body: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Make the body read ``new`` instead of its parameter ``old``, also where it puts that out as it is."""
    substitute(old, new)
    for i, value in enumerate(body.outputs):
        if value is old:
            body.outputs[i] = passed_on(workspace, new, body)


def source_within(value: ir.Value, body: ir.Graph) -> ir.Value:
    """The value that a value of a body is, seen through Identity."""
    node = value.producer()
    while node is not None and node.graph is body and facts.is_op(node, "Identity") and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def surely_runs(s: Site, loop: Carried) -> bool:
    """Whether the body runs at least once, whatever the inputs."""
    if s.node.op_type == "Scan":
        size = facts.dim_at(loop.slice_input(0), loop.axis(s, "scan_input_axes", 0))
        return size is not None and size > 0
    most = (1,) if s.input(0) is None else s.sizes.constant(s.input(0))
    begins = True if s.input(1) is None else known_condition(s.sizes, s.input(1))
    return most is not None and most[0] > 0 and begins is True
