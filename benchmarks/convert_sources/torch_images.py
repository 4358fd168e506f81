"""Layers and algorithms of images: diffusion, segmentation, detection, rendering, tracking."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from convert_sources.small_programs import Registry, rand

registry = Registry()
case = registry.case


@case(lambda: rand(2, 16, 8), lambda: torch.tensor([3, 700]))
class AdaptiveTransformer(nn.Module):
    """A block of a diffusion transformer: shifts, scales and gates from the time."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 8), nn.SiLU(), nn.Linear(8, 48))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.net, self.norm = (
            nn.Sequential(nn.Linear(8, 16), nn.GELU(approximate="tanh"), nn.Linear(16, 8)),
            nn.LayerNorm(8, elementwise_affine=False),
        )

    def forward(self, x, t):  # type: ignore[no-untyped-def]
        frequency = torch.exp(-math.log(10000) * torch.arange(8) / 8)
        phase = t[:, None].float() * frequency
        parts = self.time(torch.cat([phase.cos(), phase.sin()], -1))[:, None].chunk(6, -1)
        h = self.norm(x) * (1 + parts[1]) + parts[0]
        x = x + parts[2] * self.attention(h, h, h, need_weights=False)[0]
        return x + parts[5] * self.net(self.norm(x) * (1 + parts[4]) + parts[3])


@case(lambda: rand(2, 3, 8, 8))
class ImplicitSampler(nn.Module):
    """Five steps of a deterministic sampler around a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 3, 3, padding=1))
        self.register_buffer("alphas", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0))

    def forward(self, x):  # type: ignore[no-untyped-def]
        for t in range(49, 0, -12):
            now, then = self.alphas[t], self.alphas[max(t - 12, 0)]
            noise = self.net(torch.cat([x, (t / 50 * torch.ones_like(x[:, :1]))], 1))
            clean = ((x - (1 - now).sqrt() * noise) / now.sqrt()).clamp(-1, 1)
            x = then.sqrt() * clean + (1 - then).sqrt() * noise
        return x


@case(lambda: rand(1, 3, 20, 28))
class PyramidPooling(nn.Module):
    """Averages over grids of several sizes, resized to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 2, 1) for _ in range(3))

    def forward(self, x):  # type: ignore[no-untyped-def]
        parts = [
            F.interpolate(conv(F.adaptive_avg_pool2d(x, n)), x.shape[2:], mode="bilinear", align_corners=True)
            for n, conv in zip((1, 2, 4), self.convs, strict=True)
        ]
        return torch.cat([x, *parts], 1)


@case(lambda: rand(1, 4, 16, 16), lambda: rand(1, 4, 32, 32))
class RefinedPoints(nn.Module):
    """The most uncertain points of a mask, predicted anew from finer features."""

    def __init__(self) -> None:
        super().__init__()
        self.coarse, self.net = nn.Conv2d(4, 2, 1), nn.Conv1d(6, 2, 1)

    def forward(self, x, fine):  # type: ignore[no-untyped-def]
        mask = F.interpolate(self.coarse(x), scale_factor=2, mode="bilinear", align_corners=False)
        b, c, h, w = mask.shape
        index = (mask[:, 0] - mask[:, 1]).abs().flatten(1).topk(12, largest=False).indices
        points = torch.stack([(index % w + 0.5) / w, (index // w + 0.5) / h], -1)
        sampled = F.grid_sample(torch.cat([fine, mask], 1), 2 * points[:, :, None] - 1, align_corners=False).squeeze(-1)
        refined = self.net(sampled)
        return mask.flatten(2).scatter(2, index[:, None].expand(-1, c, -1), refined).view(b, c, h, w)


@case(lambda: rand(1, 3, 16, 24))
class ShiftedWindows(nn.Module):
    """Windows of a rolled image with a mask that is computed from the sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Conv2d(3, 8, 2, 2), nn.Linear(8, 24)

    def windows(self, x):  # type: ignore[no-untyped-def]
        b, h, w, c = x.shape
        return x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)

    def forward(self, x):  # type: ignore[no-untyped-def]
        x = self.embed(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        regions = torch.zeros(1, h, w, 1)
        for number, rows in enumerate((slice(0, -4), slice(-4, -2), slice(-2, None))):
            regions[:, rows] += number
        mask = self.windows(regions).squeeze(-1)
        mask = (mask[:, None] != mask[:, :, None]).float() * -100
        q, k, v = self.qkv(self.windows(torch.roll(x, (-2, -2), (1, 2)))).chunk(3, -1)
        scores = q @ k.mT / 8**0.5
        scores = scores.view(b, -1, 16, 16) + mask
        y = (scores.softmax(-1).view(-1, 16, 16) @ v).view(b, h // 4, w // 4, 4, 4, c)
        return torch.roll(y.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c), (2, 2), (1, 2))


@case(lambda: torch.rand(20, 4) * 50, lambda: torch.rand(20, 3))
def suppressed_by_class(boxes, scores):  # type: ignore[no-untyped-def]
    boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:].clamp(min=1)], 1)
    best, label = scores.max(1)
    likely = best > 0.4
    boxes, best, label = boxes[likely], best[likely], label[likely]
    order = best.argsort(descending=True)
    shifted = (boxes + label[:, None] * 200)[order]
    low, high = (
        torch.maximum(shifted[:, None, :2], shifted[None, :, :2]),
        torch.minimum(shifted[:, None, 2:], shifted[None, :, 2:]),
    )
    inner = (high - low).clamp(min=0).prod(-1)
    area = (shifted[:, 2:] - shifted[:, :2]).prod(-1)
    overlap = (inner / (area[:, None] + area - inner)).triu(1)
    alone = overlap.amax(0) < 0.5
    return boxes[order][alone], best[order][alone], label[order][alone]


@case(lambda: rand(2, 8, 4))
class RoutedCapsules(nn.Module):
    """Capsules that agree by routing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8, 5, 4) * 0.3)

    def forward(self, x):  # type: ignore[no-untyped-def]
        votes = torch.einsum("cnoi,bni->bcno", self.weight, x)
        logits = torch.zeros(*votes.shape[:3])
        for i in range(3):
            s = (logits.softmax(1)[..., None] * votes).sum(2)
            size = s.square().sum(-1, keepdim=True)
            v = size / (1 + size) * s / (size + 1e-8).sqrt()
            if i < 2:
                logits = logits + (votes * v[:, :, None]).sum(-1)
        return v, v.norm(dim=-1)


@case(lambda: rand(5, 3), lambda: F.normalize(rand(5, 3), dim=-1))
class RenderedRays(nn.Module):
    """Samples on rays, positional encodings, and colours that are blended along a ray."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(27, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, origin, direction):  # type: ignore[no-untyped-def]
        depth = torch.linspace(0.5, 4, 8)
        points = origin[:, None] + direction[:, None] * depth[:, None]
        waves = points[..., None] * 2.0 ** torch.arange(4)
        encoded = torch.cat([points, waves.sin().flatten(-2), waves.cos().flatten(-2)], -1)
        rgb, density = self.net(encoded).split([3, 1], -1)
        gaps = F.pad(depth.diff(), (0, 1), value=1e10)
        alpha = 1 - torch.exp(-F.relu(density.squeeze(-1)) * gaps)
        through = torch.cumprod(F.pad(1 - alpha + 1e-10, (1, 0), value=1.0), -1)[:, :-1]
        weights = alpha * through
        return (weights[..., None] * rgb.sigmoid()).sum(1), (weights * depth).sum(1)


@case(lambda: rand(2, 3, 16, 20))
class StyledConvolution(nn.Module):
    """A modulated and demodulated convolution with a group for each sample, and a fixed blur."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.style = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Linear(3, 3)
        self.register_buffer("blur", torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]) / 16)

    def forward(self, x):  # type: ignore[no-untyped-def]
        b, _, h, w = x.shape
        weight = self.weight[None] * self.style(x.mean((2, 3)))[:, None, :, None, None]
        weight = weight * weight.square().sum((2, 3, 4), keepdim=True).add(1e-8).rsqrt()
        y = F.conv2d(x.reshape(1, -1, h, w), weight.flatten(0, 1), padding=1, groups=b).view(b, 4, h, w)
        return F.conv2d(y, self.blur.expand(4, 1, 3, 3), padding=1, groups=4)


@case(lambda: rand(2, 4, 5, 6), lambda: rand(2, 4, 13, 14))
def tracked_by_correlation(template, image):  # type: ignore[no-untyped-def]
    b, c = image.shape[:2]
    y = F.conv2d(
        image.reshape(1, b * c, *image.shape[2:]), template.reshape(b * c, 1, *template.shape[2:]), groups=b * c
    )
    y = y.view(b, c, *y.shape[2:]).sum(1)
    peak = y.flatten(1).argmax(1)
    return y, torch.stack([peak // y.shape[2], peak % y.shape[2]], 1)


@case(lambda: rand(2, 1, 20, 24))
class TransformedImage(nn.Module):
    """A spatial transformer with a grid of the image's size."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 6)
        with torch.no_grad():
            self.net.bias.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))

    def forward(self, x):  # type: ignore[no-untyped-def]
        theta = self.net(x.mean((2, 3)) * 0.1).view(-1, 2, 3)
        return F.grid_sample(x, F.affine_grid(theta, list(x.size()), align_corners=False), align_corners=False)


@case(lambda: rand(2, 3, 10, 12))
class CoordinateChannels(nn.Module):
    """Positions of pixels as further channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x):  # type: ignore[no-untyped-def]
        b, _, h, w = x.shape
        rows = torch.linspace(-1, 1, h)[:, None].expand(b, 1, h, w)
        columns = torch.linspace(-1, 1, w)[None].expand(b, 1, h, w)
        return self.conv(torch.cat([x, rows, columns, (rows**2 + columns**2).sqrt()], 1))
