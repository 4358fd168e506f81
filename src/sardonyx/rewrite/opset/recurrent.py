"""Recurrent operators (order of axes, optional sequences) and Scan (a batch axis only before set 9)."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.opset.shaping import squeeze, unsqueeze
from sardonyx.rewrite.opset.site import Site, convert_attributes
from sardonyx.rewrite.opset.table import down, up


@up("GRU", version=3)
def direction_spelled(site: Site) -> None:
    """Correct the default direction, misspelled by the first definition."""
    direction = site.text("direction", "forward")
    site.become(attributes=site.attributes(direction="forward" if direction == "foward" else direction))


@up("RNN", "GRU", "LSTM", version=7)
def sequence_by_output(site: Site) -> None:
    """Drop ``output_sequence``: the sequence is computed if the output is named."""
    site.become(attributes=site.attributes(drop=["output_sequence"]))


@down("RNN", "GRU", "LSTM", version=7)
def sequence_by_attribute(site: Site) -> None:
    """Set ``output_sequence`` if the sequence is read."""
    site.become(attributes=site.attributes(output_sequence=int(site.uses_output(0))))


@down("RNN", "GRU", "LSTM", version=14)
def time_before_batch(site: Site) -> None:
    """Transpose the batch-first layout on both sides."""
    if not site.integer("layout"):
        site.become(attributes=site.attributes(drop=["layout"]))
        return
    inputs = site.inputs
    states = (5, 6) if site.node.op_type == "LSTM" else (5,)
    for index in (0, *states):
        if (value := site.input(index)) is not None:
            inputs[index] = site.emit("Transpose", value, perm=[1, 0, 2])
    count = len(site.node.outputs)
    results = site.emit_many(site.node.op_type, inputs, count, site.attributes(drop=["layout"]))
    orders = ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2])
    site.replace(
        *(
            site.emit("Transpose", value, perm=orders[i]) if site.uses_output(i) else None
            for i, value in enumerate(results)
        )
    )


@up("Scan", version=9)
def batch_by_outer_scan(site: Site) -> None:
    """Turn the batch axis into an outer scan, whose body scans one sequence."""
    if site.input(0) is not None:
        site.refuse("its input of sequence lengths has no equivalent")
    inputs = [site.required(i) for i in range(1, len(site.inputs))]
    attributes = site.attributes(drop=["directions"])
    if (directions := site.integers("directions")) is not None:
        attributes["scan_input_directions"] = directions
    element = [ir.Value(name=site.scope.fresh(f"{value.name}/row"), type=value.type) for value in inputs]
    for inner, outer in zip(element, inputs, strict=True):
        inner.shape = ir.Shape(list(outer.shape)[1:]) if outer.shape is not None else None
    node = ir.Node("", "Scan", element, convert_attributes(attributes), num_outputs=len(site.node.outputs))
    node.name = site.node.name
    for output, old in zip(node.outputs, site.node.outputs, strict=True):
        output.name = site.scope.fresh(f"{old.name}/row")
        output.type = old.type
        output.shape = ir.Shape(list(old.shape)[1:]) if old.shape is not None else None
    body = ir.Graph(element, list(node.outputs), nodes=[node], name=site.scope.fresh("scan_of_one_sequence"))
    results = site.emit_many("Scan", inputs, len(site.node.outputs), {"body": body, "num_scan_inputs": len(inputs)})
    for result, old in zip(results, site.node.outputs, strict=True):
        result.type, result.shape = old.type, old.shape
    site.replace(*results)


@down("Scan", version=9)
def batch_of_one(site: Site) -> None:
    """Turn the one sequence into a batch of one."""
    for name in ("scan_input_axes", "scan_output_axes", "scan_output_directions"):
        if any(site.integers(name) or []):
            site.refuse(f"its attribute {name} exists only from opset 9")
    attributes = {k: v for k, v in site.attributes().items() if k in ("body", "num_scan_inputs")}
    if (directions := site.integers("scan_input_directions")) is not None:
        attributes["directions"] = directions
    inputs = [None, *(unsqueeze(site, site.required(i), [0]) for i in range(len(site.inputs)))]
    results = site.emit_many("Scan", inputs, len(site.node.outputs), attributes)
    for result, old in zip(results, site.node.outputs, strict=True):
        result.type = old.type
        result.shape = ir.Shape([1, *old.shape]) if old.shape is not None else None
    site.replace(*(squeeze(site, result, [0]) for result in results))
