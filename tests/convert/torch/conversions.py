"""Functions and drawn inputs as sources of conversions."""

from __future__ import annotations

from typing import Any


def converted(function: Any, *inputs: Any, **options: Any) -> Any:
    """Return the conversion of a module or a function, by our own translation."""
    import torch

    import sardonyx

    module = function
    if not isinstance(function, torch.nn.Module):
        module = torch.nn.Module()
        module.forward = function
    return sardonyx.convert(module.eval(), inputs, exporter="sardonyx", **options)


def drawn(*shape: int, seed: int = 0) -> Any:
    """Return random numbers of a shape."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
