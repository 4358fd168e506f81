"""Products: matrices, Einstein sums, determinants, and the integer products of quantized matrices.

Source: ONNX Operators, *MatMul*, *Gemm*, *Einsum*, *Det*, *MatMulInteger*, *QLinearMatMul*.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.definitions.quantization import requantize
from sardonyx.ops.registry import operator


@operator("MatMul", since=1)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return L.matmul(a, b)


@operator("Gemm", since=1)
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> Tensor:
    """Return ``alpha * a @ b + beta * c``; as in BLAS, ``c`` is not read if ``beta`` is 0."""
    for matrix in (a, b):
        if matrix.rank != 2:
            raise ShapeError(f"expected matrices as operands of Gemm, got rank {matrix.rank}.")
    y = _scale(L.contract(a, b, left=[0 if transA else 1], right=[1 if transB else 0]), alpha)
    if c is None or beta == 0:
        return y
    return y + L.broadcast_to(_scale(c, beta), y.shape)


def _scale(x: Tensor, factor: float) -> Tensor:
    """Multiply by a real factor, also integers."""
    if factor == 1:
        return x
    return x * factor if t.is_float(x.dtype) else L.cast(L.cast(x, t.DOUBLE) * factor, x.dtype)


@operator("Einsum", since=12)
def einsum(*inputs: Tensor, equation: str) -> Tensor:
    return L.einsum(_explicit(equation, [x.rank for x in inputs]), *inputs)


def _explicit(equation: str, ranks: Sequence[int]) -> str:
    """Return the equation with letters for every ellipsis, and with a right-hand side.

    The implicit right-hand side is the axes of the ellipsis, then the letters that occur once, in ASCII order.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise InvalidModelError(f"{equation!r} has {len(terms)} terms, expected {len(ranks)}, one for each operand.")
    letters = [c for c in left if c in string.ascii_letters]
    spans = [
        rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)
    ]
    if set(left + right) - set(string.ascii_letters + ",."):
        raise InvalidModelError(f"expected only letters, commas, an arrow and ellipses in the equation {equation!r}.")
    unused = [c for c in string.ascii_letters if c not in letters]
    if min(spans) < 0 or max(spans) > len(unused):
        raise ShapeError(f"{equation!r} does not fit operands of ranks {list(ranks)}.")
    shared = "".join(unused[: max(spans)])
    if not arrow:
        right = "..." + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    terms = [term.replace("...", shared[len(shared) - span :]) for term, span in zip(terms, spans, strict=True)]
    return f"{','.join(terms)}->{right.replace('...', shared)}"


@operator("Det", since=11)
def determinant(x: Tensor) -> Tensor:
    return L.determinant(x)


@operator("MatMulInteger", since=10)
def matmul_integer(
    a: Tensor, b: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    return L.matmul(subtract_zero_point(a, _by_row(a, a_zero_point)), subtract_zero_point(b, b_zero_point))


def subtract_zero_point(x: Tensor, zero_point: Tensor | None) -> Tensor:
    """Subtract the zero point from quantized numbers, as int32."""
    wide = L.cast(x, t.INT32)
    return wide if zero_point is None else wide - L.cast(zero_point, t.INT32)


def _by_row(a: Tensor, parameter: Tensor | None) -> Tensor | None:
    """Reshape a scale or zero point for each row of ``a`` to broadcast over ``a``."""
    return L.unsqueeze(parameter, [-1]) if parameter is not None and parameter.rank == 1 and a.rank > 1 else parameter


@operator("QLinearMatMul", since=10)
def quantized_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    total = matmul_integer(a, b, a_zero_point, b_zero_point)
    return requantize(total, _by_row(a, a_scale), b_scale, y_scale, y_zero_point)  # type: ignore[arg-type]
