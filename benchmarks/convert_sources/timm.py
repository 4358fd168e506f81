"""Networks of timm: the smallest by name of each family, on small images."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from convert_sources.transformers import without_ties

_SMALL = ("test", "atto", "femto", "pico", "nano", "tiny", "xxs", "xs", "small", "_s", "mini", "18", "b0", "26", "s")
SIZES = (64, 96, 128)
"""Sizes of images, in order: the first on which the network runs; the network's own size otherwise."""


def _rank(name: str) -> tuple[int, int, str]:
    position = next((i for i, word in enumerate(_SMALL) if word in name), len(_SMALL))
    numbers = [int(number) for number in re.findall(r"\d+", name)]
    return (position, max(numbers, default=0), name)


def _built(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a network with a batch of two images."""
    import timm
    import torch

    for size in SIZES:
        for options in ({"img_size": size}, {}):
            torch.manual_seed(0)
            try:
                model = without_ties(timm.create_model(name, pretrained=False, **options).eval())
                images = torch.randn(2, 3, size, size)
                with torch.no_grad():
                    model(images)
            except Exception:  # timm's families refuse sizes with many classes of errors
                continue
            return model, (images,)
    torch.manual_seed(0)
    model = without_ties(timm.create_model(name, pretrained=False).eval())
    return model, (torch.randn(2, *timm.data.resolve_model_data_config(model)["input_size"]),)


def cases() -> dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]]:
    """Return networks with example inputs, by name."""
    import timm

    def build(name: str) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
        return lambda: _built(name)

    modules = [timm.list_models(module=module) for module in timm.list_modules()]
    names = [min(names, key=_rank) for names in modules if names]
    return {name: build(name) for name in names}
