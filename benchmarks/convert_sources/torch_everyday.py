"""Programs as users write them: early exits, loops on data, structured results, shared layers, writes."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn

from convert_sources.small_programs import Case, Registry, rand

_registry = Registry()
case = _registry.case


def cases() -> dict[str, Case]:
    """Return programs with example inputs, by name."""
    return dict(_registry.cases)


@case(lambda: rand(3, 8))
class ExitEarly(nn.Module):
    """Layers until the classifier of one is certain about every row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(4))
        with torch.no_grad():
            self.heads[1].weight.mul_(40)

    def forward(self, x):  # type: ignore[no-untyped-def]
        logits = None
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = torch.tanh(layer(x))
            logits = head(x)
            if logits.softmax(-1).amax(-1).min() > 0.6:
                break
        return logits, x


@case(lambda: torch.tensor([[1, 7, 3, 2], [4, 4, 4, 4]]))
class DecodeUntilEnd(nn.Module):
    """Greedy decoding that stops when every row has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.head = nn.Embedding(9, 6), nn.GRUCell(6, 6), nn.Linear(6, 9)

    def forward(self, ids):  # type: ignore[no-untyped-def]
        state = self.table(ids).mean(1)
        token = ids[:, -1]
        ended = torch.zeros_like(token, dtype=torch.bool)
        tokens = []
        for _ in range(6):
            state = self.cell(self.table(token), state)
            token = self.head(state).argmax(-1).masked_fill(ended, 0)
            tokens.append(token)
            ended |= token == 2
            if ended.all():
                break
        return torch.stack(tokens, 1), ended


@case(lambda: rand(4, 6))
def power_method_until_close(x):  # type: ignore[no-untyped-def]
    matrix = x @ x.T + 0.1 * torch.eye(x.shape[0])
    vector = torch.ones(x.shape[0])
    steps = 0
    while steps < 8:
        following = matrix @ vector
        following = following / following.norm()
        if (following - vector).abs().max() < 0.05:
            break
        vector = following
        steps += 1
    return vector, vector @ matrix @ vector, steps


@dataclasses.dataclass
class Detection:
    """A result with parts that are None."""

    boxes: torch.Tensor
    scores: torch.Tensor
    masks: torch.Tensor | None = None
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


@case(lambda: rand(2, 5, 8))
class StructuredResults(nn.Module):
    """A dataclass, a named tuple and None in one dict."""

    class Pair(NamedTuple):
        """Two tensors."""

        mean: torch.Tensor
        spread: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.box, self.score = nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, x):  # type: ignore[no-untyped-def]
        detection = Detection(self.box(x).sigmoid(), self.score(x)[..., 0], extra={"peak": x.amax(1)})
        return {"detection": detection, "pair": self.Pair(x.mean(1), None), "loss": None, "parts": [x[:, :2], x[:, 2:]]}


@case(lambda: rand(2, 6, 8), lambda: {"mask": torch.rand(2, 6) > 0.3, "scale": 0.5, "return_weights": True})
class KeywordsAndFlags(nn.Module):
    """Optional tensors, numbers and flags by name."""

    def forward(self, x, mask=None, *, scale=1.0, return_weights=False, bias=None):  # type: ignore[no-untyped-def]
        scores = x @ x.mT * scale
        if bias is not None:
            scores = scores + bias
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], torch.finfo(x.dtype).min)
        weights = scores.softmax(-1)
        return (weights @ x, weights) if return_weights else weights @ x


@case(lambda: [rand(2, 3), rand(2, 5), rand(2, 3)], lambda: {"a": rand(2, 4), "b": (rand(2), rand(2, 1))})
def lists_of_tensors(xs, named):  # type: ignore[no-untyped-def]
    xs = [x * (i + 1) for i, x in enumerate(xs)]
    xs[1] = xs[1].flip(-1)
    total = torch.cat(xs, -1).sum(-1) + named["b"][0]
    return [x.relu() for x in xs], total, torch.block_diag(*xs), named["a"] + named["b"][1]


@case(lambda: rand(3, 4, 6))
def writes_to_views(x):  # type: ignore[no-untyped-def]
    y = x.clone()
    y[:, ::2].mul_(2).add_(1)
    y.transpose(1, 2)[..., 0] = 0
    y.view(3, -1)[:, -3:].copy_(x[:, 0, :3])
    y[0].diagonal().fill_(7)
    y[..., -1:] += y[..., :1]
    y.unbind(0)[2].clamp_(-1, 1)
    y[y > 3] = 3
    y.select(0, 1).index_fill_(0, torch.tensor([1, 3]), -2.0)
    return y, y.sum()


@case(lambda: rand(4, 6), lambda: torch.tensor(3))
class CondWithParts(nn.Module):
    """torch.cond in a loop of torch.cond, with branches of several results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, level):  # type: ignore[no-untyped-def]
        def deep(x):  # type: ignore[no-untyped-def]
            y = torch.cond(x.mean() > 0, lambda x: self.second(x).relu(), lambda x: x - 1, (x,))
            return y, y.sum(0)

        def shallow(x):  # type: ignore[no-untyped-def]
            y = self.first(x)
            return y, y.amax(0)

        y, summary = torch.cond(level > 2, deep, shallow, (x,))
        return y + x, summary


@case(lambda: torch.tensor([[3, 1, 4, 1], [5, 2, 6, 0]]))
class SharedWeights(nn.Module):
    """One layer under several names, a tied head, and a list that holds a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 6)
        block = nn.Sequential(nn.Linear(6, 6), nn.GELU())
        self.blocks = nn.ModuleList([block, block, nn.Sequential(block, nn.LayerNorm(6))])
        self.head = nn.Linear(6, 8, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):  # type: ignore[no-untyped-def]
        x = self.table(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x), x @ self.blocks[0][0].weight


@case(lambda: [rand(5, 4), rand(3, 4), rand(2, 4)])
class PackedRows(nn.Module):
    """Rows of several lengths, packed for a recurrence and padded after it."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence, self.head = nn.GRU(4, 5, bidirectional=True), nn.Linear(10, 2)

    def forward(self, rows):  # type: ignore[no-untyped-def]
        packed = rnn.pack_sequence(rows, enforce_sorted=False)
        result, last = self.recurrence(packed)
        padded, lengths = rnn.pad_packed_sequence(result, batch_first=True)
        mask = torch.arange(padded.shape[1]) < lengths[:, None]
        return self.head(padded) * mask[..., None], last.mT


@case(lambda: rand(2, 8), lambda: rand(2, 8))
def complex_numbers(re, im):  # type: ignore[no-untyped-def]
    z = torch.complex(re, im)
    rotated = z * torch.polar(torch.ones(8), torch.linspace(0, 3, 8))
    rotated = torch.where(rotated.abs() > 1, rotated / rotated.abs(), rotated)
    outer = torch.einsum("bi,bj->bij", z, z.conj())
    return rotated.angle(), torch.view_as_real(rotated.exp()), outer.sum((-2, -1)).real, z.cumprod(-1).imag


@case(lambda: rand(2, 3, 16))
def spectra(x):  # type: ignore[no-untyped-def]
    spectrum = torch.fft.rfft(x, norm="ortho")
    keep = torch.fft.rfftfreq(x.shape[-1]) < 0.25
    smooth = torch.fft.irfft(spectrum * keep, n=x.shape[-1], norm="ortho")
    plane = torch.fft.fftshift(torch.fft.fft2(x), dim=(-2, -1)).abs().log1p()
    return smooth, plane, torch.fft.ifft(torch.fft.fft(x) * torch.fft.fft(smooth).conj()).real, torch.fft.hfft(spectrum)


@case(lambda: rand(3, 5, 4))
def linear_algebra(x):  # type: ignore[no-untyped-def]
    gram = x.mT @ x + torch.eye(4)
    values, vectors = torch.linalg.eigh(gram)
    q, r = torch.linalg.qr(x)
    factor = torch.linalg.cholesky(gram)
    solved = torch.cholesky_solve(x.mT, factor)
    sign, logarithm = torch.linalg.slogdet(gram)
    norms = torch.linalg.norm(x, ord="nuc", dim=(-2, -1)), torch.linalg.matrix_norm(x, 2), torch.linalg.cond(gram)
    return values, (vectors * vectors).sum(-2), q @ r, solved, sign * logarithm, norms, torch.linalg.pinv(x)


@case(lambda: rand(2, 3, 4, 5), lambda: rand(5, 6), lambda: rand(2, 3, 6))
def einsum_with_ellipsis(x, w, v):  # type: ignore[no-untyped-def]
    y = torch.einsum("...i,ij->...j", x, w)
    z = torch.einsum("b...cd,b...d->...bc", y, v)
    return y, z, torch.einsum("...ii->...i", x[..., :4]), torch.einsum("a...,b...->ab", v, v), torch.einsum("bijk->", x)


@case(lambda: rand(4, 6), lambda: torch.tensor([0, 2, 2, 3, 0]), lambda: torch.tensor([1, 5, 5, 0, 1]), lambda: rand(5))
def accumulated_writes(x, rows, columns, values):  # type: ignore[no-untyped-def]
    a = x.index_put((rows, columns), values, accumulate=True)
    b = torch.zeros(4, 6).index_put_((rows,), values[:, None].expand(-1, 6), accumulate=True)
    c = x.clone()
    c[:, columns[:2]] = -1.0
    c[rows[:2], ..., None] = 0.5
    return (
        a,
        b,
        c,
        x.index_add(0, rows, values[:, None].expand(-1, 6), alpha=2),
        x.put(columns, values, accumulate=True),
    )


@case(lambda: rand(7, 3), lambda: torch.tensor([0, 1, 0, 3, 3, 3, 1]))
def reductions_by_group(x, group):  # type: ignore[no-untyped-def]
    at = group[:, None].expand_as(x)
    start = torch.zeros(5, 3)
    results = [
        start.scatter_reduce(0, at, x, how, include_self=own)
        for how in ("sum", "mean", "amax", "amin", "prod")
        for own in (True, False)
    ]
    counts = torch.bincount(group, minlength=5)
    softmax = (x - results[5][group]).exp()
    softmax = softmax / start.scatter_add(0, at, softmax)[group]
    return results, counts, softmax, x.index_reduce(0, group.clamp(max=6), x, "amax")


@case(lambda: rand(2, 3, 8, 9))
def unfolded_windows(x):  # type: ignore[no-untyped-def]
    columns = F.unfold(x, (3, 2), dilation=(1, 2), padding=1, stride=(2, 1))
    folded = F.fold(columns, (8, 9), (3, 2), dilation=(1, 2), padding=1, stride=(2, 1))
    weight = F.fold(torch.ones_like(columns), (8, 9), (3, 2), dilation=(1, 2), padding=1, stride=(2, 1))
    windows = x.unfold(-1, 4, 2).unfold(-3, 3, 3)
    return folded / weight.clamp(min=1), windows.amax((-1, -2)), windows.permute(0, 2, 3, 1, 4, 5).flatten(3).mean(-1)


@case(lambda: rand(3, 7), lambda: torch.tensor([-1.0, -0.2, 0.1, 0.9]))
def placed_in_order(x, edges):  # type: ignore[no-untyped-def]
    bins = torch.bucketize(x, edges), torch.bucketize(x, edges, right=True)
    rows = x.sort(-1).values
    return (
        bins,
        torch.searchsorted(rows, x, side="right"),
        torch.searchsorted(rows, x.flip(1), out_int32=True),
        F.one_hot(bins[0], 5).sum(1),
    )


@case(lambda: torch.tensor([4, 2, 4, 9, 2, 2, 0]), lambda: rand(7, 3))
def unique_groups(keys, x):  # type: ignore[no-untyped-def]
    values, inverse, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    sums = torch.zeros(values.shape[0], 3).index_add(0, inverse, x)
    return values, sums / counts[:, None], sums[inverse], counts.argmax()


@case(lambda: rand(6, 4))
def rows_by_mask(x):  # type: ignore[no-untyped-def]
    keep = x[:, 0] > 0
    if not keep.any():
        return x.new_zeros(1, 4), keep.sum()
    rows = x[keep]
    rows = rows - rows.mean(0)
    result = torch.zeros_like(x)
    result[keep] = rows
    return result[: x.shape[0]], keep.sum()


@case(lambda: rand(2, 5, 6), lambda: torch.tensor([4, 2]))
def ragged_by_nested_tensor(x, lengths):  # type: ignore[no-untyped-def]
    nested = torch.nested.nested_tensor([row[:n] for row, n in zip(x, lengths.tolist(), strict=True)])
    return torch.nested.to_padded_tensor(nested * 2, 0.0)


@case(lambda: rand(3, 6))
def choice_by_python_float(x):  # type: ignore[no-untyped-def]
    scale = x.abs().max().item()
    return x / scale if scale > 1 else x


@case(lambda: rand(3, 6))
def number_of_python(x):  # type: ignore[no-untyped-def]
    largest = float(x.abs().max())
    bounds = [largest * i / 4 for i in range(1, 4)]
    return torch.stack([(x > b).float().mean() for b in bounds])


@case(lambda: torch.tensor([2, 0, 1]), lambda: rand(3, 4))
class Dispatched(nn.Module):
    """One layer for each row, chosen by a number of the row."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, which, x):  # type: ignore[no-untyped-def]
        return torch.stack([self.experts[i](row) for i, row in zip(which.tolist(), x, strict=True)])


@case(lambda: rand(2, 3, 8, 8))
class AttentionPooling(nn.Module):
    """Named parts of einops by hand, a registered hook and a parametrized weight."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(4, 6))
        self.project = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 6, 2, stride=2))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.project.register_forward_hook(lambda module, inputs, result: result * 2)

    def forward(self, x):  # type: ignore[no-untyped-def]
        tokens = self.project(x).flatten(2).mT
        pooled, weights = self.attention(self.query.expand(x.shape[0], -1, -1), tokens, tokens)
        return pooled, weights.argmax(-1)


@case(lambda: rand(5, 3), lambda: rand(6, 3))
def assignment_in_turn(a, b):  # type: ignore[no-untyped-def]
    cost = torch.cdist(a, b)
    chosen = []
    for _ in range(5):
        flat = cost.argmin()
        row, column = flat // cost.shape[1], flat % cost.shape[1]
        chosen.append(torch.stack([row, column]))
        cost = cost.index_fill(0, row, torch.inf).index_fill(1, column, torch.inf)
    return torch.stack(chosen)


@case(lambda: torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0]), lambda: torch.tensor([0, 2]))
def integers_and_numpy_style(x, pair):  # type: ignore[no-untyped-def]
    first, last = pair
    window = x[first : last + 1]
    y = x[[0, -1, 2]]
    z = x[torch.arange(5) % 2 == 0]
    return window.mean(), y, z.shape[0] + z.sum(), x[-2]


@case(lambda: rand(2, 4, 6), lambda: rand(2, 4, 6))
def losses_with_weights(x, y):  # type: ignore[no-untyped-def]
    target = y.argmax(1)
    weight = torch.linspace(0.5, 1.5, 4)
    a = F.cross_entropy(x, target, weight=weight, label_smoothing=0.1, ignore_index=2)
    b = F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=torch.full((6,), 2.0), reduction="none")
    c = F.cosine_embedding_loss(x[0], y[0], torch.tensor([1, -1, 1, -1]))
    d = F.gaussian_nll_loss(x, y, y.exp()) + F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean")
    return (
        a,
        b,
        c,
        d,
        F.triplet_margin_loss(x[0], y[0], x[1]),
        F.ctc_loss(
            x.permute(2, 0, 1).log_softmax(-1),
            torch.tensor([[1, 2], [3, 1]]),
            torch.tensor([6, 5]),
            torch.tensor([2, 1]),
        ),
    )


@case(lambda: rand(2, 3, 12, 12))
class TilesAndBlend(nn.Module):
    """A network over overlapping tiles in Python loops, blended by weights."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, image):  # type: ignore[no-untyped-def]
        size, stride = 8, 4
        height, width = image.shape[-2:]
        result = image.new_zeros(image.shape[0], 2, height, width)
        weight = image.new_zeros(1, 1, height, width)
        for top in range(0, height - size + 1, stride):
            for left in range(0, width - size + 1, stride):
                tile = image[..., top : top + size, left : left + size]
                result[..., top : top + size, left : left + size] += self.body(tile)
                weight[..., top : top + size, left : left + size] += 1
        return result / weight
