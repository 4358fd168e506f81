"""ONNX Runtime's Gelu: below the opset of the standard's, with a bias before, and by tanh."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import (
    REASSOCIATES,
    A,
    Expr,
    Guard,
    Match,
    Refusal,
    Result,
    Rewrite,
    V,
    guard,
    microsoft,
    rule,
    unshared,
    where,
)
from sardonyx.rewrite.notation import Gelu
from sardonyx.rewrite.rules.activations import GELU_ARGUMENTS, ROOTS, Gated, iterate_gated
from sardonyx.rewrite.rules.contributed import DOMAIN, ONNXRUNTIME, not_its_type, suits_kernel
from sardonyx.rewrite.site import Site

STANDARD_SINCE = 20
"""The first operator set with Gelu."""


@rule("fuse_gelu", on=ROOTS, among=("Erf",), exactness=REASSOCIATES, opset=7, emits=DOMAIN, targets=ONNXRUNTIME)
def contributed_gelu(s: Site) -> Result:
    """Fuse 0.5 * x * (1 + erf(x / √2)) into ONNX Runtime's Gelu, or BiasGelu, if the opset has no Gelu."""
    match = _gelu(s, "Erf") if s.opset < STANDARD_SINCE else None
    return None if match is None else _objection(s, match) or _biased("Gelu", "BiasGelu", match)


@rule("fuse_fast_gelu", on=ROOTS, among=("Tanh",), exactness=REASSOCIATES, opset=7, emits=DOMAIN, targets=ONNXRUNTIME)
def contributed_fast_gelu(s: Site) -> Result:
    """Fuse Gelu's approximation by tanh into ONNX Runtime's FastGelu, if the opset has no Gelu."""
    match = _gelu(s, "Tanh") if s.opset < STANDARD_SINCE else None
    return None if match is None else _objection(s, match) or _biased("FastGelu", "FastGelu", match)


def _is_row(x: V, b: V) -> Guard:
    """Guard: b is one number for each element of the last axis of x."""

    def is_row(m: Match) -> bool:
        width = facts.dim_at(m.bound[x.name], -1)
        return width is not None and facts.static_shape(m.bound[b.name]) == (width,)

    return guard(is_row, "what is added is not one number for each element of the last axis")


@rule("fuse_bias_gelu", exactness=REASSOCIATES, opset=STANDARD_SINCE, emits=DOMAIN, targets=ONNXRUNTIME)
def bias_of_gelu(x: V, b: V, approximate: A) -> Rewrite:
    """Fuse Gelu(x + b) into ONNX Runtime's BiasGelu(x, b), by tanh FastGelu(x, b), for one row b."""

    def biased(m: Match) -> Result:
        return microsoft("FastGelu" if m.approximate == "tanh" else "BiasGelu")(m.x, m.b)

    return Gelu(x + b, approximate=approximate) >> biased | where(unshared, suits_kernel, _is_row(x, b))


def _gelu(s: Site, gate: str) -> Gated | None:
    argument, _ = GELU_ARGUMENTS[gate]
    for match in iterate_gated(s, gate):
        if match.argument.is_close_to(argument) and match.root.is_close_to({(1, 1): 0.5, (1, 0): 0.5}):
            return match
    return None


def _objection(s: Site, match: Gated) -> Refusal | None:
    return not_its_type(match.x) or match.objection(s)


def _biased(plain: str, biased: str, match: Gated) -> Expr:
    """Return the operator with the bias added before it, if the sum has no other reader."""
    inside = {match.gate, *match.root.nodes, *match.argument.nodes}
    total = match.x.producer()
    alone = not match.x.is_graph_output() and all(use.node in inside for use in match.x.uses())
    parts = _bias(total) if total is not None and alone and facts.is_op(total, "Add") else None
    return microsoft(plain)(match.x) if parts is None else microsoft(biased)(*parts)


def _bias(total: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Return the terms of a sum as a tensor and a vector with one element for each of its last axis."""
    for index in (1, 0):
        x, bias = total.inputs[1 - index], total.inputs[index]
        width = facts.dim_at(x, -1)
        if x is not None and bias is not None and width is not None and facts.static_shape(bias) == (width,):
            return x, bias
    return None
