"""Operands of the backward pass that are computed again: equal results, fewer values in memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.core.transform.differentiation import gradient
from sardonyx.core.transform.recomputed_operands import with_recomputed_operands
from sardonyx.core.transform.simplify import simplify
from sardonyx.ops.definitions.activations import gelu, relu
from sardonyx.ops.definitions.normalization import layer_normalization
from sardonyx.runtime.compiled.memory_usage import memory

ROWS, WIDTH, LAYERS = 64, 1024, 3

Activation = Callable[[Tensor], Tensor]


def normalized(x: Tensor) -> Tensor:
    ones = L.constant(np.ones(x.shape[-1], np.float32))  # type: ignore[arg-type]
    return layer_normalization(x, ones)[0]


def loss_of(activation: Activation, rows: int | Dim = ROWS, width: int = WIDTH) -> Function:
    """Layers of products, each followed by the activation, and a sum of squares."""

    def body(x: Tensor, *weights: Tensor) -> list[Tensor]:
        for w in weights:
            x = activation(L.matmul(x, w))
        return [L.reduce_sum(x * x)]

    types = [TensorType(t.FLOAT, (rows, width)), *[TensorType(t.FLOAT, (width, width))] * LAYERS]
    return trace("layers", body, types)


def arrays(rows: int = ROWS, width: int = WIDTH) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((width, width), np.float32) / np.float32(width**0.5) for _ in range(LAYERS)]
    return [rng.standard_normal((rows, width), np.float32), *weights]


def repeated(function: Function) -> int:
    return sum(value.op == "stop_gradient" for value in function.values)


def peak(function: Function, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], int]:
    program = Program.compile(function, threads=1)
    results = program.run(inputs)
    return [np.array(result) for result in results], max(arena.bytes for arena in memory([("", program, 0)], 0).plans)


@pytest.mark.parametrize("activation", [gelu, normalized], ids=["gelu", "normalization"])
def test_results_are_equal_and_take_less_memory(activation: Activation) -> None:
    whole = simplify(gradient(loss_of(activation)))
    again = simplify(with_recomputed_operands(whole, 1))
    assert repeated(again) > repeated(whole)
    inputs = arrays()
    expected, before = peak(whole, inputs)
    actual, after = peak(again, inputs)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    # The results of all activations but the last are no longer kept.
    assert before - after >= 4 * ROWS * WIDTH


def test_open_sizes_count_as_one() -> None:
    assert repeated(with_recomputed_operands(gradient(loss_of(gelu, Dim.symbol("N"))), 1)) == 0
    wide = gradient(loss_of(gelu, Dim.symbol("N"), 1 << 15))
    assert repeated(with_recomputed_operands(wide, 1)) > 0


def test_small_values_stay() -> None:
    small = gradient(loss_of(gelu, 4, 8))
    assert with_recomputed_operands(small, 1) is small


def test_values_that_start_from_nothing_in_memory_stay() -> None:
    """The backward pass of a sum reads none of its terms."""

    def body(x: Tensor, v: Tensor, w: Tensor) -> list[Tensor]:
        return [L.reduce_sum(L.matmul(L.matmul(x, v) + L.matmul(x, L.permute(v, [1, 0])), w))]

    square = TensorType(t.FLOAT, (256, 256))
    whole = gradient(trace("sum", body, [square] * 3))
    assert with_recomputed_operands(whole, 1) is whole


def test_the_interpreter_agrees() -> None:
    whole = gradient(loss_of(relu, 40, 1024))
    inputs = arrays(40)
    for a, b in zip(computed(with_recomputed_operands(whole, 1), inputs), computed(whole, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
