"""The exporter of torch: a model's Core function as the source of an ``nn.Module``, with its weights beside."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.types import DType, TensorType
from sardonyx.errors import EvaluationError, SardonyxError
from sardonyx.export.artifact import Answers, Artifact, Feeds, Options, Refusal, refuse
from sardonyx.export.core_function import Traced, trace_failure, traced
from sardonyx.export.torch.element_types import CARRIED, SPELLINGS
from sardonyx.export.torch.file_text import file_text
from sardonyx.export.torch.functions import write
from sardonyx.export.torch.hosts import HOST_FORMS
from sardonyx.export.torch.operators import OPERATOR_FORMS
from sardonyx.export.torch.primitives import spelled_dtype
from sardonyx.export.torch.source import Module, Source, without_unread


def refusals(model: ir.Model, options: Options) -> Iterator[Refusal]:
    """Yield the nodes and values without a form in torch."""
    try:
        program = traced(model, OPERATOR_FORMS)
    except SardonyxError as error:
        where, operator, problem, remedy = trace_failure(error)
        yield Refusal(where, operator, problem, remedy)
        return
    yield from _refusals(program.function, set())


def _refusals(function: Function, seen: set[Any]) -> Iterator[Refusal]:
    for value in (*function.inputs, *function.values):
        for type_ in value.type.results if isinstance(value.type, t.TupleType) else (value.type,):
            element = type_
            while isinstance(element, (t.SequenceType, t.OptionalType)):
                element = element.element
            problem = ""
            if isinstance(element, t.MapType):
                problem = "torch has no maps."
            elif isinstance(element, TensorType) and element.dtype not in SPELLINGS:
                problem = f"torch has no tensors of {element.dtype.name.lower()}."
            if problem and (value.origin, problem) not in seen:
                seen.add((value.origin, problem))
                yield Refusal(value.origin or "a value", _operator(value), problem)
        if value.op == "host" and value.params["function"].name not in HOST_FORMS:
            yield Refusal(value.origin, _operator(value), f"torch has no form for {_operator(value)}.")
        for inner in value.params.values():
            if isinstance(inner, Function):
                yield from _refusals(inner, seen)


def _operator(value: Value) -> str:
    return str(value.params["function"].name) if value.op in ("host", "call") else ""


def export(model: ir.Model, options: Options) -> Artifact:
    """Return the model as the source of an ``nn.Module``.

    Raises:
        UnsupportedError: Nodes have no form in torch; lists them with the rules.
    """
    refuse("torch", list(refusals(model, options)))
    program = traced(model, OPERATOR_FORMS)
    parts = Module()
    text, inner_text, names = _source(program, parts, options.name)
    module = _module(text, options.name, parts)
    inputs = dict(zip(program.inputs, (value.type for value in program.function.inputs), strict=False))
    outputs = dict(zip(program.outputs, (value.type for value in program.function.results), strict=True))

    def run(feeds: Feeds) -> Answers:
        results = _called(module, inputs, feeds)
        results = results if isinstance(results, tuple) else (results,)
        return {name: _array(result, type_) for (name, type_), result in zip(outputs.items(), results, strict=True)}

    def inner(feeds: Feeds) -> Iterator[tuple[str, str, Any]]:
        shown = _module(inner_text, options.name, parts)
        local = _called(shown, inputs, feeds)
        for variable, value in names.items():
            if isinstance(local.get(variable), torch.Tensor) and isinstance(value.type, TensorType):
                yield value.origin, f"variable {variable}", _array(local[variable], value.type)

    def write_files(path: Path) -> None:
        from safetensors.torch import save_file

        path.write_text(text, encoding="utf-8")
        save_file(
            {name: tensor.contiguous() for name, tensor in _state(parts).items()}, path.with_suffix(".safetensors")
        )

    notes = []
    if _has_random(program.function):
        notes.append("random operators draw from torch's generator: equal in distribution alone")
    return Artifact(write_files, run, inner=inner, forms=dict(sorted(parts.forms.items())), notes=notes, value=module)


def _has_random(function: Function) -> bool:
    for value in function.values:
        if value.op == "random" or any(isinstance(one, Function) and _has_random(one) for one in value.params.values()):
            return True
    return False


def _source(program: Traced, parts: Module, name: str) -> tuple[str, str, dict[str, Value]]:
    """Return the text of the file, the text with all local variables as the result, and the variables' values."""
    function = program.function
    s = Source(parts)
    count = len(program.inputs)
    arguments = [s.name(one) for one in program.inputs]
    expressions = []
    for value, argument in zip(function.inputs, arguments, strict=False):
        if isinstance(value.type, TensorType) and value.type.dtype in CARRIED:
            expressions.append(s.assign(argument, f"{argument}.to({SPELLINGS[value.type.dtype]})"))
        else:
            expressions.append(argument)
    for value, (weight, tensor) in zip(function.inputs[count:], program.weights.items(), strict=True):
        assert isinstance(value.type, TensorType)
        dtype = value.type.dtype
        spelled_dtype(dtype, weight)
        trainable = weight in program.trainable and t.is_float(dtype)
        shape = [size for size in value.type.shape or () if isinstance(size, int)]
        expressions.append(parts.add_weight(weight, tensor, dtype, shape, trainable=trainable).spelling)
    results = [
        f"{text}.to({CARRIED[value.type.dtype]})"
        if isinstance(value.type, TensorType) and value.type.dtype in CARRIED
        else text
        for text, value in zip(write(s, function, expressions), function.results, strict=True)
    ]
    returned = results[0] if len(results) == 1 else f"({', '.join(results)})" if results else "()"
    s.lines = without_unread(s.lines, returned)
    text = file_text(name, parts, s.lines, arguments, returned, program)
    shown = file_text(name, parts, s.lines, arguments, "dict(locals())", program)
    variables = {text: value for value, text in s.expressions.items() if isinstance(text, str) and value.origin}
    return text, shown, variables


def _module(text: str, name: str, parts: Module) -> torch.nn.Module:
    """Execute the source that was just generated and return the module with its weights."""
    namespace = types.ModuleType(f"sardonyx_exported_{name}")
    exec(compile(text, f"<{name} generated by Sardonyx>", "exec"), namespace.__dict__)
    module: torch.nn.Module = getattr(namespace, name)()
    module.load_state_dict(_state(parts))
    return module.eval()


def _state(parts: Module) -> dict[str, torch.Tensor]:
    return {path: tensor_of(parts.arrays[path], weight.dtype) for path, weight in parts.weights.items()}


_BITS = {t.BFLOAT16: np.int16, **dict.fromkeys(t.FLOAT8, np.uint8)}
"""Integers of the width of floats that numpy and torch do not exchange."""


def tensor_of(source: Any, dtype: DType) -> torch.Tensor:
    """Return an array, or a tensor of a model, as a tensor of torch that computes with its element type."""
    array = source if isinstance(source, np.ndarray) else source.numpy()
    target = getattr(torch, SPELLINGS[dtype].removeprefix("torch."))
    bits = _BITS.get(dtype)
    if bits is not None:
        return torch.from_numpy(np.ascontiguousarray(array).view(bits).copy()).reshape(array.shape).view(target)
    if dtype == t.UINT64:
        array = array.astype(np.int64)
    elif t.is_integer(dtype):
        array = array.astype(np.dtype(SPELLINGS[dtype].removeprefix("torch.")))
    return torch.from_numpy(np.array(array, order="C", copy=True)).to(target)


def _called(module: torch.nn.Module, inputs: Mapping[str, Any], feeds: Feeds) -> Any:
    arguments = []
    for name, type_ in inputs.items():
        if name not in feeds:
            raise EvaluationError("the input has no array.", where=name)
        arguments.append(_tensors(feeds[name], type_))
    try:
        with torch.no_grad():
            return module(*arguments)
    except Exception as error:  # torch raises a dozen unrelated classes
        raise EvaluationError(f"torch could not run the module: {type(error).__name__}: {error}") from error


def _tensors(feed: Any, type_: Any) -> Any:
    if isinstance(type_, t.SequenceType):
        return [_tensors(item, type_.element) for item in feed]
    if isinstance(type_, t.OptionalType):
        return None if feed is None else _tensors(feed, type_.element)
    array = np.asarray(feed)
    if type_.dtype in CARRIED:
        return torch.from_numpy(array.copy())
    return tensor_of(array, type_.dtype)


def _array(result: Any, type_: Any) -> Any:
    """Return a result of torch as numpy's array of the model's type."""
    if isinstance(type_, t.SequenceType):
        return [_array(item, type_.element) for item in result]
    if isinstance(type_, t.OptionalType):
        return None if result is None else _array(result, type_.element)
    bits = _BITS.get(type_.dtype)
    tensor = result.detach().contiguous()
    if bits is not None:
        held = getattr(torch, np.dtype(bits).name)
        return tensor.view(held).numpy().view(t.numpy_dtype(type_.dtype)).reshape(tuple(tensor.shape))
    if type_.dtype in CARRIED:
        return tensor.to(getattr(torch, CARRIED[type_.dtype].removeprefix("torch."))).numpy()
    array = tensor.numpy()
    narrow = t.is_integer(type_.dtype) and array.dtype != t.numpy_dtype(type_.dtype)
    return array.astype(t.numpy_dtype(type_.dtype)) if narrow else array


__all__ = ["export", "refusals", "tensor_of"]
