"""The first layer at which a model differs from another program of the same computation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx.errors import SardonyxError
from sardonyx.model import save
from sardonyx.model.copying import copy_model
from sardonyx.rewrite import evaluate
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.verify import parts
from sardonyx.rewrite.verify.compare import difference, tolerance

Inner = Callable[[Mapping[str, Any]], Iterable[tuple[str, str, Any]]]
"""Yields inner values for feeds in the order of computation: name of the model's tensor, place, and array."""


def first_difference(model: ir.Model, inner: Inner, feeds: Mapping[str, Any], *, is_expected: bool) -> str:
    """Return the first layer of which the results differ, with the difference; empty if there is none.

    Args:
        model: The model.
        inner: The inner values of the other program.
        feeds: The inputs.
        is_expected: True if the model's results are the right ones, from which those of the program differ.
    """
    exposed = copy_model(model)
    inference.infer_shapes(exposed, strict=False)
    known = {str(output.name) for node in exposed.graph for output in node.outputs}
    outputs = {str(output.name) for output in exposed.graph.outputs}
    try:
        entries = [entry for entry in inner(feeds) if entry[0] in known]
        names = list(dict.fromkeys(name for name, _, _ in entries))
        parts.expose(exposed, [name for name in names if name not in outputs])
        with tempfile.TemporaryDirectory(prefix="sardonyx-proof-") as folder:
            path = Path(folder) / "exposed.onnx"
            save(exposed, path)
            results = evaluate.evaluate(path, feeds)
    except SardonyxError as error:
        return f"not located: {str(error)[:200]}"
    for name, where, array in entries:
        result = results.get(name, results.get(f"compared:{name}"))
        if result is None:
            continue
        expected, actual = (result, array) if is_expected else (array, result)
        deviation = difference(name, expected, actual)
        if deviation.error > tolerance(expected):
            return f"{where}: '{name}' differs by {deviation.error:.2e} {deviation.detail}".rstrip()
    return ""
