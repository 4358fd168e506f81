"""The exporter of TensorFlow Lite files, answered for by the LiteRT interpreter in the proof."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from sardonyx.convert.tflite.importer import interpreter
from sardonyx.export.artifact import Artifact, Options, Refusal, refuse
from sardonyx.export.tflite.writer import TfliteResult, written


def refusals(model: ir.Model, options: Options) -> Iterator[Refusal]:
    """Yield the nodes and tensors that the format cannot express."""
    yield from _refusals(written(model))


def _refusals(result: TfliteResult) -> Iterator[Refusal]:
    for one in result.refused:
        subject = f"{one.operator}: " if one.operator else ""
        yield Refusal(one.node, one.operator, f"{subject}{one.rule}")


def export(model: ir.Model, options: Options) -> Artifact:
    """Return a model as a TensorFlow Lite file.

    Raises:
        UnsupportedError: The format cannot express the model; lists nodes and rules.
        ModelTooLargeError: The file exceeds 2 GiB.
    """
    result = written(model)
    refuse("tflite", list(_refusals(result)))
    names = [str(value.name) for value in model.graph.inputs if value.name not in model.graph.initializers]
    outputs = [str(value.name) for value in model.graph.outputs]
    run, reason = interpreter(result.data, names, outputs)

    def write(path: Path) -> None:
        path.write_bytes(result.data)

    return Artifact(
        write, run, reason, forms=result.operators, notes=result.notes, value=result.data, code_bits=result.code_bits
    )
