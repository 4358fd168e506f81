"""Layers and algorithms of further fields: graphs, sound, attention, text, search, physics."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from convert_sources import torch_images, torch_interfaces
from convert_sources.small_programs import Case, Registry, rand

_registry = Registry()
case = _registry.case


def cases() -> dict[str, Case]:
    """Return programs with example inputs, by name."""
    return {**_registry.cases, **torch_images.registry.cases, **torch_interfaces.registry.cases}


def edges() -> torch.Tensor:
    """Return pairs of nodes of a graph with six nodes."""
    return torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 5], [1, 2, 3, 4, 5, 0, 3, 5, 2]])


@case(lambda: rand(6, 4), edges)
class Isomorphism(nn.Module):
    """Sums over neighbours, a network, and the sum over the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.1))
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x, pairs):  # type: ignore[no-untyped-def]
        for _ in range(2):
            x = self.net((1 + self.scale) * x + torch.zeros_like(x).index_add(0, pairs[1], x[pairs[0]]))
        return x, x.sum(0)


@case(lambda: rand(12, 3))
class DynamicEdges(nn.Module):
    """Edges to the nearest points, made anew from features."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2))

    def forward(self, x):  # type: ignore[no-untyped-def]
        near = torch.cdist(x, x).topk(4, largest=False).indices
        pairs = torch.cat([x[:, None].expand(-1, 4, -1), x[near] - x[:, None]], -1)
        return self.net(pairs).amax(1)


@case(lambda: rand(2, 6, 4), lambda: (torch.rand(2, 6, 6) > 0.5).float())
class PooledGraph(nn.Module):
    """Soft assignment of nodes to clusters, and the losses of it."""

    def __init__(self) -> None:
        super().__init__()
        self.assign, self.embed = nn.Linear(4, 3), nn.Linear(4, 5)

    def forward(self, x, adjacency):  # type: ignore[no-untyped-def]
        s, z = self.assign(adjacency @ x).softmax(-1), self.embed(adjacency @ x).relu()
        link = (adjacency - s @ s.mT).norm() / adjacency.numel()
        entropy = (-s * (s + 1e-15).log()).sum(-1).mean()
        return s.mT @ z, s.mT @ adjacency @ s, link, entropy


@case(lambda: rand(6, 4), edges)
class ManyAggregators(nn.Module):
    """Mean, least, most and deviation over neighbours, scaled by degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(36, 4)

    def forward(self, x, pairs):  # type: ignore[no-untyped-def]
        source, target = pairs
        rows, index = x[source], target[:, None].expand(-1, x.shape[1])
        zero = torch.zeros_like(x)
        degree = torch.zeros(x.shape[0]).index_add(0, target, torch.ones(target.shape[0])).clamp(min=1)[:, None]
        mean = zero.scatter_add(0, index, rows) / degree
        square = zero.scatter_add(0, index, rows * rows) / degree
        parts = [mean, (square - mean * mean).clamp(min=1e-6).sqrt()]
        parts.append(zero.scatter_reduce(0, index, rows, "amax", include_self=False))
        scale = torch.log(degree + 1)
        h = torch.cat(parts, 1)
        return self.net(torch.cat([h, h * scale, h / scale], 1))


@case(lambda: rand(6, 4), edges)
class ChebyshevFilter(nn.Module):
    """Polynomials of the normalized Laplacian."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 5, bias=False) for _ in range(4))

    def forward(self, x, pairs):  # type: ignore[no-untyped-def]
        n = x.shape[0]
        a = torch.zeros(n, n).index_put((pairs[0], pairs[1]), torch.ones(pairs.shape[1]), accumulate=True)
        a = ((a + a.T) > 0).float()
        d = a.sum(1).clamp(min=1).rsqrt()
        laplacian = -(d[:, None] * a * d)
        terms = [x, laplacian @ x]
        for _ in range(2):
            terms.append(2 * laplacian @ terms[-1] - terms[-2])
        return sum(layer(term) for layer, term in zip(self.layers, terms, strict=True))


@case(lambda: rand(7, 3), lambda: torch.tensor([1, 6, 8, 1, 1, 6, 1]))
class MolecularForces(nn.Module):
    """Energies by radial filters within a cutoff, and forces as gradients inside of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.filter, self.head = nn.Embedding(10, 8), nn.Linear(6, 8), nn.Linear(8, 1)
        self.register_buffer("centers", torch.linspace(0, 5, 6))

    def energy(self, positions, kinds):  # type: ignore[no-untyped-def]
        difference = positions[:, None] - positions[None]
        distance = (difference.square().sum(-1) + torch.eye(positions.shape[0])).sqrt()
        cutoff = 0.5 * (torch.cos(distance * math.pi / 5) + 1) * (distance < 5) * (1 - torch.eye(positions.shape[0]))
        weights = self.filter(torch.exp(-((distance[..., None] - self.centers) ** 2))) * cutoff[..., None]
        h = self.table(kinds)
        h = h + torch.einsum("ijd,jd->id", weights, h)
        return self.head(F.softplus(h)).sum()

    def forward(self, positions, kinds):  # type: ignore[no-untyped-def]
        force = torch.func.grad(self.energy)(positions, kinds)
        return self.energy(positions, kinds), -force


@case(lambda: rand(2, 16, 40))
class TemporalBlocks(nn.Module):
    """Dilated causal convolutions with normalized weights, and residuals."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.convs = nn.ModuleList(norm(nn.Conv1d(16, 16, 3, dilation=2**i)) for i in range(3))

    def forward(self, x):  # type: ignore[no-untyped-def]
        for i, conv in enumerate(self.convs):
            x = x + F.gelu(conv(F.pad(x, (2 * 2**i, 0))))
        return x


@case(lambda: rand(2, 1, 200))
class SincFilters(nn.Module):
    """Band-pass filters from their cutoffs, as kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.band = nn.Parameter(torch.linspace(30, 300, 6)[:, None]), nn.Parameter(torch.full((6, 1), 80.0))
        self.register_buffer("n", torch.arange(-15, 0).float()[None] * 2 * math.pi / 1000)
        self.register_buffer("window", torch.hamming_window(31)[:15])

    def forward(self, x):  # type: ignore[no-untyped-def]
        low = 20 + self.low.abs()
        high = (low + 10 + self.band.abs()).clamp(20, 500)
        left = (torch.sin(high @ self.n) - torch.sin(low @ self.n)) / (self.n / 2) * self.window
        filters = torch.cat([left, 2 * (high - low), left.flip(1)], 1) / (2 * (high - low))
        return F.conv1d(x, filters[:, None], stride=2).abs().clamp(min=1e-5).log()


@case(lambda: rand(2, 7, 6), lambda: torch.randint(1, 5, (2, 3)))
class TransducerJoint(nn.Module):
    """Encoder, predictor and joint network, and greedy decoding of a fixed number of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(6, 8, batch_first=True)
        self.table, self.cell = nn.Embedding(5, 8), nn.LSTMCell(8, 8)
        self.joint = nn.Linear(8, 5)

    def forward(self, x, tokens):  # type: ignore[no-untyped-def]
        h, _ = self.encoder(x)
        state = (torch.zeros(x.shape[0], 8), torch.zeros(x.shape[0], 8))
        predicted = []
        for i in range(tokens.shape[1]):
            state = self.cell(self.table(tokens[:, i]), state)
            predicted.append(state[0])
        joint = self.joint(torch.tanh(h[:, :, None] + torch.stack(predicted, 1)[:, None]))
        token = torch.zeros(x.shape[0], dtype=torch.long)
        out = []
        for t in range(3):
            state = self.cell(self.table(token), state)
            token = self.joint(torch.tanh(h[:, t] + state[0])).argmax(-1)
            out.append(token)
        return joint.log_softmax(-1), torch.stack(out, 1)


@case(lambda: rand(2, 10, 8), lambda: rand(2, 5, 6))
class LocationAttention(nn.Module):
    """A decoder whose attention sees where it was before."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.query, self.memory = nn.LSTMCell(14, 12), nn.Linear(12, 8), nn.Linear(8, 8)
        self.location, self.score = nn.Conv1d(2, 8, 5, padding=2), nn.Linear(8, 1)
        self.out = nn.Linear(20, 6)

    def forward(self, memory, frames):  # type: ignore[no-untyped-def]
        b, n, _ = memory.shape
        h, c = memory.new_zeros(b, 12), memory.new_zeros(b, 12)
        context, weights, total = memory.new_zeros(b, 8), memory.new_zeros(b, n), memory.new_zeros(b, n)
        keys, out = self.memory(memory), []
        for frame in frames.unbind(1):
            h, c = self.cell(torch.cat([frame, context], 1), (h, c))
            located = self.location(torch.stack([weights, total], 1)).mT
            weights = self.score(torch.tanh(self.query(h)[:, None] + keys + located)).squeeze(-1).softmax(-1)
            total = total + weights
            context = torch.bmm(weights[:, None], memory).squeeze(1)
            out.append(self.out(torch.cat([h, context], 1)))
        return torch.stack(out, 1)


@case(lambda: rand(2, 256))
def griffin_lim(x):  # type: ignore[no-untyped-def]
    window = torch.hann_window(32)
    size = torch.stft(x, 32, 8, window=window, return_complex=True).abs()
    angles = torch.ones_like(size).to(torch.complex64)
    for _ in range(3):
        signal = torch.istft(size * angles, 32, 8, window=window)
        again = torch.stft(signal, 32, 8, window=window, return_complex=True)
        angles = again / (again.abs() + 1e-8)
    return torch.istft(size * angles, 32, 8, window=window)


@case(lambda: rand(2, 12, 16))
class HashedAttention(nn.Module):
    """Attention within buckets of a random rotation, in sorted chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.v = nn.Linear(16, 8), nn.Linear(16, 8)
        self.register_buffer("rotation", torch.randn(8, 2))

    def forward(self, x):  # type: ignore[no-untyped-def]
        b, n, _ = x.shape
        qk, v = self.qk(x), self.v(x)
        rotated = qk @ self.rotation
        bucket = torch.cat([rotated, -rotated], -1).argmax(-1)
        order = (bucket * n + torch.arange(n)).argsort(-1)
        qk, v = (torch.gather(t, 1, order[..., None].expand_as(t)) for t in (qk, v))
        qk, v = (t.view(b, -1, 4, 8) for t in (qk, v))
        scores = qk @ F.normalize(qk, dim=-1).mT - 1e5 * torch.eye(4)
        out = (scores.softmax(-1) @ v).reshape(b, n, 8)
        return torch.gather(out, 1, order.argsort(-1)[..., None].expand_as(out))


@case(lambda: rand(2, 10, 8))
class RandomFeatures(nn.Module):
    """Linear attention by random features, causal by sums."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("projection", torch.linalg.qr(torch.randn(8, 8)).Q * 8**0.5)

    def forward(self, x):  # type: ignore[no-untyped-def]
        q, k, v = self.qkv(x).chunk(3, -1)
        phi = [
            torch.exp((t * 8**-0.25) @ self.projection.T - t.square().sum(-1, keepdim=True) / 2 / 8**0.5 - 1)
            for t in (q, k)
        ]
        memory = torch.einsum("bnf,bnd->bnfd", phi[1], v).cumsum(1)
        scale = 1 / torch.einsum("bnf,bnf->bn", phi[0], phi[1].cumsum(1))
        return torch.einsum("bnf,bnfd,bn->bnd", phi[0], memory, scale)


@case(lambda: rand(2, 4, 24, 8))
class LandmarkAttention(nn.Module):
    """Attention through averaged landmarks and an iterated inverse."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        q = x * 8**-0.5
        marks = [t.unflatten(2, (6, -1)).mean(3) for t in (q, x)]
        a, b, c = ((q @ marks[1].mT).softmax(-1), (marks[0] @ marks[1].mT).softmax(-1), (marks[0] @ x.mT).softmax(-1))
        inverse = b.mT / (b.abs().sum(-2).amax() * b.abs().sum(-1).amax())
        identity = torch.eye(6)
        for _ in range(4):
            p = b @ inverse
            inverse = 0.25 * inverse @ (13 * identity - p @ (15 * identity - p @ (7 * identity - p)))
        return a @ inverse @ (c @ x)


@case(lambda: rand(2, 14, 8))
class SlidingWindow(nn.Module):
    """Attention to neighbours within a window, by padded chunks."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        b, n, d = x.shape
        w = 4
        pad = (-n) % w
        x = F.pad(x, (0, 0, 0, pad))
        chunks = x.view(b, -1, w, d)
        before = F.pad(chunks, (0, 0, 0, 0, 1, 0))[:, :-1]
        keys = torch.cat([before, chunks], 2)
        i = torch.arange(w)[:, None] + w - torch.arange(2 * w)[None]
        scores = (chunks @ keys.mT).masked_fill((i < 0) | (i >= w), -1e9)
        return (scores.softmax(-1) @ keys).reshape(b, -1, d)[:, :n]


@case(lambda: rand(2, 9, 6))
class SelectiveMemory(nn.Module):
    """A selective state space as a loop over time, with a short convolution and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 6, 3, groups=6, padding=2)
        self.project, self.step, self.gate = nn.Linear(6, 9), nn.Linear(1, 6), nn.Linear(6, 6)
        self.a, self.d = nn.Parameter(torch.rand(6, 4).log()), nn.Parameter(torch.ones(6))

    def forward(self, x):  # type: ignore[no-untyped-def]
        u = F.silu(self.conv(x.mT)[..., : x.shape[1]].mT)
        step, b, c = self.project(u).split([1, 4, 4], -1)
        step = F.softplus(self.step(step))
        state, out = x.new_zeros(x.shape[0], 6, 4), []
        for t in range(x.shape[1]):
            decay = torch.exp(step[:, t, :, None] * -self.a.exp())
            state = state * decay + (step[:, t] * u[:, t])[..., None] * b[:, t, None]
            out.append((state * c[:, t, None]).sum(-1))
        return (torch.stack(out, 1) + u * self.d) * F.silu(self.gate(x))


@case(lambda: rand(2, 5, 8))
class RoutedExperts(nn.Module):
    """Experts of the best two routes in a Python loop, and one that all tokens share."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Linear(12, 8)) for _ in range(4))
        self.shared = nn.Linear(8, 8)

    def forward(self, x):  # type: ignore[no-untyped-def]
        flat = x.flatten(0, 1)
        weights, chosen = self.route(flat).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == number)
            out.index_add_(0, rows, expert(flat[rows]) * weights[rows, slots, None])
        return out.view_as(x) + self.shared(x)


@case(lambda: rand(2, 6, 8))
class ExpertsChooseTokens(nn.Module):
    """Every expert takes its best tokens, by stacked weights."""

    def __init__(self) -> None:
        super().__init__()
        self.route, self.weights = nn.Linear(8, 3), nn.Parameter(torch.randn(3, 8, 8) * 0.3)

    def forward(self, x):  # type: ignore[no-untyped-def]
        flat = x.flatten(0, 1)
        gates, tokens = self.route(flat).softmax(-1).T.topk(4)
        y = torch.bmm(flat[tokens], self.weights) * gates[..., None]
        return torch.zeros_like(flat).index_add(0, tokens.flatten(), y.flatten(0, 1)).view_as(x)


@case(lambda: rand(3, 6, 4), lambda: torch.randint(0, 4, (3, 6)))
class ChainField(nn.Module):
    """The likelihood of tags in a chain, and the best tags."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.Parameter(torch.randn(4, 4) * 0.5)

    def forward(self, x, tags):  # type: ignore[no-untyped-def]
        score = x.gather(2, tags[..., None]).sum((1, 2)) + self.pairs[tags[:, :-1], tags[:, 1:]].sum(1)
        alpha, best, back = x[:, 0], x[:, 0], []
        for t in range(1, x.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + self.pairs, 1) + x[:, t]
            best, index = (best[:, :, None] + self.pairs).max(1)
            best = best + x[:, t]
            back.append(index)
        path = [best.argmax(1)]
        for index in reversed(back):
            path.append(index.gather(1, path[-1][:, None]).squeeze(1))
        return score - alpha.logsumexp(1), torch.stack(path[::-1], 1)


@case(lambda: rand(2, 6))
class BeamLoop(nn.Module):
    """Beams that are kept, reordered and extended."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.table, self.out = nn.GRUCell(4, 6), nn.Embedding(7, 4), nn.Linear(6, 7)

    def forward(self, state):  # type: ignore[no-untyped-def]
        b, width = state.shape[0], 3
        state = state.repeat_interleave(width, 0)
        scores = torch.tensor([0.0, -1e9, -1e9]).repeat(b, 1)
        tokens = torch.zeros(b * width, 1, dtype=torch.long)
        for _ in range(4):
            state = self.cell(self.table(tokens[:, -1]), state)
            total = scores[..., None] + self.out(state).log_softmax(-1).view(b, width, 7)
            scores, index = total.flatten(1).topk(width)
            rows = (torch.arange(b)[:, None] * width + index // 7).flatten()
            state, tokens = state[rows], torch.cat([tokens[rows], (index % 7).view(-1, 1)], 1)
        return tokens.view(b, width, -1), scores


@case(lambda: rand(2, 3, 12, 16))
class SpectralLayers(nn.Module):
    """A Fourier neural operator with complex weights and cut frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3, 3, 4, 4, dtype=torch.cfloat) * 0.2)
        self.skip = nn.Conv2d(3, 3, 1)

    def forward(self, x):  # type: ignore[no-untyped-def]
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        out[:, :, :4, :4] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :4, :4], self.weight[0])
        out[:, :, -4:, :4] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -4:, :4], self.weight[1])
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.skip(x))


@case(lambda: rand(6, 2))
class LinearFilter(nn.Module):
    """A Kalman filter over observations."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("f", torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]]))
        self.register_buffer("h", torch.eye(2, 4))

    def forward(self, z):  # type: ignore[no-untyped-def]
        x, p, out = torch.zeros(4), torch.eye(4), []
        for one in z:
            x, p = self.f @ x, self.f @ p @ self.f.T + 0.1 * torch.eye(4)
            gain = torch.linalg.solve(self.h @ p @ self.h.T + 0.5 * torch.eye(2), self.h @ p).T
            x, p = x + gain @ (one - self.h @ x), (torch.eye(4) - gain @ self.h) @ p
            out.append(x)
        return torch.stack(out), p


@case(lambda: torch.randint(0, 12, (2, 30)))
class TextConvolution(nn.Module):
    """Filters of several widths, each pooled over the whole text."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.convs = nn.ModuleList(nn.Conv1d(8, 4, width) for width in (2, 3, 4))
        self.out = nn.Linear(12, 3)

    def forward(self, ids):  # type: ignore[no-untyped-def]
        x = self.table(ids).mT
        pooled = [F.max_pool1d(F.relu(y), y.size(2)).squeeze(2) for y in (conv(x) for conv in self.convs)]
        return self.out(torch.cat(pooled, 1))


@case(lambda: torch.randint(0, 20, (3, 5)), lambda: rand(3, 5))
class Factorized(nn.Module):
    """Pairwise interactions of fields: by sums of squares, and by the upper triangle of products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.table = nn.Embedding(20, 1), nn.Embedding(20, 6)

    def forward(self, ids, values):  # type: ignore[no-untyped-def]
        v = self.table(ids) * values[..., None]
        pairs = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(-1)
        i, j = torch.triu_indices(v.shape[1], v.shape[1], 1)
        return (self.first(ids).squeeze(-1) * values).sum(1) + pairs, (v @ v.mT)[:, i, j]


@case(lambda: rand(2, 6, 8), lambda: torch.tensor([6, 4]))
class PackedDirections(nn.Module):
    """Two directions over packed sequences, pooled over their own lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.LSTM(8, 5, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x, lengths):  # type: ignore[no-untyped-def]
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, _ = nn.utils.rnn.pad_packed_sequence(self.net(packed)[0], batch_first=True)
        mask = torch.arange(y.shape[1]) < lengths[:, None]
        y = y.masked_fill(~mask[..., None], -1e9)
        return y.amax(1), (y * mask[..., None]).sum(1) / lengths[:, None]


@case(lambda: torch.randint(0, 10, (9,)), lambda: torch.tensor([0, 2, 5]), lambda: torch.rand(9))
class WeightedBags(nn.Module):
    """Bags of several lengths by their offsets: sums, means and maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = nn.EmbeddingBag(10, 4, mode="sum")
        self.means, self.most = nn.EmbeddingBag(10, 4, mode="mean"), nn.EmbeddingBag(10, 4, mode="max")

    def forward(self, ids, offsets, weights):  # type: ignore[no-untyped-def]
        return self.sums(ids, offsets, weights), self.means(ids, offsets), self.most(ids, offsets)
