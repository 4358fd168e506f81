"""Gelu as ONNX Runtime contributes it: below the operator set that has it, with the bias before it, and by tanh."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite import facts
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


def _is_row(x: V, b: V) -> Guard:
    """Guard: b is one number for each element of the last axis of x."""

    def is_row(m: Match) -> bool:
        width = facts.dim_at(m.bound[x.name], -1)
        return width is not None and facts.static_shape(m.bound[b.name]) == (width,)

    return guard(is_row, "what is added is not one number for each element of the last axis")


@rule("fuse_bias_gelu", exactness=REASSOCIATES, opset=STANDARD_SINCE, emits=DOMAIN, targets=ONNXRUNTIME)
def bias_of_gelu(x: V, b: V, approximate: A) -> Rewrite:
    """Gelu(x + b) is ONNX Runtime's BiasGelu(x, b), or by tanh its FastGelu(x, b), for a bias along the last axis."""

    def biased(m: Match) -> Result:
        return microsoft("FastGelu" if m.approximate == "tanh" else "BiasGelu")(m.x, m.b)

    return Gelu(x + b, approximate=approximate) >> biased | where(unshared, suits_kernel, _is_row(x, b))


def _gelu(s: Site, gate: str) -> Gated | None:
    argument, _ = GELU_ARGUMENTS[gate]
    for found in iterate_gated(s, gate):
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
