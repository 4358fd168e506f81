"""Bits of elements put together and taken apart equal the interpreter's."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType

N, M = map(Dim.symbol, "NM")
WIDE = (t.DOUBLE, t.INT64, t.COMPLEX64)
NARROW = (t.FLOAT, t.UINT32, t.INT16, t.FLOAT16, t.UINT8)


@pytest.mark.parametrize("narrow", NARROW, ids=lambda d: d.name.lower())
@pytest.mark.parametrize("wide", WIDE, ids=lambda d: d.name.lower())
def test_both_ways(wide: t.DType, narrow: t.DType) -> None:
    ratio = wide.bitwidth // narrow.bitwidth
    types = [TensorType(wide, (N, M)), TensorType(narrow, (M, N, ratio))]

    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        return [L.bitcast(x, narrow), L.bitcast(y, wide), L.permute(L.bitcast(x, narrow), (2, 1, 0))]

    function = trace("f", body, types)
    program = Program.compile(function)
    assert not program.grouping.host
    rng = np.random.default_rng(0)
    for n, m in ((1, 1), (3, 7), (2, 16), (5, 33), (0, 4)):
        x = rng.integers(1, 1 << 62, (n, m)) & 0x3F7F3F7F3F7F3F7F
        y = x.T.copy().view(t.numpy_dtype(narrow)).reshape(m, n, ratio)
        arrays = [x.view(t.numpy_dtype(wide)), y]
        for actual, expected in zip(program.run(arrays), computed(function, arrays), strict=True):
            assert actual.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_movements_of_complex_numbers_are_compiled() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        padded = L.pad(x, [0, 1], [0, 2], L.constant(np.array(1 - 2j, np.complex64)))
        return [L.permute(L.concat([padded, L.reverse(padded, [1])], 0), (1, 0))]

    function = trace("f", body, [TensorType(t.COMPLEX64, (N, M))])
    program = Program.compile(function)
    assert not program.grouping.host
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((3, 17)) + 1j * rng.standard_normal((3, 17))).astype(np.complex64)
    np.testing.assert_array_equal(program.run([x])[0], computed(function, [x])[0])
