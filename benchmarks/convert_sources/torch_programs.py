"""Small programs as users write them: layers, indexing, sorting and signals."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from convert_sources import torch_networks, torch_numerics
from convert_sources.small_programs import Case, Registry, rand

_registry = Registry()
case, layer = _registry.case, _registry.layer


def cases() -> dict[str, Case]:
    """Return programs with example inputs, by name."""
    return {**_registry.cases, **torch_numerics.registry.cases, **torch_networks.registry.cases}


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
