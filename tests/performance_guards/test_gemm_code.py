"""The inner loop of a matrix product is FMAs in registers."""

from __future__ import annotations

import pytest
from tests.performance_guards.emitted import FMAS, basic_blocks

from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.kernel_builder import Index, Kernel
from sardonyx.compiler.kernels.gemm.gemm import Matrix, Packed, gemm
from sardonyx.compiler.target.description import NAMED
from sardonyx.compiler.tiling.gemm import choose_gemm
from sardonyx.compiler.tiling.gemm_schedule import GemmProblem
from sardonyx.core.dim import Dim
from sardonyx.core.ir.types import FLOAT

pytestmark = pytest.mark.performance_guard

K, N = Dim.symbol("k"), Dim.symbol("n")


@pytest.mark.parametrize(("name", "stack"), [("avx2", "(%rsp)"), ("avx512", "(%rsp)"), ("neon", "[sp")])
def test_the_inner_loop_is_multiply_adds_in_registers(name: str, stack: str) -> None:
    kernel, target = Kernel(NAMED[name]), NAMED[name]
    a, b, c = (kernel.buffer() for _ in range(3))
    schedule = choose_gemm(GemmProblem(6, N, K, FLOAT, "packed", FLOAT), target).schedule
    tile = schedule.tile

    def epilogue(index: tuple[Index, ...], value: str, mask: str | None) -> None:
        load_store.store(kernel.emitter, FLOAT, value, c, index[1], tile.lanes, mask)

    gemm(
        kernel, schedule=schedule, m=tile.rows, n=tile.columns, k=K, a=Matrix(a, FLOAT, kernel.size(K), 1),
        b=Packed(b, FLOAT), epilogue=epilogue,
    )  # fmt: skip
    inner = max(basic_blocks(kernel), key=lambda block: block.count(FMAS[name]))
    assert inner.count(FMAS[name]) == tile.unroll * tile.rows * tile.vectors
    assert not [line for line in inner.splitlines() if stack in line]
