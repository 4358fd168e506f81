"""Train the two models in `sardonyx.demo`, and export both without optimization.

    python examples/train_digits.py [--out FOLDER] [--only classifier|detector]

Needs `torch`, `onnx`, `onnxruntime` and `scikit-learn`. Both models learn from scikit-learn's copy of the UCI Optical
Recognition of Handwritten Digits data (1,797 images of 8x8 pixels, values 0..16); one fifth of the digits is held out
and never used in training. The detector's scenes are composed from these digits. The export has all patterns of
PyTorch's tracing exporter: BatchNormalization nodes, Constant nodes, shape arithmetic. One thread, seeded: the same
versions give the same models.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F

SEED = 17
CLASSES = 10
PIXEL_MAX = 16.0
STRIDE = 4
MAX_DETECTIONS = 100
IOU_THRESHOLD = 0.45
SCORE_THRESHOLD = 0.4
SHIPPED = Path(__file__).resolve().parents[1] / "src" / "sardonyx" / "demo"


@dataclass(frozen=True)
class Digits:
    """Images (count, 8, 8) float32 in 0..16 and labels (count,) int64."""

    images: np.ndarray
    labels: np.ndarray


def held_out_split() -> tuple[Digits, Digits]:
    data = load_digits()
    images, labels = data.images.astype(np.float32), data.target.astype(np.int64)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=SEED
    )
    return Digits(train_x, train_y), Digits(test_x, test_y)


# --- layers shared by both networks


def conv_bn(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class SqueezeExcite(nn.Module):
    """Channel gates from the global mean (Hu et al. 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, channels // 4, 1)
        self.expand = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = F.silu(self.reduce(x.mean((2, 3), keepdim=True)))
        return x * torch.sigmoid(self.expand(gate))


class Residual(nn.Module):
    def __init__(self, channels: int, *, squeeze_excite: bool = False) -> None:
        super().__init__()
        self.first = conv_bn(channels, channels)
        self.second = conv_bn(channels, channels)
        self.gate = SqueezeExcite(channels) if squeeze_excite else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.gate(self.second(F.relu(self.first(x)))))


class Standardize(nn.Module):
    """Zero mean and unit deviation, with the training set's figures, inside the model."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([mean]).view(1, 1, 1, 1))
        self.register_buffer("deviation", torch.tensor([deviation]).view(1, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation


# --- the classifier


class Classifier(nn.Module):
    """8x8 digits (batch, 1, 8, 8) to class logits (batch, 10)."""

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.standardize = Standardize(mean, deviation)
        self.stem = conv_bn(1, 24)
        self.fine = Residual(24, squeeze_excite=True)
        self.down = conv_bn(24, 40, stride=2)
        self.coarse = Residual(40, squeeze_excite=True)
        self.hidden = nn.Linear(40 * 4, 64)
        self.dropout = nn.Dropout(0.4)
        self.classes = nn.Linear(64, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.stem(self.standardize(image)))
        x = self.coarse(F.relu(self.down(self.fine(x))))
        x = F.avg_pool2d(x, 2)
        x = self.dropout(F.gelu(self.hidden(x.view(x.size(0), -1))))
        return self.classes(x)


class Probabilities(nn.Module):
    """The exported classifier, with its softmax."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, image: Tensor) -> Tensor:
        return torch.softmax(self.classifier(image), dim=1)


def warp(images: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate (up to 12 degrees), scale, shear and shift each image of (batch, 1, h, w) a little."""
    count = images.shape[0]

    def uniform(bound: float) -> Tensor:
        return (torch.rand(count, generator=generator) * 2 - 1) * bound

    angle, shear = uniform(math.radians(12)), uniform(0.15)
    scale_x, scale_y = 1 + uniform(0.12), 1 + uniform(0.12)
    theta = torch.stack(
        [
            torch.stack([scale_x * torch.cos(angle), shear - torch.sin(angle), uniform(0.15)], dim=1),
            torch.stack([torch.sin(angle), scale_y * torch.cos(angle), uniform(0.15)], dim=1),
        ],
        dim=1,
    )
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def train_classifier(train: Digits, epochs: int = 60, batch: int = 64) -> Classifier:
    generator = torch.Generator().manual_seed(SEED)
    model = Classifier(float(train.images.mean()), float(train.images.std()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.02)
    images, labels = torch.from_numpy(train.images)[:, None], torch.from_numpy(train.labels)
    steps = epochs * (len(labels) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=generator)
        for chosen in order[: len(order) // batch * batch].split(batch):
            logits = model(warp(images[chosen], generator))
            loss = F.cross_entropy(logits, labels[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: Classifier, digits: Digits) -> float:
    predicted = model(torch.from_numpy(digits.images)[:, None]).argmax(1).numpy()
    return float((predicted == digits.labels).mean())


# --- scenes


@dataclass(frozen=True)
class Scene:
    """An image (height, width) in 0..16, boxes (count, 4) as x1, y1, x2, y2 in pixels, labels (count,)."""

    image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray


class SceneComposer:
    """A composer of scenes: digits, each 12 to 32 pixels tall, at random positions on a noisy background."""

    def __init__(self, digits: Digits, seed: int, *, augment: bool) -> None:
        self.digits = digits
        self.augment = augment
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def glyph(self, index: int) -> np.ndarray:
        size = int(self.rng.integers(12, 33))
        image = torch.from_numpy(self.digits.images[index])[None, None]
        image = F.interpolate(F.pad(image, (1, 1, 1, 1)), size=(size * 10 // 8,) * 2, mode="bilinear")
        if self.augment:
            image = warp(image, self.generator)
        return image[0, 0].numpy()

    def background(self, height: int, width: int) -> np.ndarray:
        tilt_x, tilt_y, level = self.rng.uniform(-1.5, 1.5, 3)
        slope = tilt_y * np.linspace(-1, 1, height)[:, None] + tilt_x * np.linspace(-1, 1, width)[None]
        noise = self.rng.normal(0, self.rng.uniform(0.2, 1.2), (height, width))
        return np.asarray(2 + level + slope + noise)

    def compose(self, height: int, width: int) -> Scene:
        image = self.background(height, width)
        occupied = np.zeros((height, width), bool)
        boxes, labels = [], []
        for _ in range(max(3, height * width // 1100)):
            index = int(self.rng.integers(len(self.digits.labels)))
            ink = self.glyph(index)
            size = ink.shape[0]
            if size > min(height, width):
                continue
            top, left = (int(self.rng.integers(0, extent - size + 1)) for extent in (height, width))
            rows, columns = np.nonzero(ink > PIXEL_MAX / 4)
            x1, y1, x2, y2 = left + columns.min(), top + rows.min(), left + columns.max() + 1, top + rows.max() + 1
            if occupied[y1:y2, x1:x2].any():
                continue
            occupied[y1:y2, x1:x2] = True
            region = image[top : top + size, left : left + size]
            np.maximum(region, ink * self.rng.uniform(0.6, 1.0), out=region)
            boxes.append((x1, y1, x2, y2))
            labels.append(self.digits.labels[index])
        return Scene(
            np.clip(np.rint(image), 0, PIXEL_MAX).astype(np.float32),
            np.array(boxes, np.float32).reshape(-1, 4),
            np.array(labels, np.int64),
        )


# --- the detector


class Head(nn.Module):
    """One branch of an anchor-free head (Tian et al. 2019), with group normalization."""

    def __init__(self, channels: int, outputs: int, bias: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(8, channels)
        self.predict = nn.Conv2d(channels, outputs, 1)
        nn.init.constant_(self.predict.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.predict(F.silu(self.norm(self.conv(x))))


class Detector(nn.Module):
    """Scenes (batch, 1, height, width) to per-cell predictions at stride 4, as (batch, cells, ...)."""

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.standardize = Standardize(mean, deviation)
        self.stem = conv_bn(1, 16, stride=2)
        self.down4 = conv_bn(16, 32, stride=2)
        self.block4 = Residual(32)
        self.down8 = conv_bn(32, 48, stride=2)
        self.block8 = nn.Sequential(Residual(48), Residual(48))
        self.lateral = conv_bn(32, 32, kernel=1)
        self.top_down = conv_bn(48, 32, kernel=1)
        self.recognize = Head(32, CLASSES)
        self.localize = Head(32, 5, bias=-1.0)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return boxes (batch, cells, 4), scores (…, 1), class logits (…, 10) and cell centres (cells, 2)."""
        x = F.relu(self.stem(self.standardize(image)))
        x4 = self.block4(F.relu(self.down4(x)))
        x8 = self.block8(F.relu(self.down8(x4)))
        up = F.interpolate(self.top_down(x8), size=x4.shape[2:], mode="nearest")
        x = F.relu(self.lateral(x4) + up)
        located, classes = self.localize(x), self.recognize(x)
        centres = self.cell_centres(x)
        located = located.flatten(2).permute(0, 2, 1)
        middle = centres + located[..., 0:2] * STRIDE
        half = torch.exp(located[..., 2:4]) * (STRIDE * 2)
        boxes = torch.cat([middle - half, middle + half], dim=-1)
        return boxes, located[..., 4:5], classes.flatten(2).permute(0, 2, 1), centres

    @staticmethod
    def cell_centres(features: Tensor) -> Tensor:
        height, width = features.shape[2:]
        rows = torch.arange(height, dtype=torch.float32)
        columns = torch.arange(width, dtype=torch.float32)
        grid_y, grid_x = torch.meshgrid(rows, columns, indexing="ij")
        return (torch.stack([grid_x, grid_y], dim=-1).view(-1, 2) + 0.5) * STRIDE


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes (n, 4) and (m, 4), as (n, m)."""
    size = (torch.minimum(a[:, None, 2:], b[None, :, 2:]) - torch.maximum(a[:, None, :2], b[None, :, :2])).clamp(min=0)
    overlap = size.prod(-1)
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(-1), (b[:, 2:] - b[:, :2]).prod(-1)
    return overlap / (area_a[:, None] + area_b[None] - overlap).clamp(min=1e-9)


def generalized_iou(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Row-wise IoU and generalized IoU (Rezatofighi et al. 2019) of boxes (n, 4) and (n, 4)."""
    overlap = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(-1)
    union = (a[:, 2:] - a[:, :2]).prod(-1) + (b[:, 2:] - b[:, :2]).prod(-1) - overlap
    hull = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).prod(-1)
    iou = overlap / union
    return iou, iou - (hull - union) / hull


def detection_loss(model: Detector, scenes: list[Scene]) -> Tensor:
    """Return IoU loss and cross entropy near the digits' centres, plus the loss of all cells' scores."""
    boxes, score_logits, class_logits, centres = model(torch.from_numpy(np.stack([s.image for s in scenes]))[:, None])
    target_score = torch.zeros_like(score_logits[..., 0])
    losses = []
    for index, scene in enumerate(scenes):
        truth, labels = torch.from_numpy(scene.boxes), torch.from_numpy(scene.labels)
        if not len(labels):
            continue
        distance = (centres[:, None] - (truth[:, :2] + truth[:, 2:])[None] / 2).abs().amax(-1)
        nearest, owner = distance.min(1)
        cells = torch.nonzero(nearest < 1.1 * STRIDE)[:, 0]
        iou, giou = generalized_iou(boxes[index, cells], truth[owner[cells]])
        target_score[index, cells] = iou.detach().clamp(min=0)
        losses.append(
            2 * (1 - giou) + F.cross_entropy(class_logits[index, cells], labels[owner[cells]], reduction="none")
        )
    positives = torch.cat(losses)
    score = F.binary_cross_entropy_with_logits(score_logits[..., 0], target_score, reduction="sum")
    return positives.mean() + score / len(positives)


def train_detector(train: Digits, steps: int = 1800, batch: int = 12) -> Detector:
    composer = SceneComposer(train, SEED, augment=True)
    sample = np.concatenate([composer.compose(96, 96).image for _ in range(20)])
    model = Detector(float(sample.mean()), float(sample.std()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    model.train()
    for step in range(steps):
        height, width = (int(size) for size in composer.rng.integers(56, 121, 2))
        loss = detection_loss(model, [composer.compose(height, width) for _ in range(batch)])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"  step {step:5d}  loss {loss.item():.3f}", flush=True)
    return model.eval()


class NonMaxSuppression(torch.autograd.Function):
    """Greedy suppression, exported as ONNX `NonMaxSuppression`; box corners in either order of axes."""

    @staticmethod
    def forward(ctx: object, boxes: Tensor, scores: Tensor) -> Tensor:
        selected = [
            (image, category, cell)
            for image in range(scores.shape[0])
            for category in range(scores.shape[1])
            for cell in NonMaxSuppression.survivors(boxes[image], scores[image, category])
        ]
        return torch.tensor(selected, dtype=torch.int64).view(-1, 3)

    @staticmethod
    def survivors(boxes: Tensor, scores: Tensor) -> list[int]:
        candidates = torch.nonzero(scores > SCORE_THRESHOLD)[:, 0]
        candidates = candidates[scores[candidates].argsort(descending=True, stable=True)]
        overlap = pairwise_iou(boxes[candidates], boxes[candidates])
        survivors: list[int] = []
        for rank in range(len(candidates)):
            if len(survivors) < MAX_DETECTIONS and not any(overlap[rank, other] > IOU_THRESHOLD for other in survivors):
                survivors.append(rank)
        return [int(candidates[rank]) for rank in survivors]

    @staticmethod
    def symbolic(graph: Any, boxes: Any, scores: Any) -> Any:
        limits = (MAX_DETECTIONS, IOU_THRESHOLD, SCORE_THRESHOLD)
        constants = [graph.op("Constant", value_t=torch.tensor([limit])) for limit in limits]
        return graph.op("NonMaxSuppression", boxes, scores, *constants)


class Detections(nn.Module):
    """The exported detector, with decoding and suppression.

    Returns boxes (detections, 4) as x1, y1, x2, y2 in pixels, scores (detections,), labels (detections,) int64 and the
    index (detections,) int64 of each detection's image in the batch.
    """

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        boxes, score_logits, class_logits, _ = self.detector(image)
        confidence, label = torch.softmax(class_logits, dim=-1).max(dim=-1)
        scores = torch.sigmoid(score_logits.squeeze(-1)) * confidence
        selected = NonMaxSuppression.apply(boxes, scores.unsqueeze(1))
        image_index, cell = selected[:, 0], selected[:, 2]
        return boxes[image_index, cell], scores[image_index, cell], label[image_index, cell], image_index


@dataclass(frozen=True)
class Quality:
    """Counts at IoU 0.5 with the right class."""

    hits: int
    detections: int
    digits: int

    def __str__(self) -> str:
        precision, recall = self.hits / max(self.detections, 1), self.hits / self.digits
        f1 = 2 * self.hits / (self.detections + self.digits)
        return f"precision {precision:.4f}  recall {recall:.4f}  F1 {f1:.4f}  ({self.digits} digits)"


@torch.no_grad()
def detection_quality(model: Detections, digits: Digits, scenes: int = 40) -> Quality:
    """Score `scenes` new scenes at each of five sizes, including odd ones and one larger than in training."""
    composer = SceneComposer(digits, SEED + 1, augment=False)
    hits = detections = total = 0
    for height, width in ((64, 64), (96, 128), (75, 101), (128, 80), (160, 200)):
        for _ in range(scenes):
            scene = composer.compose(height, width)
            boxes, _, labels, _ = model(torch.from_numpy(scene.image)[None, None])
            match = (pairwise_iou(boxes, torch.from_numpy(scene.boxes)) >= 0.5) & (
                labels[:, None] == torch.from_numpy(scene.labels)[None]
            )
            hits += int(match.any(0).sum())
            detections += len(labels)
            total += len(scene.labels)
    return Quality(hits, detections, total)


# --- export


def export(
    model: nn.Module,
    path: Path,
    image: np.ndarray,
    outputs: dict[str, dict[int, str]],
    image_axes: dict[int, str],
    opset: int,
) -> dict[str, np.ndarray]:
    """Write the model without optimization; return its outputs on `image`, compared with ONNX Runtime."""
    sample = torch.from_numpy(image)
    torch.onnx.export(
        model,
        (sample[:2],),
        path,
        dynamo=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
        opset_version=opset,
        input_names=["image"],
        output_names=list(outputs),
        dynamic_axes={"image": image_axes, **outputs},
    )
    with torch.no_grad():
        result = model(sample)
    expected = dict(
        zip(outputs, (t.numpy() for t in (result if isinstance(result, tuple) else (result,))), strict=True)
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for name, value in zip(outputs, session.run(list(outputs), {"image": image}), strict=True):
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-4 * max(1.0, np.abs(expected[name]).max()))
    print(f"  {path.name}: {path.stat().st_size:,} bytes, equal to PyTorch in ONNX Runtime")
    return expected


def ship_classifier(train: Digits, held_out: Digits, folder: Path) -> None:
    model = train_classifier(train)
    print(f"classifier: accuracy {accuracy(model, train):.4f} in training, {accuracy(model, held_out):.4f} held out")
    image = held_out.images[:, None]
    outputs = export(
        Probabilities(model).eval(),
        folder / "digits_classifier.onnx",
        image,
        {"probabilities": {0: "batch"}},
        {0: "batch"},
        opset=17,
    )
    write_arrays(folder / "digits_classifier.npz", image, outputs, {"labels": held_out.labels})


def ship_detector(train: Digits, held_out: Digits, folder: Path) -> None:
    model = Detections(train_detector(train)).eval()
    print(f"detector: {detection_quality(model, train)} in training")
    print(f"detector: {detection_quality(model, held_out)} held out")
    composer = SceneComposer(held_out, SEED + 2, augment=False)
    scenes = [composer.compose(96, 128) for _ in range(8)]
    image = np.stack([scene.image for scene in scenes])[:, None]
    detections = {0: "detections"}
    outputs = export(
        model,
        folder / "digits_detector.onnx",
        image,
        {"boxes": detections, "scores": detections, "labels": detections, "image_index": detections},
        {0: "batch", 2: "height", 3: "width"},
        opset=16,
    )
    truth = {
        "boxes": np.concatenate([scene.boxes for scene in scenes]),
        "labels": np.concatenate([scene.labels for scene in scenes]),
        "image_index": np.repeat(np.arange(len(scenes)), [len(scene.labels) for scene in scenes]),
    }
    write_arrays(folder / "digits_detector.npz", image, outputs, truth)


def write_arrays(path: Path, image: np.ndarray, outputs: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> None:
    arrays: dict[str, Any] = {"in::image": image}
    arrays |= {f"out::{name}": value for name, value in outputs.items()}
    arrays |= {f"truth::{name}": value for name, value in truth.items()}
    np.savez_compressed(path, **arrays)


SHIP: dict[str, Callable[[Digits, Digits, Path], None]] = {"classifier": ship_classifier, "detector": ship_detector}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder of the files (default: the package's own)")
    parser.add_argument("--only", choices=sorted(SHIP), help="train only this model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    train, held_out = held_out_split()
    for name, ship in SHIP.items():
        if options.only in (None, name):
            torch.manual_seed(SEED)
            started = time.perf_counter()
            ship(train, held_out, options.out)
            print(f"  {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
