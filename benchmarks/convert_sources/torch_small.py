"""Small programs, each with one cause for which exporters fail."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from convert_sources.small_programs import Case, Registry, rand

_registry = Registry()
case, layer = _registry.case, _registry.layer


def cases() -> dict[str, Case]:
    """Return programs with example inputs, by name."""
    return dict(_registry.cases)


layer("mlp", lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (3, 8))
layer("conv_bn", lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), (2, 3, 12, 12))
layer("conv1d_same", lambda: nn.Conv1d(3, 4, 4, padding="same"), (2, 3, 12))
layer("conv3d", lambda: nn.Conv3d(2, 4, 3, padding=1, stride=2), (2, 2, 8, 8, 8))
layer("conv_transpose", lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), (2, 3, 6, 7))
layer("group_norm", lambda: nn.GroupNorm(2, 4), (2, 4, 6, 6))
layer("instance_norm", lambda: nn.InstanceNorm2d(4, affine=True), (2, 4, 6, 6))
layer("rms_norm", lambda: nn.RMSNorm(8), (2, 5, 8))
layer("layer_norm_2", lambda: nn.LayerNorm((5, 8)), (2, 5, 8))
layer("lstm", lambda: nn.LSTM(6, 8, 2, bidirectional=True, batch_first=True), (2, 5, 6))
layer("lstm_projected", lambda: nn.LSTM(6, 8, proj_size=3), (5, 2, 6))
layer("gru", lambda: nn.GRU(6, 8, batch_first=True), (2, 5, 6))
layer("rnn_tanh", lambda: nn.RNN(6, 8, batch_first=True), (2, 5, 6))
layer("lstm_cell", lambda: nn.LSTMCell(6, 8), (2, 6))
layer("mha", lambda: nn.MultiheadAttention(8, 2, batch_first=True), (2, 5, 8), (2, 7, 8), (2, 7, 8))
layer("encoder_layer", lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8))
layer("encoder", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2), (2, 5, 8))
layer("decoder_layer", lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), (2, 5, 8), (2, 6, 8))
layer("nn_transformer", lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), (2, 5, 8), (2, 6, 8))
layer("adaptive_pool", lambda: nn.AdaptiveAvgPool2d((2, 3)), (2, 3, 8, 9))
layer("adaptive_pool_nondivisible", lambda: nn.AdaptiveMaxPool2d((3, 5)), (2, 3, 8, 9))
layer("pixel_shuffle", lambda: nn.PixelShuffle(2), (2, 8, 3, 4))
layer("upsample_bilinear", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (2, 3, 5, 6))
layer("upsample_bicubic", lambda: nn.Upsample(size=(9, 11), mode="bicubic", align_corners=True), (2, 3, 5, 6))
layer("pads", lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.ReplicationPad2d(2), nn.CircularPad2d(1)), (2, 3, 6, 6))
layer("fold", lambda: nn.Fold((6, 6), 3), (2, 18, 16))
layer("unfold", lambda: nn.Unfold(3, padding=1), (2, 3, 6, 6))
layer("bilinear", lambda: nn.Bilinear(4, 5, 6), (3, 4), (3, 5))
layer("spectral_norm", lambda: torch.nn.utils.parametrizations.spectral_norm(nn.Linear(6, 5)), (3, 6))
layer("weight_norm", lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), (3, 6))

for _name in [
    "ReLU",
    "ReLU6",
    "ELU",
    "CELU",
    "SELU",
    "GELU",
    "SiLU",
    "Mish",
    "Hardswish",
    "Hardsigmoid",
    "Hardtanh",
    "LeakyReLU",
    "PReLU",
    "RReLU",
    "Softplus",
    "Softsign",
    "Softshrink",
    "Hardshrink",
    "Tanhshrink",
    "LogSigmoid",
    "Sigmoid",
    "Tanh",
]:
    layer(f"activation_{_name.lower()}", getattr(nn, _name), (3, 4, 5))
layer("activation_glu", lambda: nn.GLU(1), (3, 4, 5))
layer("activation_gelu_tanh", lambda: nn.GELU("tanh"), (3, 5))
layer("softmin", lambda: nn.Softmin(1), (3, 5))


@case(lambda: rand(4, 6))
def python_if_on_data(x):  # type: ignore[no-untyped-def]
    return x * 2 if x.sum() > 0 else x - 1


@case(lambda: rand(4, 6))
def torch_cond(x):  # type: ignore[no-untyped-def]
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))


@case(lambda: torch.rand(4))
def torch_while(x):  # type: ignore[no-untyped-def]
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 1.5), (torch.tensor(0), x))[1]


@case(lambda: rand(3, 5, 4))
def torch_scan(x):  # type: ignore[no-untyped-def]
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, y: (c + y, c * y), torch.zeros(5, 4), x, dim=0)


@case(lambda: rand(4, 6))
def sorting(x):  # type: ignore[no-untyped-def]
    values, order = x.sort(dim=-1, descending=True, stable=True)
    return values, order, x.argsort(0), x.topk(2).values, x.kthvalue(2).values, x.median(1).values


@case(lambda: rand(4, 6))
def unique_values(x):  # type: ignore[no-untyped-def]
    return torch.unique((x * 2).int(), return_counts=True)


@case(lambda: rand(4, 6))
def nonzero(x):  # type: ignore[no-untyped-def]
    return torch.nonzero(x > 0)


@case(lambda: rand(4, 6))
def masked_select(x):  # type: ignore[no-untyped-def]
    return x[x > 0] * 2


@case(lambda: rand(4, 6))
def mask_assignment(x):  # type: ignore[no-untyped-def]
    y = x.clone()
    y[y < 0] = 0.5
    y[:, 1:3] += 1
    y[0].mul_(2)
    return y


@case(lambda: rand(4, 6), lambda: torch.tensor([0, 2, 1]))
def index_put(x, i):  # type: ignore[no-untyped-def]
    y = x.clone()
    y[i] = 3.0
    return y.index_put((i,), torch.ones(6), accumulate=True), x[:, i], x[i, i]


@case(lambda: rand(4, 6), lambda: torch.tensor([[0, 2, 1], [3, 0, 0]]))
def gather_scatter(x, i):  # type: ignore[no-untyped-def]
    return x.gather(0, i), x.scatter_add(0, i, torch.ones(2, 3)), x.scatter_reduce(0, i, x[:2, :3], "amax")


@case(lambda: rand(3, 4), lambda: rand(5, 4))
def cdist(x, y):  # type: ignore[no-untyped-def]
    return torch.cdist(x, y)


@case(lambda: torch.tensor([0.1, 0.5, 0.9]), lambda: torch.rand(4, 5))
def searchsorted(edges, x):  # type: ignore[no-untyped-def]
    return torch.searchsorted(edges, x), torch.bucketize(x, edges, right=True)


@case(lambda: rand(3, 4, 4) + 4 * torch.eye(4))
def linalg_det_inv(x):  # type: ignore[no-untyped-def]
    return torch.linalg.inv(x), torch.linalg.det(x)


@case(lambda: rand(3, 4, 4), lambda: rand(3, 4, 2))
def linalg_solve_cholesky(x, b):  # type: ignore[no-untyped-def]
    a = x @ x.mT + 4 * torch.eye(4)
    return torch.linalg.cholesky(a), torch.linalg.solve(a, b)


@case(lambda: rand(2, 16))
def fft(x):  # type: ignore[no-untyped-def]
    return torch.fft.rfft(x).abs(), torch.fft.irfft(torch.fft.rfft(x) * 2)


@case(lambda: rand(2, 64))
def stft(x):  # type: ignore[no-untyped-def]
    return torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True).abs()


@case(lambda: rand(2, 5, 8))
def rotary_complex(x):  # type: ignore[no-untyped-def]
    angle = torch.outer(torch.arange(x.shape[1]).float(), 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8))
    turn = torch.polar(torch.ones_like(angle), angle)
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(z * turn).flatten(-2)


@case(lambda: rand(2, 3, 6, 6), lambda: torch.rand(2, 5, 5, 2) * 2 - 1)
def grid_sample(x, grid):  # type: ignore[no-untyped-def]
    return F.grid_sample(x, grid, align_corners=False), F.grid_sample(x, grid, mode="nearest", padding_mode="border")


@case(lambda: rand(2, 2, 5, 4), lambda: rand(2, 2, 7, 4), lambda: rand(2, 2, 7, 4))
def attention_causal(q, k, v):  # type: ignore[no-untyped-def]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@case(lambda: rand(2, 2, 5, 4), lambda: rand(2, 2, 7, 4), lambda: torch.rand(5, 7) > 0.3)
def attention_mask(q, k, m):  # type: ignore[no-untyped-def]
    return F.scaled_dot_product_attention(q, k, k, attn_mask=m)


@case(lambda: rand(2, 4, 5, 4), lambda: rand(2, 2, 7, 4))
def attention_grouped(q, k):  # type: ignore[no-untyped-def]
    return F.scaled_dot_product_attention(q, k, k, enable_gqa=True, scale=0.3)


@case(lambda: rand(6, 8))
class Experts(nn.Module):
    """A mixture of experts over ``grouped_mm``."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.weights = nn.Parameter(torch.randn(4, 8, 16) / 4)

    def forward(self, x):  # type: ignore[no-untyped-def]
        chosen = self.gate(x).argmax(-1)
        order = chosen.argsort(stable=True)
        ends = torch.histc(chosen.float(), bins=4, min=0, max=3).int().cumsum(0, dtype=torch.int32)
        y = torch._grouped_mm(x[order].bfloat16(), self.weights.bfloat16(), offs=ends)
        return y.float()[order.argsort()]


@case(lambda: rand(6, 8))
class ExpertLoop(nn.Module):
    """A mixture of experts as a loop with masks."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):  # type: ignore[no-untyped-def]
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == i)
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot, None])
        return out


@case(lambda: rand(2, 6), lambda: torch.tensor([4, 6]))
def length_mask(x, lengths):  # type: ignore[no-untyped-def]
    mask = torch.arange(x.shape[1])[None] < lengths[:, None]
    return (x * mask).sum(1) / lengths


@case(lambda: rand(2, 5, 6))
class ManualRecurrence(nn.Module):
    """A loop over time in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(6, 4)

    def forward(self, x):  # type: ignore[no-untyped-def]
        h = x.new_zeros(x.shape[0], 4)
        rows = []
        for t in range(5):
            h = self.cell(x[:, t], h)
            rows.append(h)
        return torch.stack(rows, 1)


@case(lambda: rand(4, 6))
class Buffer(nn.Module):
    """A module that updates a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):  # type: ignore[no-untyped-def]
        self.steps += 1
        return x * self.steps


@case(lambda: rand(4, 6))
def cumulative(x):  # type: ignore[no-untyped-def]
    return x.cumsum(1), x.cumprod(0), x.cummax(1).values, x.logcumsumexp(1), x.prod(1)


@case(lambda: rand(4, 6).double())
def float64_math(x):  # type: ignore[no-untyped-def]
    return torch.erfinv(x.tanh()), torch.lgamma(x.abs() + 1), torch.digamma(x.abs() + 1), torch.expm1(x), x.erfc()


@case(lambda: torch.randint(-9, 9, (4, 6)), lambda: torch.randint(1, 5, (4, 6)))
def integers(x, y):  # type: ignore[no-untyped-def]
    return x // y, x % y, torch.div(x, y, rounding_mode="trunc"), x & y, x ^ y, x << 1, torch.gcd(x, y), ~x


@case(lambda: rand(4, 6))
def views_in_place(x):  # type: ignore[no-untyped-def]
    y = x.clone().view(2, 2, -1)
    y[0, :, 1:] = y[1, :, :-1]
    y.transpose(0, 1)[0].add_(1)
    return y


@case(lambda: rand(4, 6))
def shapes(x):  # type: ignore[no-untyped-def]
    a, b = x.split([2, x.shape[1] - 2], 1)
    return torch.cat([b, a], 1), x.unfold(1, 3, 2), x.as_strided((2, 3), (6, 2)), x.diagonal(), torch.block_diag(x, x)


@case(lambda: rand(3, 4, 5), lambda: rand(3, 5, 2))
def einsums(x, y):  # type: ignore[no-untyped-def]
    return (
        torch.einsum("bij,bjk->bik", x, y),
        torch.einsum("...ij->...ji", x),
        torch.einsum("bij,bjk,bik->b", x, y, x[..., :2]),
    )


@case(lambda: rand(4, 6))
def reductions(x):  # type: ignore[no-untyped-def]
    return (
        x.amax(1),
        x.argmin(),
        x.std(0),
        torch.var_mean(x, 1),
        x.norm(dim=1),
        x.any(1),
        (x > -9).all(),
        x.aminmax(dim=1),
    )


@case(lambda: torch.randint(0, 9, (3, 4)))
class Tokens(nn.Module):
    """Embeddings, single and in bags, and one-hot vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6, padding_idx=0)
        self.bag = nn.EmbeddingBag(10, 6, mode="mean")

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.table(x), self.bag(x), F.one_hot(x, 10).float()


@case(lambda: {"a": rand(2, 3), "b": [rand(2, 3), rand(2, 3)]})
def nested_inputs(data):  # type: ignore[no-untyped-def]
    return {"sum": data["a"] + data["b"][0], "rest": (data["b"][1],)}


@case(lambda: rand(1, 6))
def batch_of_one(x):  # type: ignore[no-untyped-def]
    return x.softmax(-1)


@case(lambda: rand(4, 6).bfloat16())
def bfloat16(x):  # type: ignore[no-untyped-def]
    return (x @ x.T).relu().float()


@case(lambda: rand(2, 3, 8, 8))
class DeformConv(nn.Module):
    """A deformable convolution of torchvision."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.ops import DeformConv2d

        self.offset = nn.Conv2d(3, 18, 3, padding=1)
        self.conv = DeformConv2d(3, 4, 3, padding=1)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.conv(x, self.offset(x))


@case(lambda: torch.rand(8, 4) * 4, lambda: torch.rand(8))
def nms(boxes, scores):  # type: ignore[no-untyped-def]
    from torchvision.ops import nms as suppress

    boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)
    return boxes[suppress(boxes, scores, 0.5)]


@case(lambda: rand(1, 3, 16, 16), lambda: torch.tensor([[0.0, 1, 1, 9, 9], [0, 3, 2, 12, 14]]))
def roi_align(x, boxes):  # type: ignore[no-untyped-def]
    from torchvision.ops import roi_align as align

    return align(x, boxes, (3, 3), 0.5, 2)


@case(lambda: rand(4, 6))
def triangles(x):  # type: ignore[no-untyped-def]
    return (
        x.tril(1),
        x.triu(),
        torch.eye(x.shape[1]) * x.sum(),
        torch.diag_embed(x),
        torch.meshgrid(x[0], x[1], indexing="ij"),
    )


@case(lambda: rand(4, 6))
def scalars_from_data(x):  # type: ignore[no-untyped-def]
    n = (x > 0).sum().item()
    torch._check(n >= 0)
    torch._check(n <= 24)
    return torch.arange(n)


@case(lambda: rand(2, 3, 9, 9))
def pooling(x):  # type: ignore[no-untyped-def]
    y, i = F.max_pool2d(x, 3, 2, return_indices=True)
    return F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), F.max_unpool2d(y, i, 3, 2), F.lp_pool2d(x.abs(), 2, 3)


@case(lambda: rand(5, 3))
def losses(x):  # type: ignore[no-untyped-def]
    target = x.argmax(1)
    return (
        F.cross_entropy(x, target),
        F.smooth_l1_loss(x, x * 0.5),
        F.kl_div(x.log_softmax(1), x.softmax(1)),
        F.huber_loss(x, -x),
    )


@case(lambda: rand(5, 3), lambda: rand(5, 3))
def distances(x, y):  # type: ignore[no-untyped-def]
    return F.cosine_similarity(x, y), F.normalize(x), F.pairwise_distance(x, y), torch.cross(x, y, dim=1)


@case(lambda: rand(4, 6))
def fake_quantization(x):  # type: ignore[no-untyped-def]
    scale, zero = torch.tensor([0.1] * 4), torch.zeros(4, dtype=torch.int32)
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127), torch.fake_quantize_per_channel_affine(
        x, scale, zero, 0, -128, 127
    )
