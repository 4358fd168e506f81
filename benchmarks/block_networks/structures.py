"""Networks over points, graphs and tables."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from block_networks.registry import Attention, network


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


@network((300, 32))
class GraphAttention(nn.Module):
    """Attention over the edges of a graph: a softmax of each node's neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.source, self.target = nn.Linear(32, 32), nn.Linear(32, 1), nn.Linear(32, 1)
        self.register_buffer("edges", torch.randint(0, 300, (2, 1500)))

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.edges[0], self.edges[1]
        h = self.layer(x)
        scores = F.leaky_relu(self.source(h)[source] + self.target(h)[target], 0.2)[:, 0]
        largest = torch.full((300,), -1e30).scatter_reduce(0, target, scores, "amax")
        weights = (scores - largest[target]).exp()
        total = torch.zeros(300).index_add(0, target, weights)
        return torch.zeros(300, 32).index_add(0, target, h[source] * (weights / (total[target] + 1e-9))[:, None])


@network((1, 20, 9), (1, 20, 9))
class SetTransformer(nn.Module):
    """Induced attention over a set, pooled by seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.attention = nn.Linear(18, 64), Attention(64, 4)
        self.seeds, self.pool, self.out = nn.Parameter(torch.randn(1, 4, 64)), Attention(64, 4), nn.Linear(64, 8)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        h = F.relu(self.before(torch.cat([a, b], -1)))
        h = h + self.attention(h)
        return self.out(self.pool(self.seeds, h)).amax(1)


@network((4096, 3))
class RadianceField(nn.Module):
    """Positions by sines of many frequencies, and a network of color and density, as in NeRF."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(63, 64), nn.Linear(64, 64), nn.Linear(127, 64)])
        self.out = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        angles = (x[..., None] * 2.0 ** torch.arange(10)).flatten(1)
        encoded = torch.cat([x, angles.sin(), angles.cos()], 1)
        h = F.relu(self.layers[1](F.relu(self.layers[0](encoded))))
        color, density = self.out(F.relu(self.layers[2](torch.cat([h, encoded], 1)))).split([3, 1], 1)
        return torch.cat([color.sigmoid(), F.softplus(density)], 1)


@network((64, 24))
class TabularAttention(nn.Module):
    """Sparse weights of features by sorting (sparsemax), as in TabNet."""

    def __init__(self) -> None:
        super().__init__()
        self.weigh, self.layer, self.out = nn.Linear(24, 24), nn.Linear(24, 64), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.weigh(x)
        ordered = scores.sort(-1, descending=True).values
        sums = ordered.cumsum(-1)
        count = (1 + torch.arange(1, 25) * ordered > sums).sum(-1, keepdim=True)
        threshold = (sums.gather(-1, count - 1) - 1) / count
        mask = (scores - threshold).clamp_min(0)
        return self.out(F.glu(self.layer(x * mask), -1))


@network((32, 16), (32, 16))
class TwoTowers(nn.Module):
    """Similarities of users and items."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
        self.item = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        a, b = F.normalize(self.user(users), dim=-1), F.normalize(self.item(items), dim=-1)
        return (a @ b.t() / 0.07).softmax(-1)


@network((64, 10))
class AffineFlow(nn.Module):
    """Coupling layers of a normalizing flow, with the log-determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 10)) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(x.shape[0])
        for layer in self.layers:
            a, b = x.chunk(2, -1)
            scale, shift = layer(a).chunk(2, -1)
            scale = scale.tanh()
            x, total = torch.cat([b * scale.exp() + shift, a], -1), total + scale.sum(-1)
        return x, total
