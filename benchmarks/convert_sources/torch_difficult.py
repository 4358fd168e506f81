"""Programs on data: counts, branches, experts, ragged rows, searches, systems, transforms."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn

from convert_sources import torch_storage
from convert_sources.small_programs import Case, Registry, rand

_registry = Registry()
case = _registry.case


def cases() -> dict[str, Case]:
    """Return programs with example inputs, by name."""
    return {**_registry.cases, **torch_storage.registry.cases}


@case(lambda: torch.tensor([0, 3, 3, 0, 5, 5, 5, 2]))
def run_lengths(x):  # type: ignore[no-untyped-def]
    values, counts = torch.unique_consecutive(x, return_counts=True)
    return values[values != 0], counts, torch.repeat_interleave(values, counts)


@case(lambda: rand(7, 3), lambda: torch.tensor([2, 4, 1]))
def parts_padded_left(x, lengths):  # type: ignore[no-untyped-def]
    parts = torch.split(x, lengths.tolist())
    return rnn.pad_sequence(parts, batch_first=True, padding_side="left"), rnn.pad_sequence(parts, padding_value=-1.0)


@case(lambda: rand(5, 4))
def rows_above_mean(x):  # type: ignore[no-untyped-def]
    chosen_rows = x[x.sum(1) > x.sum(1).mean()]
    pad = torch.zeros(x.shape[0] - chosen_rows.shape[0], x.shape[1])
    return torch.cat([chosen_rows, pad]), chosen_rows.mean(0), chosen_rows.shape[0] / x.shape[0]


@case(lambda: rand(8, 3), lambda: torch.tensor(5))
def prefix_by_number(x, n):  # type: ignore[no-untyped-def]
    count = n.item()
    torch._check(count >= 1)
    torch._check(count <= x.shape[0])
    return x[:count].cumsum(0), x.narrow(0, 0, count).mean(0)


@case(lambda: rand(4, 6))
def choice_of_layer(x):  # type: ignore[no-untyped-def]
    functions = [torch.sin, torch.cos, torch.tanh]
    return functions[int(x.abs().sum().long() % 3)](x)


@case(lambda: torch.rand(4, 6) + 1)
def checked_values(x):  # type: ignore[no-untyped-def]
    if torch.isnan(x).any() or bool((x <= 0).any()):
        raise ValueError("expected positive numbers")
    assert x.max() < 100
    return x.log()


@case(lambda: torch.rand(4, 3))
def bisection_until_close(target):  # type: ignore[no-untyped-def]
    low, high = torch.zeros_like(target), torch.full_like(target, 2.0)
    while (high - low).max() > 1e-2:
        middle = (low + high) / 2
        inside = middle**3 < target
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return (low + high) / 2


@case(lambda: torch.tensor([[4.0, 4], [4.5, 4], [20, 20], [9, 9]]), lambda: torch.tensor([0.9, 0.8, 0.7, 0.6]))
def suppression_in_python(centres, scores):  # type: ignore[no-untyped-def]
    order = scores.argsort(descending=True)
    chosen_rows = []
    while order.numel() > 0:
        chosen_rows.append(order[0])
        distance = (centres[order[0]] - centres[order[1:]]).abs().amax(1)
        order = order[1:][distance > 2]
    return torch.stack(chosen_rows)


@case(lambda: rand(3, 12))
def nucleus_filter(logits):  # type: ignore[no-untyped-def]
    ordered, order = logits.sort(descending=True)
    over = ordered.softmax(-1).cumsum(-1) > 0.8
    over[:, 1:] = over[:, :-1].clone()
    over[:, 0] = False
    removed = torch.zeros_like(over).scatter(1, order, over)
    best = logits.masked_fill(removed, -math.inf)
    return best.softmax(-1), best.topk(3).indices, (~removed).sum(1)


@case(lambda: (torch.rand(1, 1, 8, 8) > 0.4).float())
def components_until_stable(mask):  # type: ignore[no-untyped-def]
    from torch._higher_order_ops.while_loop import while_loop

    labels = (torch.arange(64.0).reshape(1, 1, 8, 8) + 1) * mask

    def step(changed, labels):  # type: ignore[no-untyped-def]
        spread = F.max_pool2d(labels, 3, 1, 1) * mask
        return (spread != labels).any(), spread

    return while_loop(lambda changed, labels: changed.clone(), step, (torch.tensor(True), labels))[1]


@case(lambda: rand(3, 6))
class BranchesWithLayers(nn.Module):
    """Branches that own parameters and give several results."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(6, 4), nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4))

    def forward(self, x):  # type: ignore[no-untyped-def]
        def one(y):  # type: ignore[no-untyped-def]
            z = self.small(y)
            return z, z.sum(1)

        def other(y):  # type: ignore[no-untyped-def]
            z = self.large(y)
            return z, z.amax(1)

        return torch.cond(x.norm() > 4, one, other, (x,))


@case(lambda: rand(5, 3, 4))
def scan_backwards(x):  # type: ignore[no-untyped-def]
    from torch._higher_order_ops.scan import scan

    def step(state, row):  # type: ignore[no-untyped-def]
        new = state["h"] * 0.5 + row
        return {"h": new, "n": state["n"] + 1}, (new.sin(), new.sum(-1))

    return scan(step, {"h": torch.zeros(3, 4), "n": torch.zeros(3)}, x, reverse=True)


@case(lambda: rand(2, 6, 8))
class CapacityExperts(nn.Module):
    """Experts with room for a number of tokens; the rest passes by."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3, bias=False)
        self.first = nn.Parameter(torch.randn(3, 8, 16) / 4)
        self.second = nn.Parameter(torch.randn(3, 16, 8) / 4)

    def forward(self, x):  # type: ignore[no-untyped-def]
        tokens = x.reshape(-1, 8)
        weight, chosen = self.gate(tokens).softmax(-1).max(-1)
        hits = F.one_hot(chosen, 3)
        slot_number = (hits.cumsum(0) - 1)[torch.arange(tokens.shape[0]), chosen]
        chosen_rows = slot_number < 4
        slots = tokens.new_zeros(3, 4, 8)
        slots[chosen[chosen_rows], slot_number[chosen_rows]] = tokens[chosen_rows]
        done = torch.bmm(F.silu(torch.bmm(slots, self.first)), self.second)
        out = tokens.clone()
        out[chosen_rows] = done[chosen[chosen_rows], slot_number[chosen_rows]] * weight[chosen_rows, None]
        return out.view_as(x)


@case(lambda: rand(6, 8))
class HitExperts(nn.Module):
    """A loop over the experts that tokens chose, as hubs of models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.up = nn.Parameter(torch.randn(4, 8, 16) / 4)
        self.down = nn.Parameter(torch.randn(4, 16, 8) / 4)

    def forward(self, x):  # type: ignore[no-untyped-def]
        weights, chosen = torch.topk(self.gate(x).sigmoid(), 2)
        mask = F.one_hot(chosen, 4).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for expert in torch.greater(mask.sum((-1, -2)), 0).nonzero():
            index = expert[0]
            slot, token = torch.where(mask[index])
            part = F.gelu(x[token] @ self.up[index]) @ self.down[index]
            out.index_add_(0, token, part * weights[token, slot, None])
        return out


@case(lambda: rand(3, 5, 4), lambda: torch.tensor([3, 5, 1]))
class PackedBoth(nn.Module):
    """A packed recurrence in both directions, its last states and the mean over the lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence = nn.GRU(4, 3, 2, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):  # type: ignore[no-untyped-def]
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, state = self.recurrence(packed)
        rows, row_lengths = rnn.pad_packed_sequence(out, batch_first=True)
        last = rows[torch.arange(x.shape[0]), row_lengths - 1]
        return rows.sum(1) / row_lengths[:, None], last, torch.cat([state[-2], state[-1]], -1)


@case(lambda: rand(2, 5, 8), lambda: torch.tensor([[False] * 5, [False] * 3 + [True] * 2]))
class PaddedEncoder(nn.Module):
    """Layers of attention with padded keys, a causal mask and the weights as a result."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, kdim=8, vdim=8)

    def forward(self, x, padded):  # type: ignore[no-untyped-def]
        y = self.encoder(x, src_key_padding_mask=padded)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.attention(y, y, y, attn_mask=mask, average_attn_weights=False)


@case(lambda: rand(9, 4), lambda: torch.tensor([0, 3, 4, 9]))
def ragged_softmax(x, offsets):  # type: ignore[no-untyped-def]
    group = torch.bucketize(torch.arange(x.shape[0]), offsets[1:], right=True)
    count = offsets.shape[0] - 1
    index = group[:, None].expand_as(x)
    top = torch.full((count, 4), -math.inf).scatter_reduce(0, index, x, "amax")
    e = (x - top[group]).exp()
    return e / torch.zeros(count, 4).scatter_add(0, index, e)[group]


@case(lambda: rand(6, 3), lambda: torch.tensor([2, 0, 2, 1, 0, 2]))
def reductions_by_index(x, group):  # type: ignore[no-untyped-def]
    index = group[:, None].expand(-1, 3)
    base = torch.ones(4, 3)
    kinds = ("sum", "prod", "mean", "amax", "amin")
    scattered = [base.scatter_reduce(0, index, x, kind, include_self=False) for kind in kinds]
    indexed = [base.index_reduce(0, group, x, kind, include_self=True) for kind in kinds[1:]]
    return torch.stack(scattered), torch.stack(indexed)


@case(lambda: torch.rand(3, 7).cumsum(1), lambda: rand(3, 7), lambda: torch.rand(3, 4) * 3)
def interpolation_between_points(points, values, x):  # type: ignore[no-untyped-def]
    right = torch.searchsorted(points, x.contiguous()).clamp(1, points.shape[1] - 1)
    x0, x1 = points.gather(1, right - 1), points.gather(1, right)
    y0, y1 = values.gather(1, right - 1), values.gather(1, right)
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@case(lambda: rand(2, 6), lambda: rand(2, 3))
def search_unsorted(edges, x):  # type: ignore[no-untyped-def]
    order = edges.argsort(-1)
    left = torch.searchsorted(edges, x, sorter=order, side="left", out_int32=True)
    return left, torch.searchsorted(edges.sort(-1).values, x, right=True)


@case(lambda: torch.randint(0, 256, (2, 9, 9)))
def equalized_histogram(image):  # type: ignore[no-untyped-def]
    flat = image.flatten(1)
    histogram = torch.zeros(flat.shape[0], 256).scatter_add_(1, flat, torch.ones_like(flat, dtype=torch.float32))
    steps = histogram.cumsum(1)
    lowest = torch.where(steps > 0, steps, math.inf).amin(1, keepdim=True)
    table = ((steps - lowest) / (flat.shape[1] - lowest) * 255).round().clamp(0, 255)
    return table.gather(1, flat).reshape(image.shape), torch.bincount(image.flatten(), minlength=256)


@case(lambda: rand(6, 3), lambda: rand(6, 3))
def rigid_alignment(p, q):  # type: ignore[no-untyped-def]
    a, b = p - p.mean(0), q - q.mean(0)
    u, _, vh = torch.linalg.svd(a.T @ b)
    sign = torch.ones(3)
    sign[-1] = torch.det(u @ vh).sign()
    turn = (u * sign) @ vh
    return a @ turn, (a @ turn - b).square().sum(1).mean().sqrt()


@case(lambda: rand(4, 2) * 3, lambda: rand(4, 2) * 3)
def homography_of_points(source, target):  # type: ignore[no-untyped-def]
    x, y = source.unbind(1)
    u, v = target.unbind(1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    rows = torch.stack(
        [
            torch.stack([x, y, one, zero, zero, zero, -u * x, -u * y], 1),
            torch.stack([zero, zero, zero, x, y, one, -v * x, -v * y], 1),
        ],
        1,
    ).flatten(0, 1)
    solved = torch.linalg.solve(rows.double(), target.flatten().double()[:, None])[:, 0]
    return torch.cat([solved, torch.ones(1, dtype=torch.float64)]).view(3, 3)


@case(lambda: rand(8, 4))
def principal_components(x):  # type: ignore[no-untyped-def]
    centred = x - x.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(centred.T))
    scores = centred @ vectors.flip(1)[:, :2]
    return scores.abs(), values.flip(0) / values.sum(), torch.corrcoef(x.T)


@case(lambda: rand(2, 4, 4), lambda: rand(2, 4, 3))
def systems_of_kinds(a, b):  # type: ignore[no-untyped-def]
    spd = a @ a.mT + torch.eye(4)
    factor = torch.linalg.cholesky(spd)
    lu, pivots = torch.linalg.lu_factor(spd)
    sign, log = torch.linalg.slogdet(spd)
    return (
        torch.cholesky_solve(b, factor),
        torch.cholesky_inverse(factor),
        torch.linalg.lu_solve(lu, pivots, b),
        torch.linalg.solve_triangular(factor, b, upper=False),
        sign * log,
        torch.linalg.matrix_power(spd, -2),
        torch.linalg.multi_dot([spd[0], a[0], b[0]]),
    )


@case(lambda: rand(3, 5, 3))
def rank_and_inverses(x):  # type: ignore[no-untyped-def]
    return (
        torch.linalg.pinv(x),
        torch.linalg.matrix_rank(x),
        torch.linalg.svdvals(x),
        torch.linalg.norm(x, "nuc", dim=(1, 2)),
        torch.linalg.cond(x),
        torch.linalg.vander(x[0, 0]),
    )


@case(lambda: rand(2, 3, 8))
class ComplexNetwork(nn.Module):
    """Linear layers and a convolution of complex numbers with gates on the magnitude."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5, dtype=torch.cfloat))
        self.kernel = nn.Parameter(torch.randn(4, 3, 3, dtype=torch.cfloat))

    def forward(self, x):  # type: ignore[no-untyped-def]
        z = F.conv1d(torch.complex(x, -x), self.kernel)
        z = z @ self.weight
        gate = F.relu(z.abs() - 0.5) / (z.abs() + 1e-6)
        z = z * gate
        return torch.view_as_real(z), torch.einsum("bij,bkj->bik", z, z.conj()).real


@case(lambda: rand(2, 17))
def analytic_signal(x):  # type: ignore[no-untyped-def]
    n = x.shape[-1]
    spectrum = torch.fft.fft(x)
    gain = torch.zeros(n)
    gain[0] = 1
    gain[1 : (n + 1) // 2] = 2
    z = torch.fft.ifft(spectrum * gain)
    phase = torch.angle(z)
    steps = torch.diff(phase)
    return z.abs(), phase[:, :1] + (torch.remainder(steps + math.pi, 2 * math.pi) - math.pi).cumsum(-1)


@case(lambda: rand(2, 8))
def cosine_transform(x):  # type: ignore[no-untyped-def]
    n = x.shape[-1]
    v = torch.cat([x[:, ::2], x[:, 1::2].flip(1)], 1)
    turn = torch.exp(-1j * math.pi * torch.arange(n) / (2 * n))
    return (torch.fft.fft(v) * turn).real * 2


@case(lambda: rand(2, 3, 8, 10))
def spectral_images(x):  # type: ignore[no-untyped-def]
    z = torch.fft.fftshift(torch.fft.fft2(x, norm="ortho"), dim=(-2, -1))
    z[..., 2:4, 3:6] = 0
    back = torch.fft.ifft2(torch.fft.ifftshift(z, dim=(-2, -1)), norm="ortho").real
    return back, torch.fft.irfftn(torch.fft.rfftn(x, dim=(1, 2, 3)), s=x.shape[1:], dim=(1, 2, 3))


@case(lambda: rand(2, 20), lambda: rand(5))
def convolution_by_spectra(x, kernel):  # type: ignore[no-untyped-def]
    size = x.shape[-1] + kernel.shape[-1] - 1
    y = torch.fft.irfft(torch.fft.rfft(x, n=size) * torch.fft.rfft(kernel, n=size), n=size)
    return y, torch.fft.hfft(torch.fft.ihfft(x)), torch.fft.fftfreq(8) + torch.fft.rfftfreq(15)


@case(lambda: rand(2, 64))
def spectrogram_round_trip(x):  # type: ignore[no-untyped-def]
    window = torch.hann_window(16, periodic=True)
    z = torch.stft(x, 16, 4, window=window, return_complex=True, pad_mode="constant", normalized=True)
    phase = z / z.abs().clamp(min=1e-6)
    return torch.istft(z.abs() ** 0.5 * phase, 16, 4, window=window, normalized=True, length=x.shape[-1])


@case(lambda: rand(7, 2), lambda: rand(3, 2))
def clusters_moved(x, centres):  # type: ignore[no-untyped-def]
    for _ in range(3):
        nearest = torch.cdist(x, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add(0, nearest, x)
        counts = torch.bincount(nearest, minlength=centres.shape[0])
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
    return centres, nearest


@case(lambda: torch.rand(5, 5).round())
def rank_of_pages(links):  # type: ignore[no-untyped-def]
    out = links.sum(1, keepdim=True)
    step = torch.where(out > 0, links / out.clamp(min=1), 1 / links.shape[0])
    adjacency = step.to_sparse()
    rank = torch.full((links.shape[0], 1), 1 / links.shape[0])
    for _ in range(4):
        rank = 0.15 / links.shape[0] + 0.85 * torch.sparse.mm(adjacency.t(), rank)
    return rank


@case(lambda: rand(4, 5), lambda: torch.rand(4, 5) > 0.5)
def rows_of_compressed(x, chosen_rows):  # type: ignore[no-untyped-def]
    matrix = (x * chosen_rows).to_sparse_csr()
    return matrix @ x.T, matrix.to_dense()


@case(lambda: rand(2, 2, 16, 8), lambda: rand(2, 2, 16, 8))
def scored_attention(q, k):  # type: ignore[no-untyped-def]
    from torch.nn.attention.flex_attention import flex_attention

    def near(score, batch, head, at, other):  # type: ignore[no-untyped-def]
        return torch.where((at - other).abs() < 4, score - 0.1 * (at - other).abs(), -math.inf)

    return flex_attention(q, k, k, score_mod=near)


@case(lambda: rand(4, 3))
def second_derivatives(x):  # type: ignore[no-untyped-def]
    def energy(y):  # type: ignore[no-untyped-def]
        return (y.sin() * y.square()).sum() + y.prod()

    hessians = torch.vmap(torch.func.hessian(energy))(x)
    value, pullback = torch.func.vjp(lambda y: y.tanh() @ y.T, x)
    return hessians, pullback(torch.ones_like(value))[0]


@case(lambda: torch.rand(3, 4) + 0.5, lambda: torch.rand(3, 4) + 0.5)
def densities_of_kinds(a, b):  # type: ignore[no-untyped-def]
    d = torch.distributions
    normal = d.MultivariateNormal(a, scale_tril=torch.diag_embed(b), validate_args=False)
    mixture = d.MixtureSameFamily(d.Categorical(logits=a), d.Normal(a, b))
    return (
        normal.log_prob(b),
        mixture.log_prob(b[:, 0]),
        d.Beta(a, b).log_prob(torch.tensor(0.3)),
        d.kl_divergence(d.Gamma(a, b), d.Gamma(b, a)),
        d.Dirichlet(a).entropy(),
        d.StudentT(a).log_prob(b),
        d.VonMises(a, b).log_prob(b),
    )


@case(lambda: rand(2, 6, 5))
class TagDecoder(nn.Module):
    """The best path of tags with pointers back, read from the end."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = nn.Parameter(torch.randn(5, 5))

    def forward(self, emissions):  # type: ignore[no-untyped-def]
        score, pointers = emissions[:, 0], []
        for t in range(1, 6):
            best, back = (score[:, :, None] + self.moves).max(1)
            score = best + emissions[:, t]
            pointers.append(back)
        total, tag = score.max(1)
        path = [tag]
        for back in reversed(pointers):
            tag = back.gather(1, tag[:, None])[:, 0]
            path.insert(0, tag)
        return total, torch.stack(path, 1)


@case(lambda: torch.rand(2, 1, 10, 10))
def edges_with_hysteresis(image):  # type: ignore[no-untyped-def]
    kernel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    g = F.conv2d(F.pad(image, (1, 1, 1, 1), mode="replicate"), torch.stack([kernel, kernel.T])[:, None])
    size, angle = torch.hypot(g[:, 0], g[:, 1]), torch.atan2(g[:, 1], g[:, 0])
    sector = (torch.round(angle / (math.pi / 4)) % 4).long()
    padded = F.pad(size, (1, 1, 1, 1))
    shifts = [(0, 1), (1, 1), (1, 0), (1, -1)]
    height, width = size.shape[-2:]
    chosen_rows = torch.zeros_like(size, dtype=torch.bool)
    for number, (dy, dx) in enumerate(shifts):
        ahead = padded[:, 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]
        behind = padded[:, 1 - dy : 1 - dy + height, 1 - dx : 1 - dx + width]
        chosen_rows |= (sector == number) & (size >= ahead) & (size >= behind)
    strong, weak = chosen_rows & (size > 2), (chosen_rows & (size > 1)).float()
    near = F.max_pool2d(strong.float(), 3, 1, 1)
    return near * weak, size


@case(lambda: rand(3, 4, 6), lambda: torch.tensor([0, 1, 1]))
class Adapters(nn.Module):
    """Low-rank changes of a layer, one for each row of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 5)
        self.down = nn.ParameterList(nn.Parameter(torch.randn(2, 6)) for _ in range(2))
        self.up = nn.ParameterList(nn.Parameter(torch.randn(5, 2)) for _ in range(2))

    def forward(self, x, which):  # type: ignore[no-untyped-def]
        down, up = torch.stack(list(self.down)), torch.stack(list(self.up))
        change = torch.einsum("bti,bri,bor->bto", x, down[which], up[which])
        return self.base(x) + change


@case(lambda: torch.tensor([[5, 2, 0, 0], [1, 3, 4, 2]]))
class TokensByLength(nn.Module):
    """Lengths from the padding, positions from the mask, the last token of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.by_position = nn.Embedding(8, 6, padding_idx=0, max_norm=1.0), nn.Embedding(10, 6)

    def forward(self, ids):  # type: ignore[no-untyped-def]
        mask = ids.ne(0)
        positions = (mask.cumsum(1) * mask).long()
        y = self.table(ids) + self.by_position(positions)
        lengths = mask.sum(1)
        last = y[torch.arange(ids.size(0)), lengths - 1]
        return last, y[mask], F.embedding_bag(ids, self.table.weight, mode="max", padding_idx=0)
