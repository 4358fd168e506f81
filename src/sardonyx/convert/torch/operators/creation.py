"""Conversion of element types, and tensors created from numbers and sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.convert.torch.operators.elementwise import add_, less_, mul_, pointwise, where_
from sardonyx.convert.torch.operators.promotion import cast, core_dtype, tensor_of
from sardonyx.convert.torch.operators.registry import aten, site
from sardonyx.convert.torch.operators.sizes import aligned, expanded, size_of
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size, dim_max, floor_div
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.ops.nodes import onnx


def result_dtype() -> DType:
    """Return the element type that torch predicts for the current call."""
    result = site.get().result
    return core_dtype((result[0] if isinstance(result, (tuple, list)) else result).dtype)


@aten(
    "to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as.default", "_autocast_to_reduced_precision.default"
)
@aten("_autocast_to_full_precision.default", "to.prim_Device", "to.prim_dtype", "_to_dense.default", "to_dense.default")
def _to(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return cast(x, result_dtype())


@aten("view.dtype")
def _view_dtype(x: Tensor, dtype: Any) -> Tensor:
    target = core_dtype(dtype)
    if target.bitwidth == x.dtype.bitwidth:
        return L.bitcast(x, target)
    if target.bitwidth < x.dtype.bitwidth:
        parts = L.bitcast(x, target)
        return L.reshape(parts, [*x.shape[:-1], x.shape[-1] * (x.dtype.bitwidth // target.bitwidth)])
    factor = target.bitwidth // x.dtype.bitwidth
    return L.bitcast(L.reshape(x, [*x.shape[:-1], floor_div(x.shape[-1], factor), factor]), target)


def filled(shape: Sequence[Any], value: Any, dtype: DType) -> Tensor:
    """Return a tensor of one repeated value."""
    return expanded(tensor_of(value, dtype), [size_of(size) for size in shape])


@aten("full.default", "new_full.default", "full_like.default")
def _full(*args: Any, **_: Any) -> Tensor:
    shape = args[0].shape if isinstance(args[0], Tensor) and len(args) == 2 else args[-2]
    return filled(shape, args[-1], result_dtype())


@aten("zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default")
@aten("new_empty.default", "empty_strided.default", "new_empty_strided.default", "empty_permuted.default")
@aten("_efficientzerotensor.default")
def _zeros(*args: Any, **_: Any) -> Tensor:
    return filled(_shape_of(args), 0, result_dtype())


@aten("ones.default", "ones_like.default", "new_ones.default")
def _ones(*args: Any, **_: Any) -> Tensor:
    return filled(_shape_of(args), 1, result_dtype())


def _shape_of(args: Sequence[Any]) -> Sequence[Any]:
    if isinstance(args[0], Tensor):
        return args[1] if len(args) > 1 and isinstance(args[1], (tuple, list)) else args[0].shape
    return args[0]  # type: ignore[no-any-return]


@aten("scalar_tensor.default")
def _scalar_tensor(value: Any, **_: Any) -> Tensor:
    return tensor_of(value, result_dtype())


@aten("fill.Scalar", "fill.Tensor")
def _fill(x: Tensor, value: Any) -> Tensor:
    return filled(x.shape, value, x.dtype)


@aten("tensor.default", "lift_fresh.default", "lift.default")
def _lift(x: Any, **_: Any) -> Tensor:
    return tensor_of(x)


@aten("arange.default", "arange.start", "arange.start_step")
def _arange(*args: Any, **_: Any) -> Tensor:
    start, end, step = {1: (0, args[0], 1), 2: (args[0], args[-1], 1), 3: args}[len(args)]
    dtype = result_dtype()
    if all(isinstance(v, (int, Dim)) for v in (start, end)) and isinstance(step, int):
        count = dim_max(-floor_div(-(end - start), step) if step > 0 else -floor_div(end - start, -step), 0)
        whole = t.INT64 if t.is_float(dtype) or dtype.bitwidth < 64 else dtype
        line = _line(start, end, step, count)
        return cast(line, dtype if whole != dtype else whole)
    if any(isinstance(v, (Tensor, Dim)) for v in (start, end, step)):
        values = [tensor_of(v, dtype) for v in (start, end, step)]
        return onnx.Range(*values)  # type: ignore[no-any-return]
    size = max(math.ceil((end - start) / step), 0)
    return constant(np.asarray(start + np.arange(size) * step), dtype)


def _line(start: Size, end: Size, step: int, count: Size) -> Tensor:
    if isinstance(count, int) and isinstance(start, int):
        return constant(start + np.arange(count, dtype=np.int64) * step)
    operands = [L.size_tensor([value], ()) for value in (start, end, step)]
    values = L.arange(count)
    if step != 1:
        values = values * step
    result = values if isinstance(start, int) and start == 0 else values + operands[0]

    def body(*_: Any) -> list[Tensor]:
        return [result]

    return result if result.op == "constant" else onnx.Range(*operands, body=body)


@aten("linspace.default")
def _linspace(start: Any, end: Any, steps: Any, **_: Any) -> Tensor:
    dtype, count = result_dtype(), size_of(steps)
    if isinstance(count, int) and not any(isinstance(v, (Tensor, Dim)) for v in (start, end)):
        return constant(np.linspace(start, end, count), dtype)
    work = dtype if t.is_float(dtype) else t.DOUBLE
    first, last = tensor_of(start, work), tensor_of(end, work)
    line = cast(L.arange(count), work)
    gaps = L.maximum(tensor_of(count, work) - 1, 1)
    return cast(first + line * ((last - first) / gaps), dtype)


@aten("logspace.default")
def _logspace(start: Any, end: Any, steps: Any, base: float = 10.0, **_: Any) -> Tensor:
    dtype = result_dtype()
    return constant(np.logspace(start, end, int(size_of(steps)), base=base), dtype)  # type: ignore[arg-type]


def rows_and_columns(shape: Sequence[Size]) -> tuple[Tensor, Tensor]:
    """Return the row numbers [rows, 1] and the column numbers [1, columns] of the last two axes."""
    return L.unsqueeze(L.arange(shape[-2]), [1]), L.unsqueeze(L.arange(shape[-1]), [0])


@aten("eye.default", "eye.m")
def _eye(n: Any, m: Any = None, **_: Any) -> Tensor:
    rows, columns = rows_and_columns([size_of(n), size_of(n if m is None else m)])
    return cast(L.equal(rows, columns), result_dtype())


def _triangle(x: Tensor, diagonal: Any, upper: bool) -> Tensor:
    if x.dtype in (t.FLOAT, t.DOUBLE, t.FLOAT16, t.INT64, t.INT32, t.BOOL):
        number = L.size_tensor([diagonal], ())
        inputs = (x,) if isinstance(diagonal, int) and diagonal == 0 else (x, number)
        return onnx.Trilu(*inputs, upper=int(upper), body=lambda y, *_: [y])  # type: ignore[no-any-return]
    rows, columns = rows_and_columns(x.shape)
    shift = tensor_of(diagonal)
    outside = less_(columns, add_(rows, shift)) if upper else less_(add_(rows, shift), columns)
    return where_(outside, tensor_of(0, x.dtype), x)


@aten("tril.default")
def _tril(x: Tensor, diagonal: Any = 0) -> Tensor:
    return _triangle(x, diagonal, upper=False)


@aten("triu.default")
def _triu(x: Tensor, diagonal: Any = 0) -> Tensor:
    return _triangle(x, diagonal, upper=True)


def _triangle_indices(rows: int, columns: int, offset: int, upper: bool) -> Tensor:
    indices = np.triu_indices(rows, offset, columns) if upper else np.tril_indices(rows, offset, columns)
    return constant(np.stack(indices).astype(np.int64), result_dtype())


@aten("tril_indices.default")
def _tril_indices(rows: int, columns: int, offset: int = 0, **_: Any) -> Tensor:
    return _triangle_indices(rows, columns, offset, upper=False)


@aten("triu_indices.default")
def _triu_indices(rows: int, columns: int, offset: int = 0, **_: Any) -> Tensor:
    return _triangle_indices(rows, columns, offset, upper=True)


@aten("one_hot.default")
def _one_hot(x: Tensor, classes: Any = -1) -> Tensor:
    if classes == -1:
        most = L.reduce_max(x) + 1
        classes = size_of(most)
    line = L.arange(size_of(classes))
    shape = (*x.shape, classes)
    hot = L.equal(aligned(L.unsqueeze(x, [-1]), shape), aligned(cast(line, x.dtype), shape))
    return cast(hot, t.INT64)


# Complex numbers.


@aten("complex.default")
def _complex(real: Tensor, imaginary: Tensor) -> Tensor:
    kind = t.COMPLEX128 if real.dtype == t.DOUBLE else t.COMPLEX64
    unit = constant(np.array(1j), kind)
    return add_(cast(real, kind), mul_(cast(imaginary, kind), unit))


@aten("polar.default")
def _polar(size: Tensor, angle: Tensor) -> Tensor:
    return _complex(
        mul_(size, pointwise("Cos", L.cos, angle)),
        mul_(size, pointwise("Sin", L.sin, angle)),
    )
