"""The importer of TensorFlow Lite files, and the source's own answers from the LiteRT interpreter."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.drawing import caller_examples, sizes_of_inputs
from sardonyx.convert.imported import Answers, Feeds, Imported, Options, Way
from sardonyx.convert.tflite import Translation, translate
from sardonyx.errors import EvaluationError, OptionError

INTERPRETERS = ("ai_edge_litert.interpreter", "tflite_runtime.interpreter")
"""Modules with a class ``Interpreter``, the preferred one first."""


def ways(source: Any, options: Options) -> Sequence[Way]:
    """Return the ways to read a TensorFlow Lite file.

    Args:
        source: Path of the file, or its bytes.
        options: See :class:`Options`.

    Raises:
        OptionError: The source is neither a path nor bytes.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        data, where = bytes(source), "model.tflite"
    elif isinstance(source, (str, os.PathLike)):
        data, where = Path(source).read_bytes(), os.fspath(source)
    else:
        raise OptionError(f"expected a path or bytes, got {type(source).__name__}", where="source")
    return (Way("sardonyx", lambda: _read(data, where, options)),)


def _read(data: bytes, where: str, options: Options) -> Imported:
    translation = translate(data, where)
    model = translation.model()
    if options.dynamic is False:
        _fix_sizes(model, translation.file.subgraphs[0].inputs, translation.file.subgraphs[0].tensors)
    names = [str(value.name) for value in model.graph.inputs]
    outputs = [str(value.name) for value in model.graph.outputs]
    run: Callable[[Feeds], Answers] | None = None
    foreign = translation.operators_of_tensorflow()
    reason = f"{', '.join(foreign)}: no installed interpreter runs operators of TensorFlow"
    if not foreign:
        run, reason = interpreter(data, names, outputs)
    examples = caller_examples(model, options)
    return Imported(
        model,
        run,
        reason,
        sizes=sizes_of_inputs(model, examples),
        examples=examples,
        calls=tuple(translation.results),
        notes=tuple(translation.notes),
        code_bits=_code_bits(translation),
        code_steps=_code_steps(translation, outputs),
    )


def _code_bits(translation: Translation) -> int:
    """Return 16 or 8 if activations are rounded to integers of this width, else 0."""
    tensors = [t for subgraph in translation.file.subgraphs for t in subgraph.tensors if t.quantization]
    if any(t.type == "INT16" and t.data is None for t in tensors):
        return 16
    return 8 if any(t.type in ("INT8", "UINT8", "INT4") for t in tensors) else 0


def _code_steps(translation: Translation, names: Sequence[str]) -> dict[str, float]:
    """Return the value of one code of each output that is made of codes, or of one that is stored as codes."""
    main = translation.file.subgraphs[0]
    made_of = {o: op.inputs[0] for op in main.operators if op.name == "DEQUANTIZE" for o in op.outputs}
    steps: dict[str, float] = {}
    for name, index in zip(names, main.outputs, strict=True):
        source = main.tensors[made_of.get(index, index)].quantization
        if source and len(source.scale) == 1:
            steps[name] = float(source.scale[0]) if index in made_of else 1.0
    return steps


def _fix_sizes(model: ir.Model, inputs: Sequence[int], tensors: Sequence[Any]) -> None:
    for value, index in zip(model.graph.inputs, inputs, strict=True):
        value.shape = ir.Shape(tensors[index].shape)


def interpreter(
    data: bytes, names: Sequence[str], outputs: Sequence[str]
) -> tuple[Callable[[Feeds], Answers] | None, str]:
    """Return a function that answers feeds with the installed interpreter, or None and the reason.

    Args:
        data: The file's bytes.
        names: Names of the inputs, in the file's order.
        outputs: Names of the outputs, in the file's order.
    """
    module = next((name for name in INTERPRETERS if importlib.util.find_spec(name.partition(".")[0])), None)
    if module is None:
        return None, "no TensorFlow Lite interpreter is installed: pip install sardonyx[tflite]"
    interpreters = importlib.import_module(module)

    def run(feeds: Feeds) -> Answers:
        resolver = interpreters.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        try:
            interpreter = interpreters.Interpreter(model_content=data, experimental_op_resolver_type=resolver)
            details = interpreter.get_input_details()
            arrays = [_of_pairs(feeds[name], detail["dtype"]) for name, detail in zip(names, details, strict=True)]
            for array, detail in zip(arrays, details, strict=True):
                if tuple(detail["shape"]) != array.shape:
                    interpreter.resize_tensor_input(detail["index"], array.shape)
            interpreter.allocate_tensors()
            for array, detail in zip(arrays, details, strict=True):
                interpreter.set_tensor(detail["index"], array)
            interpreter.invoke()
            return {
                name: _answer(interpreter.get_tensor(detail["index"]))
                for name, detail in zip(outputs, interpreter.get_output_details(), strict=True)
            }
        except (RuntimeError, ValueError) as error:
            raise EvaluationError(f"the interpreter refuses: {error}", where="model.tflite") from error

    return run, ""


def _answer(array: Any) -> Any:
    """Return complex numbers as pairs along a last axis, bytes as texts, as the model has them; others as they are."""
    if array.dtype.kind in "SO":
        texts = [one.decode("utf-8", "replace") if isinstance(one, bytes) else one for one in array.reshape(-1)]
        return np.array([*texts, None], object)[:-1].reshape(array.shape)
    return np.stack([array.real, array.imag], -1) if np.iscomplexobj(array) else array


def _of_pairs(array: Any, dtype: Any) -> Any:
    """Return pairs along a last axis as complex numbers, if the file has these."""
    array = np.asarray(array)
    if np.dtype(dtype).kind != "c":
        return array
    return (array[..., 0] + 1j * array[..., 1]).astype(dtype)
