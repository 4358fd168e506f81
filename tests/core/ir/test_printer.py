"""Text of functions: it reads back to what it was printed from."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.gradient_cases import CASES, looped, traced
from tests.core.programs import CHOICES, POSITIVES, assert_same, computed, random_program
from tests.random_cases import cases

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.host_function import HostFunction, host
from sardonyx.core.eval.parser import parse_function, split
from sardonyx.core.eval.tensor import known
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.printer import function_text
from sardonyx.core.ir.types import MapType, OptionalType, SequenceType, TensorType
from sardonyx.core.transform.differentiation import gradient
from sardonyx.errors import InvalidModelError, TextFormatError, UnsupportedError

N, M = Dim.symbol("N"), Dim.symbol("M")
HOSTS = {"positives": POSITIVES}


def assert_round_trip(function: Function) -> Function:
    text = function_text(function)
    again = parse_function(text, HOSTS)
    assert function_text(again) == text
    return again


def test_a_function_reads_like_the_mathematics() -> None:
    function = trace("softmax", lambda x: [L.softmax(x)], [TensorType(t.FLOAT, (N, 4))])
    assert (
        function_text(function)
        == """\
softmax(x0: float[N, 4]):
  v0: float[N] = reduce(x0; kind='max', axes=(1,))
  v1: float[N, 1] = reshape(v0; shape=[N, 1])
  v2: float[N, 1] = stop_gradient(v1)
  v3: float[N, 4] = broadcast(v2; shape=[N, 4])
  v4: float[N, 4] = x0 - v3
  v5: float[N, 4] = exp(v4)
  v6: float[N] = reduce(v5; kind='add', axes=(1,))
  v7: float[N, 1] = reshape(v6; shape=[N, 1])
  v8: float[N, 4] = broadcast(v7; shape=[N, 4])
  v9: float[N, 4] = v5 / v8
  return v9
"""
    )


def test_functions_inside_stand_below_what_calls_them() -> None:
    def grown(n: L.Tensor, x: L.Tensor) -> list[L.Tensor]:
        (state,), _ = L.loop(n, None, [x], lambda i, s: (None, [L.concat([s, x], 0)], []))
        return [state]

    function = trace("grown", grown, [TensorType(t.INT64, ()), TensorType(t.FLOAT, (N,))])
    assert (
        function_text(function)
        == """\
grown(x0: int64[], x1: float[N]):
  v0: bool[] = True
  v1: (float[%0]) = loop(x0, v0, x1, x1; carried=1) defines %0
    body = body(x0: int64[], x1: bool[], x2: float[%1], x3: float[N]):
      v0: bool[] = True
      v1: float[N + `%1`] = concat(x2, x3; axis=0)
      return v0, v1
  v2: float[%0] = v1.0
  return v2
"""
    )
    assert_round_trip(function)


@settings(max_examples=cases(60), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_programs_read_back(seed: int) -> None:
    program = random_program(np.random.default_rng(seed))
    function = program.traced()
    again = assert_round_trip(function)
    assert_same(computed(again, program.arrays[0]), computed(function, program.arrays[0]))


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_every_primitive_reads_back(name: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(5):
        assert_round_trip(random_program(rng, 3, only=[name, "convert"]).traced())


@pytest.mark.parametrize("name", CASES)
def test_gradients_read_back(name: str) -> None:
    assert_round_trip(gradient(CASES[name][0]))


def test_the_gradient_of_a_loop_reads_back() -> None:
    assert_round_trip(gradient(traced(looped, "N", "N N", ":")))


def test_a_function_without_defined_symbols_parses_to_the_same_object() -> None:
    function = trace(
        "f",
        lambda x, y: [L.matmul(x, y) * 2.5, L.shape_tensor(x)],
        [TensorType(t.FLOAT, (N, M)), TensorType(t.FLOAT, (M, 3))],
    )
    assert parse_function(function_text(function)) is function


@pytest.mark.parametrize("dtype", t.ALL_DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0, 3), (5, 7)])
def test_constants_of_every_element_type(dtype: t.DType, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    count = int(np.prod(shape))
    if dtype == t.STRING:
        array = np.array([f"a\"{i}, ;'" for i in range(count)], object).reshape(shape)
    else:
        array = (rng.standard_normal(shape) * 3).astype(t.numpy_dtype(dtype))
    function = trace("f", lambda: [L.constant(array, dtype)], [])
    again = assert_round_trip(function)
    assert_same(computed(again, []), computed(function, []))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -0.0, 1e-45, 3.4e38, 0.1])
def test_special_numbers_round_trip(value: float) -> None:
    for dtype in (np.float32, np.float64, ml_dtypes.bfloat16):
        function = trace("f", lambda dtype=dtype: [L.constant(np.array(value, dtype))], [])
        actual = computed(assert_round_trip(function), [])[0]
        assert actual.tobytes() == np.array(value, dtype).tobytes()


def test_sequences_optionals_and_maps() -> None:
    tensor = TensorType(t.FLOAT, None)
    row = np.array([1.5, 2.0], np.float32)
    values = [
        known([row, row], SequenceType(TensorType(t.FLOAT, (2,)))),
        known([], SequenceType(tensor)),
        known(None, OptionalType(tensor)),
        known({"a": np.float32(2).reshape(())}, MapType(t.STRING, TensorType(t.FLOAT, ()))),
    ]
    again = assert_round_trip(trace("f", lambda: values, []))
    assert [str(v.type) for v in again.results] == [str(v.type) for v in values]
    assert again.results[0].known[1].tolist() == [1.5, 2]
    assert again.results[2].known is None
    inputs = [SequenceType(tensor), OptionalType(SequenceType(tensor)), MapType(t.INT64, tensor)]
    assert parse_function(function_text(trace("g", lambda *v: list(v), inputs))) is trace(
        "g", lambda *v: list(v), inputs
    )


def test_host_functions_by_name() -> None:
    pick = HostFunction("pick", lambda x, **a: (x,), lambda x, **a: (x,))
    function = trace("f", lambda x: list(host(pick, x, mode="a; b", at=(1, 2), scale=0.5)), [TensorType(t.FLOAT, (N,))])
    text = function_text(function)
    assert "host(\"pick\", x0; mode='a; b', at=(1, 2), scale=0.5)" in text
    assert parse_function(text, {"pick": pick}) is function
    with pytest.raises(TextFormatError, match="line 2"):
        parse_function(text)
    odd = trace("f", lambda x: list(host(pick, x, table=object())), [TensorType(t.FLOAT, (N,))])
    with pytest.raises(UnsupportedError, match="attribute table"):
        function_text(odd)


def test_names_round_trip() -> None:
    def f(x: L.Tensor) -> list[L.Tensor]:
        y = L.sin(x)
        y.origin = 'conv/1 "out"'
        return [y]

    function = trace("a name with spaces", f, [TensorType(t.FLOAT, (N,))])
    again = assert_round_trip(function)
    assert again.name == "a name with spaces"
    assert again.results[0].origin == 'conv/1 "out"'


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "line 0"),
        ("f(x0: float[N]):", "line 1"),
        ("f(x0: float[N]:\n  return x0\n", "line 1"),
        ("f(x0: flat[N]):\n  return x0\n", "line 1"),
        ("f(x0: float[N]):\n  return x1\n", "line 2"),
        ("f(x0: float[N]):\n  v0: float[N] = sine(x0)\n  return v0\n", "line 2"),
        ("f(x0: float[N]):\n  v0: float[N] = x0 ? x0\n  return v0\n", "line 2"),
        ("f(x0: float[N]):\n    v0: float[N] = sin(x0)\n  return v0\n", "line 2"),
        ("f(x0: float[N]):\n  v0: float[N] = reduce(x0; kind='add')\n  return v0\n", "line 2"),
        ("f(x0: float[N]):\n  return x0\nmore\n", "line 3"),
    ],
)
def test_syntax_errors_name_the_line(text: str, where: str) -> None:
    with pytest.raises(TextFormatError) as caught:
        parse_function(text)
    assert caught.value.where == where


def test_a_type_other_than_inferred_is_refused() -> None:
    with pytest.raises(TextFormatError, match=r"expected float\[N\] for sin, got double\[N\]"):
        parse_function("f(x0: float[N]):\n  v0: double[N] = sin(x0)\n  return v0\n")


def test_an_illegal_function_is_refused() -> None:
    with pytest.raises(InvalidModelError, match="undefined symbol Q"):
        parse_function("f():\n  v0: int64[Q] = iota(shape=[Q], axis=0, dtype=int64)\n  return v0\n")


def test_split_ignores_separators_in_brackets_and_quotes() -> None:
    assert split('a, (b, c), [d, e], \'f, g\', `h, i`, "j\\", k"') == [
        "a",
        "(b, c)",
        "[d, e]",
        "'f, g'",
        "`h, i`",
        '"j\\", k"',
    ]
