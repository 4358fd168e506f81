"""A differentiable function of every primitive, with arguments, for gradients and all other transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.core.programs import spectrum

from sardonyx.core import language as L
from sardonyx.core.dim import as_dim
from sardonyx.core.eval.tensor import apply
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType


def traced(body: Callable[..., Any], *shapes: str) -> Function:
    """The sum of what a function gives, each result weighted otherwise.

    Shapes are written ``"N 4"``; of integers with a colon before: ``":N 4"``. All others are doubles.
    """

    def total(*inputs: L.Tensor) -> list[L.Tensor]:
        results = body(*inputs)
        actual = L.constant(0.0, t.DOUBLE)
        for k, y in enumerate(results if isinstance(results, (list, tuple)) else [results]):
            weights = L.cos(L.cast(L.reshape(L.arange(L.product(y.shape)), y.shape), t.DOUBLE) + k)
            actual = actual + L.reduce_sum(y * weights)
        return [actual]

    types = [
        TensorType(
            t.INT64 if text.startswith(":") else t.DOUBLE, tuple(map(as_dim, map(_size, text.lstrip(":").split())))
        )
        for text in shapes
    ]
    return trace("total", total, types)


def _size(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape)


CASES: dict[str, tuple[Function, list[np.ndarray]]] = {}
"""By primitive: a function of one number, and its arguments."""


def case(name: str, body: Callable[..., Any], arguments: dict[str, np.ndarray] | list[tuple[str, np.ndarray]]) -> None:
    pairs = list(arguments.items() if isinstance(arguments, dict) else arguments)
    CASES[name] = traced(body, *(shape for shape, _ in pairs)), [array for _, array in pairs]


X, Y = numbers(3, 4), numbers(3, 4, seed=1)
for _op in [
    "neg",
    "abs",
    "exp",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "atanh",
    "erf",
]:
    case(_op, lambda x, op=_op: apply(op, x), {"N M": X * 0.4})
for _op in ("log", "sqrt", "acosh"):
    case(_op, lambda x, op=_op: apply(op, x), {"N M": np.abs(X) + 1.2})
for _op in ("add", "sub", "mul", "div", "rem", "max", "min"):
    case(_op, lambda a, b, op=_op: apply(op, a, b), [("N M", X * 4), ("N M", Y + 2.5)])
case("pow", lambda a, b: a**b, [("N M", np.abs(X) + 0.1), ("N M", Y)])
case("pow of 0 and of negative numbers", lambda a: a**2.0 + a**3.0 + a**0.0, {"5": np.array([-2.0, -1, 0, 1, 2])})
case("select", lambda a, b: L.where(a < b, a * 2.0, b * 3.0), [("N M", X), ("N M", Y)])
case("convert", lambda x: L.cast(L.cast(L.cast(x, t.COMPLEX128), t.DOUBLE), t.DOUBLE), {"N": X[0]})
case("floor sign round", lambda x: x * (L.floor(x) + L.sign(x) + L.round_(x) + L.ceil(x)), {"N": X[0]})
case("dims", lambda x: x * L.cast(L.size_tensor([x.shape[0]], ()), t.DOUBLE), {"N": X[0]})
case("random", lambda x: x * L.normal(x.shape, t.DOUBLE, seed=1.0, identity=""), {"N": X[0]})


def complex_arithmetic(a: L.Tensor, b: L.Tensor) -> list[L.Tensor]:
    p, q = L.bitcast(a, t.COMPLEX128), L.bitcast(b, t.COMPLEX128)
    return [L.bitcast(z, t.DOUBLE) for z in (p * q / (p + 2.0), L.exp(p) + L.sin(q) - L.sqrt(p))]


case("bitcast", complex_arithmetic, [("N 2", numbers(3, 2)), ("N 2", numbers(3, 2, seed=1))])
for _kind in ("add", "mul", "max", "min"):
    case(
        f"reduce {_kind}",
        lambda x, kind=_kind: [apply("reduce", x, kind=kind, axes=axes) for axes in ((0,), (2, 0), (0, 1, 2))],
        {"N M K": numbers(3, 4, 2)},
    )
    case(f"scan {_kind}", lambda x, kind=_kind: [L.cumulative(kind, x, axis) for axis in (0, 1)], {"N M": X})
zeros = np.array([[0.0, 2, 3], [0, 0, 1], [1, 2, 3]])
case("reduce mul with zeros", lambda x: apply("reduce", x, kind="mul", axes=(1,)), {"N M": zeros})
case("scan mul with zeros", lambda x: L.cumulative("mul", x, 0), {"N": np.array([2.0, 0, 3, 0, 1])})
case(
    "contract",
    lambda x, y: L.contract(x, y, batch=[(0, 1)], left=[3, 2], right=[2, 0]),
    {"2 N 4 M": numbers(2, 3, 4, 5), "4 2 M 3": numbers(4, 2, 5, 3)},
)
case("reshape", lambda x: L.reshape(x, (x.shape[0] * x.shape[1],)), {"N M": X})
case("permute", lambda x: L.permute(x, [2, 0, 1]), {"N M K": numbers(3, 4, 2)})
case("broadcast", lambda x, y: L.broadcast_to(x, (2, 3, 4)) * y, {"1 4": numbers(1, 4), "2 3 4": numbers(2, 3, 4)})
case("broadcast of a size that is 1 when run", lambda x, y: x * y, {"N M": numbers(1, 4), "K M": X})
case("broadcast of a size that is not 1 when run", lambda x, y: x * y, {"N M": X, "K M": Y})
case("broadcast of all", lambda x, y: x * y, {"N M": numbers(1, 4), "K J": numbers(3, 1)})
case(
    "slice",
    lambda x: [L.slice_(x, 0, 1, 6, 2), L.slice_(x, 1, 1, 4), L.slice_(x, 0, 2, x.shape[0], 3)],
    {"N 4": numbers(8, 4)},
)
case(
    "pad",
    lambda x, v: [L.pad(x, [1, -1], [2, 0], v), L.pad(x, [-1, 1], [0, -2], v, [2, 1])],
    {"N M": X, "": numbers()},
)
case("concat", lambda x, y: L.concat([x, y, x], 1), {"N M": X, "N K": numbers(3, 2)})
case("gather with repeated indices", lambda x, i: L.take(x, i, 1), {"N M": X, ":K": np.array([1, -1, 1])})
case(
    "gather with shared axes",
    lambda x, i: L.gather_nd(x, i, batch=1),
    {"N M": X, ":N 2 1": np.array([[[0], [3]], [[1], [1]], [[2], [0]]])},
)
for _kind in ("set", "add", "mul"):
    case(
        f"scatter {_kind} with repeated indices",
        lambda x, u, i, kind=_kind: L.scatter_nd(x, i, u, kind),
        {
            "N 2": numbers(4, 2),
            "K 2": np.round(numbers(5, 2, seed=3)),
            ":K 1": np.array([[1], [3], [1], [3], [3]]),
        },
    )
for _kind in ("max", "min"):
    case(
        f"scatter {_kind} with repeated indices",
        lambda x, u, i, kind=_kind: L.scatter_elements(x, i, u, 0, kind),
        {
            "N 2": numbers(4, 2),
            "K 2": numbers(5, 2, seed=3),
            ":K 2": np.array([[1, 0], [3, 1], [1, 1], [3, 1], [3, 1]]),
        },
    )
case("reverse", lambda x: L.reverse(x, [1]), {"N M": X})
case("sort", lambda x: L.gather_elements(x, L.sort(x, 1, True), 1), {"N M": X})
case("top_k", lambda x: L.gather_elements(x, L.top_k(x, 0, 2), 0), {"N M": X})
case("fft", spectrum, {"N 5": numbers(2, 5)})
case(
    "inverse fft",
    lambda x: L.bitcast(L.fft(L.bitcast(x, t.COMPLEX128), inverse=True), t.DOUBLE),
    {"N 2": numbers(6, 2)},
)
case("determinant", L.determinant, {"K N N": numbers(2, 3, 3)})
case("determinant of a singular matrix", L.determinant, {"3 3": np.arange(9.0).reshape(3, 3)})
case("determinant of a number", L.determinant, {"2 1 1": numbers(2, 1, 1)})


def looped(x: L.Tensor, w: L.Tensor, n: L.Tensor) -> list[L.Tensor]:
    def once(i: L.Tensor, state: L.Tensor, count: L.Tensor):
        row = L.tanh(L.matmul(w, state) + x * L.cast(count, t.DOUBLE))
        return L.reduce_sum(row * row) < 1000.0, [row, count + 2], [row * row, i, L.reduce_sum(state)]

    (state, count), (rows, _, sums) = L.loop(n, None, [x * 2.0, L.constant(1, t.INT64)], once)
    return [state, L.cast(count, t.DOUBLE), rows, L.cumulative("add", sums, 0)]
