"""The registry of the networks, and layers that several networks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Network = tuple[nn.Module, tuple[Tensor, ...]]

NETWORKS: dict[str, Callable[[], Network]] = {}


def network(*sizes: tuple[int, ...], **options: Any) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a module class with the sizes of its float inputs."""

    def register(kind: type[nn.Module]) -> type[nn.Module]:
        NETWORKS[kind.__name__] = lambda: (kind(**options), tuple(torch.randn(*size) for size in sizes))
        return kind

    return register


def sequential(name: str, size: tuple[int, ...], layers: Callable[[], list[nn.Module]]) -> None:
    """Register a chain of layers with the size of its input."""
    NETWORKS[name] = lambda: (nn.Sequential(*layers()), (torch.randn(*size),))


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, **options: Any) -> nn.Sequential:
    padding = options.pop("padding", size // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding, bias=False, **options), nn.BatchNorm2d(outputs)
    )


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int = 0, causal: bool = False, rotary: bool = False) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads or heads, width // heads
        self.causal, self.rotary = causal, rotary
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, self.kv_heads * self.size)
        self.v = nn.Linear(width, self.kv_heads * self.size)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q = self.q(x).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        k = self.k(memory).unflatten(-1, (self.kv_heads, self.size)).transpose(1, 2)
        v = self.v(memory).unflatten(-1, (self.kv_heads, self.size)).transpose(1, 2)
        if self.rotary:
            q, k = rotated(q), rotated(k)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(h.transpose(1, 2).flatten(2))


def rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(x.shape[-2])[:, None] * frequencies
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)
