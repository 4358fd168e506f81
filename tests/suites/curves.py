"""Eight small networks of torch with data, exported to ONNX: their training curves are those of torch."""

from __future__ import annotations

import io
import math
import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sardonyx import train
from sardonyx.core import language as L

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Net:
    """A network and how it is trained.

    Attributes:
        module: The module of torch.
        inputs: Inputs of the module, in order, from a generator and the number of the step.
        outputs: Names of the outputs.
        loss: The loss of Sardonyx.
        theirs: The loss of torch, of the outputs and the labels.
        labels: The labels of a batch, from a generator and the inputs.
        optimizer: The optimizer of Sardonyx.
        twin: The optimizer of torch, of the parameters.
        open: Inputs with an open first axis.
    """

    module: nn.Module
    inputs: Callable[[np.random.Generator, int], Arrays]
    outputs: tuple[str, ...]
    loss: train.Loss
    theirs: Callable[..., Tensor]
    labels: Callable[[np.random.Generator, Arrays], Arrays]
    optimizer: train.Optimizer
    twin: Callable[[Any], torch.optim.Optimizer]
    open: tuple[str, ...] = field(default=("x",))


def exported(net: Net) -> bytes:
    """Return the module as an ONNX file; parameters keep their names, and BatchNormalization stays."""
    arrays = net.inputs(np.random.default_rng(0), 0)
    stored = io.BytesIO()
    mode = net.module.training
    net.module.eval()
    # Exported LayerNormalization computes mean and variance in float32, also of float64; opset 16 has its parts.
    is_double = any(parameter.dtype == torch.float64 for parameter in net.module.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net.module, tuple(torch.tensor(array) for array in arrays.values()), stored, dynamo=False,
            opset_version=16 if is_double else 17,
            input_names=list(arrays), output_names=list(net.outputs), do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            dynamic_axes={name: {0: "N"} for name in (*net.open, *net.outputs) if net.open},
        )  # fmt: skip
    net.module.train(mode)
    return stored.getvalue()


def replaced(net: Net, module: nn.Module, convert: Callable[[np.ndarray], np.ndarray]) -> Net:
    """Return a network with another module, and with inputs of another type."""
    return replace(
        net, module=module,
        inputs=lambda rng, step: {name: convert(array) for name, array in net.inputs(rng, step).items()},
    )  # fmt: skip


def class_labels(classes: int, *shape: int) -> Callable[[np.random.Generator, Arrays], Arrays]:
    """Return the drawing of class indices."""
    return lambda rng, x: {"labels": rng.integers(0, classes, (len(x["x"]), *shape))}


def images(*shape: int) -> Callable[[np.random.Generator, int], Arrays]:
    """Return the drawing of a batch of normal numbers."""
    return lambda rng, step: {"x": rng.standard_normal((8, *shape)).astype(np.float32)}


def mlp() -> Net:
    module = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5))
    return Net(
        module, images(20), ("y",), train.CrossEntropy(label_smoothing=0.1),
        lambda y, labels: F.cross_entropy(y, labels, label_smoothing=0.1), class_labels(5),
        train.Adam(1e-3), lambda p: torch.optim.Adam(p, 1e-3),
    )  # fmt: skip


def lenet() -> Net:
    module = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(72, 24), nn.ReLU(), nn.Linear(24, 10),
    )  # fmt: skip
    return Net(
        module, images(1, 16, 16), ("y",), train.CrossEntropy(), F.cross_entropy, class_labels(10),
        train.SGD(0.01, momentum=0.9), lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.short = nn.Sequential()
        if stride > 1 or width != out:
            self.short = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.short(x))


def resnet() -> Net:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    return Net(
        module, images(3, 16, 16), ("y",), train.CrossEntropy(), F.cross_entropy, class_labels(10),
        train.SGD(0.003, momentum=0.9, weight_decay=1e-4, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.003, momentum=0.9, weight_decay=1e-4, nesterov=True),
    )  # fmt: skip


class Transformer(nn.Module):
    def __init__(self, vocabulary: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(length, width) * 0.1)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(5)])
        self.qkv = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(2)])
        self.out = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.up = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(2)])
        self.down = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(2)])
        self.head, self.heads, self.length = nn.Linear(width, vocabulary, bias=False), heads, length
        self.register_buffer("mask", torch.full((length, length), -1e9).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions
        width = h.shape[-1]
        for i in range(2):
            q, k, v = (
                part.reshape(-1, self.length, self.heads, width // self.heads).transpose(1, 2)
                for part in self.qkv[i](self.norms[2 * i](h)).split(width, -1)
            )
            scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads) + self.mask
            mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, self.length, width)
            h = h + self.out[i](mixed)
            h = h + self.down[i](F.gelu(self.up[i](self.norms[2 * i + 1](h))))
        return self.head(self.norms[4](h))


def transformer() -> Net:
    return Net(
        Transformer(20, 32, 4, 12), lambda rng, step: {"x": rng.integers(0, 20, (4, 12))}, ("y",),
        train.CrossEntropy(axis=-1), lambda y, labels: F.cross_entropy(y.transpose(1, 2), labels),
        class_labels(20, 12), train.AdamW(1e-3, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=0.1),
    )  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def recurrent() -> Net:
    return Net(
        Recurrent(), images(10, 6), ("y",), train.CrossEntropy(), F.cross_entropy, class_labels(3),
        train.Adam(3e-3), lambda p: torch.optim.Adam(p, 3e-3),
    )  # fmt: skip


class Convolutional(nn.Module):
    """Two layers of graph convolution over lists of edges with weights."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(features, 16, bias=False), nn.Linear(16, classes, bias=False)
        self.bias1, self.bias2 = nn.Parameter(torch.zeros(16)), nn.Parameter(torch.zeros(classes))

    def forward(self, x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        h = torch.relu(self._spread(self.first(x), source, target, weight) + self.bias1)
        return self._spread(self.second(h), source, target, weight) + self.bias2

    @staticmethod
    def _spread(h: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        messages = h[source] * weight[:, None]
        return torch.zeros_like(h).scatter_add(0, target[:, None].expand_as(messages), messages)


def graph(cora: tuple[Arrays, np.ndarray]) -> Net:
    inputs, labels = cora
    return Net(
        Convolutional(inputs["x"].shape[1], 7), lambda rng, step: inputs, ("y",), train.CrossEntropy(ignore=-100),
        F.cross_entropy, lambda rng, x: {"labels": labels}, train.Adam(0.01, weight_decay=5e-4),
        lambda p: torch.optim.Adam(p, 0.01, weight_decay=5e-4), open=(),
    )  # fmt: skip


def autoencoder() -> Net:
    module = nn.Sequential(
        nn.Conv2d(1, 6, 3, 2, 1), nn.ELU(), nn.Conv2d(6, 12, 3, 2, 1), nn.ELU(),
        nn.ConvTranspose2d(12, 6, 3, 2, 1, 1), nn.ELU(), nn.ConvTranspose2d(6, 1, 3, 2, 1, 1), nn.Sigmoid(),
    )  # fmt: skip
    return Net(
        module, images(1, 16, 16), ("y",), train.MeanSquaredError(), F.mse_loss, lambda rng, x: {"labels": x["x"]},
        train.RMSprop(1e-3), lambda p: torch.optim.RMSprop(p, 1e-3),
    )  # fmt: skip


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.SiLU())
        self.scores, self.boxes = nn.Conv2d(12, 4, 1), nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.scores(h), self.boxes(h)


def _detection(outputs: Mapping[str, Any], labels: Mapping[str, Any]) -> Any:
    x, y = outputs["scores"], labels["classes"]
    entropy = L.maximum(x, 0) - x * y + L.log(1 + L.exp(-L.abs_(x)))
    d = L.abs_(outputs["boxes"] - labels["targets"])
    near = L.where(d < 1, 0.5 * d * d, d - 0.5)
    return L.reduce_mean(entropy) + L.reduce_mean(near)


def detector() -> Net:
    def labels(rng: np.random.Generator, x: Arrays) -> Arrays:
        return {
            "classes": (rng.random((8, 4, 4, 4)) < 0.2).astype(np.float32),
            "targets": rng.standard_normal((8, 4, 4, 4)).astype(np.float32),
        }

    loss = train.FunctionLoss(
        function=_detection, outputs=("scores", "boxes"),
        label_types=lambda types: {"classes": types["scores"], "targets": types["boxes"]},
    )  # fmt: skip
    return Net(
        Detector(), images(3, 16, 16), ("scores", "boxes"), loss,
        lambda scores, boxes, classes, targets: F.binary_cross_entropy_with_logits(scores, classes)
        + F.smooth_l1_loss(boxes, targets),
        labels, train.AdamW(2e-3), lambda p: torch.optim.AdamW(p, 2e-3),
    )  # fmt: skip


class _Arrays(pickle.Unpickler):
    """Reads arrays, sparse matrices and dictionaries alone."""

    _ALLOWED = frozenset(
        {"_reconstruct", "ndarray", "dtype", "csr_matrix", "defaultdict", "list", "int", "encode", "scalar"}
    )

    def find_class(self, module: str, name: str) -> Any:
        if name not in self._ALLOWED or module.split(".")[0] not in ("numpy", "scipy", "collections", "builtins",
                                                                     "__builtin__", "_codecs"):  # fmt: skip
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        if name == "csr_matrix":
            module = "scipy.sparse"
        return super().find_class(module, name)


def read_cora(folder: Path) -> tuple[Arrays, np.ndarray]:
    """Return Cora: features, edges with the weights of graph convolutions, and labels of the training nodes."""

    def read(part: str) -> Any:
        with (folder / f"ind.cora.{part}").open("rb") as file:
            return _Arrays(file, encoding="latin1").load()

    order = np.loadtxt(folder / "ind.cora.test.index", dtype=np.int64)
    known, hidden = read("allx").toarray(), read("tx").toarray()
    count = len(known) + len(hidden)
    x, classes = np.zeros((count, known.shape[1]), np.float32), np.zeros(count, np.int64)
    x[: len(known)], x[order] = known, hidden
    classes[: len(known)], classes[order] = read("ally").argmax(1), read("ty").argmax(1)
    pairs = {(a, b) for a, others in read("graph").items() for b in others} | {(i, i) for i in range(count)}
    edges = np.array(sorted(pairs | {(b, a) for a, b in pairs}), np.int64)
    degree = np.bincount(edges[:, 1], minlength=count)
    weight = (1 / np.sqrt(degree[edges[:, 0]] * degree[edges[:, 1]])).astype(np.float32)
    labels = np.full(count, -100)
    labels[:140] = classes[:140]
    x /= np.maximum(x.sum(1, keepdims=True), 1)
    return {"x": x, "source": edges[:, 0], "target": edges[:, 1], "weight": weight}, labels


NETS: dict[str, Callable[[], Net]] = {
    "mlp": mlp,
    "lenet": lenet,
    "resnet": resnet,
    "transformer": transformer,
    "lstm": recurrent,
    "autoencoder": autoencoder,
    "detector": detector,
}
"""The networks without data of files; :func:`graph` is the eighth."""
