"""The preparation of a model for quantization: optimized, in float32, in the operator set that the types need."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from sardonyx.compress.quantization.insertion import (
    write_bounds,
)
from sardonyx.compress.quantization.plain_forms import write_plain_forms
from sardonyx.compress.quantization.result import Mode
from sardonyx.compress.quantization.scheme import QDQ_OPSET, Scheme
from sardonyx.compress.quantization.single_precision import in_single_precision, weights_of_other_floats
from sardonyx.compress.quantization.targets import (
    QuantizationTarget,
)
from sardonyx.errors import OptionError
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.opset import convert_opset
from sardonyx.rewrite.optimize import optimize


def inlined(source: ir.Model) -> ir.Model:
    """Return the model without model functions."""
    return optimize(source, verify=False, passes=["inline_functions"]).model if source.functions else source


def prepare_layers(source: ir.Model) -> ir.Model:
    """Return a copy of the model, optimized, whose layers with weights change one by one."""
    return copy_model(optimize(inlined(source), verify=False).model)


def prepare(
    source: ir.Model, scheme: Scheme, mode: Mode, target: QuantizationTarget, opset: int | None, notes: list[str],
    *, optimized: bool,
) -> ir.Model:  # fmt: skip
    """Return the model optimized, with inferred shapes, in the operator set that the scheme needs."""
    if optimized:
        source = inlined(source)
        others = weights_of_other_floats(source)
        if others:
            source = in_single_precision(source)
            notes.append(f"Weights of {' and '.join(others)}: what is not quantized is computed in float32.")
        prepared = optimize(source, verify=False).model
    else:
        prepared = copy_model(source)
    needed = max(scheme.opset, scheme.activation_opset if mode == "static" else 0)
    if target.vendor and mode == "weights" and scheme.granularity == "block":
        needed = max(needed, QDQ_OPSET)
    if opset is not None and opset < needed:
        raise OptionError(f"the types need operator set {needed}, got {opset}.", where="opset")
    version = max(needed, opset_of(prepared)) if opset is None else opset
    # A model without nodes of the standard domain has no weights to quantize.
    if version != opset_of(prepared) and (opset is not None or "" in prepared.opset_imports):
        if opset is None:
            notes.append(f"The operator set was raised from {opset_of(prepared)} to {needed}, which the types need.")
        prepared = convert_opset(prepared, version)
    infer_shapes(prepared)
    if optimized:
        written = write_plain_forms(prepared)
        if written:
            notes += written
            infer_shapes(prepared)
    if mode == "static" and scheme.activation_type.is_float:
        write_bounds(prepared)
    return prepared


def weight_bytes(model: ir.Model) -> int:
    """Return the bytes of all initializers."""
    tensors: list[Any] = [value.const_value for value in model.graph.initializers.values()]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def weight_elements(model: ir.Model) -> int:
    """Return the number of elements of all initializers."""
    tensors: list[Any] = [value.const_value for value in model.graph.initializers.values()]
    return sum(facts.count(tensor) for tensor in tensors if tensor is not None)


def opset_of(model: ir.Model) -> int:
    """Return the operator set of a model."""
    return model.opset_imports.get("", 0)
