"""The table of forms, and the rewriting of a model's nodes."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from sardonyx.compress.quantization.plain_forms.attention import plain_attention
from sardonyx.compress.quantization.plain_forms.contributed import plain_conv, plain_gemm, plain_matmul
from sardonyx.compress.quantization.plain_forms.einsum import plain_einsum
from sardonyx.compress.quantization.plain_forms.moved_weights import write_moved_weights
from sardonyx.compress.quantization.plain_forms.products import product_of_gemm, right_hand_product
from sardonyx.compress.quantization.plain_forms.terms import VENDOR, Form
from sardonyx.compress.quantization.writer import Writer
from sardonyx.rewrite.analysis import facts

_FORMS: dict[tuple[str, str], Form] = {
    (VENDOR, "FusedMatMul"): plain_matmul,
    (VENDOR, "FusedGemm"): plain_gemm,
    (VENDOR, "FusedConv"): plain_conv,
    (VENDOR, "Attention"): plain_attention,
    ("", "Einsum"): plain_einsum,
    ("", "Gemm"): product_of_gemm,
    ("", "MatMul"): right_hand_product,
}


def write_plain_forms(model: ir.Model) -> list[str]:
    """Write nodes with constant weights as MatMul, Gemm and Conv whose weight is the right factor.

    The main node of the new form keeps the name of the node. Nodes without constant weight stay.

    Args:
        model: The model, with inferred shapes; changed.

    Returns:
        Sentences for the user.
    """
    writer = Writer(model)
    rewritten: Counter[str] = Counter()
    for graph in facts.graphs_of(model.graph):
        write_moved_weights(writer, list(graph))
        for node in list(graph):
            current: ir.Node | None = node
            while current is not None:
                form = _FORMS.get((current.domain, current.op_type))
                plain = None if form is None or facts.refers_to_function_attribute(current) else form(writer, current)
                if plain is None:
                    break
                name = current.name
                rewritten[node.op_type] += current is node
                writer.replace(current, plain.nodes)
                if name:
                    plain.main.name = name
                current = plain.main
    if not rewritten:
        return []
    shown = ", ".join(f"{count} {op_type}" for op_type, count in sorted(rewritten.items()))
    return [f"Nodes were written as products with their weight on the right: {shown}."]
