"""The importer of JAX functions and Flax modules, with the sizes open that can be traced open."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.graph_builder import Names
from sardonyx.convert.imported import NOT_NEEDED, Answers, Call, Feeds, Imported, Options, Size, Way
from sardonyx.convert.jax import (
    complex_numbers,
    control,
    factorizations,
    indices,
    linear_algebra,
    primitives,
    random_numbers,
    special,
    windows,
)
from sardonyx.convert.jax.translation import Context, is_key, is_pair, part_count, part_type
from sardonyx.errors import ConversionError, EvaluationError, OptionError, UnsupportedError

FAMILIES = (
    control,
    primitives,
    windows,
    indices,
    linear_algebra,
    factorizations,
    special,
    complex_numbers,
    random_numbers,
)
"""Modules that register translations."""

OPSET = 21
_MOST_TRIALS = 12
"""Number of traces in the search for open sizes."""


def ways(source: Any, options: Options) -> Sequence[Way]:
    """Return the way to read a function.

    Args:
        source: A function of arrays, or a Flax module.
        options: See :class:`Options`; examples are necessary.

    Raises:
        OptionError: The source cannot be called, or examples are missing.
    """
    if not callable(source):
        raise OptionError(f"expected a function, got {type(source).__name__}", where="source")
    if not len(options.examples):
        raise OptionError("a function of JAX needs example inputs", where="example_inputs")
    function = _functional(source)
    seen: list[frozenset[str]] = []
    first = Way("sardonyx", partial(_read_with, function, options, _MOST_TRIALS, seen))
    if options.dynamic not in ("auto", True):
        return [first]
    return [first, *(Way("sardonyx", partial(_read_another, function, options, count, seen)) for count in (1, 0))]


def _read_with(source: Any, options: Options, trials: int, seen: list[frozenset[str]]) -> Imported:
    imported = _read(source, options, trials)
    seen.append(frozenset(imported.sizes))
    return imported


def _read_another(source: Any, options: Options, trials: int, seen: list[frozenset[str]]) -> Imported:
    """Translate with at most `trials` groups of open sizes.

    A function may branch on a size, and jax records the branch that it takes for unknown sizes: with fewer open
    sizes, the branches are those of the examples.

    Raises:
        ConversionError: Another way had the same open sizes, or the first way was refused.
    """
    needless = ConversionError(f"{NOT_NEEDED}no other choice of open sizes leads to another model")
    if not seen or not seen[-1]:
        raise needless
    imported = _read(source, options, trials)
    sizes = frozenset(imported.sizes)
    if sizes in seen:
        raise needless
    seen.append(sizes)
    note = "sizes are fixed with which the model differs from the function, which branches on sizes"
    return replace(imported, notes=(*imported.notes, note))


def _functional(source: Any) -> Any:
    """Return a function without side effects: of a module of Flax's nnx, a copy is made for every call."""
    if not any(base.__module__.startswith("flax.nnx") for base in type(source).__mro__):
        return source
    nnx = importlib.import_module("flax.nnx")
    definition, state = nnx.split(source)

    def call(*arguments: Any) -> Any:
        return nnx.merge(definition, state, copy=True)(*arguments)

    call.__signature__ = inspect.signature(source)  # type: ignore[attr-defined]
    call.__name__ = type(source).__name__
    return call


def _arguments(source: Any, options: Options) -> tuple[list[Any], list[str]]:
    """Return the examples as positional arguments, and the names of the parameters."""
    try:
        parameters = [name for name in inspect.signature(source).parameters if name != "self"]
    except (TypeError, ValueError):
        parameters = []
    if isinstance(options.examples, Mapping):
        unknown = [name for name in options.examples if parameters and name not in parameters]
        if unknown:
            raise OptionError(f"the function has no parameters {unknown}", where="example_inputs")
        names = [name for name in parameters if name in options.examples] or list(options.examples)
        return [options.examples[name] for name in names], names
    arguments = list(options.examples)
    return arguments, [parameters[i] if i < len(parameters) else f"x{i}" for i in range(len(arguments))]


def _read(source: Any, options: Options, most: int) -> Imported:
    """Translate with as many open sizes as the translation admits: all, those of first axes, or none."""
    import jax

    name = "InconclusiveDimensionOperation"
    refusals = (UnsupportedError, getattr(jax.errors, name, None) or getattr(jax.core, name))
    try:
        return _translated(source, options, most)
    except refusals as error:
        if options.dynamic not in ("auto", True):
            raise
        first = error
    for trials, what in ((1, "sizes other than those of first axes are"), (0, "all sizes are")):
        if trials >= most:
            continue
        try:
            imported = _translated(source, options, trials)
        except refusals:
            continue
        problem = first.problem if isinstance(first, UnsupportedError) else str(first).partition("\n")[0]
        return replace(imported, notes=(*imported.notes, f"{what} fixed: {problem}"))
    if isinstance(first, UnsupportedError):
        raise first
    raise UnsupportedError(str(first).partition("\n")[0], where="jax") from first


def _translated(source: Any, options: Options, trials: int) -> Imported:
    import jax

    arguments, parameters = _arguments(source, options)
    leaves, structure = jax.tree.flatten(arguments)
    try:
        leaves = [leaf if is_key(leaf) else jax.numpy.asarray(leaf) for leaf in leaves]
        arrays = [_stored(jax, leaf) for leaf in leaves]
    except (TypeError, ValueError) as error:
        raise OptionError(f"expected arrays of numbers: {error}", where="example_inputs") from error
    names = _leaf_names(arguments, parameters)

    def flat(*values: Any) -> list[Any]:
        results: list[Any] = jax.tree.leaves(source(*jax.tree.unflatten(structure, values)))
        return results

    shapes, closed = _traced(jax, flat, leaves, names, options, trials)
    calls: list[Call] = []
    context = Context(Names(), {}, calls)
    inputs = []
    for name, array, shape in zip(names, arrays, shapes, strict=True):
        sizes = [size if isinstance(size, int) else str(size) for size in shape]
        sizes += list(array.shape[len(shape) :])
        kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        inputs.append(ir.Value(name=context.names.fresh(name), type=kind, shape=ir.Shape(sizes)))
        for axis, size in enumerate(shape):
            if not isinstance(size, int) and str(size) not in context.symbols:
                length = context.node("Shape", inputs[-1], start=axis, end=axis + 1)
                context.symbols[str(size)] = context.node("Squeeze", length, context.ints([0]))
    results = context.call(closed.jaxpr, closed.consts, inputs)
    outputs = []
    for i, (value, variable) in enumerate(zip(results, closed.jaxpr.outvars, strict=True)):
        output = context.node("Identity", value)
        output.name = context.names.fresh(f"output_{i}" if len(results) > 1 else "output")
        output.type = ir.TensorType(ir.DataType.from_numpy(part_type(variable)))
        result = [n if isinstance(n, int) else _size_name(n) for n in variable.aval.shape]
        output.shape = ir.Shape([*result, part_count(variable)] if is_pair(variable) else result)
        outputs.append(output)
    graph = context.graph(inputs, outputs, getattr(source, "__name__", type(source).__name__))
    graph.opset_imports[""] = max(OPSET, *context.opsets, 0)
    model = ir.Model(graph, ir_version=13 if context.opsets else 10, producer_name="sardonyx")
    example = dict(zip(names, arrays, strict=True))
    opened = {
        str(size): Size(array.shape[axis])
        for array, shape in zip(arrays, shapes, strict=True)
        for axis, size in enumerate(shape)
        if not isinstance(size, int)
    }
    run = _runner(jax, flat, dict(zip(names, leaves, strict=True)), [str(output.name) for output in outputs])
    notes = []
    if any(is_pair(variable) for variable in (*closed.jaxpr.invars, *closed.jaxpr.outvars)):
        notes.append("complex numbers and keys among inputs and outputs are pairs on a last axis")
    return Imported(model, run, sizes=opened, examples=(example,), calls=calls, notes=notes)


def _stored(jax: Any, leaf: Any) -> Any:
    """Return an array as the model has it: complex numbers and keys are pairs on a last axis."""
    array = np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
    return np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array


def _restored(jax: Any, array: Any, leaf: Any) -> Any:
    """Return an array of the model as the function has it, like `leaf`."""
    if is_key(leaf):
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=jax.random.key_impl(leaf))
    if leaf.dtype.kind == "c":
        return jax.numpy.asarray(array[..., 0] + array.dtype.type(1) * 1j * array[..., 1]).astype(leaf.dtype)
    return jax.numpy.asarray(array)


def _size_name(size: Any) -> str | None:
    text = str(size)
    return text if text.isidentifier() else None


def _leaf_names(arguments: Sequence[Any], parameters: Sequence[str]) -> list[str]:
    import jax

    names = []
    for argument, parameter in zip(arguments, parameters, strict=True):
        for path, _ in jax.tree_util.tree_leaves_with_path(argument):
            suffix = jax.tree_util.keystr(path).strip("[]'.").replace("']['", ".").replace("][", ".")
            names.append(f"{parameter}.{suffix}" if suffix else parameter)
    return names


def _traced(
    jax: Any,
    flat: Callable[..., Any],
    arrays: Sequence[Any],
    names: Sequence[str],
    options: Options,
    trials: int,
) -> tuple[list[tuple[Any, ...]], Any]:
    """Return the input sizes, open where the function can be traced so, and the jaxpr."""
    fixed = [array.shape for array in arrays]
    if options.dynamic is False:
        return fixed, _jaxpr(jax, flat, arrays, fixed)
    if isinstance(options.dynamic, Mapping):
        named_sizes = {
            (i, axis): size for i, name in enumerate(names) for axis, size in options.dynamic.get(name, {}).items()
        }
        shapes = _symbolic(jax, fixed, named_sizes)
        return shapes, _jaxpr(jax, flat, arrays, shapes)
    opened: dict[tuple[int, int], str] = {}
    best, closed = list(fixed), _jaxpr(jax, flat, arrays, fixed)
    for group in _candidates(fixed, names)[:trials]:
        trial = {**opened, **group}
        try:
            shapes = _symbolic(jax, fixed, trial)
            closed = _jaxpr(jax, flat, arrays, shapes)
        except ConversionError:
            continue
        opened, best = trial, shapes
    return best, closed


def _candidates(shapes: Sequence[tuple[int, ...]], names: Sequence[str]) -> list[dict[tuple[int, int], str]]:
    """Return groups of axes to open together: the first axes of equal size, then every other axis."""
    groups: list[dict[tuple[int, int], str]] = []
    first = [i for i, shape in enumerate(shapes) if shape]
    sizes = {shapes[i][0] for i in first}
    if len(sizes) == 1:
        groups.append({(i, 0): "batch" for i in first})
    elif first:
        groups.append({(first[0], 0): "batch"})
    for i, shape in enumerate(shapes):
        label = "".join(c if c.isalnum() else "_" for c in names[i])
        groups += [{(i, axis): f"{label}_{axis}"} for axis in range(1, len(shape)) if shape[axis] > 1]
    return groups


def _symbolic(
    jax: Any, shapes: Sequence[tuple[int, ...]], opened: Mapping[tuple[int, int], str]
) -> list[tuple[Any, ...]]:
    scope = jax.export.SymbolicScope()
    result = []
    for i, shape in enumerate(shapes):
        text = ", ".join(opened.get((i, axis), str(size)) for axis, size in enumerate(shape))
        result.append(
            tuple(jax.export.symbolic_shape(f"({text},)" if len(shape) == 1 else f"({text})", scope=scope))
            if shape
            else ()
        )
    return result


def _jaxpr(jax: Any, flat: Callable[..., Any], arrays: Sequence[Any], shapes: Sequence[tuple[Any, ...]]) -> Any:
    specifications = [jax.ShapeDtypeStruct(shape, array.dtype) for array, shape in zip(arrays, shapes, strict=True)]
    try:
        closed = jax.make_jaxpr(flat)(*specifications)
    except Exception as error:
        raise ConversionError(
            f"jax cannot trace the function: {type(error).__name__}: {str(error)[:300]}", where="jax"
        ) from error
    needed, _ = importlib.import_module("jax.interpreters.partial_eval").dce_jaxpr(
        closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=[True] * len(closed.jaxpr.invars)
    )
    return closed.replace(jaxpr=needed)


def _runner(
    jax: Any, flat: Callable[..., Any], leaves: Mapping[str, Any], outputs: Sequence[str]
) -> Callable[[Feeds], Answers]:
    def run(feeds: Feeds) -> Answers:
        try:
            results = flat(*(_restored(jax, feeds[name], leaf) for name, leaf in leaves.items()))
        except Exception as error:
            raise EvaluationError(f"jax refuses: {str(error)[:300]}", where="jax") from error
        return {name: _stored(jax, result) for name, result in zip(outputs, results, strict=True)}

    return run
