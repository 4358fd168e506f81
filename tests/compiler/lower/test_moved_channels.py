"""Channels, rows and bytes that move without arithmetic: read in whole vectors, equal to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike
from onnx import TensorProto, helper, numpy_helper
from tests.compiler.program_checks import check
from tests.core.programs import computed

from sardonyx.compiler.passes.canonicalize import canonicalize
from sardonyx.compiler.target.description import host
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType, TensorType
from sardonyx.runtime.session import Session

RNG = np.random.default_rng(0)


def between_convolutions(picks: list[int], channels: int, size: int, dtype: DTypeLike) -> bytes:
    """Return a model that picks channels between two pointwise convolutions, which have blocked images."""
    kind = TensorProto.FLOAT if dtype == np.float32 else TensorProto.UINT8
    first, second = RNG.integers(-9, 9, (channels, 8, 1, 1)), RNG.integers(-9, 9, (8, len(picks), 1, 1))
    tensors: dict[str, Any] = {"picks": np.array(picks)}
    if kind == TensorProto.FLOAT:
        tensors |= {"w1": first.astype(np.float32), "w2": second.astype(np.float32)}
        nodes = [
            helper.make_node("Conv", ["x", "w1"], ["a"]), helper.make_node("Gather", ["a", "picks"], ["b"], axis=1),
            helper.make_node("Conv", ["b", "w2"], ["y"]),
        ]  # fmt: skip
    else:
        tensors |= {"w1": first.astype(np.int8), "w2": second.astype(np.int8), "s": np.float32(0.5), "r": np.float32(9)}
        tensors |= {"z": np.uint8(100), "n": np.int8(0)}
        nodes = [
            helper.make_node("QLinearConv", ["x", "s", "z", "w1", "s", "n", "r", "z"], ["a"]),
            helper.make_node("Gather", ["a", "picks"], ["b"], axis=1),
            helper.make_node("QLinearConv", ["b", "s", "z", "w2", "s", "n", "r", "z"], ["y"]),
        ]
    x, y = (helper.make_tensor_value_info(name, kind, [1, 8, size, size]) for name in "xy")
    values = [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "picked", [x], [y], values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize(
    ("channels", "first", "step", "size"),
    [
        (32, 1, 2, 6),
        (24, 0, 3, 5),
        (33, 7, 4, 3),
        (71, 7, 4, 3),
        (79, 15, 4, 2),
        (65, 15, 3, 2),
        (40, 0, 5, 4),
        (12, 1, 2, 1),
    ],
)
def test_channels_at_equal_distances_are_those_of_the_interpreter(
    channels: int, first: int, step: int, size: int, dtype: DTypeLike
) -> None:
    model = between_convolutions(list(range(first, channels, step)), channels, size, dtype)
    x = RNG.integers(0, 99, (1, 8, size, size)).astype(dtype)
    expected, actual = (Session(model, compile=mode, threads=1).run(None, {"x": x})[0] for mode in ("off", "wait"))
    np.testing.assert_array_equal(actual, expected)  # Sums of small integers are exact in float32.


@pytest.mark.parametrize(
    ("picks", "is_slice"), [([1, 3, 5], True), ([4], True), ([0, 1, 3], False), ([3, 2, 1], False), ([2, 2], False)]
)
def test_known_rows_at_equal_distances_are_a_slice(picks: list[int], is_slice: bool) -> None:
    at = constant(np.array(picks))
    function = trace("f", lambda x: [L.take(x, at, 1)], [TensorType(t.FLOAT, (2, 6, 3))])
    result = canonicalize(function, host())
    operators = {value.op for value in result.values}
    assert ("slice" in operators, "gather" in operators) == (is_slice, not is_slice)
    x = RNG.standard_normal((2, 6, 3)).astype(np.float32)
    np.testing.assert_array_equal(computed(result, [x])[0], x[:, picks])


@pytest.mark.parametrize("dtype", [t.UINT8, t.INT8])
@pytest.mark.parametrize("shape", [(3, 40, 7), (2, 9, 33), (1, 2, 64), (4, 3, 1)])
def test_bytes_move_in_whole_vectors(shape: tuple[int, ...], dtype: DType) -> None:
    def moved(x: L.Tensor) -> list[L.Tensor]:
        return [L.concat([L.slice_(x, 1, 1, shape[1]), x], 1), L.slice_(x, 0, shape[0] - 1, shape[0])]

    x = RNG.integers(-99, 99, shape).astype(t.numpy_dtype(dtype))
    check(trace("f", moved, [TensorType(dtype, shape)]), [x])
