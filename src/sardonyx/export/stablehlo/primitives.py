"""The StableHLO forms of contractions, movements, sources and orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType, Shape
from sardonyx.core.rules.numpy_rules import identity_of
from sardonyx.errors import UnsupportedError
from sardonyx.export.stablehlo.hlo_forms import dtype_of, hlo_form, shape_of
from sardonyx.export.stablehlo.text_writer import Operand, TextWriter, element, type_text

# Contractions.

COMBINED = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum", "and": "and", "or": "or"}

WIDE_SUMS = {
    t.FLOAT16: t.FLOAT,
    t.BFLOAT16: t.FLOAT,
    **dict.fromkeys(t.FLOAT8, t.FLOAT),
    DType.INT4: t.INT32,
    DType.UINT4: t.UINT32,
}
"""Types of long sums."""


@hlo_form("reduce")
def _reduce(w: TextWriter, value: Value, x: Operand, *, kind: str, axes: tuple[int, ...]) -> Operand:
    shape = shape_of(value)
    if not axes:
        return x
    if kind in ("argmax", "argmin"):
        return _arg_extremum(w, value, x, "max" if kind == "argmax" else "min", axes[0])
    wide = WIDE_SUMS.get(x.dtype, x.dtype)
    return w.convert(reduction(w, w.convert(x, wide), kind, axes, shape), dtype_of(value), value.origin)


def reduction(w: TextWriter, x: Operand, kind: str, axes: Sequence[int], shape: Shape) -> Operand:
    """Write a reduction over axes."""
    start = w.constant(np.asarray(identity_of(kind, t.numpy_dtype(x.dtype))), x.dtype)
    combined = COMBINED[kind] if x.dtype != t.BOOL else {"max": "or", "min": "and"}.get(kind, COMBINED[kind])
    dims = ", ".join(map(str, axes))
    text = f"stablehlo.reduce({x.name} init: {start.name}) applies stablehlo.{combined} across dimensions = [{dims}]"
    return w.op(f"{text} : ({x.type}, {start.type}) -> {type_text(x.dtype, shape)}", x.dtype, shape, "reduce")


def _arg_extremum(w: TextWriter, value: Value, x: Operand, kind: str, axis: int) -> Operand:
    """Write the first index of the extremum; NaN is the extremum."""
    shape = shape_of(value)
    best = w.broadcast(reduction(w, x, kind, (axis,), shape), x.shape, [a for a in range(len(x.shape)) if a != axis])
    attained = w.compare("EQ", x, best)
    if t.is_float(x.dtype):
        attained = w.binary("or", attained, w.compare("NE", x, x))
    index = iota(w, x.shape, axis, t.INT64)
    far = w.full(np.iinfo(np.int64).max, t.INT64, x.shape)
    return w.convert(reduction(w, w.select(attained, index, far), "min", (axis,), shape), dtype_of(value), value.origin)


@hlo_form("contract")
def _contract(
    w: TextWriter,
    value: Value,
    x: Operand,
    y: Operand,
    *,
    batch: tuple[tuple[int, int], ...],
    left: tuple[int, ...],
    right: tuple[int, ...],
    dtype: DType,
) -> Operand:
    shape = shape_of(value)
    wide = WIDE_SUMS.get(dtype, dtype)
    a, b = w.convert(x, wide), w.convert(y, wide)
    parts = [f"{a.name}, {b.name}"]
    if batch:
        parts.append(f"batching_dims = {_list(i for i, _ in batch)} x {_list(j for _, j in batch)}")
    parts.append(f"contracting_dims = {_list(left)} x {_list(right)}")
    parts.append("precision = [HIGHEST, HIGHEST]")
    text = f"stablehlo.dot_general {', '.join(parts)} : ({a.type}, {b.type}) -> {type_text(wide, shape)}"
    return w.convert(w.op(text, wide, shape, value.origin), dtype)


def _list(numbers: Any) -> str:
    return f"[{', '.join(str(number) for number in numbers)}]"


@hlo_form("convolve")
def _convolve(
    w: TextWriter,
    value: Value,
    x: Operand,
    kernel: Operand,
    *,
    strides: tuple[int, ...],
    padding: Sequence[tuple[Size, Size]],
    base_dilation: tuple[int, ...],
    kernel_dilation: tuple[int, ...],
    dtype: DType,
) -> Operand:
    n, out, groups = len(strides), shape_of(value), x.shape[0]
    if not isinstance(groups, int):
        raise UnsupportedError("StableHLO convolves a known number of groups.")
    wide = t.DOUBLE if t.is_integer(dtype) else WIDE_SUMS.get(dtype, dtype)
    count, channels, filters = x.shape[1], x.shape[2], kernel.shape[1]
    rows = w.transpose(w.convert(x, wide), (1, 0, *range(2, 3 + n)))
    rows = w.reshape(rows, (count, groups * channels, *x.shape[3:]))
    if not all(isinstance(amount, int) for pair in padding for amount in pair):
        low, high = zip(*padding, strict=True)
        inner = tuple(step - 1 for step in base_dilation)
        rows = padded(w, rows, w.full(0, wide, ()), (0, 0, *low), (0, 0, *high), (0, 0, *inner))
        padding, base_dilation = [(0, 0)] * n, (1,) * n
    weights = w.reshape(w.convert(kernel, wide), (groups * filters, channels, *kernel.shape[3:]))
    spatial = ", ".join(map(str, range(n)))
    names = f"[b, f, {spatial}]x[o, i, {spatial}]->[b, f, {spatial}]"
    window = (
        f"stride = {_list(strides)}, pad = [{', '.join(_list(pair) for pair in padding)}], "
        f"lhs_dilate = {_list(base_dilation)}, rhs_dilate = {_list(kernel_dilation)}"
    )
    shape = (count, groups * filters, *out[3:])
    text = (
        f"stablehlo.convolution({rows.name}, {weights.name}) dim_numbers = {names}, window = {{{window}}} "
        f"{{batch_group_count = 1 : i64, feature_group_count = {groups} : i64, "
        f"precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]}} "
        f": ({rows.type}, {weights.type}) -> {type_text(wide, shape)}"
    )
    result = w.reshape(w.op(text, wide, shape), (count, groups, filters, *out[3:]))
    return w.convert(w.transpose(result, (1, 0, *range(2, 3 + n)), value.origin), dtype)


@hlo_form("reduce_window")
def _reduce_window(
    w: TextWriter, value: Value, x: Operand, *, kind: str, window: Any, strides: Any, padding: Any, dilation: Any
) -> Operand:
    if kind.startswith("arg"):
        raise UnsupportedError("StableHLO has no indices of the extrema of windows.")
    rank, n = len(x.shape), len(window)
    wide = WIDE_SUMS.get(x.dtype, x.dtype)
    x = w.convert(x, wide)
    start = w.constant(np.asarray(identity_of(kind, t.numpy_dtype(wide))), wide)
    if not all(isinstance(amount, int) for pair in padding for amount in pair):
        low, high = zip(*padding, strict=True)
        lead = (0,) * (rank - n)
        x = padded(w, x, start, (*lead, *low), (*lead, *high), (0,) * rank)
        padding = [(0, 0)] * n
    result = windows(w, x, start, kind, window, strides, padding, dilation, shape_of(value))
    return w.convert(result, dtype_of(value), value.origin)


def windows(
    w: TextWriter,
    x: Operand,
    start: Operand,
    kind: str,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    shape: Shape,
) -> Operand:
    """Write a reduction over windows of the last axes."""
    lead = len(x.shape) - len(window)

    def array(numbers: Sequence[int]) -> str:
        return f"array<i64: {', '.join(map(str, (*[1] * lead, *numbers)))}>"

    pads = ", ".join(_list(pair) for pair in (*[(0, 0)] * lead, *padding))
    attributes = (
        f"window_dimensions = {array(window)}, window_strides = {array(strides)}, "
        f"window_dilations = {array(dilation)}, padding = dense<[{pads}]> : tensor<{len(x.shape)}x2xi64>"
    )
    result = Operand(w.name("windows"), x.dtype, shape)
    w.line(f'{result.name} = "stablehlo.reduce_window"({x.name}, {start.name}) <{{{attributes}}}> ({{')
    combiner(w, COMBINED[kind], x.dtype)
    w.line(f"}}) : ({x.type}, {start.type}) -> {result.type}")
    return result


def combiner(w: TextWriter, op: str, dtype: DType) -> None:
    """Write the region that combines two scalars; an empty ``op`` returns the second."""
    scalar = type_text(dtype, ())
    with w.region():
        a, b = w.name("a"), w.name("b")
        w.line(f"^bb0({a}: {scalar}, {b}: {scalar}):")
        result = b if not op else w.op(f"stablehlo.{op} {a}, {b} : {scalar}", dtype, ()).name
        w.line(f"stablehlo.return {result} : {scalar}")


# Movement.


@hlo_form("reshape")
def _reshape(w: TextWriter, value: Value, x: Operand, *, shape: Shape) -> Operand:
    return w.reshape(x, shape, value.origin)


@hlo_form("permute")
def _permute(w: TextWriter, value: Value, x: Operand, *, axes: tuple[int, ...]) -> Operand:
    return w.transpose(x, axes, value.origin) if axes else x


@hlo_form("broadcast")
def _broadcast(w: TextWriter, value: Value, x: Operand, *, shape: Shape) -> Operand:
    return w.broadcast(x, shape, range(len(x.shape)), value.origin)


@hlo_form("slice")
def _slice(w: TextWriter, value: Value, x: Operand, *, starts: Shape, limits: Shape, strides: Any) -> Operand:
    shape = shape_of(value)
    if all(isinstance(number, int) for number in (*starts, *limits, *x.shape)):
        parts = [f"{a}:{b}:{s}" for a, b, s in zip(starts, limits, strides, strict=True)]
        text = f"stablehlo.slice {x.name} [{', '.join(parts)}] : ({x.type}) -> {type_text(x.dtype, shape)}"
        return w.op(text, x.dtype, shape, value.origin)
    if not x.shape:
        return x
    bounds = [w.vector(numbers) for numbers in (starts, limits, strides)]
    names, types = ", ".join(b.name for b in bounds), ", ".join(b.type for b in bounds)
    text = f"stablehlo.real_dynamic_slice {x.name}, {names} : ({x.type}, {types}) -> {type_text(x.dtype, shape)}"
    return w.op(text, x.dtype, shape, value.origin)


@hlo_form("pad")
def _pad(
    w: TextWriter, value: Value, x: Operand, filler: Operand, *, low: Shape, high: Shape, interior: Any
) -> Operand:
    return padded(w, x, filler, low, high, interior, value.origin, shape_of(value))


def padded(
    w: TextWriter,
    x: Operand,
    filler: Operand,
    low: Shape,
    high: Shape,
    interior: Sequence[int],
    base: str = "",
    shape: Shape | None = None,
) -> Operand:
    """Write elements before, after and between those of axes."""
    if not x.shape:
        return x
    filler = w.reshape(filler, ())
    if shape is None:
        shape = tuple(
            size + a + b + (size - 1) * step for size, a, b, step in zip(x.shape, low, high, interior, strict=True)
        )
    result = type_text(x.dtype, shape)
    if all(isinstance(number, int) for number in (*low, *high, *x.shape)):
        text = f"stablehlo.pad {x.name}, {filler.name}, low = {_list(low)}, high = {_list(high)}"
        text += f", interior = {_list(interior)} : ({x.type}, {filler.type}) -> {result}"
        return w.op(text, x.dtype, shape, base)
    bounds = [w.vector(numbers) for numbers in (low, high, tuple(interior))]
    names, types = ", ".join(b.name for b in bounds), ", ".join(b.type for b in bounds)
    text = f"stablehlo.dynamic_pad {x.name}, {filler.name}, {names} : ({x.type}, {filler.type}, {types}) -> {result}"
    return w.op(text, x.dtype, shape, base)


@hlo_form("concat")
def _concat(w: TextWriter, value: Value, *xs: Operand, axis: int) -> Operand:
    return w.concatenate(xs, axis, shape_of(value), value.origin)


@hlo_form("gather")
def _gather(w: TextWriter, value: Value, x: Operand, indices: Operand, *, batch: int) -> Operand:
    shape, depth = shape_of(value), indices.shape[-1]
    if not isinstance(depth, int):
        raise UnsupportedError("StableHLO gathers at indices of a known number of axes.")
    rest = len(x.shape) - batch - depth
    offset = range(len(shape) - rest, len(shape))
    numbers = (
        f"offset_dims = {_list(offset)}, collapsed_slice_dims = {_list(range(batch, batch + depth))}, "
        f"operand_batching_dims = {_list(range(batch))}, start_indices_batching_dims = {_list(range(batch))}, "
        f"start_index_map = {_list(range(batch, batch + depth))}, index_vector_dim = {len(indices.shape) - 1}"
    )
    sizes = (*(1,) * (batch + depth), *x.shape[batch + depth :])
    attributes = f"dimension_numbers = #stablehlo.gather<{numbers}>, indices_are_sorted = false"
    result = type_text(x.dtype, shape)
    if all(isinstance(size, int) for size in sizes):
        spelled = f"slice_sizes = array<i64: {', '.join(map(str, sizes))}>" if sizes else "slice_sizes = array<i64>"
        text = f'"stablehlo.gather"({x.name}, {indices.name}) <{{{attributes}, {spelled}}}>'
        return w.op(f"{text} : ({x.type}, {indices.type}) -> {result}", x.dtype, shape, value.origin or "gather")
    vector = w.convert(w.vector(sizes), indices.dtype)
    text = f'"stablehlo.dynamic_gather"({x.name}, {indices.name}, {vector.name}) <{{{attributes}}}>'
    types = f"({x.type}, {indices.type}, {vector.type})"
    return w.op(f"{text} : {types} -> {result}", x.dtype, shape, value.origin or "gather")


@hlo_form("scatter")
def _scatter(
    w: TextWriter, value: Value, x: Operand, indices: Operand, updates: Operand, *, kind: str, batch: int
) -> Operand:
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise UnsupportedError("StableHLO scatters at indices of a known number of axes.")
    rest = len(x.shape) - batch - depth
    axes = range(batch, batch + depth)
    numbers = [
        f"update_window_dims = {_list(range(len(updates.shape) - rest, len(updates.shape)))}",
        f"inserted_window_dims = {_list(axes)}",
        f"input_batching_dims = {_list(range(batch))}",
        f"scatter_indices_batching_dims = {_list(range(batch))}",
        f"scatter_dims_to_operand_dims = {_list(axes)}",
        f"index_vector_dim = {len(indices.shape) - 1}",
    ]
    result = Operand(w.name(value.origin or "scatter"), x.dtype, shape_of(value))
    attributes = f"scatter_dimension_numbers = #stablehlo.scatter<{', '.join(numbers)}>, "
    attributes += "indices_are_sorted = false, unique_indices = false"
    w.line(f'{result.name} = "stablehlo.scatter"({x.name}, {indices.name}, {updates.name}) <{{{attributes}}}> ({{')
    combiner(w, "" if kind == "set" else COMBINED[kind], x.dtype)
    w.line(f"}}) : ({x.type}, {indices.type}, {updates.type}) -> {result.type}")
    return result


@hlo_form("reverse")
def _reverse(w: TextWriter, value: Value, x: Operand, *, axes: tuple[int, ...]) -> Operand:
    return w.op(f"stablehlo.reverse {x.name}, dims = {_list(axes)} : {x.type}", x.dtype, x.shape, value.origin)


# Sources.


@hlo_form("iota")
def _iota(w: TextWriter, value: Value, *, shape: Shape, axis: int, dtype: DType) -> Operand:
    return iota(w, shape, axis, dtype, value.origin)


def iota(w: TextWriter, shape: Shape, axis: int, dtype: DType, base: str = "") -> Operand:
    """Write 0, 1, 2 … along an axis."""
    result = type_text(dtype, shape)
    if all(isinstance(size, int) for size in shape):
        return w.op(f"stablehlo.iota dim = {axis} : {result}", dtype, shape, base)
    sizes = w.vector(shape)
    return w.op(f"stablehlo.dynamic_iota {sizes.name}, dim = {axis} : ({sizes.type}) -> {result}", dtype, shape, base)


@hlo_form("dims")
def _dims(w: TextWriter, value: Value, *, sizes: Shape, shape: tuple[int, ...], dtype: DType) -> Operand:
    if not shape:
        return w.convert(w.size(sizes[0]), dtype, value.origin)
    return w.convert(w.reshape(w.vector(sizes), shape), dtype, value.origin)


@hlo_form("constant")
def _constant(w: TextWriter, value_: Value, /, **params: Any) -> Operand:
    element(dtype_of(value_), value_.origin)
    return w.constant(value_.known, dtype_of(value_), value_.origin or "constant")


@hlo_form("random")
def _random(w: TextWriter, value: Value, *, kind: str, shape: Shape, dtype: DType, **params: Any) -> Operand:
    low, high, sizes = w.full(0, dtype, ()), w.full(1, dtype, ()), w.vector(shape)
    distribution = "UNIFORM" if kind == "uniform" else "NORMAL"
    text = f"stablehlo.rng {low.name}, {high.name}, {sizes.name}, distribution = {distribution}"
    types = f"({low.type}, {high.type}, {sizes.type}) -> {type_text(dtype, shape)}"
    return w.op(f"{text} : {types}", dtype, shape, value.origin)


# Order.


@hlo_form("sort", "top_k")
def _sort(
    w: TextWriter,
    value: Value,
    x: Operand,
    *,
    axis: int,
    descending: bool = False,
    k: Size | None = None,
    largest: bool = False,
) -> Operand:
    """Write a stable sort of numbers with their indices; NaN is the greatest."""
    down = descending or largest
    index = iota(w, x.shape, axis, t.INT64)
    pair = w.name("sorted")
    scalar, number = type_text(x.dtype, ()), type_text(t.INT64, ())
    attributes = f"dimension = {axis} : i64, is_stable = true"
    w.line(f'{pair}:2 = "stablehlo.sort"({x.name}, {index.name}) <{{{attributes}}}> ({{')
    with w.region():
        a, b = (Operand(w.name(name), x.dtype, ()) for name in "ab")
        i, j = w.name("i"), w.name("j")
        w.line(f"^bb0({a.name}: {scalar}, {b.name}: {scalar}, {i}: {number}, {j}: {number}):")
        before = w.compare("GT" if down else "LT", a, b)
        if t.is_float(x.dtype):
            unordered, ordered = (b, a) if not down else (a, b)
            last = w.binary("and", w.compare("NE", unordered, unordered), w.compare("EQ", ordered, ordered))
            before = w.binary("or", before, last)
        w.line(f"stablehlo.return {before.name} : tensor<i1>")
    w.line(f"}}) : ({x.type}, {index.type}) -> ({x.type}, {index.type})")
    result = Operand(f"{pair}#1", t.INT64, x.shape)
    if k is None or k == x.shape[axis]:
        return result
    limits = tuple(k if a == axis else size for a, size in enumerate(x.shape))
    return _slice(w, value, result, starts=(0,) * len(x.shape), limits=limits, strides=(1,) * len(x.shape))


@hlo_form("scan")
def _scan(w: TextWriter, value: Value, x: Operand, *, kind: str, axis: int) -> Operand:
    size = x.shape[axis]
    if not isinstance(size, int):
        raise UnsupportedError("StableHLO accumulates along an axis of known size alone.", remedy="Fix it: `--size`.")
    if not size:
        return x
    wide = WIDE_SUMS.get(x.dtype, x.dtype)
    start = w.constant(np.asarray(identity_of(kind, t.numpy_dtype(wide))), wide)
    rank = len(x.shape)
    window = [size if a == axis else 1 for a in range(rank)]
    pads = [(size - 1 if a == axis else 0, 0) for a in range(rank)]
    ones = [1] * rank
    result = windows(w, w.convert(x, wide), start, kind, window, ones, pads, ones, x.shape)
    return w.convert(result, x.dtype, value.origin)


# Special.


@hlo_form("fft")
def _fft(w: TextWriter, value: Value, x: Operand, *, inverse: bool) -> Operand:
    size = x.shape[-1]
    if not isinstance(size, int):
        raise UnsupportedError("StableHLO transforms an axis of known size alone.", remedy="Fix it: `--size`.")
    text = f"stablehlo.fft {x.name}, type = {'IFFT' if inverse else 'FFT'}, length = [{size}] : ({x.type}) -> {x.type}"
    result = w.op(text, x.dtype, x.shape, value.origin)
    return w.binary("multiply", result, w.full(size, x.dtype, x.shape)) if inverse else result


@hlo_form("determinant")
def _determinant(w: TextWriter, value: Value, x: Operand) -> Operand:
    raise UnsupportedError("StableHLO has no determinant.")


@hlo_form("stop_gradient")
def _stop_gradient(w: TextWriter, value: Value, x: Operand) -> Operand:
    return x
