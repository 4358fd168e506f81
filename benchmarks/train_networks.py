"""Networks of the training benchmark: modules of torch, batches, and the same networks as ONNX files.

The files are exported once, with the initial weights of a seeded module: all engines start from the same numbers.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Batch = dict[str, np.ndarray]
"""Inputs by name, in order, then ``labels``."""

CLASSES = 10


@dataclass(frozen=True)
class Network:
    """A network with its batches.

    Attributes:
        name: The name in tables.
        module: Returns the module of torch, seeded.
        batches: Returns the batches, which repeat.
        optimizer: ``adam``, ``adamw`` or ``sgd`` (momentum 0.9), ``plain`` (no momentum).
        rate: The learning rate.
        open_axes: Axes of open size by name of input.
        counted: True if the network counts for the geometric mean of the targets.
        more_parameters: Parameters that only their exact names select.
    """

    name: str
    module: Callable[[], Any]
    batches: Callable[[], list[Batch]]
    optimizer: str
    rate: float
    open_axes: dict[str, dict[int, str]]
    counted: bool = True
    more_parameters: tuple[str, ...] = ()


def _seeded(build: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(build)
    def seeded() -> Any:
        import torch

        torch.manual_seed(0)
        return build()

    return seeded


def images(count: int, channels: int, size: int, classes: int = CLASSES, different: int = 4) -> list[Batch]:
    """Return batches of images whose mean depends on the label."""
    rng = np.random.default_rng(1)
    batches = []
    for _ in range(different):
        labels = rng.integers(0, classes, count)
        image = rng.standard_normal((count, channels, size, size)) + labels.reshape(-1, 1, 1, 1) / classes
        batches.append({"x": image.astype(np.float32), "labels": labels})
    return batches


def vectors(count: int, features: int) -> list[Batch]:
    """Return batches of vectors whose mean depends on the label."""
    return [{"x": batch["x"].reshape(count, features), "labels": batch["labels"]} for batch in images(count, 1, 28)]


@_seeded
def mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, CLASSES))


@_seeded
def lenet() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES),
    )  # fmt: skip


@_seeded
def cnn() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, CLASSES),
    )  # fmt: skip


@_seeded
def resnet18() -> Any:
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
            self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.relu = nn.ReLU()
            self.shortcut: nn.Module = nn.Identity()
            if stride != 1 or before != after:
                self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

        def forward(self, x: Any) -> Any:
            y = self.relu(self.bn1(self.conv1(x)))
            return self.relu(self.bn2(self.conv2(y)) + self.shortcut(x))

    blocks: list[Any] = []
    width = 64
    for number, after in enumerate((64, 128, 256, 512)):
        blocks += [Block(width, after, 1 if number == 0 else 2), Block(after, after, 1)]
        width = after
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
    )  # fmt: skip


VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 256, 128, 256, 8, 6


@_seeded
def gpt() -> Any:
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            parts = self.qkv(x).view(-1, CONTEXT, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            return self.out(y.transpose(1, 2).reshape(-1, CONTEXT, WIDTH))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
            self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.feed(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, WIDTH)
            self.positions = nn.Parameter(torch.randn(CONTEXT, WIDTH) * 0.02)
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.blocks(self.tokens(x) + self.positions))).view(-1, VOCABULARY)

    return GPT()


def tokens(count: int = 8) -> list[Batch]:
    """Return batches of sequences in which most symbols follow from the one before."""
    rng = np.random.default_rng(2)
    follows = rng.permutation(VOCABULARY)
    batches = []
    for _ in range(4):
        rows = np.empty((count, CONTEXT + 1), np.int64)
        rows[:, 0] = rng.integers(0, VOCABULARY, count)
        for at in range(CONTEXT):
            rows[:, at + 1] = np.where(
                rng.random(count) < 0.9, follows[rows[:, at]], rng.integers(0, VOCABULARY, count)
            )
        batches.append({"x": rows[:, :-1].copy(), "labels": rows[:, 1:].reshape(-1).copy()})
    return batches


@_seeded
def lstm() -> Any:
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(64, 128, batch_first=True), nn.Linear(128, CLASSES)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    return Recurrent()


def sequences() -> list[Batch]:
    rng = np.random.default_rng(3)
    batches = []
    for _ in range(4):
        labels = rng.integers(0, CLASSES, 32)
        x = rng.standard_normal((32, 64, 64)) + labels.reshape(-1, 1, 1) / CLASSES
        batches.append({"x": x.astype(np.float32), "labels": labels})
    return batches


FEATURES, HIDDEN = 64, 64


@_seeded
def gnn() -> Any:
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, before: int, after: int) -> None:
            super().__init__()
            self.own, self.others = nn.Linear(before, after), nn.Linear(before, after, bias=False)

        def forward(self, x: Any, sources: Any, targets: Any) -> Any:
            read = x.index_select(0, sources)
            index = targets.unsqueeze(1).expand_as(read)
            total = torch.zeros_like(x).scatter_add(0, index, read)
            ones = torch.ones_like(targets, dtype=x.dtype).unsqueeze(1)
            count = torch.zeros_like(x[:, :1]).scatter_add(0, targets.unsqueeze(1), ones)
            return self.own(x) + self.others(total / count.clamp(min=1))

    class Graphs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Layer(FEATURES, HIDDEN), Layer(HIDDEN, HIDDEN)
            self.third = Layer(HIDDEN, CLASSES)

        def forward(self, x: Any, sources: Any, targets: Any) -> Any:
            x = torch.relu(self.first(x, sources, targets))
            x = torch.relu(self.second(x, sources, targets))
            return self.third(x, sources, targets)

    return Graphs()


def graphs() -> list[Batch]:
    """Return graphs of 50 to 1,000 nodes with four edges for each node."""
    rng = np.random.default_rng(4)
    batches = []
    for count in (50, 1000, 120, 700, 300, 900, 200, 500):
        labels = rng.integers(0, CLASSES, count)
        x = (rng.standard_normal((count, FEATURES)) + labels.reshape(-1, 1) / CLASSES).astype(np.float32)
        ends = rng.integers(0, count, (2, 4 * count))
        batches.append({"x": x, "sources": ends[0].copy(), "targets": ends[1].copy(), "labels": labels})
    return batches


_N = {0: "N"}

NETWORKS = {
    one.name: one
    for one in (
        Network("mlp", mlp, lambda: vectors(64, 784), "adam", 1e-3, {"x": _N}),
        Network("mlp-batch-1", mlp, lambda: vectors(1, 784), "plain", 1e-2, {"x": _N}, counted=False),
        Network("lenet", lenet, lambda: images(64, 1, 28), "adam", 1e-3, {"x": _N}),
        Network("cnn", cnn, lambda: images(64, 1, 28), "adam", 1e-3, {"x": _N}),
        Network("resnet18-64", resnet18, lambda: images(8, 3, 64, 1000), "sgd", 1e-2, {"x": _N}),
        Network("resnet18-224", resnet18, lambda: images(8, 3, 224, 1000, different=2), "sgd", 1e-2, {"x": _N}),
        Network("gpt", gpt, tokens, "adamw", 1e-3, {"x": _N}, more_parameters=("positions",)),
        Network("lstm", lstm, sequences, "adam", 1e-3, {"x": _N}),
        Network("gnn", gnn, graphs, "adam", 1e-3, {"x": _N, "sources": {0: "E"}, "targets": {0: "E"}}),
    )
}


def export(network: Network, path: Path) -> None:
    """Write a network with its initial weights as an ONNX file in training mode."""
    import torch

    module, batch = network.module(), network.batches()[0]
    names = [name for name in batch if name != "labels"]
    axes = {name: dict(open_axes) for name, open_axes in network.open_axes.items()}
    axes["y"] = {0: "M"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.train(), tuple(torch.from_numpy(batch[name]) for name in names), str(path), input_names=names,
            output_names=["y"], dynamic_axes=axes, opset_version=17, do_constant_folding=False, dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
        )  # fmt: skip


def endless(network: Network) -> Iterator[Batch]:
    """Return the batches of a network, again and again."""
    return itertools.cycle(network.batches())
