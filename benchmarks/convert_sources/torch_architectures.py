"""Architectures as papers and repositories write them: vision here, others in files beside."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from convert_sources import torch_sequences, torch_structures
from convert_sources.small_programs import Case, Registry, rand

_registry = Registry()
case = _registry.case


def cases() -> dict[str, Case]:
    """Return networks with example inputs, by name."""
    return {**_registry.cases, **torch_sequences.registry.cases, **torch_structures.registry.cases}


class _TimedBlock(nn.Module):
    """A residual block of a diffusion network, shifted by an embedding of the time."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(2, inner), nn.GroupNorm(2, outer)])
        self.time = nn.Linear(16, 2 * outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x, t):  # type: ignore[no-untyped-def]
        h = self.first(F.silu(self.norms[0](x)))
        scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, 1)
        return self.skip(x) + self.second(F.silu(self.norms[1](h) * (1 + scale) + shift))


@case(lambda: rand(2, 4, 16, 16), lambda: torch.tensor([3, 700]))
class TimedUNet(nn.Module):
    """A small UNet of a diffusion model with attention at its lowest level."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_TimedBlock(4, 8), _TimedBlock(8, 16)])
        self.middle, self.attention = _TimedBlock(16, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.up = nn.ModuleList([_TimedBlock(32, 8), _TimedBlock(16, 4)])

    def forward(self, x, t):  # type: ignore[no-untyped-def]
        rates = torch.exp(-math.log(10000) * torch.arange(8) / 8)
        angles = t[:, None].float() * rates
        embedding = torch.cat([angles.cos(), angles.sin()], -1)
        skips = []
        for block in self.down:
            x = block(x, embedding)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, embedding)
        b, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        x = x + self.attention(tokens, tokens, tokens, need_weights=False)[0].transpose(1, 2).reshape(b, c, h, w)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, skips.pop()], 1), embedding)
        return x


@case(lambda: rand(2, 3, 16, 16), lambda: rand(2, 4, 4, 4))
class VariationalAutoencoder(nn.Module):
    """Encoder and decoder; the noise is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.SiLU(), nn.Conv2d(8, 8, 4, 2, 1))
        self.decoder = nn.Sequential(nn.ConvTranspose2d(4, 8, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1))

    def forward(self, x, noise):  # type: ignore[no-untyped-def]
        mean, logarithm = self.encoder(x).chunk(2, 1)
        normal = torch.distributions.Normal(mean, (0.5 * logarithm.clamp(-30, 20)).exp())
        divergence = torch.distributions.kl_divergence(
            normal, torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        )
        return self.decoder(normal.mean + normal.stddev * noise), divergence.sum((1, 2, 3))


@case(lambda: rand(2, 3, 32, 32))
class DetectionTransformer(nn.Module):
    """DETR: features, positions by cumulated masks, a transformer, and boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.ReLU(), nn.Conv2d(16, 16, 2, 2))
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
        self.queries = nn.Embedding(5, 16)
        self.labels, self.boxes = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x):  # type: ignore[no-untyped-def]
        x = self.body(x)
        inside = torch.ones(x.shape[0], *x.shape[-2:], dtype=torch.bool)
        y, across = inside.cumsum(1, dtype=torch.float32), inside.cumsum(2, dtype=torch.float32)
        y = y / (y[:, -1:, :] + 1e-6) * 2 * math.pi
        across = across / (across[:, :, -1:] + 1e-6) * 2 * math.pi
        rates = 10000 ** (2 * torch.div(torch.arange(8), 2, rounding_mode="floor") / 8)
        parts = []
        for one in (y, across):
            angle = one[..., None] / rates
            parts.append(torch.stack((angle[..., 0::2].sin(), angle[..., 1::2].cos()), -1).flatten(3))
        positions = torch.cat(parts, -1).flatten(1, 2)
        queries = self.queries.weight[None].expand(x.shape[0], -1, -1)
        h = self.transformer(x.flatten(2).mT + positions, queries)
        cx, cy, w, height = self.boxes(h).sigmoid().unbind(-1)
        corners = torch.stack([cx - w / 2, cy - height / 2, cx + w / 2, cy + height / 2], -1)
        return self.labels(h).softmax(-1)[..., :-1].max(-1), corners


@case(lambda: [rand(2, 18, 8, 8), rand(2, 18, 4, 4)])
class AnchorHead(nn.Module):
    """A detection head in the manner of YOLO: anchors, grids made at run time, strides."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("anchors", torch.tensor([[[10.0, 13], [16, 30]], [[30, 61], [62, 45]]]))

    def forward(self, maps):  # type: ignore[no-untyped-def]
        out = []
        for i, x in enumerate(maps):
            b, _, h, w = x.shape
            x = x.view(b, 2, 9, h, w).permute(0, 1, 3, 4, 2).sigmoid()
            ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            grid = torch.stack((xs, ys), -1).view(1, 1, h, w, 2).float()
            centre = (x[..., :2] * 2 - 0.5 + grid) * 8 * 2**i
            size = (x[..., 2:4] * 2) ** 2 * self.anchors[i].view(1, 2, 1, 1, 2)
            out.append(torch.cat([centre, size, x[..., 4:]], -1).view(b, -1, 9))
        z = torch.cat(out, 1)
        best, label = (z[..., 5:] * z[..., 4:5]).max(-1)
        score, order = best.topk(10, dim=1)
        return torch.gather(z[..., :4], 1, order[..., None].expand(-1, -1, 4)), score, label.gather(1, order)


@case(lambda: torch.rand(2, 3, 12, 16), lambda: rand(2, 2, 12, 16))
class CentreDecoder(nn.Module):
    """CenterNet: peaks of a heat map by a pool, the best of all classes, gathered offsets."""

    def forward(self, heat, offset):  # type: ignore[no-untyped-def]
        b, c, _h, w = heat.shape
        heat = heat * (F.max_pool2d(heat, 3, 1, 1) == heat)
        scores, inside = heat.view(b, c, -1).topk(6)
        ys, xs = torch.div(inside, w, rounding_mode="trunc").float(), (inside % w).float()
        score, best = scores.view(b, -1).topk(6)
        label = torch.div(best, 6, rounding_mode="trunc")
        flat = inside.view(b, -1).gather(1, best)
        moved = offset.permute(0, 2, 3, 1).reshape(b, -1, 2).gather(1, flat[..., None].expand(-1, -1, 2))
        return (
            xs.view(b, -1).gather(1, best) + moved[..., 0],
            ys.view(b, -1).gather(1, best) + moved[..., 1],
            score,
            label,
        )


@case(lambda: rand(2, 3, 4, 8, 8))
class ConvolutionalRecurrence(nn.Module):
    """A convolutional LSTM over frames."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Conv2d(10, 24, 3, padding=1)
        self.peep = nn.Parameter(torch.randn(3, 6, 1, 1))

    def forward(self, frames):  # type: ignore[no-untyped-def]
        b, t, _, height, width = frames.shape
        h = c = torch.zeros(b, 6, height, width)
        out = torch.empty(b, t, 6, height, width)
        for i in range(t):
            a, f, o, g = torch.split(self.gates(torch.cat([frames[:, i], h], 1)), 6, dim=1)
            c = torch.sigmoid(f + self.peep[0] * c) * c + torch.sigmoid(a + self.peep[1] * c) * torch.tanh(g)
            h = torch.sigmoid(o + self.peep[2] * c) * torch.tanh(c)
            out[:, i] = h
        return out, (h, c)


@case(lambda: rand(2, 3, 10, 12))
class SpatialTransformer(nn.Module):
    """An image resampled by a transform that a network predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.localization = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 6))
        self.localization[-1].bias.data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))

    def forward(self, x):  # type: ignore[no-untyped-def]
        theta = self.localization(x).view(-1, 2, 3)
        return F.grid_sample(x, F.affine_grid(theta, x.size(), align_corners=False), align_corners=False)


@case(lambda: rand(2, 8, 6, 6))
class AttentionModule(nn.Module):
    """Channel and spatial attention of CBAM, with a squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Conv2d(8, 2, 1, bias=False), nn.ReLU(), nn.Conv2d(2, 8, 1, bias=False))
        self.spatial = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x):  # type: ignore[no-untyped-def]
        pooled = self.shared(F.adaptive_avg_pool2d(x, 1)) + self.shared(F.adaptive_max_pool2d(x, 1))
        x = x * pooled.sigmoid()
        return x * self.spatial(torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)).sigmoid()


@case(lambda: rand(2, 8, 6, 6))
class Involution(nn.Module):
    """A kernel for each pixel, computed from the pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Sequential(nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 2 * 9, 1))

    def forward(self, x):  # type: ignore[no-untyped-def]
        b, c, h, w = x.shape
        weights = self.kernel(x).view(b, 2, 9, h, w).unsqueeze(2)
        return (F.unfold(x, 3, padding=1).view(b, 2, c // 2, 9, h, w) * weights).sum(3).view(b, c, h, w)


@case(lambda: rand(3, 4, 6, 6))
class ConditionalConvolution(nn.Module):
    """Kernels mixed for each sample from experts."""

    def __init__(self) -> None:
        super().__init__()
        self.route, self.experts = nn.Linear(4, 3), nn.Parameter(torch.randn(3, 8, 4, 3, 3))

    def forward(self, x):  # type: ignore[no-untyped-def]
        b, c, h, w = x.shape
        weights = self.route(x.mean((2, 3))).sigmoid()
        kernels = torch.einsum("be,eoihw->boihw", weights, self.experts).reshape(-1, c, 3, 3)
        return F.conv2d(x.reshape(1, -1, h, w), kernels, padding=1, groups=b).view(b, -1, h, w)


@case(lambda: rand(2, 3, 9, 11))
class BlurredPool(nn.Module):
    """A pool against aliasing: reflected borders and a binomial kernel with strides."""

    def __init__(self) -> None:
        super().__init__()
        row = torch.tensor([1.0, 2, 1])
        self.register_buffer("kernel", (row[:, None] * row[None] / 16).expand(3, 1, 3, 3).contiguous())

    def forward(self, x):  # type: ignore[no-untyped-def]
        return F.conv2d(F.pad(F.max_pool2d(x, 2, 1), (1, 1, 1, 1), mode="reflect"), self.kernel, stride=2, groups=3)


@case(lambda: rand(2, 4, 12, 9))
class KeypointDecoder(nn.Module):
    """Peaks of heat maps, moved towards the higher neighbour."""

    def forward(self, maps):  # type: ignore[no-untyped-def]
        _b, _k, _h, w = maps.shape
        score, index = maps.flatten(2).max(-1)
        x, y = index % w, torch.div(index, w, rounding_mode="floor")
        padded = F.pad(maps, (1, 1, 1, 1), mode="replicate").flatten(2)
        here = (y + 1) * (w + 2) + x + 1

        def at(offset):  # type: ignore[no-untyped-def]
            return padded.gather(2, (here + offset)[..., None]).squeeze(-1)

        dx, dy = torch.sign(at(1) - at(-1)), torch.sign(at(w + 2) - at(-w - 2))
        return torch.stack([x + 0.25 * dx, y + 0.25 * dy], -1), score


@case(lambda: torch.rand(6, 12, 12), lambda: torch.rand(6))
class MatrixSuppression(nn.Module):
    """SOLO: scores of masks decayed by their overlaps."""

    def forward(self, masks, scores):  # type: ignore[no-untyped-def]
        order = scores.argsort(descending=True)
        flat = (masks[order] > 0.5).flatten(1).float()
        both = flat @ flat.T
        area = flat.sum(1)
        overlap = (both / (area[:, None] + area - both)).triu(1)
        worst = overlap.max(0).values[:, None].expand_as(overlap)
        decay = ((1 - overlap) / (1 - worst.clamp(max=0.999))).min(0).values
        return scores[order] * decay, order


@case(lambda: rand(2, 3, 8, 8), lambda: rand(2, 3, 8, 8))
class ContrastivePair(nn.Module):
    """CLIP: two encoders, normalized, with a learned scale and a symmetric loss."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(192, 8), nn.Linear(192, 8)
        self.scale = nn.Parameter(torch.tensor(2.6592))

    def forward(self, x, y):  # type: ignore[no-untyped-def]
        a, b = self.left(x.flatten(1)), self.right(y.flatten(1))
        a, b = a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True)
        logits = self.scale.exp() * a @ b.t()
        labels = torch.arange(x.shape[0])
        return logits, (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
