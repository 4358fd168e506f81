"""Matrix products: Gemm takes in bias, scale and transposition; products that share an input become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import (
    REASSOCIATES,
    SILENT,
    Guard,
    Match,
    Op,
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
from sardonyx.rewrite.rules.signatures import split
from sardonyx.rewrite.site import Site

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def broadcasts_into_rows(value: ir.Value, x: ir.Value, w: ir.Value) -> bool:
    """Whether ``value`` broadcasts one way to the product of matrices x and w, as Gemm's C must."""
    shape = facts.static_shape(value)
    columns = facts.dim_at(w, 1)
    rows = facts.dim_at(x, 0)
    if shape is None or len(shape) > 2:
        return False
    full = (1,) * (2 - len(shape)) + shape
    return full[0] in (1, rows) and full[1] in (1, columns)


def suits_gemm(x: V) -> Guard:
    """Guard: the element type is one of Gemm's that engines have kernels for."""
    return guard(lambda m: facts.dtype(m.bound[x.name]) in FLOATS, "Gemm of integers has no kernel in most engines")


def is_gemm_bias(b: V, x: V, w: V) -> Guard:
    """Guard: b is a bias that Gemm at this opset accepts for the product of matrices x and w."""

    def objection(m: Match) -> Refusal | None:
        bias = m.bound[b.name]
        if not broadcasts_into_rows(bias, m.bound[x.name], m.bound[w.name]):
            return Refusal("the bias does not broadcast to the product")
        if m.site.opset < 11 and facts.rank(bias) == 0:
            return Refusal("a scalar bias needs opset 11")
        return None

    return objection


@rule("fuse_matmul_add_bias_into_gemm", exactness=REASSOCIATES, opset=7)
def matmul_add(x: V, w: V, b: V) -> Rewrite:
    """X @ w + b is Gemm(x, w, b) for matrices x and w."""
    return x @ w + b >> Gemm(x, w, b) | where(
        rank(x) == 2, rank(w) == 2, unshared, suits_gemm(x), is_gemm_bias(b, x, w)
    )


@rule("fuse_transpose_into_gemm", on="Gemm", exactness=REASSOCIATES, opset=7)
def transposed_operand(s: Site) -> Result:
    """A transposed operand of a Gemm is a flag of the Gemm."""
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
    """A product of matrices of which one is transposed is a Gemm."""
    turned = [_turned(s, value) for value in s.node.inputs]
    if sum(each is not None for each in turned) != 1 or any(facts.rank(value) != 2 for value in s.node.inputs):
        return None
    if facts.dtype(s.input(0)) not in FLOATS:
        return Refusal("Gemm of integers has no kernel in most engines")
    (a, b), (x, y) = s.node.inputs, turned
    return Gemm(x or a, y or b, transA=1 if x is not None else None, transB=1 if y is not None else None)


def _turned(s: Site, value: ir.Value | None) -> ir.Value | None:
    """The matrix whose Transpose ``value`` is, if nothing else reads that."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.graph is not s.graph or not facts.is_op(node, "Transpose"):
        return None
    return node.inputs[0] if _plain_transpose(node) and facts.used_once(value) else None


@rule("fuse_transpose_after_gemm", on="Transpose", after="Gemm", exactness=REASSOCIATES, opset=11)
def transposed_result(s: Site) -> Result:
    """The transposed result of a Gemm is the Gemm of its operands in the other order, each transposed."""
    gemm = s.producer(0, "Gemm")
    if gemm is None or facts.refers_to_function_attribute(gemm) or not _plain_transpose(s.node):
        return None
    if not facts.used_once(gemm.outputs[0]):
        return Refusal("the Gemm has other readers")
    c = gemm.inputs[2] if len(gemm.inputs) > 2 else None
    if c is not None and not facts.is_constant(c):
        return Refusal("the Gemm's C is not constant, and would be transposed")
    bias = facts.constant(c)
    return Gemm(
        gemm.inputs[1],
        gemm.inputs[0],
        *([] if bias is None else [np.ascontiguousarray(np.atleast_2d(bias).T)]),
        alpha=_written(gemm, "alpha"),
        beta=_written(gemm, "beta"),
        transA=None if s.attr("transB", 0, node=gemm) else 1,
        transB=None if s.attr("transA", 0, node=gemm) else 1,
    )


@rule("fuse_add_into_gemm", on=("Add", "Sub"), after="Gemm", exactness=REASSOCIATES, opset=7)
def bias_of_gemm(s: Site) -> Result:
    """What is added to a Gemm is its C, or is added to its C where both are constant."""
    for index in (0, 1) if s.node.op_type == "Add" else (0,):
        gemm = s.producer(index, "Gemm")
        other = s.input(1 - index)
        if gemm is None or other is None or not facts.used_once(gemm.outputs[0]):
            continue
        out = gemm.outputs[0]
        columns = facts.dim_at(out, 1)
        shape = facts.static_shape(other)
        if shape is None or columns is None or len(shape) > 2 or facts.refers_to_function_attribute(gemm):
            continue
        if (shape[-1:] or (1,))[0] not in (1, columns) or (len(shape) == 2 and shape[0] != 1):
            return Refusal("what is added does not broadcast to the Gemm")
        old_value = gemm.inputs[2] if len(gemm.inputs) > 2 else None
        if not facts.is_constant(other):
            if old_value is not None or s.node.op_type == "Sub":
                continue
            return Op(("Gemm",))(*gemm.inputs[:2], other, **_but(gemm, "beta"))
        added = facts.constant(other)
        assert added is not None
        wide = added.astype(np.float64) * (-1 if s.node.op_type == "Sub" else 1)
        beta = facts.attribute(gemm, "beta", s.opset, 1.0)
        if old_value is not None:
            old = facts.small_constant(old_value)
            if old is None or old.ndim > 2 or (old.ndim == 2 and old.shape[0] != 1):
                return Refusal("the Gemm's own C is not a constant row")
            wide = wide + old.astype(np.float64) * beta
        row = np.broadcast_to(wide.reshape(-1), (columns,)) if wide.size == 1 else wide.reshape(-1)
        return Gemm(
            gemm.inputs[0],
            gemm.inputs[1],
            np.ascontiguousarray(row.astype(added.dtype)),
            alpha=_written(gemm, "alpha"),
            transA=_written(gemm, "transA"),
            transB=_written(gemm, "transB"),
        )
    return None


def _but(node: ir.Node, *names: str) -> dict[str, Any]:
    return {name: attribute for name, attribute in node.attributes.items() if name not in names}


def _written(node: ir.Node, name: str) -> ir.Attr | None:
    return node.attributes.get(name)


@rule("fuse_scale_into_matmul", on=("Mul", "Div"), after="MatMul", exactness=REASSOCIATES, opset=7)
def scale_of_matmul(s: Site) -> Result:
    """A product with a constant matrix, times a number (or one a column), is a product with a scaled matrix."""
    for index in (0, 1) if s.node.op_type == "Mul" else (0,):
        matmul = s.producer(index, "MatMul")
        if matmul is None or not facts.used_once(matmul.outputs[0]):
            continue
        weight_shape, factor_shape = facts.static_shape(matmul.inputs[1]), facts.static_shape(s.input(1 - index))
        if weight_shape is None or factor_shape is None or not facts.is_constant(matmul.inputs[1]):
            continue
        if not facts.is_constant(s.input(1 - index)) or len(weight_shape) != 2:
            continue
        rank = facts.rank(matmul.outputs[0])
        if rank is None or len(factor_shape) > rank or any(size != 1 for size in factor_shape[:-1]):
            return Refusal("the factor is not one number a column")
        if (factor_shape[-1:] or (1,))[0] not in (1, weight_shape[1]):
            return Refusal("the factor is not one number a column")
        weight, factor = facts.constant(matmul.inputs[1]), facts.constant(s.input(1 - index))
        assert weight is not None and factor is not None
        wide = factor.astype(np.float64).reshape(-1)
        if s.node.op_type == "Div":
            with np.errstate(divide="ignore"):
                wide = 1.0 / wide
        if weight.dtype.kind != "f" or not np.isfinite(wide).all():
            return Refusal("the factor is not finite, or the weight is no float")
        return MatMul(matmul.inputs[0], (weight.astype(np.float64) * wide).astype(weight.dtype))
    return None


@rule("fuse_scale_into_matmul", on=("Mul", "Div"), after="Gemm", exactness=REASSOCIATES, opset=7)
def scale_of_gemm(s: Site) -> Result:
    """A Gemm with a constant matrix and C, times one number a column, is a Gemm with both of them scaled."""
    for index in (0, 1) if s.node.op_type == "Mul" else (0,):
        gemm, shape = s.producer(index, "Gemm"), facts.static_shape(s.input(1 - index))
        if gemm is None or shape is None or not facts.used_once(gemm.outputs[0]):
            continue
        columns = facts.dim_at(gemm.outputs[0], 1)
        if facts.refers_to_function_attribute(gemm) or columns is None or not facts.is_constant(s.input(1 - index)):
            continue
        if len(shape) > 2 or any(size != 1 for size in shape[:-1]) or (shape[-1:] or (1,))[0] not in (1, columns):
            return Refusal("the factor is not one number a column")
        c = gemm.inputs[2] if len(gemm.inputs) > 2 else None
        if not facts.is_constant(gemm.inputs[1]) or (c is not None and not facts.is_constant(c)):
            return Refusal("the Gemm's matrix or C is not constant")
        weight, bias, factor = facts.constant(gemm.inputs[1]), facts.constant(c), facts.constant(s.input(1 - index))
        assert weight is not None and factor is not None
        wide = np.broadcast_to(factor.astype(np.float64).reshape(-1), (columns,))
        if s.node.op_type == "Div":
            with np.errstate(divide="ignore"):
                wide = 1.0 / wide
        if weight.dtype.kind != "f" or not np.isfinite(wide).all():
            return Refusal("the factor is not finite, or the weight is no float")
        along = wide[:, None] if s.attr("transB", 0, node=gemm) else wide
        scaled_bias = None if bias is None else (bias.astype(np.float64) * wide).astype(bias.dtype)
        scaled = (weight.astype(np.float64) * along).astype(weight.dtype)
        return Op(("Gemm",))(gemm.inputs[0], scaled, scaled_bias, **dict[str, Any](gemm.attributes))
    return None


@rule("fuse_qkv", on="MatMul", exactness=REASSOCIATES, default=False)
def parallel_matmuls(s: Site) -> Result:
    """Products of one input with several matrices are one product with all of them side by side, and a Split."""
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
        return Refusal("a matrix is computed, maybe after the first product")
    arrays = [array for weight in weights if (array := facts.constant(weight)) is not None]
    together = np.concatenate(arrays, axis=1) if len(arrays) == len(weights) else Concat(*weights, axis=1)
    rank = facts.rank(x)
    if rank is None:
        return Refusal("the rank of the input is not known")
    outputs = split(s, MatMul(x, together), [shape[1] for shape in shapes], max(rank, 1) - 1)
    return Patch({node.outputs[0]: outputs.out(i) for i, node in enumerate(siblings)}, after=x)


def _plain_transpose(node: ir.Node) -> bool:
    perm: Sequence[int] | None = facts.attribute(node, "perm", 13)
    return perm is None or list(perm) == [1, 0]


def exchanges_axes(m: Match) -> Refusal | None:
    """Guard: every matched Transpose of a matrix exchanges its two axes."""
    return None if all(_plain_transpose(node) for node in m.nodes if node.op_type == "Transpose") else SILENT


@rule("fuse_transposes_around_matmul", exactness=REASSOCIATES)
def transposed_product(a: V, b: V) -> Rewrite:
    """aᵀ @ bᵀ is (b @ a)ᵀ for matrices a and b."""
    return Transpose(a) @ Transpose(b) >> Transpose(b @ a, perm=[1, 0]) | where(
        rank(a) == 2, rank(b) == 2, exchanges_axes, unshared
    )
