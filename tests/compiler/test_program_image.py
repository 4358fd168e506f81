"""Images: a program that was written down and read computes the same bits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.compiler.program_checks import read_again, restored_copy
from tests.core.programs import random_program
from tests.random_cases import cases

from sardonyx.compiler.executor.fork_join import Field
from sardonyx.compiler.executor.tape_player import COPY_WORDS, PATCH_WORDS, WORDS
from sardonyx.compiler.program import Program
from sardonyx.compiler.program_image import image as image_module
from sardonyx.compiler.program_image.image import Image
from sardonyx.compiler.target.alignment import aligned
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.host_function import HostFunction, host, unknown_size
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.simplify import simplify

N, H, W = map(Dim.symbol, "NHW")
RNG = np.random.default_rng(0)


@settings(max_examples=cases(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1))
def test_random_programs_compute_the_same_bits(seed: int) -> None:
    program = random_program(np.random.default_rng(seed), 10, without=("random",))
    compiled = Program.compile(simplify(program.traced()))
    restored = restored_copy(compiled)
    for arrays in program.arrays:
        arguments = [np.array(x, order="C") for x in arrays]
        for actual, expected in zip(restored.run(arguments), compiled.run(arguments), strict=True):
            assert actual.dtype == expected.dtype
            np.testing.assert_array_equal(actual, expected)


def test_weights_scratch_blocks_and_open_sizes_are_kept() -> None:
    weights, square = (constant(RNG.standard_normal((20, channels, 3, 3)).astype(np.float32)) for channels in (3, 20))
    known = RNG.standard_normal((20, 33)).astype(np.float32)

    def convolved(x: L.Tensor, w: L.Tensor) -> L.Tensor:
        return L.convolve(x, w, strides=(1, 1), padding=((1, 1), (1, 1)))

    def body(x: L.Tensor) -> list[L.Tensor]:
        y = convolved(L.maximum(convolved(x, weights), 0.0), square)
        return [L.matmul(L.reduce_sum(y, [2, 3]), constant(known))]

    compiled = Program.compile(trace("f", body, [TensorType(t.FLOAT, (N, 3, H, W))]))
    restored = restored_copy(compiled)
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
    for actual, expected in zip(
        restored_copy(Program.compile(function)).run([x]), (x, np.float32(2.5), known.known), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)
        assert actual.shape == np.shape(expected)


def test_an_image_is_the_same_after_it_was_read() -> None:
    image = Program.compile(trace("f", lambda x: [L.exp(x) + 1], [TensorType(t.FLOAT, (N, H))])).image()
    again = read_again(image)
    assert json.dumps(again.head) == json.dumps(image.head)
    assert again.code == image.code
    assert restored_copy(Program.from_image(again)).image().texts() == image.texts()


POSITIVE = HostFunction(
    "Positive",
    lambda x, *, least: (TensorType(t.FLOAT, (unknown_size(),)),),
    lambda x, *, least: (x[x > least],),
)


def kept_of(x: L.Tensor) -> L.Tensor:
    (actual,) = host(POSITIVE, x, least=1.0)
    assert isinstance(actual, L.Tensor)
    return actual


def test_what_the_interpreter_computes_is_kept() -> None:
    """A host function, a size that it counts, kernels before and after it."""

    def body(x: L.Tensor) -> list[L.Tensor]:
        stored = kept_of(L.exp(x))
        return [L.reduce_sum(stored * 2.0, [0]), L.exp(stored)]

    compiled = Program.compile(trace("f", body, [TensorType(t.FLOAT, (N,))]))
    assert compiled.host
    restored = restored_copy(compiled)
    for n in (1, 5, 0, 100):
        x = RNG.standard_normal(n).astype(np.float32)
        for actual, expected in zip(restored.run([x]), compiled.run([x]), strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_loops_that_the_interpreter_repeats_are_kept_with_their_compiled_bodies() -> None:
    def body(count: L.Tensor, x: L.Tensor) -> list[L.Tensor]:
        def once(i: L.Tensor, state: L.Tensor) -> tuple[L.Tensor, list[L.Tensor], list[L.Tensor]]:
            return i < count, [L.reduce_sum(kept_of(x + state), [0])], []

        (state,), _ = L.loop(count, None, [constant(np.float32(0))], once)
        return [L.exp(state)]

    compiled = Program.compile(trace("f", body, [TensorType(t.INT64, ()), TensorType(t.FLOAT, (N,))]))
    assert compiled.bodies
    restored = restored_copy(compiled)
    for count in (0, 1, 4):
        arguments = [np.array(count), RNG.standard_normal(3).astype(np.float32)]
        np.testing.assert_array_equal(restored.run(arguments)[0], compiled.run(arguments)[0])


def field_names(part: object) -> set[str]:
    """The names of fields of JSON objects, at any depth."""
    if isinstance(part, dict):
        return set(part) | {name for inner in part.values() for name in field_names(inner)}
    return {name for inner in part for name in field_names(inner)} if isinstance(part, list) else set()


def test_the_format_version_grows_with_the_fields() -> None:
    """Who changes fields or the arguments of kernels changes FORMAT, and this table."""
    known = constant(RNG.standard_normal((20, 33)).astype(np.float32))
    image = Program.compile(trace("f", lambda x: [L.matmul(L.exp(x), known)], [TensorType(t.FLOAT, (N, 20))])).image()
    assert image_module.FORMAT == 4
    assert field_names({name: part for name, part in image.head.items() if name != "sizes"}) == {
        "also", "around", "array", "arrays", "blocks", "bodies", "buffers", "concurrent", "counted", "denormals",
        "dtype", "guards", "inputs", "items", "kernel", "launches", "level", "most", "name", "op", "operands", "origin",
        "params", "position", "program", "results", "settling", "shape", "sizes", "steps", "symbol", "title",
        "value", "values", "work", "writes",
    }  # fmt: skip
    assert (WORDS, COPY_WORDS, PATCH_WORDS, len(Field)) == (4, 4, 3, 29), "the arguments of the player are of a format"


def test_texts_of_another_format_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Program.compile(trace("f", lambda x: [L.exp(x)], [TensorType(t.FLOAT, (N,))])).image()
    monkeypatch.setattr(image_module, "FORMAT", 1)
    texts = image.texts()
    monkeypatch.undo()
    for other in (texts, texts[:5], b"", bytes(100)):
        with pytest.raises(image_module.OtherFormatError):
            Image.read(other, aligned(np.frombuffer(b"".join(image.weights()), np.uint8)))
