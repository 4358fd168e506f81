"""QR, eigenvalues of symmetric matrices and singular values, as functions of JAX over loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.jax.linear_algebra import batched, inlined
from sardonyx.convert.jax.translation import Context, rule
from sardonyx.errors import UnsupportedError

_SWEEPS = {"float64": 14}
"""Number of sweeps of Jacobi's method by element type, 10 for others; convergence is quadratic."""


def _require(e: Any, **allowed: Any) -> tuple[int, int]:
    """Return the sizes of the matrices, which are known and of real numbers, with these parameters at most."""
    name, (aval,) = e.primitive.name, (e.invars[0].aval,)
    rows, columns = aval.shape[-2:]
    if aval.dtype.kind == "c":
        raise UnsupportedError(f"the primitive '{name}' has no translation for complex numbers", where="jax")
    if not (isinstance(rows, int) and isinstance(columns, int)):
        raise UnsupportedError(
            f"the primitive '{name}' of matrices of open sizes", where="jax", remedy="Fix the sizes."
        )
    for parameter, value in allowed.items():
        if e.params.get(parameter, value) != value:
            raise UnsupportedError(f"the primitive '{name}' with {parameter}={e.params[parameter]}", where="jax")
    return rows, columns


@rule("qr")
def _qr(c: Context, e: Any, *inputs: ir.Value) -> Any:
    _require(e, pivoting=False)
    is_full = bool(e.params["full_matrices"])
    return inlined(c, batched(lambda a: householder(a, is_full), len(e.invars[0].aval.shape)), e, inputs)


def householder(a: Any, is_full: bool) -> tuple[Any, Any]:
    """Return Q and R of a matrix, with the signs of LAPACK."""
    import jax.numpy as jnp
    from jax import lax

    rows, columns = a.shape
    line = jnp.arange(rows)

    def step(k: Any, state: Any) -> Any:
        q, r = state
        x = jnp.where(line >= k, lax.dynamic_index_in_dim(r, k, 1, keepdims=False), 0)
        first = jnp.where(line == k, x, 0).sum()
        rest = jnp.where(line > k, x * x, 0).sum()
        norm = jnp.sqrt(first * first + rest)
        v = x + jnp.where(line == k, jnp.where(first < 0, -norm, norm), 0)
        length = (v * v).sum()
        factor = jnp.where(rest > 0, 2 / jnp.where(length > 0, length, 1), 0)
        return q - factor * (q @ v)[:, None] * v[None, :], r - factor * v[:, None] * (v @ r)[None, :]

    count = min(rows, columns)
    q, r = lax.fori_loop(0, count, step, (jnp.eye(rows, dtype=a.dtype), a))
    r = jnp.triu(r)
    return (q, r) if is_full else (q[:, :count], r[:count])


def _rounds(n: int) -> np.ndarray[Any, Any]:
    """Return the pairs of a tournament of n players (n is even) as one-hot rows: [round, side, pair, player]."""
    players, result = list(range(n)), []
    for _ in range(n - 1):
        pairs = [sorted((players[i], players[n - 1 - i])) for i in range(n // 2)]
        result.append(np.eye(n)[np.array(pairs).T])
        players = [players[0], players[-1], *players[1:-1]]
    return np.stack(result)


def _rotation(first: Any, second: Any, product: Any, left: Any, right: Any) -> Any:
    """Return the rotations of pairs of axes that make the products zero, as one matrix."""
    import jax.numpy as jnp

    is_done = product == 0
    slope = (second - first) / jnp.where(is_done, 1, 2 * product)
    tangent = jnp.where(slope < 0, -1, 1) / (jnp.abs(slope) + jnp.sqrt(1 + slope * slope))
    tangent = jnp.where(is_done, 0, tangent)
    cosine = 1 / jnp.sqrt(1 + tangent * tangent)
    sine = (tangent * cosine)[:, None]
    shorter = (cosine - 1)[:, None]
    turn = left.T @ (shorter * left + sine * right) + right.T @ (shorter * right - sine * left)
    return turn + jnp.eye(left.shape[1], dtype=turn.dtype)


@rule("eigh")
def _eigh(c: Context, e: Any, *inputs: ir.Value) -> Any:
    _require(e, subset_by_index=None)
    is_lower, is_sorted = bool(e.params["lower"]), bool(e.params.get("sort_eigenvalues", True))
    function = batched(lambda a: eigenvalues(a, is_lower, is_sorted), len(e.invars[0].aval.shape))
    return inlined(c, function, e, inputs)


def eigenvalues(a: Any, is_lower: bool = True, is_sorted: bool = True) -> tuple[Any, Any]:
    """Return vectors and values of a symmetric matrix by Jacobi's method, disjoint pairs of axes at once."""
    import jax.numpy as jnp
    from jax import lax

    n = a.shape[0]
    half = jnp.tril(a, -1) if is_lower else jnp.triu(a, 1)
    a = half + half.T + jnp.diag(jnp.diagonal(a))
    even = n + n % 2
    a = jnp.pad(a, (0, even - n))
    pairs = jnp.asarray(_rounds(max(even, 2)), a.dtype)

    def step(k: Any, state: Any) -> Any:
        a, vectors = state
        left, right = lax.dynamic_index_in_dim(pairs, k % pairs.shape[0], 0, keepdims=False)
        from_left, from_right = left @ a, right @ a
        first, second = (from_left * left).sum(1), (from_right * right).sum(1)
        turn = _rotation(first, second, (from_left * right).sum(1), left, right)
        a = turn.T @ a @ turn
        return (a + a.T) / 2, vectors @ turn

    count = _SWEEPS.get(str(a.dtype), 10) * pairs.shape[0]
    a, vectors = lax.fori_loop(0, count, step, (a, jnp.eye(even, dtype=a.dtype)))
    values, vectors = jnp.diagonal(a)[:n], vectors[:n, :n]
    if is_sorted:
        order = jnp.argsort(values)
        values, vectors = values[order], vectors[:, order]
    return vectors, values


@rule("svd")
def _svd(c: Context, e: Any, *inputs: ir.Value) -> Any:
    _require(e, subset_by_index=None)
    is_full, has_vectors = bool(e.params["full_matrices"]), bool(e.params["compute_uv"])

    def function(a: Any) -> Any:
        parts = singular_values(a, is_full)
        return parts if has_vectors else parts[0]

    return inlined(c, batched(function, len(e.invars[0].aval.shape)), e, inputs)


def singular_values(a: Any, is_full: bool) -> tuple[Any, Any, Any]:
    """Return singular values, left vectors and transposed right vectors: columns are made orthogonal by rotations."""
    import jax.numpy as jnp
    from jax import lax

    rows, columns = a.shape
    if rows < columns:
        values, right, left = singular_values(a.T, is_full)
        return values, left.T, right.T
    even = columns + columns % 2
    pairs = jnp.asarray(_rounds(max(even, 2)), a.dtype)

    def step(k: Any, state: Any) -> Any:
        x, vectors = state
        left, right = lax.dynamic_index_in_dim(pairs, k % pairs.shape[0], 0, keepdims=False)
        one, other = x @ left.T, x @ right.T
        turn = _rotation((one * one).sum(0), (other * other).sum(0), (one * other).sum(0), left, right)
        return x @ turn, vectors @ turn

    start = (jnp.pad(a, ((0, 0), (0, even - columns))), jnp.eye(even, dtype=a.dtype))
    count = _SWEEPS.get(str(a.dtype), 10) * pairs.shape[0]
    x, vectors = lax.fori_loop(0, count, step, start)
    x, vectors = x[:, :columns], vectors[:columns, :columns]
    values = jnp.sqrt((x * x).sum(0))
    order = jnp.argsort(-values)
    values, vectors = values[order], vectors[:, order]
    q, r = householder(x[:, order], is_full)
    signs = jnp.where(jnp.diagonal(r) < 0, -1, 1).astype(a.dtype)
    left = q * jnp.concatenate([signs, jnp.ones(q.shape[1] - columns, a.dtype)]) if is_full else q * signs
    return values, left, vectors.T


@rule("lu_pivots_to_permutation")
def _permutation(c: Context, e: Any, *inputs: ir.Value) -> Any:
    import jax
    import jax.numpy as jnp
    from jax import lax

    size = e.params["permutation_size"]

    def function(pivots: Any) -> Any:
        line = jnp.arange(size, dtype=pivots.dtype)

        def step(k: Any, order: Any) -> Any:
            other = lax.dynamic_index_in_dim(pivots, k, 0, keepdims=False)
            swapped = jnp.where(line == k, other, jnp.where(line == other, k, line)).astype(jnp.int32)
            return order[swapped]

        return lax.fori_loop(0, pivots.shape[0], step, line)

    for _ in range(len(e.invars[0].aval.shape) - 1):
        function = jax.vmap(function)
    return inlined(c, function, e, inputs)
