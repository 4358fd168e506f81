"""Primitives on sizes: what they give is what the primitives give on the numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.core.programs import eagerly
from tests.random_cases import cases

from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size, evaluate
from sardonyx.core.eval.tensor import apply, size_tensor, sizes_of
from sardonyx.core.ir import types as t
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.rules.size_rules import SIZE_RULES
from sardonyx.errors import SardonyxError

pytestmark = pytest.mark.sampled

NAMES = ("N", "M")
N, M = map(Dim.symbol, NAMES)

leaf = st.sampled_from([N, M, 0, 1, 2, 3, -1, 5])
sizes = st.recursive(
    leaf, lambda inner: st.builds(lambda a, b, k: (a + b, a - b, a * b)[k], inner, inner, st.integers(0, 2))
)
values = st.fixed_dictionaries({name: st.integers(0, 6) for name in NAMES})

_BINARY = ("add", "sub", "mul", "div", "rem", "max", "min", "equal", "less")


def _reduced(a: L.Tensor, b: L.Tensor) -> L.Tensor:
    """All reductions of two rows of three, end to end."""
    rows = L.reshape(a, (2, 3))
    reduced = [
        apply("reduce", rows, kind=kind, axes=axes)
        for kind in ("add", "mul", "max", "min")
        for axes in ((0,), (1,), (0, 1))
    ]
    return L.concat([L.reshape(x, (L.product(x.shape),)) for x in reduced], 0)


COMPUTE: dict[str, Callable[..., L.Tensor]] = {
    **{name: (lambda a, b, name=name: apply(name, a, b)) for name in _BINARY},
    **{name: (lambda a, b, name=name: apply(name, a)) for name in ("neg", "abs", "sign")},
    "select": lambda a, b: L.where(L.constant([True, False, True, False, True, False]), a, b),
    "convert": lambda a, b: L.cast(L.cast(a, t.INT32), t.INT64),
    "reduce": _reduced,
    "reshape": lambda a, b: L.reshape(a, (3, 2)),
    "permute": lambda a, b: L.permute(L.reshape(a, (3, 2)), [1, 0]),
    "broadcast": lambda a, b: L.broadcast_to(L.reshape(a, (6, 1)), (6, 2)),
    "slice": lambda a, b: L.slice_(a, 0, 1, 5, 2),
    "concat": lambda a, b: L.concat([a, b], 0),
    "reverse": lambda a, b: L.reverse(a, [0]),
    "gather": lambda a, b: L.take(L.reshape(a, (2, 3)), L.constant([[2, 0], [-1, 1]], t.INT64), 1),
    "scatter": lambda a, b: L.scatter_nd(a, L.constant([[1], [1], [4]], t.INT64), L.slice_(b, 0, 0, 3)),
    "scan": lambda a, b: L.concat([L.cumulative("add", a, 0), L.cumulative("mul", a, 0)], 0),
}  # fmt: skip


def test_every_rule_is_tried() -> None:
    assert COMPUTE.keys() == SIZE_RULES.keys()
    assert SIZE_RULES.keys() <= PRIMITIVES.keys()


@pytest.mark.parametrize("name", COMPUTE)
@settings(max_examples=cases(40), deadline=None)
@given(a=st.lists(sizes, min_size=6, max_size=6), b=st.lists(sizes, min_size=6, max_size=6), at=values)
def test_a_rule_equals_the_primitive_on_the_numbers(
    name: str, a: list[Size], b: list[Size], at: dict[str, int]
) -> None:
    numbers = [np.array([evaluate(size, at) for size in item], np.int64) for item in (a, b)]
    assume(name not in ("div", "rem") or numbers[1].all())
    try:
        symbolic = COMPUTE[name](size_tensor(a), size_tensor(b))
    except SardonyxError:
        assume(False)
    actual = symbolic.known.ravel().tolist() if symbolic.is_constant else sizes_of(symbolic)
    if actual is None:
        return
    (expected,) = eagerly(lambda x, y: [COMPUTE[name](x, y)], numbers)
    assert symbolic.shape == expected.shape
    assert [evaluate(size, at) for size in actual] == expected.ravel().tolist()


@pytest.mark.parametrize("name", sorted(set(COMPUTE) - {"equal", "less", "div", "rem", "abs", "sign"}))
def test_rules_keep_expressions(name: str) -> None:
    actual = COMPUTE[name](size_tensor([N, M, 1, N + M, 2, 3 * N]), size_tensor([2, 3, 4, M, N, 1]))
    assert sizes_of(actual) is not None


def test_comparisons_that_bounds_decide_are_known() -> None:
    one = size_tensor([N + 1])
    assert L.equal(one, 0).known.tolist() == [False]
    assert (size_tensor([N]) < 0).known.tolist() == [False]
    assert not (size_tensor([N]) < 3).is_constant
