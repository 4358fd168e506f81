"""Modules by their interfaces: inputs and outputs of all kinds, state, control, scripts, precision."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from convert_sources.small_programs import Registry, rand

registry = Registry()
case = registry.case


@dataclasses.dataclass
class Features:
    """Dense and sparse inputs of a model; some are left out."""

    dense: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor | None = None


class Result(NamedTuple):
    """Parts of an answer."""

    logits: torch.Tensor
    hidden: dict[str, torch.Tensor]
    loss: torch.Tensor | None


@case(lambda: Features(rand(3, 4), torch.tensor([[1, 2], [0, 3], [4, 4]])))
class DataclassIn(nn.Module):
    """A dataclass in, a named tuple with a dict and None out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.net = nn.Embedding(5, 4), nn.Linear(8, 2)

    def forward(self, batch):  # type: ignore[no-untyped-def]
        x = torch.cat([batch.dense, self.table(batch.ids).mean(1)], 1)
        x = x if batch.weights is None else x * batch.weights
        return Result(self.net(x), {"x": x}, None)


@case(lambda: {"image": rand(2, 3, 8, 8), "boxes": [rand(2, 4), rand(1, 4)], "flag": True, "scale": 2})
def dict_with_lists(batch):  # type: ignore[no-untyped-def]
    x = batch["image"] * batch["scale"]
    y = torch.cat(batch["boxes"])
    return {"x": x.mean((2, 3)), "y": [y.exp(), None], "n": y.shape[0]} if batch["flag"] else {"x": x}


@case(lambda: rand(2, 5), lambda: {"mask": torch.tensor([[1, 1, 0, 0, 1], [1, 0, 1, 1, 1]]).bool(), "mode": "mean"})
class KeywordsOnly(nn.Module):
    """A text chooses the pooling, a mask is a keyword."""

    def forward(self, x, *, mask, mode="sum", temperature=1.0):  # type: ignore[no-untyped-def]
        x = (x / temperature).masked_fill(~mask, 0)
        return x.sum(1) / mask.sum(1) if mode == "mean" else x.sum(1)


@case(lambda: rand(2, 3, 4), lambda: 2, lambda: 0.5, lambda: False, lambda: None)
def numbers_and_flags(x, repeats, scale, transposed, bias):  # type: ignore[no-untyped-def]
    for _ in range(repeats):
        x = x * scale + 1
    x = x.mT if transposed else x
    return x if bias is None else x + bias


@case(lambda: rand(2, 4), lambda: (rand(2, 4), (rand(2, 4), [rand(2, 4)])))
def nested_tuples(x, state):  # type: ignore[no-untyped-def]
    a, (b, rest) = state
    return (x + a, (b * 2, [r - x for r in rest])), collections.OrderedDict(total=x + a + b)


@case(lambda: rand(2, 4), lambda: rand(2, 4), lambda: rand(2, 4))
def any_number_of_tensors(*xs):  # type: ignore[no-untyped-def]
    return torch.stack(xs).mean(0), len(xs)


@case(lambda: rand(1, 4), lambda: rand(1, 2, 3, 4), lambda: rand(1, 2, 3, 4))
class CacheInCacheOut(nn.Module):
    """One step of a decoder: the cache grows by one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 24)

    def forward(self, x, keys, values):  # type: ignore[no-untyped-def]
        q, k, v = self.qkv(x).view(x.shape[0], 3, 2, 1, 4).unbind(1)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        return F.scaled_dot_product_attention(q, keys, values).flatten(1), keys, values


@case(lambda: rand(2, 1, 4), lambda: torch.tensor([3]))
class CacheByPosition(nn.Module):
    """Buffers of a fixed length that are written at a position."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.register_buffer("keys", torch.zeros(2, 8, 4))

    def forward(self, x, position):  # type: ignore[no-untyped-def]
        self.keys.index_copy_(1, position, self.project(x))
        seen = torch.arange(8) <= position
        return ((x @ self.keys.mT).masked_fill(~seen, -1e9).softmax(-1) @ self.keys), self.keys.sum()


@case(lambda: rand(4, 3))
class CountedCalls(nn.Module):
    """Counters and moving averages in buffers, of which one is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(3))
        self.last: torch.Tensor | None = None

    def forward(self, x):  # type: ignore[no-untyped-def]
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.last = x
        return (x - self.mean) / self.steps


@case(lambda: rand(3, 4), lambda: rand(3, 4))
class ConditionOnSums(nn.Module):
    """torch.cond over modules, nested in a loop of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x, y):  # type: ignore[no-untyped-def]
        for _ in range(2):
            x = torch.cond((x.sum() > y.sum()), lambda x, y: self.a(x) - y, lambda x, y: self.b(x) + y, (x, y))
        return x


@case(lambda: torch.tensor(40), lambda: rand(3))
def loop_of_collatz(n, x):  # type: ignore[no-untyped-def]
    from torch._higher_order_ops.while_loop import while_loop

    def step(n, count, x):  # type: ignore[no-untyped-def]
        return torch.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1, x * 0.9

    return while_loop(lambda n, count, x: n != 1, step, (n, torch.tensor(0), x))


@case(lambda: rand(4, 3), lambda: rand(4, 3, 2))
def mapped_with_axes(x, w):  # type: ignore[no-untyped-def]
    return torch.vmap(lambda r, m: torch.tanh(r @ m))(x, w), torch.vmap(lambda c: c.cumsum(0), in_dims=1, out_dims=1)(x)


@case(lambda: rand(5, 3))
class GradientInside(nn.Module):
    """The gradient of an energy is the answer, and a penalty of it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 1))

    def forward(self, x):  # type: ignore[no-untyped-def]
        gradient = torch.func.vmap(torch.func.grad(lambda r: self.net(r).squeeze()))(x)
        return gradient, (gradient.norm(dim=1) - 1).square().mean()


@case(lambda: rand(2, 6))
class Parametrized(nn.Module):
    """Spectral norm, an orthogonal matrix, and a symmetric one of the user's."""

    class Symmetric(nn.Module):
        """The upper triangle, mirrored."""

        def forward(self, x):  # type: ignore[no-untyped-def]
            return x.triu() + x.triu(1).mT

    def __init__(self) -> None:
        super().__init__()
        self.a = parametrizations.spectral_norm(nn.Linear(6, 6))
        self.b = parametrizations.orthogonal(nn.Linear(6, 6))
        self.c = nn.Linear(6, 6)
        parametrize.register_parametrization(self.c, "weight", self.Symmetric())

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.c(self.b(self.a(x)))


@case(lambda: rand(2, 6))
class ListsOfParameters(nn.Module):
    """Parameters in lists and dicts, one of them twice, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Parameter(torch.randn(6, 6))
        self.list = nn.ParameterList([shared, nn.Parameter(torch.randn(6, 6)), shared])
        self.named = nn.ParameterDict({"bias": nn.Parameter(torch.randn(6), requires_grad=False)})

    def forward(self, x):  # type: ignore[no-untyped-def]
        for weight in self.list:
            x = torch.tanh(x @ weight + self.named["bias"])
        return x


@case(lambda: rand(2, 3, 8, 8))
class HookedFeatures(nn.Module):
    """Features that hooks collect, and one that replaces an output."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.seen: list[torch.Tensor] = []
        self.net[0].register_forward_hook(lambda module, args, out: self.seen.append(out))
        self.net[1].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.net[2].register_forward_hook(lambda module, args, out: out + 1)

    def forward(self, x):  # type: ignore[no-untyped-def]
        self.seen.clear()
        return self.net(x), [one.mean((2, 3)) for one in self.seen]


@case(lambda: rand(2, 6).half())
class HalfNetwork(nn.Module):
    """Weights and activations of 16 bits, with a norm in 32."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.norm = nn.Linear(6, 8).half(), nn.LayerNorm(8)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.norm(self.net(x).float()).half().softmax(-1)


@case(lambda: rand(2, 6).bfloat16())
class BrainNetwork(nn.Module):
    """A block in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True).bfloat16()

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.net(x[None])[0]


@case(lambda: rand(2, 6))
class Autocast(nn.Module):
    """Parts under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):  # type: ignore[no-untyped-def]
        with torch.autocast("cpu", torch.bfloat16):
            x = F.gelu(self.a(x))
        return self.b(x.float())


def quantized() -> nn.Module:
    """Return a network that is quantized at run time."""
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    return torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, torch.qint8)


registry.layer("dynamic_quantization", quantized, (4, 6))


def traced() -> nn.Module:
    """Return a traced network."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return torch.jit.trace(net.eval(), torch.randn(2, 3, 12, 12))


registry.layer("traced_network", traced, (2, 3, 12, 12))


class _Exported(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softplus(x) @ x.mT


def exported() -> nn.Module:
    """Return the module of an exported program."""
    batch = torch.export.Dim("batch")
    program = torch.export.export(_Exported(), (torch.randn(3, 4),), dynamic_shapes=({0: batch},))
    return _Quiet(program.module())


class _Quiet(nn.Module):
    """A module that evaluates another whose `eval` is refused."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = [inner]

    def forward(self, x: torch.Tensor) -> Any:
        return self._inner[0](x)


registry.layer("module_of_exported_program", exported, (3, 4))


@case(lambda: rand(2, 3), lambda: torch.tensor([2, 0]))
def empty_and_scalars(x, counts):  # type: ignore[no-untyped-def]
    return x[:0], x.sum(), torch.tensor(3), x.new_zeros(0, 3).sum(0), counts.max() + x.shape[0], x > 0


@case(lambda: rand(4, 5))
def same_tensor_twice(x):  # type: ignore[no-untyped-def]
    y = x * 2
    return y, x, y, [y, y.view(2, 10)], (y,)


@case(lambda: rand(3, 4), lambda: torch.tensor([True, False, True]))
def chosen_rows(x, chosen):  # type: ignore[no-untyped-def]
    rows = x[chosen]
    x = x.clone()
    x[~chosen] = rows.mean(0)
    return rows, x, chosen.nonzero().flatten(), torch.where(chosen[:, None], x, -x)


@case(lambda: torch.tensor([3, 1, 2]), lambda: rand(6, 4))
def segments_by_lengths(lengths, x):  # type: ignore[no-untyped-def]
    index = torch.repeat_interleave(torch.arange(lengths.shape[0]), lengths)
    total = torch.zeros(lengths.shape[0], x.shape[1]).index_add(0, index, x)
    starts = F.pad(lengths.cumsum(0)[:-1], (1, 0))
    return total / lengths[:, None], x[starts], torch.segment_reduce(x, "max", lengths=lengths)


@case(lambda: rand(2, 5, 4))
class OptionalParts(nn.Module):
    """Parts that are None or the identity, chosen when the module is made."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.extra = nn.Identity(), nn.Dropout(0.5), None
        self.stages = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])})

    def forward(self, x):  # type: ignore[no-untyped-def]
        x = self.drop(self.norm(self.stages["a"](x)))
        for layer in self.stages["b"]:
            x = layer(x) if self.extra is None else self.extra(x)
        return x


@case(lambda: rand(2, 5, 4))
class SubclassOfLayer(nn.Linear):
    """A layer that changes its weight before use."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, input):  # type: ignore[no-untyped-def]
        weight = (self.weight - self.weight.mean(1, keepdim=True)) / (self.weight.var(1, keepdim=True) + 1e-5).sqrt()
        return F.linear(input, weight, self.bias)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, levels: int) -> torch.Tensor:
        return torch.round(x * levels) / levels

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0], None


@case(lambda: rand(3, 4))
def rounded_by_own_function(x):  # type: ignore[no-untyped-def]
    return _Rounded.apply(torch.sigmoid(x), 15)


@case(lambda: torch.randint(0, 255, (2, 9, 11, 3), dtype=torch.uint8))
class BytesToLogits(nn.Module):
    """Bytes as a camera has them, normalized and resized."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images):  # type: ignore[no-untyped-def]
        x = images.permute(0, 3, 1, 2).float().div(255).sub(self.mean)
        x = F.interpolate(x, size=(16, 16), mode="bilinear", antialias=True)
        return self.conv(x).flatten(1).log_softmax(1)


@case(lambda: torch.tensor([[5, 3, 1, 0], [4, 2, 0, 0]]))
class IdsWithPadding(nn.Module):
    """A mask that is made from ids, and positions that count tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(8, 8, padding_idx=0), nn.Embedding(16, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):  # type: ignore[no-untyped-def]
        mask = ids != 0
        x = self.table(ids) + self.positions(mask.long().cumsum(1) * mask)
        y = self.encoder(x, src_key_padding_mask=~mask)
        return (y * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


@case(lambda: rand(2, 7, 8), lambda: rand(2, 5, 8))
class WholeTransformer(nn.Module):
    """Encoder and decoder with a causal mask of the target's length."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, source, target):  # type: ignore[no-untyped-def]
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.net(source, target, tgt_mask=mask, tgt_is_causal=True)


@case(lambda: rand(3, 4))
def sizes_as_outputs(x):  # type: ignore[no-untyped-def]
    return x.shape[0] * 2, x.numel(), torch.tensor(x.shape), x / x.shape[1], x.new_full((x.shape[0],), x.shape[1])
