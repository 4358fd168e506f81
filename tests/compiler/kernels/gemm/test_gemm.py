"""Matrix products against numpy, over sizes around the edges of tiles, blocks and panels."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from tests.compiler.kernels.compiled import CompiledKernel

from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.kernel_builder import Index, Kernel
from sardonyx.compiler.kernels.gemm.gemm import Matrix, Operands, Packed, gemm, pack, scratch_bytes
from sardonyx.compiler.kernels.gemm.operands import b_layout
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.target.description import NAMED, Target, host
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.gemm import choose_gemm
from sardonyx.compiler.tiling.gemm_schedule import GemmProblem, GemmSchedule, accumulator, default_tile
from sardonyx.core.dim import Dim, Size, evaluate
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import (  # fmt: skip
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    INT8,
    INT32,
    INT64,
    UINT8,
    UINT32,
    DType,
    numpy_dtype,
)

pytestmark = pytest.mark.sampled

B, M, N, K = (Dim.symbol(name) for name in "bmnk")
TARGETS = [entry for entry in (NAMED["avx2"], NAMED["avx512"]) if entry.vector_bits <= host().vector_bits] or [host()]
ROWS = [0, 1, 2, 3, 4, 5, 6, 7, 23, 24, 25, 59]
COLUMNS = [0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 131]
DEPTHS = [0, 1, 2, 3, 4, 5, 7, 64, 67]
Layout = Literal["packed", "rows", "columns"]


def choose(
    target: Target, dtype: DType, layout: Layout, stored: DType | None = None, m: Size = M, n: Size = N, k: Size = K
) -> GemmSchedule:
    """The schedule of a product whose A is not contiguous along K."""
    stored = stored or dtype
    storage = "packed" if layout == "packed" else "strided"
    if layout == "rows" and stored == accumulator(dtype):
        storage = "rows"
    return choose_gemm(GemmProblem(m, n, k, dtype, storage, stored), target).schedule


@functools.cache
def product(
    target: Target, dtype: DType, layout: Layout, stored: DType | None = None, depth: Size = K
) -> CompiledKernel:
    """C[b, m, n] of A[b, k, m] transposed (row-major where B is packed) and B[b, k, n] or, by columns, B[b, n, k]."""
    kernel = Kernel(target)
    schedule = choose(target, dtype, layout, stored, k=depth)
    e, tile = kernel.emitter, schedule.tile
    a, b, c, scratch = (kernel.buffer() for _ in range(4))
    m, n, k = (kernel.size(size) for size in (M, N, depth))
    panels = e.mul(kernel.size(-(-N // tile.columns)), tile.columns)
    strides = {"packed": (0, 0), "rows": (n, 1), "columns": (1, k)}[layout]
    stored = stored or dtype
    left = Matrix(a, stored, k, 1) if layout == "packed" else Matrix(a, stored, 1, m)
    right = Packed(b, stored) if layout == "packed" else Matrix(b, stored, *strides)
    memory = load_store.memory_type(stored)

    def locate(e: Emitter, number: str | int) -> Operands:
        width = panels if layout == "packed" else n
        return Operands(
            e.address(a, memory, e.mul(number, e.mul(m, k))),
            e.address(b, memory, e.mul(number, e.mul(k, width))),
            (Index(number),),
        )

    def epilogue(index: tuple[Index, ...], value: str, mask: str | None) -> None:
        number, row, column = index
        assert (number.lane, row.lane, column.lane) == (0, 0, 1)
        offset = e.add(e.mul(e.add(e.mul(number.base, m), row.base), n), column.base)
        load_store.store(e, dtype, value, c, Index(offset, 1), tile.lanes, mask)

    items = gemm(
        kernel, schedule=schedule, m=M, n=N, k=depth, a=left, b=right, epilogue=epilogue, batch=B, locate=locate,
        result=dtype, scratch=scratch,
    )  # fmt: skip
    return CompiledKernel(kernel, items)


def check(target: Target, dtype: DType, layout: Layout, batch: int, m: int, n: int, k: int, parts: int = 1) -> None:
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    numpy = numpy_dtype(dtype)
    draw = (lambda *shape: rng.standard_normal(shape)) if numpy.kind == "f" else _wrapping(rng, numpy)
    a, b = draw(batch, m, k).astype(numpy), draw(batch, k, n).astype(numpy)
    if layout == "packed":
        operands = a, pack(b, choose(target, dtype, layout).packed_layout)
    else:
        operands = a.swapaxes(1, 2), b if layout == "rows" else b.swapaxes(1, 2)
    guard = 64
    result = np.full(batch * m * n + guard, 77, numpy)
    scratch = np.empty(parts * evaluate(scratch_bytes(choose(target, dtype, layout), k), {}) + 64, np.uint8)
    buffers = [np.ascontiguousarray(item) for item in operands]
    product(target, dtype, layout)(*buffers, result, scratch, parts=parts, b=batch, m=m, n=n, k=k)
    assert (result[-guard:] == 77).all(), "written past the end"
    got = result[:-guard].reshape(batch, m, n)
    if numpy.kind == "f":
        exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
        bound = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64) * max(k, 1) * np.finfo(numpy).eps
        assert (np.abs(got - exact) <= bound).all()
    else:
        np.testing.assert_array_equal(got, a @ b)


def _wrapping(rng: np.random.Generator, numpy: np.dtype):
    limits = np.iinfo(numpy)
    return lambda *shape: rng.integers(limits.min, limits.max, shape, dtype=numpy)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("layout", ["packed", "rows", "columns"])
def test_sizes_around_the_edges_of_tiles(target: Target, layout: Layout) -> None:
    for m in ROWS:
        for n in COLUMNS:
            check(target, FLOAT, layout, 1, m, n, DEPTHS[(m + n) % len(DEPTHS)])
    for k in DEPTHS:
        check(target, FLOAT, layout, 1, 7, 67, k)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", [DOUBLE, INT32, INT64], ids=lambda dtype: dtype.name)
def test_element_types(target: Target, dtype: DType) -> None:
    for layout in ("packed", "rows"):
        for m, n, k in [(1, 1, 1), (7, 9, 5), (13, 33, 31)]:
            check(target, dtype, layout, 1, m, n, k)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("layout", ["packed", "rows", "columns"])
@pytest.mark.parametrize(
    ("stored", "dtype"),
    [(FLOAT16, FLOAT16), (BFLOAT16, BFLOAT16), (FLOAT16, FLOAT), (INT8, INT32), (UINT8, INT32), (UINT8, UINT32)],
    ids=lambda dtype: dtype.name,
)
def test_operands_of_few_bits(target: Target, layout: Layout, stored: DType, dtype: DType) -> None:
    rng, numpy = np.random.default_rng(5), numpy_dtype(stored)
    for m, n, k in [(3, 129, 40), (17, 31, 21)]:
        if t.is_float(stored):
            a, b = (rng.standard_normal(shape).astype(numpy) for shape in ((m, k), (k, n)))
        else:
            limits = np.iinfo(numpy)
            a, b = (rng.integers(limits.min, limits.max + 1, shape).astype(numpy) for shape in ((m, k), (k, n)))
        exact = a.astype(np.float64) @ b.astype(np.float64)
        schedule = choose(target, dtype, layout, stored)
        packed = pack(b, schedule.packed_layout)
        operands = {"packed": (a, packed), "rows": (a.T, b), "columns": (a.T, b.T)}[layout]
        result = np.zeros((m, n), numpy_dtype(dtype))
        room = np.zeros(evaluate(scratch_bytes(schedule, k), {}), np.uint8)
        buffers = [np.ascontiguousarray(item) for item in operands]
        product(target, dtype, layout, stored)(*buffers, result, room, b=1, m=m, n=n, k=k)
        if t.is_float(stored):
            rounding = {FLOAT: 2e-6, FLOAT16: 2**-11, BFLOAT16: 2**-8}[dtype]
            np.testing.assert_allclose(result.astype(np.float64), exact, rtol=rounding, atol=1e-4)
        else:
            np.testing.assert_array_equal(result, exact)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("layout", ["packed", "rows", "columns"])
def test_batches_in_any_split(target: Target, layout: Layout) -> None:
    for batch, m, n, k, parts in [(0, 3, 3, 3, 1), (3, 31, 70, 17, 5), (2, 50, 200, 9, 7), (5, 1, 1, 1, 3)]:
        check(target, FLOAT, layout, batch, m, n, k, parts)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("layout", ["packed", "rows"])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 10, 33),
        (5, 1, 8),
        (13, 33, 5),
        (26, 81, 12),
        (3, 128, 7),
        (9, 40, 1),
        (8, 700, 100),
        (16, 100, 9),
        (29, 65, 3),
        (1, 300, 21),
        (1, 257, 40),
        (2, 131, 9),
    ],
)
def test_known_sizes(target: Target, layout: Layout, m: int, n: int, k: int) -> None:
    kernel, rng = Kernel(target), np.random.default_rng(0)
    schedule = choose(target, FLOAT, layout, m=m, n=n, k=k)
    e, tile = kernel.emitter, schedule.tile
    a, b, c, scratch = (kernel.buffer() for _ in range(4))

    def epilogue(index: tuple[Index, ...], value: str, mask: str | None) -> None:
        row, column = index
        where = Index(e.add(e.mul(row.base, n), column.base), 1)
        load_store.store(e, FLOAT, value, c, where, tile.lanes, mask)

    right = Packed(b, FLOAT) if layout == "packed" else Matrix(b, FLOAT, n, 1)
    left = Matrix(a, FLOAT, k, 1)
    if layout == "rows":
        problem = GemmProblem(m, n, k, FLOAT, b_layout(left, right, FLOAT), FLOAT)
        schedule = choose_gemm(problem, target).schedule
    items = gemm(kernel, schedule=schedule, m=m, n=n, k=k, a=left, b=right, epilogue=epilogue, scratch=scratch)
    assert kernel.sizes == ()
    x, weights = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    result, room = np.empty((m, n), np.float32), np.empty(evaluate(scratch_bytes(schedule, k), {}), np.uint8)
    CompiledKernel(kernel, items)(
        x, pack(weights, schedule.packed_layout) if layout == "packed" else weights, result, room
    )
    np.testing.assert_allclose(result, x.astype(float) @ weights.astype(float), rtol=1e-5, atol=1e-5)


def test_few_rows_are_one_tile() -> None:
    """Weights that come from the second-level cache are read once or twice, as rows have room in registers."""
    actual = {
        m: choose(NAMED["avx512"], FLOAT, "packed", m=m, n=256).tile for m in (1, 6, 7, 9, 10, 14, 16, 20, 28, 29)
    }
    assert {m: -(-m // tile.rows) for m, tile in actual.items()} == {
        1: 1, 6: 1, 7: 1, 9: 1, 10: 1, 14: 1, 16: 2, 20: 2, 28: 2, 29: 5
    }  # fmt: skip
    assert all(tile.rows * tile.vectors + tile.vectors + 1 <= 32 for tile in actual.values())


def test_few_sums_are_in_chains() -> None:
    def chains(n: Size, m: Size, name: str = "avx512", dtype: DType = FLOAT) -> int:
        return choose(NAMED[name], dtype, "packed", m=m, n=n).tile.chains

    assert [chains(256, 1), chains(256, 2), chains(256, 6), chains(16, 1), chains(256, M)] == [2, 1, 1, 4, 1]
    assert [chains(256, 1, "avx2"), chains(256, 1, "neon"), chains(256, 1, dtype=INT32)] == [4, 2, 1]


@functools.cache
def dot_products(
    target: Target, dtype: DType, m: Size, n: Size, packed: bool, transposed: bool = False
) -> CompiledKernel:
    """C[b, m, n] of A[b, m, k], its columns contiguous if ``turned``, and of B[b, n, k], or packed."""
    kernel = Kernel(target)
    e, lanes = kernel.emitter, default_tile(target, dtype).lanes
    a, b, c, scratch = (kernel.buffer() for _ in range(4))
    rows, columns, depth = (kernel.size(size) for size in (m, n, K))
    memory = load_store.memory_type(dtype)

    def locate(e: Emitter, number: str | int) -> Operands:
        at_a, at_b = (e.mul(number, e.mul(size, depth)) for size in (rows, columns))
        return Operands(e.address(a, memory, at_a), e.address(b, memory, at_b), (Index(number),))

    def epilogue(index: tuple[Index, ...], value: str, mask: str | None) -> None:
        number, row, column = index
        offset = e.add(e.mul(e.add(e.mul(number.base, rows), row.base), columns), column.base)
        load_store.store(e, dtype, value, c, Index(offset, 1), lanes, mask)

    left = Matrix(a, dtype, 1, rows) if transposed else Matrix(a, dtype, depth, 1)
    right = Packed(b, dtype) if packed else Matrix(b, dtype, 1, depth)
    schedule = choose_gemm(
        GemmProblem(m, n, K, dtype, "packed" if isinstance(right, Packed) else b_layout(left, right, dtype), dtype),
        target,
    ).schedule
    assert schedule.form == "tiles" if (m, n) == (M, N) else schedule.form in ("few_columns", "one_row")
    items = gemm(
        kernel,
        schedule=schedule,
        m=m,
        n=n,
        k=K,
        a=left,
        b=right,
        epilogue=epilogue,
        batch=B,
        locate=locate,
        result=dtype,
        scratch=scratch,
    )
    return CompiledKernel(kernel, items)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", [FLOAT, FLOAT16, INT32], ids=lambda dtype: dtype.name)
def test_one_of_an_open_number_of_rows_copies_no_columns(target: Target, dtype: DType) -> None:
    rng, numpy = np.random.default_rng(9), numpy_dtype(dtype)
    compiled = dot_products(target, dtype, M, N, packed=False)
    for m, n, k in itertools.product((0, 1, 2, 7), (0, 1, 3, 16, 65, 130), (0, 1, 16, 33)):
        a, b = (rng.integers(-9, 9, shape).astype(numpy) for shape in ((2, m, k), (2, k, n)))
        result, scratch = np.full(2 * m * n + 64, 77, numpy), np.full(1 << 16, 77, np.uint8)
        compiled(a, np.ascontiguousarray(b.swapaxes(1, 2)), result, scratch, parts=2, b=2, m=m, n=n, k=k)
        np.testing.assert_array_equal(result[: 2 * m * n].reshape(2, m, n), a @ b)
        assert (result[2 * m * n :] == 77).all(), "written past the end"
        assert m > 1 or (scratch == 77).all(), "a panel was copied for one row"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", [FLOAT, FLOAT16, INT32], ids=lambda dtype: dtype.name)
def test_dot_products(target: Target, dtype: DType) -> None:
    rng, numpy = np.random.default_rng(9), numpy_dtype(dtype)
    few = default_tile(target, dtype).lanes // 4
    cases = [
        (M, columns, packed, transposed) for columns in (1, few) for packed, transposed in ((0, 0), (1, 0), (1, 1))
    ]
    cases += [(1, N, False, False)]
    for (rows, columns, packed, transposed), k in itertools.product(cases, (0, 1, 7, 8, 16, 33)):
        for free in (0, 1, 3, 4, 5, 15, 16, 17, 65, 130):
            m, n = (free, columns) if rows is M else (1, free)
            a, b = (rng.integers(-9, 9, shape).astype(numpy) for shape in ((2, m, k), (2, k, n)))
            result = np.full(2 * m * n + 64, 77, numpy)
            left = np.ascontiguousarray(a.swapaxes(1, 2)) if transposed else a
            right = (
                pack(b, choose(target, dtype, "packed", n=columns).packed_layout)
                if packed
                else np.ascontiguousarray(b.swapaxes(1, 2))
            )
            compiled = dot_products(target, dtype, rows, columns, bool(packed), bool(transposed))
            compiled(left, right, result, np.empty(0, np.uint8), parts=2, b=2, m=m, n=n, k=k)
            np.testing.assert_array_equal(result[: 2 * m * n].reshape(2, m, n), a @ b)
            assert (result[2 * m * n :] == 77).all(), "written past the end"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_row_groups_that_fill_the_cache(target: Target) -> None:
    # K is so large that the rows no longer stay in the second-level cache together.
    deep = target.l2 // 2 // (default_tile(target, FLOAT).rows * 4 * 4) + 1
    check(target, FLOAT, "packed", 1, 61, 70, deep)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize(("dtype", "k"), [(FLOAT, 17), (FLOAT, 48), (FLOAT, 50), (INT32, 33)])
def test_parts_of_k_change_no_bit(target: Target, dtype: DType, k: int) -> None:
    """K is cut where a panel is large for the second-level cache; here that holds 16 rows of one."""
    tile = default_tile(target, dtype)
    small = replace(target, l2=8 * 16 * tile.columns * tile.bytes)
    rng, layout = np.random.default_rng(k), choose(target, dtype, "packed").packed_layout
    most = tile.rows * costs.GEMM_TILES_PER_DEEP_ITEM
    for m, n in ((0, 5), (1, 1), (tile.rows + 1, 70), (most, 17), (most + 1, tile.columns), (2 * most + 5, 70)):
        a, b = (rng.integers(-9, 9, shape) + rng.random(shape) for shape in ((1, m, k), (1, k, n)))
        operands = (
            a.astype(numpy_dtype(dtype)),
            pack(b.astype(numpy_dtype(dtype)), layout),
        )
        results = [np.full(m * n + 64, 77, numpy_dtype(dtype)) for _ in range(2)]
        for processor, result in zip((target, small), results, strict=True):
            product(processor, dtype, "packed", None, k)(
                *operands, result, np.empty(0, np.uint8), parts=3, b=1, m=m, n=n
            )
        assert results[0].tobytes() == results[1].tobytes()
        assert (results[1][m * n :] == 77).all(), "written past the end"


def test_the_split_does_not_change_a_bit() -> None:
    rng = np.random.default_rng(1)
    target = TARGETS[-1]
    a, b = rng.standard_normal((1, 133, 77), np.float32), rng.standard_normal((1, 77, 150), np.float32)
    results = []
    for parts in (1, 2, 3, 16):
        results.append(np.empty((133, 150), np.float32))
        scratch = np.empty(0, np.uint8)
        product(target, FLOAT, "packed")(
            a,
            pack(b, choose(target, FLOAT, "packed").packed_layout),
            results[-1],
            scratch,
            parts=parts,
            b=1,
            m=133,
            n=150,
            k=77,
        )
    assert all(item.tobytes() == results[0].tobytes() for item in results)


def test_packing_fills_the_last_panel_with_zeros() -> None:
    target = NAMED["avx2"]
    layout = choose(target, FLOAT, "packed").packed_layout
    columns = layout.columns
    array = np.arange(2 * 3 * (columns + 1), dtype=np.float32).reshape(2, 3, columns + 1)
    panels = pack(array, layout)
    assert panels.shape == (2, 2, 3, columns)
    np.testing.assert_array_equal(panels[:, 0], array[..., :columns])
    np.testing.assert_array_equal(panels[:, 1, :, 0], array[..., columns])
    assert not panels[:, 1, :, 1:].any()
