"""Matrix products of ONNX Runtime's own: Gemm with its activation."""

from __future__ import annotations

from typing import Any

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import (
    REASSOCIATES,
    AnyOf,
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
from sardonyx.rewrite.notation import Gemm
from sardonyx.rewrite.rules.contributed import DOMAIN, ONNXRUNTIME, suits_kernel

_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid")
"""The activations of FusedGemm, a subset of FusedConv's."""


def _has_own_attributes(m: Match) -> Refusal | None:
    """Guard: no attribute of the Gemm is one of the enclosing function."""
    if facts.refers_to_function_attribute(m.node("Gemm")):
        return Refusal("its attributes are the function's")
    return None


@rule("fuse_activation_into_gemm", exactness=REASSOCIATES, opset=7, emits=DOMAIN, targets=ONNXRUNTIME)
def activation_of_gemm(x: V, w: V, b: Maybe) -> Rewrite:
    """f(Gemm(x, w, b)) is ONNX Runtime's FusedGemm(x, w, b, activation=f)."""

    def fused(m: Match) -> Result:
        s, gemm = m.site, m.node("Gemm")
        numbers = {f"activation_{name}": float(s.attr(name)) for name in ("alpha", "beta") if s.attr(name) is not None}
        return microsoft("FusedGemm")(
            *gemm.inputs, **dict[str, Any](gemm.attributes), activation=m.root.op_type, **dict[str, Any](numbers)
        )

    return AnyOf(*_ACTIVATIONS)(Gemm(x, w, b)) >> fused | where(_has_own_attributes, unshared, suits_kernel)
