"""Programs: compiled equals interpreted, at every size, with any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.compiler.program_checks import assert_close
from tests.core.programs import computed, random_program
from tests.random_cases import cases

from sardonyx.compiler.call.fault import Fault
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.tensor import apply, constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import DType, TensorType
from sardonyx.core.transform.simplify import simplify

pytestmark = pytest.mark.sampled

N, M, K = map(Dim.symbol, "NMK")


def moved(array: np.ndarray) -> np.ndarray:
    """Floating-point numbers, each changed by a millionth."""
    return array * array.dtype.type(1 + 1e-6) if array.dtype in (np.float32, np.float64) else array


def assert_random_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, 10, without=("random", "determinant"))
    function = simplify(program.traced())
    compiled = Program.compile(function)
    for arrays in program.arrays:
        nearby = computed(function, [moved(np.asarray(x)) for x in arrays])
        assert_close(compiled.run([np.array(x, order="C") for x in arrays]), computed(function, arrays), nearby)


@settings(max_examples=cases(40), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1))
def test_random_programs_equal_the_interpreter(seed: int) -> None:
    assert_random_program(seed)


@pytest.mark.long
@pytest.mark.parametrize("hundred", range(100))
def test_ten_thousand_random_programs_equal_the_interpreter(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        assert_random_program(seed)


def softmax(x: L.Tensor) -> L.Tensor:
    e = L.exp(x - L.reduce_max(x, [-1], keepdims=True))
    return e / L.reduce_sum(e, [-1], keepdims=True)


def layer_norm(x: L.Tensor, scale: L.Tensor) -> L.Tensor:
    centred = x - L.reduce_mean(x, [-1], keepdims=True)
    return centred / L.sqrt(L.reduce_mean(centred * centred, [-1], keepdims=True) + 1e-5) * scale


def traced(body: object, *shapes: tuple[object, ...]) -> Function:
    return trace("f", body, [TensorType(t.FLOAT, shape) for shape in shapes])  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 7, 16, 17, 33, 100])
def test_a_softmax_is_one_kernel(size: int) -> None:
    function = traced(lambda x: [softmax(x)], (N, M))
    program = Program.compile(function)
    assert len(program.launches) == 1
    x = np.random.default_rng(0).standard_normal((5, size)).astype(np.float32)
    assert_close(program.run([x]), computed(function, [x]))


def test_a_layer_norm_is_one_kernel() -> None:
    function = traced(lambda x, s: [layer_norm(x, s)], (N, M), (M,))
    program = Program.compile(function)
    assert [launch.title for launch in program.launches] == ["rows"]
    x, s = (np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i, shape in enumerate([(9, 50), 50]))
    assert_close(program.run([x, s]), computed(function, [x, s]))


def test_what_follows_a_product_is_part_of_its_kernel() -> None:
    function = traced(lambda x, w, b: [L.tanh(L.matmul(x, w) + b)], (N, K), (K, M), (M,))
    program = Program.compile(function)
    assert [launch.title for launch in program.launches] == ["contract"]
    rng = np.random.default_rng(0)
    for n, k, m in ((1, 1, 1), (3, 20, 33), (0, 4, 5), (40, 64, 128)):
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((n, k), (k, m), (m,))]
        assert_close(program.run(arrays), computed(function, arrays))


def test_results_do_not_tell_how_many_threads_there_were() -> None:
    function = traced(lambda x, w: [softmax(L.matmul(x, w))], (N, K), (K, M))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((200, 96), (96, 300))]
    one, two = (Program.compile(function, threads=threads).run(arrays) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_arrays_of_types_of_their_own_are_read_as_they_are() -> None:
    program = Program.compile(trace("f", lambda x: [x + x], [TensorType(t.FLOAT, (Dim.symbol("N"),))]))
    x = np.arange(5, dtype=np.float32)
    for array in (x, np.ma.masked_array(x, mask=False), x.view(np.recarray)):
        np.testing.assert_array_equal(program.run([array])[0], 2 * x)


def test_data_without_a_result_are_a_fault() -> None:
    function = trace("f", lambda x, at: [L.take(x, at, 0)], [TensorType(t.FLOAT, (N,)), TensorType(t.INT64, (M,))])
    program = Program.compile(function)
    x = np.arange(5, dtype=np.float32)
    assert_close(program.run([x, np.array([3, 0])]), [np.array([3, 0], np.float32)])
    with pytest.raises(Fault):
        program.run([x, np.array([3, 5])])
    assert_close(program.run([x, np.array([4])]), [np.array([4], np.float32)])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_softmax_over_any_axis_of_known_sizes_is_one_kernel(axis: int) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        e = L.exp(x - L.reduce_max(x, [axis], keepdims=True))
        return [e / L.reduce_sum(e, [axis], keepdims=True)]

    function = traced(body, (3, 4, 5))
    program = Program.compile(function)
    assert len(program.launches) == 1
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    assert_close(program.run([x]), computed(function, [x]))


def arg_max(x: L.Tensor) -> L.Tensor:
    return apply("reduce", x, kind="argmax", axes=(len(x.shape) - 1,))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("count", [1, 7, 8, 15, 16, 17, 37, N], ids=str)
def test_rows_of_few_elements(length: int, count: int | Dim) -> None:
    """Lanes are rows where there are enough of them: results are the same, to the last of an open number."""
    function = traced(lambda x: [softmax(x), L.reduce_mean(x * x, [-1]), arg_max(x)], (2, count, length))
    program = Program.compile(function)
    for size in (0, 1, 5, 16, 40) if isinstance(count, Dim) else (count,):
        x = np.random.default_rng(size).standard_normal((2, size, length)).astype(np.float32)
        assert_close(program.run([x]), computed(function, [x]))


@pytest.mark.parametrize("length", [3, 6, 9])
def test_rows_side_by_side_look_up_nothing_behind_the_last_row(length: int) -> None:
    """What lies in memory there is no index: were it read as one, good data would be a fault."""
    function = trace(
        "f",
        lambda x, at: [L.reduce_sum(L.take(x, at, 0), [-1])],
        [TensorType(t.FLOAT, (M,)), TensorType(t.INT64, (N, length))],
    )
    program = Program.compile(function)
    x = np.arange(7, dtype=np.float32)
    for rows in (1, 5, 15, 17, 40):
        behind = np.full((rows + 32, length), 1 << 40)
        at = behind[:rows]
        at[:] = np.random.default_rng(rows).integers(0, 7, at.shape)
        assert_close(program.run([x, at]), computed(function, [x, at]))


def attend(q: L.Tensor, k: L.Tensor, v: L.Tensor, mask: L.Tensor) -> L.Tensor:
    scores = L.matmul(q, L.permute(k, [0, 1, 3, 2])) * 0.25 + mask
    return L.matmul(softmax(scores), v)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 17), (33, 40)])
def test_attention_is_one_kernel(queries: int, keys: int) -> None:
    heads = Dim.symbol("H")
    function = traced(
        lambda q, k, v, mask: [attend(q, k, v, mask)], (N, heads, M, 16), (N, heads, K, 16), (N, heads, K, 24), (M, K)
    )
    program = Program.compile(function)
    assert [launch.title for launch in program.launches] == ["attention"]
    rng = np.random.default_rng(0)
    shapes = ((2, 3, queries, 16), (2, 3, keys, 16), (2, 3, keys, 24), (queries, keys))
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    assert_close(program.run(arrays), computed(function, arrays))


@pytest.mark.parametrize("dtype", [t.FLOAT, t.DOUBLE, t.FLOAT16, t.INT8, t.INT64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("width", "known"), [(9, 9), (16, 16), (100, 100), (128, 128), (1000, 1000), (203, M)])
def test_columns_are_reduced_side_by_side(width: int, known: Size, dtype: DType) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        greatest = L.reduce_max(x, [0], keepdims=True)
        return [L.reduce_sum(x, [0]), greatest - x, L.reduce_sum(x * x, [0]) + L.reduce_min(x, [0])]

    function = trace("f", body, [TensorType(dtype, (70, known))])
    x = np.random.default_rng(width).integers(-4, 5, (70, width)).astype(t.numpy_dtype(dtype))
    first, *others = (Program.compile(function, threads=threads).run([x]) for threads in (1, 2))
    assert_close(first, computed(function, [x]))
    for item in others:
        assert_close(item, first)


@pytest.mark.parametrize("dtype", [t.FLOAT, t.DOUBLE, t.UINT8, t.INT64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("sizes", [(N, M), (9, 203)], ids=("open", "known"))
def test_the_first_of_equals_is_found(sizes: tuple[Size, ...], dtype: DType) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        return [apply("reduce", x, kind=kind, axes=(axis,)) for kind in ("argmax", "argmin") for axis in (0, 1)]

    program = Program.compile(trace("f", body, [TensorType(dtype, sizes)]))
    rng = np.random.default_rng(3)
    few = rng.integers(0, 2, (9, 203)).astype(t.numpy_dtype(dtype))
    few[0], few[1], few[2, 7] = 0, 1, 1
    several = [few]
    if t.is_float(dtype):
        several += [np.where(few == 1, np.inf, -np.inf).astype(few.dtype), np.where(few == 1, np.nan, few)]
    for x in several:
        assert_close(program.run([x]), computed(program.function, [x]))


@pytest.mark.parametrize("sizes", [(N, M), (1000, 3000)], ids=("open", "known"))
def test_sums_of_many_numbers_stay_exact(sizes: tuple[Size, ...]) -> None:
    function = traced(lambda x: [L.reduce_sum(x, [0]), L.reduce_sum(x, [1])], sizes)
    x = np.full((1000, 3000), 1.1, np.float32)
    x[:, ::2] = 0.3
    down, across = Program.compile(function).run([x])
    np.testing.assert_allclose(down, x.astype(np.float64).sum(0), rtol=1e-6)
    np.testing.assert_allclose(across, x.astype(np.float64).sum(1), rtol=1e-6)


def test_what_depends_on_sizes_that_are_read_is_computed_with_them() -> None:
    def body(x: L.Tensor, at: L.Tensor) -> list[L.Tensor]:
        (rows,) = L.sizes(at)
        grid = L.cast(L.iota((rows, 3), 0), t.FLOAT)
        return [L.contract(x, L.concat([grid, grid + 1.0], 1), batch=[], left=[1], right=[1])]

    function = trace("f", body, [TensorType(t.FLOAT, (N, 6)), TensorType(t.INT64, (1,))])
    program = Program.compile(function)
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    for rows in (1, 5, 20):
        assert_close(program.run([x, np.array([rows])]), computed(function, [x, np.array([rows])]))


@pytest.mark.parametrize(
    ("shape", "window"), [((2, 17, 40, 1), (5, 1)), ((1, 20, 1, 33), (1, 3)), ((1, 16, 1, 1), (1, 1))]
)
def test_convolutions_along_one_axis_of_an_image(shape: tuple[int, ...], window: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((1, 24, shape[1], *window)).astype(np.float32)

    def body(x: L.Tensor) -> list[L.Tensor]:
        n, c, *spatial = shape
        grouped = L.permute(L.reshape(x, (n, 1, c, *spatial)), [1, 0, 2, 3, 4])
        actual = apply(
            "convolve", grouped, constant(w, t.FLOAT), strides=(1, 1), padding=((0, 0), (0, 0)), base_dilation=(1, 1),
            kernel_dilation=(1, 1), dtype=t.FLOAT,
        )  # fmt: skip
        return [L.tanh(actual)]

    function = traced(body, shape)
    x = rng.standard_normal(shape).astype(np.float32)
    assert_close(Program.compile(function).run([x]), computed(function, [x]))


def test_the_parts_of_a_concatenation_are_computed_where_they_are_written() -> None:
    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        rotated = L.permute(L.sin(y), (1, 0))
        repeated = L.broadcast_to(L.cos(L.slice_(x, 0, 0, 1, 1)), x.shape)
        return [L.concat([L.exp(x), L.permute(L.tanh(y), (1, 0)), rotated, rotated, repeated], 0)]

    function = traced(body, (N, M), (M, K))
    program = Program.compile(function)
    # The sine is read twice, the cosine repeated: they are computed before.
    assert sorted(launch.title for launch in program.launches) == ["map", "map", *["part of concat"] * 5]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((3, 20), (20, 7))]
    assert_close(program.run(arrays), computed(function, arrays))
