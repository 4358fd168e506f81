"""Networks over images and volumes, and chains of layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from block_networks.registry import Attention, conv, network, sequential

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


@network((1, 64, 28, 28))
class AttentionModule(nn.Module):
    """Gates by channel and by position, as in CBAM."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Linear(64, 8), nn.Linear(8, 64)
        self.spatial = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        by_channel = self.excite(F.relu(self.squeeze(x.mean((2, 3))))) + self.excite(
            F.relu(self.squeeze(x.amax((2, 3))))
        )
        x = x * by_channel.sigmoid()[:, :, None, None]
        return x * self.spatial(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)).sigmoid()


@network((1, 32, 64, 64), (1, 64, 32, 32), (1, 96, 16, 16))
class FeaturePyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(c, 48, 1) for c in (32, 64, 96))
        self.smooth = nn.ModuleList(nn.Conv2d(48, 48, 3, padding=1) for _ in range(3))

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        top = self.lateral[2](c)
        middle = self.lateral[1](b) + F.interpolate(top, scale_factor=2)
        low = self.lateral[0](a) + F.interpolate(middle, scale_factor=2)
        return self.smooth[0](low), self.smooth[1](middle), self.smooth[2](top)


@network((1, 32, 64, 64), (1, 64, 32, 32))
class HighResolution(nn.Module):
    """Branches of two resolutions that exchange features, as in HRNet."""

    def __init__(self) -> None:
        super().__init__()
        self.high, self.low = conv(32, 32), conv(64, 64)
        self.down, self.up = conv(32, 64, stride=2), conv(64, 32, 1)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a, b = F.relu(self.high(a)), F.relu(self.low(b))
        wide = F.interpolate(self.up(b), scale_factor=2, mode="bilinear", align_corners=True)
        return F.relu(a + wide), F.relu(b + self.down(a))


@network((1, 3, 128, 128))
class Focus(nn.Module):
    """Pixels to channels by strided slices, and partial stages, as in YOLOv5."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = conv(12, 32), conv(32, 64, stride=2)
        self.left, self.right = conv(64, 32, 1), conv(64, 32, 1)
        self.inner, self.outer, self.merge = conv(32, 32, 1), conv(32, 32), conv(64, 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1)
        x = F.silu(self.down(F.silu(self.stem(x))))
        h = F.silu(self.left(x))
        h = h + F.silu(self.outer(F.silu(self.inner(h))))
        return F.silu(self.merge(torch.cat([h, F.silu(self.right(x))], 1)))


@network((1, 128, 20, 20))
class PooledPyramid(nn.Module):
    """Max pooling at three scales, as SPPF."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = conv(128, 64, 1), conv(256, 128, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.first(x))
        a = F.max_pool2d(x, 5, 1, 2)
        b = F.max_pool2d(a, 5, 1, 2)
        return F.silu(self.last(torch.cat([x, a, b, F.max_pool2d(b, 5, 1, 2)], 1)))


@network((1, 64, 48, 48))
class CenterPeaks(nn.Module):
    """A heat map and its local maxima, as in CenterNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.heat, self.size = conv(64, 64), nn.Conv2d(64, 10, 1), nn.Conv2d(64, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.stem(x))
        heat = self.heat(h).sigmoid()
        peaks = torch.where(F.max_pool2d(heat, 3, 1, 1) == heat, heat, 0.0)
        best, where = peaks.flatten(1).topk(50)
        return best, where, self.size(h).flatten(2).gather(2, (where % 2304)[:, None].expand(-1, 2, -1))


@network((1, 3, 64, 64), (1, 3, 64, 64))
class StructuralSimilarity(nn.Module):
    """SSIM of two images by Gaussian windows."""

    def __init__(self) -> None:
        super().__init__()
        line = torch.exp(-((torch.arange(11) - 5.0) ** 2) / 4.5)
        window = line[:, None] * line / (line.sum() ** 2)
        self.register_buffer("window", window.expand(3, 1, 11, 11).clone())

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        def smooth(x: Tensor) -> Tensor:
            return F.conv2d(x, self.window, padding=5, groups=3)

        ma, mb = smooth(a), smooth(b)
        va, vb, vab = smooth(a * a) - ma * ma, smooth(b * b) - mb * mb, smooth(a * b) - ma * mb
        score = (2 * ma * mb + 1e-4) * (2 * vab + 9e-4) / ((ma * ma + mb * mb + 1e-4) * (va + vb + 9e-4))
        return score.mean((1, 2, 3))


@network((1, 8, 3, 32, 32))
class VideoClassifier(nn.Module):
    """A (2+1)-dimensional convolution, and pooling over time."""

    def __init__(self) -> None:
        super().__init__()
        self.spatial, self.temporal = (
            nn.Conv3d(3, 24, (1, 3, 3), padding=(0, 1, 1)),
            nn.Conv3d(24, 32, (3, 1, 1), padding=(1, 0, 0)),
        )
        self.norm, self.out = nn.BatchNorm3d(24), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.spatial(x.transpose(1, 2))))
        return self.out(F.relu(self.temporal(h)).mean((2, 3, 4)))


@network((1, 48, 32, 32))
class LinearAttention(nn.Module):
    """Attention with a ReLU kernel over all positions, as in EfficientViT."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv2d(48, 144, 1, bias=False), conv(48, 48, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        q, k, v = self.qkv(x).reshape(n, 6, 24, h * w).transpose(2, 3).chunk(3, -1)
        q, k = F.relu(q), F.relu(k)
        v = F.pad(v, (0, 1), value=1.0)
        y = q @ (k.transpose(-1, -2) @ v)
        y = y[..., :-1] / (y[..., -1:] + 1e-6)
        return x + self.out(y.transpose(2, 3).reshape(n, c, h, w))


@network((1, 32, 32, 32))
class MobileVit(nn.Module):
    """Attention among the pixels at one place of all patches."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.attention, self.norm = conv(32, 64, 1), Attention(64, 4), nn.LayerNorm(64)
        self.after = conv(96, 32)

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        n, c, height, width = h.shape
        h = h.reshape(n, c, height // 2, 2, width // 2, 2).permute(0, 3, 5, 2, 4, 1).reshape(n * 4, -1, c)
        h = h + self.attention(self.norm(h))
        h = h.reshape(n, 2, 2, height // 2, width // 2, c).permute(0, 5, 3, 1, 4, 2).reshape(n, c, height, width)
        return self.after(torch.cat([x, h], 1))


@network((1, 16, 8, 8), (64, 16))
class CodeBook(nn.Module):
    """The nearest vectors of a code book, as in VQ-VAE."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = conv(16, 16), nn.ConvTranspose2d(16, 16, 4, 2, 1)

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        h = self.before(x)
        flat = h.permute(0, 2, 3, 1).reshape(-1, 16)
        distances = flat.square().sum(1, keepdim=True) - 2 * flat @ codes.t() + codes.square().sum(1)
        nearest = codes[distances.argmin(1)].view(1, 8, 8, 16).permute(0, 3, 1, 2)
        return self.after(nearest)
