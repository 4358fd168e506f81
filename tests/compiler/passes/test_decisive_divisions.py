"""Divisions by constants stay divisions where the last bit of the quotient decides an integer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType

COUNTS = np.arange(64, dtype=np.float32)
VECTOR = TensorType(t.FLOAT, (64,))


@pytest.mark.parametrize("divisor", [41.0, 47.0, 55.0, 61.0])
@pytest.mark.parametrize(
    "integers",
    [
        pytest.param(lambda q: L.cast(q, t.INT32), id="cast"),
        pytest.param(lambda q: L.cast(L.maximum(q, 0.0), t.INT64), id="after a maximum"),
        pytest.param(L.floor, id="floor"),
    ],
)
def test_multiples_of_a_divisor_have_exact_quotients(divisor: float, integers: Callable[[L.Tensor], L.Tensor]) -> None:
    program = Program.compile(trace("f", lambda x: [integers(x / divisor)], [VECTOR]), threads=1)
    (result,) = program.run([COUNTS * np.float32(divisor)])
    np.testing.assert_array_equal(result, COUNTS)


@pytest.mark.parametrize("divisor", [41.0, 47.0, 0.1])
def test_codes_of_a_quantization_are_those_of_a_division(divisor: float) -> None:
    function = trace("f", lambda x: [L.cast(L.clip(L.round_(x / divisor), -128.0, 127.0), t.INT8)], [VECTOR])
    feeds = [(COUNTS + np.float32(0.5)) * np.float32(divisor)]
    np.testing.assert_array_equal(Program.compile(function, threads=1).run(feeds)[0], computed(function, feeds)[0])


def test_requantized_sums_are_the_references_to_the_bit() -> None:
    rng = np.random.default_rng(3)
    weights = rng.integers(-128, 128, (40, 48, 3, 3)).astype(np.int8)
    scales = rng.uniform(0.001, 0.003, (40, 1, 1)).astype(np.float32)

    def body(x: L.Tensor, scale: L.Tensor) -> list[L.Tensor]:
        w = L.cast(constant(weights, t.INT8), t.INT32)
        sums = L.convolve(L.cast(x, t.INT32) - 3, w, strides=[1, 1], padding=[(1, 1)] * 2)
        units = L.cast(sums, t.FLOAT) * (constant(scales, t.FLOAT) * scale / 0.37)
        return [L.cast(L.clip(L.round_(units) + 128.0, 0.0, 255.0), t.UINT8)]

    function = trace("f", body, [TensorType(t.UINT8, (1, 48, 20, 20)), TensorType(t.FLOAT, ())])
    program = Program.compile(function, threads=1)
    for scale in (0.7, 0.013, 1.9):
        feeds = [rng.integers(0, 256, (1, 48, 20, 20)).astype(np.uint8), np.array(scale, np.float32)]
        np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])
