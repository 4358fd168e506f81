"""Parameters of functions equal those of ``inspect``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from sardonyx.ops import registry
from sardonyx.ops.parameters import parameters


def all_kinds(a: int, /, b: str, c: float = 1.0, *d: int, e: str, f: bool = True, **g: int) -> None:
    """One of each."""
    local = a
    del local


@functools.wraps(all_kinds)
def wrapping(*arguments: Any, **keywords: Any) -> None:
    """Has the parameters of the wrapped function."""


class Callables:
    """Callables other than functions."""

    def method(self, x: int, *, y: int = 2) -> None:
        """Has no ``self`` when bound."""

    def __call__(self, x: int) -> None:
        """As a function."""


def inspected(function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    actual = inspect.signature(function).parameters.values()
    return [(item.name, item.kind, item.default, item.annotation) for item in actual]


@pytest.mark.parametrize(
    "function",
    [
        all_kinds, wrapping, lambda: None, lambda x, *y, z=1: None, lambda **k: None, Callables.method,
        Callables().method, Callables(), functools.partial(all_kinds, 1), len,
    ],
)  # fmt: skip
def test_every_kind_of_function(function: Callable[..., Any]) -> None:
    assert parameters(function) == inspected(function)


def test_every_definition() -> None:
    definitions = [definition.definition for definition in registry.all_operators()]
    assert len(definitions) > 300
    for definition in definitions:
        assert parameters(definition) == inspected(definition)
