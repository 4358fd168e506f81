"""Inputs for a model, drawn in the range that its graph admits.

An index is drawn below the indexed size, a mask is 0 or 1, a length is at most the bounded size, a trip count is small,
a number compared with constants is one of the constants or none of these, and a lookup key is taken from its table. An
input without constraints is a standard normal, or a small integer. In every second sample, numbers that readers test
for infinity, NaN or equality include such numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core import dim as algebra
from sardonyx.core.dim import Dim, Size
from sardonyx.core.ir.types import conversion_remedy, element_type
from sardonyx.errors import EvaluationError, OptionError, ShapeError
from sardonyx.model import MapType
from sardonyx.ops.core_values import is_unnamed
from sardonyx.rewrite.analysis.sizes import parsed
from sardonyx.rewrite.verify.ranges import Choice, Range, known_keys, known_strings, permitted_values, tests_of

MOST_ELEMENTS = 1 << 27
"""Maximum number of elements of all inputs of a drawn sample."""

SCALES = (1.0, 1.0, 0.25, 3.0)
"""Standard deviations of floats, by seed."""

UNBOUNDED = "integers up to of "
"""Prefix of the search variable for the largest integer of an input that the graph does not bound."""


def required_inputs(model: ir.Model) -> list[ir.Value]:
    """Return the graph inputs without an initializer."""
    return [v for v in model.graph.inputs if not v.is_initializer()]


def require_fit(model: ir.Model, inputs: Mapping[str, Any]) -> None:
    """Refuse inputs on which the model cannot be run.

    Raises:
        OptionError: An input is unknown or missing, or an array has another type, rank or size than declared.
    """
    known = {str(v.name): v for v in model.graph.inputs}
    stray = [name for name in inputs if name not in known]
    missing = [name for name, value in known.items() if name not in inputs and not value.is_initializer()]
    if stray or missing:
        problem = f"unknown input {', '.join(stray)}" if stray else f"missing input {', '.join(missing)}"
        raise OptionError(problem, where="inputs", remedy=f"Inputs of the model are: {', '.join(known)}.")
    for name, array in inputs.items():
        value = known[name]
        if not isinstance(value.type, ir.TensorType) or not isinstance(array, (np.ndarray, np.generic)):
            continue
        if value.dtype == ir.DataType.STRING:
            same_type = array.dtype.kind in "SUTO"
        else:
            same_type = value.dtype is None or array.dtype.newbyteorder("=") == value.dtype.numpy()
        shape = _shape(value)
        fixed = [(axis, dim) for axis, dim in enumerate(shape or ()) if isinstance(dim, int) and dim > 0]
        fits = shape is None or (len(shape) == array.ndim and all(array.shape[axis] == dim for axis, dim in fixed))
        if not (same_type and fits):
            expected = None if same_type else value.dtype
            raise OptionError(
                f"expected {value.type} {shape or ''}".rstrip()
                + f" for '{name}', got {array.dtype} {list(array.shape)}",
                where="inputs",
                remedy="Give an array of this shape."
                if expected is None
                else conversion_remedy(element_type(expected)),
            )


def declared_sizes(value: ir.Value) -> tuple[Size, ...] | None:
    """Return the declared shape as numbers and expressions; an unnamed size gets a name from the input.

    A negative size is unnamed: some exporters write unknown sizes so.
    """
    shape = _shape(value)
    if shape is None:
        return None
    sizes: list[Size] = []
    for axis, dim in enumerate(shape):
        if isinstance(dim, int) and dim >= 0:
            sizes.append(dim)
        else:
            name = None if isinstance(dim, int) or is_unnamed(dim) else dim.value
            sizes.append(parsed(name) if name else Dim.symbol(f"{value.name}[{axis}]"))
    return tuple(sizes)


def _shape(value: ir.Value) -> ir.Shape | None:
    shape: ir.Shape | None = value.shape
    return shape


def open_sizes(model: ir.Model) -> dict[str, bool]:
    """Return the names of open sizes of the graph inputs, with True for each first size of some input."""
    names: dict[str, bool] = {}
    for value in required_inputs(model):
        for axis, size in enumerate(declared_sizes(value) or ()):
            for name in sorted(algebra.symbols(size)):
                names[name] = names.get(name, False) or axis == 0
    return names


def unbounded_integers(model: ir.Model) -> list[str]:
    """Return search variables for the integer inputs that the graph does not bound."""
    values = [v for v in required_inputs(model) if isinstance(v.type, ir.TensorType) and v.dtype is not None]
    return [
        f"{UNBOUNDED}{v.name}"
        for v in values
        if v.dtype is not None and v.dtype.is_integer() and permitted_values(v, {}) is None
    ]


def draw(model: ir.Model, sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Draw one set of inputs.

    Args:
        model: The model, with types of its inputs.
        sizes: The open sizes, by name.
        seed: Seed of the numbers; equal seeds give equal inputs.

    Raises:
        EvaluationError: an input has no type, no known rank, an impossible size, or is too large.
    """
    generator = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    total = 0
    for value in required_inputs(model):
        kind = value.type
        if kind is None:
            raise EvaluationError("its type is not declared", where=str(value.name), remedy="Give real inputs.")
        if isinstance(kind, MapType):
            feeds[str(value.name)] = {key: float(generator.standard_normal()) for key in known_keys(value)}
            continue
        shape = _drawn_shape(value, sizes)
        total += int(np.prod(shape, dtype=object))
        if total > MOST_ELEMENTS:
            raise EvaluationError(f"its shape {list(shape)} is too large to draw", where=str(value.name))
        feeds[str(value.name)] = _draw_value(value, kind, shape, sizes, generator, seed)
    return feeds


def _draw_value(
    value: ir.Value,
    kind: ir.TypeProtocol,
    shape: tuple[int, ...],
    sizes: Mapping[str, int],
    generator: np.random.Generator,
    seed: int,
) -> Any:
    if isinstance(kind, ir.SequenceType):
        return [_draw_value(value, kind.elem_type, shape, sizes, generator, seed) for _ in range(2)]
    if isinstance(kind, ir.OptionalType):
        return _draw_value(value, kind.elem_type, shape, sizes, generator, seed)
    if not isinstance(kind, ir.TensorType):
        raise EvaluationError("inputs of this type cannot be drawn", where=str(value.name), remedy="Give real inputs.")
    # Drawing without a shape returns a scalar object, while engines require arrays.
    return np.asarray(_draw_tensor(value, kind.dtype, shape, sizes, generator, seed))


def _draw_tensor(
    value: ir.Value,
    dtype: ir.DataType,
    shape: tuple[int, ...],
    sizes: Mapping[str, int],
    generator: np.random.Generator,
    seed: int,
) -> np.ndarray:
    if dtype == ir.DataType.STRING:
        words = known_strings(value) or ["a", "b", "word", ""]
        picked = generator.integers(0, len(words), shape).reshape(-1)
        return np.array([words[int(i)] for i in picked], object).reshape(shape)
    if dtype == ir.DataType.BOOL:
        return generator.random(shape) < 0.7
    kind = dtype.numpy()
    if dtype.is_integer():
        return _draw_integers(value, dtype, shape, sizes, generator, seed)
    numbers = generator.standard_normal(shape) * SCALES[seed % len(SCALES)]
    if kind.kind == "c":
        return (numbers + 1j * generator.standard_normal(shape)).astype(kind)
    if seed % 2:
        numbers = _tested(np.asarray(numbers), tests_of(value), generator)
    return numbers.astype(kind)


def _tested(numbers: np.ndarray, tests: frozenset[str], generator: np.random.Generator) -> np.ndarray:
    """Return numbers some of which pass tests that a standard normal never passes."""
    if "Equal" in tests:
        numbers = np.rint(numbers)
    special = [np.inf, -np.inf] * ("IsInf" in tests) + [np.nan] * ("IsNaN" in tests)
    if special:
        chosen = generator.integers(0, 4 * len(special), numbers.shape)
        numbers = np.where(chosen < len(special), np.array(special)[chosen % len(special)], numbers)
    return numbers


def _draw_integers(
    value: ir.Value,
    dtype: ir.DataType,
    shape: tuple[int, ...],
    sizes: Mapping[str, int],
    generator: np.random.Generator,
    seed: int,
) -> np.ndarray:
    kind = dtype.numpy()
    bounds = permitted_values(value, sizes)
    if isinstance(bounds, Choice):
        options = np.array(bounds.options)
        if not shape or int(np.prod(shape)) == 1:
            # One number decides the whole sample: the seed cycles through the options to reach every branch.
            return np.full(shape, options[seed % len(options)]).astype(kind)
        return options[generator.integers(0, len(options), shape)].astype(kind)
    if bounds is None:
        wide = 255 if dtype == ir.DataType.UINT8 else 127 if dtype == ir.DataType.INT8 else 4
        lowest = -wide if dtype == ir.DataType.INT8 else 0
        bounds = Range(lowest, sizes.get(f"{UNBOUNDED}{value.name}", wide), "unbounded")
    low, high = bounds.low, bounds.high
    if kind.kind in "iu":
        info = np.iinfo(kind)
        low, high = max(low, int(info.min)), min(high, int(info.max))
    else:
        low, high = max(low, -2 if dtype.is_signed() else 0), min(high, 1)
    numbers: np.ndarray = generator.integers(low, max(high, low) + 1, shape).astype(kind)
    return numbers


def _drawn_shape(value: ir.Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    declared = declared_sizes(value)
    if declared is None:
        raise EvaluationError("its rank is not declared", where=str(value.name), remedy="Give real inputs.")
    shape = []
    for size in declared:
        try:
            number = algebra.evaluate(size, {name: sizes.get(name, 2) for name in algebra.symbols(size)})
        except (ShapeError, ZeroDivisionError) as error:
            raise EvaluationError(f"cannot compute its size {size}: {error}", where=str(value.name)) from error
        if number < 0:
            raise EvaluationError(f"expected a size ≥ 0, got {size} = {number}", where=str(value.name))
        shape.append(number)
    return tuple(shape)
