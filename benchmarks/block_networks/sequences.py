"""Networks over text, speech and time series."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from block_networks.registry import Attention, conv, network


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


@network((1, 80, 100))
class Vocoder(nn.Module):
    """Transposed convolutions and dilated residual layers, as in HiFi-GAN."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.up = nn.Conv1d(80, 64, 7, padding=3), nn.ConvTranspose1d(64, 32, 16, 8, 4)
        self.layers = nn.ModuleList(nn.Conv1d(32, 32, 3, padding=d, dilation=d) for d in (1, 3, 5))
        self.after = nn.Conv1d(32, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(F.leaky_relu(self.before(x), 0.1))
        for layer in self.layers:
            h = h + layer(F.leaky_relu(h, 0.1))
        return self.after(F.leaky_relu(h)).tanh()


@network((1, 80, 150))
class SpeakerEmbedding(nn.Module):
    """Res2Net layers, squeeze and excitation, and attentive statistics, as in ECAPA-TDNN."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, 96, 5, padding=2)
        self.parts = nn.ModuleList(nn.Conv1d(24, 24, 3, padding=2, dilation=2) for _ in range(3))
        self.squeeze, self.excite = nn.Conv1d(96, 24, 1), nn.Conv1d(24, 96, 1)
        self.score, self.out = nn.Conv1d(96, 96, 1), nn.Linear(192, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        pieces = list(h.chunk(4, 1))
        for i, part in enumerate(self.parts):
            pieces[i + 1] = F.relu(part(pieces[i + 1] + pieces[i]))
        h = torch.cat(pieces, 1)
        h = h * self.excite(F.relu(self.squeeze(h.mean(2, keepdim=True)))).sigmoid()
        weights = self.score(h.tanh()).softmax(2)
        mean = (h * weights).sum(2)
        deviation = ((h.square() * weights).sum(2) - mean.square()).clamp_min(1e-6).sqrt()
        return F.normalize(self.out(torch.cat([mean, deviation], 1)), dim=1)


@network((1, 40, 64), (1, 10, 64))
class Transducer(nn.Module):
    """The joint network of a transducer: all pairs of frames and labels."""

    def __init__(self) -> None:
        super().__init__()
        self.audio, self.text, self.out = nn.Linear(64, 128), nn.Linear(64, 128), nn.Linear(128, 100)

    def forward(self, audio: Tensor, text: Tensor) -> Tensor:
        return self.out((self.audio(audio)[:, :, None] + self.text(text)[:, None]).tanh()).log_softmax(-1)


@network((1, 64, 256))
class WaveFeatures(nn.Module):
    """Convolutions with GroupNorm, and a positional convolution in groups, as in wav2vec 2.0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(64, 64, 10, 5, bias=False), nn.GroupNorm(64, 64)
        self.second, self.position = nn.Conv1d(64, 64, 3, 2, bias=False), nn.Conv1d(64, 64, 16, padding=8, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.second(F.gelu(self.norm(self.first(x)))))
        return (h + F.gelu(self.position(h)[:, :, :-1])).transpose(1, 2)


@network((1, 96, 64))
class RelativeBias(nn.Module):
    """Attention with a bias by bucketed distance, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192, bias=False), nn.Linear(64, 64, bias=False)
        self.table = nn.Embedding(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        t = torch.arange(x.shape[1])
        distance = t - t[:, None]
        near = distance.abs()
        far = 8 + (torch.log(near.clamp_min(1).float() / 8) / math.log(16) * 8).long()
        bucket = (distance > 0) * 16 + torch.where(near < 8, near, far.clamp_max(15))
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) + self.table(bucket).permute(2, 0, 1)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@network((1, 256, 64))
class WindowedAttention(nn.Module):
    """Attention of chunks to themselves and their neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q = q.view(1, 8, 32, 4, 16).transpose(2, 3)
        k, v = (F.pad(part, (0, 0, 32, 32)).unfold(1, 96, 32) for part in (k, v))
        k, v = (part.unflatten(2, (4, 16)) for part in (k, v))
        h = (q @ k / 4).softmax(-1) @ v.transpose(-1, -2)
        return self.out(h.transpose(2, 3).reshape(1, 256, 64))


@network((1, 7, 96))
class PatchedSeries(nn.Module):
    """Patches of a normalized time series, as in PatchTST."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention, self.norm = nn.Linear(16, 64), Attention(64, 4), nn.LayerNorm(64)
        self.out = nn.Linear(11 * 64, 24)

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-5
        patches = self.embed(((x - mean) / deviation).unfold(-1, 16, 8)).flatten(0, 1)
        h = self.norm(patches + self.attention(patches))
        return self.out(h.flatten(1)).view(1, 7, 24) * deviation + mean


@network((1, 20, 64))
class LanguageModel(nn.Module):
    """The last token's distribution over a vocabulary, and its best words."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(64, 4, causal=True), nn.LayerNorm(64)
        self.words = nn.Linear(64, 10000, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.norm(x + self.attention(x))[:, -1]
        best, where = self.words(h).softmax(-1).topk(10)
        return best, where


@network((1, 128, 32))
class RetentiveLayer(nn.Module):
    """Products of queries and keys with a decay by distance, and group normalization, as in RetNet."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.gate, self.out = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 32)
        self.norm = nn.GroupNorm(4, 32)
        t = torch.arange(128.0)
        rates = 1 - torch.exp2(-5 - torch.arange(4.0))
        distance = t[:, None] - t
        self.register_buffer("decay", (rates[:, None, None] ** distance.clamp_min(0)) * (distance >= 0))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        h = ((q @ k.transpose(-1, -2)) * self.decay @ v).transpose(1, 2).flatten(2)
        return self.out(F.silu(self.gate(x)) * self.norm(h.flatten(0, 1)).view_as(x))
