"""Models of Keras on the backend torch, captured as modules of PyTorch by the importer of PyTorch."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sardonyx.base.replaced_attributes import replaced
from sardonyx.convert.imported import Imported, Options
from sardonyx.convert.keras.recurrence import whole_recurrences
from sardonyx.convert.keras.signature import Signature
from sardonyx.convert.torch import torch_onnx, translation
from sardonyx.convert.torch.capture import Program


class KerasProgram(torch.nn.Module):  # type: ignore[misc]
    """A Keras model as a module: inputs by position, results flat, layers as parts named by their paths.

    Args:
        signature: The model with its inputs.
    """

    def __init__(self, signature: Signature) -> None:
        super().__init__()
        for path, layer in _layers(signature.model, ""):
            if isinstance(layer, torch.nn.Module):
                self.add_module(path.replace(".", "_"), layer)

        def forward(*leaves: Any) -> tuple[Any, ...]:
            return tuple(signature.call(leaves))

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, kind) for name in signature.names]
        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward


def read(signature: Signature, options: Options, exporter: str) -> Imported:
    """Return a model of the backend torch as a model.

    Raises:
        ConversionError: The importer of PyTorch refuses the program.
    """
    module = KerasProgram(signature)
    examples = tuple(_tensor(array) for array in signature.arrays)
    program = Program(module, examples, {}, None, options, open_axes=signature.open_axes)
    with whole_recurrences(), _functional_normalization():
        program.runner.outputs = list(signature.outputs)
        imported = translation.read(program) if exporter == "sardonyx" else torch_onnx.read(program)
    _rename_weights(imported, signature.model)
    return replace(imported, run=signature.run, notes=(*imported.notes, *signature.notes))


@contextlib.contextmanager
def _functional_normalization() -> Iterator[None]:
    """Replace Keras's normalization, which writes to its operands: captured programs are not rewritten for that."""
    from keras.src import backend

    convert = backend.convert_to_tensor

    def normalized(
        x: Any, mean: Any, variance: Any, axis: int, offset: Any = None, scale: Any = None, epsilon: float = 1e-3
    ) -> Any:
        x = convert(x)
        shape = [1] * x.dim()
        shape[axis] = -1
        factor = (convert(variance) + epsilon).rsqrt()
        factor = factor if scale is None else factor * convert(scale)
        result = (x - convert(mean).reshape(shape)) * factor.reshape(shape)
        return result if offset is None else result + convert(offset).reshape(shape)

    with replaced(backend.nn, "batch_normalization", normalized):
        yield


def _layers(layer: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the layers inside of a layer with their paths, outer ones first."""
    for inner in getattr(layer, "_layers", ()):
        path = f"{prefix}{inner.name}"
        yield path, inner
        yield from _layers(inner, f"{path}/")


def _tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _rename_weights(imported: Imported, model: Any) -> None:
    """Name the weights by the paths of their variables."""
    for value in list(imported.model.graph.initializers.values()):
        name = re.sub(r"^.*_torch_params\.", "", str(value.name))
        if name != value.name and name not in imported.model.graph.initializers:
            value.name = name
