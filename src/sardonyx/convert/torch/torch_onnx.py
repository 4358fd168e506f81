"""The exporter of PyTorch, ``torch.onnx``, as another way to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import torch

from sardonyx import model as model_io
from sardonyx.convert.imported import Imported
from sardonyx.convert.torch.arrays import as_array
from sardonyx.convert.torch.capture import Program
from sardonyx.convert.torch.capture_context import quiet, unchanged_transforms
from sardonyx.errors import ConversionError


def read(program: Program) -> Imported:
    """Return the model that ``torch.onnx`` makes of a captured program.

    Raises:
        ConversionError: ``torch.onnx`` refuses the program.
    """
    captured, runner = program.captured, program.runner
    try:
        with quiet(), unchanged_transforms():
            exported: Any = torch.onnx.export(captured.exported, dynamo=True, verbose=False)
    except Exception as error:  # The exporter raises exceptions of a dozen unrelated classes.
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ConversionError(f"torch.onnx refuses the program: {lines[-1][:300] if lines else error!r}") from error
    model = model_io.load(exported.model_proto)
    _rename(model, runner.outputs)
    names = [str(value.name) for value in model.graph.inputs]
    examples: Mapping[str, Any] = {
        name: as_array(leaf)
        for name, leaf in zip(runner.names, runner.leaves, strict=True)
        if isinstance(leaf, torch.Tensor) and name in names
    }
    return Imported(
        model,
        runner,
        sizes=captured.sizes,
        examples=(examples,),
        notes=tuple(program.notes),
        first=runner.first(program),
    )


def _rename(model: ir.Model, outputs: list[str]) -> None:
    for value, name in zip(model.graph.outputs, outputs, strict=True):
        value.name = name
