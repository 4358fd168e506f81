"""A model as a TensorFlow Lite file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.errors import OpsetConversionError, UnsupportedError
from sardonyx.export.core_function import trace_failure
from sardonyx.export.tflite import operators as _operators
from sardonyx.export.tflite.emission import Emission, Refused, Scope
from sardonyx.export.tflite.file_builder import Tensor
from sardonyx.export.tflite.fused_activations import fuse_activations
from sardonyx.export.tflite.preparation import prepared

__all__ = ["TfliteResult", "written"]

_ = _operators


@dataclass(frozen=True)
class TfliteResult:
    """A model as a file.

    Attributes:
        data: The file's bytes; empty if something is refused.
        refused: Nodes and tensors that the file cannot express.
        code_bits: 8 if activations are codes of 8 bits, else 0.
        operators: Number of operators of the file, by name.
        notes: Remarks for the report.
    """

    data: bytes
    refused: Sequence[Refused]
    code_bits: int
    operators: Mapping[str, int]
    notes: Sequence[str] = ()


def written(model: ir.Model) -> TfliteResult:
    """Return a model as a file, or everything that the format cannot express.

    Args:
        model: The model, which is not changed.
    """
    try:
        copy, calls = prepared(model)
    except OpsetConversionError as error:
        where, operator, rule, _ = trace_failure(error)
        return TfliteResult(b"", [Refused(operator or where.partition(" ")[0], where, rule)], 0, {})
    emission = Emission(calls=dict(calls), lenient=True)
    main = emission.file.subgraph("main")
    scope = Scope(emission, main)
    graph = copy.graph
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    for value in inputs:
        _add_input(scope, value)
    scope.emit(list(graph))
    results: list[Tensor] = []
    for value in graph.outputs:
        try:
            results.append(_result(scope, value, results))
        except UnsupportedError as error:
            emission.refused.append(Refused("", f"output '{value.name}'", error.problem))
    if emission.refused:
        return TfliteResult(b"", emission.refused, 0, {})
    main.outputs = [main.index_of(tensor) for tensor in results]
    names = [str(value.name) for value in inputs], [str(value.name) for value in graph.outputs]
    for tensor, name in zip(results, names[1], strict=True):
        main.rename(tensor, name)
    emission.file.signature = names
    fuse_activations(emission.file)
    quantized = any(record.get("quantization") and record["buffer"] == 0 for record in main.records)
    return TfliteResult(
        emission.file.data(), [], 8 if quantized else 0, emission.file.operators(), list(emission.notes)
    )


def _add_input(scope: Scope, value: ir.Value) -> None:
    """Add an input of the model; 16-bit floats are converted."""
    emission = scope.emission
    try:
        kind = scope.type(value)
        shape = scope.sizes(value)
    except UnsupportedError as error:
        emission.refused.append(Refused("", f"input '{value.name}'", error.problem))
        scope.values[value] = scope.computed("FLOAT32", [1] * len(value.shape or ()), name=str(value.name))
        return
    stored = "FLOAT16" if value.dtype == ir.DataType.FLOAT16 else kind
    tensor = scope.computed(stored, shape, name=str(value.name))
    scope.builder.inputs.append(scope.builder.index_of(tensor))
    scope.values[value] = scope.cast(tensor, kind)


def _result(scope: Scope, value: ir.Value, results: Sequence[Tensor]) -> Tensor:
    """Return the tensor of an output, which no other output and no input is."""
    tensor = scope.tensor(value)
    if value.dtype == ir.DataType.FLOAT16:
        return scope.op("CAST", [tensor], tensor.shape, "FLOAT16")
    if value.dtype == ir.DataType.BFLOAT16:
        raise UnsupportedError("element type bfloat16 has no builtin operators", where=str(value.name))
    is_input = tensor.index in scope.builder.inputs
    if tensor.array is not None or is_input or any(tensor is other for other in results):
        return scope.copy(tensor)
    return tensor
