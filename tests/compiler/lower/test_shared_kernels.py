"""Groups of one canonical form are emitted once, and nothing but the emission changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.compiler.program_checks import check
from tests.core.programs import random_program
from tests.random_cases import cases

from sardonyx.compiler import pipeline
from sardonyx.compiler.lower import shared_kernels
from sardonyx.compiler.lower.groups import Lowering
from sardonyx.compiler.lower.launch import Launch, all_launches
from sardonyx.compiler.target.description import host
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.simplify import simplify


def _layers(count: int, features: int = 48, scales: tuple[float, ...] = ()) -> Function:
    """Return products with an epilogue, and a normalization of rows after each."""
    random = np.random.default_rng(0)

    def network(x: Tensor) -> list[Tensor]:
        for layer in range(count):
            weight = constant(random.standard_normal((features, features)).astype(np.float32))
            bias = constant(random.standard_normal(features).astype(np.float32))
            x = L.maximum(L.matmul(x, weight) * (scales[layer] if scales else 0.5) + bias, 0)
            x = x / (L.reduce_sum(x, (1,), keepdims=True) + 1)
        return [x]

    return simplify(trace("layers", network, [TensorType(t.FLOAT, (7, features))]))


def _core(function: Function) -> Function:
    """Return the function as the compiler rewrites it; rewriting numbers new sizes, so two lowerings share one."""
    return pipeline.rewrite_core(function, host())


def _emitted(function: Function, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[Launch]]:
    """Return the number of lowered groups, and the launches."""
    count = 0
    lower = Lowering.lower

    def counted(self: Lowering, group: Any) -> list[Launch]:
        nonlocal count
        count += 1
        return lower(self, group)

    with monkeypatch.context() as patch:
        patch.setattr(Lowering, "lower", counted)
        launches = list(all_launches(pipeline.lower_function(function, host(), 2).launches))
    return count, launches


def _described(launches: list[Launch]) -> list[tuple[Any, ...]]:
    return [
        (x.text, x.declarations, x.buffers, x.sizes, x.items, x.writes, x.other_writes, x.work, x.group.root)
        for x in launches
    ]


def test_equal_layers_are_emitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = _emitted(_core(_layers(2)), monkeypatch)
    many, launches = _emitted(_core(_layers(6)), monkeypatch)
    assert many == one
    assert len({launch.text for launch in launches}) < len(launches)


@pytest.mark.parametrize("function", [_layers(4), _layers(4, scales=(0.5, 2.0, -0.0, 0.0))], ids=["equal", "scaled"])
def test_shared_launches_are_those_of_separate_emission(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    core = _core(function)
    _, launches = _emitted(core, monkeypatch)
    monkeypatch.setattr(shared_kernels, "canonical_form", lambda context, group: None)
    _, separate = _emitted(core, monkeypatch)
    assert _described(launches) == _described(separate)


@settings(
    max_examples=cases(10),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@example(seed=1)
@given(seed=st.integers(0, 2**32 - 1))
def test_sharing_changes_nothing_in_random_programs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    function = simplify(random_program(np.random.default_rng(seed), 20, without=("random",)).traced())
    core = _core(function)
    _, launches = _emitted(core, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(shared_kernels, "canonical_form", lambda context, group: None)
        _, separate = _emitted(core, monkeypatch)
    assert _described(launches) == _described(separate)


def test_shared_kernels_read_their_own_weights() -> None:
    function = _layers(4, scales=(0.5, 2.0, 0.5, 2.0))
    x = np.random.default_rng(1).standard_normal((7, 48)).astype(np.float32)
    check(function, [x])


def test_small_constants_belong_to_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    equal, _ = _emitted(_core(_layers(4, scales=(0.5, 0.5, 0.5, 0.5))), monkeypatch)
    different, _ = _emitted(_core(_layers(4, scales=(0.5, 0.25, 0.125, 2.0))), monkeypatch)
    assert different > equal


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_equal_parts_of_a_concatenation_share_a_kernel(axis: int) -> None:
    """The start of a part is an argument."""
    function = trace("parts", lambda *parts: [L.concat(parts, axis)], [TensorType(t.FLOAT, (2, 3, 5))] * 4)
    arrays = [np.full((2, 3, 5), number, np.float32) for number in range(4)]
    launches = [*all_launches(pipeline.lower_function(_core(function), host(), 2).launches)]
    assert len(launches) == 4
    assert len({launch.text for launch in launches}) == 1
    check(function, arrays)
