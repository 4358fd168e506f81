"""Lookups give the table's bytes for any number of bytes, and leave zeros in channels that are none."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.elementwise import TARGETS
from tests.compiler.kernels.compiled import CompiledKernel

from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.kernels.code_lookup import LookUp, Padding
from sardonyx.compiler.target.description import NAMED

LENGTHS = (0, 1, 16, 31, 64, 80, 144, 1000)


@pytest.mark.parametrize("target", [*{"sse": 0} | dict.fromkeys(TARGETS)])
@pytest.mark.parametrize(("block", "channels"), [(0, 0), (16, 5), (16, 16), (8, 3)])
def test_bytes_are_replaced(target: str, block: int, channels: int) -> None:
    rng = np.random.default_rng(block + channels)
    table = rng.integers(1, 256, 256).astype(np.uint8)
    kernel = Kernel(NAMED[target])
    source, result = kernel.buffer(), kernel.buffer()
    padding = Padding(block, channels) if block else None
    LookUp(kernel.emitter, NAMED[target], table).replace(source, result, "%last", padding)
    for length in LENGTHS:
        codes = rng.integers(0, 256, 1100).astype(np.uint8)
        actual = np.full_like(codes, 7)
        CompiledKernel(kernel, length)(codes, actual)
        expected = table[codes]
        if block:
            expected[np.arange(1100) % block >= channels] = 0
        expected[length:] = 7
        np.testing.assert_array_equal(actual, expected)
