"""Networks of points, graphs, fields and tables, filters and flows."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn

from convert_sources.small_programs import Registry, rand

registry = Registry()
case = registry.case


@case(lambda: rand(2, 20, 3))
class PointSetAbstraction(nn.Module):
    """PointNet++: farthest points, balls of neighbours, and a network over groups."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1))

    def forward(self, x):  # type: ignore[no-untyped-def]
        b, n, _ = x.shape
        chosen = torch.zeros(b, 4, dtype=torch.long)
        distance = torch.full((b, n), 1e10)
        farthest = torch.zeros(b, dtype=torch.long)
        batch = torch.arange(b)
        for i in range(4):
            chosen[:, i] = farthest
            away = ((x - x[batch, farthest].view(b, 1, 3)) ** 2).sum(-1)
            mask = away < distance
            distance[mask] = away[mask]
            farthest = distance.max(-1)[1]
        centres = x[batch[:, None], chosen]
        square = -2 * centres @ x.mT + (centres**2).sum(-1, keepdim=True) + (x**2).sum(-1)[:, None]
        group = torch.arange(n).view(1, 1, n).repeat(b, 4, 1)
        group[square > 1.0] = n
        group = group.sort(-1)[0][:, :, :5]
        first = group[:, :, :1].repeat(1, 1, 5)
        group[group == n] = first[group == n]
        local = x[batch.view(b, 1, 1), group] - centres[:, :, None]
        return self.network(local.permute(0, 3, 1, 2)).max(-1)[0]


@case(
    lambda: rand(6, 5),
    lambda: torch.tensor([[0, 1, 2, 3, 4, 5, 1], [1, 2, 0, 4, 5, 3, 4]]),
    lambda: torch.tensor([0, 0, 0, 1, 1, 1]),
)
class GraphAttention(nn.Module):
    """Attention over edges with loops added, and a mean over each graph of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 8, bias=False)
        self.source, self.target = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(2, 4))

    def forward(self, x, edges, batch):  # type: ignore[no-untyped-def]
        n = x.size(0)
        edges = edges[:, edges[0] != edges[1]]
        loops = torch.arange(n).repeat(2, 1)
        source, target = torch.cat([edges, loops], 1)
        h = self.linear(x).view(n, 2, 4)
        score = F.leaky_relu((h * self.source).sum(-1)[source] + (h * self.target).sum(-1)[target], 0.2)
        index = target[:, None].expand_as(score)
        top = torch.zeros(n, 2).scatter_reduce(0, index, score, "amax", include_self=False)
        weight = (score - top[target]).exp()
        weight = weight / (torch.zeros(n, 2).scatter_add(0, index, weight)[target] + 1e-16)
        out = torch.zeros(n, 2, 4).index_add(0, target, h[source] * weight[..., None]).flatten(1)
        graphs = int(batch.max()) + 1
        sums = out.new_zeros(graphs, 8).index_add_(0, batch, out)
        return sums / torch.bincount(batch, minlength=graphs)[:, None]


@case(lambda: rand(7, 3), lambda: torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]]))
class EquivariantLayer(nn.Module):
    """EGNN: messages from squared distances, positions moved along differences."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(9, 8), nn.SiLU(), nn.Linear(8, 8), nn.SiLU())
        self.move = nn.Linear(8, 1, bias=False)
        self.features = nn.Parameter(torch.randn(1, 4))

    def forward(self, x, edges):  # type: ignore[no-untyped-def]
        row, column = edges
        h = self.features.expand(x.shape[0], -1)
        difference = x[row] - x[column]
        squared = difference.pow(2).sum(1, keepdim=True)
        message = self.message(torch.cat([h[row], h[column], squared], 1))
        moved = difference / (squared.sqrt() + 1) * self.move(message)
        count = torch.zeros_like(x[:, :1]).index_add(0, row, torch.ones_like(squared)).clamp(min=1)
        return x + torch.zeros_like(x).index_add(0, row, moved) / count, torch.zeros(x.shape[0], 8).index_add(
            0, row, message
        )


@case(lambda: torch.rand(8, 3) * 3, lambda: torch.tensor([1, 6, 8, 1, 1, 6, 7, 1]))
class ContinuousFilters(nn.Module):
    """SchNet: pairs within a cutoff, Gaussian distances, filters, and a sum of atoms."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms = nn.Embedding(10, 8)
        self.filters, self.out = nn.Sequential(nn.Linear(6, 8), nn.Softplus()), nn.Linear(8, 1)

    def forward(self, positions, kinds):  # type: ignore[no-untyped-def]
        distance = torch.cdist(positions, positions)
        near = (distance < 2.0) & ~torch.eye(positions.shape[0], dtype=torch.bool)
        i, j = near.nonzero(as_tuple=True)
        d = distance[i, j]
        basis = torch.exp(-4 * (d[:, None] - torch.linspace(0, 2, 6)) ** 2)
        cut = 0.5 * (torch.cos(d * math.pi / 2.0) + 1)
        h = self.atoms(kinds)
        message = h[j] * self.filters(basis) * cut[:, None]
        return self.out(torch.zeros_like(h).index_add_(0, i, message) + h).sum()


@case(lambda: rand(2, 4, 6, 5))
class CapsuleRouting(nn.Module):
    """Routing by agreement in three iterations."""

    def forward(self, votes):  # type: ignore[no-untyped-def]
        logits = torch.zeros(*votes.shape[:3], 1)
        for i in range(3):
            weights = logits.softmax(2)
            total = (weights * votes).sum(1, keepdim=True)
            squared = (total**2).sum(-1, keepdim=True)
            capsule = squared / (1 + squared) * total / (squared + 1e-9).sqrt()
            if i < 2:
                logits = logits + (votes * capsule).sum(-1, keepdim=True)
        return capsule.squeeze(1), capsule.norm(dim=-1)


@case(lambda: rand(5, 3), lambda: rand(5, 3))
class RadianceField(nn.Module):
    """NeRF: stratified samples on rays, encoded positions, volume rendering."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(27, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, origins, directions):  # type: ignore[no-untyped-def]
        depth = torch.linspace(1, 4, 8)
        points = origins[:, None] + directions[:, None] * depth[:, None]
        encoded = [points]
        for i in range(4):
            encoded += [torch.sin(2.0**i * points), torch.cos(2.0**i * points)]
        raw = self.network(torch.cat(encoded, -1))
        step = torch.cat([depth[1:] - depth[:-1], torch.full((1,), 1e10)]) * directions.norm(dim=-1, keepdim=True)
        alpha = 1 - torch.exp(-raw[..., 3].relu() * step)
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        weights = alpha * clear
        return (weights[..., None] * raw[..., :3].sigmoid()).sum(1), (weights * depth).sum(-1)


@case(lambda: rand(2, 7, 8), lambda: rand(2, 4, 8))
class SlotAttention(nn.Module):
    """Slots that compete for inputs, updated by a recurrent cell."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.cell, self.norm = nn.GRUCell(8, 8), nn.LayerNorm(8)

    def forward(self, x, slots):  # type: ignore[no-untyped-def]
        k, v = self.k(x), self.v(x)
        for _ in range(3):
            weights = (self.q(self.norm(slots)) @ k.transpose(-1, -2) / 8**0.5).softmax(1) + 1e-8
            updates = (weights / weights.sum(-1, keepdim=True)) @ v
            slots = self.cell(updates.reshape(-1, 8), slots.reshape(-1, 8)).view_as(slots)
        return slots, weights


@case(lambda: rand(2, 6))
class CouplingFlow(nn.Module):
    """A flow of coupling layers with an invertible linear map, and its inverse."""

    def __init__(self) -> None:
        super().__init__()
        self.networks = nn.ModuleList(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6)) for _ in range(2))
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(6, 6))[0] + 0.1 * torch.eye(6))

    def forward(self, x):  # type: ignore[no-untyped-def]
        z, logarithm = x, torch.zeros(x.shape[0])
        for network in self.networks:
            z = z @ self.weight
            a, b = z.chunk(2, -1)
            scale, shift = network(a).chunk(2, -1)
            b = b * scale.tanh().exp() + shift
            logarithm = logarithm + scale.tanh().sum(-1) + torch.slogdet(self.weight)[1]
            z = torch.cat([b, a], -1)
        y = z
        for network in reversed(self.networks):
            b, a = y.chunk(2, -1)
            scale, shift = network(a).chunk(2, -1)
            y = torch.cat([a, (b - shift) * (-scale.tanh()).exp()], -1) @ torch.inverse(self.weight)
        return z, logarithm, y


@case(lambda: rand(2, 3, 16, 16))
class NeuralOperator(nn.Module):
    """A Fourier neural operator with complex weights on the lowest frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Parameter(torch.randn(3, 3, 4, 4, dtype=torch.cfloat))
        self.high = nn.Parameter(torch.randn(3, 3, 4, 4, dtype=torch.cfloat))
        self.local = nn.Conv2d(3, 3, 1)

    def forward(self, x):  # type: ignore[no-untyped-def]
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        out[:, :, :4, :4] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :4, :4], self.low)
        out[:, :, -4:, :4] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -4:, :4], self.high)
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.local(x))


@case(lambda: torch.rand(4, 3) * 2 - 1)
class SplineNetwork(nn.Module):
    """A Kolmogorov-Arnold layer: B-splines by the recursion of Cox and de Boor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", (torch.arange(-3, 9) * 0.4 - 1).expand(3, -1).contiguous())
        self.weights, self.base = nn.Parameter(torch.randn(5, 3, 8)), nn.Linear(3, 5, bias=False)

    def forward(self, x):  # type: ignore[no-untyped-def]
        u, grid = x.unsqueeze(-1), self.grid
        bases = ((u >= grid[:, :-1]) & (u < grid[:, 1:])).to(x.dtype)
        for k in range(1, 4):
            left = (u - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)]) * bases[:, :, :-1]
            right = (grid[:, k + 1 :] - u) / (grid[:, k + 1 :] - grid[:, 1:-k]) * bases[:, :, 1:]
            bases = left + right
        return self.base(F.silu(x)) + F.linear(bases.view(x.size(0), -1), self.weights.view(5, -1))


@case(lambda: rand(3, 2))
class OrdinaryDifferentialEquation(nn.Module):
    """Runge-Kutta steps of a network's vector field."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, y):  # type: ignore[no-untyped-def]
        def slope(t, y):  # type: ignore[no-untyped-def]
            return self.field(torch.cat([y, t.expand(y.shape[0], 1)], 1))

        times = torch.linspace(0, 1, 4)
        path = [y]
        for a, b in itertools.pairwise(times):
            h = b - a
            k1 = slope(a, y)
            k2 = slope(a + h / 2, y + h / 2 * k1)
            k3 = slope(a + h / 2, y + h / 2 * k2)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(b, y + h * k3))
            path.append(y)
        return torch.stack(path)


@case(lambda: rand(5, 2), lambda: rand(2, 2), lambda: rand(2, 4))
class KalmanFilter(nn.Module):
    """Predictions and updates with gains from linear systems."""

    def forward(self, measured, noise, observe):  # type: ignore[no-untyped-def]
        x, p = torch.zeros(4), torch.eye(4)
        r = noise @ noise.T + torch.eye(2)
        move = torch.eye(4) + 0.1 * torch.diag(torch.ones(2), 2)
        path = []
        for z in measured:
            x, p = move @ x, move @ p @ move.T + 0.01 * torch.eye(4)
            s = observe @ p @ observe.T + r
            gain = torch.linalg.solve(s, observe @ p).T
            x = x + gain @ (z - observe @ x)
            p = (torch.eye(4) - gain @ observe) @ p
            path.append(x)
        return torch.stack(path), p


@case(lambda: rand(6, 2), lambda: rand(6), lambda: rand(3, 2))
class GaussianProcess(nn.Module):
    """Posterior mean and variance by a Cholesky factor."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x, y, new):  # type: ignore[no-untyped-def]
        def kernel(a, b):  # type: ignore[no-untyped-def]
            return torch.exp(-0.5 * torch.cdist(a, b).square() / self.scale**2)

        factor = torch.linalg.cholesky(kernel(x, x) + 0.1 * torch.eye(x.shape[0]))
        cross = kernel(x, new)
        mean = cross.T @ torch.cholesky_solve(y[:, None], factor)
        v = torch.linalg.solve_triangular(factor, cross, upper=False)
        return mean[:, 0], 1 - (v * v).sum(0), 2 * factor.diagonal().log().sum()


@case(lambda: torch.rand(2, 5, 6))
class OptimalTransport(nn.Module):
    """Sinkhorn's iterations in logarithms, and the transported cost."""

    def forward(self, cost):  # type: ignore[no-untyped-def]
        n, m = cost.shape[1:]
        f, g = torch.zeros(cost.shape[0], n), torch.zeros(cost.shape[0], m)
        for _ in range(8):
            f = -0.1 * torch.logsumexp((g[:, None] - cost) / 0.1 - math.log(m), 2)
            g = -0.1 * torch.logsumexp((f[:, :, None] - cost) / 0.1 - math.log(n), 1)
        plan = torch.exp((f[:, :, None] + g[:, None] - cost) / 0.1) / (n * m)
        return plan, (plan * cost).sum((1, 2))


@case(lambda: rand(4, 10), lambda: torch.randint(0, 20, (4, 3)))
class DeepRecommender(nn.Module):
    """DLRM and DeepFM: embeddings of categories, interactions of pairs, cross layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.bottom, self.top = nn.Linear(10, 8), nn.Linear(8 + 6 + 32, 1)
        self.cross = nn.ModuleList(nn.Linear(32, 1, bias=False) for _ in range(2))
        self.bias = nn.ParameterList(nn.Parameter(torch.randn(32)) for _ in range(2))

    def forward(self, dense, sparse):  # type: ignore[no-untyped-def]
        x = F.relu(self.bottom(dense))
        all_ = torch.stack([x, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], 1)
        pairs = torch.bmm(all_, all_.transpose(1, 2))
        i, j = torch.tril_indices(4, 4, -1)
        flat = start = all_.flatten(1)
        for layer, bias in zip(self.cross, self.bias, strict=True):
            flat = start * layer(flat) + bias + flat
        return self.top(torch.cat([x, pairs[:, i, j], flat], 1)).sigmoid()


@case(lambda: rand(3, 6, 8), lambda: rand(3, 8), lambda: torch.tensor([6, 2, 4]))
class InterestNetwork(nn.Module):
    """Attention of a candidate over a history of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(32, 8), nn.PReLU(), nn.Linear(8, 1))

    def forward(self, history, candidate, lengths):  # type: ignore[no-untyped-def]
        one = candidate[:, None].expand_as(history)
        scores = self.score(torch.cat([one, history, one - history, one * history], -1)).squeeze(-1)
        mask = torch.arange(history.shape[1])[None] < lengths[:, None]
        return (scores.masked_fill(~mask, -(2**32) + 1).softmax(-1)[:, None] @ history).squeeze(1)


@case(lambda: rand(6, 8))
class TabularAttention(nn.Module):
    """TabNet: sparse masks over features by sparsemax, and ghost batches."""

    def __init__(self) -> None:
        super().__init__()
        self.choose, self.transform = nn.Linear(4, 8), nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):  # type: ignore[no-untyped-def]
        prior, out, attention = torch.ones_like(x), 0, x[:, :4]
        for _ in range(2):
            z = self.choose(attention) * prior
            ordered = z.sort(-1, descending=True)[0]
            sums = ordered.cumsum(-1) - 1
            k = torch.arange(1, 9)
            support = (k * ordered > sums).sum(-1, keepdim=True)
            mask = (z - sums.gather(-1, support - 1) / support).clamp(min=0)
            prior = prior * (1.3 - mask)
            h = F.glu(self.norm(self.transform(mask * x)))
            attention, out = h[:, :4], out + h[:, 4:].relu()
        return out, mask
