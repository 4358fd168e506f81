"""Gemm's third operand, integer matrix products, and Einsum as transposes and matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.shaping import reduce, reshape, squeeze, unsqueeze
from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down, up


def _require_matrices(site: Site) -> None:
    for index in (0, 1):
        value = site.required(index)
        if value.shape is not None and len(value.shape) != 2:
            site.refuse(f"expected a matrix as input {index}, got rank {len(value.shape)}")


@up("Gemm", version=7)
def gemm_broadcast_by_shape(site: Site) -> None:
    """Drop the attribute ``broadcast``: the third operand broadcasts by its shape."""
    _require_matrices(site)
    site.become(attributes=site.attributes(drop=["broadcast"]))


@down("Gemm", version=7)
def gemm_broadcast_by_attribute(site: Site) -> None:
    """Set ``broadcast``, which has no effect on equal shapes."""
    _require_matrices(site)
    c = site.required(2)
    sizes = site.static_shape(c)
    if sizes is not None and len(sizes) == 2 and sizes[1] == 1 and sizes[0] != 1:
        site.refuse("its third operand is a column")
    site.become(attributes=site.attributes(broadcast=1))


@down("Gemm", version=11)
def gemm_with_zero(site: Site) -> None:
    """Supply zero for a missing third operand."""
    if site.input(2) is None:
        zero = site.constant(np.zeros(1), site.dtype(site.required(0)))
        site.become(inputs=[site.required(0), site.required(1), zero])


@down("MatMulInteger", version=10)
def integer_product(site: Site) -> None:
    """Subtract the zero points in int32 and multiply; the products and sums fit as before."""
    operands = []
    for index, zero_index in ((0, 2), (1, 3)):
        value = site.cast(site.required(index), ir.DataType.INT32)
        zero = site.input(zero_index)
        if zero is not None:
            shift = site.cast(zero, ir.DataType.INT32)
            if index == 0 and site.rank(zero) == 1 and site.static_shape(zero) != (1,):
                shift = unsqueeze(site, shift, [1])
            value = site.emit("Sub", value, shift)
        operands.append(value)
    site.replace(site.emit("MatMul", *operands))


@dataclass(frozen=True)
class _Term:
    """An operand of an einsum: a value, and one letter for each of its axes."""

    value: ir.Value
    letters: str


@down("Einsum", version=12)
def einsum_by_products(site: Site) -> None:
    """Multiply operands from the left, and sum out letters as soon as no later operand needs them."""
    terms, result = _parse(site)
    while len(terms) > 1:
        left, right, *rest = terms
        needed = set(result).union(*(term.letters for term in rest))
        terms = [_join(site, left, right, needed), *rest]
    last = _sum_out(site, terms[0], set(result))
    if last.letters != result:
        last = _Term(site.emit("Transpose", last.value, perm=[last.letters.index(x) for x in result]), result)
    site.replace(last.value)


def _parse(site: Site) -> tuple[list[_Term], str]:
    equation = site.text("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    spare = [chr(c) for c in range(ord("A"), ord("z") + 1) if chr(c).isalpha() and chr(c) not in equation]
    specs = left.split(",")
    values = [site.required(i) for i in range(len(specs))]
    hidden = [site.rank(v) - len(s.replace("...", "")) if "..." in s else 0 for v, s in zip(values, specs, strict=True)]
    dots = "".join(spare[: max(hidden)])
    terms = [
        _diagonal(site, value, spec.replace("...", dots[len(dots) - n :]))
        for value, spec, n in zip(values, specs, hidden, strict=True)
    ]
    if arrow:
        return terms, right.replace("...", dots)
    letters = left.replace("...", "").replace(",", "")
    return terms, dots + "".join(sorted(x for x in set(letters) if letters.count(x) == 1))


def _diagonal(site: Site, value: ir.Value, letters: str) -> _Term:
    """Take the diagonal of two axes with the same letter."""
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            first, second = letters.index(letter), letters.rindex(letter)
            size = site.size(value, first)
            site.require_room(size)
            rest = [i for i in range(len(letters)) if i not in (first, second)]
            moved = site.emit("Transpose", value, perm=[*rest, first, second])
            flat = reshape(site, moved, [0] * len(rest) + [size * size])
            indices = site.constant([i * (size + 1) for i in range(size)])
            value = site.emit("Gather", flat, indices, axis=len(rest))
            letters = "".join(letters[i] for i in rest) + letter
    return _Term(value, letters)


def _sum_out(site: Site, term: _Term, needed: set[str]) -> _Term:
    axes = [i for i, letter in enumerate(term.letters) if letter not in needed]
    if not axes:
        return term
    value = reduce(site, "ReduceSum", term.value, axes, keepdims=False)
    return _Term(value, "".join(letter for letter in term.letters if letter in needed))


def _join(site: Site, left: _Term, right: _Term, needed: set[str]) -> _Term:
    """Return the product of two operands, summed over letters without further readers."""
    left = _sum_out(site, left, needed | set(right.letters))
    right = _sum_out(site, right, needed | set(left.letters))
    shared = [x for x in left.letters if x in right.letters]
    batch = [x for x in shared if x in needed]
    inner = [x for x in shared if x not in needed]
    rows = [x for x in left.letters if x not in shared]
    columns = [x for x in right.letters if x not in shared]
    if len(inner) == 1 and len(rows) <= 1 and len(columns) <= 1 and _same_size(left, right, inner[0]):
        return _matrix_product(site, left, right, batch, rows, inner, columns)
    letters = "".join([*batch, *rows, *columns, *inner])
    product = _Term(site.emit("Mul", _spread(site, left, letters), _spread(site, right, letters)), letters)
    return _sum_out(site, product, needed)


def _same_size(left: _Term, right: _Term, letter: str) -> bool:
    """Return True if a letter provably has one size in both operands: MatMul does not broadcast the depth."""
    size = _size(left, letter)
    return size is not None and size == _size(right, letter)


def _size(term: _Term, letter: str) -> int | str | None:
    if term.value.shape is None:
        return None
    dim = term.value.shape[term.letters.index(letter)]
    return dim if isinstance(dim, int) else dim.value


def _spread(site: Site, term: _Term, letters: str) -> ir.Value:
    """Return the operand with an axis for each letter, of size one for missing letters."""
    order = [term.letters.index(x) for x in letters if x in term.letters]
    value = term.value if order == sorted(order) else site.emit("Transpose", term.value, perm=order)
    missing = [i for i, letter in enumerate(letters) if letter not in term.letters]
    return unsqueeze(site, value, missing) if missing else value


def _matrix_product(
    site: Site, left: _Term, right: _Term, batch: list[str], rows: list[str], inner: list[str], columns: list[str]
) -> _Term:
    one = ["0"]
    a = _spread(site, left, "".join([*batch, *(rows or one), *inner]))
    b = _spread(site, right, "".join([*batch, *inner, *(columns or one)]))
    product = site.emit("MatMul", a, b)
    unit = [len(batch) + i for i, letters in enumerate((rows, columns)) if not letters]
    if unit:
        product = squeeze(site, product, unit)
    return _Term(product, "".join([*batch, *rows, *columns]))
