"""Parameters of functions, as ``inspect`` tells them."""

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
    """Its parameters are those of what it wraps."""


class Callables:
    """What may be called beside functions."""

    def method(self, x: int, *, y: int = 2) -> None:
        """Without ``self`` where it is bound."""

    def __call__(self, x: int) -> None:
        """As a function."""


def told(function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default, each.annotation) for each in found]


@pytest.mark.parametrize(
    "function",
    [
        all_kinds, wrapping, lambda: None, lambda x, *y, z=1: None, lambda **k: None, Callables.method,
        Callables().method, Callables(), functools.partial(all_kinds, 1), len,
    ],
)  # fmt: skip
def test_every_kind_of_function(function: Callable[..., Any]) -> None:
    assert parameters(function) == told(function)


def test_every_definition() -> None:
    definitions = [each.definition for each in registry.all_operators()]
    assert len(definitions) > 300
    for each in definitions:
        assert parameters(each) == told(each)
