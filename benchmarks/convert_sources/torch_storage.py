"""Programs on storage: writes to views and buffers, strided reads, states of modules, types."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from convert_sources.small_programs import Registry, rand

registry = Registry()
case = registry.case


@case(lambda: rand(4, 6))
def strided_view_of_view(x):  # type: ignore[no-untyped-def]
    y = x.clone().t()[1:4]
    return y.as_strided((2, 3), (6, 2)), y.as_strided((3,), (1,), 2) * 2


@case(lambda: rand(9))
def toeplitz_by_strides(x):  # type: ignore[no-untyped-def]
    n = (x.shape[0] + 1) // 2
    return x.flip(0).as_strided((n, n), (1, 1)).flip(0) @ torch.ones(n)


@case(lambda: rand(3, 12))
def frames_by_strides(x):  # type: ignore[no-untyped-def]
    rows, step = x.stride()
    count = (x.shape[1] - 4) // 2 + 1
    return x.as_strided((x.shape[0], count, 4), (rows, 2 * step, step)) * torch.hann_window(4)


@case(lambda: rand(3, 5, 5))
def diagonals_written(x):  # type: ignore[no-untyped-def]
    y = x.clone()
    y.diagonal(dim1=1, dim2=2).fill_(0)
    y.diagonal(1, 1, 2).add_(x[:, 0, :4])
    z = torch.diagonal_scatter(x[0], torch.ones(5))
    return y, z, torch.select_scatter(x, x[:, 0], 1, 2), torch.slice_scatter(x, x[:, :2], 1, 1, 5, 2)


@case(lambda: torch.rand(4, 6) + 0.1)
def reciprocal_root_by_bits(x):  # type: ignore[no-untyped-def]
    bits = x.view(torch.int32)
    y = (0x5F3759DF - (bits >> 1)).view(torch.float32)
    return y * (1.5 - 0.5 * x * y * y)


@case(lambda: rand(4, 6), lambda: rand(4, 6))
def complex_parts_written(a, b):  # type: ignore[no-untyped-def]
    z = torch.complex(a, b)
    z.real.mul_(2)
    z.imag[:, 0] = 1
    torch.view_as_real(z)[1, ..., 0] += 3
    return z.abs(), z.angle(), z.real


@case(lambda: rand(5, 4, 3), lambda: torch.tensor([0, 2]), lambda: rand(5, 2, 2))
def mixed_index_writes(x, i, v):  # type: ignore[no-untyped-def]
    y = x.clone()
    y[:, i, 1:] += v
    y[[0, 1]] = y[[1, 0]]
    y[..., -1][y[..., 0] > 0] = 7
    y[None, :, i, 0] *= 2
    return y


@case(lambda: rand(4, 6), lambda: rand(24))
def scattered_by_mask(x, source):  # type: ignore[no-untyped-def]
    y = x.clone()
    y[1:].masked_scatter_(x[1:] > 0, source)
    return y, x.masked_scatter(x < 0, source), y.put_(torch.tensor([3, 3, 8]), source[:3], accumulate=True)


@case(lambda: rand(4, 6), lambda: rand(4, 6))
def results_into_buffers(x, y):  # type: ignore[no-untyped-def]
    buffer = torch.zeros(3, 4, 6)
    torch.add(x, y, out=buffer[0])
    torch.matmul(x, y.T @ x, out=buffer[1])
    buffer[2].copy_(buffer[0] - buffer[1])
    return buffer, torch._foreach_mul([x, y], 2.0)


@case(lambda: torch.rand(2, 5, 6))
def shortest_path_table(cost):  # type: ignore[no-untyped-def]
    table = torch.full_like(cost, math.inf)
    table[:, 0] = cost[:, 0].cumsum(-1)
    for row in range(1, 5):
        table[:, row, 0] = table[:, row - 1, 0] + cost[:, row, 0]
        for column in range(1, 6):
            before = torch.stack([table[:, row - 1, column], table[:, row, column - 1], table[:, row - 1, column - 1]])
            table[:, row, column] = cost[:, row, column] + before.amin(0)
    return table[:, -1, -1]


@case(lambda: rand(3, 8))
def sorting_network(x):  # type: ignore[no-untyped-def]
    y = x.clone()
    for turn in range(8):
        left, right = y[:, turn % 2 : -1 : 2], y[:, 1 + turn % 2 :: 2]
        count = right.shape[1]
        low, high = torch.minimum(left[:, :count], right), torch.maximum(left[:, :count], right)
        left[:, :count], right[:] = low, high
    return y


@case(lambda: rand(4, 6))
def alias_of_reshape(x):  # type: ignore[no-untyped-def]
    y = x.clone()
    flat = y.reshape(-1)
    flat[::7] = 0
    flat.view(6, 4)[2:].neg_()
    y.squeeze_().unsqueeze_(0).transpose_(1, 2)
    return y, flat.sum()


@case(lambda: rand(4, 6))
def input_written(x):  # type: ignore[no-untyped-def]
    x = x + 0
    x[:, ::2].clamp_(min=0).sqrt_()
    x.index_copy_(0, torch.tensor([3, 0]), x[:2].clone())
    x.fill_diagonal_(2.0)
    return x.sub_(x.mean(1, keepdim=True)).div_(x.std(1, keepdim=True))


@case(lambda: rand(2, 3, 10))
def overlap_add(frames):  # type: ignore[no-untyped-def]
    signal = frames.new_zeros(frames.shape[0], 10 + 4 * 2)
    for at in range(3):
        signal[:, at * 4 : at * 4 + 10] += frames[:, at]
    return signal


@case(lambda: rand(8, 8).sign())
def checkerboard_updates(spins):  # type: ignore[no-untyped-def]
    field = spins.clone()
    for start in (0, 1):
        around = sum(torch.roll(field, shift, axis) for shift in (1, -1) for axis in (0, 1))
        for row in (0, 1):
            columns = slice((start + row) % 2, None, 2)
            field[row::2, columns] = torch.where(around[row::2, columns] > 0, 1.0, -1.0)
    return field


@case(lambda: rand(1, 1, 12, 12))
def heat_steps(u):  # type: ignore[no-untyped-def]
    u = u.clone()
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])[None, None]
    for _ in range(3):
        u[:, :, 1:-1, 1:-1] += 0.1 * F.conv2d(u, kernel)
        u[..., 0], u[..., -1] = u[..., 1], u[..., -2]
    return u


@case(lambda: rand(3, 7), lambda: rand(3, 7), lambda: torch.rand(3, 7) > 0.2)
def advantages_backwards(rewards, values, going):  # type: ignore[no-untyped-def]
    out, last = torch.zeros_like(rewards), 0
    for t in reversed(range(rewards.size(1))):
        following = values[:, t + 1] if t + 1 < rewards.size(1) else 0
        last = rewards[:, t] + 0.9 * following * going[:, t] - values[:, t] + 0.8 * last * going[:, t]
        out[:, t] = last
    return out, (out - out.mean()) / (out.std() + 1e-8)


@case(lambda: rand(6, 6).abs())
def all_pairs_paths(d):  # type: ignore[no-untyped-def]
    d = d.clone().fill_diagonal_(0)
    for k in range(6):
        torch.minimum(d, d[:, k, None] + d[None, k], out=d)
    return d


@case(lambda: rand(3, 4))
class RingMemory(nn.Module):
    """A ring of the last rows, with a position that moves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ring", torch.zeros(5, 4), persistent=False)
        self.register_buffer("at", torch.tensor(3))
        self.keys = nn.ParameterDict({"query": nn.Parameter(torch.randn(4, 4)), "value": nn.Parameter(torch.randn(4))})

    def forward(self, x):  # type: ignore[no-untyped-def]
        slots = (self.at + torch.arange(x.shape[0])) % 5
        self.ring[slots] = x
        self.at.add_(x.shape[0]).remainder_(5)
        weights = (x @ self.keys["query"] @ self.ring.T).softmax(-1)
        return weights @ self.ring + self.keys["value"], self.at


@case(lambda: rand(5, 4))
class MovingCodebook(nn.Module):
    """Codes whose counts and sums move with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(6, 4))
        self.register_buffer("counts", torch.ones(6))

    def forward(self, x):  # type: ignore[no-untyped-def]
        nearest = torch.cdist(x, self.codes).argmin(1)
        hits = F.one_hot(nearest, 6).float()
        self.counts.mul_(0.9).add_(hits.sum(0), alpha=0.1)
        self.codes += 0.1 * (hits.T @ (x - self.codes[nearest])) / self.counts[:, None]
        return self.codes[nearest], nearest, self.counts.clone()


@case(lambda: rand(4, 3, 8, 8))
class StatisticsInTraining(nn.Module):
    """Normalization that keeps the statistics of batches while the rest is in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3, momentum=None)
        self.convolution = nn.Conv2d(3, 4, 3)

    def forward(self, x):  # type: ignore[no-untyped-def]
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
        y = F.batch_norm(x, mean, variance, self.norm.weight, self.norm.bias, training=False)
        return self.convolution(F.batch_norm(y, None, None, training=True))


@case(lambda: rand(3, 6))
class Hooks(nn.Module):
    """A shared layer behind hooks, normalized weights by the older function."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.utils.weight_norm(nn.Linear(6, 6))
        self.again = nn.ModuleDict({"same": self.first, "other": nn.utils.spectral_norm(nn.Linear(6, 4))})
        self.first.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
        self.again["other"].register_forward_hook(lambda module, inputs, output: output.tanh())

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.again["other"](F.relu(self.again["same"](self.first(x))))


@dataclasses.dataclass
class Batch:
    """Features of nodes, edges, and an optional mask."""

    nodes: torch.Tensor
    edges: torch.Tensor
    mask: torch.Tensor | None = None
    scale: float = 2.0


class Scores(NamedTuple):
    """Scores with their order."""

    values: torch.Tensor
    order: torch.Tensor


@case(lambda: Batch(rand(5, 4), torch.tensor([[0, 1, 2, 4], [1, 2, 3, 0]])))
def dataclass_of_graph(batch):  # type: ignore[no-untyped-def]
    sums = torch.zeros_like(batch.nodes).index_add_(0, batch.edges[1], batch.nodes[batch.edges[0]])
    sums = sums if batch.mask is None else sums * batch.mask[:, None]
    return dataclasses.replace(batch, nodes=sums * batch.scale, mask=sums.sum(1) > 0)


@case(lambda: OrderedDict(image=rand(2, 4), sizes=(3, [rand(2), None])), lambda: {"gain": 0.5, "kind": "mean"})
def nested_structures(data, options):  # type: ignore[no-untyped-def]
    count, (shift, nothing) = data["sizes"]
    y = data["image"] * options["gain"] + shift[:, None] * count
    reduced = getattr(y, options["kind"])(1)
    assert nothing is None
    return {"scores": Scores(*reduced.sort()), "rest": [y, {"sum": y.sum()}], "count": count, "nothing": None}


@case(lambda: torch.randint(0, 255, (3, 16), dtype=torch.uint8))
def bits_of_bytes(x):  # type: ignore[no-untyped-def]
    slots = torch.arange(8, dtype=torch.uint8)
    bits = (x[..., None] >> slots) & 1
    packed = (bits.flip(-1).to(torch.int32) << slots.int()).sum(-1).to(torch.uint8)
    return bits.sum(-1), packed, x ^ packed, ~x, (x.to(torch.int16) * 257).bitwise_or(1)


@case(lambda: torch.arange(1, 7).reshape(2, 3))
def generator_of_integers(seed):  # type: ignore[no-untyped-def]
    state = seed
    numbers = []
    for _ in range(4):
        state = (state * 6364136223846793005 + 1442695040888963407) ^ (state >> 13)
        numbers.append(((state >> 33) & 0x7FFFFFFF).double() / 2**31)
    return torch.stack(numbers, -1)


@case(lambda: rand(4, 6))
class ManyTypes(nn.Module):
    """Autocast within autocast, half, small floats and integers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):  # type: ignore[no-untyped-def]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.a(x)
            with torch.autocast("cpu", enabled=False):
                z = y.float().layer_norm((8,)) if hasattr(y, "layer_norm") else F.layer_norm(y.float(), (8,))
            y = self.b(z)
        return y.float(), (z.half() * 2).float(), x.to(torch.float8_e4m3fn).float()


@case(lambda: rand(4, 8))
def small_floats(x):  # type: ignore[no-untyped-def]
    scale = x.abs().amax(1, keepdim=True) / 448
    codes = (x / scale).to(torch.float8_e4m3fn)
    integers = torch.clamp(torch.round(x / scale * 0.25), -128, 127).to(torch.int8)
    return codes.to(torch.float32) * scale, integers.to(torch.int32) @ integers.to(torch.int32).T


@case(lambda: rand(4, 6))
def quantized_functions(x):  # type: ignore[no-untyped-def]
    q = torch.quantize_per_tensor(x, 0.05, 10, torch.quint8)
    return q.dequantize() * 2, q.int_repr().float()


@case(lambda: rand(2, 8))
class DynamicallyQuantized(nn.Module):
    """Linear layers and a recurrence with weights of 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
        self.part = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.part(x).softmax(-1)


@case(lambda: rand(2, 3, 8, 8))
class StaticallyQuantized(nn.Module):
    """A convolution and a sum in 8 bits between stubs."""

    def __init__(self) -> None:
        super().__init__()
        import torch.ao.nn.quantized as quantized
        from torch.ao.quantization import DeQuantStub, QuantStub, convert, get_default_qconfig, prepare

        class Plain(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.enter, self.leave = QuantStub(), DeQuantStub()
                self.convolution, self.sum = nn.Conv2d(3, 4, 3, padding=1), quantized.FloatFunctional()

            def forward(self, x):  # type: ignore[no-untyped-def]
                y = self.convolution(self.enter(x))
                return self.leave(self.sum.add_relu(y, y))

        plain = Plain().eval()
        plain.qconfig = get_default_qconfig("x86")
        prepared = prepare(plain)
        prepared(torch.randn(2, 3, 8, 8))
        self.part = convert(prepared)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.part(x)


@case(lambda: rand(3, 16))
def arrays_of_numpy(x):  # type: ignore[no-untyped-def]
    window = torch.from_numpy(np.hamming(16).astype(np.float32))
    mel = torch.as_tensor(np.linspace(0, 1, 9)[None].repeat(4, 0), dtype=torch.float32)
    spectrum = torch.fft.rfft(x * window).abs() ** 2
    return torch.log(spectrum @ mel.T + math.sqrt(x.shape[-1])), x * np.float32(0.5)


@case(lambda: rand(0, 4), lambda: rand(3, 4))
def empty_rows(x, y):  # type: ignore[no-untyped-def]
    both = torch.cat([x, y])
    return both, x.sum(0), torch.cat([x, x]).shape[0] + both.mean(), x @ y.T


@case(lambda: torch.tensor(2.5), lambda: torch.tensor([True, False]))
def scalars_and_truth(a, flags):  # type: ignore[no-untyped-def]
    counts = flags + flags
    return a * 3, flags.sum(), counts, flags * a, a.expand(2, 2).trace(), flags.float().mean(), a.reshape(1, 1) ** flags


@case(lambda: rand(3, 8))
class Wrapped(nn.Module):
    """Parts behind wrappers: compiled, parallel, scripted, without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.parallel = nn.DataParallel(nn.Linear(8, 8))
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.GELU()))

    def forward(self, x):  # type: ignore[no-untyped-def]
        with torch.no_grad():
            y = self.parallel(x)
        return self.scripted(y.detach()).requires_grad_(False)


@case(lambda: rand(4, 5))
def logged(x):  # type: ignore[no-untyped-def]
    import logging
    import warnings

    logging.getLogger(__name__).debug("shape %s", tuple(x.shape))
    if x.dim() != 2 or not torch.is_floating_point(x):
        raise ValueError(f"expected a matrix, got {x.shape}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x.type(torch.float64).to("cpu").contiguous().view(*x.shape[:-1], -1).to(x)


@case(lambda: rand(6, 10))
def packed_triangles(x):  # type: ignore[no-untyped-def]
    rows, columns = torch.tril_indices(4, 4)
    matrix = x.new_zeros(x.shape[0], 4, 4)
    matrix[:, rows, columns] = x
    diagonal = torch.arange(4)
    matrix[:, diagonal, diagonal] = F.softplus(matrix[:, diagonal, diagonal]) + 1e-3
    covariance = matrix @ matrix.mT
    return covariance, 2 * matrix.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@case(lambda: rand(2, 4, 6), lambda: torch.tensor([2, 0]))
def cache_rows_selected(cache: Any, beams: Any) -> Any:
    cache = cache.repeat(2, 1, 1)
    cache[:2].index_fill_(1, beams, 0.0)
    cache.narrow(2, 2, 3).copy_(cache[:, :, :3].clone())
    return cache.index_select(0, beams), torch.movedim(cache, 0, -1).flatten(1)[:, ::3]
