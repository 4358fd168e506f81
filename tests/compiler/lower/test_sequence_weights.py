"""Weights of products with sequences are packed once, and read once for all rows."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.program_checks import assert_close
from tests.core.programs import computed

from sardonyx.compiler.lower.launch import Prepared
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir.types import FLOAT, TensorType
from sardonyx.ops.registry import find

B, H, W = map(Dim.symbol, "BHW")
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("height", [4, H])
def test_weights_of_a_recurrent_layer_are_packed_if_features_are_open(height: Size) -> None:
    weights = [constant(RNG.standard_normal(shape).astype(np.float32) / 9) for shape in ((1, 32, 64), (1, 32, 8))]
    lstm = find("", "LSTM", 14)
    assert lstm is not None

    def body(image: L.Tensor) -> list[L.Tensor]:
        steps = L.reshape(L.permute(image, (3, 0, 1, 2)), (image.shape[3], image.shape[0], 16 * image.shape[2]))
        return [lstm([steps, *weights], {"hidden_size": 8}, opset=14)[0]]  # type: ignore[list-item]

    function = trace("f", body, [TensorType(FLOAT, (B, 16, height, W))])
    program = Program.compile(function)
    products = [launch for launch in program.launches if launch.title == "contract"]
    assert products and all(any(isinstance(buffer, Prepared) for buffer in launch.buffers) for launch in products)
    for batch, width in ((1, 9), (3, 5)):
        x = RNG.standard_normal((batch, 16, 4, width)).astype(np.float32)
        assert_close(program.run([x]), computed(function, [x]))


@pytest.mark.parametrize("batch", [B, 2])
def test_rows_of_a_transposed_sequence_are_one_matrix(batch: Size) -> None:
    """The weights are not read again for each step."""
    weights = constant(RNG.standard_normal((64, 48)).astype(np.float32))

    def body(x: L.Tensor) -> list[L.Tensor]:
        return [L.matmul(L.permute(x, (1, 0, 2)), weights)]

    function = trace("f", body, [TensorType(FLOAT, (batch, W, 64))])
    program = Program.compile(function)
    assert [launch.title for launch in program.launches].count("map") == 1
    x = RNG.standard_normal((2, 7, 64)).astype(np.float32)
    assert_close(program.run([x]), computed(function, [x]))


def test_a_sequence_that_is_repeated_is_read_where_it_is() -> None:
    weights = constant(RNG.standard_normal((16, 8)).astype(np.float32))

    def body(x: L.Tensor) -> list[L.Tensor]:
        return [L.matmul(L.broadcast_to(x, (4, x.shape[1], 16)), weights)]

    function = trace("f", body, [TensorType(FLOAT, (1, W, 16))])
    program = Program.compile(function)
    assert "contract" in [launch.title for launch in program.launches]
    x = RNG.standard_normal((1, 3, 16)).astype(np.float32)
    assert_close(program.run([x]), computed(function, [x]))
