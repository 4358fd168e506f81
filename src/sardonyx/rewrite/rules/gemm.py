"""Matrix products: fuse bias, scale and Transpose into Gemm; merge products that share an input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import (
    REASSOCIATES,
    SILENT,
    AnyOf,
    Guard,
    Match,
    Patch,
    Refusal,
    Result,
    Rewrite,
    V,
    guard,
    rank,
    rule,
    unshared,
    where,
)
from sardonyx.rewrite.notation import Concat, Gemm, MatMul, Transpose
from sardonyx.rewrite.rules.signatures import build_split
from sardonyx.rewrite.site import Site

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def broadcasts_into_rows(s: Site, value: ir.Value, x: ir.Value, w: ir.Value) -> bool:
    """Return True if ``value`` certainly broadcasts to the product of matrices x and w, as Gemm's C must."""
    shape, left, right = (s.sizes.dims(operand) for operand in (value, x, w))
    return shape is not None and left is not None and right is not None and _fits(shape, left[0], right[1])


def _fits(shape: Sequence[Size], rows: Size, columns: Size) -> bool:
    """Return True if a shape certainly broadcasts to a matrix of some rows and columns."""
    if len(shape) > 2:
        return False
    pairs = zip(reversed(shape), (columns, rows), strict=False)
    return all(size == 1 or equal(size, whole) is True for size, whole in pairs)


def suits_gemm(x: V) -> Guard:
    """Guard: engines have a kernel of Gemm for the element type."""
    return guard(lambda m: facts.dtype(m.bound[x.name]) in FLOATS, "Gemm of integers has no kernel in most engines")


def is_gemm_bias(b: V, x: V, w: V) -> Guard:
    """Guard: b is a bias that Gemm at this opset accepts for the product of matrices x and w."""

    def objection(m: Match) -> Refusal | None:
        bias = m.bound[b.name]
        if not broadcasts_into_rows(m.site, bias, m.bound[x.name], m.bound[w.name]):
            return Refusal("the bias does not broadcast to the product")
        if m.site.opset < 11 and facts.rank(bias) == 0:
            return Refusal("a scalar bias needs opset 11")
        return None

    return objection


@rule("fuse_matmul_add_bias_into_gemm", exactness=REASSOCIATES, opset=7)
def matmul_add(x: V, w: V, b: V) -> Rewrite:
    """Fuse x @ w + b into Gemm(x, w, b) for matrices x and w."""
    return x @ w + b >> Gemm(x, w, b) | where(
        rank(x) == 2, rank(w) == 2, unshared, suits_gemm(x), is_gemm_bias(b, x, w)
    )


def _is_matrix_transpose(node: ir.Node) -> bool:
    perm: Sequence[int] | None = facts.attribute(node, "perm", 13)
    return perm is None or list(perm) == [1, 0]


def swaps_axes(m: Match) -> Refusal | None:
    """Guard: every matched Transpose of a matrix swaps its two axes."""
    return None if all(_is_matrix_transpose(node) for node in m.nodes if node.op_type == "Transpose") else SILENT


@rule("fuse_matmul_add_bias_into_gemm", exactness=REASSOCIATES, opset=7)
def transposed_matmul_add(x: V, w: V, b: V) -> Rewrite:
    """Fuse (w @ x)ᵀ + b into Gemm(x, w, b) with both operands transposed, for matrices x and w."""

    def objection(m: Match) -> Refusal | None:
        left, right, shape = (m.site.sizes.dims(operand) for operand in (m.x, m.w, m.b))
        if shape is None or left is None or right is None or not _fits(shape, left[1], right[0]):
            return Refusal("the bias does not broadcast to the product")
        if m.site.opset < 11 and not shape:
            return Refusal("a scalar bias needs opset 11")
        return None

    return Transpose(w @ x) + b >> Gemm(x, w, b, transA=1, transB=1) | where(
        rank(x) == 2, rank(w) == 2, unshared, swaps_axes, suits_gemm(x), objection
    )


@rule("fuse_transpose_into_gemm", on="Gemm", exactness=REASSOCIATES, opset=7)
def transposed_operand(s: Site) -> Result:
    """Fuse a Transpose of an operand into a flag of the Gemm."""
    flags = {"transA": s.attr("transA", 0), "transB": s.attr("transB", 0)}
    operands = list(s.node.inputs)
    changed = False
    for index, flag in ((0, "transA"), (1, "transB")):
        node = s.producer(index, "Transpose")
        if node is not None and facts.attribute(node, "perm", s.opset) in (None, (1, 0), [1, 0]):
            operands[index] = node.inputs[0]
            flags[flag] = 1 - flags[flag]
            changed = True
    if not changed:
        return None
    return Gemm(
        *operands,
        alpha=s.attr("alpha"),
        beta=s.attr("beta"),
        **dict[str, Any]({k: v or None for k, v in flags.items()}),
    )


@rule("fuse_transpose_into_matmul", on="MatMul", after="Transpose", exactness=REASSOCIATES, opset=11)
def transposed_matrix(s: Site) -> Result:
    """Fuse a Transpose of one of two matrices and their product into one Gemm."""
    sources = [_transpose_source(s, value) for value in s.node.inputs]
    if sum(source is not None for source in sources) != 1 or any(facts.rank(value) != 2 for value in s.node.inputs):
        return None
    if facts.dtype(s.input(0)) not in FLOATS:
        return Refusal("Gemm of integers has no kernel in most engines")
    (a, b), (x, y) = s.node.inputs, sources
    return Gemm(x or a, y or b, transA=1 if x is not None else None, transB=1 if y is not None else None)


def _transpose_source(s: Site, value: ir.Value | None) -> ir.Value | None:
    """Return the matrix before a Transpose of which ``value`` is the only use, or None."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.graph is not s.graph or not facts.is_op(node, "Transpose"):
        return None
    return node.inputs[0] if _is_matrix_transpose(node) and facts.used_once(value) else None


@rule("fuse_transpose_after_gemm", exactness=REASSOCIATES, opset=11)
def transposed_result(a: V, b: V) -> Rewrite:
    """Fuse a Transpose of a Gemm: swap the operands and toggle their flags."""

    def swap(m: Match) -> Result:
        gemm = m.nodes[1]
        if facts.refers_to_function_attribute(gemm) or not _is_matrix_transpose(m.root):
            return None
        c = gemm.inputs[2] if len(gemm.inputs) > 2 else None
        if c is not None and not facts.is_constant(c):
            return Refusal("C of the Gemm is not constant and needs a Transpose")
        bias = facts.constant(c)
        return Gemm(
            m.b,
            m.a,
            *([] if bias is None else [np.ascontiguousarray(np.atleast_2d(bias).T)]),
            alpha=_attribute(gemm, "alpha"),
            beta=_attribute(gemm, "beta"),
            transA=None if m.site.attr("transB", 0, node=gemm) else 1,
            transB=None if m.site.attr("transA", 0, node=gemm) else 1,
        )

    return Transpose(Gemm(a, b, ...)) >> swap | where(unshared)


@rule("fuse_add_into_gemm", exactness=REASSOCIATES, opset=7)
def bias_of_gemm(a: V, b: V, term: V) -> Rewrite:
    """Fuse a term after a Gemm into C, if the Gemm has no C or both are constant."""

    def fuse(m: Match) -> Result:
        gemm, is_difference = m.nodes[1], m.root.op_type == "Sub"
        whole, shape = m.site.sizes.dims(gemm.outputs[0]), m.site.sizes.dims(m.term)
        if shape is None or whole is None or len(shape) > 2 or facts.refers_to_function_attribute(gemm):
            return None
        rows, columns = whole
        if not _fits(shape, rows, columns):
            return Refusal("the term does not broadcast to the Gemm")
        c = gemm.inputs[2] if len(gemm.inputs) > 2 else None
        if not facts.is_constant(m.term):
            if c is not None:
                return Refusal("the Gemm has a C, and the term is not a constant")
            if m.site.opset < 11 and not shape:
                return Refusal("a scalar bias needs opset 11")
            attributes = _attributes_except(gemm, "beta")
            return Gemm(m.a, m.b, m.term, **attributes, beta=-1.0 if is_difference else None)
        added = facts.constant(m.term)
        assert added is not None
        if not isinstance(columns, int):
            return None
        wide = added.astype(np.float64) * (-1 if is_difference else 1)
        if c is not None:
            old = facts.small_constant(c)
            if old is None or not _fits(old.shape, rows, columns):
                return Refusal("C of the Gemm is not a constant")
            wide = wide + old.astype(np.float64) * m.site.attr("beta", 1.0, node=gemm)
        if wide.ndim < 2 or wide.shape[0] == 1:
            wide = np.broadcast_to(wide.reshape(-1), (columns,)) if wide.size == 1 else wide.reshape(-1)
        bias = np.ascontiguousarray(wide.astype(added.dtype))
        return Gemm(m.a, m.b, bias, **_attributes_except(gemm, "beta"))

    return AnyOf("Add", "Sub")(Gemm(a, b, ...), term) >> fuse | where(unshared)


def _attributes_except(node: ir.Node, *names: str) -> dict[str, Any]:
    return {name: attribute for name, attribute in node.attributes.items() if name not in names}


def _attribute(node: ir.Node, name: str) -> ir.Attr | None:
    return node.attributes.get(name)


def _scaled_matrix(m: Match) -> np.ndarray:
    matrix = facts.constant(m.w)
    assert matrix is not None
    return np.asarray((matrix.astype(np.float64) * _multiplier(m)).astype(matrix.dtype))


def scales_columns(m: Match) -> Refusal | None:
    """Guard: w is a constant matrix, and the factor a finite constant, one or one per column."""
    weight_shape, factor_shape = facts.static_shape(m.w), facts.static_shape(m.factor)
    if weight_shape is None or factor_shape is None or len(weight_shape) != 2:
        return SILENT
    if not facts.is_constant(m.w) or not facts.is_constant(m.factor):
        return SILENT
    rank = facts.rank(m.nodes[1].outputs[0])
    if rank is None or len(factor_shape) > rank or any(size != 1 for size in factor_shape[:-1]):
        return Refusal(_NOT_PER_COLUMN)
    if (factor_shape[-1:] or (1,))[0] not in (1, weight_shape[1]):
        return Refusal(_NOT_PER_COLUMN)
    kind = facts.dtype(m.w)
    if kind is None or kind.numpy().kind != "f" or not np.isfinite(_multiplier(m)).all():
        return Refusal("the factor is not finite, or the weight is not of a float type")
    return None


@rule("fuse_scale_into_matmul", exactness=REASSOCIATES, opset=7)
def scale_of_matmul(x: V, w: V, factor: V) -> Rewrite:
    """Fuse a factor, one or one per column, into the constant matrix of a product."""
    scaled = AnyOf("Mul", "Div")(x @ w, factor)
    return scaled >> (lambda m: MatMul(m.x, _scaled_matrix(m))) | where(unshared, scales_columns)


_NOT_PER_COLUMN = "expected a factor with one element, or one per column"


def _multiplier(m: Match) -> np.ndarray:
    """Return the elements of ``m.factor`` in float64, inverted if the root divides by them."""
    factor = facts.constant(m.factor)
    assert factor is not None
    wide = factor.astype(np.float64).reshape(-1)
    if m.root.op_type == "Mul":
        return wide
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / wide)


@rule("fuse_scale_into_matmul", exactness=REASSOCIATES, opset=7)
def scale_of_gemm(x: V, w: V, factor: V) -> Rewrite:
    """Fuse a factor into the constant matrix and C of a Gemm, or one number into its alpha and beta."""

    def fuse(m: Match) -> Result:
        gemm, shape = m.nodes[1], facts.static_shape(m.factor)
        columns = facts.dim_at(gemm.outputs[0], 1)
        if shape is None or columns is None or not facts.is_constant(m.factor):
            return None
        if facts.refers_to_function_attribute(gemm):
            return None
        if len(shape) > 2 or any(size != 1 for size in shape[:-1]) or (shape[-1:] or (1,))[0] not in (1, columns):
            return Refusal(_NOT_PER_COLUMN)
        c = gemm.inputs[2] if len(gemm.inputs) > 2 else None
        if not facts.is_constant(m.w) or (c is not None and not facts.is_constant(c)):
            number = _multiplier(m) if facts.scalar(m.factor) is not None else np.array([])
            if number.size != 1 or not np.isfinite(number).all():
                return Refusal("the matrix or C of the Gemm is not constant, and the factor is not one finite number")
            alpha, beta = (m.site.attr(name, 1.0, node=gemm) * float(number[0]) for name in ("alpha", "beta"))
            attributes = _attributes_except(gemm, "alpha", "beta")
            return Gemm(
                m.x, m.w, *([] if c is None else [c]), **attributes, alpha=alpha, beta=None if c is None else beta
            )
        weight, bias = facts.constant(m.w), facts.constant(c)
        assert weight is not None
        wide = np.broadcast_to(_multiplier(m), (columns,))
        if weight.dtype.kind != "f" or not np.isfinite(wide).all():
            return Refusal("the factor is not finite, or the weight is not of a float type")
        along = wide[:, None] if m.site.attr("transB", 0, node=gemm) else wide
        scaled_bias = None if bias is None else (bias.astype(np.float64) * wide).astype(bias.dtype)
        scaled = (weight.astype(np.float64) * along).astype(weight.dtype)
        return Gemm(m.x, scaled, scaled_bias, **dict[str, Any](gemm.attributes))

    return AnyOf("Mul", "Div")(Gemm(x, w, ...), factor) >> fuse | where(unshared)


@rule("fuse_qkv", on="MatMul", exactness=REASSOCIATES, default=False)
def parallel_matmuls(s: Site) -> Result:
    """Merge products of one input with several matrices into one product and a Split."""
    x = s.input(0)
    if x is None:
        return None
    siblings = [
        use.node
        for use in x.uses()
        if use.idx == 0 and facts.is_op(use.node, "MatMul") and use.node.graph is s.node.graph
        and len(facts.static_shape(use.node.inputs[1]) or ()) == 2
    ]  # fmt: skip
    weights = [v for node in siblings if (v := node.inputs[1]) is not None]
    if len(siblings) < 2 or siblings[0] is not s.node:
        return None
    shapes = [facts.static_shape(weight) or () for weight in weights]
    if len({(shape[0], facts.dtype(weight)) for shape, weight in zip(shapes, weights, strict=True)}) != 1:
        return Refusal("the matrices have different rows or types")
    if not all(facts.is_constant(v) or (v.producer() is None and v.graph is s.node.graph) for v in weights):
        return Refusal("a matrix is computed, possibly after the first product")
    arrays = [array for weight in weights if (array := facts.constant(weight)) is not None]
    merged = np.concatenate(arrays, axis=1) if len(arrays) == len(weights) else Concat(*weights, axis=1)
    rank = facts.rank(x)
    if rank is None:
        return Refusal("the rank of the input is not known")
    outputs = build_split(s, MatMul(x, merged), [shape[1] for shape in shapes], max(rank, 1) - 1)
    return Patch({node.outputs[0]: outputs.out(i) for i, node in enumerate(siblings)}, after=x)


@rule("fuse_transposes_around_matmul", exactness=REASSOCIATES)
def transposed_product(a: V, b: V) -> Rewrite:
    """Replace aᵀ @ bᵀ by (b @ a)ᵀ for matrices a and b."""
    return Transpose(a) @ Transpose(b) >> Transpose(b @ a, perm=[1, 0]) | where(
        rank(a) == 2, rank(b) == 2, swaps_axes, unshared
    )
