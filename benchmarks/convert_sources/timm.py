"""Networks of timm: the smallest by name of each family."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_SMALL = ("test", "atto", "femto", "pico", "nano", "tiny", "xxs", "xs", "small", "_s", "mini", "18", "b0", "26", "s")


def _rank(name: str) -> tuple[int, int, str]:
    position = next((i for i, word in enumerate(_SMALL) if word in name), len(_SMALL))
    numbers = [int(number) for number in re.findall(r"\d+", name)]
    return (position, max(numbers, default=0), name)


def cases() -> dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]]:
    """Return networks with example inputs, by name."""
    import timm
    import torch

    def build(name: str) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
        def make() -> tuple[Any, tuple[Any, ...]]:
            torch.manual_seed(0)
            model = timm.create_model(name, pretrained=False).eval()
            size = timm.data.resolve_model_data_config(model)["input_size"]
            return model, (torch.randn(2, *size),)

        return make

    result = {}
    for module in timm.list_modules():
        names = timm.list_models(module=module)
        if names:
            name = min(names, key=_rank)
            result[name] = build(name)
    return result
