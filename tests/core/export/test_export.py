"""The ONNX form of primitives: exported functions give on ``onnx.reference`` what Core gives."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from tests.core.gradient_cases import CASES
from tests.core.programs import CHOICES, computed, random_array, random_program
from tests.random_cases import cases

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.host_function import HostFunction, host, unknown_size
from sardonyx.core.eval.tensor import apply, known
from sardonyx.core.eval.trace import trace
from sardonyx.core.export.export import ONNX_FORMS, to_model
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import MapType, SequenceType, TensorType
from sardonyx.core.transform.differentiation import apply_call, gradient
from sardonyx.errors import UnsupportedError

pytestmark = pytest.mark.sampled

N, M = Dim.symbol("N"), Dim.symbol("M")


def exported(function: Function) -> onnx.ModelProto:
    model = ir.serde.serialize_model(to_model(function))
    onnx.checker.check_model(model, full_check=True)
    return model


def on_reference(function: Function, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    model = exported(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(
            ReferenceEvaluator(model).run(None, dict(zip((x.name for x in model.graph.input), arrays, strict=True)))
        )


def assert_exported(function: Function, arrays: Sequence[np.ndarray]) -> None:
    for actual, expected in zip(on_reference(function, arrays), computed(function, arrays), strict=True):
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        if t.is_float(t.dtype_of(expected)):
            exact = expected.dtype == np.float64
            actual, expected = (x.astype(np.float64) for x in (actual, expected))
            np.testing.assert_allclose(actual, expected, rtol=1e-7 if exact else 1e-4, atol=1e-7 if exact else 1e-5)
        else:
            np.testing.assert_array_equal(actual, expected)


def test_every_primitive_has_a_form() -> None:
    assert ONNX_FORMS.keys() == PRIMITIVES.keys()


@pytest.mark.parametrize("name", sorted(set(CHOICES) - {"random", "host", "loop"}))
def test_a_primitive_at_open_sizes(name: str) -> None:
    rng = np.random.default_rng(5)
    met = 0
    for _ in range(8):
        program = random_program(rng, 3, only=[name, "convert"])
        met += any(step.primitive == name for step in program.steps)
        for arrays in program.arrays:
            assert_exported(program.traced(), arrays)
    assert met


@settings(max_examples=cases(25), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_programs(seed: int) -> None:
    steep = ("random", "host", "loop", "determinant", "floor", "ceil", "round", "sign")
    program = random_program(np.random.default_rng(seed), 8, dtype=t.DOUBLE, without=steep)
    assert_exported(program.traced(), program.arrays[0])


@pytest.mark.parametrize("name", sorted(set(CASES) - {"random", "bitcast", "scan mul", "scan mul with zeros"}))
def test_gradients_are_portable_models(name: str) -> None:
    function, arrays = CASES[name]
    assert_exported(gradient(function), arrays)


WIDTHS = (t.FLOAT16, t.BFLOAT16, t.DType.FLOAT8E5M2, t.INT8, t.UINT8, t.INT16, t.UINT32, t.BOOL)
ARITHMETIC = (
    "neg abs sign floor round exp add sub mul div max min less equal and xor not shift_left shift_right pow rem"
)


@pytest.mark.parametrize("name", ARITHMETIC.split())
@pytest.mark.parametrize("dtype", WIDTHS)
def test_elementwise_of_every_width(name: str, dtype: t.DType) -> None:
    binary = PRIMITIVES[name].kind == "binary"
    type_ = TensorType(dtype, (N,))
    try:
        function = trace("f", lambda *xs: [apply(name, *xs)], [type_] * (1 + binary))
    except Exception as error:
        assert "does not accept" in str(error)
        return
    rng = np.random.default_rng(0)
    arrays = [random_array(rng, type_, {"N": 12}) for _ in range(1 + binary)]
    if name in ("div", "rem"):
        arrays[1] = arrays[1] + np.ones((), arrays[1].dtype)
    assert_exported(function, arrays)


@pytest.mark.parametrize("kind", ["add", "mul", "max", "min", "and", "or"])
@pytest.mark.parametrize("dtype", [t.FLOAT16, t.BFLOAT16, t.INT8, t.UINT8, t.INT64, t.BOOL])
def test_reductions_of_every_width(kind: str, dtype: t.DType) -> None:
    try:
        function = trace("f", lambda x: [apply("reduce", x, kind=kind, axes=(1, 0))], [TensorType(dtype, (N, 3, M))])
    except Exception as error:
        assert "does not accept" in str(error)
        return
    assert_exported(function, [random_array(np.random.default_rng(1), TensorType(dtype, (4, 3, 2)), {})])


@pytest.mark.parametrize(
    ("source", "dtype"),
    [(t.UINT8, t.UINT32), (t.FLOAT, t.UINT8), (t.INT16, t.DOUBLE), (t.FLOAT, t.INT32), (t.DOUBLE, t.UINT16)],
)
def test_bits(source: t.DType, dtype: t.DType) -> None:
    ratio = max(dtype.bitwidth // source.bitwidth, 1)
    shape: tuple[int | Dim, ...] = (N, ratio) if ratio > 1 else (N,)
    function = trace("f", lambda x: [L.bitcast(x, dtype)], [TensorType(source, shape)])
    array = np.random.default_rng(0).integers(0, 90, (5, ratio) if ratio > 1 else (5,)).astype(t.numpy_dtype(source))
    assert_exported(function, [array])


def test_products_of_bytes_are_summed_in_32_bits() -> None:
    function = trace(
        "f", lambda x, y: [L.matmul(x, y, t.INT32)], [TensorType(t.INT8, (N, M)), TensorType(t.UINT8, (M, 2))]
    )
    x = np.full((2, 300), -128, np.int8)
    assert_exported(function, [x, np.full((300, 2), 255, np.uint8)])


def test_complex_numbers_stand_as_pairs() -> None:
    def f(a: L.Tensor, b: L.Tensor) -> list[L.Tensor]:
        p, q = L.bitcast(a, t.COMPLEX128), L.bitcast(b, t.COMPLEX128)
        z = L.exp(p) * q / (p + q) - L.permute(L.permute(p, [1, 0]), [1, 0])
        z = L.where(L.cast(p, t.DOUBLE) < 0, z, -z)
        z = L.concat(
            [
                L.reshape(L.slice_(z, 1, 0, 3, 2), (z.shape[0] * 2,)),
                L.reshape(L.take(z, L.constant(1, t.INT64), 0), (3,)),
            ],
            0,
        )
        z = L.fft(L.fft(L.pad(z, [1], [2])), inverse=True)
        z = z + L.broadcast_to(L.reshape(L.reduce_sum(z), (1,)), z.shape) + L.cast(L.cast(z, t.DOUBLE), t.COMPLEX128)
        return [L.bitcast(L.reverse(z, [0]), t.DOUBLE)]

    function = trace("f", f, [TensorType(t.DOUBLE, (N, 3, 2))] * 2)
    rng = np.random.default_rng(0)
    assert_exported(function, [rng.standard_normal((2, 3, 2)), rng.standard_normal((2, 3, 2))])


def test_products_of_complex_numbers() -> None:
    def f(x: L.Tensor, y: L.Tensor) -> list[Value]:
        a, b = (L.bitcast(part, t.COMPLEX128) for part in (x, y))
        products = L.contract(a, b, left=[1], right=[0]), L.contract(a, b, batch=[(0, 0)], left=[1], right=[1])
        return [L.bitcast(part, t.DOUBLE) for part in products]

    function = trace("f", f, [TensorType(t.DOUBLE, (3, 3, 2))] * 2)
    rng = np.random.default_rng(0)
    assert_exported(function, [rng.standard_normal((3, 3, 2)), rng.standard_normal((3, 3, 2))])


def test_what_has_no_form_on_complex_numbers_says_so() -> None:
    def refused(compute: object) -> None:
        pairs = TensorType(t.DOUBLE, (2, 2))
        with pytest.raises(UnsupportedError, match="complex"):
            to_model(trace("f", lambda x: [L.bitcast(compute(L.bitcast(x, t.COMPLEX128)), t.DOUBLE)], [pairs]))  # type: ignore[operator]

    refused(L.tanh)
    refused(lambda z: L.pad(z, [1], [1], 1))
    with pytest.raises(UnsupportedError, match="complex"):
        to_model(trace("f", lambda x: [x], [TensorType(t.COMPLEX64, (N,))]))


@pytest.mark.parametrize("trips", [1, 3])
def test_loops_carry_collect_and_see_around(trips: int) -> None:
    def f(n: L.Tensor, x: L.Tensor) -> list[Value]:
        y = L.sin(x)

        def body(i: L.Tensor, s: L.Tensor, k: L.Tensor):
            s = s + y * L.cast(i, t.DOUBLE)
            return L.reduce_sum(s) < 100.0, [s, k + 2], [s, k, L.unsqueeze(s, [0])]

        (s, k), rows = L.loop(n, None, [x, L.constant(1, t.INT64)], body)
        (grown,), _ = L.loop(n, None, [x], lambda i, g: (None, [L.concat([g, x], 0)], []))
        return [s, k, *rows, grown, L.shape_tensor(grown)]

    function = trace("f", f, [TensorType(t.INT64, ()), TensorType(t.DOUBLE, (N,))])
    assert_exported(function, [np.array(trips), np.arange(3.0)])


def test_conditions_and_sizes_that_they_define() -> None:
    def f(c: L.Tensor, x: L.Tensor) -> list[Value]:
        (y,) = L.cond(c < 0, lambda: [L.concat([x, x], 0)], lambda: [x])
        return [y, L.iota(y.shape, 0), L.constant(7, t.INT64), x]

    function = trace("f", f, [TensorType(t.DOUBLE, ()), TensorType(t.DOUBLE, (N,))])
    for sign in (-1.0, 1.0):
        assert_exported(function, [np.array(sign), np.arange(3.0)])


def test_calls_are_written_in_place() -> None:
    square = trace("square", lambda x: [x * x], [TensorType(t.DOUBLE, (N,))])
    function = trace("f", lambda x: [apply_call(square, [L.sin(x)])[0] + 1.0], [TensorType(t.DOUBLE, (N,))])  # type: ignore[operator]
    assert_exported(function, [np.arange(4.0)])


def test_sizes_are_computed_where_they_are_needed() -> None:
    def f(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        n, m = x.shape
        half = L.slice_(x, 0, n // 2, n)
        wide = L.broadcast_to(L.reshape(half, (half.shape[0], m, 1)), (half.shape[0], m, 2 * n + 1))
        return [wide, x * y, L.reshape(x, (n * m,)), L.shape_tensor(L.pad(x, [m, 0], [n, 1]))]

    function = trace("f", f, [TensorType(t.FLOAT, (N, M)), TensorType(t.FLOAT, (Dim.symbol("K"), M))])
    for n in (1, 4):
        assert_exported(function, [np.ones((5, 3), np.float32), np.ones((5 if n > 1 else 1, 3), np.float32)])


def test_sizes_of_inputs_may_be_multiples() -> None:
    wide = TensorType(t.FLOAT, (2 * N + 1, 3 * M))
    function = trace("f", lambda x: [L.full((N, M), 1.0, t.FLOAT), L.slice_(x, 0, N, 2 * N)], [wide])
    for n in (1, 4):
        assert_exported(function, [np.ones((2 * n + 1, 6), np.float32)])


def test_host_functions_are_their_nodes() -> None:
    unique = HostFunction(
        "Unique",
        lambda x, sorted=1: (TensorType(x.dtype, (unknown_size(),)),),
        lambda x, sorted=1: (np.unique(x),),
        since=11,
    )
    function = trace(
        "f", lambda x: [L.shape_tensor(y := host(unique, x, sorted=1)[0]), y * 2.0], [TensorType(t.FLOAT, (N,))]
    )  # type: ignore[arg-type,operator]
    assert next(iter(exported(function).graph.node)).op_type == "Unique"
    assert_exported(function, [np.array([3, 1, 3, 2], np.float32)])


def test_known_sequences() -> None:
    element = TensorType(t.FLOAT, (2,))
    values = [known([np.ones(2, np.float32)], SequenceType(element)), known([], SequenceType(element))]
    actual = on_reference(trace("f", lambda: values, []), [])
    assert [len(x) for x in actual] == [1, 0]
    with pytest.raises(UnsupportedError, match="no ONNX"):
        to_model(trace("f", lambda x: [x], [MapType(t.INT64, element)]))


def test_random_values_are_drawn_by_seed() -> None:
    def f(x: L.Tensor) -> list[L.Tensor]:
        return [L.uniform((3,), t.FLOAT, seed=2.0, identity=""), L.normal(x.shape, t.BFLOAT16, seed=None, identity="")]

    function = trace("f", f, [TensorType(t.FLOAT, (N,))])
    first, second = on_reference(function, [np.ones(4, np.float32)])
    assert first.shape == (3,) and second.shape == (4,)
    assert second.dtype == t.numpy_dtype(t.BFLOAT16)


def test_the_lowest_version_that_holds_the_graph() -> None:
    def version(compute: object, dtype: t.DType = t.FLOAT) -> tuple[int, int]:
        model = to_model(trace("f", lambda x: [compute(x)], [TensorType(dtype, (N,))]))  # type: ignore[operator]
        return model.opset_imports[""], model.ir_version

    assert version(L.sin) == (18, 8)
    assert version(lambda x: L.cast(x, t.DType.FLOAT8E5M2)) == (19, 9)
    assert version(lambda x: L.cast(x, t.DType.INT4)) == (21, 10)
    assert version(lambda x: L.bitcast(x, t.INT32))[0] == 26


def test_names() -> None:
    def f(x: L.Tensor) -> list[L.Tensor]:
        y = L.sin(x)
        y.origin = "wave"
        return [L.exp(y)]

    function = trace("f", f, [TensorType(t.FLOAT, (N,))])
    model = to_model(function, input_names=["image"], output_names=["scores"])
    assert [v.name for v in (*model.graph.inputs, *model.graph.outputs)] == ["image", "scores"]
    assert [str(size) for size in model.graph.inputs[0].shape or ()] == ["N"]
    assert "wave" in [output.name for node in model.graph for output in node.outputs]


def test_constants_are_written_once() -> None:
    weights = np.arange(6.0).reshape(2, 3)

    def f(x: L.Tensor) -> list[L.Tensor]:
        return [L.matmul(x, L.constant(weights)), L.matmul(L.sin(x), L.constant(weights.copy()))]

    function = trace("f", f, [TensorType(t.DOUBLE, (N, 2))])
    assert len(to_model(function).graph.initializers) == 1


def test_a_choice_of_booleans_runs_in_onnx_runtime() -> None:
    """It has no Where for booleans."""
    types = [TensorType(t.BOOL, (N, 3)), TensorType(t.BOOL, (1, 3)), TensorType(t.BOOL, (N, 3))]
    function = trace("g", lambda c, x, y: [L.where(c, x, y)], types)
    random = np.random.default_rng(0)
    arrays = [random.integers(0, 2, (rows, 3)).astype(bool) for rows in (8, 1, 8)]
    assert_exported(function, arrays)
    session = onnxruntime.InferenceSession(exported(function).SerializeToString())
    feeds = {x.name: array for x, array in zip(session.get_inputs(), arrays, strict=True)}
    np.testing.assert_array_equal(session.run(None, feeds)[0], np.where(*arrays))
