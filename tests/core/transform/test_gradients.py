"""Gradients: equal to central differences in float64, for every primitive and through all that calls functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.core.gradient_cases import CASES, looped, numbers, traced
from tests.core.programs import CHOICES, POSITIVES, Program, computed, random_program
from tests.random_cases import cases

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.host_function import host
from sardonyx.core.eval.tensor import apply
from sardonyx.core.eval.trace import inline, trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.core.transform import differentiation
from sardonyx.core.transform.differentiation import FLAT, GRADIENTS, apply_call, gradient, jvp, vjp
from sardonyx.errors import RuleError, SardonyxError, UnsupportedError

N, M, K = map(Dim.symbol, "NMK")
STEP = 1e-6


def differences(
    f: Callable[[list[np.ndarray]], float], at: Sequence[np.ndarray], i: int, step: float = STEP
) -> np.ndarray:
    """The gradient by an argument, by central differences."""
    actual = np.zeros_like(at[i])
    for position in np.ndindex(*at[i].shape):
        values = []
        for move in (step, -step):
            moved = [x.copy() for x in at]
            moved[i][position] += move
            values.append(f(moved))
        actual[position] = (values[0] - values[1]) / (2 * step)
    return actual


def assert_gradient(function: Function, arrays: Sequence[np.ndarray], tolerance: float = 2e-5) -> None:
    """The gradient of the first result equals central differences by every floating-point input."""
    arrays = [np.array(x) for x in arrays]
    actual = computed(gradient(function), arrays)[len(function.results) :]
    wrt = [i for i, x in enumerate(arrays) if x.dtype == np.float64]
    for i, dx in zip(wrt, actual, strict=True):
        expected = differences(lambda at: float(computed(function, at)[0].sum()), arrays, i)
        assert dx.shape == expected.shape
        np.testing.assert_allclose(
            dx, expected, rtol=tolerance, atol=tolerance * max(1, np.abs(expected).max(initial=0))
        )


def test_every_primitive_has_a_rule_or_says_why_not() -> None:
    assert GRADIENTS.keys() == PRIMITIVES.keys()
    assert all(FLAT.values())


@pytest.mark.parametrize("name", CASES)
def test_a_primitive_equals_central_differences(name: str) -> None:
    function, arrays = CASES[name]
    assert_gradient(function, arrays)


def test_every_differentiable_primitive_is_tried() -> None:
    met = {value.op for function, _ in CASES.values() for value in function.values}
    elsewhere = {"convolve", "reduce_window", "cond", "loop", "call", "get", "host"}
    assert GRADIENTS.keys() - FLAT.keys() - elsewhere <= met


@settings(max_examples=cases(25), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_convolve(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 3))
    space, kernel = rng.integers(3, 7, n).tolist(), rng.integers(1, 4, n).tolist()
    strides, base, dilation = (tuple(rng.integers(1, 3, n).tolist()) for _ in range(3))
    padding = tuple(tuple(pair) for pair in rng.integers(-1, 4, (n, 2)).tolist())
    wide = [(s - 1) * b + sum(p) for s, b, p in zip(space, base, padding, strict=True)]
    if any(w < d * (k - 1) for w, d, k in zip(wide, dilation, kernel, strict=True)):
        return
    x_shape, w_shape = f"2 N 2 {'H W'[: 2 * n - 1]}", f"2 3 2 {' '.join(map(str, kernel))}"
    options = {"strides": strides, "padding": padding, "base_dilation": base, "kernel_dilation": dilation}
    function = traced(lambda x, w: apply("convolve", x, w, **options, dtype=t.DOUBLE), x_shape, w_shape)
    assert_gradient(function, [rng.standard_normal((2, 1, 2, *space)), rng.standard_normal((2, 3, 2, *kernel))])


@settings(max_examples=cases(25), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["add", "max", "min"]))
def test_reduce_window(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    window, strides, dilation = rng.integers(1, 3, (3, 2)).tolist()
    padding = [(1, 1) if size > 1 else (0, 0) for size in window]
    function = traced(
        lambda x: L.reduce_window(kind, x, window, strides=strides, padding=padding, dilation=dilation), "2 N M"
    )
    assert_gradient(function, [rng.standard_normal((2, 5, 6))])


@pytest.mark.parametrize("kind", ["max", "min"])
def test_ties_go_to_the_first(kind: str) -> None:
    """As `argmax` says: of a reduction, a window, a pair, a running maximum, updates."""
    x = np.array([2.0, 2.0, 1.0, 2.0] if kind == "max" else [-2.0, -2.0, 1.0, -2.0])

    def pulled(body: Callable[..., L.Tensor], *arrays: np.ndarray) -> list[list[float]]:
        types = [TensorType(t.dtype_of(a), a.shape) for a in arrays]
        return [dx.tolist() for dx in computed(gradient(trace("f", lambda *v: [body(*v)], types)), list(arrays))[1:]]

    assert pulled(lambda x: apply("reduce", x, kind=kind, axes=(0,)), x) == [[1, 0, 0, 0]]
    windows = {"strides": [1], "padding": [(0, 0)]}
    assert pulled(lambda x: L.reduce_window(kind, x, [2], **windows), x) == [[1, 1, 0, 1]]
    assert pulled(lambda a, b: apply(kind, a, b), x, x) == [[1, 1, 1, 1], [0, 0, 0, 0]]
    assert pulled(lambda x: L.cumulative(kind, x, 0), x) == [[4, 0, 0, 0]]
    at = np.array([[0], [1], [1], [3]])
    updates = np.array([2.0, 3, 3, 1] if kind == "max" else [-2.0, -3, -3, 1])
    assert pulled(lambda x, u, at: L.scatter_nd(x, at, u, kind), x, updates, at) == [[1, 0, 1, 1], [0, 1, 0, 0]]


def test_a_rectifier_has_the_gradient_0_at_0() -> None:
    function = trace("relu", lambda x: [L.maximum(x, 0)], [TensorType(t.DOUBLE, (3,))])
    assert computed(gradient(function), [np.array([-1.0, 0.0, 2.0])])[1].tolist() == [0, 0, 1]


# Through what calls functions.


@pytest.mark.parametrize("axis", [0, 2])
def test_the_gradient_of_a_softmax_reads_its_result_alone(axis: int) -> None:
    def body(x: Tensor, w: Tensor) -> list[Tensor]:
        return [L.reduce_sum(L.softmax(x, axis) * w, [0, 1, 2])]

    types = [TensorType(t.DOUBLE, (2, 3, 4))] * 2
    f = trace("f", body, types)
    derived = gradient(f, [0])
    (shifted,) = (value for value in derived.values if value.op == "exp")
    readers = [value.op for value in derived.values if shifted in value.operands]
    assert sorted(readers) == ["div", "reduce"], "the powers are not needed after the forward pass"
    arrays = [np.random.default_rng(seed).standard_normal((2, 3, 4)) for seed in (0, 1)]
    expected = differences(lambda at: float(computed(f, at)[0]), arrays, 0)
    np.testing.assert_allclose(computed(derived, arrays)[1], expected, atol=1e-8)


def test_cond_takes_the_gradient_of_the_branch_taken() -> None:
    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        z = L.sin(x)
        actual, other = L.cond(
            L.reduce_sum(y) < 0,
            lambda: [L.concat([z * x, L.exp(y)], 0), x],
            lambda: [L.cond(L.reduce_sum(x) < 0, lambda: [z * 2.0], lambda: [y * L.reduce_sum(x)])[0], z],
        )
        return [actual * 3.0, other, z]

    function = traced(body, "N", "M")
    for x, y in ((1, 1), (-1, 1), (1, -1)):
        assert_gradient(function, [np.abs(numbers(3)) * x, np.abs(numbers(2)) * y])


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_loop_with_a_count_that_the_run_tells(trips: int) -> None:
    function = traced(looped, "N", "N N", ":")
    assert_gradient(function, [numbers(3), numbers(3, 3) * 0.5, np.int64(trips)])


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_the_gradient_of_a_loop_with_an_open_count_has_a_gradient(trips: int) -> None:
    """Both functions of the body are saved, in rows whose number the loop itself defines."""

    def looped(x: L.Tensor, count: L.Tensor) -> list[L.Tensor]:
        return list(L.loop(count, None, [x], lambda i, s: (None, [L.sin(L.exp(s * x)) * 0.5], []))[0])

    first = gradient(traced(looped, "N", ":"))
    second = trace("second", lambda *x: [L.reduce_sum(L.sin(inline(first, x)[1]))], [x.type for x in first.inputs])
    assert_gradient(second, [numbers(3) * 0.5, np.int64(trips)])
    at = [numbers(3) * 0.5, np.int64(trips)]
    (along,) = computed(jvp(traced(looped, "N", ":")), [*at, np.ones(3)])
    np.testing.assert_allclose(along, computed(first, at)[1].sum())


def test_the_work_of_a_gradient_is_in_proportion_to_the_depth_of_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    def nest(depth: int, x: L.Tensor, s: L.Tensor) -> L.Tensor:
        if depth == 0:
            return L.sin(L.exp(s * x)) * 0.5
        body = lambda i, r: (None, [L.sin(L.exp(nest(depth - 1, x, r) * r))], [])  # noqa: E731
        return L.loop(L.constant(3, t.INT64), None, [s], body)[0][0]

    calls: list[Function] = []
    monkeypatch.setattr(differentiation, "vjp", lambda f, *rest: calls.append(f) or vjp(f, *rest))
    numbers_of_calls = []
    for depth in (2, 4):
        calls.clear()
        gradient(traced(lambda x, depth=depth: [nest(depth, x, x)], "N"))
        numbers_of_calls.append(len(calls))
    assert numbers_of_calls[1] <= 2 * numbers_of_calls[0]


def test_no_function_is_saved_for_a_state_that_needs_none() -> None:
    """A sum of any function of the arguments reads no earlier sum: memory does not grow with the iterations."""

    def summed(x: L.Tensor, count: L.Tensor) -> list[L.Tensor]:
        return list(L.loop(count, None, [x], lambda i, s: (None, [s + L.sin(L.exp(x * L.cast(i, t.DOUBLE)))], []))[0])

    backward = [value.params["body"] for value in gradient(traced(summed, "N", ":")).values if value.op == "loop"][-1]
    assert "exp" in {value.op for value in backward.values}


def test_loop_that_the_data_end() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        return list(L.loop(None, None, [x], lambda i, s: (L.reduce_sum(s * s) < 50.0, [s * 1.5 + L.sin(x)], []))[0])

    assert_gradient(traced(body, "N"), [numbers(3)])


def test_loop_within_loop_within_branch() -> None:
    def body(x: L.Tensor, n: L.Tensor) -> list[L.Tensor]:
        def outer(i: L.Tensor, s: L.Tensor):
            inner, rows = L.loop(i + 1, None, [s], lambda j, r: (None, [L.sin(r) + x * L.cast(j, t.DOUBLE)], [r * x]))
            return None, [inner[0] * 0.5], [L.reduce_sum(rows[0])]

        return list(L.cond(n < 10, lambda: [y for part in L.loop(n, None, [x], outer) for y in part],
                           lambda: [x, L.reduce_sum(x, keepdims=True)]))  # fmt: skip

    function = traced(body, "N", ":")
    assert_gradient(function, [numbers(2), np.int64(3)])
    assert_gradient(function, [numbers(2), np.int64(12)])


def test_the_forward_loop_is_run_once() -> None:
    """The gradient's loop that saves its states takes the place of the first."""
    actual = gradient(traced(looped, "N", "N N", ":"))
    assert sum(value.op == "loop" for value in actual.values) == 2


def test_a_loop_whose_state_changes_its_sizes_is_refused_when_they_change() -> None:
    function = traced(lambda x, n: list(L.loop(n, None, [x], lambda i, s: (None, [L.concat([L.sin(s), x], 0)], []))[0]),
                      "N", ":")  # fmt: skip
    assert_gradient(function, [numbers(3), np.int64(0)])
    with pytest.raises(SardonyxError, match=r"\[6\] cannot be reshaped to \[3\]"):
        computed(gradient(function), [numbers(3), np.int64(1)])


def test_a_loop_whose_state_keeps_its_sizes_without_a_proof_has_a_gradient() -> None:
    """The state has the sizes of `x`, and after an iteration those that `x` and `y` broadcast to."""
    function = traced(lambda x, y, n: list(L.loop(n, None, [x], lambda i, s: (None, [L.sin(s) * y], [s * s]))[0]),
                      "N", "M", ":")  # fmt: skip
    assert_gradient(function, [numbers(3), numbers(3, seed=1), np.int64(3)])
    assert_gradient(function, [numbers(3), numbers(1), np.int64(3)])


def test_call() -> None:
    square = trace("square", lambda x, y: [x * x * y, L.sin(x)], [TensorType(t.DOUBLE, (N,))] * 2)
    function = traced(lambda x: apply_call(square, [x, L.cos(x)]), "N")
    assert "call" in [value.op for value in function.values]
    assert_gradient(function, [numbers(3)])


def test_host_functions_are_refused_where_a_gradient_would_flow() -> None:
    with pytest.raises(UnsupportedError, match="positives has no gradient"):
        gradient(traced(lambda x: list(host(POSITIVES, x)), "N"))
    function = traced(lambda x: [x * L.reduce_sum(host(POSITIVES, L.stop_gradient(x))[0])], "N")  # type: ignore[arg-type]
    assert computed(gradient(function), [np.array([1.0, -1.0])])[1].shape == (2,)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_extrema_over_open_sizes_are_searched_without_a_copy(kind: str) -> None:
    reduce = L.reduce_max if kind == "max" else L.reduce_min
    derived = gradient(traced(lambda x: reduce(x, [1]), "N M"))
    assert "pad" not in {value.op for value in derived.values}
    x = np.array([[1.0, 3, 3], [np.nan, 1, np.nan]]) * (1 if kind == "max" else -1)
    assert (computed(derived, [x])[1] != 0).tolist() == [[False, True, False], [True, False, False]]


@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
def test_running_totals_of_nothing(kind: str) -> None:
    actual = computed(gradient(traced(lambda x: L.cumulative(kind, x, 0), "N M")), [np.zeros((0, 4))])
    assert actual[1].shape == (0, 4)


def recurrence(width: int) -> Function:
    """The sum of the last state of ``h = sigmoid(h w) v`` in five iterations; the hidden width is an argument."""
    state, w, v = TensorType(t.DOUBLE, (N, 4)), TensorType(t.DOUBLE, (4, width)), TensorType(t.DOUBLE, (width, 4))

    def body(h: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
        def once(_: Tensor, h: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
            return None, [L.matmul(L.sigmoid(L.matmul(h, w)), v)], []

        (last,), _ = L.loop(L.constant(5, t.INT64), None, [h], once)  # type: ignore[arg-type]
        return [L.reduce_sum(L.sin(last))]

    return trace("recurrence", body, [state, w, v])  # type: ignore[arg-type]


@pytest.mark.parametrize(("width", "expected"), [(8, {}), (64, {"contract": 1, "exp": 1})])
def test_loops_save_what_takes_long_to_compute_again(width: int, expected: dict[str, int]) -> None:
    """The second width has more values than the memory that a state permits."""
    derived = gradient(recurrence(width), [1, 2])
    backward = [value.params["body"] for value in derived.values if value.op == "loop"][-1]
    counts = Counter(value.op for value in backward.values)
    assert counts["exp"] == expected.get("exp", 0)
    rng = np.random.default_rng(3)
    arguments = [rng.standard_normal(shape) for shape in ((3, 4), (4, width), (width, 4))]
    actual = computed(derived, arguments)

    def total(at: list[np.ndarray]) -> float:
        h = at[0]
        for _ in range(5):
            h = 1 / (1 + np.exp(-(h @ at[1]))) @ at[2]
        return float(np.sin(h).sum())

    for i in (1, 2):
        np.testing.assert_allclose(actual[i], differences(total, arguments, i), rtol=1e-5, atol=1e-7)


# As a whole.


@settings(max_examples=cases(40), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_programs_equal_central_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jumps = ("floor", "ceil", "round", "sign", "rem", "convert", "bitcast", "host", "random", "bind", "stop_gradient")
    program = random_program(rng, 8, dtype=t.DOUBLE, without=jumps)
    function = _squashed(program)
    arrays = program.arrays[0]
    if sum(x.size for x in arrays) < 80:
        assume(not _jumps(function, [np.array(x) for x in arrays]))
        assert_gradient(function, arrays, 1e-4)


def _jumps(function: Function, arrays: Sequence[np.ndarray]) -> bool:
    """Whether a step passes a jump of the result (a comparison chooses): the quotient grows as the step shrinks."""

    def total(at: list[np.ndarray]) -> float:
        return float(computed(function, at)[0].sum())

    for i, x in enumerate(arrays):
        if x.dtype == np.float64:
            wide, narrow = (np.abs(differences(total, arrays, i, step)) for step in (STEP, STEP / 4))
            if (narrow > 2 * wide + 1).any() or (wide > 2 * narrow + 1).any():
                return True
    return False


def _squashed(program: Program) -> Function:
    """The sum of bounded functions of a program's results."""

    def total(*inputs: L.Tensor) -> list[L.Tensor]:
        actual = L.constant(0.0, t.DOUBLE)
        for y in program(*inputs):
            if y.dtype == t.DOUBLE:  # type: ignore[attr-defined]
                actual = actual + L.reduce_sum(L.tanh(y * 0.3))  # type: ignore[operator]
        return [actual]

    return trace("total", total, program.inputs)


def test_gradients_of_gradients() -> None:
    first = gradient(traced(lambda x, w: L.softmax(L.matmul(x, w)) * L.erf(x), "N 3", "3 3"), [0])
    second = trace("f", lambda *v: [L.reduce_sum(L.sin(apply_call(first, v)[1]))], [v.type for v in first.inputs])  # type: ignore[arg-type]
    assert_gradient(second, [numbers(2, 3), numbers(3, 3)], 1e-4)


def test_vjp_takes_a_cotangent_for_every_result() -> None:
    function = trace(
        "f", lambda x, w: [L.matmul(x, w), L.sin(x)], [TensorType(t.DOUBLE, (N, M)), TensorType(t.DOUBLE, (M, K))]
    )
    x, w, dy, dz = numbers(2, 3), numbers(3, 4), numbers(2, 4), numbers(2, 3, seed=1)
    dx, dw = computed(vjp(function), [x, w, dy, dz])
    np.testing.assert_allclose(dx, dy @ w.T + dz * np.cos(x), rtol=1e-12)
    np.testing.assert_allclose(dw, x.T @ dy, rtol=1e-12)
    (only,) = computed(vjp(function, [1]), [x, w, dy, dz])
    np.testing.assert_array_equal(only, dw)


def test_what_has_no_gradient_is_refused() -> None:
    counts = trace("f", lambda n: [n + 1], [TensorType(t.INT64, ())])
    with pytest.raises(RuleError, match="only floating-point results"):
        gradient(counts)
    with pytest.raises(RuleError, match="input 1"):
        gradient(traced(lambda x, n: x, "N", ":"), [1])


def test_an_input_that_the_result_does_not_depend_on_has_zeros() -> None:
    actual = gradient(traced(lambda x, y: L.sin(x), "N", "M"))
    assert computed(actual, [numbers(3), numbers(2)])[2].tolist() == [0, 0]


def test_16_bit_floats() -> None:
    function = trace("f", lambda x: [L.reduce_sum(x * x)], [TensorType(t.BFLOAT16, (N,))])
    (dx,) = computed(gradient(function), [np.array([1.0, 2.0], t.numpy_dtype(t.BFLOAT16))])[1:]
    assert dx.dtype == t.numpy_dtype(t.BFLOAT16)
    assert dx.astype(float).tolist() == [2, 4]


def test_all_choices_are_of_known_primitives() -> None:
    assert CHOICES.keys() <= PRIMITIVES.keys()
