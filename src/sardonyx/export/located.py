"""The first wrong layer of an artifact without inner values: artifacts of the model's parts are run in its place."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.errors import EvaluationError, SardonyxError
from sardonyx.export.artifact import Feeds, Options
from sardonyx.rewrite import evaluate
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.surgery.extraction import extract
from sardonyx.rewrite.verify.compare import difference, tolerance
from sardonyx.rewrite.verify.inputs import required_inputs

MOST_PARTS = 16
"""Parts that are exported and run; each one that the exporter accepts halves the layers."""


def first_wrong_layer(model: ir.Model, exporter: Any, options: Options, feeds: Feeds) -> str:
    """Return the first layer whose result an artifact that ends there has wrong, or does not run to; in words.

    Args:
        model: The model that was exported.
        exporter: The exporter, a module with ``export``.
        options: The options of the export.
        feeds: Inputs at which the artifact differs.

    A part that the exporter refuses says nothing, and its layer is left out of the search.
    """
    values = [node.outputs[0] for node in model.graph if node.op_type != "Constant" and node.outputs[0].name]
    agree, differ, text = -1, len(values) - 1, ""
    for _ in range(MOST_PARTS):
        raise_if_cancelled()
        if differ - agree <= 1:
            break
        middle = (agree + differ) // 2
        try:
            fault = _fault(model, str(values[middle].name), exporter, options, feeds)
        except SardonyxError:
            del values[middle]
            differ -= 1
            continue
        if fault:
            differ, text = middle, fault
        else:
            agree = middle
    if not text:
        return ""
    node = values[differ].producer()
    assert node is not None
    label = f"{node_label(node)} ({node.op_type})" if node.name else node_label(node)
    return f"{label}: '{values[differ].name}' {text}"


def _fault(model: ir.Model, name: str, exporter: Any, options: Options, feeds: Feeds) -> str:
    """Return the difference of a part's artifact from the part in words; empty if they agree.

    Raises:
        SardonyxError: The part is refused, or does not run itself.
    """
    part = extract(model, [name])
    artifact = exporter.export(part, options)
    inputs = {str(value.name): feeds[str(value.name)] for value in required_inputs(part)}
    with tempfile.TemporaryDirectory(prefix="sardonyx-part-") as folder:
        path = Path(folder) / "part.onnx"
        model_io.save(part, path)
        expected = evaluate.runner(path).run(inputs)[name]
    try:
        actual = artifact.run(inputs)[name]
    except EvaluationError as error:
        return f"has no result: {error.problem[-200:]}"
    deviation = difference(name, expected, actual)
    if deviation.error <= tolerance(expected):
        return ""
    return f"differs by {deviation.error:.2e} {deviation.detail}".rstrip()
