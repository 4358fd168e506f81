"""Products on the matrix unit are exact for all sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.compiler.tiling.gemm import choose_gemm
from sardonyx.compiler.tiling.gemm_schedule import GemmProblem
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType

N = Dim.symbol("N")


@pytest.mark.skipif(not host().has_tiles, reason="the processor has no matrix unit")
@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 2), rows=st.sampled_from([1, 4, 15, 16, 17, 31, 32, 33, 64, 130]),
    depth=st.sampled_from([32, 64, 68, 100, 128, 192, 260]), columns=st.sampled_from([8, 16, 17, 24, 32, 33, 48, 70]),
    is_open=st.booleans(), requantized=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_products_are_exact(
    batch: int, rows: int, depth: int, columns: int, is_open: bool, requantized: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weights = np.where(rng.random((depth, columns)) < 0.3, -128, rng.integers(-128, 128, (depth, columns)))

    def body(x: L.Tensor) -> list[L.Tensor]:
        sums = L.matmul(L.cast(x, t.INT32) - 3, L.cast(constant(weights.astype(np.int8), t.INT8), t.INT32))
        if not requantized:
            return [sums]
        return [L.cast(L.clip(L.round_(L.cast(sums, t.FLOAT) * 0.001) + 7.0, 0.0, 255.0), t.UINT8)]

    function = trace("f", body, [TensorType(t.UINT8, (batch, N if is_open else rows, depth))])
    program = Program.compile(function, threads=2)
    for count in {rows, 1, 40} if is_open else {rows}:
        feeds = [rng.choice([0, 1, 128, 255], (batch, count, depth)).astype(np.uint8)]
        np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


def test_the_matrix_unit_multiplies_bytes_by_packed_weights() -> None:
    target = NAMED["avx512amx"]
    problem = GemmProblem(64, 96, 64, t.INT32, "packed", t.INT32, 4)
    assert choose_gemm(problem, target).schedule.form == "matrix"
    assert choose_gemm(problem, NAMED["avx512vnni"]).schedule.form == "tiles"
    assert choose_gemm(GemmProblem(1, 96, 64, t.INT32, "packed", t.INT32, 4), target).schedule.form != "matrix"
    assert choose_gemm(GemmProblem(64, 96, 64, t.FLOAT, "packed", t.FLOAT), target).schedule.form == "tiles"
