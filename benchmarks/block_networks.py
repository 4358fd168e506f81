"""Small networks of common building blocks, as PyTorch modules with example inputs, for ``blocks.py``.

Each network is one block of a family of architectures, at the sizes of a small model of this family, so that a slow
kernel or a missing fusion is visible beside the peers.
"""

from __future__ import annotations

import math
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


sequential("GroupNormDepthwise", (1, 64, 48, 48), lambda: [
    layer for _ in range(3) for layer in (
        nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 64, 1))
])  # fmt: skip
sequential("Vgg", (1, 3, 64, 64), lambda: [
    nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 16 * 16, 64),
])  # fmt: skip
sequential("Autoencoder3d", (1, 1, 16, 32, 32), lambda: [
    nn.Conv3d(1, 16, 3, 2, 1), nn.BatchNorm3d(16), nn.ReLU(), nn.Conv3d(16, 32, 3, 2, 1), nn.ReLU(),
    nn.ConvTranspose3d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose3d(16, 1, 4, 2, 1),
])  # fmt: skip
sequential("SuperResolution", (1, 3, 48, 48), lambda: [
    nn.Conv2d(3, 48, 3, padding=1), nn.PReLU(48), nn.Conv2d(48, 48, 3, padding=1), nn.PReLU(48),
    nn.Conv2d(48, 12, 3, padding=1), nn.PixelShuffle(2), nn.Upsample(scale_factor=2, mode="bicubic"),
])  # fmt: skip
sequential("StyleTransfer", (1, 3, 64, 64), lambda: [
    nn.ReflectionPad2d(4), nn.Conv2d(3, 24, 9), nn.InstanceNorm2d(24, affine=True), nn.ReLU(), nn.ReflectionPad2d(1),
    nn.Conv2d(24, 48, 3, 2), nn.InstanceNorm2d(48, affine=True), nn.ReLU(), nn.Upsample(scale_factor=2),
    nn.ReflectionPad2d(1), nn.Conv2d(48, 3, 3),
])  # fmt: skip
sequential("Discriminator", (1, 3, 64, 64), lambda: [
    nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.LeakyReLU(0.2),
    nn.Conv2d(64, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.LeakyReLU(0.2), nn.Conv2d(128, 1, 4, 1, 0),
])  # fmt: skip
sequential("Generator", (1, 64, 1, 1), lambda: [
    nn.ConvTranspose2d(64, 128, 4, 1, 0), nn.BatchNorm2d(128), nn.ReLU(), nn.ConvTranspose2d(128, 64, 4, 2, 1),
    nn.BatchNorm2d(64), nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(),
    nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh(),
])  # fmt: skip
sequential("KeywordCnn", (1, 1, 40, 98), lambda: [
    nn.Conv2d(1, 64, (20, 8)), nn.ReLU(), nn.MaxPool2d((1, 3)), nn.Conv2d(64, 64, (10, 4)), nn.ReLU(), nn.Flatten(),
    nn.LazyLinear(32), nn.Linear(32, 12),
])  # fmt: skip
sequential("RawAudio", (1, 1, 16000), lambda: [
    nn.Conv1d(1, 32, 80, 16), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(4), nn.Conv1d(32, 32, 3), nn.BatchNorm1d(32),
    nn.ReLU(), nn.MaxPool1d(4), nn.Conv1d(32, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
    nn.Linear(64, 10),
])  # fmt: skip
sequential("TabularMlp", (1, 64), lambda: [
    layer for _ in range(4) for layer in (nn.LazyLinear(256), nn.BatchNorm1d(256), nn.ELU())
])  # fmt: skip
sequential("TabularBatch", (128, 64), lambda: [
    layer for _ in range(4) for layer in (nn.LazyLinear(256), nn.BatchNorm1d(256), nn.SELU())
])  # fmt: skip


@network((1, 64, 56, 56))
class Bottleneck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle, self.up = conv(64, 32, 1), conv(32, 32), conv(32, 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.up(F.relu(self.middle(F.relu(self.down(x))))))


@network((1, 48, 40, 40))
class InvertedResidual(nn.Module):
    """Squeeze-and-excitation with hard-swish, as in MobileNetV3."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depthwise, self.project = conv(48, 144, 1), conv(144, 144, 5, groups=144), conv(144, 48, 1)
        self.squeeze, self.excite = nn.Conv2d(144, 36, 1), nn.Conv2d(36, 144, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.hardswish(self.depthwise(F.hardswish(self.expand(x))))
        scale = F.hardsigmoid(self.excite(F.relu(self.squeeze(h.mean((2, 3), keepdim=True)))))
        return x + self.project(h * scale)


@network((1, 64, 40, 40))
class ConvNext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(64, 64, 7, padding=3, groups=64), nn.LayerNorm(64)
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)
        self.scale = nn.Parameter(torch.ones(64) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.second(F.gelu(self.first(h))) * self.scale).permute(0, 3, 1, 2)


@network((1, 58, 28, 28))
class ShuffleNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.depthwise, self.second = conv(29, 29, 1), conv(29, 29, groups=29), conv(29, 29, 1)

    def forward(self, x: Tensor) -> Tensor:
        rest, h = x.chunk(2, 1)
        h = torch.cat([rest, F.relu(self.second(self.depthwise(F.relu(self.first(h)))))], 1)
        n, c, height, width = h.shape
        return h.view(n, 2, c // 2, height, width).transpose(1, 2).reshape(n, c, height, width)


@network((1, 32, 28, 28))
class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(32 + 16 * i), nn.ReLU(), nn.Conv2d(32 + 16 * i, 64, 1), nn.BatchNorm2d(64), nn.ReLU(),
                nn.Conv2d(64, 16, 3, padding=1),
            )
            for i in range(4)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


@network((1, 64, 28, 28))
class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.three, self.five = conv(64, 32, 1), conv(64, 48), conv(64, 16, 5)
        self.pooled = conv(64, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.avg_pool2d(x, 3, 1, 1)
        return F.relu(torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(pooled)], 1))


@network((1, 64, 32, 32))
class SpatialPyramid(nn.Module):
    """Dilated convolutions and pooled context, as in DeepLab."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(conv(64, 32, padding=d, dilation=d) for d in (1, 6, 12))
        self.pooled, self.merge = nn.Conv2d(64, 32, 1), conv(128, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        context = F.interpolate(self.pooled(x.mean((2, 3), keepdim=True)), x.shape[2:])
        h = F.relu(self.merge(torch.cat([*(F.relu(part(x)) for part in self.parts), context], 1)))
        return F.interpolate(h, scale_factor=4, mode="bilinear")


@network((1, 3, 64, 64))
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bottom = conv(3, 24), conv(24, 48), conv(48, 96)
        self.up = nn.ConvTranspose2d(96, 48, 2, 2)
        self.merge, self.last = conv(96, 48), conv(72, 24)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.first(x))
        b = F.relu(self.second(F.max_pool2d(a, 2)))
        c = F.relu(self.bottom(F.max_pool2d(b, 2)))
        d = F.relu(self.merge(torch.cat([self.up(c), b], 1)))
        return self.last(torch.cat([F.interpolate(d, scale_factor=2, mode="nearest"), a], 1))


@network((1, 48, 20, 20))
class DetectionHead(nn.Module):
    """Boxes of a grid, decoded, with the scores of the best 100."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.boxes, self.scores = conv(48, 48), nn.Conv2d(48, 4, 1), nn.Conv2d(48, 20, 1)
        y, x = torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij")
        self.register_buffer("grid", torch.stack([x, y]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.silu(self.stem(x))
        offsets, sizes = self.boxes(h).chunk(2, 1)
        centers, extents = (offsets.sigmoid() + self.grid) * 16, sizes.exp() * 16
        boxes = torch.cat([centers - extents / 2, centers + extents / 2], 1).flatten(2).transpose(1, 2)
        best, where = self.scores(h).sigmoid().flatten(2).amax(1).topk(100)
        return boxes.gather(1, where[..., None].expand(-1, -1, 4)), best


@network((1, 64, 128))
class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Conv1d(64, 128, 2, dilation=2**i) for i in range(4))
        self.outs = nn.ModuleList(nn.Conv1d(64, 64, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for i, (gate, out) in enumerate(zip(self.gates, self.outs, strict=True)):
            a, b = gate(F.pad(x, (2**i, 0))).chunk(2, 1)
            h = out(a.tanh() * b.sigmoid())
            x, total = x + h, total + h
        return total


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


@network((1, 64, 128))
class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norms = Attention(128, 4), nn.ModuleList([nn.LayerNorm(128), nn.LayerNorm(128)])
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


@network((1, 64, 128))
class LlamaLayer(nn.Module):
    """RMS normalization, rotary embedding, grouped heads and a gated unit."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(128, 8, kv_heads=2, causal=True, rotary=True)
        self.norms = nn.ModuleList([nn.RMSNorm(128), nn.RMSNorm(128)])
        self.gate, self.up, self.down = nn.Linear(128, 344), nn.Linear(128, 344), nn.Linear(344, 128)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        h = self.norms[1](x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@network((1, 32, 96), (1, 200, 96))
class CrossAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(96, 6), nn.LayerNorm(96)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return x + self.attention(self.norm(x), memory)


@network((1, 56, 56, 48))
class SwinLayer(nn.Module):
    """Attention in shifted windows of 7 x 7 with a bias by relative position."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(48, 144), nn.Linear(48, 48), nn.LayerNorm(48)
        self.bias = nn.Parameter(torch.randn(3, 49, 49) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        n, height, width, c = x.shape
        h = torch.roll(self.norm(x), (-3, -3), (1, 2))
        h = h.view(n, height // 7, 7, width // 7, 7, c).transpose(2, 3).reshape(-1, 49, c)
        q, k, v = self.qkv(h).view(-1, 49, 3, 3, 16).permute(2, 0, 3, 1, 4)
        h = ((q / 4) @ k.transpose(-1, -2) + self.bias).softmax(-1) @ v
        h = self.out(h.transpose(1, 2).reshape(-1, 49, c))
        h = h.view(n, height // 7, width // 7, 7, 7, c).transpose(2, 3).reshape(n, height, width, c)
        return x + torch.roll(h, (3, 3), (1, 2))


@network((1, 3, 64, 64))
class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 96, 8, 8), nn.Parameter(torch.randn(1, 1, 96))
        self.positions = nn.Parameter(torch.randn(1, 65, 96))
        self.attention, self.norm, self.head = Attention(96, 6), nn.LayerNorm(96), nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(h.shape[0], -1, -1), h], 1) + self.positions
        return self.head((h + self.attention(self.norm(h)))[:, 0])


@network((1, 64, 96))
class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(96), nn.LayerNorm(96)])
        self.tokens = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.channels = nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


@network((1, 100, 80))
class Conformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norms = Attention(80, 4), nn.ModuleList(nn.LayerNorm(80) for _ in range(3))
        self.gate, self.depthwise = nn.Linear(80, 160), nn.Conv1d(80, 80, 15, padding=7, groups=80)
        self.batch_norm, self.out = nn.BatchNorm1d(80), nn.Linear(80, 80)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        h = F.glu(self.gate(self.norms[1](x)), -1).transpose(1, 2)
        h = F.silu(self.batch_norm(self.depthwise(h))).transpose(1, 2)
        return self.norms[2](x + self.out(h))


@network((1, 64, 64))
class StateSpace(nn.Module):
    """A gated linear recurrence in closed form, by cumulative sums of logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.decay, self.out = nn.Linear(64, 128), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        log_decay = F.logsigmoid(self.decay(x)).cumsum(1)
        state = log_decay.exp() * (self.inputs(x) * (-log_decay).exp()).cumsum(1)
        return self.out(state)


@network((1, 64, 64))
class Experts(nn.Module):
    """The best two of eight experts, all computed and weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(64, 8)
        self.up, self.down = nn.Parameter(torch.randn(8, 64, 128) / 8), nn.Parameter(torch.randn(8, 128, 64) / 12)

    def forward(self, x: Tensor) -> Tensor:
        best, where = self.router(x).topk(2, -1)
        weights = torch.zeros(*x.shape[:-1], 8).scatter(-1, where, best.softmax(-1))
        h = F.gelu(torch.einsum("btd,edh->beth", x, self.up))
        return torch.einsum("beth,ehd,bte->btd", h, self.down, weights)


@network((1, 50, 40))
class BidirectionalLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(40, 64, batch_first=True, bidirectional=True), nn.Linear(128, 30)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0]).log_softmax(-1)


@network((8, 30, 32))
class GruClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(32, 96, 2, batch_first=True), nn.Linear(96, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(x)[0][:, -1]).softmax(-1)


@network((1, 1, 32, 100))
class TextRecognition(nn.Module):
    """Convolutions to columns and a recurrent layer over them, as in CRNN."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv(1, 32), nn.ReLU(), nn.MaxPool2d(2), conv(32, 64), nn.ReLU(), nn.MaxPool2d(2),
            conv(64, 128), nn.ReLU(), nn.MaxPool2d((2, 1)),
        )  # fmt: skip
        self.lstm, self.out = nn.LSTM(512, 64, bidirectional=True, batch_first=True), nn.Linear(128, 37)

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x).permute(0, 3, 1, 2).flatten(2)
        return self.out(self.lstm(h)[0])


@network((1, 512, 3))
class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(
            nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 128, 1), nn.ReLU()
        )
        self.out = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.points(x.transpose(1, 2)).amax(2))


@network((1, 256, 3))
class EdgeConvolution(nn.Module):
    """Features of the 8 nearest points, as in DGCNN."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x, x).topk(8, largest=False).indices
        neighbours = x[0][nearest[0]][None]
        center = x[:, :, None].expand_as(neighbours)
        return self.layer(torch.cat([center, neighbours - center], -1)).amax(2)


@network((400, 32))
class GraphConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 16)
        self.register_buffer("edges", torch.randint(0, 400, (2, 2000)))

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.edges[0], self.edges[1]
        h = torch.zeros(400, 64).index_add(0, target, self.first(x)[source]).relu()
        return torch.zeros(400, 16).index_add(0, target, self.second(h)[source])


@network((1, 16, 48, 48), (1, 48, 48, 2))
class Warp(nn.Module):
    """A feature map sampled at given positions, as in optical flow."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = conv(16, 16), conv(32, 16)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        h = F.grid_sample(self.before(x), positions.tanh(), align_corners=False)
        return F.relu(self.after(torch.cat([x, h], 1)))


@network((1, 24, 40, 40), (1, 24, 40, 40))
class Correlation(nn.Module):
    """A cost volume over displacements of 3, as in stereo matching."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        padded = F.pad(b, (3, 3, 3, 3))
        costs = [(a * padded[:, :, i : i + 40, j : j + 40]).mean(1) for i in range(7) for j in range(7)]
        return torch.stack(costs, 1)


@network((1, 8000))
class Spectrogram(nn.Module):
    """Log-mel features of a signal by a product with cosines and sines, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        angles = 2 * math.pi * torch.arange(129)[:, None] * torch.arange(256) / 256
        window = torch.hann_window(256)
        self.register_buffer("basis", torch.cat([angles.cos() * window, angles.sin() * window])[:, None])
        self.mel, self.out = nn.Parameter(torch.rand(40, 129)), nn.Linear(40, 8)

    def forward(self, x: Tensor) -> Tensor:
        real, imaginary = F.conv1d(x[:, None], self.basis, stride=128).chunk(2, 1)
        power = real.square() + imaginary.square()
        features = (self.mel @ power + 1e-6).log()
        return self.out(((features - features.mean(2, keepdim=True)) / features.std(2, keepdim=True)).mean(2))


@network((16, 13))
class Recommender(nn.Module):
    """Embeddings, pairwise products and a network, as in DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 16))
        self.tables = nn.ModuleList(nn.Embedding(1000, 16) for _ in range(8))
        self.top = nn.Sequential(nn.Linear(16 + 36, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("lower", torch.tril_indices(9, 9, -1))

    def forward(self, x: Tensor) -> Tensor:
        dense = self.bottom(x)
        codes = (x[:, :8].abs() * 100).long() % 1000
        vectors = torch.stack([dense, *(table(codes[:, i]) for i, table in enumerate(self.tables))], 1)
        products = (vectors @ vectors.transpose(1, 2))[:, self.lower[0], self.lower[1]]
        return self.top(torch.cat([dense, products], 1)).sigmoid()


@network((1, 6, 48, 48))
class Polynomial(nn.Module):
    """Elementwise image arithmetic: normalization, color conversion, gamma, blending."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = x[:, :3], x[:, 3:]
        matrix = torch.tensor([[0.299, 0.587, 0.114], [-0.169, -0.331, 0.5], [0.5, -0.419, -0.081]])
        color = torch.einsum("nchw,dc->ndhw", first, matrix)
        curved = color.clamp(1e-3, 1) ** 2.2
        weight = (second.mean(1, keepdim=True) > 0).float()
        return weight * curved + (1 - weight) * second.tanh()


@network((1, 32, 32, 32))
class ChannelAttention(nn.Module):
    """Attention over channels (transposed), as in Restormer, behind a gated depthwise network."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.depthwise, self.out = (
            nn.Conv2d(32, 96, 1),
            nn.Conv2d(96, 96, 3, 1, 1, groups=96),
            nn.Conv2d(32, 32, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.depthwise(self.qkv(x)).flatten(2).chunk(3, 1)
        weights = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(1, 2)).softmax(-1)
        return x + self.out((weights @ v).view_as(x))
