"""Maps that write blocked images from row-major operands equal the interpreter's."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.elementwise import TARGETS
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType, TensorType

H, W = Dim.symbol("H"), Dim.symbol("W")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("channels", "dtype", "known"), [(3, t.UINT8, True), (16, t.UINT8, False), (37, t.FLOAT, False)]
)
def test_an_image_becomes_blocks(channels: int, dtype: DType, known: bool, target: str) -> None:
    rng = np.random.default_rng(channels)
    offsets = rng.uniform(-5, 5, (channels, 1, 1)).astype(np.float32)
    weights = rng.integers(-9, 9, (8, channels, 1, 1)).astype(np.int8)

    def body(x: L.Tensor) -> list[L.Tensor]:
        image = L.round_(L.abs_(x + constant(offsets, t.FLOAT)))
        # Two readers: the map is a kernel of its own.
        image = L.cast(L.cast(image, dtype), t.INT32 if dtype == t.UINT8 else t.FLOAT)
        w = L.cast(constant(weights, t.INT8), image.dtype)
        return [L.convolve(image, w, strides=[stride] * 2, padding=[(0, 0)] * 2) for stride in (1, 2)]

    function = trace("f", body, [TensorType(t.FLOAT, (2, channels, 5, 13) if known else (2, channels, H, W))])
    program = Program.compile(function, target=host() if target == host().name else NAMED[target], threads=2)
    assert not program.host
    for size in ((5, 13),) if known else ((5, 13), (1, 3), (2, 16), (9, 40)):
        feeds = [rng.uniform(-90, 90, (2, channels, *size)).astype(np.float32)]
        for actual, expected in zip(program.run(feeds), computed(function, feeds), strict=True):
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [t.UINT8, t.FLOAT])
@pytest.mark.parametrize(
    ("sizes", "interior"),
    [((40, 1), (0, 0)), ((5, 40), (0, 0)), ((5, 40), (0, 1)), ((40, 1), (1, 0)), ((1, 40), (1, 1))],
)
def test_a_padded_image_becomes_a_part_of_blocks(
    sizes: tuple[int, int], interior: tuple[int, int], dtype: DType, target: str
) -> None:
    """Positions of a column, and those with others between, are not adjacent in the padded image."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-9, 9, (8, 16, 3, 3)).astype(np.int8)

    def body(x: L.Tensor) -> list[L.Tensor]:
        image = L.pad(x, (0, 0, 1, 1), (0, 0, 1, 2), 75, (0, 0, *interior))
        image = L.cast(image, t.INT32 if dtype == t.UINT8 else t.FLOAT)
        w = L.cast(constant(weights, t.INT8), image.dtype)
        return [L.convolve(image, w, strides=[2, 2], padding=[(0, 0)] * 2)]  # No form with rounding errors.

    for known in (True, False):
        function = trace("f", body, [TensorType(dtype, (2, 16, *(sizes if known else (H, W))))])
        program = Program.compile(function, target=host() if target == host().name else NAMED[target], threads=2)
        assert not program.host
        feeds = [rng.integers(0, 90, (2, 16, *sizes)).astype(t.numpy_dtype(dtype))]
        np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])
