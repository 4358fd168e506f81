"""Images: a program that was written down and read computes the same bits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.programs import random_program

from sardonyx.compiler.image import Image, NoImage
from sardonyx.compiler.program import Program
from sardonyx.compiler.sharing import aligned
from sardonyx.compiler.steps import Segment
from sardonyx.core import language as L
from sardonyx.core import types as t
from sardonyx.core.dim import Dim
from sardonyx.core.simplify import simplify
from sardonyx.core.tensor import constant
from sardonyx.core.trace import trace
from sardonyx.core.types import TensorType

N, H, W = map(Dim.symbol, "NHW")
RNG = np.random.default_rng(0)


def copied(program: Program) -> Program:
    return Program.restored(read_again(program.image()))


def read_again(image: Image) -> Image:
    return Image.read(image.texts(), aligned(np.frombuffer(image.weights(), np.uint8)))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1))
def test_random_programs_compute_the_same_bits(seed: int) -> None:
    program = random_program(np.random.default_rng(seed), 10, without=("random", "determinant"))
    compiled = Program(simplify(program.traced()))
    if compiled.host or any(isinstance(step, Segment) and step.counted is not None for step in compiled.steps):
        with pytest.raises(NoImage, match="left to the interpreter" if compiled.host else "counts sizes while it runs"):
            compiled.image()
        return
    restored = copied(compiled)
    for arrays in program.arrays:
        given = [np.array(x, order="C") for x in arrays]
        for found, expected in zip(restored.run(given), compiled.run(given), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


def test_weights_scratch_blocks_and_open_sizes_are_kept() -> None:
    weights, square = (constant(RNG.standard_normal((20, channels, 3, 3)).astype(np.float32)) for channels in (3, 20))
    known = RNG.standard_normal((20, 33)).astype(np.float32)

    def convolved(x: L.Tensor, w: L.Tensor) -> L.Tensor:
        return L.convolve(x, w, strides=(1, 1), padding=((1, 1), (1, 1)))

    def body(x: L.Tensor) -> list[L.Tensor]:
        y = convolved(L.maximum(convolved(x, weights), 0.0), square)
        return [L.matmul(L.reduce_sum(y, [2, 3]), constant(known))]

    compiled = Program(trace("f", body, [TensorType(t.FLOAT, (N, 3, H, W))]))
    restored = copied(compiled)
    assert restored.blocks.keys() != compiled.blocks.keys()
    assert len(restored.blocks) == len(compiled.blocks) > 0
    for shape in ((1, 3, 8, 8), (2, 3, 17, 5), (3, 3, 1, 30)):
        x = RNG.standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(restored.run([x])[0], compiled.run([x])[0])


def test_results_that_nothing_computes_are_kept() -> None:
    number = constant(np.float32(2.5))
    known = constant(np.arange(6).reshape(2, 3))
    function = trace("f", lambda x: [x, number, known], [TensorType(t.FLOAT, (N,))])
    x = np.ones(3, np.float32)
    for found, expected in zip(copied(Program(function)).run([x]), (x, np.float32(2.5), known.known), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.shape == np.shape(expected)


def test_an_image_is_the_same_after_it_was_read() -> None:
    image = Program(trace("f", lambda x: [L.exp(x) + 1], [TensorType(t.FLOAT, (N, H))])).image()
    again = read_again(image)
    assert json.dumps(again.head) == json.dumps(image.head)
    assert again.code == image.code
    assert copied(Program.restored(again)).image().texts() == image.texts()
