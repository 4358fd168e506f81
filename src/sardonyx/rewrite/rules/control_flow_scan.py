"""Scan whose body is elementwise: computed on the whole tensor at once."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts, inference
from sardonyx.rewrite.analysis.facts import STANDARD
from sardonyx.rewrite.language import EXACT, REASSOCIATES, Patch, Refusal, Result, rule
from sardonyx.rewrite.rules.bodies import immovable_reason, release_outputs, splice
from sardonyx.rewrite.rules.loop_carried import CarriedLoop, read_loop
from sardonyx.rewrite.site import Site

ROUNDED = frozenset(
    {
        *("Abs", "Add", "And", "Ceil", "Div", "Equal", "Floor", "Greater", "GreaterOrEqual", "Identity", "Less"),
        *("LessOrEqual", "Mul", "Neg", "Not", "Or", "Relu", "Sign", "Sub", "Where", "Xor"),
    }
)
"""Elementwise operators whose bits do not depend on the element's position."""

ELEMENTWISE = ROUNDED | frozenset(
    {
        *(
            "Cos",
            "Elu",
            "Erf",
            "Exp",
            "Gelu",
            "HardSigmoid",
            "HardSwish",
            "LeakyRelu",
            "Log",
            "Max",
            "Mean",
            "Min",
            "Mish",
        ),
        *("Pow", "Reciprocal", "Selu", "Sigmoid", "Sin", "Softplus", "Softsign", "Sqrt", "Sum", "Tan", "Tanh"),
    }
)
"""Elementwise operators, some with another routine for the last elements of a row in engines."""


@rule("rewrite_scan_to_batch", on="Scan", exactness=EXACT)
def rounded_scan(s: Site) -> Result:
    """Replace a Scan of elementwise operators without state by the operators on the whole tensor."""
    return _batch(s, ROUNDED)


@rule("rewrite_scan_to_batch", on="Scan", exactness=REASSOCIATES)
def elementwise_scan(s: Site) -> Result:
    """Replace a Scan of elementwise operators without state; the last elements may round differently."""
    return _batch(s, ELEMENTWISE)


def _batch(s: Site, operators: frozenset[str]) -> Result:
    scan = read_loop(s)
    if scan is None:
        return None
    reason = _objection(s, scan, operators)
    if reason is not None:
        return Refusal(reason)
    return Patch(build=lambda: _at_once(s, scan))


def _objection(s: Site, scan: CarriedLoop, operators: frozenset[str]) -> str | None:
    if scan.states:
        return "it carries state"
    for name, count in (("input", scan.sliced), ("output", len(scan.stacked))):
        if any(scan.axis(s, f"scan_{name}_axes", i) for i in range(count)):
            return "it takes slices along another axis than the first"
    ways = {scan.axis(s, "scan_input_directions", i) for i in range(scan.sliced)}
    ways |= {scan.axis(s, "scan_output_directions", i) for i in range(len(scan.stacked))}
    if len(ways) > 1:
        return "it takes slices in both directions"
    whole = {facts.rank(scan.slice_input(i)) for i in range(scan.sliced)}
    rank = whole.pop()
    if rank is None or whole:
        return "the ranks of its slices are not known, or differ"
    if (reason := immovable_reason(s.workspace, scan.body)) is not None:
        return reason
    sliced = {scan.slice_parameter(i) for i in range(scan.sliced)}
    for node in scan.body:
        if node.domain not in STANDARD or node.op_type not in operators:
            return f"its body has the operator {node.op_type}"
        varying = [v in sliced for v in node.inputs]
        if not any(varying):
            return f"the {node.op_type} in its body does not depend on the slice"
        if not all(v in sliced or ((r := facts.rank(v)) is not None and r < rank) for v in node.inputs):
            return "an outer value in its body may have a higher rank than the slices"
        sliced.update(node.outputs)
    return None if all(v in sliced for v in scan.stacked) else "it puts out a value that does not depend on the slice"


def _at_once(s: Site, scan: CarriedLoop) -> Patch:
    arguments = {
        scan.slice_parameter(i): value for i in range(scan.sliced) if (value := scan.slice_input(i)) is not None
    }
    outputs = [arguments.get(value, value) for value in release_outputs(scan.body)]
    nodes = splice(s.workspace, scan.body, arguments, s.graph)
    for node in nodes:
        for output in node.outputs:
            output.shape = None
        inference.infer_node(node, s.workspace.opset_imports, s.workspace.model.ir_version)
    replaced: dict[ir.Value, ir.Value] = dict(zip(s.node.outputs, outputs, strict=True))
    return Patch(replaced, nodes=nodes)
