"""Weight plans: weights replaced without tracing, equal to the bit to a program that is compiled anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.plan.reweighted_models import drawn, filled, parsed, run, with_weights

from sardonyx.compiler.executor.thread_pool import pool
from sardonyx.compiler.kernels.conv.winograd_weights import WeightTransform
from sardonyx.compiler.plan.packing import Packing, TransformedPacking, in_memory_order
from sardonyx.compiler.target.description import host
from sardonyx.compiler.tiling.winograd import transform_weights
from sardonyx.runtime.compiled import frontend
from sardonyx.runtime.compiled.compiled_model import NativeModel

TARGET = host()


def packed(packing: Packing, source: np.ndarray) -> tuple[np.ndarray, bool]:
    denormal = np.zeros(1, np.int32)
    result = packing.packed(source, TARGET, pool(2), denormal)
    return result, bool(denormal[0])


@given(
    st.integers(1, 5), st.integers(1, 7), st.integers(1, 40), st.permutations(range(3)), st.integers(1, 3), st.data()
)
@settings(max_examples=40, deadline=None)
def test_a_packed_weight_is_the_moved_weight(
    a: int, b: int, c: int, axes: list[int], repeats: int, data: st.DataObject
) -> None:
    shape = (a * repeats, b, c)
    source = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    columns = data.draw(st.sampled_from([16, 32, 64]))

    def move(array: np.ndarray) -> np.ndarray:
        moved = array.transpose(axes).reshape(-1, array.shape[axes[-1]])
        panels = -(-moved.shape[1] // columns)
        padded = np.zeros((len(moved), panels * columns), np.float32)
        padded[:, : moved.shape[1]] = moved
        return np.ascontiguousarray(padded.reshape(len(moved), panels, columns).swapaxes(0, 1))

    packing = Packing.of(move, source, TARGET)
    if packing is not None:
        result, denormal = packed(packing, source)
        np.testing.assert_array_equal(result, move(source))
        assert not denormal


@given(st.integers(1, 5), st.integers(1, 33), st.integers(1, 40), st.permutations(range(3)))
@settings(max_examples=40, deadline=None)
def test_a_transposed_weight_is_packed_from_its_memory(a: int, b: int, c: int, axes: list[int]) -> None:
    memory = np.random.default_rng(0).standard_normal((a, b, c)).astype(np.float32)
    source = memory.transpose(axes)
    packing = Packing.of(lambda array: np.ascontiguousarray(array.reshape(len(array), -1).T), source, TARGET)
    own, _ = in_memory_order(source)
    assert own.flags.c_contiguous and np.shares_memory(own, memory)
    if packing is not None:
        np.testing.assert_array_equal(packed(packing, own)[0], source.reshape(len(source), -1).T)


def test_memory_of_a_packed_weight_is_not_reused_while_somebody_reads() -> None:
    source = np.arange(1024, dtype=np.float32)
    packing = Packing.of(lambda array: array[::-1].copy(), source, TARGET)
    assert packing is not None
    first, _ = packed(packing, source)
    second, _ = packed(packing, source + 1)
    np.testing.assert_array_equal(first, source[::-1])
    np.testing.assert_array_equal(second, source[::-1] + 1)
    address = first.ctypes.data
    del first
    assert packed(packing, source)[0].ctypes.data == address


def test_memory_of_a_packed_weight_is_not_reused_while_a_view_exists() -> None:
    source = np.arange(1024, dtype=np.float32)
    packing = Packing.of(lambda array: array[::-1].copy(), source, TARGET)
    assert packing is not None
    part = packed(packing, source)[0].reshape(2, -1)[1]
    packed(packing, source + 1)
    np.testing.assert_array_equal(part, source[:512][::-1])


def test_denormal_numbers_are_noticed() -> None:
    source = np.ones(1024, np.float32)
    packing = Packing.of(lambda array: array[::-1].copy(), source, TARGET)
    assert packing is not None
    assert not packed(packing, source)[1]
    source[700] = 1e-40
    assert packed(packing, source)[1]


def test_a_last_run_of_smaller_blocks_is_packed_too() -> None:
    source = np.random.default_rng(0).standard_normal((64, 5, 128)).astype(np.float32)

    def move(array: np.ndarray) -> np.ndarray:
        panels = [array[..., first : first + 24].transpose(1, 0, 2).ravel() for first in range(0, 128, 24)]
        return np.concatenate(panels)

    packing = Packing.of(move, source, TARGET)
    assert packing is not None
    np.testing.assert_array_equal(packed(packing, source)[0], move(source))


@pytest.mark.parametrize(
    ("tile", "filters", "channels"), [((4, 4), 21, 5), ((2, 4), 64, 16), ((6, 6), 9, 9), ((1, 2), 5, 3)]
)
def test_a_kernel_transforms_weights_to_the_bits_of_numpy(tile: tuple[int, int], filters: int, channels: int) -> None:
    window = [3 if size > 1 else 1 for size in tile]
    weights = np.random.default_rng(0).standard_normal((filters, channels, *window)).astype(np.float32)
    packing = TransformedPacking(WeightTransform(tile, filters, channels), TARGET)
    denormal = np.zeros(1, np.int32)
    result = packing.packed(weights, TARGET, pool(2), denormal)
    np.testing.assert_array_equal(result, transform_weights(weights, tile, TARGET))
    assert not denormal[0]
    packing.packed(weights * np.float32(1e-39), TARGET, pool(2), denormal)
    assert denormal[0]


@pytest.mark.parametrize("name", ["convolutions", "products", "transposed"])
def test_the_third_weights_are_not_traced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = filled(name)
    native = NativeModel.compiled(model)
    second = native.reweighted(with_weights(model, drawn))
    assert second is not None

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("traced")

    for _ in range(3):
        new = with_weights(model, drawn)
        with monkeypatch.context() as patched:
            patched.setattr(frontend, "trace_model", refuse)
            third = second.reweighted(new)
        assert third is not None
        for actual, expected in zip(run(third, feeds), run(NativeModel.compiled(new), feeds), strict=True):
            np.testing.assert_array_equal(actual, expected)
        second = third


def test_weights_of_code_that_quantizes_keep_their_magnitude_class() -> None:
    text = "<float[2] w = {1, 2}, float s = {0.5}> { t = Mul(x, w) y = QuantizeLinear(t, s) }"
    model, feeds = parsed(f"net (float[2] x) => (uint8[2] y) {text}"), {"x": np.array([3, 4], np.float32)}

    def other(array: list[float]) -> Any:
        return with_weights(model, lambda name, old: np.array(array, np.float32) if name == "w" else old)

    native: NativeModel | None = NativeModel.compiled(model)
    for array in ([3, 4], [5, 6], [7, 8]):
        assert native is not None
        native = native.reweighted(other(array))
    assert native is not None
    np.testing.assert_array_equal(run(native, feeds)[0], [42, 64])
    assert native.reweighted(other([1, 1e6])) is None
    assert native.reweighted(other([1, np.inf])) is None


def test_one_of_several_weights_is_replaced() -> None:
    model, feeds = filled("products")
    native = NativeModel.compiled(model).reweighted(with_weights(model, drawn))
    assert native is not None
    new = with_weights(model, drawn)
    native = native.reweighted(new)
    assert native is not None
    newer = new.clone()
    newer.graph.initializers["v"].const_value = with_weights(model, drawn).graph.initializers["v"].const_value
    again = native.reweighted(newer)
    assert again is not None
    np.testing.assert_array_equal(run(again, feeds)[0], run(NativeModel.compiled(newer), feeds)[0])


def test_weights_that_the_first_update_left_may_change_later() -> None:
    model, feeds = filled("products")
    native: NativeModel | None = NativeModel.compiled(model)
    names = [name for name, value in model.graph.initializers.items() if value.const_value is not None]
    for name in [*names, *reversed(names)]:
        model = with_weights(model, lambda other, array: drawn(other, array) if other == name else array)  # noqa: B023
        assert native is not None
        native = native.reweighted(model)
        assert native is not None
        for actual, expected in zip(run(native, feeds), run(NativeModel.compiled(model), feeds), strict=True):
            np.testing.assert_array_equal(actual, expected)


HALVES = """net (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) <float[4, 8] w, float[8] b>
    { h = MatMul(x, w) k = Add(h, b)
      s = Constant<value_ints = [4, 4]>() y, z = Split<axis = 1>(k, s) }"""
TRANSPOSED = """net (float[N, 4] x) => (float[N, 8] y) <float[2, 4, 4] w>
    { t = Transpose<perm = [1, 2, 0]>(w) s = Constant<value_ints = [4, 8]>() r = Reshape(t, s) y = MatMul(x, r) }"""


@pytest.mark.parametrize("text", [HALVES, TRANSPOSED], ids=["halves", "copied"])
def test_a_part_of_a_weight_may_change_first(text: str) -> None:
    model = parsed(text.replace("float[4, 8] w", "float[4, 8] w = {" + ", ".join(map(str, range(32))) + "}")
        .replace("float[8] b", "float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}")
        .replace("float[2, 4, 4] w", "float[2, 4, 4] w = {" + ", ".join(map(str, range(32))) + "}"))  # fmt: skip
    x = {"x": np.random.default_rng(0).random((2, 4), np.float32)}
    native: NativeModel | None = NativeModel.compiled(model)
    for part in (slice(4), slice(4, 8), slice(8)):

        def change(name: str, array: np.ndarray, part: slice = part) -> np.ndarray:
            new = array.copy()
            new[..., part] += np.random.default_rng(part.stop).random(new[..., part].shape, np.float32)
            return new

        model = with_weights(model, change)
        again = native.reweighted(model) if native is not None else None
        native = again or NativeModel.compiled(model)
        for actual, expected in zip(run(native, x), run(NativeModel.compiled(model), x), strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_two_weights_in_one_memory_may_differ_later() -> None:
    model, feeds = filled("products")
    native: NativeModel | None = NativeModel.compiled(model)
    initializers = model.graph.initializers
    shapes = {name: tuple(value.const_value.shape) for name, value in initializers.items() if value.const_value}
    memory = np.random.default_rng(1).random(1 << 16).astype(np.float32)
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    assert max(sizes.values()) <= memory.size
    shared = with_weights(
        model, lambda name, array: memory[: array.size].reshape(array.shape).astype(array.dtype, copy=False)
    )
    for new in (shared, with_weights(model, drawn), with_weights(model, drawn)):
        again = native.reweighted(new) if native is not None else None
        native = again or NativeModel.compiled(new)
        for actual, expected in zip(run(native, feeds), run(NativeModel.compiled(new), feeds), strict=True):
            np.testing.assert_array_equal(actual, expected)


CLIPPED = """net (float[N, 4] x) => (float[N, 4] y) <float[4] low = {-1.0, -2.0, -3.0, -4.0}>
    { zero = Constant<value = float {0.0}>() bound = Max(low, zero) z = Sub(x, bound) y = Relu(z) }"""


def test_what_is_computed_from_weights_is_computed_anew() -> None:
    model, x = parsed(CLIPPED), {"x": np.ones((2, 4), np.float32)}
    native: NativeModel | None = NativeModel.compiled(model)
    for values in ([-2, -1, -5, -3], [-3, -4, -1, -2], [3, -4, 1, 2], [0.5, 4, 1, 2]):
        new = with_weights(model, lambda name, array: np.array(values, array.dtype) if name == "low" else array)  # noqa: B023
        again = native.reweighted(new) if native is not None else None
        native = again or NativeModel.compiled(new)
        np.testing.assert_array_equal(run(native, x)[0], np.maximum(1 - np.maximum(values, 0), 0)[None].repeat(2, 0))
