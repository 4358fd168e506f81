"""Convolutions of images with weights that are known only when a program runs equal the interpreter's."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.test_program import assert_close
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core import types as t
from sardonyx.core.dim import Dim
from sardonyx.core.trace import trace
from sardonyx.core.types import TensorType

N, H, W = map(Dim.symbol, "NHW")


@pytest.mark.parametrize(
    ("channels", "filters", "groups"),
    [(1, 1, 1), (3, 20, 1), (17, 33, 1), (24, 2, 1), (20, 20, 20), (32, 32, 8), (12, 20, 4), (6, 12, 3)],
)
def test_weights_are_packed_when_run(channels: int, filters: int, groups: int) -> None:
    def body(x: L.Tensor, w: L.Tensor) -> list[L.Tensor]:
        found = L.convolve(x, w * 2.0, strides=[1, 2], padding=[(1, 1), (0, 1)], groups=groups)
        return [L.tanh(found)]

    types = [TensorType(t.FLOAT, (N, channels, H, W)), TensorType(t.FLOAT, (filters, channels // groups, 3, 2))]
    function = trace("f", body, types)
    program = Program(function)
    assert "direct convolution" in [launch.title for launch in program.launches]
    rng = np.random.default_rng(1)
    for n, h, w in ((1, 5, 6), (2, 3, 33), (0, 4, 4)):
        x = rng.standard_normal((n, channels, h, w)).astype(np.float32)
        weights = rng.standard_normal((filters, channels // groups, 3, 2)).astype(np.float32) / 10
        assert_close(program.run([x, weights]), computed(function, [x, weights]))
