"""Functions of torch in unusual combinations: control flow, transforms, state, views, sequences."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils import prune

from convert_sources import torch_operators
from convert_sources.small_programs import Case, Registry, rand

_registry = Registry()
case = _registry.case


def cases() -> dict[str, Case]:
    """Return programs with example inputs, by name."""
    return {**_registry.cases, **torch_operators.registry.cases}


@case(lambda: rand(4, 3), lambda: torch.tensor(2))
def nested_conditions(x, n):  # type: ignore[no-untyped-def]
    def low(y):  # type: ignore[no-untyped-def]
        return torch.cond(y.sum() > 0, lambda z: z + 1, lambda z: z - 1, (y,))

    return torch.cond(n > 1, lambda y: low(y * 2), lambda y: torch.cond(n == 0, torch.sin, torch.cos, (y,)), (x,))


@case(lambda: rand(4), lambda: torch.tensor(3))
def loop_in_condition(x, n):  # type: ignore[no-untyped-def]
    from torch._higher_order_ops.while_loop import while_loop

    def repeat(y):  # type: ignore[no-untyped-def]
        return while_loop(
            lambda i, z: i < 5, lambda i, z: (i + 1, z * 0.5 + 1), (torch.zeros((), dtype=torch.long), y)
        )[1]

    return torch.cond(n > 2, repeat, lambda y: y * 1.0, (x,))


@case(lambda: torch.tensor(3), lambda: rand(4))
def loop_in_loop(n, x):  # type: ignore[no-untyped-def]
    from torch._higher_order_ops.while_loop import while_loop

    def body(i, y):  # type: ignore[no-untyped-def]
        inner = while_loop(lambda j, z: j < i, lambda j, z: (j + 1, z + j), (torch.zeros((), dtype=torch.long), y))
        return i - 1, inner[1] * 0.5

    return while_loop(lambda i, y: i > 0, body, (n.clone(), x))


@case(lambda: rand(6, 3), lambda: rand(3))
def condition_in_scan(x, h):  # type: ignore[no-untyped-def]
    from torch._higher_order_ops.scan import scan

    def step(state, row):  # type: ignore[no-untyped-def]
        new = torch.where(row.sum() > 0, state + row, state * 0.5)
        return new, new.max()

    return scan(step, h, x)


@case(lambda: rand(3, 5))
def mapped_rows(x):  # type: ignore[no-untyped-def]
    from torch._higher_order_ops.map import map as map_rows

    return map_rows(lambda row, y: row.cumsum(0) * y, x, x.mean(0))


@case(lambda: rand(4, 3, 5), lambda: rand(5))
def nested_mapping(x, w):  # type: ignore[no-untyped-def]
    one = torch.vmap(torch.vmap(lambda row, v: (row * v).softmax(0), in_dims=(0, None)), in_dims=(0, None))
    return one(x, w), torch.vmap(lambda m: m @ m.T, in_dims=1)(x)


@case(lambda: rand(4, 5), lambda: torch.tensor([0, 2, 4, 1]))
def mapped_indexing(x, i):  # type: ignore[no-untyped-def]
    return torch.vmap(lambda row, j: torch.index_select(row, 0, j.view(1)))(x, i), torch.vmap(torch.diag)(x)


@case(lambda: rand(4, 6))
class Ensemble(nn.Module):
    """Three networks as one, by stacked parameters and a functional call under vmap."""

    def __init__(self) -> None:
        super().__init__()
        networks = [nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)) for _ in range(3)]
        parameters, _ = torch.func.stack_module_state(networks)
        self.names = list(parameters)
        self.stacked = nn.ParameterList(parameters[name].detach() for name in self.names)
        self._skeleton = [networks[0]]

    def forward(self, x):  # type: ignore[no-untyped-def]
        def one(parameters, x):  # type: ignore[no-untyped-def]
            return torch.func.functional_call(self._skeleton[0], parameters, (x,))

        return torch.vmap(one, in_dims=(0, None))(dict(zip(self.names, self.stacked, strict=True)), x).mean(0)


@case(lambda: rand(3, 4))
def forward_derivative(x):  # type: ignore[no-untyped-def]
    value, tangent = torch.func.jvp(lambda y: (y.sin() * y).sum(1), (x,), (torch.ones_like(x),))
    return value, tangent, torch.func.jacfwd(lambda y: y.exp().sum())(x[0])


@case(lambda: rand(4, 3))
class Energy(nn.Module):
    """Forces as the gradient of an energy, by autograd in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):  # type: ignore[no-untyped-def]
        return torch.vmap(torch.func.grad_and_value(lambda y: self.network(y).sum()))(x)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(context, x, scale):  # type: ignore[no-untyped-def]
        context.save_for_backward(x)
        return torch.round(x / scale) * scale, x.sign()

    @staticmethod
    def backward(context, gradient, other):  # type: ignore[no-untyped-def]
        return gradient, None


@case(lambda: rand(4, 6))
class StraightThrough(nn.Module):
    """A custom function of two results within a network."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(6, 5), 0.25

    def forward(self, x):  # type: ignore[no-untyped-def]
        rounded, signs = _Rounded.apply(self.linear(x), self.scale)
        return rounded + signs


@case(lambda: rand(4, 6))
class MutatedBuffers(nn.Module):
    """Running statistics that forward itself updates, in place and by assignment."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("ring", torch.zeros(3, 6))

    def forward(self, x):  # type: ignore[no-untyped-def]
        self.count += 1
        self.mean.lerp_(x.mean(0), 0.1)
        self.ring = torch.roll(self.ring, 1, 0)
        self.ring[0] = x.max(0).values
        return x - self.mean, self.ring.clone(), self.count * 2


@case(lambda: rand(2, 3, 8), lambda: torch.tensor([4, 5, 6]))
class KeyValueCache(nn.Module):
    """A cache written at positions, read up to the last."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.randn(2, 10, 8))

    def forward(self, new, positions):  # type: ignore[no-untyped-def]
        self.keys.index_copy_(1, positions, new)
        scores = new @ self.keys.mT
        hidden = torch.arange(10)[None] > positions[:, None]
        return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)


@case(lambda: rand(4, 6))
def writes_through_slices(x):  # type: ignore[no-untyped-def]
    y = x.clone()
    half = y[:, 1::2]
    half[half > 0] = 0
    rows = y.unbind(0)
    rows[0].add_(10)
    left, right = y.split(3, 1)
    left.mul_(right)
    y.view(-1)[::5] = -1
    torch.transpose(y, 0, 1)[2].copy_(x[:, 0])
    return y, half, left.sum(0)


@case(lambda: rand(2, 3, 4, 4))
def writes_through_expansions(x):  # type: ignore[no-untyped-def]
    y = torch.zeros_like(x)
    y.unfold(2, 2, 2).copy_(x.unfold(2, 2, 2) * 2)
    y.narrow(3, 1, 2).squeeze(0).zero_()
    z = y.as_strided((2, 3, 4), (48, 16, 5))
    z.fill_(1)
    y.select(1, 0).addcmul_(x[:, 1], x[:, 2], value=0.5)
    y[:, -1].swapaxes(1, 2)[0, 0] += 1
    return y


@case(lambda: rand(4, 6))
def in_place_reductions(x):  # type: ignore[no-untyped-def]
    y = x.clone()
    y.cumsum_(1).tril_(1).squeeze_().t_()
    y.index_fill_(0, torch.tensor([1, 3]), 2.0).renorm_(2, 0, 1.5)
    y.index_add_(1, torch.tensor([0, 0]), x.T[:, :2], alpha=2)
    out = torch.empty(0)
    torch.add(y, 1, out=out)
    return y, out


@case(lambda: rand(3, 4), lambda: rand(3, 4))
def complex_polynomials(x, y):  # type: ignore[no-untyped-def]
    z = torch.complex(x, y)
    roots = torch.polar(torch.ones(5), torch.arange(5) * 2 * math.pi / 5)
    values = torch.stack([z**k for k in range(3)], -1).sum(-1)
    return values.abs(), roots.real, (z[..., None] - roots).prod(-1), torch.sqrt(z), torch.log(z + 3), z.reciprocal()


@case(lambda: rand(2, 4, 4), lambda: rand(2, 4, 4))
def complex_systems(x, y):  # type: ignore[no-untyped-def]
    z = torch.complex(x, y) + 4 * torch.eye(4)
    return torch.linalg.solve(z, z.mH), torch.linalg.det(z), torch.linalg.inv(z) @ z, torch.linalg.norm(z, dim=(1, 2))


@case(lambda: rand(2, 3, 8), lambda: rand(2, 3, 8))
def complex_writes(x, y):  # type: ignore[no-untyped-def]
    z = torch.complex(x, y)
    z[:, 0] = 0
    z.real.mul_(2)
    z.imag[:, 1] += 1
    return torch.view_as_real(z), torch.where(z.abs() > 1, z, -z).conj().angle(), z.mean(), z.sum(1)


@case(lambda: rand(3, 4, 4))
def decompositions(x):  # type: ignore[no-untyped-def]
    s = x @ x.mT + torch.eye(4)
    values, vectors = torch.linalg.eigh(s)
    lu, pivots = torch.linalg.lu_factor(x)
    return (
        (vectors * values.sqrt()[:, None]) @ vectors.mT,
        torch.linalg.lu_solve(lu, pivots, s),
        torch.linalg.svdvals(x),
        torch.linalg.cond(s),
        torch.linalg.matrix_rank(x),
        torch.linalg.pinv(x[:, :, :3]),
    )


@case(lambda: rand(4, 4), lambda: rand(4, 3))
def matrix_series(a, b):  # type: ignore[no-untyped-def]
    return (
        torch.linalg.matrix_exp(a * 0.3),
        torch.linalg.matrix_power(a, 5),
        torch.linalg.multi_dot([a, a, b]),
        torch.linalg.vander(b[:, 0]),
        torch.linalg.householder_product(*torch.geqrf(b)),
        torch.linalg.tensorinv(a.view(2, 2, 4) + torch.eye(4).view(2, 2, 4), ind=2),
        torch.block_diag(a, b, b.T),
        torch.cov(b.T),
        torch.corrcoef(b.T),
    )


@case(lambda: rand(5, 6), lambda: torch.tensor([2, 5, 3, 1, 4]))
class SortedPack(nn.Module):
    """Packing with sorted sequences, two layers, and states restored to the caller's order."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 3, 2, bidirectional=True, batch_first=True)

    def forward(self, x, lengths):  # type: ignore[no-untyped-def]
        ordered, order = lengths.sort(descending=True)
        x = x[order, None].expand(-1, 5, -1) * torch.arange(1.0, 6)[:, None]
        packed = nn.utils.rnn.pack_padded_sequence(x, ordered, batch_first=True)
        out, (h, c) = self.rnn(packed)
        padded, sizes = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        back = order.argsort()
        return padded[back], sizes[back], h[-1][back], c


@case(lambda: rand(6, 4), lambda: torch.tensor([3, 2, 1]))
class PackedLinear(nn.Module):
    """A layer over the data of a packed sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.rnn = nn.Linear(4, 3), nn.RNN(3, 3)

    def forward(self, x, lengths):  # type: ignore[no-untyped-def]
        parts = [x[:3], x[3:5], x[5:]]
        packed = nn.utils.rnn.pack_sequence(parts)
        packed = nn.utils.rnn.PackedSequence(self.linear(packed.data), packed.batch_sizes)
        out, h = self.rnn(packed)
        return nn.utils.rnn.unpack_sequence(out), h


@case(lambda: rand(3, 7), lambda: torch.tensor(4))
def loop_up_to_value(x, n):  # type: ignore[no-untyped-def]
    total = torch.zeros(3)
    for i in range(int(n)):
        total = total + x[:, i] * i
    return total


@case(lambda: torch.rand(3, 4), lambda: torch.tensor([0.2]))
def stopped_loop(x, limit):  # type: ignore[no-untyped-def]
    for _ in range(10):
        x = x * 0.7
        if x.max() < limit:
            break
    return x


@case(lambda: torch.tensor([4, 1, 3]), lambda: rand(8, 2))
def ragged_parts(lengths, x):  # type: ignore[no-untyped-def]
    return [part.sum(0) for part in x.split(lengths.tolist())]


@case(lambda: rand(5, 4))
def sizes_from_data(x):  # type: ignore[no-untyped-def]
    n = int((x[:, 0] > 0).sum())
    torch._check(n >= 0)
    torch._check(n <= 5)
    return torch.zeros(n, 3), x.narrow(0, 0, n), torch.arange(n)


@case(lambda: rand(6, 4), lambda: torch.tensor([True, False, True, True, False, False]))
def boolean_selection(x, keep):  # type: ignore[no-untyped-def]
    rows = x[keep]
    y = torch.zeros_like(x)
    y[keep] = rows / rows.shape[0]
    y[~keep, 1] = -1
    return y, rows.softmax(0), torch.argwhere(x > 1), x[keep][:, [0, 2]]


class Answer(NamedTuple):
    """A result with names."""

    mean: torch.Tensor
    parts: tuple[torch.Tensor, ...]


@case(lambda: rand(2, 3), name="structured_inputs")
class StructuredInputs(nn.Module):
    """Nested inputs, keyword-only arguments with defaults, and a named tuple as output."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 2)})

    def forward(self, x=None, *, scale: float = 2.0, flag: bool = True):  # type: ignore[no-untyped-def]
        y = torch.ones(2, 3) if x is None else x
        for name, layer in self.layers.items():
            y = layer(y) * (scale if name == "a" or flag else 1.0)
        return Answer(y.mean(), tuple(y.unbind(0)))


@case(lambda: rand(3, 4), 3, 0.5, "relu")
def plain_arguments(x, times, factor, kind):  # type: ignore[no-untyped-def]
    for _ in range(times):
        x = getattr(torch, kind)(x) * factor + 0.1
    return x


@case(lambda: rand(2, 3, 4))
def identity_outputs(x):  # type: ignore[no-untyped-def]
    return x, x.view(6, 4), 3, None, x.shape[0], torch.tensor(2.0), x


@case(lambda: rand(3, 4))
class Hooked(nn.Module):
    """Hooks, parametrizations and a shared layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.tied = self.layer
        self.sparse = nn.Linear(4, 2)
        prune.l1_unstructured(self.sparse, "weight", 0.5)
        self.layer.register_forward_hook(lambda module, args, out: out * 2)
        self.layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.sparse(self.tied(self.layer(x)))


@case(lambda: rand(2, 3), lambda: rand(2, 3))
class Recursive(nn.Module):
    """A tree of modules walked by recursion in Python, with a cache of results."""

    def __init__(self) -> None:
        super().__init__()
        self.join = nn.Linear(6, 3)

    def tree(self, parts):  # type: ignore[no-untyped-def]
        if isinstance(parts, torch.Tensor):
            return parts
        return torch.tanh(self.join(torch.cat([self.tree(part) for part in parts], -1)))

    def forward(self, x, y):  # type: ignore[no-untyped-def]
        return self.tree(((x, y), (y, (x, x))))
