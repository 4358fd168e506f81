"""Factorizations as functions of JAX over loops, whose equations replace the primitive."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from sardonyx.convert.jax.translation import Context, rule
from sardonyx.errors import UnsupportedError


def inlined(c: Context, function: Callable[..., Any], equation: Any, inputs: tuple[ir.Value, ...]) -> list[ir.Value]:
    """Return the results of a function of JAX over the operands of an equation."""
    import jax

    operands = [jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype) for variable in equation.invars]
    closed = jax.make_jaxpr(function)(*operands)
    return c.call(closed.jaxpr, closed.consts, list(inputs))


def batched(function: Callable[..., Any], rank: int, operands: int = 1) -> Callable[..., Any]:
    """Return a function of matrices for stacks of matrices.

    Args:
        function: The function of matrices.
        rank: Rank of the operands.
        operands: Number of operands.
    """
    import jax

    for _ in range(rank - 2):
        function = jax.vmap(function, in_axes=(0,) * operands)
    return function


def _rank(equation: Any) -> int:
    return len(equation.invars[0].aval.shape)


def _require_real(equation: Any) -> None:
    if any(variable.aval.dtype.kind == "c" for variable in equation.invars):
        raise UnsupportedError(f"the primitive '{equation.primitive.name}' has no translation for complex numbers")


@rule("cholesky")
def _cholesky(c: Context, e: Any, *inputs: ir.Value) -> Any:
    return inlined(c, batched(_lower_factor, _rank(e)), e, inputs)


def _lower_factor(a: Any) -> Any:
    """Return the lower Cholesky factor of a matrix, column by column; all of it NaN if a pivot is not positive."""
    import jax.numpy as jnp
    from jax import lax

    n = a.shape[-1]
    rows = jnp.arange(n)

    def column(j: Any, factor: Any) -> Any:
        row = lax.dynamic_index_in_dim(factor, j, 0, keepdims=False)
        rest = lax.dynamic_index_in_dim(a, j, 1, keepdims=False) - factor @ row
        pivot = jnp.sqrt(jnp.where(rows == j, rest, 0).sum())
        values = jnp.where(rows >= j, rest / pivot, 0)
        return jnp.where(rows[None, :] == j, values[:, None], factor)

    factor = lax.fori_loop(0, n, column, jnp.zeros_like(a))
    pivots = jnp.where(rows[:, None] == rows, factor, 0).sum(1)
    has_failed = jnp.logical_not((pivots > 0).all())
    return jnp.where(has_failed & (rows[:, None] >= rows), jnp.nan, factor)


@rule("lu")
def _lu(c: Context, e: Any, *inputs: ir.Value) -> Any:
    return inlined(c, batched(_pivoted_factors, _rank(e)), e, inputs)


def _pivoted_factors(a: Any) -> Any:
    """Return factors with partial pivoting in one matrix, the exchanges, and the permutation of the rows."""
    import jax.numpy as jnp
    from jax import lax

    m, n = a.shape
    rows = jnp.arange(m)
    count = min(m, n)

    def exchanged(x: Any, k: Any, p: Any) -> Any:
        order = jnp.where(rows == k, p, jnp.where(rows == p, k, rows))
        return jnp.take(x, order, axis=0)

    def step(k: Any, state: Any) -> Any:
        x, pivots, order = state
        column = lax.dynamic_index_in_dim(x, k, 1, keepdims=False)
        p = jnp.argmax(jnp.where(rows >= k, jnp.abs(column), -1)).astype(jnp.int32)
        x, order = exchanged(x, k, p), exchanged(order, k, p)
        pivots = jnp.where(jnp.arange(count) == k, p, pivots)
        row = lax.dynamic_index_in_dim(x, k, 0, keepdims=False)
        column = lax.dynamic_index_in_dim(x, k, 1, keepdims=False)
        pivot = jnp.where(rows == k, column, 0).sum()
        factors = jnp.where((rows > k) & (pivot != 0), column / jnp.where(pivot == 0, 1, pivot), 0)
        x = x - factors[:, None] * jnp.where(jnp.arange(n) > k, row, 0)[None, :]
        below = (rows[:, None] > k) & (jnp.arange(n)[None, :] == k)
        return jnp.where(below & (pivot != 0), factors[:, None], x), pivots, order

    start = (a, jnp.zeros(count, jnp.int32), jnp.arange(m, dtype=jnp.int32))
    return lax.fori_loop(0, count, step, start)


@rule("custom_linear_solve")
def _linear_solve(c: Context, e: Any, *inputs: ir.Value) -> Any:
    lengths, solve = e.params["const_lengths"], e.params["jaxprs"].solve
    before = lengths.matvec + lengths.vecmat
    constants = inputs[before : before + lengths.solve]
    right = inputs[before + lengths.solve + lengths.transpose_solve :]
    return c.call(solve.jaxpr, solve.consts, [*constants, *right])


@rule("tridiagonal_solve")
def _tridiagonal_solve(c: Context, e: Any, *inputs: ir.Value) -> Any:
    """Translate systems of three diagonals by elimination without pivots."""
    import jax.numpy as jnp
    from jax import lax

    def solve(lower: Any, middle: Any, upper: Any, right: Any) -> Any:
        def forward(state: Any, row: Any) -> Any:
            factor, known = state
            low, centre, high, b = row
            pivot = centre - low * factor
            state = (high / pivot, (b - low * known) / pivot)
            return state, state

        start = (jnp.zeros_like(middle[0]), jnp.zeros_like(right[0]))
        _, (factors, known) = lax.scan(forward, start, (lower, middle, upper, right))

        def back(after: Any, row: Any) -> Any:
            factor, value = row
            x = value - factor * after
            return x, x

        return lax.scan(back, jnp.zeros_like(right[0]), (factors, known), reverse=True)[1]

    return inlined(c, batched(solve, _rank(e) + 1, operands=4), e, inputs)


@rule("triangular_solve")
def _triangular_solve(c: Context, e: Any, *inputs: ir.Value) -> Any:
    _require_real(e)
    parameters = e.params

    def solved(a: Any, b: Any) -> Any:
        transposed = bool(parameters["transpose_a"])
        if not parameters["left_side"]:
            # x · op(a) = b is op(a)ᵀ · xᵀ = bᵀ.
            b, transposed = b.T, not transposed
        a = a.T if transposed else a
        x = _substituted(a, b, bool(parameters["lower"]) != transposed, bool(parameters["unit_diagonal"]))
        return x if parameters["left_side"] else x.T

    return inlined(c, batched(solved, _rank(e), 2), e, inputs)


def _substituted(a: Any, b: Any, is_lower: bool, has_unit_diagonal: bool) -> Any:
    """Return the solution of a triangular system, row by row."""
    import jax.numpy as jnp
    from jax import lax

    n = a.shape[0]
    rows = jnp.arange(n)

    def step(i: Any, x: Any) -> Any:
        k = i if is_lower else n - 1 - i
        row = lax.dynamic_index_in_dim(a, k, 0, keepdims=False)
        known = jnp.where(rows < k if is_lower else rows > k, row, 0)
        value = lax.dynamic_index_in_dim(b, k, 0, keepdims=False) - known @ x
        if not has_unit_diagonal:
            value = value / jnp.where(rows == k, row, 0).sum()
        return jnp.where(rows[:, None] == k, value[None, :], x)

    return lax.fori_loop(0, n, step, jnp.zeros_like(b))


@rule("ragged_dot_general")
def _ragged_product(c: Context, e: Any, *inputs: ir.Value) -> Any:
    """Translate products of groups of rows as JAX does where no kernel has them: dense, under masks."""
    function = getattr(importlib.import_module("jax._src.lax.lax"), "_ragged_dot_general_impl", None)
    if function is None:
        raise UnsupportedError("the primitive 'ragged_dot_general' of this version of jax", where="jax")
    names = ("ragged_dot_dimension_numbers", "preferred_element_type", "group_offset")
    options = {name: e.params[name] for name in names if name in e.params}
    return inlined(c, lambda *arrays: function(*arrays, **options), e, inputs)
