"""Passes over a row: costly elements that several need are computed once, what is the same along a row before it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx.parser
import pytest
from tests.compiler.program_checks import check
from tests.core.programs import computed

from sardonyx import Session
from sardonyx.compiler.lower.launch import Launch, Scratch
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType

pytestmark = pytest.mark.sampled

N = Dim.symbol("N")


def numbers(*shape: int, dtype: t.DType = t.FLOAT) -> np.ndarray:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) * 3).astype(t.numpy_dtype(dtype))


def softmax(x: L.Tensor, axis: int) -> L.Tensor:
    e = L.exp(x - L.reduce_max(x, [axis], keepdims=True))
    return e / L.reduce_sum(e, [axis], keepdims=True)


def log_softmax(x: L.Tensor, axis: int) -> L.Tensor:
    centred = x - L.reduce_max(x, [axis], keepdims=True)
    return centred - L.log(L.reduce_sum(L.exp(centred), [axis], keepdims=True))


def weighed(x: L.Tensor, axis: int) -> L.Tensor:
    """Two costly values, of which the second pass needs one and the last both."""
    first = L.tanh(x)
    second = L.exp(first - L.reduce_max(first, [axis], keepdims=True))
    return first * second / L.reduce_sum(second, [axis], keepdims=True)


def program(of: Callable[[L.Tensor, int], L.Tensor], shape: tuple[Size, ...], axis: int, dtype: t.DType) -> Program:
    function = trace("rows", lambda x: [of(x, axis)], [TensorType(dtype, shape)])
    sizes = [3 if size is N else size for size in shape], [40 if size is N else size for size in shape]
    return check(function, *[[numbers(*map(int, item), dtype=dtype)] for item in sizes])


def rows(program: Program) -> Launch:
    (launch,) = program.launches
    assert launch.title == "rows"
    return launch


@pytest.mark.parametrize("dtype", [t.FLOAT, t.DOUBLE])
@pytest.mark.parametrize("of", [softmax, log_softmax, weighed])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((5, 37), 1),
        ((37, 5), 0),
        ((2, 3, 9, 17), 2),
        ((64, 3), 1),
        ((1, 100), 1),
        ((N, 33), 1),
        ((33, N), 1),
        ((4, N, 7), 1),
    ],
)
def test_is_what_the_interpreter_computes(
    of: Callable[[L.Tensor, int], L.Tensor], shape: tuple[Size, ...], axis: int, dtype: t.DType
) -> None:
    rows(program(of, shape, axis, dtype))


def test_over_several_axes() -> None:
    def both(x: L.Tensor) -> list[L.Tensor]:
        e = L.exp(x - L.reduce_max(x, [1, 2], keepdims=True))
        return [e / L.reduce_sum(e, [1, 2], keepdims=True)]

    launch = rows(check(trace("rows", both, [TensorType(t.FLOAT, (3, 5, 11))]), [numbers(3, 5, 11)]))
    assert any(isinstance(buffer, Scratch) for buffer in launch.buffers)


def test_threads_keep_elements_apart() -> None:
    function = trace("rows", lambda x: [softmax(x, 1)], [TensorType(t.FLOAT, (600, 45))])
    x = numbers(600, 45)
    one, two = (Program.compile(function, threads=threads).run([x]) for threads in (1, 2))
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_allclose(one[0], computed(function, [x])[0], rtol=2e-6, atol=1e-7)


def test_rows_that_caches_do_not_hold_are_computed_again() -> None:
    long = NAMED["avx2"].l2
    function = trace("rows", lambda x: [softmax(x, 1)], [TensorType(t.FLOAT, (2, long))])
    assert not any(isinstance(buffer, Scratch) for buffer in rows(Program.compile(function)).buffers)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_rows_of_any_size_write_all_results_of_a_normalization(size: int) -> None:
    first = list(range(size))
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[4] z, float[{size}] w) => (float y, float m, float i) <int64[{size}] at = {{{str(first)[1:-1]}}}>
        {{ x = Gather (z, at)  y, m, i = LayerNormalization <axis = -1> (x, w, w) }}"""
    )
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    feeds = {"z": np.linspace(-2, 3, 4, dtype=np.float32), "w": np.full(size, 0.5, np.float32)}
    expected = Session(model, compile="off").run(None, feeds)
    for actual, other in zip(Session(model, compile="wait", threads=1).run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, other, rtol=1e-4, atol=1e-4)
