"""A residual and its normalization as one operator of ONNX Runtime's own, only if the pass is named.

On processors its kernels take several times as long as the separate sum and normalization; on accelerators, for which
models can be prepared here, they save a pass over memory.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import REASSOCIATES, Patch, Refusal, Replacement, Result, microsoft, rule
from sardonyx.rewrite.rules.contributed import DOMAIN, ONNXRUNTIME
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.signatures import axis_of
from sardonyx.rewrite.site import Site

SUM = 3
"""Index of the output that holds the normalized sum, for both operators."""


@rule(
    "fuse_skip_layer_normalization",
    on="LayerNormalization",
    after="Add",
    exactness=REASSOCIATES,
    opset=17,
    emits=DOMAIN,
    targets=ONNXRUNTIME,
    default=False,
)
def skip_layer_normalization(s: Site) -> Result:
    """Fuse LayerNormalization(x + skip + bias) into SkipLayerNormalization; slower on processors."""
    return _normalized_sum(s, "SkipLayerNormalization", (s.input(2),))


@rule(
    "fuse_skip_layer_normalization",
    on="RMSNormalization",
    after="Add",
    exactness=REASSOCIATES,
    opset=23,
    emits=DOMAIN,
    targets=ONNXRUNTIME,
    default=False,
)
def skip_simplified_layer_normalization(s: Site) -> Result:
    """Fuse RMSNormalization(x + skip + bias) into SkipSimplifiedLayerNormalization."""
    return _normalized_sum(s, "SkipSimplifiedLayerNormalization", ())


def _normalized_sum(s: Site, op_type: str, shift: tuple[ir.Value | None, ...]) -> Result:
    total, width = s.producer(0, "Add"), facts.dim_at(s.input(0), -1)
    if total is None or width is None:
        return None
    parameters = [s.input(1), *shift]
    if any(value is not None and not facts.is_constant(value) for value in parameters):
        return Refusal("its parameters are not constant")
    if any(value is not None and facts.static_shape(value) != (width,) for value in parameters):
        return Refusal("its parameters are not one number for each element of the last axis")
    if facts.dtype(s.output) != ir.DataType.FLOAT or facts.rank(s.output) != 3 or axis_of(s, s.node, -1) != 2:
        return Refusal("it is not 32-bit floats, normalized along the last of three axes")
    if not s.unused_outputs_from(1):
        return Refusal("mean or deviation is read")
    terms = _terms(s, total, width)
    if terms is None:
        return Refusal("the two tensors are not known to have the same shape")
    x, skip, bias = terms
    fused = microsoft(op_type)(x, skip, *parameters, bias, epsilon=s.attr("epsilon"), n_outputs=1)
    replace: dict[ir.Value, Replacement] = {s.output: fused}
    if not facts.used_once(total.outputs[0]):
        replace[total.outputs[0]] = fused.out(SUM)
    return Patch(replace, before=total)


def _terms(s: Site, total: ir.Node, width: int) -> tuple[ir.Value, ir.Value, ir.Value | None] | None:
    """Return two tensors of one shape, and a constant along the last axis, whose sum ``total`` is."""
    first, second = total.inputs[0], total.inputs[1]
    if not _alike(s, first, second, total):
        return None
    for x, skip in ((first, second), (second, first)):
        inner = producer_of(s, x, "Add")
        if inner is None or x is None or skip is None or not facts.used_once(x):
            continue
        for index in (1, 0):
            bias, tensor = inner.inputs[index], inner.inputs[1 - index]
            if bias is None or tensor is None or not facts.is_constant(bias):
                continue
            if facts.static_shape(bias) == (width,) and _alike(s, tensor, skip, total):
                return tensor, skip, bias
    return None if first is None or second is None else (first, second, None)


def _alike(s: Site, x: ir.Value | None, skip: ir.Value | None, total: ir.Node) -> bool:
    """Return True if two tensors have the shape of the sum."""
    dims = s.sizes.dims(total.outputs[0])
    return dims is not None and s.sizes.dims(x) == dims == s.sizes.dims(skip)
