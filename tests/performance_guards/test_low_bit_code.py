"""Weights of few bits are converted by few instructions, in registers."""

from __future__ import annotations

import re

import pytest
from tests.performance_guards.emitted import FMAS, SPILLS, basic_blocks

from sardonyx.compiler.analysis.low_bit_weights import LowBits, ZeroPoints
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.kernel_builder import Index, Kernel
from sardonyx.compiler.kernels.gemm.gemm import LowBitPanels, Matrix, gemm
from sardonyx.compiler.target.description import NAMED
from sardonyx.compiler.tiling.gemm import choose_gemm
from sardonyx.compiler.tiling.gemm_schedule import GemmProblem
from sardonyx.core.ir.types import FLOAT

pytestmark = pytest.mark.performance_guard

CONVERSIONS = {"avx2": "vcvtdq2ps", "avx512": "vpermps", "neon": "scvtf"}
"""The instruction that gives floats of codes, by target."""


@pytest.mark.parametrize("name", ["avx2", "avx512", "neon"])
def test_a_code_of_one_row_is_converted_once(name: str) -> None:
    kernel, target, form = Kernel(NAMED[name]), NAMED[name], LowBits(4, 32, "none")
    a, b, c = (kernel.buffer() for _ in range(3))
    schedule = choose_gemm(GemmProblem(1, 4096, 4096, FLOAT, "packed", FLOAT, low_bits=form), target).schedule
    assert schedule.form == "low_bits"
    tile = schedule.tile

    def epilogue(index: tuple[Index, ...], value: str, mask: str | None) -> None:
        load_store.store(kernel.emitter, FLOAT, value, c, index[1], tile.lanes, mask)

    gemm(
        kernel, schedule=schedule, m=1, n=4096, k=4096, a=Matrix(a, FLOAT, 4096, 1), b=LowBitPanels(b, form),
        epilogue=epilogue,
    )  # fmt: skip
    inner = max(basic_blocks(kernel), key=lambda block: block.count(FMAS[name]))
    products = inner.count(FMAS[name])
    assert products >= form.codes_per_word * tile.vectors
    assert inner.count(CONVERSIONS[name]) <= products
    # The sums of a block are added to those before, in memory, once for many products. With 16 registers the words of
    # 12 vectors are spilled, too: panels of fewer vectors, or words that are loaded for each product, are slower.
    stores = re.findall(SPILLS[name], inner)
    assert len(stores) <= products // (4 if target.vector_registers >= 32 else 2)


@pytest.mark.parametrize("rows", [1, 4, 64])
@pytest.mark.parametrize("zeros", ["none", "bytes"])
def test_rows_are_multiplied_in_integers_without_conversions(rows: int, zeros: ZeroPoints) -> None:
    kernel, target, form = Kernel(NAMED["avx512vnni"]), NAMED["avx512vnni"], LowBits(4, 32, zeros)
    a, b, c, scratch = (kernel.buffer() for _ in range(4))
    schedule = choose_gemm(GemmProblem(rows, 4096, 4096, FLOAT, "packed", FLOAT, low_bits=form), target).schedule
    tile = schedule.tile

    def epilogue(index: tuple[Index, ...], value: str, mask: str | None) -> None:
        load_store.store(kernel.emitter, FLOAT, value, c, index[1], tile.lanes, mask)

    gemm(
        kernel, schedule=schedule, m=rows, n=4096, k=4096, a=Matrix(a, FLOAT, 4096, 1), b=LowBitPanels(b, form),
        epilogue=epilogue, scratch=scratch,
    )  # fmt: skip
    inner = max(basic_blocks(kernel), key=lambda block: block.count("vpdpbusd"))
    products = inner.count("vpdpbusd")
    # Three digits, four codes in an instruction, for some vectors of columns of all rows of a tile.
    assert products >= 3 * form.block // 4 * min(rows, 4)
    # The remainders of uneven inputs are in the same block. A single row waits for memory.
    assert len(re.findall(r"\tv", inner)) <= (2.8 if rows == 1 else 2.2) * products
    # The sums of a block are added to those before, in memory on the stack.
    assert len(re.findall(SPILLS["avx512"], inner)) <= 2 * tile.rows * tile.vectors
