"""Rows of dequantized tables equal the interpreter's, and the table is neither computed nor stored as floats."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from tests.core.programs import computed

from sardonyx.compiler.call.fault import Fault
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import SardonyxError
from sardonyx.ops.definitions.indexing import gather
from sardonyx.ops.definitions.microsoft.quantized_products import gather_block_quantized
from sardonyx.ops.definitions.quantization import dequantize_linear

ROWS, WIDTH, COUNT = 300, 130, Dim.symbol("C")
RNG = np.random.default_rng(0)


def table(dtype: str) -> np.ndarray:
    bits = int(dtype[-1])
    low = 0 if dtype[0] == "u" else -(1 << (bits - 1))
    return RNG.integers(low, low + (1 << bits), (ROWS, WIDTH)).astype(getattr(ml_dtypes, dtype, dtype))


def scales(*shape: int) -> np.ndarray:
    return RNG.random(shape, np.float32) + np.float32(0.5)


def dequantized(dtype: str, scale: np.ndarray, axis: int, block: int, zero: bool) -> Callable[[Tensor], list[Tensor]]:
    codes = table(dtype)
    zeros = [np.ones(scale.shape, codes.dtype)] if zero else []
    parts = [constant(part) for part in (codes, scale, *zeros)]
    return lambda at: [gather(dequantize_linear(*parts, axis=axis, block_size=block), at)]


def block_quantized(bits: int, block: int, zero: bool) -> Callable[[Tensor], list[Tensor]]:
    packed = RNG.integers(0, 256, (ROWS, 128 * bits // 8), np.uint8)
    blocks = 128 // block
    zeros = [RNG.integers(0, 256, (ROWS, -(-blocks * bits // 8)), np.uint8)] if zero else []
    parts = [constant(part) for part in (packed, scales(ROWS, blocks), *zeros)]

    def body(at: Tensor) -> list[Tensor]:
        data, scale, *rest = parts
        return [gather_block_quantized(data, at, scale, *rest, bits=bits, block_size=block)]

    return body


CASES = {
    "int4 by block": (dequantized("int4", scales(ROWS, 9), 1, 16, zero=True), 0.9),
    "uint4 by block of rows": (dequantized("uint4", scales(19, WIDTH), 0, 16, zero=True), 1.0),
    "int8 by row": (dequantized("int8", scales(ROWS), 0, 0, zero=False), 1.1),
    "uint8 by column": (dequantized("uint8", scales(WIDTH), 1, 0, zero=True), 1.1),
    "uint2 by tensor": (dequantized("uint2", scales(), 0, 0, zero=True), 0.3),
    "4 bits in bytes": (block_quantized(4, 32, zero=True), 0.7),
    "8 bits in bytes": (block_quantized(8, 16, zero=False), 1.3),
}  # fmt: skip


def function(body: Callable[[Tensor], list[Tensor]]) -> Function:
    return trace("rows", body, [TensorType(t.INT64, (COUNT, 2))])


@pytest.mark.parametrize("name", CASES)
def test_rows_of_tables(name: str) -> None:
    body, most_bytes = CASES[name]
    graph = function(body)
    program = Program.compile(graph)
    stored = sum(value.known.nbytes for value in program.function.values if value.is_constant)
    assert stored <= most_bytes * ROWS * WIDTH
    for count in (0, 1, 9):
        at = RNG.integers(-ROWS, ROWS, (count, 2))
        (actual,), (expected,) = program.run([at]), computed(graph, [at])
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", ["int4 by block", "uint4 by block of rows", "int8 by row"])
@pytest.mark.parametrize("number", [ROWS, ROWS + 3, -ROWS - 1, 1 << 40])
def test_a_row_outside_of_the_table_is_refused(name: str, number: int) -> None:
    graph = function(CASES[name][0])
    at = np.array([[0, number]])
    with pytest.raises(Fault):
        Program.compile(graph).run([at])
    with pytest.raises(SardonyxError, match="out of range"):
        computed(graph, [at])


def test_repeated_rows_alone_have_no_check_and_stay_as_written() -> None:
    repeated = constant(scales(19, WIDTH))

    def body(at: Tensor) -> list[Tensor]:
        return [gather(L.slice_(L.repeat(repeated, 0, 16), 0, 0, ROWS), at)]

    graph = function(body)
    with pytest.raises(Fault):
        Program.compile(graph).run([np.array([[0, ROWS]])])
