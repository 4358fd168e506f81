"""Dynamic quantizations equal the interpreter's to the bit, alone and between integer convolutions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.compiler.executor.unused_memory import poison
from tests.core.programs import computed

from sardonyx.compiler.executor.arena import BLOCKS
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.types import TensorType
from sardonyx.ops.definitions.quantization import dynamic_quantize_linear, quantize_units

N, H, W = map(Dim.symbol, "NHW")


def layer(x: L.Tensor, filters: int, groups: int = 1) -> L.Tensor:
    """Return a convolution of a dynamically quantized image, as floats."""
    rng = np.random.default_rng(filters)
    channels = x.shape[1]
    assert isinstance(channels, int)
    weights = rng.integers(-127, 128, (filters, channels // groups, 3, 3)).astype(np.int8)
    codes, scale, zero = dynamic_quantize_linear(x)
    units = L.cast(codes, t.INT32) - L.cast(zero, t.INT32)
    padded = L.convolve(
        units, L.cast(constant(weights), t.INT32), strides=[1, 1], padding=[(1, 1), (1, 1)], groups=groups
    )
    return L.cast(padded, t.FLOAT) * (scale * np.float32(1 / 1024)) + np.float32(0.25)


@pytest.mark.parametrize(("channels", "groups"), [(16, 1), (20, 1), (20, 20), (3, 1)])
def test_images_are_quantized_by_their_range(channels: int, groups: int) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        image = L.clip(layer(x, channels), -2, 6)
        return [layer(image, channels, groups)]

    function = trace("f", body, [TensorType(t.FLOAT, (N, 8, H, W))])
    program = Program.compile(function)
    rng = np.random.default_rng(1)
    for sizes in ((1, 9, 11), (2, 4, 40), (1, 1, 1)):
        for shift in (-2.0, 0.0, 2.0):
            x = (rng.standard_normal((sizes[0], 8, *sizes[1:])) + shift).astype(np.float32)
            poison(BLOCKS)
            (actual,) = program.run([x])
            np.testing.assert_array_equal(actual, computed(function, [x])[0])
    for special in (np.nan, np.inf, -np.inf, 1e-40, 3e38):
        x = np.zeros((1, 8, 3, 3), np.float32)
        x[0, 5, 1, 2], x[0, 1, 0, 0] = special, -3e38 if special > 1e38 else 0
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(program.run([x])[0], computed(function, [x])[0])


@pytest.mark.parametrize("shape", [(3,), (45,), (2, 16), (1, 16, 5, 7), (N, 3, W), (N, 24, 3)])
def test_codes_in_memory_are_those_of_the_interpreter(shape: tuple[Size, ...]) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        return [*dynamic_quantize_linear(L.abs_(x) * np.float32(0.7) - np.float32(0.5))]

    function = trace("f", body, [TensorType(t.FLOAT, shape)])
    program = Program.compile(function)
    rng = np.random.default_rng(0)
    for n, w in ((1, 7), (2, 401), (700, 9)):
        x = rng.standard_normal([size if isinstance(size, int) else {N: n, W: w}[size] for size in shape])
        for special in (None, np.nan, -np.inf, 1e-44):
            array = np.array(x if special != 1e-44 else x * 1e-44, np.float32)
            array.flat[1] = array.flat[1] if special is None else special
            with np.errstate(all="ignore"):
                for actual, expected in zip(program.run([array]), computed(function, [array]), strict=True):
                    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("channels", [3, 16])
def test_the_range_of_images_that_other_kernels_write(channels: int) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        joined = L.concat([layer(x, channels), x], axis=1)
        small = L.reduce_window("max", layer(joined, 8), [2, 2], strides=[2, 2], padding=[(0, 1), (0, 1)])
        return [layer(small, 8), layer(L.permute(x, (0, 1, 3, 2)), 8)]

    function = trace("f", body, [TensorType(t.FLOAT, (1, channels, 33, 16))])
    program = Program.compile(function)
    assert any(launch.title == "extremes" for launch in program.launches)
    x = np.random.default_rng(6).standard_normal((1, channels, 33, 16)).astype(np.float32)
    poison(BLOCKS)
    for mine, reference in zip(program.run([x]), computed(function, [x]), strict=True):
        np.testing.assert_array_equal(mine, reference)


def test_the_range_of_a_convolution_is_found_as_it_is_written() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        return [layer(layer(x, 20), 8, 4)]

    function = trace("f", body, [TensorType(t.FLOAT, (N, 8, H, W))])
    x = np.random.default_rng(5).standard_normal((2, 8, 7, 9)).astype(np.float32)
    for threads in (1, 3):
        program = Program.compile(function, threads=threads)
        images = [launch.group.root for launch in program.launches if "convol" in launch.title]
        reading = [launch for launch in program.launches if launch.title == "rows" and images[0] in launch.buffers]
        assert len(images) == 2 and not reading
        poison(BLOCKS)
        np.testing.assert_array_equal(program.run([x])[0], computed(function, [x])[0])


@pytest.mark.parametrize("kind", ["min", "max", "add"])
@pytest.mark.parametrize("channels", [16, 20])
def test_a_whole_image_is_reduced_in_the_order_of_memory(kind: str, channels: int) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        image = layer(x, channels)
        reduced = {"min": L.reduce_min, "max": L.reduce_max, "add": L.reduce_sum}[kind](image, [1, 2, 3])
        return [reduced, layer(image, channels)]

    function = trace("f", body, [TensorType(t.FLOAT, (N, 8, H, W))])
    program = Program.compile(function)
    for sizes in ((1, 9, 11), (2, 4, 40), (3, 1, 1)):
        x = np.random.default_rng(2).standard_normal((sizes[0], 8, *sizes[1:])).astype(np.float32)
        poison(BLOCKS)
        actual, expected = program.run([x]), computed(function, [x])
        np.testing.assert_allclose(actual[0], expected[0], rtol=2e-5 if kind == "add" else 0)
        np.testing.assert_array_equal(actual[1], expected[1])


def test_scale_and_zero_point_are_results_of_one_kernel() -> None:
    function = trace("f", lambda x: list(dynamic_quantize_linear(x)), [TensorType(t.FLOAT, (H, W))])
    inner = trace("f", lambda x: [layer(x, 8)], [TensorType(t.FLOAT, (1, 8, H, W))])
    launches = Program.compile(inner).launches
    readers = [launch for launch in launches if inner.inputs[0] in launch.buffers and launch.title == "extremes"]
    assert len(readers) == len([launch for launch in launches if launch.title == "rows"]) == 1
    x = np.random.default_rng(3).standard_normal((5, 37)).astype(np.float32)
    for mine, reference in zip(Program.compile(function).run([x]), computed(function, [x]), strict=True):
        np.testing.assert_array_equal(mine, reference)


@pytest.mark.parametrize("filling", [0.0, -1.5, 9.0])
@pytest.mark.parametrize("groups", [1, 16])
def test_an_image_is_padded_after_its_quantization(filling: float, groups: int) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        image = L.maximum(layer(x, 16), 0.0)
        return [layer(L.pad(image, (0, 0, 1, 0), (0, 0, 1, 2), filling), 16, groups)]

    function = trace("f", body, [TensorType(t.FLOAT, (1, 8, 9, W))])
    program = Program.compile(function)
    pads = [value for value in program.function.values if value.op == "pad"]
    assert pads or filling == 0
    assert all(_is_of_codes(value.operands[0]) for value in pads)
    for factor in (1.0, 0.0, 1e-42, 1e-44, 1e30):
        x = (np.random.default_rng(2).standard_normal((1, 8, 9, 13)) * factor).astype(np.float32)
        np.testing.assert_array_equal(program.run([x])[0], computed(function, [x])[0])


def _is_of_codes(value: Value) -> bool:
    """Return True for codes of uint8, padded or not, or for such less a zero point in another type."""
    while value.op == "pad":
        value = value.operands[0]
    units = value.operands[0] if value.op == "sub" else value
    codes = units.operands[0] if value.op == "sub" and units.op == "convert" else units
    return isinstance(codes.type, TensorType) and codes.type.dtype == t.UINT8


def test_codes_are_those_of_a_division() -> None:
    function = trace("f", lambda x: list(dynamic_quantize_linear(x)), [TensorType(t.FLOAT, (W,))])
    program = Program.compile(function)
    rng = np.random.default_rng(4)
    for exponent in (*range(-148, 127, 5), *[0] * 40, 127):
        greatest = np.float32(math.ldexp(rng.uniform(1, 2), exponent))
        least = -greatest * np.float32(rng.choice([0.0, 0.5, rng.uniform()]))
        with np.errstate(all="ignore"):
            scale = (greatest - least) / np.float32(255)
            steps = np.clip((np.arange(-256, 256) + 0.5) * scale, least, greatest).astype(np.float32)
            near = [steps, steps]
            for _ in range(3):
                near = [np.nextafter(near[0], np.float32(-np.inf)), *near, np.nextafter(near[-1], np.float32(np.inf))]
        x = np.clip(np.concatenate([*near, [least, greatest, 0.0, -0.0]]), least, greatest).astype(np.float32)
        for mine, reference in zip(program.run([x]), computed(function, [x]), strict=True):
            np.testing.assert_array_equal(mine, reference, err_msg=str((least, greatest)))


def test_numbers_that_are_not_finite_are_quantized_as_the_interpreter_does() -> None:
    function = trace(
        "f", lambda x: list(dynamic_quantize_linear(L.pad(x, (0, 1), (2, 1), 0.0))), [TensorType(t.FLOAT, (H, W))]
    )
    program = Program.compile(function)
    for special in (np.inf, -np.inf, np.nan, 1e-45, -0.0):
        x = np.zeros((3, 17), np.float32)
        x[1, 5] = special
        for mine, reference in zip(program.run([x]), computed(function, [x]), strict=True):
            np.testing.assert_array_equal(mine, reference)


def same_bits(program: Program, function: Function, x: np.ndarray) -> None:
    """Raise an error unless the results have the bits of the interpreter's."""
    with np.errstate(all="ignore"):
        for mine, reference in zip(program.run([x]), computed(function, [x]), strict=True):
            reference = np.asarray(reference)
            assert np.asarray(mine).tobytes() == reference.tobytes(), (x, mine, reference)


def quantized(x: L.Tensor, instead: float | None, with_zero: bool) -> list[L.Tensor]:
    """Return codes, scale and zero point by the range, with a number in place of a scale of 0."""
    least, greatest = L.reduce_min(x), L.reduce_max(x)
    if with_zero:
        least, greatest = L.minimum(least, 0), L.maximum(greatest, 0)
    step = (greatest - least) / 255
    scale = step if instead is None else L.where(L.equal(step, 0), instead, step)
    zero_point = quantize_units(-least / scale, None, t.UINT8)
    return [quantize_units(x / scale, zero_point, t.UINT8), scale, zero_point]


@pytest.mark.parametrize("with_zero", [False, True])
@pytest.mark.parametrize("instead", [None, 1.0, -1.0, 1e-30, 0.5, math.inf])
def test_a_scale_of_the_range_may_be_any_number(instead: float | None, with_zero: bool) -> None:
    function = trace("f", lambda x: quantized(x, instead, with_zero), [TensorType(t.FLOAT, (W,))])
    program = Program.compile(function)
    for number in (5, -5, 1e30, 3e38, -3e38, 1e-45, 0.0):
        same_bits(program, function, np.full(20, number, np.float32))
        same_bits(program, function, np.full(1, number, np.float32))
    for numbers in ([1e-45, 0.0], [1000, 1001, 1000.5], [16777216, 16777218, 16777220], [3e38, 2.9999998e38]):
        same_bits(program, function, np.array(numbers * 9, np.float32))


def test_a_scale_of_the_range_may_be_wide() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        step = (L.maximum(L.reduce_max(x), 0) - L.minimum(L.reduce_min(x), 0)) / 255
        scale = L.where(L.equal(step, 0), 1, step)
        return [L.round_(x / scale), scale]

    function = trace("f", body, [TensorType(t.DOUBLE, (W,))])
    same_bits(Program.compile(function), function, np.linspace(-1, 2, 40))


@pytest.mark.parametrize("limit", [0.0, -0.0])
def test_the_least_and_the_greatest_have_the_sign_of_the_interpreters_zero(limit: float) -> None:
    zero = constant(np.float32(limit))
    swapped = trace(
        "f",
        lambda x: [L.minimum(zero, L.reduce_min(x)), L.maximum(zero, L.reduce_max(x))],
        [TensorType(t.FLOAT, (H, W))],
    )
    function = trace(
        "f",
        lambda x: [1 / L.minimum(L.reduce_min(x), 0), L.maximum(L.reduce_max(x), 0)],
        [TensorType(t.FLOAT, (H, W))],
    )
    programs = [(f, Program.compile(f)) for f in (swapped, function)]
    for sizes in ((4, 40), (2, 2), (4, 5), (1, 9)):
        for number in (1.0, -1.0, 0.0, -0.0):
            for one, program in programs:
                x = np.full(sizes, number, np.float32)
                same_bits(program, one, x)
                if number:
                    x[0, 1] = -0.0
                    same_bits(program, one, x)


def test_padding_of_an_image_with_nan_has_the_code_of_nan() -> None:
    def body(x: L.Tensor, zero: L.Tensor) -> list[L.Tensor]:
        _, scale, _ = quantized(x, 1.0, True)
        codes = quantize_units(L.pad(x, (0, 0, 1, 1), (0, 0, 1, 1), 0.0) / scale, zero, t.UINT8)
        units = L.cast(codes, t.INT32) - L.cast(zero, t.INT32)
        weights = L.cast(constant(np.full((8, 16, 3, 3), 3, np.int8)), t.INT32)
        return [L.convolve(units, weights, strides=[1, 1], padding=[(0, 0), (0, 0)])]

    function = trace("f", body, [TensorType(t.FLOAT, (1, 16, H, W)), TensorType(t.UINT8, ())])
    program = Program.compile(function)
    x = np.random.default_rng(7).standard_normal((1, 16, 5, 6)).astype(np.float32)
    for special in (0.0, np.inf, np.nan):
        x[0, 2, 2, 2] = special
        with np.errstate(all="ignore"):
            arrays: list[np.ndarray] = [x, np.full(1, 7, np.uint8).reshape(())]
            np.testing.assert_array_equal(program.run(arrays)[0], computed(function, arrays)[0])
