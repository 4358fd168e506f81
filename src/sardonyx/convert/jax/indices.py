"""Sorting, gathering and scattering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.jax.linear_algebra import inlined
from sardonyx.convert.jax.primitives import iota, strides_of
from sardonyx.convert.jax.translation import Context, dtype_of, rule
from sardonyx.errors import UnsupportedError


@rule("sort")
def _sort(c: Context, e: Any, *operands: ir.Value) -> list[ir.Value]:
    axis, values = int(e.params["dimension"]), list(operands)
    count = c.node("Reshape", c.size_value(e.invars[0].aval.shape[axis]), c.ints([1]))
    # The last key first: equal elements stay in order.
    for i in reversed(range(int(e.params["num_keys"]))):
        is_logical = dtype_of(e.invars[i]) == np.bool_
        key = c.cast(values[i], np.int32) if is_logical else values[i]
        sorted_key, order = c.nodes_of("TopK", 2, key, count, axis=axis, largest=0)
        values = [
            sorted_key if k == i and not is_logical else c.node("GatherElements", value, order, axis=axis)
            for k, value in enumerate(values)
        ]
    return values


@rule("top_k")
def _top_k(c: Context, e: Any, x: ir.Value) -> list[ir.Value]:
    axis = int(e.params.get("axis", len(e.invars[0].aval.shape) - 1))
    values, order = c.nodes_of("TopK", 2, x, c.ints([int(e.params["k"])]), axis=axis)
    return [values, c.cast(order, dtype_of(e.outvars[1]))]


@rule("approx_top_k")
def _approximate_top_k(c: Context, e: Any, x: ir.Value) -> list[ir.Value]:
    """Translate the elements that are almost the largest (or smallest) by those that are."""
    p, rank = e.params, len(e.invars[0].aval.shape)
    if not p["aggregate_to_topk"]:
        raise UnsupportedError("candidates that are not reduced to k", where=e.primitive.name)
    axis = int(p["reduction_dimension"]) % rank
    values, order = c.nodes_of("TopK", 2, x, c.ints([int(p["k"])]), axis=axis, largest=int(p["is_max_k"]))
    return [values, c.cast(order, dtype_of(e.outvars[1]))]


def _positions(
    c: Context,
    indices: ir.Value,
    shape: Sequence[Any],
    window: Sequence[Any],
    numbers: Any,
    result: Sequence[Any],
    clamps: bool,
) -> tuple[ir.Value, ir.Value]:
    """Return the position of each element in the flattened operand, and True where the position is valid.

    Args:
        c: The graph.
        indices: Start indices, the vectors along the last axis.
        shape: Sizes of the operand.
        window: Sizes of the slice at each start.
        numbers: A tuple of the result's axes of windows, the operand's axes without an axis in windows, the operand's
            axis for each element of a start vector, and the batch axes of operand and indices.
        result: Sizes of the gathered result.
        clamps: Move starts so that windows are within the operand.
    """
    offset_axes, collapsed, mapped, operand_batch, index_batch = numbers
    batch_axes = [axis for axis in range(len(result)) if axis not in offset_axes]
    window_axes = [axis for axis in range(len(shape)) if axis not in collapsed and axis not in operand_batch]
    strides = strides_of(c, shape)
    indices = c.cast(indices, np.int64)
    total, valid = None, None
    column = [1] * len(result)
    batch_sizes = [result[axis] if axis in batch_axes else 1 for axis in range(len(result))]
    for axis in range(len(shape)):
        position = None
        if axis in mapped:
            start = c.node("Gather", indices, c.constant(list(mapped).index(axis), np.int64), axis=-1)
            most = c.node("Sub", c.size_value(shape[axis]), c.size_value(window[axis]))
            inside = c.node(
                "And", c.node("GreaterOrEqual", start, c.constant(0, np.int64)), c.node("LessOrEqual", start, most)
            )
            inside = c.reshaped(inside, batch_sizes)
            valid = inside if valid is None else c.node("And", valid, inside)
            start = c.node("Max", c.node("Min", start, most), c.constant(0, np.int64)) if clamps else start
            position = c.reshaped(start, batch_sizes)
        elif axis in operand_batch:
            target = batch_axes[list(index_batch)[list(operand_batch).index(axis)]]
            position = iota(c, result, target)
        if axis in window_axes:
            target = offset_axes[window_axes.index(axis)]
            line = c.node("Range", c.constant(0, np.int64), c.size_value(window[axis]), c.constant(1, np.int64))
            sizes = list(column)
            sizes[target] = -1
            line = c.node("Reshape", line, c.ints(sizes))
            position = line if position is None else c.node("Add", position, line)
        if position is not None:
            part = c.node("Mul", position, strides[axis])
            total = part if total is None else c.node("Add", total, part)
    if total is None:
        total = c.constant(0, np.int64)
    if valid is None:
        valid = c.constant(True)
    return total, valid


@rule("gather")
def _gather(c: Context, e: Any, x: ir.Value, indices: ir.Value) -> ir.Value:
    p, shape, result = e.params, e.invars[0].aval.shape, e.outvars[0].aval.shape
    d = p["dimension_numbers"]
    numbers = (
        d.offset_dims,
        d.collapsed_slice_dims,
        d.start_index_map,
        d.operand_batching_dims,
        d.start_indices_batching_dims,
    )
    index, valid = _positions(c, indices, shape, p["slice_sizes"], numbers, result, clamps=True)
    flat = c.node("Reshape", x, c.ints([-1]))
    value = c.node("Gather", flat, c.node("Expand", index, c.sizes(result)))
    if "FILL" not in str(p["mode"]):
        return value
    dtype = dtype_of(e.outvars[0])
    fill = p["fill_value"]
    if fill is None:
        fill = (
            np.nan
            if dtype.kind == "f"
            else np.iinfo(dtype).min
            if dtype.kind == "i"
            else True
            if dtype.kind == "b"
            else np.iinfo(dtype).max
        )
    return c.node("Where", valid, value, c.scalar(fill, dtype))


@rule(
    "scatter",
    "scatter-add",
    "scatter_add",
    "scatter-mul",
    "scatter_mul",
    "scatter-min",
    "scatter_min",
    "scatter-max",
    "scatter_max",
)
def _scatter(c: Context, e: Any, x: ir.Value, indices: ir.Value, updates: ir.Value) -> Any:
    body = e.params.get("update_jaxpr")
    if e.primitive.name == "scatter" and body is not None and body.outvars[0] is not body.invars[1]:
        return inlined(c, _applied(e.params), e, (x, indices, updates))
    p, shape, result = e.params, e.invars[0].aval.shape, e.invars[2].aval.shape
    d = p["dimension_numbers"]
    window_axes = [a for a in range(len(shape)) if a not in d.inserted_window_dims and a not in d.operand_batching_dims]
    window: list[Any] = [1] * len(shape)
    for axis, target in zip(window_axes, d.update_window_dims, strict=True):
        window[axis] = result[target]
    numbers = (
        d.update_window_dims,
        d.inserted_window_dims,
        d.scatter_dims_to_operand_dims,
        d.operand_batching_dims,
        d.scatter_indices_batching_dims,
    )
    clamps = "CLIP" in str(p["mode"])
    index, valid = _positions(c, indices, shape, window, numbers, result, clamps=clamps)
    flat = c.node("Reshape", x, c.ints([-1]))
    # An element more takes the updates that are out of range, and is cut off.
    count = c.node("Shape", flat)
    spare = c.node("Concat", flat, c.node("Reshape", c.scalar(0, dtype_of(e.invars[0])), c.ints([1])), axis=0)
    if not clamps:
        index = c.node("Where", valid, index, count)
    index = c.node("Reshape", c.node("Expand", index, c.sizes(result)), c.ints([-1]))
    kind = e.primitive.name.replace("_", "-").partition("-")[2] or "none"
    merged = c.node("ScatterElements", spare, index, c.node("Reshape", updates, c.ints([-1])), axis=0, reduction=kind)
    return c.reshaped(c.node("Slice", merged, c.ints([0]), count, c.ints([0])), shape)


def _applied(p: Any) -> Any:
    """Return the function of JAX that replaces the elements at some indices by a function of themselves."""
    import jax
    import jax.numpy as jnp
    from jax.extend import core

    body = p["update_jaxpr"]
    if not p["unique_indices"] or any(body.invars[1] in equation.invars for equation in body.eqns):
        raise UnsupportedError("scatter by a function of updates, or of elements that may repeat", where="jax")
    function = core.jaxpr_as_fun(core.ClosedJaxpr(body, p["update_consts"]))

    def apply(x: Any, indices: Any, updates: Any) -> Any:
        marks = jax.lax.scatter(
            jnp.zeros(x.shape, np.int32),
            indices,
            jnp.ones(updates.shape, np.int32),
            p["dimension_numbers"],
            indices_are_sorted=p["indices_are_sorted"],
            unique_indices=True,
            mode=p["mode"],
        )
        changed = jax.vmap(lambda element: function(element, jnp.zeros((), x.dtype))[0])(x.reshape(-1))
        return jnp.where(marks > 0, changed.reshape(x.shape), x)

    return apply
