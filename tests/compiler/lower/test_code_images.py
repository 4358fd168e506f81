"""Images of codes and of integer sums stay in blocks of channels between convolutions and their readers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compiler.program_checks import assert_close
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import host
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType

H, W = map(Dim.symbol, "HW")
RNG = np.random.default_rng(0)


def convolved(codes: L.Tensor, filters: int) -> L.Tensor:
    """Return sums of products of codes and 8-bit weights."""
    weights = RNG.integers(-9, 9, (filters, int(codes.shape[1]), 3, 3)).astype(np.int8)
    return L.convolve(codes, constant(weights), strides=[1, 1], padding=[(0, 0)] * 2, dtype=t.INT32)


def coded(x: L.Tensor) -> L.Tensor:
    return L.cast(L.clip(L.round_(x), 0, 200), t.UINT8)


def blocked_types(program: Program) -> list[Any]:
    return [value.type.dtype for value, lanes in program.blocks.items() if lanes == host().lanes(32)]


def test_sums_that_are_reduced_along_the_image_are_written_in_blocks() -> None:
    """Channels of one position would be on as many pages as there are channels."""

    def body(x: L.Tensor) -> list[L.Tensor]:
        return [L.reduce_max(L.cast(convolved(coded(x), 64), t.FLOAT) * 0.5, [2, 3])]

    function = trace("f", body, [TensorType(t.FLOAT, (1, 16, H, W))])
    program = Program.compile(function)
    assert t.INT32 in blocked_types(program)
    x = RNG.uniform(0, 200, (1, 16, 9, 11)).astype(np.float32)
    assert_close(program.run([x]), computed(function, [x]))


@pytest.mark.parametrize("channels", [3, 32])
def test_padded_codes_are_in_blocks_if_the_blocks_are_full(channels: int) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        padded = L.pad(coded(x), (0, 0, 1, 1), (0, 0, 1, 1), constant(np.uint8(7)))
        return [convolved(padded, 32)]

    function = trace("f", body, [TensorType(t.FLOAT, (1, channels, H, W))])
    program = Program.compile(function)
    assert (t.UINT8 in blocked_types(program)) == (channels == 32)
    x = RNG.uniform(0, 200, (1, channels, 7, 9)).astype(np.float32)
    assert_close(program.run([x]), computed(function, [x]))


def test_codes_that_a_table_reads_are_in_the_blocks_of_its_result() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        codes = L.cast(L.tanh(L.cast(coded(x), t.FLOAT) * 0.1) * 100, t.UINT8)
        return [convolved(codes, 32)]

    function = trace("f", body, [TensorType(t.FLOAT, (1, 32, H, W))])
    program = Program.compile(function)
    assert blocked_types(program).count(t.UINT8) == 2
    x = RNG.uniform(0, 200, (1, 32, 7, 9)).astype(np.float32)
    assert_close(program.run([x]), computed(function, [x]))
