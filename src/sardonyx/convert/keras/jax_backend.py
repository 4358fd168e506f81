"""Models of Keras on the backend JAX, captured as functions by the importer of JAX."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sardonyx.convert.imported import Imported, Options
from sardonyx.convert.jax import importer
from sardonyx.convert.keras.signature import Signature


def read(signature: Signature, options: Options) -> Imported:
    """Return a model of the backend JAX as a model.

    Raises:
        ConversionError: A primitive has no translation.
    """
    examples = dict(zip(signature.names, signature.arrays, strict=True))
    dynamic: Any = options.dynamic
    if signature.open_axes is not None and dynamic in ("auto", True):
        dynamic = _declared(signature.names, signature.open_axes)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in signature.names]

    def positional(*inputs: Any) -> Any:
        return signature.call(inputs)

    positional.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    positional.__name__ = str(getattr(signature.model, "name", "model"))
    way, *_ = importer.ways(positional, replace(options, examples=examples, dynamic=dynamic, exporter="auto"))
    imported = way.read()
    for value, name in zip(imported.model.graph.outputs, signature.outputs, strict=True):
        value.name = name
    return replace(imported, run=signature.run, notes=(*imported.notes, *signature.notes))


def _declared(names: list[str], open_axes: list[tuple[int, ...]]) -> Mapping[str, Mapping[int, str]]:
    return {
        name: {axis: "batch" if axis == 0 else f"{name}_{axis}" for axis in axes}
        for name, axes in zip(names, open_axes, strict=True)
        if axes
    }
