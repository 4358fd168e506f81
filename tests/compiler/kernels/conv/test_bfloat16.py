"""Convolutions of bfloat16 add exact products in float32, by every instruction of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import pytest
from tests.compiler.bfloat16_targets import FAST, KINDS, processor

from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED
from sardonyx.compiler.tiling.convolution import ConvolutionProblem, ConvolutionSchedule, suits_pairs
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.ops.definitions.activations import relu
from sardonyx.ops.definitions.convolution import conv


@dataclass(frozen=True)
class Case:
    channels: int
    filters: int
    window: tuple[int, ...]
    sizes: tuple[int, ...]
    stride: int = 1
    dilation: int = 1
    open: bool = False
    groups: int = 1

    @property
    def pairs(self) -> bool:
        """True if pairs are the fastest form."""
        return self.groups == 1 and self.channels >= 8


CASES = [
    Case(64, 64, (1, 1), (9, 14)), Case(64, 48, (1, 1), (9, 14), open=True), Case(33, 17, (3, 3), (7, 19), 2),
    Case(17, 40, (5, 5), (11, 8)), Case(24, 100, (3, 3), (9, 9), 2, open=True), Case(32, 32, (3,), (40,), 2),
    Case(16, 24, (2, 3, 3), (4, 6, 5), 1, 2), Case(512, 32, (1, 1), (3, 3)), Case(9, 8, (3, 3), (6, 70), dilation=2),
    Case(3, 16, (3, 3), (12, 12), 2), Case(16, 16, (3, 3), (9, 9), groups=4), Case(8, 8, (3, 3), (9, 9), groups=8),
    Case(1, 16, (3, 3), (12, 12)),
]  # fmt: skip


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    array = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def weights_of(case: Case) -> np.ndarray:
    return drawn(case.filters, case.channels // case.groups, *case.window, seed=1)


def compiled(case: Case, target: str, weights: np.ndarray, convolutions: int = 1) -> Program:
    """Return a program that convolves an image of float32, rounded to bfloat16, and adds what it convolves."""
    padding = [size // 2 * case.dilation for size in case.window]
    rank = len(case.window)
    sizes: Sequence[Size] = [Dim.symbol(f"s{i}") for i in range(rank)] if case.open else case.sizes

    def body(x: Tensor) -> list[Tensor]:
        for _ in range(convolutions):
            x = L.cast(L.cast(x, t.BFLOAT16), t.FLOAT)
            y = conv(
                x, constant(weights), strides=[case.stride] * rank, dilations=[case.dilation] * rank,
                pads=[*padding, *padding], group=case.groups,
            )  # fmt: skip
            x = relu(y + x) if convolutions > 1 else relu(y)
        return [x]

    image = TensorType(t.FLOAT, (Dim.symbol("N"), case.channels, *sizes))
    return Program.compile(trace("convolution", body, [image]), target=processor(target), threads=2)


def reference(case: Case, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    padding = [size // 2 * case.dilation for size in case.window]
    rank = len(case.window)

    def body(image: Tensor, w: Tensor) -> list[Tensor]:
        padded = {"strides": [case.stride] * rank, "dilations": [case.dilation] * rank, "pads": [*padding, *padding]}
        return [relu(conv(image, w, group=case.groups, **padded))]

    doubles = [array.astype(np.float64) for array in (x, weights)]
    function = trace("reference", body, [TensorType(t.DOUBLE, array.shape) for array in doubles])
    with running(RunContext()):
        return np.asarray(evaluate(function, [constant(array) for array in doubles])[0].known)


def multiplies_pairs(program: Program) -> bool:
    schedules = [launch.choice.schedule for launch in program.launches if launch.choice is not None]
    tiles = [schedule.tile for schedule in schedules if isinstance(schedule, ConvolutionSchedule)]
    return any(tile is not None and tile.bfloat16 for tile in tiles)


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_exact_products_are_added_in_float32(case: Case, target: str) -> None:
    weights = weights_of(case)
    program = compiled(case, target, weights)
    assert multiplies_pairs(program) == (target == FAST and case.pairs)
    x = drawn(2, case.channels, *case.sizes, seed=2)
    np.testing.assert_allclose(program.run([x])[0], reference(case, x, weights), rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("target", KINDS)
def test_residual_connections_between_convolutions(target: str) -> None:
    case = Case(40, 40, (1, 1), (6, 7))
    weights = weights_of(case)
    x = drawn(2, 40, 6, 7, seed=3)
    expected = x
    for _ in range(3):
        rounded = expected.astype(ml_dtypes.bfloat16).astype(np.float32)
        expected = np.maximum(np.einsum("mc,nchw->nmhw", weights[:, :, 0, 0], rounded) + rounded, 0)
    actual = compiled(case, target, weights, 3).run([x])[0]
    # A sum in another order may round an image to the neighbouring number.
    assert np.abs(actual - expected).max() <= 2.0**-8 * np.abs(expected).max()


@pytest.mark.parametrize("target", KINDS)
def test_other_weights_are_multiplied_in_float32(target: str) -> None:
    case = Case(64, 64, (1, 1), (5, 6))
    weights = weights_of(case) * np.float32(1 + 2.0**-12)
    program = compiled(case, target, weights)
    assert not multiplies_pairs(program)
    x = drawn(1, 64, 5, 6, seed=2)
    np.testing.assert_allclose(program.run([x])[0], reference(case, x, weights), rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("target", KINDS)
def test_numbers_that_are_not_finite_reach_the_results_that_read_them(target: str) -> None:
    case = Case(33, 20, (3, 3), (8, 9), 2)
    weights = weights_of(case)
    x = drawn(1, 33, 8, 9, seed=2)
    x[0, 32, 3, 3] = np.nan
    x[0, 0, 7, 8] = np.inf
    actual = compiled(case, target, weights).run([x])[0]
    finite = np.isfinite(actual).all((0, 1))
    expected = np.ones((4, 5), bool)
    expected[1:3, 1:3] = False
    expected[3, 4] = False
    np.testing.assert_array_equal(finite, expected)


def test_the_form_follows_the_costs() -> None:
    def has_pairs(case: Case, fast: bool = True) -> bool:
        target = replace(NAMED["avx512bf16"], fast_pairs=fast)
        out = tuple(-(-size // case.stride) for size in case.sizes)
        rank = (1,) * len(case.window)
        return suits_pairs(
            ConvolutionProblem(
                1, case.channels, case.filters, case.groups, case.window, (case.stride,) * len(rank), rank, rank, out,
                t.FLOAT, len(rank) - 1, 1,
            ),
            target,
        )  # fmt: skip

    assert has_pairs(Case(64, 64, (1, 1), (56, 56)))
    assert has_pairs(Case(64, 64, (3, 3), (56, 56), 2))
    assert not has_pairs(Case(64, 64, (1, 1), (56, 56)), fast=False)
    # Winograd's algorithm of float32 multiplies four times less.
    assert not has_pairs(Case(64, 64, (3, 3), (56, 56)))
    assert not has_pairs(Case(3, 64, (7, 7), (224, 224), 2))
