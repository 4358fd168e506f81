"""The importer of old ONNX files: weights become constants, operators those of a present set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.convert.drawing import caller_examples, sizes_of_inputs
from sardonyx.convert.imported import Answers, Call, Feeds, Imported, Options, Way
from sardonyx.errors import OptionError
from sardonyx.model.copying import copy_model
from sardonyx.rewrite import evaluate
from sardonyx.rewrite.opset import convert_opset

OPSET, IR_VERSION = 21, 10
"""Versions to write unless the caller names an operator set."""


def ways(source: Any, options: Options) -> Sequence[Way]:
    """Return the way to lift an ONNX file.

    Args:
        source: The path of a file.
        options: See :class:`Options`.

    Raises:
        OptionError: The source is not a path.
        ModelFileError: The file is not an ONNX model.
    """
    if not isinstance(source, (str, os.PathLike)):
        raise OptionError(f"expected a path, got {type(source).__name__}", where="source")
    original = model_io.load(source)
    return (Way("sardonyx", lambda: _read(original, Path(source), options)),)


def _read(original: ir.Model, path: Path, options: Options) -> Imported:
    model = copy_model(original)
    weights = [value for value in model.graph.inputs if value.name in model.graph.initializers]
    for value in weights:
        model.graph.inputs.remove(value)
    model = convert_opset(model, options.opset or OPSET, ir_version=IR_VERSION)
    runner = evaluate.runner(path)

    def run(feeds: Feeds) -> Answers:
        return runner.run(feeds)

    examples = caller_examples(model, options)
    notes = [f"{len(weights)} weights are constants now; before, callers could feed them"] if weights else []
    calls = tuple(Call(node.op_type, "converted", str(node.name or "")) for node in original.graph)
    sizes = sizes_of_inputs(model, examples)
    return Imported(model, run, sizes=sizes, examples=examples, calls=calls, notes=notes)
