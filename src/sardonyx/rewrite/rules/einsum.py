"""Einsum that is a matrix product, written as one."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import REASSOCIATES, Expr, Match, Refusal, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import Einsum, MatMul, Transpose
from sardonyx.rewrite.site import Site

_MULTIPLIED = frozenset({"FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT32", "INT64", "UINT32", "UINT64"})
"""Element types of MatMul at every operator set that has Einsum."""


@dataclass(frozen=True)
class MatrixProduct:
    """An equation that is a matrix product.

    Attributes:
        swapped: True if the operands multiply in the other order.
        transposed: For the left and the right factor: True if its last two axes are exchanged.
        contracted: The letter of the contracted axis.
    """

    swapped: bool
    transposed: tuple[bool, bool]
    contracted: str


def matrix_product(equation: str) -> MatrixProduct | None:
    """Parse an equation such as ``bij,bjk->bik``; None if it is not a matrix product.

    The batch axes come first and in the same order everywhere; one factor may have none of them.
    """
    operands, arrow, result = equation.replace(" ", "").partition("->")
    first, comma, second = operands.partition(",")
    if not arrow or not comma or "," in second:
        return None
    for swapped, (left, right) in enumerate(((first, second), (second, first))):
        product = _as_product(left, right, result)
        if product is not None:
            return MatrixProduct(bool(swapped), *product)
    return None


def _as_product(left: str, right: str, result: str) -> tuple[tuple[bool, bool], str] | None:
    batch, rows, columns = result[:-2], result[-2:-1], result[-1:]
    for term in (left, right, result):
        letters = term.replace("...", "")
        if len(term) < 2 or not letters[-2:].isalpha() or len(letters) < 2 or len(set(letters)) != len(letters):
            return None
        if "..." in term and not term.startswith("..."):
            return None
    if (left[:-2] != batch and right[:-2] != batch) or not {left[:-2], right[:-2]} <= {batch, ""}:
        return None
    if rows not in left[-2:] or columns not in right[-2:] or rows == columns:
        return None
    summed = left[-2:].replace(rows, "")
    if summed != right[-2:].replace(columns, "") or len(summed) != 1 or summed in result:
        return None
    return (left[-1] == rows, right[-2] == columns), summed


def _product(s: Site) -> tuple[MatrixProduct, ir.Value, ir.Value] | Refusal | None:
    equation = s.attr("equation")
    left, right = s.input(0), s.input(1)
    if len(s.node.inputs) != 2 or left is None or right is None or facts.refers_to_function_attribute(s.node):
        return None
    product = matrix_product(equation if isinstance(equation, str) else "")
    if product is None:
        return Refusal("the equation is not a matrix product")
    kind = facts.dtype(left)
    if kind is None or kind.name not in _MULTIPLIED:
        return Refusal("MatMul does not have this element type")
    if product.swapped:
        left, right = right, left
    a, b = s.sizes.dims(left), s.sizes.dims(right)
    if a is None or b is None or min(len(a), len(b)) < 2:
        return Refusal("the ranks are not known")
    summed = a[-2 if product.transposed[0] else -1], b[-1 if product.transposed[1] else -2]
    if summed[0] != summed[1]:
        return Refusal("the sizes summed over are not known to be equal, and Einsum repeats a size of 1")
    return product, left, right


@rule("replace_einsum_with_matmul", exactness=REASSOCIATES, opset=12)
def plain_product(x: V, y: V) -> Rewrite:
    """Einsum("ij,jk->ik", x, y) is x @ y, also with batch axes and with the operands in the other order."""

    def multiplied(m: Match) -> Result:
        product = _product(m.site)
        if not isinstance(product, tuple):
            return product
        equation, left, right = product
        return None if any(equation.transposed) else MatMul(left, right)

    return Einsum(x, y) >> multiplied


@rule("replace_einsum_with_matmul", exactness=REASSOCIATES, opset=12, default=False)
def product_of_transposed(x: V, y: V) -> Rewrite:
    """Einsum("ij,kj->ik", x, y) is x @ Transpose(y), likewise with x or both transposed."""

    def multiplied(m: Match) -> Result:
        product = _product(m.site)
        if not isinstance(product, tuple):
            return product
        equation, *factors = product
        operands = [_transpose(v) if swap else v for v, swap in zip(factors, equation.transposed, strict=True)]
        return MatMul(*operands) if any(equation.transposed) else None

    return Einsum(x, y) >> multiplied


def _transpose(value: ir.Value) -> Expr:
    rank = facts.rank(value)
    assert rank is not None
    return Transpose(value, perm=[*range(rank - 2), rank - 1, rank - 2])
