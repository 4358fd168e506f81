"""Registration of small programs as cases of a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Case = Callable[[], tuple[nn.Module, tuple[Any, ...]]]


def rand(*shape: int) -> torch.Tensor:
    """Return random numbers of a shape."""
    return torch.randn(*shape)


class Program(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *xs: torch.Tensor) -> Any:
        """Return the function's result."""
        return self.function(*xs)


class Registry:
    """Programs with example inputs, by name."""

    def __init__(self) -> None:
        self.cases: dict[str, Case] = {}

    def case(self, *inputs: Any, name: str = "") -> Callable[[Any], Any]:
        """Register a function, or a class of modules, with a function of its inputs."""

        def register(program: Any) -> Any:
            def build() -> tuple[nn.Module, tuple[Any, ...]]:
                torch.manual_seed(0)
                module = program() if isinstance(program, type) else Program(program)
                return module.eval(), tuple(one() if callable(one) else one for one in inputs)

            self.cases[name or program.__name__.strip("_").lower()] = build
            return program

        return register

    def layer(self, name: str, make: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> None:
        """Register a layer of torch."""

        def build() -> tuple[nn.Module, tuple[Any, ...]]:
            torch.manual_seed(0)
            return make().eval(), tuple(torch.randn(*shape) for shape in shapes)

        self.cases[name] = build
