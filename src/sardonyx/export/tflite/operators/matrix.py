"""Matrix products."""

from __future__ import annotations

import numpy as np

from sardonyx.export.tflite.emission import Call, Scope, emits
from sardonyx.export.tflite.file_builder import Size, Tensor

MOST_AXES = 5
"""Ranks up to which BATCH_MATMUL multiplies."""


def fully_connected(s: Scope, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Return x @ wᵀ + bias for weights [out, in]; `x` has any number of leading axes."""
    options = ("FullyConnectedOptions", {"keep_num_dims": True})
    return s.op("FULLY_CONNECTED", [x, w, bias], [*x.shape[:-1], w.shape[0]], options=options)


def batch_matmul(s: Scope, a: Tensor, b: Tensor) -> Tensor:
    """Return products of matrices; leading axes broadcast."""
    batch = s.joint_shape([a.shape[:-2], b.shape[:-2]]) if a.rank > 2 or b.rank > 2 else ()
    shape = [*batch, a.shape[-2], b.shape[-1]]
    if len(shape) > MOST_AXES:
        merged: Size = s.product(batch)
        wide = [t if t.shape[:-2] == batch else s.broadcast_to(t, [*batch, *t.shape[-2:]]) for t in (a, b)]
        flat = [s.reshape(t, [merged, *t.shape[-2:]]) for t in wide]
        return s.reshape(batch_matmul(s, *flat), shape)
    return s.op("BATCH_MATMUL", [a, b], shape, options=("BatchMatMulOptions", {}))


@emits("MatMul")
def matmul(c: Call) -> Tensor:
    """Write a product; of a constant matrix as a layer."""
    a, b = c.inputs()
    s = c.scope
    for operand in (a, b):
        if operand.type != "FLOAT32":
            raise c.refuse(f"a product of {operand.type}")
    left, right = a.rank == 1, b.rank == 1
    if left:
        a = s.reshape(a, [1, *a.shape])
    if right:
        b = s.reshape(b, [*b.shape, 1])
    if b.rank == 2 and b.array is not None:
        result = fully_connected(s, a, s.transpose(b, [1, 0]), None)
    else:
        result = batch_matmul(s, a, b)
    if left or right:
        shape = list(result.shape)
        if left:
            del shape[-2]
        if right:
            del shape[-1]
        result = s.reshape(result, shape)
    return result


@emits("Gemm")
def gemm(c: Call) -> Tensor:
    """Write alpha * A @ B + beta * C."""
    a, b, s = c.input(0), c.input(1), c.scope
    if a.type != "FLOAT32":
        raise c.refuse(f"a product of {a.type}")
    alpha, beta = float(c.attribute("alpha", 1.0)), float(c.attribute("beta", 1.0))
    if c.attribute("transA", 0):
        a = s.transpose(a, [1, 0])
    if alpha != 1.0:
        if b.array is not None:
            b = s.constant(b.array * np.float32(alpha))
        else:
            a = s.binary("MUL", a, s.like(alpha, a))
    addend = c.optional(2) if beta != 0.0 else None
    if addend is not None and beta != 1.0:
        if addend.array is not None:
            addend = s.constant(addend.array * np.float32(beta))
        else:
            addend = s.binary("MUL", addend, s.like(beta, addend))
    if b.array is None:
        if c.attribute("transB", 0):
            b = s.transpose(b, [1, 0])
        result = batch_matmul(s, a, b)
        return result if addend is None else s.binary("ADD", result, addend)
    w = b if c.attribute("transB", 0) else s.transpose(b, [1, 0])
    bias = as_bias(s, addend, int(w.shape[0]))
    result = fully_connected(s, a, w, bias)
    return result if addend is None or bias is not None else s.binary("ADD", result, addend)


def as_bias(s: Scope, addend: Tensor | None, count: int) -> Tensor | None:
    """Return a constant addend as a vector of `count` elements, None if it is another shape."""
    if addend is None or addend.array is None or any(n != 1 for n in addend.shape[:-1]):
        return None
    if addend.array.size not in (1, count):
        return None
    return s.constant(np.ascontiguousarray(np.broadcast_to(addend.array.reshape(-1), (count,))))
