"""Convolutions on the matrix unit are exact for every geometry."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.core.programs import computed

from sardonyx.compiler.kernels.conv.matrix import pack_matrix_weights
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import host
from sardonyx.compiler.tiling.matrix_convolution import PANEL, TILE_DEPTH, TILE_ROWS, MatrixConvolution
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType


@dataclasses.dataclass(frozen=True)
class Case:
    """A convolution; all pairs are vertical and horizontal."""

    batch: int
    channels: int
    filters: int
    image: tuple[int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]

    @property
    def out(self) -> tuple[int, int]:
        rows, columns = (
            (size + sum(pads) - (taps - 1) * dilation - 1) // stride + 1
            for size, pads, taps, dilation, stride in zip(
                self.image, self.padding, self.window, self.dilations, self.strides, strict=True
            )
        )
        return rows, columns


def pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


CASES = st.builds(
    Case, batch=st.integers(1, 2), channels=st.sampled_from([1, 3, 4, 5, 16, 24, 40, 64, 80]),
    filters=st.sampled_from([1, 9, 16, 17, 31, 32, 33, 48, 70]),
    image=st.tuples(st.integers(1, 20), st.integers(1, 70)), window=pairs(1, 5), strides=pairs(1, 3),
    dilations=pairs(1, 2), padding=st.tuples(pairs(0, 2), pairs(0, 2)),
)  # fmt: skip


def weights_of(case: Case, rng: np.random.Generator) -> np.ndarray:
    shape = (case.filters, case.channels, *case.window)
    return np.where(rng.random(shape) < 0.2, rng.choice([-128, 127], shape), rng.integers(-128, 128, shape)).astype(
        np.int8
    )


@settings(max_examples=60)
@given(CASES, st.integers(0, 99))
def test_packed_weights_meet_the_bytes_of_the_lines(case: Case, seed: int) -> None:
    assume(min(case.out) > 0)
    rng = np.random.default_rng(seed)
    weights = weights_of(case, rng)
    plan = MatrixConvolution(
        case.channels, case.filters, case.image, case.out, case.window, case.strides, case.dilations,
        (case.padding[0][0], case.padding[1][0]),
    )  # fmt: skip
    lines = rng.integers(0, 256, (plan.lines, plan.columns, plan.pixel)).astype(np.int64)
    lines[..., case.channels :] = 0
    flat = np.concatenate([lines.reshape(-1), np.zeros(plan.bytes(0), np.int64)])
    packed = pack_matrix_weights(weights[np.newaxis], plan).reshape(
        plan.panels, plan.runs[0], plan.runs[1], plan.chunks, -1
    )
    y, x = (int(rng.integers(0, size)) for size in case.out)
    start = y * plan.strides[0] * plan.line_bytes + x * plan.strides[1] * plan.pixel
    sums = np.zeros((plan.panels, PANEL), np.int64)
    for ky in range(plan.runs[0]):
        for kx in range(plan.runs[1]):
            run = start + ky * plan.dilations[0] * plan.line_bytes + kx * plan.dilations[1] * plan.pixel
            for chunk in range(plan.chunks):
                row = flat[run + chunk * TILE_DEPTH : run + (chunk + 1) * TILE_DEPTH].reshape(TILE_DEPTH // 4, 1, 4)
                step = packed[:, ky, kx, chunk].reshape(plan.panels, TILE_DEPTH // 4, PANEL, 4)
                sums += (step.astype(np.int64) * row).sum((1, 3))
    window = lines[
        y * plan.strides[0] : y * plan.strides[0] + (plan.window[0] - 1) * plan.dilations[0] + 1 : plan.dilations[0],
        x * plan.strides[1] : x * plan.strides[1] + (plan.window[1] - 1) * plan.dilations[1] + 1 : plan.dilations[1],
        : case.channels,
    ]
    expected = np.einsum("yxc,fcyx->f", window, weights.astype(np.int64))
    np.testing.assert_array_equal(sums.reshape(-1)[: case.filters], expected)


def test_work_items_hold_few_positions() -> None:
    for width in (1, 7, 14, 28, 56, 112, 224, 500):
        plan = MatrixConvolution(64, 64, (width, width), (width, width), (3, 3), (1, 1), (1, 1), (1, 1))
        assert 1 <= plan.rows <= width
        assert plan.tiles(plan.rows) * TILE_ROWS <= 192 or plan.rows == 1


@pytest.mark.skipif(not host().has_tiles, reason="the processor has no matrix unit")
@settings(max_examples=25, deadline=None)
@given(CASES, st.integers(0, 99))
def test_convolutions_are_exact(case: Case, seed: int) -> None:
    assume(min(case.out) > 0)
    rng = np.random.default_rng(seed)
    weights = weights_of(case, rng)

    def body(x: L.Tensor) -> list[L.Tensor]:
        w = L.cast(constant(weights, t.INT8), t.INT32)
        return [
            L.convolve(
                L.cast(x, t.INT32), w, strides=case.strides, padding=case.padding, kernel_dilation=case.dilations
            )
        ]

    function = trace("f", body, [TensorType(t.UINT8, (case.batch, case.channels, *case.image))])
    program = Program.compile(function, threads=2)
    feeds = [rng.choice([0, 1, 128, 255], (case.batch, case.channels, *case.image)).astype(np.uint8)]
    np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


@pytest.mark.skipif(not host().has_tiles, reason="the processor has no matrix unit")
@pytest.mark.parametrize("rank", [1, 2])
def test_large_windows_use_the_matrix_unit(rank: int) -> None:
    rng = np.random.default_rng(rank)
    weights = rng.integers(-128, 128, (48, 64, *(3,) * rank)).astype(np.int8)
    shape = (2, 64, *(20, 33)[-rank:])

    def body(x: L.Tensor) -> list[L.Tensor]:
        w = L.cast(constant(weights, t.INT8), t.INT32)
        return [L.convolve(L.cast(x, t.INT32), w, strides=[1] * rank, padding=[(1, 1)] * rank)]

    function = trace("f", body, [TensorType(t.UINT8, shape)])
    program = Program.compile(function, threads=2)
    assert "matrix convolution" in [launch.title for launch in program.launches]
    feeds = [rng.integers(0, 256, shape).astype(np.uint8)]
    np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])
