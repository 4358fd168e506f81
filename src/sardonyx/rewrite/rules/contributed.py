"""ONNX Runtime's own operators: convolutions with their activation, QuickGelu, sums of embeddings.

ONNX Runtime makes the same fusions when it loads a model; these rules run for this target alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import (
    REASSOCIATES,
    AnyOf,
    Expr,
    Match,
    Maybe,
    Refusal,
    Result,
    Rewrite,
    V,
    microsoft,
    rule,
    unshared,
    where,
)
from sardonyx.rewrite.notation import Cast, Conv
from sardonyx.rewrite.rules.activations import iterate_gated
from sardonyx.rewrite.rules.clips import limit_of
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.signatures import axis_of
from sardonyx.rewrite.site import Site

DOMAIN = "com.microsoft"

ONNXRUNTIME = ("onnxruntime",)

_PLAIN_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh")

_LARGEST = float(np.finfo(np.float32).max)


def not_its_type(value: ir.Value | None) -> Refusal | None:
    """Return the refusal of a value that is not float32, the type of contributed kernels; else None."""
    if facts.dtype(value) != ir.DataType.FLOAT:
        return Refusal("its kernel takes 32-bit floats only")
    return None


def suits_kernel(m: Match) -> Refusal | None:
    """Guard: the result is of the element type that contributed kernels have."""
    return not_its_type(m.root.outputs[0])


def _quantized_elsewhere(m: Match) -> Refusal | None:
    """Guard: no operand of the Conv is dequantized; engines recognize a quantized convolution as written."""
    if any(producer_of(m.site, value, "DequantizeLinear") is not None for value in m.node("Conv").inputs):
        return Refusal("engines recognize a quantized convolution in its written form")
    return None


Activation = AnyOf(*_PLAIN_ACTIVATIONS, "LeakyRelu", "HardSigmoid", "Clip")


@rule("fuse_activation_into_conv", exactness=REASSOCIATES, opset=7, emits=DOMAIN, targets=ONNXRUNTIME)
def activation_of_conv(x: V, w: V, b: Maybe) -> Rewrite:
    """f(Conv(x, w, b)) is ONNX Runtime's FusedConv(x, w, b, activation=f)."""

    def fused(m: Match) -> Result:
        parameters = _parameters(m.site)
        if parameters is None:
            return Refusal("the bounds are not known numbers")
        attributes = dict[str, Any](m.node("Conv").attributes)
        operands = [m.x, m.w] if m.b is None else [m.x, m.w, m.b]
        return microsoft("FusedConv")(
            *operands, **attributes, activation=m.root.op_type, activation_params=parameters or None
        )

    return Activation(Conv(x, w, b), ...) >> fused | where(unshared, suits_kernel, _quantized_elsewhere)


def _parameters(s: Site) -> list[float] | None:
    """Return the activation's numbers in the order of FusedConv, or None if one is unknown."""
    match s.node.op_type:
        case "LeakyRelu":
            return [float(s.attr("alpha"))]
        case "HardSigmoid":
            return [float(s.attr("alpha")), float(s.attr("beta"))]
        case "Clip":
            bounds = limit_of(s, s.node)
            if bounds is None:
                return None
            low, high = (
                (-_LARGEST if bounds.low is None else bounds.low),
                (_LARGEST if bounds.high is None else bounds.high),
            )
            return [float(low), float(high)] if low <= high else None
    return []


@rule(
    "fuse_quick_gelu", on="Mul", among=("Sigmoid",), exactness=REASSOCIATES, opset=7, emits=DOMAIN, targets=ONNXRUNTIME
)
def quick_gelu(s: Site) -> Result:
    """Fuse x * sigmoid(α * x) into ONNX Runtime's QuickGelu(x, α); SiLU for α = 1."""
    for match in iterate_gated(s, "Sigmoid"):
        alpha = match.argument.terms.get((1,), 0.0)
        if not match.argument.is_close_to({(1,): alpha}) or not match.root.is_close_to({(1, 1): 1.0}):
            continue
        if (refusal := not_its_type(match.x)) is not None:
            return refusal
        return match.objection(s) or microsoft("QuickGelu")(match.x, alpha=alpha)
    return None


@rule(
    "fuse_embed_layer_normalization",
    on="LayerNormalization",
    after="Add",
    exactness=REASSOCIATES,
    opset=17,
    emits=DOMAIN,
    targets=ONNXRUNTIME,
)
def embed_layer_normalization(s: Site) -> Result:
    """Fuse LayerNormalization of a sum of embeddings into ONNX Runtime's EmbedLayerNormalization.

    Indices count from the front.
    """
    terms = _terms(s, s.input(0))
    embeddings = [_embedding(s, term) for term in terms]
    if not 2 <= len(terms) <= 3 or not any(
        embedding is not None and embedding[1] is not None for embedding in embeddings
    ):
        return None
    if not all(embedding is not None for embedding in embeddings):
        return Refusal("a term of the sum is neither looked up in a constant table nor a constant of each position")
    if facts.dtype(s.output) != ir.DataType.FLOAT or facts.rank(s.output) != 3 or axis_of(s, s.node, -1) != 2:
        return Refusal("it is not 32-bit floats, normalized along the last of three axes")
    if not s.unused_outputs_from(1):
        return Refusal("mean or deviation is read")
    return _embedded(s, [embedding for embedding in embeddings if embedding is not None])


Embedding = tuple[ir.Value, ir.Value | None]
"""A table and the indices of its rows; None for the indices 0, 1, 2 …"""


def _embedded(s: Site, embeddings: list[Embedding]) -> Result:
    dims, width = s.sizes.dims(s.output), facts.dim_at(s.output, -1)
    scale, bias = s.input(1), s.input(2)
    if dims is None or width is None or scale is None or facts.static_shape(scale) != (width,):
        return Refusal("the width is not known, or the scale has another")
    if bias is not None and facts.static_shape(bias) != (width,):
        return Refusal("the bias has another width")
    if any(facts.dim_at(table, -1) != width for table, _ in embeddings):
        return Refusal("a table has another width")
    everywhere = [
        embedding for embedding in embeddings if embedding[1] is not None and s.sizes.dims(embedding[1]) == dims[:2]
    ]
    others = [embedding for embedding in embeddings if embedding not in everywhere]
    if not everywhere or len(others) > 1:
        return Refusal("more than one term is the same for all of a batch")
    position = others[0] if others else everywhere.pop()
    if not everywhere or (position[1] is not None and not _covers_positions(s, position[1], dims[:2])):
        return Refusal("the indices do not cover each position of each batch, or of all batches")
    if position[1] is None and equal(dims[1], facts.dim_at(position[0], -2) or 0) is not True:
        return Refusal("the constant needs one row for each position")
    word, segment = everywhere[0], everywhere[1] if len(everywhere) > 1 else (None, None)
    operator = microsoft("EmbedLayerNormalization")
    return operator(
        _narrow(word[1]),
        _narrow(segment[1]),
        word[0],
        position[0] if facts.rank(position[0]) == 2 else _rows(position[0]),
        segment[0],
        scale,
        np.zeros(width, np.float32) if bias is None else bias,
        None,
        _narrow(position[1]),
        n_outputs=2,
        epsilon=s.attr("epsilon"),
    )


def _terms(s: Site, value: ir.Value | None) -> list[ir.Value]:
    """Return the terms of ``value``, a sum whose partial sums have no other reader."""
    node = producer_of(s, value, "Add")
    if node is None or value is None or not facts.used_once(value):
        return [] if value is None else [value]
    parts: list[ir.Value] = []
    for operand in node.inputs:
        inner = producer_of(s, operand, "Add")
        inside = inner is not None and operand is not None and facts.used_once(operand)
        parts += [v for v in (inner.inputs if inner is not None and inside else [operand]) if v is not None]
    return parts


def _embedding(s: Site, value: ir.Value) -> Embedding | None:
    if facts.is_constant(value):
        shape = facts.static_shape(value)
        rows = shape is not None and (len(shape) == 2 or (len(shape) == 3 and shape[0] == 1))
        return (value, None) if rows and facts.dtype(value) == ir.DataType.FLOAT else None
    node = producer_of(s, value, "Gather")
    if node is None or not facts.used_once(value) or axis_of(s, node) != 0:
        return None
    table, indices = node.inputs
    if table is None or indices is None or facts.rank(table) != 2 or facts.rank(indices) != 2:
        return None
    return (table, indices) if facts.is_constant(table) else None


def _covers_positions(s: Site, indices: ir.Value, positions: tuple[Any, ...]) -> bool:
    dims = s.sizes.dims(indices)
    if dims is None or len(dims) != 2 or equal(dims[1], positions[1]) is not True:
        return False
    return dims[0] == 1 or equal(dims[0], positions[0]) is True


def _rows(table: ir.Value) -> np.ndarray:
    array = facts.constant(table)
    assert array is not None
    return array.reshape(array.shape[-2:])


def _narrow(indices: ir.Value | None) -> Expr | ir.Value | None:
    if indices is None or facts.dtype(indices) == ir.DataType.INT32:
        return indices
    return Cast(indices, to=ir.DataType.INT32.value)
