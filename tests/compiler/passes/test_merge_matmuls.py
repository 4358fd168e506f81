"""Products that share an operand are merged if they are in memory anyway, with the results of the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.program_checks import assert_close
from tests.core.programs import computed
from tests.random_cases import cases

from sardonyx.compiler.passes.merge_matmuls import merge_matmuls
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import Tensor, apply, constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.simplify import simplify

N = Dim.symbol("N")
DEPTH = 24
Body = Callable[[Tensor], Sequence[Tensor]]


def constants(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def product(x: Tensor, columns: int, *, right: int = 0, seed: int = 0) -> Tensor:
    shape = (DEPTH, columns) if right == 0 else (columns, DEPTH)
    last = len(x.shape) - 1
    return apply(
        "contract", x, constant(constants(*shape, seed=seed)), batch=(), left=(last,), right=(right,), dtype=t.FLOAT
    )


def swapped(x: Tensor) -> Tensor:
    return apply("permute", x, axes=(*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2))


def traced(body: Body, *sizes: int | Dim) -> Function:
    types = [TensorType(t.FLOAT, (*sizes, DEPTH))]
    return trace("f", lambda x: list(body(x)), types)  # type: ignore[arg-type]


def products(function: Function) -> int:
    return sum(value.op == "contract" for value in merge_matmuls(function).values)


def assert_same(function: Function, *sizes: int) -> None:
    x = constants(*sizes, DEPTH, seed=9)
    assert_close(Program.compile(function).run([x]), computed(function, [x]))


def heads(x: Tensor, number: int) -> Tensor:
    """[B, S, H * D] as [B, H, S, D]."""
    batch, length, width = x.shape
    return apply("permute", apply("reshape", x, shape=(batch, length, number, width // number)), axes=(0, 2, 1, 3))


def attention(x: Tensor) -> list[Tensor]:
    q = (product(x, 32, seed=1) + constant(constants(32, seed=1))) * 0.25
    k = product(x, 32, seed=2)
    v = product(x, 64, seed=3) + constant(constants(1, 1, 64, seed=3))
    q, k, v = (heads(item, 4) for item in (q, k, v))
    paired = ((0, 0), (1, 1))
    scores = apply("contract", q, k, batch=paired, left=(3,), right=(3,), dtype=t.FLOAT)
    e = L.exp(scores - L.reduce_max(scores, [-1], keepdims=True))
    weights = e / L.reduce_sum(e, [-1], keepdims=True)
    return [apply("contract", weights, v, batch=paired, left=(3,), right=(2,), dtype=t.FLOAT)]


@pytest.mark.parametrize("length", [2, 5, 17, N], ids=str)
def test_queries_keys_and_values_are_one_product(length: int | Dim) -> None:
    function = traced(attention, 2, length)
    assert products(function) == 3, "one of constants, and the two of the attention"
    program = Program.compile(simplify(function))
    assert [launch.title for launch in program.launches] == ["contract", "attention"]
    for size in (1, 5, 17) if isinstance(length, Dim) else (length,):
        assert_same(function, 2, size)


STEPS = st.sampled_from([(), ("add",), ("mul",), ("add", "mul"), ("mul", "add"), ("add", "mul", "add")])


@settings(max_examples=cases(25), deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(1, 40), STEPS), min_size=2, max_size=4),
    st.sampled_from([(), (3,), (2, 3)]),
    st.sampled_from([0, 1]),
)
def test_any_steps_behind_them(parts: list[tuple[int, tuple[str, ...]]], sizes: tuple[int, ...], right: int) -> None:
    def body(x: Tensor) -> list[Tensor]:
        actual = []
        for seed, (columns, steps) in enumerate(parts):
            y = product(x, columns, right=right, seed=seed)
            for number, op in enumerate(steps):
                item = constant(constants(columns, seed=100 * seed + number))
                y = y + item if op == "add" else y * item
            actual.append(L.reduce_sum(L.exp(y), [-1], keepdims=True) if not sizes else swapped(L.exp(swapped(y))))
        return actual

    function = traced(body, 4, *sizes)
    assert_same(function, 4, *sizes)


def test_zeros_keep_their_sign() -> None:
    def body(x: Tensor) -> list[Tensor]:
        one = product(x, 8, seed=1) + constant(np.ones(8, np.float32))
        other = product(x, 8, seed=2)
        return [1.0 / swapped(one), 1.0 / swapped(other)]

    function = traced(body, 3)
    assert products(function) == 1
    negative = np.full((3, DEPTH), -0.0, np.float32)
    actual = Program.compile(function).run([negative])
    expected = computed(function, [negative])
    np.testing.assert_array_equal(actual[1], expected[1])


def test_what_follows_in_the_products_kernel_stays_there() -> None:
    """A gate and what it lets through: the second product's kernel multiplies by the first's results."""
    gated = traced(lambda x: [L.tanh(product(x, 8, seed=1)) * product(x, 8, seed=2)], 3)
    assert products(gated) == 2
    assert_same(gated, 3)


def test_results_are_written_where_they_are_asked_for() -> None:
    assert products(traced(lambda x: [product(x, 8, seed=1), product(x, 8, seed=2)], 3)) == 2


def test_other_operands_and_other_axes_stay_apart() -> None:
    def body(x: Tensor) -> list[Tensor]:
        return [swapped(product(x, 8, seed=1)), swapped(product(L.exp(x), 8, seed=2)), swapped(product(x, 8, right=1))]

    assert products(traced(body, 3)) == 3


def test_steps_in_another_order_stay_apart() -> None:
    def body(x: Tensor) -> list[Tensor]:
        item = constant(constants(8, seed=5))
        one, other = product(x, 8, seed=1), product(x, 8, seed=2)
        return [swapped(L.exp(swapped(one * item + item))), swapped(L.exp(swapped((other + item) * item)))]

    function = traced(body, 3)
    assert products(function) == 2
    assert_same(function, 3)
