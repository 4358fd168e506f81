"""Table of generators: from an operator's name to a function that draws a case."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.ops.generators.draw import Case, Draw

Generator = Callable[[Draw, str], Case]
G = TypeVar("G", bound=Generator)

GENERATORS: dict[str, Generator] = {}


def draws(*names: str) -> Callable[[G], G]:
    """Register the generator of these operators; the generator receives the name of the operator to draw."""

    def register(generator: G) -> G:
        for name in names:
            assert name not in GENERATORS, name
            GENERATORS[name] = generator
        return generator

    return register
