"""Small programs beyond ``torch-small``: indexing, sorting, control flow and state as users write."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from convert_sources.small_programs import Case, Registry, rand

_registry = Registry()
case, layer = _registry.case, _registry.layer


def cases() -> dict[str, Case]:
    """Return programs with example inputs, by name."""
    return dict(_registry.cases)


layer("lazy_norms", lambda: nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d()), (2, 3, 8, 8))
layer("gru_bidirectional", lambda: nn.GRU(6, 5, 2, bidirectional=True), (7, 2, 6))
layer("rnn_relu", lambda: nn.RNN(6, 5, nonlinearity="relu", bidirectional=True), (7, 2, 6))
layer("lstm_unbatched", lambda: nn.LSTM(6, 5), (7, 6))
layer("conv_transpose1d_groups", lambda: nn.ConvTranspose1d(4, 6, 4, 3, 1, 1, groups=2, dilation=2), (2, 4, 7))
layer("conv_transpose3d", lambda: nn.ConvTranspose3d(2, 3, 3, 2), (1, 2, 4, 4, 4))
layer("conv_reflect", lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (2, 3, 6, 7))
layer("conv_circular", lambda: nn.Conv1d(3, 4, 3, padding=2, padding_mode="circular"), (2, 3, 8))
layer("max_pool_ceil", lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), (2, 3, 8, 10))
layer("adaptive_max_indices", lambda: nn.AdaptiveMaxPool1d(3, return_indices=True), (2, 3, 10))
layer("norm_pool", lambda: nn.LPPool1d(3, 2), (2, 3, 10))
layer("cross_map_norm", lambda: nn.LocalResponseNorm(3), (2, 5, 4, 4))
layer("upsample_trilinear", lambda: nn.Upsample(scale_factor=(2, 1.5, 2), mode="trilinear"), (1, 2, 3, 4, 5))
layer("unflatten", lambda: nn.Sequential(nn.Linear(6, 6), nn.Flatten(), nn.Unflatten(1, (2, 3))), (4, 6))
layer(
    "multihead_bias_kv",
    lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True),
    *[(5, 2, 8), (7, 2, 8), (7, 2, 8)],
)
layer("adaptive_softmax", lambda: AdaptiveLogProbabilities(), (5, 8))
layer("orthogonal", lambda: torch.nn.utils.parametrizations.orthogonal(nn.Linear(5, 5)), (3, 5))
layer("zero_pad", lambda: nn.Sequential(nn.ZeroPad2d((1, 2, 0, 1)), nn.ConstantPad2d(1, 3.5)), (2, 3, 4, 5))


class AdaptiveLogProbabilities(nn.Module):
    """The probabilities of an adaptive softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10])

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.head.log_prob(x), self.head.predict(x)


@case(lambda: rand(4, 6))
def sort_by_key(x):  # type: ignore[no-untyped-def]
    order = torch.argsort(x[:, 0], descending=True)
    return x[order], torch.sort(x, dim=0).indices, torch.topk(x, 3, dim=0, largest=False)


@case(lambda: torch.randint(0, 4, (4, 6)))
def sort_stable_integers(x):  # type: ignore[no-untyped-def]
    return torch.sort(x, dim=1, stable=True), torch.sort(x.flip(1), dim=1, descending=True, stable=True)


@case(lambda: torch.tensor([3, 1, 3, 0, 1, 1]))
def counts(x):  # type: ignore[no-untyped-def]
    return torch.bincount(x, minlength=5), torch.bincount(x, weights=x * 0.5, minlength=4)


@case(lambda: rand(20))
def histogram(x):  # type: ignore[no-untyped-def]
    return torch.histc(x, 8, -2, 2), torch.histogram(x, torch.linspace(-3, 3, 7)).hist


@case(lambda: torch.tensor([3, 1, 3, 0, 1, 1]))
def unique_inverse(x):  # type: ignore[no-untyped-def]
    values, inverse = torch.unique(x, return_inverse=True)
    return values, inverse, torch.unique_consecutive(x)


@case(lambda: torch.randint(0, 3, (6, 2)))
def unique_rows(x):  # type: ignore[no-untyped-def]
    return torch.unique(x, dim=0)


@case(lambda: rand(4, 6))
def running_extremes(x):  # type: ignore[no-untyped-def]
    values, order = torch.cummax(x, 1)
    return values, order, torch.cummin(x, 0), torch.cumulative_trapezoid(x), torch.trapz(x)


@case(lambda: rand(5, 3), lambda: torch.tensor([0, 1, 0, 2, 1]))
def segment_reductions(x, group):  # type: ignore[no-untyped-def]
    index = group[:, None].expand_as(x)
    zero = torch.zeros(3, 3)
    return (
        zero.scatter_reduce(0, index, x, "mean", include_self=False),
        zero.scatter_reduce(0, index, x, "prod", include_self=True),
        zero.scatter_reduce(0, index, x, "amin", include_self=False),
        zero.index_reduce(0, group, x, "amax"),
    )


@case(lambda: rand(5, 3), lambda: torch.tensor([0, 1, 1, 2, 4]), lambda: torch.tensor([1, 0, 3, 2, 3]))
def graph_convolution(x, source, target):  # type: ignore[no-untyped-def]
    degree = torch.zeros(x.shape[0]).index_add(0, target, torch.ones_like(target, dtype=x.dtype)).clamp(min=1)
    messages = x[source] / degree[source, None].sqrt()
    return torch.zeros_like(x).index_add(0, target, messages) / degree[:, None].sqrt()


@case(lambda: rand(4, 3), lambda: torch.tensor([[0, 1, 1, 3], [1, 0, 2, 2]]))
def attention_on_edges(x, edges):  # type: ignore[no-untyped-def]
    source, target = edges
    scores = (x[source] * x[target]).sum(-1)
    top = torch.full((4,), -math.inf).scatter_reduce(0, target, scores, "amax")
    weights = (scores - top[target]).exp()
    total = torch.zeros(4).scatter_add(0, target, weights)
    return torch.zeros_like(x).index_add(0, target, x[source] * (weights / total[target])[:, None])


@case(lambda: rand(4, 6))
def assign_slices(x):  # type: ignore[no-untyped-def]
    y = torch.zeros(4, 8)
    y[:, 1:7] = x
    y[::2, ::3] = -1
    y[..., -1] = x.sum(1)
    y[1:3, [0, 2]] *= 3
    return y


@case(lambda: rand(3, 4, 5))
def assign_through_views(x):  # type: ignore[no-untyped-def]
    y = x.clone()
    part = y.permute(2, 0, 1)[1:4]
    part[0].fill_(7)
    part.unflatten(2, (2, 2)).select(3, 1).neg_()
    y.diagonal(dim1=0, dim2=1).zero_()
    return y


@case(lambda: rand(4, 6), lambda: torch.rand(4, 6))
def assign_by_masks(x, y):  # type: ignore[no-untyped-def]
    z = x.clone()
    z[z > 0.5] = y[z > 0.5]
    z.masked_fill_(y > 0.9, -math.inf)
    z[:, y[0] > 0.5] = 0
    return z, torch.where(y > 0.5, z, 2.0)


@case(lambda: rand(4, 6), lambda: torch.tensor([0, 2, 2, 1]), lambda: torch.tensor([1, 1, 1, 5]))
def accumulate_at_pairs(x, i, j):  # type: ignore[no-untyped-def]
    y = x.clone()
    y.index_put_((i, j), torch.tensor([1.0, 2, 3, 4]), accumulate=True)
    return y, x[i, :, None][:, j], x[i[:, None], j]


@case(lambda: rand(2, 3, 4, 5), lambda: torch.tensor([2, 0]), lambda: torch.tensor([[1], [0], [1]]))
def advanced_indexing(x, i, j):  # type: ignore[no-untyped-def]
    return x[:, i, :, i], x[j, i], x[..., i, :], x[:, :, i, 1:3], x[1, i, :, -1], x[:, None, i]


@case(lambda: rand(4, 6))
def take_and_put(x):  # type: ignore[no-untyped-def]
    i = torch.tensor([3, 0, 23])
    ordered = torch.take_along_dim(x, x.argsort(1), 1)
    return x.take(i), torch.put(x, i, torch.ones(3)), ordered, x.masked_scatter(x > 0, x * 2)


@case(lambda: rand(5, 3), lambda: rand(4, 3))
def distance_norms(x, y):  # type: ignore[no-untyped-def]
    return torch.cdist(x, y, p=1), torch.cdist(x, y, p=math.inf), torch.cdist(x, y, p=3.0), F.pdist(x)


@case(lambda: torch.sort(rand(3, 6)).values, lambda: rand(3, 4))
def search_in_rows(edges, x):  # type: ignore[no-untyped-def]
    return torch.searchsorted(edges, x, right=True), torch.searchsorted(edges, x, out_int32=True)


@case(lambda: rand(5, 4), lambda: rand(5, 4))
def mapped_over_rows(x, y):  # type: ignore[no-untyped-def]
    return torch.vmap(torch.dot)(x, y), torch.vmap(lambda row: row / row.norm(), in_dims=1, out_dims=1)(x)


@case(lambda: rand(5, 4))
def gradient_inside(x):  # type: ignore[no-untyped-def]
    return torch.func.grad(lambda y: (y.sin() * y).sum())(x), torch.func.vmap(torch.func.grad(lambda r: r.prod()))(x)


@case(lambda: rand(3))
def jacobian_inside(x):  # type: ignore[no-untyped-def]
    return torch.func.jacrev(lambda y: y.sin() * y.sum())(x), torch.func.hessian(lambda y: (y**3).sum())(x)


@case(lambda: rand(2, 8), lambda: rand(2, 8))
def complex_arithmetic(x, y):  # type: ignore[no-untyped-def]
    z = torch.complex(x, y)
    w = z * z.conj() + torch.exp(1j * x) / (1 + z.abs())
    return w.real, w.imag, z.angle(), torch.view_as_real(z @ z.mH)


@case(lambda: rand(2, 6, 8))
def fourier_mixing(x):  # type: ignore[no-untyped-def]
    return torch.fft.fft2(x).real, torch.fft.fftshift(torch.fft.ifft(x)).abs(), torch.fft.rfft(x, norm="ortho").abs()


@case(lambda: rand(2, 6, 8), lambda: rand(6, 5))
def global_filter(x, w):  # type: ignore[no-untyped-def]
    return torch.fft.irfft2(torch.fft.rfft2(x) * torch.complex(w, w * 0.5), s=(6, 8))


@case(lambda: rand(2, 800))
class MelFrontEnd(nn.Module):
    """A logarithmic mel spectrogram from a Fourier transform."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(128))
        self.register_buffer("filters", torch.rand(65, 20))

    def forward(self, x):  # type: ignore[no-untyped-def]
        spectrum = torch.stft(x, 128, 64, 128, self.window, center=True, pad_mode="reflect", return_complex=True)
        return torch.log(spectrum.abs().square().mT @ self.filters + 1e-6)


@case(lambda: rand(1, 65, 12), lambda: rand(1, 65, 12))
def spectrogram_inverse(real, imaginary):  # type: ignore[no-untyped-def]
    return torch.istft(torch.complex(real, imaginary), 128, 32, window=torch.hann_window(128))


@case(lambda: rand(2, 3, 6, 7), lambda: torch.rand(2, 4, 5, 2) * 2.4 - 1.2)
def grid_sample_modes(x, grid):  # type: ignore[no-untyped-def]
    return (
        F.grid_sample(x, grid, mode="bicubic", padding_mode="reflection", align_corners=True),
        F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False),
        F.grid_sample(x, grid, mode="nearest", padding_mode="zeros", align_corners=True),
    )


@case(lambda: rand(1, 2, 4, 5, 6), lambda: torch.rand(1, 2, 3, 4, 3) * 2 - 1)
def grid_sample_volume(x, grid):  # type: ignore[no-untyped-def]
    return F.grid_sample(x, grid, align_corners=False)


@case(lambda: rand(2, 3, 6, 7), lambda: rand(2, 2, 3))
def affine_warp(x, theta):  # type: ignore[no-untyped-def]
    return F.grid_sample(x, F.affine_grid(theta, x.shape, align_corners=False), align_corners=False)


@case(lambda: rand(2, 3, 6, 7))
def interpolations(x):  # type: ignore[no-untyped-def]
    return (
        F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
        F.interpolate(x, size=(9, 5), mode="nearest-exact"),
        F.interpolate(x, scale_factor=1.7, mode="bicubic"),
        F.interpolate(x, size=(12, 14), mode="area"),
        F.interpolate(x, size=x.shape[-1], mode="bilinear", align_corners=True),
    )


@case(lambda: rand(2, 3, 6, 7), lambda: rand(2, 3, 12, 13))
def resize_to_other(x, y):  # type: ignore[no-untyped-def]
    return F.interpolate(x, size=y.shape[-2:], mode="bilinear", align_corners=False) + y


@case(lambda: rand(2, 3, 8, 8))
def patches(x):  # type: ignore[no-untyped-def]
    columns = F.unfold(x, 4, stride=2, padding=1)
    return F.fold(columns, (8, 8), 4, stride=2, padding=1), x.unfold(2, 3, 1).unfold(3, 3, 2)


@case(lambda: rand(2, 8, 8, 3))
def windows(x):  # type: ignore[no-untyped-def]
    b, h, w, c = x.shape
    y = F.pad(x, (0, 0, 0, -w % 3, 0, -h % 3))
    y = y.view(b, y.shape[1] // 3, 3, y.shape[2] // 3, 3, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 9, c)
    return torch.roll(x, (-1, 2), (1, 2)), y


@case(lambda: rand(3, 4, 5), lambda: rand(4, 3, 2))
def tensor_products(x, y):  # type: ignore[no-untyped-def]
    return (
        torch.tensordot(x, y, ([0, 1], [1, 0])),
        torch.einsum("abc,bad->cd", x, y),
        torch.einsum("aab->ab", x[:, :3]),
        torch.kron(x[0], y[0]),
        torch.einsum("abc,bad,c->", x, y, x[0, 0]),
    )


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


@case(lambda: rand(4, 4))
def eigen_symmetric(x):  # type: ignore[no-untyped-def]
    values, vectors = torch.linalg.eigh(x @ x.T + torch.diag(torch.arange(4.0)))
    return values, vectors.abs(), torch.linalg.eigvalsh(x + x.T)


@case(lambda: rand(5, 3))
def singular_values(x):  # type: ignore[no-untyped-def]
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    return s, (u * s) @ v, torch.linalg.svdvals(x), torch.linalg.matrix_norm(x, 2), torch.linalg.cond(x)


@case(lambda: rand(6, 3), lambda: rand(6, 2))
def least_squares(a, b):  # type: ignore[no-untyped-def]
    return torch.linalg.lstsq(a, b).solution, torch.linalg.pinv(a), torch.linalg.matrix_rank(a)


@case(lambda: rand(4, 4) + 3 * torch.eye(4), lambda: rand(4, 2))
def lu_and_qr(a, b):  # type: ignore[no-untyped-def]
    q, r = torch.linalg.qr(a)
    p, low, up = torch.linalg.lu(a)
    factor, pivots = torch.linalg.lu_factor(a)
    return q @ r, r.abs(), p @ low @ up, torch.linalg.lu_solve(factor, pivots, b)


@case(lambda: rand(2, 3, 3) * 0.3)
def matrix_functions(x):  # type: ignore[no-untyped-def]
    logarithm = torch.logdet(x @ x.mT + torch.eye(3))
    return torch.matrix_exp(x), torch.linalg.matrix_power(x, 3), logarithm, torch.trace(x[0])


@case(lambda: rand(3, 3), lambda: rand(3, 2))
def triangular_systems(x, b):  # type: ignore[no-untyped-def]
    low = torch.linalg.cholesky(x @ x.T + torch.eye(3))
    return torch.linalg.solve_triangular(low, b, upper=False), torch.cholesky_solve(b, low), torch.cholesky_inverse(low)


@case(lambda: rand(8, 3))
def whitening(x):  # type: ignore[no-untyped-def]
    c = torch.cov(x.T)
    return (x - x.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(c + 0.1 * torch.eye(3))).mT, torch.corrcoef(x.T)


@case(lambda: rand(4, 6))
def quantiles(x):  # type: ignore[no-untyped-def]
    return (
        x.quantile(0.3, dim=1),
        torch.quantile(x, torch.tensor([0.25, 0.75]), dim=0),
        torch.nanmedian(x),
        x.mode(1).values,
        torch.nanquantile(x, 0.5),
    )


@case(lambda: rand(4, 6))
def missing_numbers(x):  # type: ignore[no-untyped-def]
    y = torch.where(x > 1, math.nan, x)
    return y.nansum(1), y.nanmean(0), torch.nan_to_num(y, 7.0), y.isnan().any(), torch.isfinite(y).float().mean()


@case(lambda: rand(4, 6))
def special_functions(x):  # type: ignore[no-untyped-def]
    y = x.abs() + 0.5
    return (
        torch.special.gammaln(y),
        torch.special.bessel_j0(x),
        torch.special.i1(x),
        torch.special.zeta(y + 1, y),
        torch.special.log_ndtr(x),
        torch.special.multigammaln(y + 2, 2),
        torch.special.gammainc(y, y),
    )


@case(lambda: torch.randint(0, 256, (3, 4), dtype=torch.uint8), lambda: torch.randint(-8, 8, (3, 4)))
def integer_arithmetic(x, y):  # type: ignore[no-untyped-def]
    return (
        x >> 2,
        (x.int() + 1) // 2,
        x.float().div(255),
        y.abs().clamp(1, 5),
        torch.bitwise_or(x, 3),
        y.pow(2),
        torch.lcm(y, y + 20),
        x + x,
    )


@case(lambda: torch.randint(0, 2, (3, 4)).bool(), lambda: torch.randint(0, 2, (3, 4)).bool())
def logic(x, y):  # type: ignore[no-untyped-def]
    return (
        x & ~y,
        x ^ y,
        torch.logical_or(x, y),
        x.all(1),
        y.any(),
        x.sum(0),
        x.int().argmax(1),
        x.int().cumsum(1),
        x.nonzero(),
    )


@case(lambda: rand(3, 8).half())
def half_precision(x):  # type: ignore[no-untyped-def]
    return (x @ x.T).softmax(-1), F.layer_norm(x, (8,)), x.sum(1, dtype=torch.float32)


@case(lambda: rand(3, 8))
def automatic_casts(x):  # type: ignore[no-untyped-def]
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x.T
    return y.float().softmax(-1)


@case(lambda: rand(3, 8))
def numbers_of_other_types(x):  # type: ignore[no-untyped-def]
    bits = x.view(torch.int32) >> 3
    return x.to(torch.int32) + 2, x.double() * 2, (x > 0).to(x.dtype), x.long() // 2, torch.tensor(3) * x, bits


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
