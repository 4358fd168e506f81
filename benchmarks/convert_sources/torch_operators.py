"""Many operators of one kind each: special functions, signals, images, integers, boxes, shapes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from convert_sources.small_programs import Registry, rand

registry = Registry()
case = registry.case


@case(lambda: rand(2, 5, 3), lambda: rand(4, 3))
def bessel_and_gamma(x, y):  # type: ignore[no-untyped-def]
    z = x.abs() + 0.5
    return (
        torch.special.i0e(z),
        torch.special.i1(z),
        torch.lgamma(z),
        torch.digamma(z),
        torch.polygamma(1, z),
        torch.special.ndtri(torch.sigmoid(x)),
        torch.special.log_ndtr(x),
        torch.special.xlog1py(x, z),
        torch.special.entr(z),
        torch.special.zeta(z + 1.5, z),
        torch.special.gammainc(z, z + 0.1),
        torch.sinc(y),
        torch.erfinv(torch.tanh(y)),
        torch.special.multigammaln(z + 2, 2),
        torch.mvlgamma(z + 1, 2),
    )


@case(lambda: rand(40))
def signal_tools(x):  # type: ignore[no-untyped-def]
    frames = x.unfold(0, 16, 8)
    window = torch.signal.windows.hamming(16, sym=False)
    spectrum = torch.fft.rfft(frames * window)
    cepstrum = torch.fft.irfft(torch.log(spectrum.abs() + 1e-6))
    kaiser = torch.kaiser_window(8, periodic=False, beta=6.0)
    hilbert = torch.fft.ifft(
        torch.fft.fft(x) * torch.cat([torch.ones(1), torch.full((19,), 2.0), torch.ones(1), torch.zeros(19)])
    )
    filtered = F.conv1d(x.view(1, 1, -1), kaiser.view(1, 1, -1), padding="same")
    return cepstrum, hilbert.abs(), filtered, torch.fft.fftfreq(8), torch.gradient(x)[0], torch.diff(x, n=2)


@case(lambda: rand(2, 1, 256))
class MelCoefficients(nn.Module):
    """Mel filters, decibels and a cosine transform."""

    def __init__(self) -> None:
        super().__init__()
        n = torch.arange(10.0)
        self.register_buffer(
            "cosines", torch.cos(math.pi / 10 * (n + 0.5) * torch.arange(6.0)[:, None]) * (2 / 10) ** 0.5
        )
        self.register_buffer("filters", torch.rand(33, 10))
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, x):  # type: ignore[no-untyped-def]
        x = torch.cat([x[..., :1], x[..., 1:] - 0.97 * x[..., :-1]], -1).squeeze(1)
        power = torch.stft(x, 64, 16, window=self.window, center=False, return_complex=True).abs() ** 2
        decibels = 10 * torch.log10((power.mT @ self.filters).clamp(min=1e-10))
        decibels = torch.maximum(decibels, decibels.amax((-2, -1), keepdim=True) - 80)
        return decibels @ self.cosines.T


@case(lambda: rand(2, 3, 7, 9))
def image_tools(x):  # type: ignore[no-untyped-def]
    sobel = torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]]).expand(3, 1, 3, 3)
    dx = F.conv2d(F.pad(x, (1, 1, 1, 1), "replicate"), sobel, groups=3)
    dy = F.conv2d(F.pad(x, (1, 1, 1, 1), "replicate"), sobel.mT, groups=3)
    median = x.unfold(2, 3, 1).unfold(3, 3, 1).flatten(-2).median(-1).values
    return (
        torch.hypot(dx, dy),
        torch.atan2(dy, dx),
        median,
        F.pixel_unshuffle(x[:, :, :6, :8], 2),
        F.channel_shuffle(x, 3),
    )


@case(lambda: torch.rand(2, 3, 6, 6))
def colour_spaces(x):  # type: ignore[no-untyped-def]
    top, index = x.max(1)
    low = x.min(1).values
    r, g, b = x.unbind(1)
    delta = top - low
    safe = torch.where(delta == 0, torch.ones_like(delta), delta)
    hue = (
        torch.stack([(g - b) / safe % 6, (b - r) / safe + 2, (r - g) / safe + 4], 1).gather(1, index[:, None])[:, 0] / 6
    )
    return torch.stack([torch.where(delta == 0, 0.0, hue), delta / top.clamp(min=1e-8), top], 1)


@case(lambda: torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8))
def byte_images(x):  # type: ignore[no-untyped-def]
    y = x.float().div(255)
    dark = (x >> 1) & 0x3F
    return y.mean((2, 3)), dark, x.flip(-1), (x.int() + 300).clamp(0, 255).byte(), x.bitwise_xor(dark), x.sum()


@case(lambda: torch.randint(-50, 50, (3, 4)), lambda: torch.randint(1, 9, (3, 4)))
def integer_division(x, y):  # type: ignore[no-untyped-def]
    return (
        x // y,
        x % y,
        torch.fmod(x, y),
        torch.div(x, y, rounding_mode="trunc"),
        torch.gcd(x, y),
        x.pow(3),
        torch.bitwise_left_shift(x, 2),
        x.float() // y,
        torch.float_power(y, 0.5),
        (x * y).to(torch.int8),
        x / y,
    )


@case(lambda: rand(3, 5))
def dtype_conversions(x):  # type: ignore[no-untyped-def]
    h = x.half()
    return (
        h.sum(),
        (h @ h.T).float(),
        x.double().exp().float(),
        x.bfloat16().float(),
        x.to(torch.int32) + 1.5,
        x.bool().sum(1),
        torch.result_type(x, 1),
        x.type(torch.float64).mean(),
        torch.tensor(7, dtype=torch.int16) * x.to(torch.int16),
    )[:6]


@case(lambda: rand(4, 5, 6))
def reductions_of_kinds(x):  # type: ignore[no-untyped-def]
    return (
        x.nansum((0, 2)),
        torch.aminmax(x, dim=1),
        x.kthvalue(3, dim=1),
        x.mode(0).values,
        x.norm(p=0, dim=1),
        x.norm(p=math.inf, dim=(0, 1)),
        torch.logcumsumexp(x, 2),
        torch.var_mean(x, (0, 1), correction=2),
        x.count_nonzero(dim=1),
        torch.dist(x[0], x[1], 3),
        torch.renorm(x, 2, 0, 1.0),
        x.argsort(dim=2, descending=True)[..., :2],
        x.all(), x.any(1),
        torch.nanquantile(x, 0.3, dim=1, interpolation="nearest"),
    )  # fmt: skip


@case(lambda: rand(2, 3, 4), lambda: rand(4, 5), lambda: rand(5))
def contractions(x, w, b):  # type: ignore[no-untyped-def]
    return (
        torch.einsum("...d,df,f->...f", x, w, b),
        torch.inner(x, x[0]),
        torch.chain_matmul(x[0], w, w.T),
        torch.addbmm(torch.zeros(3, 5), x, w.expand(2, 4, 5)),
        torch.baddbmm(b, x, w.expand(2, 4, 5), beta=0.5, alpha=2),
        torch.addr(torch.zeros(4, 5), x[0, 0], b),
        torch.einsum("bij,bkj->bik", x, x).diagonal(dim1=1, dim2=2),
        torch.bilinear(x[0], x[1], torch.ones(2, 4, 4), None),
        x.mT.contiguous().view(2, -1).mv(torch.ones(12)),
        torch.outer(b, b).trace(),
        torch.linalg.vecdot(x, x),
        torch.linalg.cross(x[..., :3], x[..., 1:]),
    )


@case(lambda: rand(2, 4, 9))
def normalizations(x):  # type: ignore[no-untyped-def]
    return (
        F.layer_norm(x, (4, 9)),
        F.group_norm(x, 2, torch.ones(4), torch.zeros(4), 1e-3),
        F.instance_norm(x, torch.zeros(4), torch.ones(4), use_input_stats=False),
        F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True),
        F.rms_norm(x, (9,)),
        F.local_response_norm(x, 2),
        F.normalize(x, p=1, dim=1),
        torch.nn.functional.softmax(x, 1, dtype=torch.float64),
        F.gumbel_softmax(x * 0, hard=False).sum(-1),
    )


@case(lambda: rand(2, 3, 10))
def activations_of_kinds(x):  # type: ignore[no-untyped-def]
    return (
        F.rrelu(x),
        F.celu(x, 1.3),
        F.hardshrink(x, 0.3),
        F.softshrink(x),
        F.tanhshrink(x),
        F.threshold(x, 0.1, 20),
        F.logsigmoid(x),
        F.mish(x),
        F.hardswish(x),
        F.selu(x),
        F.prelu(x, torch.tensor([0.1, 0.2, 0.3])),
        F.softplus(x, 3, 5),
        F.relu6(x * 9),
        F.silu(x, inplace=False),
        F.softsign(x),
        F.alpha_dropout(x, 0.5, training=False),
    )


@case(lambda: rand(2, 4, 8, 8), lambda: rand(2, 18, 8, 8), lambda: rand(2, 9, 8, 8))
def deformable(x, offset, mask):  # type: ignore[no-untyped-def]
    from torchvision.ops import deform_conv2d

    return deform_conv2d(x, offset, torch.ones(5, 4, 3, 3) * 0.1, padding=1, mask=mask.sigmoid())


@case(lambda: torch.rand(6, 4) * 10, lambda: torch.rand(6))
def boxes_of_kinds(boxes, scores):  # type: ignore[no-untyped-def]
    from torchvision.ops import (
        box_area,
        box_convert,
        clip_boxes_to_image,
        complete_box_iou,
        distance_box_iou,
        generalized_box_iou,
        masks_to_boxes,
        nms,
        remove_small_boxes,
        sigmoid_focal_loss,
    )

    corners = box_convert(boxes, "cxcywh", "xyxy")
    inside = clip_boxes_to_image(corners, (8, 9))
    masks = torch.arange(36).view(1, 6, 6) > torch.arange(0, 30, 10)[:, None, None]
    return (
        box_area(corners),
        generalized_box_iou(corners, corners[:2]),
        complete_box_iou(corners, corners[:2]),
        distance_box_iou(corners, corners[:2]),
        inside[remove_small_boxes(inside, 1.0)],
        nms(corners, scores, 0.5),
        masks_to_boxes(masks),
        sigmoid_focal_loss(scores, (scores > 0.5).float(), reduction="mean"),
    )


@case(lambda: rand(2, 5, 8), lambda: rand(2, 6, 8))
def attention_of_kinds(q, k):  # type: ignore[no-untyped-def]
    heads = lambda x: x.view(2, -1, 2, 4).transpose(1, 2)  # noqa: E731
    bias = torch.arange(6) - torch.arange(5)[:, None]
    score = torch.zeros(5, 6).masked_fill(bias > 1, -math.inf)
    return (
        F.scaled_dot_product_attention(heads(q), heads(k), heads(k), attn_mask=score),
        F.scaled_dot_product_attention(heads(q), heads(k), heads(k), is_causal=True, scale=0.3),
        F.scaled_dot_product_attention(q, k, k, attn_mask=bias.expand(2, 5, 6) < 2),
        F.multi_head_attention_forward(
            q.transpose(0, 1), k.transpose(0, 1), k.transpose(0, 1), 8, 2, torch.ones(24, 8) * 0.1, None, None, None,
            False, 0.0, torch.eye(8), None, training=False,
        )[1],
    )  # fmt: skip


@case(lambda: rand(3, 4), lambda: torch.tensor([1, 3]))
def one_hot_and_masks(x, i):  # type: ignore[no-untyped-def]
    return (
        F.one_hot(i, 5) @ torch.eye(5, dtype=torch.long),
        torch.triu_indices(3, 4, 1),
        torch.isin(i, torch.tensor([3, 4])),
        torch.bucketize(x, torch.tensor([-1.0, 0, 1])),
        x.index_put((torch.tensor([0, 2]), i), torch.tensor([5.0, 6])),
        torch.scatter_reduce(x, 1, torch.tensor([[0, 0, 1, 1]]).expand(3, 4), x, "sum", include_self=False),
        x.diag_embed(1),
        torch.eye(3, 4) * x,
        x.select_scatter(torch.zeros(3), 1, 2),
        x.slice_scatter(torch.ones(3, 2), 1, 0, 4, 2),
        torch.diagonal_scatter(x, torch.zeros(3)),
        torch.unravel_index(i, (2, 2)),
    )


@case(lambda: rand(2, 3, 4, 5))
def shapes_of_kinds(x):  # type: ignore[no-untyped-def]
    return (
        torch.stack(torch.meshgrid(x[0, 0, 0], x[0, 0, :, 0], indexing="xy")),
        x.unflatten(-2, (2, -1)).flatten(0, 1),
        torch.atleast_3d(x[0, 0, 0]),
        torch.column_stack([x[0, 0], x[0, 1]]),
        torch.dstack([x[0, 0], x[0, 1]]),
        x.repeat_interleave(torch.tensor([1, 0, 2]), 1),
        torch.broadcast_to(x[:, :1], (2, 3, 4, 5)),
        x.expand(2, -1, -1, -1).permute(3, 0, 2, 1).flip([0, 2]),
        x.ravel()[1:-1:7],
        torch.moveaxis(x, (0, 1), (-1, -2)),
        x.index_select(2, torch.tensor([3, 0])),
        torch.swapdims(x, 0, 3),
        torch.tensor_split(x, 3, -1),
        torch.roll(x, 3),
        torch.trapezoid(x, dx=0.5),
        torch.tril(x, -1),
        torch.nn.functional.pad(x, (1, 2, -1, 0), value=3.0),
        torch.constant_pad_nd(x, (0, 0, 2, 1)),
        x.unsafe_chunk(2, 1)[1],
    )


@case(lambda: rand(5, 3))
def distributions_of_kinds(x):  # type: ignore[no-untyped-def]
    from torch.distributions import Bernoulli, Beta, Categorical, Independent, MultivariateNormal, Normal, kl_divergence

    categorical = Categorical(logits=x)
    wide = MultivariateNormal(x.mean(0), covariance_matrix=torch.eye(3) + torch.ones(3, 3) * 0.1)
    return (
        categorical.entropy(),
        categorical.log_prob(torch.tensor([0, 1, 2, 0, 1])),
        Independent(Normal(x, 1.0), 1).log_prob(x * 0.5),
        Bernoulli(logits=x).log_prob((x > 0).float()),
        Beta(x.abs() + 1, x.abs() + 2).log_prob(x.sigmoid()),
        wide.log_prob(x),
        kl_divergence(categorical, Categorical(logits=x.flip(0))),
    )


@case(lambda: torch.randn(2, 3, 6, 6, 6))
def volumes(x):  # type: ignore[no-untyped-def]
    return (
        F.max_pool3d(x, 2, return_indices=True),
        F.avg_pool3d(x, 3, 2, 1, count_include_pad=False),
        F.adaptive_avg_pool3d(x, (2, 3, 1)),
        F.interpolate(x, scale_factor=2, mode="trilinear", align_corners=True),
        F.conv3d(x, torch.ones(4, 3, 3, 1, 3) * 0.1, stride=(1, 2, 1), padding=(1, 0, 1)),
        F.pad(x, (1, 1, 1, 1, 1, 1), mode="replicate"),
    )


@case(lambda: rand(2, 4, 12))
def one_dimension(x):  # type: ignore[no-untyped-def]
    pooled, index = F.max_pool1d(x, 2, return_indices=True)
    return (
        F.max_unpool1d(pooled, index, 2),
        F.avg_pool1d(x, 3, 2, 1, ceil_mode=True),
        F.interpolate(x, scale_factor=1.5, mode="linear"),
        F.fold(F.unfold(x[:, :, None], (1, 3)), (1, 12), (1, 3)),
        F.conv1d(x, torch.ones(4, 1, 3), groups=4, padding="same", dilation=2),
        F.pad(x, (2, 3), mode="circular"),
        F.lp_pool1d(x.abs(), 2, 3),
        x.cummax(-1).values,
    )
