"""Matrix products as ONNX Runtime contributes them: Gemm with its activation."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import REASSOCIATES, Refusal, Result, microsoft, rule
from sardonyx.rewrite.rules.contributed import DOMAIN, ONNXRUNTIME
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
    if not facts.used_once(gemm.outputs[0]) or facts.refers_to_function_attribute(gemm):
        return Refusal("the product has other readers, or its attributes are the function's")
    if facts.dtype(s.output) != ir.DataType.FLOAT:
        return Refusal("its kernel takes 32-bit floats only")
    numbers = {f"activation_{name}": float(s.attr(name)) for name in ("alpha", "beta") if s.attr(name) is not None}
    return microsoft("FusedGemm")(
        *gemm.inputs, **dict[str, Any](gemm.attributes), activation=s.node.op_type, **dict[str, Any](numbers)
    )
