"""Kernels over places of a value equal the interpreter, whichever value's places they go over."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType

N, K, M = map(Dim.symbol, "NKM")


@pytest.mark.parametrize("width", [1, 7, 8, 20, 40, 64, M])
def test_rows_that_are_joined_of_others_are_written_as_those(width: Size) -> None:
    def joined(x: L.Tensor) -> list[L.Tensor]:
        n, heads, length, item = x.shape
        merged = L.reshape(L.permute(x, [0, 2, 1, 3]), [n, length, heads * item])
        wide = L.broadcast_to(L.unsqueeze(x, [3]), [n, heads, length, 2, item])
        return [merged, L.reshape(wide, [n * heads, length, 2 * item]), L.exp(merged)]

    function = trace("f", joined, [TensorType(t.FLOAT, (N, 3, K, width))])
    program = Program.compile(function)
    assert not program.host
    for n, k in ((2, 5), (1, 1), (0, 3), (1, 33)):
        shape = (n, 3, k, width if isinstance(width, int) else 13)
        x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
        for actual, expected in zip(program.run([x]), computed(function, [x]), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-6)
