"""Small programs of networks: recurrence, control flow, state, experts, attention and heads."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from convert_sources.small_programs import Registry, rand

registry = Registry()
case = registry.case


@case(lambda: rand(2, 5, 6), lambda: torch.tensor([5, 3]))
class PackedClassifier(nn.Module):
    """An LSTM over sequences of several lengths; the last valid step is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 4, batch_first=True, bidirectional=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x, lengths):  # type: ignore[no-untyped-def]
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.lstm(packed)
        return self.out(torch.cat([h[0], h[1]], -1))


@case(lambda: rand(2, 5, 6), lambda: torch.tensor([5, 3]))
class PackedTagger(nn.Module):
    """A GRU over sequences of several lengths; every step is an output."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 4, batch_first=True)

    def forward(self, x, lengths):  # type: ignore[no-untyped-def]
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.gru(packed)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True, padding_value=-1.0)


@case(lambda: rand(2, 6, 5))
class OpenRecurrence(nn.Module):
    """A loop in Python over as many steps as the input has."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(5, 4)

    def forward(self, x):  # type: ignore[no-untyped-def]
        h = c = x.new_zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return h


@case(lambda: rand(2, 5))
class GreedyDecoder(nn.Module):
    """A decoder that feeds its own words back, a fixed number of times."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.out = nn.Embedding(9, 5), nn.GRUCell(5, 5), nn.Linear(5, 9)

    def forward(self, h):  # type: ignore[no-untyped-def]
        word = torch.zeros(h.shape[0], dtype=torch.long)
        words = []
        for _ in range(4):
            h = self.cell(self.table(word), h)
            word = self.out(h).argmax(-1)
            words.append(word)
        return torch.stack(words, 1)


@case(lambda: torch.rand(4, 3) + 0.5)
def newton_iterations(x):  # type: ignore[no-untyped-def]
    y = x
    while (y * y - x).abs().max() > 1e-4:
        y = (y + x / y) / 2
    return y


@case(lambda: rand(4, 3))
def early_return(x):  # type: ignore[no-untyped-def]
    if x.mean() > 100:
        return x
    if x.min().item() > 0:
        return x.log()
    return x.abs().sqrt()


@case(lambda: rand(4, 3), lambda: torch.tensor(2))
def choice_by_number(x, mode):  # type: ignore[no-untyped-def]
    if mode == 0:
        return x
    if mode == 1:
        return x * 2
    return x @ x.T


@case(lambda: rand(4, 3), lambda: torch.tensor(True))
def cond_with_shapes(x, flag):  # type: ignore[no-untyped-def]
    return torch.cond(flag, lambda y: torch.cat([y, y]).sum(0), lambda y: y.mean(0), (x,))


@case(lambda: torch.tensor(7), lambda: rand(3))
def while_two_states(n, x):  # type: ignore[no-untyped-def]
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, y, z: i > 0, lambda i, y, z: (i - 1, y + z, z * 0.9), (n.clone(), x, x.clone()))


@case(lambda: rand(5, 3), lambda: rand(3))
def scanned_recurrence(x, h):  # type: ignore[no-untyped-def]
    from torch._higher_order_ops.scan import scan

    def step(state, row):  # type: ignore[no-untyped-def]
        new = torch.tanh(state * 0.5 + row)
        return new, new * 2

    return scan(step, h, x, dim=0, reverse=True)


@case(lambda: rand(6, 3))
def associative_scan(x):  # type: ignore[no-untyped-def]
    from torch._higher_order_ops.associative_scan import associative_scan as scan

    return scan(lambda a, b: a * 0.5 + b, x, 0, combine_mode="generic")


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(context, x):  # type: ignore[no-untyped-def]
        return torch.where(x > 0, 1.0, -1.0)

    @staticmethod
    def backward(context, gradient):  # type: ignore[no-untyped-def]
        return gradient


@case(lambda: rand(4, 6))
def custom_gradient(x):  # type: ignore[no-untyped-def]
    return _Straight.apply(x) * x.abs().mean()


@case(lambda: rand(4, 6))
def checkpointed(x):  # type: ignore[no-untyped-def]
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda y: (y.relu() @ y.T).softmax(-1), x, use_reentrant=False)


@case(lambda: rand(6, 4), lambda: torch.tensor([0, 2, 6]))
def ragged_sums(x, offsets):  # type: ignore[no-untyped-def]
    lengths = offsets.diff()
    owner = torch.repeat_interleave(torch.arange(lengths.shape[0]), lengths, output_size=x.shape[0])
    return torch.zeros(lengths.shape[0], 4).index_add(0, owner, x)


@case(lambda: torch.randint(0, 9, (7,)), lambda: torch.tensor([0, 3, 5]))
class Bags(nn.Module):
    """Sums of embeddings with offsets and weights."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = nn.EmbeddingBag(10, 4, mode="sum")
        self.tops = nn.EmbeddingBag(10, 4, mode="max")

    def forward(self, words, offsets):  # type: ignore[no-untyped-def]
        return self.sums(words, offsets, per_sample_weights=words.float()), self.tops(words, offsets)


@case(lambda: rand(6, 4), lambda: torch.rand(6))
def kept_by_score(x, score):  # type: ignore[no-untyped-def]
    keep = torch.nonzero(score > 0.3).squeeze(1)
    return x[keep], score[keep].cumsum(0), x[score > 0.3].mean(0)


@case(lambda: torch.rand(6, 4), lambda: torch.rand(6, 3))
def detection_head(boxes, scores):  # type: ignore[no-untyped-def]
    best, label = scores.max(1)
    keep = best > 0.4
    boxes, best, label = boxes[keep], best[keep], label[keep]
    order = best.argsort(descending=True)
    return boxes[order], best[order], label[order]


@case(lambda: torch.rand(8, 2) * 9, lambda: torch.rand(8), lambda: torch.tensor([0, 0, 1, 1, 0, 1, 0, 1]))
def batched_suppression(corners, scores, labels):  # type: ignore[no-untyped-def]
    from torchvision.ops import batched_nms, box_iou

    boxes = torch.cat([corners, corners + 2], 1)
    return batched_nms(boxes, scores, labels, 0.3), box_iou(boxes, boxes[:3])


@case(lambda: rand(2, 4, 12, 12), lambda: torch.tensor([[1.0, 1, 9, 9], [3, 2, 11, 10], [0, 2, 11, 6]]))
def region_poolings(x, boxes):  # type: ignore[no-untyped-def]
    from torchvision.ops import ps_roi_align, ps_roi_pool, roi_pool

    image = torch.arange(boxes.shape[0])[:, None] % x.shape[0]
    boxes = torch.cat([image.to(boxes.dtype), boxes[:, :2], boxes[:, :2] + boxes[:, 2:].abs()], 1)
    return roi_pool(x, boxes, 3, 0.8), ps_roi_align(x, boxes, 2, 1.0, 2), ps_roi_pool(x, boxes, 2)


@case(lambda: rand(2, 3, 4))
def named_results(x):  # type: ignore[no-untyped-def]
    mean, deviation = torch.std_mean(x, dim=(0, 2), correction=0)
    return {"mean": mean, "rest": [deviation, {"max": x.max(), "shape": x.new_tensor(x.shape)}]}


@case(lambda: rand(2, 3), None, lambda: [rand(2, 3), rand(2, 3)])
def optional_inputs(x, mask, others):  # type: ignore[no-untyped-def]
    y = torch.stack(others).sum(0) + x
    return y if mask is None else y * mask


@case(lambda: rand(4, 6))
class Cache(nn.Module):
    """A module that keeps rows in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 6))

    def forward(self, x):  # type: ignore[no-untyped-def]
        self.rows[2:6] = x
        self.rows.mul_(0.5)
        return self.rows.sum(0), self.rows[:4] @ x.T


@case(lambda: rand(2, 4, 5, 8), lambda: rand(2, 4, 3, 8), lambda: torch.tensor([5]))
def static_cache_attention(cache, new, position):  # type: ignore[no-untyped-def]
    full = F.pad(cache, (0, 0, 0, 11))
    full = full.index_copy(2, position + torch.arange(3), new)
    mask = torch.arange(16)[None] <= position + torch.arange(3)[:, None]
    return F.scaled_dot_product_attention(new, full, full, attn_mask=mask)


@case(lambda: rand(2, 6, 8))
def relative_positions(x):  # type: ignore[no-untyped-def]
    n = x.shape[1]
    scores = torch.einsum("bid,bjd->bij", x, x)
    padded = F.pad(scores, (1, 0)).view(x.shape[0], n + 1, n)[:, 1:].reshape_as(scores)
    distance = (torch.arange(n)[None] - torch.arange(n)[:, None]).abs().clamp(max=3)
    return padded + distance, torch.triu(torch.full((n, n), -math.inf), 1)


@case(lambda: rand(2, 6, 8))
def alibi_and_buckets(x):  # type: ignore[no-untyped-def]
    n = x.shape[1]
    relative = torch.arange(n)[None] - torch.arange(n)[:, None]
    large = 4 + (torch.log(relative.abs().float().clamp(min=1) / 4) / math.log(8) * 4).long()
    buckets = torch.where(relative.abs() < 4, relative.abs(), large.clamp(max=7))
    return x @ x.mT - buckets * 2.0 ** -torch.arange(1.0, 3)[:, None, None]


@case(lambda: rand(2, 12, 4))
class LinearAttention(nn.Module):
    """A recurrence over chunks, as state-space models have."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.rand(4))

    def forward(self, x):  # type: ignore[no-untyped-def]
        b, n, d = x.shape
        chunks = x.view(b, n // 4, 4, d)
        weights = torch.tril(torch.ones(4, 4))[..., None] * self.decay
        inside = torch.einsum("ijd,bcjd->bcid", weights, chunks)
        state = torch.cumsum(chunks.sum(2), 1)
        return (inside + F.pad(state, (0, 0, 1, -1))[:, :, None]).view(b, n, d)


@case(lambda: rand(6, 8))
class TopExperts(nn.Module):
    """Experts with a capacity, sorted by expert."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.weights = nn.Parameter(torch.randn(4, 8, 8))

    def forward(self, x):  # type: ignore[no-untyped-def]
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        mask = F.one_hot(chosen, 4).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for expert in range(4):
            slot, rows = torch.where(mask[expert])
            out.index_add_(0, rows, x[rows] @ self.weights[expert] * weights[rows, slot, None])
        return out


@case(lambda: rand(6, 8))
class SkippedExperts(nn.Module):
    """Experts that are only visited if a row chose them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):  # type: ignore[no-untyped-def]
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        mask = F.one_hot(chosen, 4).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for expert in (mask.sum((1, 2)) > 0).nonzero():
            number = int(expert)
            slot, rows = torch.where(mask[number])
            out.index_add_(0, rows, self.experts[number](x[rows]) * weights[rows, slot, None])
        return out


@case(lambda: rand(3, 5, 8))
def vector_quantization(x):  # type: ignore[no-untyped-def]
    codes = torch.linspace(-1, 1, 56).view(7, 8)
    flat = x.reshape(-1, 8)
    chosen = torch.cdist(flat, codes).argmin(-1)
    quantized = F.embedding(chosen, codes).view_as(x)
    return x + (quantized - x).detach(), chosen.view(x.shape[:-1]), F.mse_loss(quantized, x)


@case(lambda: rand(2, 10, 3))
def farthest_points(x):  # type: ignore[no-untyped-def]
    chosen = [torch.zeros(x.shape[0], dtype=torch.long)]
    distance = torch.full(x.shape[:2], 1e9)
    for _ in range(3):
        last = x[torch.arange(x.shape[0]), chosen[-1]][:, None]
        distance = torch.minimum(distance, ((x - last) ** 2).sum(-1))
        chosen.append(distance.argmax(1))
    return torch.stack(chosen, 1)


@case(lambda: rand(2, 9, 3), lambda: rand(2, 4, 3))
def nearest_neighbours(x, centers):  # type: ignore[no-untyped-def]
    nearest = torch.cdist(centers, x).topk(3, largest=False).indices
    grouped = torch.gather(x[:, None].expand(-1, 4, -1, -1), 2, nearest[..., None].expand(-1, -1, -1, 3))
    return (grouped - centers[:, :, None]).amax(2)


@case(lambda: rand(2, 1, 6, 7), lambda: rand(2, 2, 6, 7))
def optical_flow_warp(x, flow):  # type: ignore[no-untyped-def]
    h, w = x.shape[-2:]
    ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    grid = torch.stack([xs, ys]).float()[None] + flow
    scaled = torch.stack([2 * grid[:, 0] / (w - 1) - 1, 2 * grid[:, 1] / (h - 1) - 1], -1)
    return F.grid_sample(x, scaled, align_corners=True)


@case(lambda: rand(2, 5, 4), lambda: rand(2, 3, 4))
def padded_sequences(x, y):  # type: ignore[no-untyped-def]
    both = nn.utils.rnn.pad_sequence([x[0], y[0], x[1]], batch_first=True, padding_value=-1)
    return both, torch.cat(torch.broadcast_tensors(x[:, :1], y), 1), torch.cartesian_prod(x[0, :, 0], y[0, :, 0])


@case(lambda: rand(3, 4))
def random_numbers(x):  # type: ignore[no-untyped-def]
    return F.dropout(x, 0.5, training=False) + torch.zeros_like(x).normal_().mul_(0), torch.rand_like(x).ge(0)


@case(lambda: rand(4, 6))
def combinations(x):  # type: ignore[no-untyped-def]
    return torch.combinations(x[0], 2), torch.vander(x[0], 3), torch.flip(x, (0, 1)), torch.rot90(x, 1), x.tile(2, 2)


@case(lambda: torch.rand(2, 3, 8, 8))
def image_preparation(x):  # type: ignore[no-untyped-def]
    mean, deviation = x.new_tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1), x.new_tensor([0.2, 0.2, 0.3]).view(1, 3, 1, 1)
    gray = (x * x.new_tensor([0.3, 0.6, 0.1]).view(1, 3, 1, 1)).sum(1, keepdim=True)
    small = F.interpolate((x - mean) / deviation, (6, 6), mode="bilinear", antialias=True)
    return small[:, [2, 1, 0]], (gray * 255).round().clamp(0, 255).to(torch.uint8)


@case(lambda: rand(2, 4, 8, 8))
def spatial_softargmax(x):  # type: ignore[no-untyped-def]
    p = x.flatten(2).softmax(-1).view_as(x)
    ys, xs = torch.linspace(-1, 1, x.shape[2]), torch.linspace(-1, 1, x.shape[3])
    return torch.stack([(p.sum(2) * xs).sum(-1), (p.sum(3) * ys).sum(-1)], -1)


@case(lambda: rand(6, 7, 5), lambda: torch.randint(1, 5, (7, 3)))
def connectionist_loss(x, targets):  # type: ignore[no-untyped-def]
    lengths = torch.full((7,), 6)
    return F.ctc_loss(x.log_softmax(-1), targets, lengths, torch.full((7,), 3))


@case(lambda: rand(5, 4), lambda: rand(5, 4), lambda: torch.randint(0, 4, (5,)))
def more_losses(x, y, target):  # type: ignore[no-untyped-def]
    return (
        F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=torch.ones(4) * 2),
        F.cross_entropy(x, target, label_smoothing=0.1, weight=torch.tensor([1.0, 2, 1, 2])),
        F.triplet_margin_loss(x, y, x.flip(0)),
        F.multi_margin_loss(x, target),
        F.gaussian_nll_loss(x, y, x.abs() + 1),
        F.cosine_embedding_loss(x, y, torch.ones(5)),
        F.poisson_nll_loss(x, y.abs()),
    )


@case(lambda: rand(3, 4, 6))
def reduce_and_scatter_back(x):  # type: ignore[no-untyped-def]
    values, order = x.max(-1, keepdim=True)
    return torch.zeros_like(x).scatter(-1, order, values), x.scatter(1, order.expand(-1, -1, 2) % 4, 0.5)


@case(lambda: rand(2, 3, 5))
def to_sparse_and_back(x):  # type: ignore[no-untyped-def]
    return torch.sparse.mm(x[0].relu().to_sparse(), x[1].T), x[0].relu().to_sparse().to_dense()


@case(lambda: rand(6, 3), lambda: torch.tensor([2, 4]))
def split_at_values(x, at):  # type: ignore[no-untyped-def]
    a, b, c = torch.tensor_split(x, (2, 4))
    return a.sum(0) + b.sum(0), c, torch.chunk(x, 4), x.hsplit(3)[1]


@case(lambda: rand(4, 5))
def string_of_shape_tricks(x):  # type: ignore[no-untyped-def]
    y = x.reshape(-1, x.size(0)).T.contiguous().view(-1)[: x.numel() // 2]
    return y.view(-1, 1).expand(-1, 3), x.squeeze().unsqueeze(-1).expand(*x.shape, 2), x.movedim(0, 1), x.mT.unbind(0)


@case(lambda: rand(2, 3, 4))
def in_place_operators(x):  # type: ignore[no-untyped-def]
    y = x * 1
    y += 1
    y[0] -= x[1]
    y.clamp_(-1, 1).exp_()
    z = y.flatten(1)
    z *= 2
    z.sub_(1).copy_(z.flip(0))
    return y, z


@case(lambda: torch.rand(2, 3, 16), lambda: rand(4, 3, 5))
def functional_convolutions(x, w):  # type: ignore[no-untyped-def]
    return (
        F.conv1d(x, w, padding=2, dilation=1),
        F.conv_transpose1d(x, w.transpose(0, 1), stride=2),
        F.conv1d(x.reshape(1, 6, 16), w[:2, :1].repeat(3, 1, 1), groups=6),
    )


@case(lambda: rand(2, 4, 6, 6), lambda: rand(2, 8, 4, 3, 3))
def convolution_by_sample(x, w):  # type: ignore[no-untyped-def]
    b, c, h, width = x.shape
    return F.conv2d(x.view(1, b * c, h, width), w.view(-1, c, 3, 3), padding=1, groups=b).view(b, -1, h, width)
