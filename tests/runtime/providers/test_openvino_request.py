"""What OpenVINO reads and writes in place: values are right wherever they lie, and results stay as they were given."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx import model as model_io
from sardonyx.core.eval.run_context import RunContext
from sardonyx.runtime.providers import Settings, Shrinking, make
from sardonyx.runtime.providers.protocol import Runner

pytest.importorskip("openvino")

SIZES = [1, 2_000, 20_000, 80_000]
"""Elements: copied, copied, read in place where they stay, read in place."""


def doubled(*shape: int | str) -> Runner:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "x"], ["y"])], "g", [x], [y])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    return make("openvino", Settings(threads=1)).compile(model_io.load(proto))


@pytest.mark.parametrize("shape", [*((size,) for size in SIZES), ("N",), ()])
def test_results_stay_as_they_were_given_as_long_as_somebody_holds_any_part_of_them(
    shape: tuple[int | str, ...],
) -> None:
    runner, sizes = doubled(*shape), [20_000 if size == "N" else int(size) for size in shape]
    held = []
    for i in range(12):
        (actual,) = runner.run([np.full(sizes, i, np.float32)], RunContext())
        if i % 2:
            held.append((2 * i, actual))
        elif actual.ndim:
            held.append((2 * i, actual[-1:].view(np.int32).view(np.float32)))
        del actual
        for value, array in held:
            assert (array == value).all()


def test_a_result_that_nobody_holds_any_more_is_where_the_next_one_is_written() -> None:
    runner, x, positions = doubled(20_000), np.ones(20_000, np.float32), set()
    for _ in range(6):
        (actual,) = runner.run([x], RunContext())
        positions.add(actual.ctypes.data)
        del actual
    assert len(positions) == 1


@pytest.mark.parametrize("elements", SIZES)
def test_an_input_is_read_where_it_lies_in_this_call(elements: int) -> None:
    runner, rng = doubled(elements), np.random.default_rng(0)
    stays, other = np.empty((2, elements), np.float32)
    for i in range(60):
        kind = "stays" if i % 20 < 12 else rng.choice(["stays", "other", "apart", "fixed"])
        x = {"stays": stays, "other": other, "fixed": other}.get(kind, np.empty(2 * elements, np.float32)[::2])
        x[:] = i
        x.setflags(write=kind != "fixed")
        (actual,) = runner.run([x], RunContext())
        x.setflags(write=True)
        np.testing.assert_array_equal(actual, np.full(elements, 2 * i, np.float32))


def test_an_input_of_another_shape_at_the_same_place_is_read_in_that_shape() -> None:
    text = (
        '<ir_version: 9, opset_import: ["": 18]> g (float[N,M] x) => (float[N] y) { y = ReduceSum <keepdims=0> (x, a) }'
    )
    proto = onnx.parser.parse_model(text.replace("{", "<int64[1] a = {1}> {"))
    runner = make("openvino", Settings(threads=1)).compile(model_io.load(proto))
    x = np.ones(24_000, np.float32)
    for shape in [(240, 100)] * 12 + [(100, 240)] * 12 + [(240, 100), (24_000, 1), (1, 24_000)]:
        (actual,) = runner.run([x.reshape(shape)], RunContext())
        np.testing.assert_array_equal(actual, np.full(shape[0], shape[1], np.float32))


def test_values_of_any_size_are_read_after_any_other() -> None:
    runner, rng = doubled("N", "N"), np.random.default_rng(1)
    stays = np.empty((300, 300), np.float32)
    for i in range(60):
        size = int(rng.choice([1, 2, 300]))
        x = stays if size == 300 and i % 3 else np.empty((size, size), np.float32)
        x[...] = i
        (actual,) = runner.run([x], RunContext())
        assert actual.shape == x.shape
        assert (actual == 2 * i).all()


def test_what_shrinking_lets_go_of_is_made_again() -> None:
    runner = doubled(8)
    assert isinstance(runner, Shrinking)
    for i in range(3):
        (actual,) = runner.run([np.full(8, i, np.float32)], RunContext())
        runner.shrink()
        assert (actual == 2 * i).all()
