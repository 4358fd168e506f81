"""The exporter of StableHLO: a model's Core function as the text of an MLIR module, with the weights inside."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import SardonyxError, UnsupportedError
from sardonyx.export.artifact import Artifact, Options, Refusal, refuse
from sardonyx.export.core_function import Traced, trace_failure, traced
from sardonyx.export.stablehlo.functions import write
from sardonyx.export.stablehlo.text_writer import Operand, TextWriter, type_text

MOST_BYTES = 1 << 30
"""Bytes of weights above which no text is written: each byte takes two characters."""


def refusals(model: ir.Model, options: Options) -> Iterator[Refusal]:
    """Yield the first node or value without a form in StableHLO."""
    try:
        program = traced(model)
        _text(program, options.name)
    except SardonyxError as error:
        where, operator, problem, remedy = trace_failure(error)
        yield Refusal(where, operator, problem, remedy)


def export(model: ir.Model, options: Options) -> Artifact:
    """Return the model as the text of an MLIR module.

    Raises:
        UnsupportedError: A node has no form in StableHLO; names the node and the rule.
    """
    refuse("stablehlo", list(refusals(model, options)))
    program = traced(model)
    text, forms = _text(program, options.name)

    def write_file(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    run, reason = None, "jax is not installed; the text was not parsed (pip install sardonyx[jax])"
    if importlib.util.find_spec("jax") is not None:
        from sardonyx.export.stablehlo.xla import Runner

        run, reason = Runner(text, options.name, _tensor_types(program.function.inputs), program).run, ""
    notes = ["random operators draw from the compiler's generator"] if "random" in forms else []
    return Artifact(write_file, run, reason, forms=forms, notes=notes, value=text)


def _tensor_types(values: Sequence[Value]) -> list[TensorType]:
    types = []
    for value in values:
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            raise UnsupportedError(f"StableHLO has no values of type {value.type}.", where=value.origin)
        types.append(value.type)
    return types


def _text(program: Traced, name: str) -> tuple[str, dict[str, int]]:
    """Return the module's text, and the number of each primitive."""
    function = program.function
    size = sum(tensor.nbytes for tensor in program.weights.values())
    if size > MOST_BYTES:
        raise UnsupportedError(f"the weights have {size} bytes, and a text holds at most {MOST_BYTES}.")
    w = TextWriter()
    count = len(program.inputs)
    arguments = []
    for name_, type_ in zip(program.inputs, _tensor_types(function.inputs[:count]), strict=True):
        arguments.append(Operand(w.name(name_), type_.dtype, type_.shape or ()))
    weights = [
        w.constant(np.asarray(tensor.numpy()), type_.dtype, weight)
        for (weight, tensor), type_ in zip(program.weights.items(), _tensor_types(function.inputs[count:]), strict=True)
    ]
    results = write(w, function, [*arguments, *weights])
    types = [type_text(type_.dtype, type_.shape or ()) for type_ in _tensor_types(function.results)]
    heads = ", ".join(f"{one.name}: {one.type}" for one in arguments)
    lines = [
        f"module @{name} {{",
        f"  func.func public @main({heads}) -> ({', '.join(types)}) {{",
        *w.lines,
        f"    return {', '.join(one.name for one in results)} : {', '.join(types)}",
        "  }",
        "}",
        "",
    ]
    forms: dict[str, int] = {}
    for value in function.values:
        if value.op not in ("input", "constant", "get"):
            forms[value.op] = forms.get(value.op, 0) + 1
    return "\n".join(lines), dict(sorted(forms.items()))
