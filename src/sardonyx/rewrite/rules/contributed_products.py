"""Matrix products as ONNX Runtime contributes them: Gemm with its activation."""

from __future__ import annotations

from typing import Any

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import REASSOCIATES, Refusal, Result, microsoft, rule
from sardonyx.rewrite.rules.contributed import DOMAIN, ONNXRUNTIME, not_one_kernel
from sardonyx.rewrite.site import Site

_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid")
"""What FusedGemm does to its result, of what FusedConv does too."""


@rule(
    "fuse_activation_into_gemm",
    on=_ACTIVATIONS,
    after="Gemm",
    exactness=REASSOCIATES,
    opset=7,
    emits=DOMAIN,
    targets=ONNXRUNTIME,
)
def activation_of_gemm(s: Site) -> Result:
    """Gemm and the activation behind it are ONNX Runtime's FusedGemm."""
    gemm = s.producer(0, "Gemm")
    if gemm is None:
        return None
    if facts.refers_to_function_attribute(gemm):
        return Refusal("its attributes are the function's")
    if (refusal := not_one_kernel(s, gemm)) is not None:
        return refusal
    numbers = {f"activation_{name}": float(s.attr(name)) for name in ("alpha", "beta") if s.attr(name) is not None}
    return microsoft("FusedGemm")(
        *gemm.inputs, **dict[str, Any](gemm.attributes), activation=s.node.op_type, **dict[str, Any](numbers)
    )
