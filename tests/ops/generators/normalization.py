"""Cases of normalizations, losses and products."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.generators.draw import FLOATS, INTS, Array, Case, Draw
from tests.ops.generators.table import draws


def _image(draw: Draw, most: int = 4) -> Array:
    return draw.array((*draw.shape(2, 2, zero=False), *draw.shape(1, 2, most=most, zero=False)), special=False)


@draws("BatchNormalization")
def batch(draw: Draw, name: str) -> Case:
    x = draw.array((draw.integer(1, 3), draw.integer(1, 3), *draw.shape(0, 3, zero=False)), special=False)
    channels = x.shape[1:2]
    parameters = [draw.array(channels, special=False) for _ in range(3)]
    options: dict[str, Any] = draw.options(epsilon=1e-3)
    training = draw.chance(0.3)
    if training:
        options |= {"training_mode": 1} | draw.options(momentum=0.7)
    return Case(name, 15, [x, *parameters, draw.positive(channels)], options, 3 if training else 1)


@draws("InstanceNormalization")
def instance(draw: Draw, name: str) -> Case:
    x = _image(draw)
    parameters = [draw.array(x.shape[1:2], special=False) for _ in range(2)]
    return Case(name, 6, [x, *parameters], draw.options(epsilon=1e-2))


@draws("GroupNormalization")
def group(draw: Draw, name: str) -> Case:
    groups, size, opset = draw.integer(1, 2), draw.integer(1, 3), draw.pick(18, 21)
    x = draw.array((draw.integer(1, 2), groups * size, *draw.shape(1, 2, zero=False)), special=False)
    count = (groups if opset == 18 else groups * size,)
    parameters = [draw.array(count, special=False) for _ in range(2)]
    return Case(name, opset, [x, *parameters], {"num_groups": groups} | draw.options(epsilon=1e-2))


@draws("LayerNormalization", "RMSNormalization")
def layer(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, 4, zero=False)
    axis = draw.axis(len(shape))
    scale = draw.array(shape[axis:], special=False)
    bias = draw.maybe(lambda: draw.array(shape[axis:], special=False)) if name == "LayerNormalization" else None
    outputs = draw.pick(1, 3) if name == "LayerNormalization" else 1
    options = {"axis": axis} | draw.options(epsilon=1e-2)
    opset = 17 if name == "LayerNormalization" else 23
    return Case(name, opset, [draw.array(shape, special=False), scale, bias], options, outputs)


@draws("LpNormalization")
def norm(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, 4, zero=False)
    return Case(
        name, 22, [draw.array(shape, special=False)], draw.options(axis=draw.axis(len(shape)), p=draw.pick(1, 2))
    )


@draws("MeanVarianceNormalization")
def mean_variance(draw: Draw, name: str) -> Case:
    x = draw.array((2, 3, *draw.shape(2, 2, zero=False)), special=False)
    return Case(name, 13, [x], draw.options(axes=draw.pick([0, 2, 3], [1, 2, 3], [2, 3])))


# Losses.


@draws("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def loss(draw: Draw, name: str) -> Case:
    classes, rest = draw.integer(1, 4), draw.shape(0, 2, zero=False)
    batch_size = draw.integer(1, 3)
    scores = draw.array((batch_size, classes, *rest), special=False)
    labels = draw.numbers.integers(0, classes, (batch_size, *rest)).astype(np.int64)
    options: dict[str, Any] = draw.options(reduction=draw.pick("none", "sum", "mean"))
    if draw.chance(0.3):
        options["ignore_index"] = draw.pick(-1, 0)
        if options["ignore_index"] == -1:
            labels.flat[0] = -1
    weights = draw.maybe(lambda: draw.positive((classes,)))
    outputs = draw.pick(1, 2) if name == "SoftmaxCrossEntropyLoss" else 1
    return Case(name, 13, [scores, labels, weights], options, outputs)


# Products.


@draws("MatMul")
def matmul(draw: Draw, name: str) -> Case:
    k, dtype = draw.integer(0, 3), draw.pick(*FLOATS, *INTS)
    if draw.chance(0.3):
        a, b = draw.pick(((k,), (k, 2)), ((2, k), (k,)), ((k,), (k,)), ((k,), (2, k, 3)), ((2, 3, k), (k,)))
    else:
        shared = draw.shape(0, 3)
        a = (*draw.partner(shared), draw.integer(0, 3), k)
        b = (*draw.partner(shared), k, draw.integer(0, 3))
    return Case(name, 13, [draw.array(a, dtype, special=False), draw.array(b, dtype, special=False)])


@draws("Gemm")
def gemm(draw: Draw, name: str) -> Case:
    m, k, n = (draw.integer(1, 4) for _ in range(3))
    options = draw.options(transA=draw.integer(0, 1), transB=draw.integer(0, 1), alpha=0.5, beta=draw.pick(0.0, 2.0))
    a, b = (k, m) if options.get("transA") else (m, k), (n, k) if options.get("transB") else (k, n)
    dtype = draw.pick(*FLOATS)
    c = draw.maybe(lambda: draw.array(draw.partner((m, n)), dtype, special=False), 0.7)
    return Case(name, 13, [draw.array(a, dtype, special=False), draw.array(b, dtype, special=False), c], options)


@draws("Einsum")
def einsum(draw: Draw, name: str) -> Case:
    sizes = {letter: draw.integer(1, 3) for letter in "bijkl"}
    equation = draw.pick(
        "ij,jk->ik", "bij,bjk->bik", "ij->ji", "ii->i", "ii", "i,j->ij", "ij,ij->", "bij,bkj->bik", "ij,jk,kl->il",
        "ijk->k", "i,i", "bi,bj->bij", "ij,kj", "...ij,...jk->...ik", "...i->...",
    )  # fmt: skip
    leading = draw.shape(0, 2, zero=False)
    terms = equation.partition("->")[0].split(",")
    shapes = [
        (*(leading if "..." in term else ()), *(sizes[letter] for letter in term.replace("...", ""))) for term in terms
    ]
    dtype = draw.pick(*FLOATS)
    return Case(name, 12, [draw.array(shape, dtype, special=False) for shape in shapes], {"equation": equation})


@draws("Det")
def determinant(draw: Draw, name: str) -> Case:
    n = draw.integer(1, 4)
    return Case(name, 22, [draw.array((*draw.shape(0, 2, zero=False), n, n), draw.pick(*FLOATS), special=False)])
