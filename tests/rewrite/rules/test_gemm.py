"""Random graphs for the rules of matrix products."""

from __future__ import annotations

import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many

TYPES = ["float32", "float32", "float32", "float64", "float16"]


def row(g: GraphMaker, rows: int, columns: int, dtype: str, *, constant: float = 0.8) -> str:
    """Return a term for a product, or a near miss."""
    shapes = [
        (columns,),
        (1, columns),
        (rows, columns),
        (rows, 1),
        (1, 1),
        (1,),
        (),
        (1, 1, columns),
        (2, rows, columns),
    ]
    shape = g.pick(shapes)
    return g.const(g.array(shape, dtype, special=False)) if g.chance(constant) else g.input(shape, dtype)


def either(g: GraphMaker, a: str, b: str) -> tuple[str, str]:
    return (a, b) if g.chance() else (b, a)


@generator("fuse_matmul_add_bias_into_gemm")
def biased(g: GraphMaker) -> None:
    dtype = g.pick([*TYPES, "int32", "int64"])
    m, k, n = (g.pick([0, 1, 2, 3, 4]) if g.chance(0.1) else g.int(1, 4) for _ in range(3))
    x = g.input((m, k) if g.chance(0.85) else (k,), dtype)
    w = g.const(g.array((k, n), dtype, special=False)) if g.chance(0.7) else g.input((k, n), dtype)
    y = g.node("MatMul", x, w)
    g.read_again(y, 0.1)
    g.output(g.node("Add", *either(g, y, row(g, m, n, dtype))))


@generator("fuse_matmul_add_bias_into_gemm/transposed_matmul_add")
def transposed_and_biased(g: GraphMaker) -> None:
    dtype = g.pick(TYPES)
    m, k, n = (g.int(1, 4) for _ in range(3))
    perm = g.pick([None, [1, 0], [1, 0], [0, 1] if m == n else None])
    y = g.node("Transpose", g.node("MatMul", g.input((n, k), dtype), g.input((k, m), dtype)), perm=perm)
    g.read_again(y, 0.1)
    g.output(g.node("Add", *either(g, y, row(g, m, n, dtype))))


def gemm(g: GraphMaker, dtype: str) -> tuple[str, int, int]:
    """Return the output, rows and columns of a Gemm."""
    m, k, n = (g.int(1, 4) for _ in range(3))
    if g.chance(0.03):
        k = 0
    flip_a, flip_b = g.pick([None, 0, 1]), g.pick([None, 0, 1])
    a = g.input((k, m) if flip_a else (m, k), dtype, dynamic=None if k else False)
    shape = (n, k) if flip_b else (k, n)
    b = g.const(g.array(shape, dtype, special=False)) if g.chance(0.7) else g.input(shape, dtype)
    c = None
    if g.chance(0.6):
        shapes = [(n,), (1, n), (m, n), (m, 1), (1, 1), (1,), ()]
        own = g.pick(shapes)
        c = g.const(g.array(own, dtype, special=False)) if g.chance(0.8) else g.input(own, dtype, dynamic=False)
    # ONNX Runtime forgets beta where there is nothing to sum.
    beta = g.pick([None, None, 0.5, 0.0, 2.0]) if k else None
    attrs = {"alpha": g.pick([None, None, 0.5, 2.0]), "beta": beta}
    y = g.node("Gemm", a, b, c, transA=flip_a, transB=flip_b, **attrs)
    return y, m, n


@generator("fuse_add_into_gemm")
def added(g: GraphMaker) -> None:
    dtype = g.pick(TYPES)
    y, m, n = gemm(g, dtype)
    g.read_again(y, 0.1)
    op = g.pick(["Add", "Add", "Sub"])
    g.output(g.node(op, *either(g, y, row(g, m, n, dtype, constant=0.9))))


@generator("fuse_transpose_into_gemm")
def transposed_operands(g: GraphMaker) -> None:
    dtype = g.pick(TYPES)
    m, k, n = (g.int(1, 4) for _ in range(3))
    flip_a, flip_b = g.pick([None, 0, 1]), g.pick([None, 0, 1])
    operands = []
    for shape, flip in (((m, k), flip_a), ((k, n), flip_b)):
        operand_shape = shape[::-1] if flip else shape
        perm = g.pick([None, [1, 0], [1, 0], [0, 1]])
        source_shape = operand_shape if perm == [0, 1] else operand_shape[::-1]
        x = g.input(source_shape, dtype) if g.chance(0.7) else g.const(g.array(source_shape, dtype, special=False))
        if g.chance(0.8):
            x = g.node("Transpose", x, perm=perm)
            g.read_again(x, 0.1)
        else:
            x = g.input(operand_shape, dtype)
        operands.append(x)
    c = g.weight(g.pick([(n,), (m, n), ()]), dtype) if g.chance() else None
    g.output(
        g.node("Gemm", *operands, c, transA=flip_a, transB=flip_b, alpha=g.maybe(0.5, 0.3), beta=g.maybe(2.0, 0.3))
    )


@generator("fuse_transpose_into_matmul")
def transposed_matrices(g: GraphMaker) -> None:
    dtype = g.pick([*TYPES, "int32"])
    m, k, n = (g.int(1, 4) for _ in range(3))
    batch = (2,) if g.chance(0.1) else ()
    perm = [0, 2, 1] if batch else g.pick([None, [1, 0], [0, 1]])
    operands = []
    for shape in ((m, k), (k, n)):
        x = g.input((*batch, *(shape if perm == [0, 1] else shape[::-1])), dtype)
        x = g.node("Transpose", x, perm=perm) if g.chance(0.7) else g.input((*batch, *shape), dtype)
        g.read_again(x, 0.1)
        operands.append(x)
    y = g.node("MatMul", *operands)
    g.output(g.node("Add", *either(g, y, row(g, m, n, dtype, constant=0.5))) if g.chance() else y)


@generator("fuse_transpose_after_gemm")
def transposed_results(g: GraphMaker) -> None:
    y, _, _ = gemm(g, g.pick(TYPES))
    g.read_again(y, 0.1)
    g.output(g.node("Transpose", y, perm=g.pick([None, [1, 0], [1, 0], [0, 1]])))


@generator("fuse_scale_into_matmul/scale_of_gemm")
def scaled_gemm(g: GraphMaker) -> None:
    dtype = g.pick(TYPES)
    y, m, n = gemm(g, dtype)
    g.read_again(y, 0.1)
    factor = g.array(g.pick([(), (1,), (n,), (1, n), (1, 1), (m, 1), (1, 1, n)]), dtype, special=False)
    if g.chance(0.1):
        factor = factor * 0
    factor_or_input = g.const(factor) if g.chance(0.9) else g.input(factor.shape, dtype, values=factor)
    g.output(g.node(g.pick(["Mul", "Mul", "Div"]), *either(g, y, factor_or_input)))


@generator("fuse_scale_into_matmul")
def scaled(g: GraphMaker) -> None:
    dtype = g.pick([*TYPES, "int32"])
    k, n = g.int(1, 4), g.int(1, 4)
    x = g.input((*g.shape(rank=g.int(0, 3)), k), dtype)
    shape = g.pick([(k, n), (k, n), (k, n), (k,), (1, k, n)])
    w = g.const(g.array(shape, dtype, special=False)) if g.chance(0.9) else g.input(shape, dtype)
    y = g.node("MatMul", x, w)
    g.read_again(y, 0.1)
    factor = g.array(g.pick([(), (1,), (n,), (1, n), (1, 1), (1, 1, 1, 1, 1)]), dtype, special=False)
    if g.chance(0.1):
        factor = factor * 0
    if g.chance(0.1) and dtype == "float32":
        factor = factor * 1e30
    op = g.pick(["Mul", "Mul", "Div"]) if dtype != "int32" else "Mul"
    g.output(g.node(op, *either(g, y, g.const(factor))))


@generator("fuse_transposes_around_matmul")
def products_of_transposed(g: GraphMaker) -> None:
    dtype = g.pick([*TYPES, "int64"])
    m, k, n = (g.int(1, 4) for _ in range(3))
    batch = (2,) if g.chance(0.1) else ()
    perm = [0, 2, 1] if batch else g.pick([None, [1, 0]])
    a = g.node("Transpose", g.input((*batch, k, m), dtype), perm=perm)
    b = g.node("Transpose", g.input((*batch, n, k), dtype), perm=perm)
    g.read_again(a, 0.1)
    g.output(g.node("MatMul", a, b))


LABELS = [
    "fuse_matmul_add_bias_into_gemm",
    "fuse_matmul_add_bias_into_gemm/transposed_matmul_add",
    "fuse_add_into_gemm",
    "fuse_transpose_into_gemm",
    "fuse_transpose_into_matmul",
    "fuse_transpose_after_gemm",
    "fuse_scale_into_matmul/scale_of_gemm",
    "fuse_scale_into_matmul",
    "fuse_transposes_around_matmul",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)
