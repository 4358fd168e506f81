"""Names of the tensors that a program declares to be parameters, and of those that it keeps constant.

A converter that knows both writes them into the metadata of the model; training need not guess then. Names without a
tensor, after a rewrite or a renaming, count nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import onnx_ir as ir

PARAMETERS = "sardonyx.parameters"
"""The metadata key of the parameters, a JSON list of names."""

CONSTANTS = "sardonyx.constants"
"""The metadata key of the constants, such as masks and tables of positions, a JSON list of names."""


def declare_weights(model: ir.Model, parameters: Iterable[str], constants: Iterable[str]) -> None:
    """Write the names of parameters and constants into the metadata of a model."""
    for key, names in ((PARAMETERS, parameters), (CONSTANTS, constants)):
        if listed := sorted(names):
            model.metadata_props[key] = json.dumps(listed)


def declared_weights(metadata: Mapping[str, str]) -> dict[str, bool]:
    """Return True for each declared parameter and False for each constant, by name.

    Metadata of another form declare nothing: any program may write them.
    """
    result: dict[str, bool] = {}
    for key, is_parameter in ((CONSTANTS, False), (PARAMETERS, True)):
        try:
            names = json.loads(metadata.get(key, "[]"))
        except (ValueError, RecursionError):
            names = []
        if isinstance(names, list):
            result.update((name, is_parameter) for name in names if isinstance(name, str))
    return result
