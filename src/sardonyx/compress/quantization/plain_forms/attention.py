"""Attention of ``com.microsoft``, whose weight computes queries, keys and values, as a product and MultiHeadAttention.

Source: ONNX Runtime, ContribOperators.md, *Attention* and *MultiHeadAttention*.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.plain_forms.terms import VENDOR, Plain, float_node, weight_of
from sardonyx.compress.quantization.writer import Writer
from sardonyx.rewrite.analysis import facts

_KEPT = ("num_heads", "scale", "mask_filter_value", "unidirectional")


def plain_attention(writer: Writer, node: ir.Node) -> Plain | None:
    """Return Attention as a product, a sum, a Split, and MultiHeadAttention.

    Attention with past states, rotary positions, or a mask that MultiHeadAttention reads otherwise stays.
    """
    x, factor, bias, mask, past, scores = ([*node.inputs, *[None] * 6])[:6]
    array = weight_of(factor)
    is_plain = not any(facts.attribute(node, name, 1, 0) for name in ("do_rotary", "past_present_share_buffer"))
    has_others = past is not None or any(value is not None for value in node.inputs[6:])
    if (
        array is None
        or array.ndim != 2
        or x is None
        or factor is None
        or has_others
        or not is_plain
        or writer.opset < 13
    ):
        return None
    if any(not facts.unused(value) for value in node.outputs[1:]) or facts.rank(x) != 3:
        return None
    if mask is not None and facts.rank(mask) != 2:
        return None
    sizes = [int(size) for size in facts.attribute(node, "qkv_hidden_sizes", 1, ()) or ()]
    sizes = sizes or [array.shape[1] // 3] * 3
    if len(sizes) != 3 or sum(sizes) != array.shape[1]:
        return None
    product = float_node(writer, "MatMul", [x, factor], node)
    nodes = [product]
    if bias is not None:
        nodes.append(float_node(writer, "Add", [product.outputs[0], bias], node))
    outputs = [(name, ir.DataType.FLOAT) for name in ("query", "key", "value")]
    split = writer.node(
        "Split", [nodes[-1].outputs[0], writer.initializer(f"{node.name}_sizes", np.array(sizes, np.int64))],
        str(node.name or node.outputs[0].name), ir.DataType.FLOAT, outputs=outputs, axis=-1,
    )  # fmt: skip
    leading = list(x.shape[:2]) if x.shape is not None else [None, None]
    for value in (product.outputs[0], nodes[-1].outputs[0]):
        value.shape = ir.Shape([*leading, sum(sizes)])
    for value, size in zip(split.outputs, sizes, strict=True):
        value.shape = ir.Shape([*leading, size])
    attributes: dict[str, Any] = {name: node.attributes[name] for name in _KEPT if name in node.attributes}
    heads = float_node(
        writer, "MultiHeadAttention", _without_end([*split.outputs, None, mask, scores]), node, VENDOR, **attributes
    )
    return Plain([*nodes, split, heads], product)


def _without_end(values: list[ir.Value | None]) -> list[ir.Value | None]:
    """Return inputs without absent ones at the end."""
    while values and values[-1] is None:
        values = values[:-1]
    return values
