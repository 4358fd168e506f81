"""Gelu as ONNX Runtime contributes it: below the operator set that has it, with the bias before it, and by tanh."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import REASSOCIATES, Expr, Refusal, Result, microsoft, rule
from sardonyx.rewrite.rules.activations import GELU_ARGUMENTS, ROOTS, Gated, gated
from sardonyx.rewrite.rules.contributed import DOMAIN, ONNXRUNTIME, not_its_type, not_one_kernel
from sardonyx.rewrite.site import Site

STANDARD_SINCE = 20
"""The operator set that brought Gelu."""


@rule("fuse_gelu", on=ROOTS, among=("Erf",), exactness=REASSOCIATES, opset=7, emits=DOMAIN, targets=ONNXRUNTIME)
def contributed_gelu(s: Site) -> Result:
    """Half of x · (1 + erf(x/√2)) is ONNX Runtime's Gelu, or with a bias its BiasGelu, where the standard has none."""
    found = _gelu(s, "Erf") if s.opset < STANDARD_SINCE else None
    return None if found is None else _objection(s, found) or _biased("Gelu", "BiasGelu", found)


@rule("fuse_fast_gelu", on=ROOTS, among=("Tanh",), exactness=REASSOCIATES, opset=7, emits=DOMAIN, targets=ONNXRUNTIME)
def contributed_fast_gelu(s: Site) -> Result:
    """Gelu's approximation by tanh, written out, is ONNX Runtime's FastGelu, where the standard has none."""
    found = _gelu(s, "Tanh") if s.opset < STANDARD_SINCE else None
    return None if found is None else _objection(s, found) or _biased("FastGelu", "FastGelu", found)


@rule(
    "fuse_bias_gelu",
    on="Gelu",
    after="Add",
    exactness=REASSOCIATES,
    opset=STANDARD_SINCE,
    emits=DOMAIN,
    targets=ONNXRUNTIME,
)
def bias_of_gelu(s: Site) -> Result:
    """Gelu of x and a bias along the last axis is ONNX Runtime's BiasGelu, or by tanh its FastGelu."""
    total = s.producer(0, "Add")
    if total is None:
        return None
    if (refusal := not_one_kernel(s, total)) is not None:
        return refusal
    parts = _bias(total)
    if parts is None:
        return Refusal("what is added is not one number for each element of the last axis")
    return microsoft("FastGelu" if s.attr("approximate", "none") == "tanh" else "BiasGelu")(*parts)


def _gelu(s: Site, gate: str) -> Gated | None:
    argument, _ = GELU_ARGUMENTS[gate]
    for found in gated(s, gate):
        if found.argument.is_close_to(argument) and found.root.is_close_to({(1, 1): 0.5, (1, 0): 0.5}):
            return found
    return None


def _objection(s: Site, found: Gated) -> Refusal | None:
    return not_its_type(found.x) or found.objection(s)


def _biased(plain: str, biased: str, found: Gated) -> Expr:
    """The operator with the bias that is added before it, where the sum is read for nothing else."""
    inside = {found.gate, *found.root.nodes, *found.argument.nodes}
    total = found.x.producer()
    alone = not found.x.is_graph_output() and all(use.node in inside for use in found.x.uses())
    parts = _bias(total) if total is not None and alone and facts.is_op(total, "Add") else None
    return microsoft(plain)(found.x) if parts is None else microsoft(biased)(*parts)


def _bias(total: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """What is added up, as a tensor and a vector with an element for each of its last axis."""
    for index in (1, 0):
        x, bias = total.inputs[1 - index], total.inputs[index]
        width = facts.dim_at(x, -1)
        if x is not None and bias is not None and width is not None and facts.static_shape(bias) == (width,):
            return x, bias
    return None
