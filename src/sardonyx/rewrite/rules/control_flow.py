"""Control flow whose way is known: the branch taken, the loop that runs once or never."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.engine import Engine, Site
from sardonyx.rewrite.language import EXACT, Patch, Refusal, Result, rule


def known_condition(s: Site, value: ir.Value | None) -> bool | None:
    """The truth of a condition that constants or sizes decide."""
    found = facts.scalar(value)
    if found is None:
        elements = s.sizes.constant(value)
        found = elements[0] if elements is not None and len(elements) == 1 else None
    return None if found is None else bool(found)


def splice(engine: Engine, body: ir.Graph, inputs: Mapping[ir.Value, ir.Value], into: ir.Graph) -> Patch:
    """Take a body apart for insertion in ``into``: its nodes, with ``inputs`` standing for its parameters.

    Returns a patch without replacements; the body's outputs, in order, are in ``outputs_of``.
    """
    for old, new in inputs.items():
        for use in tuple(old.uses()):
            use.node.replace_input_with(use.idx, new)
    for name in list(body.initializers):
        value = body.initializers.pop(name)
        value.name = engine.names.adopt(name)
        into.register_initializer(value)
    nodes = list(body)
    body.remove(nodes)
    for node in nodes:
        if node.name:
            node.name = engine.node_names.adopt(node.name)
        for output in node.outputs:
            if output.name:
                output.name = engine.names.adopt(output.name)
    return Patch(nodes=nodes)


def release_outputs(body: ir.Graph) -> list[ir.Value]:
    """The body's outputs, which from now on are plain values."""
    outputs = list(body.outputs)
    while len(body.outputs):
        body.outputs.pop()
    return outputs


@rule("eliminate_if_with_const_cond", on="If", exactness=EXACT)
def decided_branch(s: Site) -> Result:
    """If whose condition is known becomes the branch that it takes."""
    condition = known_condition(s, s.input(0))
    if condition is None:
        return None
    taken = s.node.attributes["then_branch" if condition else "else_branch"].as_graph()
    if any(facts.constant_tensor(v) is None for v in taken.initializers.values()):
        return Refusal("the branch holds initializers that are no plain tensors")

    def inline() -> Patch:
        outputs = release_outputs(taken)
        patch = splice(s.engine, taken, {}, s.graph)
        return Patch(dict(zip(s.node.outputs, outputs, strict=True)), nodes=patch.nodes)

    return Patch(build=inline)
