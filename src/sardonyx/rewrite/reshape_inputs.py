"""New shapes of graph inputs, fixed or open, with repair of the constants baked from the old ones.

The changed sizes become symbols, and the model is walked with these symbols: a constant equal to the old size in a
context with the symbol is replaced (``baked``). The result is run: at the old sizes the outputs must equal those of the
original, and at other sizes the model must run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.errors import ShapeError
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.analysis.inference import InputShapes
from sardonyx.rewrite.baked.repair import repair_baked_sizes
from sardonyx.rewrite.baked.trial import compare_with, compare_with_samples
from sardonyx.rewrite.pipeline import open_negative_sizes, select, transform
from sardonyx.rewrite.rewrite_context import Settings
from sardonyx.rewrite.surgery.interface import annotated, keep_annotations, shown

PLAINER = (
    "inline_functions",
    "eliminate_unused_function",
    "extract_constant_to_initializer",
    "fold_constants",
    "eliminate_deadend",
    "eliminate_unused_initializer",
)
"""Passes that inline function calls and fold constant expressions."""

IMAGE_AXES = {2: "height", 3: "width"}
"""Names for the opened axes of an input of rank 4; axis 0 is ``batch``."""


_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?")


def set_input_shapes(model: ir.Model, shapes: InputShapes) -> None:
    """Give graph inputs new shapes, in place, and repair constants baked from the old ones.

    Args:
        model: The Model; unchanged if an error is raised.
        shapes: Input → sizes: a number, a name, or None for an open size without a name.

    Raises:
        ShapeError: An input is unknown, has another rank, or something baked from its old size cannot be
            repaired; names the node.
    """
    _replace(model, _reshaped(model, shapes))


def set_batch(model: ir.Model, size: int | str) -> None:
    """Give all inputs another first size, in place, and repair constants baked from the old one.

    If the old size was 1, a batch must give the same answers as its samples one by one.

    Args:
        model: The Model; unchanged if an error is raised.
        size: A number, or a name for an open size.

    Raises:
        ShapeError: The inputs have no common first size, something baked from this size cannot be repaired, or the
            samples of a batch are not independent of each other; names the node or the output.
    """
    entries = [value for value in _data_inputs(model) if value.shape is not None and len(value.shape)]
    firsts = {str(value.name): value.shape[0] for value in entries if value.shape is not None}
    sizes = {first for first in firsts.values() if isinstance(first, int)}
    if not firsts or len(sizes) > 1 or (sizes and any(not isinstance(first, int) for first in firsts.values())):
        actual = shown(f"{name}: {first}" for name, first in firsts.items())
        raise ShapeError(
            f"expected the same first size of all inputs, got {actual}", remedy="Give the shape of each input."
        )
    shapes = {str(value.name): [size, *_sizes(value)[1:]] for value in entries}
    changed = _reshaped(model, shapes)
    if sizes == {1}:
        for output, axis in compare_with_samples(model, changed).items():
            _name_axis(changed, output, axis, size)
    _replace(model, changed)


def make_dynamic(
    model: ir.Model, names: Sequence[str] | Mapping[str, Sequence[int] | None] | None = None
) -> dict[str, list[int | str | None]]:
    """Open every size of some inputs that the model leaves free, in place.

    A size that cannot be opened (e.g. the channels of a convolution) stays fixed, unless its axis was named.

    Args:
        model: The Model; unchanged if an error is raised.
        names: The inputs; all when None. A mapping names axes too: input → its axes to open, or None for all.

    Returns:
        The new shape of each of these inputs.

    Raises:
        ShapeError: An input or axis is unknown, its rank is not declared, no size can be opened, or a named axis
            cannot be opened; holds the reasons.
    """
    entries = {str(value.name): value for value in _data_inputs(model)}
    named = names if isinstance(names, Mapping) else dict.fromkeys(entries if names is None else names)
    chosen = list(named)
    shapes: dict[str, list[int | str | None]] = {}
    reasons: list[str] = []
    for name in chosen:
        if name not in entries or entries[name].shape is None:
            raise ShapeError("expected an input of known rank", where=name, remedy=f"Inputs are: {shown(entries)}.")
        shapes[name] = _sizes(entries[name])
    opened = 0
    for name, sizes in shapes.items():
        axes = _axes(name, named[name], len(sizes))
        for axis, size in enumerate(sizes):
            if not isinstance(size, int) or (axes is not None and axis not in axes):
                continue
            sizes[axis] = _axis_name(name, axis, len(sizes))
            try:
                _reshaped(model, shapes)
                opened += 1
            except ShapeError as error:
                if axes is not None:
                    raise
                sizes[axis] = size
                reasons.append(str(error))
    already = any(not isinstance(dim, int) for name in chosen for dim in _sizes(entries[name]))
    if not opened and not already:
        raise ShapeError(f"no size can be opened: {'; '.join(reasons) or 'none is fixed'}", where=shown(chosen))
    _replace(model, _reshaped(model, shapes))
    return shapes


def _name_axis(model: ir.Model, output: str, axis: int, size: int | str) -> None:
    """Declare the size of an output's axis, as observed by running the model."""
    value = next(value for value in model.graph.outputs if value.name == output)
    if value.shape is not None and not isinstance(value.shape[axis], int):
        dims = _sizes(value)
        dims[axis] = size
        value.shape = ir.Shape(dims)


def _axes(name: str, axes: Sequence[int] | None, rank: int) -> set[int] | None:
    if axes is None:
        return None
    if beyond := [axis for axis in axes if not -rank <= axis < rank]:
        raise ShapeError(f"expected axes of rank {rank}, got {shown(beyond)}", where=name)
    return {axis % rank for axis in axes}


def _axis_name(name: str, axis: int, rank: int) -> str:
    if axis == 0:
        return "batch"
    return IMAGE_AXES[axis] if rank == 4 and axis in IMAGE_AXES else f"{name}_{axis}"


def _data_inputs(model: ir.Model) -> list[ir.Value]:
    return [value for value in model.graph.inputs if not value.is_initializer()]


def _sizes(value: ir.Value) -> list[int | str | None]:
    return [dim if isinstance(dim, int) else dim.value for dim in value.shape or ()]


def _reshaped(model: ir.Model, shapes: Mapping[str, Sequence[int | str | None]]) -> ir.Model:
    """Return a repaired copy of the model with the new shapes, checked by running it."""
    inputs = {str(value.name): value for value in _data_inputs(model)}
    for name, sizes in shapes.items():
        if name not in inputs:
            raise ShapeError("unknown graph input", where=name, remedy=f"Inputs are: {shown(inputs)}.")
        shape = inputs[name].shape
        if shape is not None and len(shape) != len(sizes):
            raise ShapeError(f"expected {len(shape)} sizes, got {len(sizes)}", where=name)
        own = _sizes(inputs[name]) if shape is not None else [None] * len(sizes)
        if strange := [size for size, old in zip(sizes, own, strict=True) if size != old and not _is_size(size)]:
            remedy = "Give numbers ≥ 0, names, or None for an open size without a name."
            raise ShapeError(f"expected sizes, got {shown(map(repr, strange))}", where=name, remedy=remedy)
    try:
        work = copy_model(model)
        open_negative_sizes(work)
        changed = _repaired(work, shapes)
        compare_with(model, changed)
    except ShapeError:
        changed = _repaired(_plainer(model), shapes)
        compare_with(model, changed)
    return changed


def _plainer(model: ir.Model) -> ir.Model:
    """Return a copy without function calls and constant shape arithmetic, which hide sizes from the walk."""
    plain = copy_model(model)
    transform(plain, select(passes=PLAINER), Settings())
    return plain


def _is_size(size: object) -> bool:
    if isinstance(size, str):
        return bool(size.strip()) and not _NUMBER.fullmatch(size.strip())
    return size is None or (isinstance(size, (int, np.integer)) and not isinstance(size, bool) and int(size) >= 0)


def _repaired(work: ir.Model, shapes: InputShapes) -> ir.Model:
    listed = annotated(work)
    ranks = [None if value.shape is None else len(value.shape) for value in work.graph.outputs]
    repair_baked_sizes(work, shapes)
    inference.infer_shapes(work, strict=False)
    for value, rank in zip(work.graph.outputs, ranks, strict=True):
        if value.shape is None and rank is not None:
            # Inference does not know every operator; a repair changes sizes but never ranks.
            value.shape = ir.Shape([None] * rank)
    keep_annotations(work, listed)
    return work


def _replace(model: ir.Model, changed: ir.Model) -> None:
    model.graph = changed.graph
    model.ir_version = changed.ir_version
    model.functions.clear()
    model.functions.update(changed.functions)
