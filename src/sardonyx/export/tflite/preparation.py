"""Models in the form that the format can express: one operator set, decomposed operators, images with channels last."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from sardonyx.export.decomposition import ROUNDS, replace_by_definitions
from sardonyx.export.tflite.channel_order import over_images, with_channels_last
from sardonyx.export.tflite.emission import EMITTERS, OPSET
from sardonyx.export.tflite.operators.windows import can_resize
from sardonyx.model.copying import copy_model
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.opset import convert_opset
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.rewrite_context import Settings

LEGALIZED = ("legalize_einsum", "legalize_microsoft", "inline_functions")
"""Passes of the optimizer that remove operators which the format lacks."""


def prepared(model: ir.Model) -> tuple[ir.Model, Mapping[str, ir.Node]]:
    """Return a model for emission, and the original node of each call over channels-last images.

    Args:
        model: The model, which is not changed.
    """
    version = model.graph.opset_imports.get("", OPSET)
    copy = copy_model(model) if version == OPSET else convert_opset(model, OPSET)
    copy.graph.opset_imports.setdefault("", OPSET)
    for _ in range(ROUNDS):
        pipeline.transform(copy, pipeline.select(passes=LEGALIZED), Settings())
        if not replace_by_definitions(copy, is_direct):
            break
        copy = optimize(copy, verify=False).model
    return copy, with_channels_last(copy)


def is_direct(node: ir.Node) -> bool:
    """Return True if the node is written as it is."""
    if node.domain not in facts.STANDARD:
        return False
    if node.op_type == "Resize":
        return can_resize(node)
    if node.op_type in ("DepthToSpace", "SpaceToDepth", "GroupNormalization", "LRN"):
        return over_images(node)
    if node.op_type in ("MaxPool", "LayerNormalization"):
        return all(facts.unused(output) for output in node.outputs[1:])
    if node.op_type == "ScatterElements" or node.op_type == "ScatterND":
        return facts.attribute(node, "reduction", OPSET, "none") in ("none", "add")
    return node.op_type in EMITTERS or node.op_type == "Constant"
