"""A PointNet++-style network: trained in PyTorch, exported with its loop, run on clouds of any size.

    python examples/point_cloud.py

Farthest point sampling selects as the next centre the point that is farthest from all centres before: a loop in which
each iteration depends on the last (Qi et al. 2017, "PointNet++"). A scripted function is exported as one ONNX `Loop`, a
traced function as repeated nodes. Both files give the same results. Needs `torch`.
"""

from __future__ import annotations

import io
import math
import warnings

import numpy as np
import onnx
import torch
from torch import Tensor, nn

import sardonyx

SHAPES = ("sphere", "cube", "cylinder", "cone")
CENTRES, NEIGHBOURS = 16, 12


def farthest_points(points: Tensor, count: int) -> Tensor:
    """Return indices (batch, count) of points (batch, n, 3), each the farthest from the points before."""
    chosen = torch.zeros(points.shape[0], count, dtype=torch.int64)
    positions = torch.arange(count).unsqueeze(0)
    distance = torch.full_like(points[:, :, 0], 1e10)
    latest = torch.zeros(points.shape[0], 1, dtype=torch.int64)
    for i in range(count):
        chosen = torch.where(positions == i, latest, chosen)
        centre = points.gather(1, latest.unsqueeze(-1).expand(-1, -1, 3))
        distance = torch.minimum(distance, (points - centre).pow(2).sum(-1))
        latest = distance.argmax(-1, keepdim=True)
    return chosen


scripted_farthest_points = torch.jit.script(farthest_points)


class PointNet(nn.Module):
    """A network from points (batch, n, 3) to scores (batch, 4): centres, neighbourhoods, and a summary."""

    def __init__(self) -> None:
        super().__init__()
        self.unrolled = False
        self.around = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
        self.whole = nn.Sequential(nn.Linear(3 + 64, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, len(SHAPES)))

    def forward(self, points: Tensor) -> Tensor:
        sample = farthest_points if self.unrolled else scripted_farthest_points
        centres = points.gather(1, sample(points, CENTRES).unsqueeze(-1).expand(-1, -1, 3))
        offsets = points.unsqueeze(1) - centres.unsqueeze(2)
        near = offsets.pow(2).sum(-1).topk(NEIGHBOURS, largest=False)[1]
        groups = offsets.gather(2, near.unsqueeze(-1).expand(-1, -1, -1, 3))
        features = self.around(groups).amax(2)
        scores: Tensor = self.head(self.whole(torch.cat([centres, features], -1)).amax(1))
        return scores


def clouds(count: int, points: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return points (count, points, 3) on rotated and stretched shapes, and the shapes' labels (count,)."""
    label = torch.arange(count) % len(SHAPES)
    u, v, w = torch.rand(3, count, points, generator=generator)
    angle, height = 2 * math.pi * u, 2 * v - 1
    ring = torch.stack([angle.cos(), angle.sin()], -1)
    sphere = torch.cat([ring * (1 - height**2).sqrt().unsqueeze(-1), height.unsqueeze(-1)], -1)
    flat = torch.stack([2 * u - 1, 2 * v - 1, torch.where(w < 0.5, -1.0, 1.0)], -1)
    side = (w * 6).long() % 3
    cube = torch.stack([flat.gather(-1, ((side + k) % 3).unsqueeze(-1)).squeeze(-1) for k in range(3)], -1)
    cylinder = torch.cat([ring, height.unsqueeze(-1)], -1)
    cone = torch.cat([ring * v.sqrt().unsqueeze(-1), 1 - 2 * v.sqrt().unsqueeze(-1)], -1)
    points_on_shape = torch.stack([sphere, cube, cylinder, cone])[label, torch.arange(count)]
    turn = 2 * math.pi * torch.rand(count, 1, generator=generator)
    x, y, z = (points_on_shape * (0.8 + 0.4 * torch.rand(count, 1, 3, generator=generator))).unbind(-1)
    return torch.stack([x * turn.cos() - y * turn.sin(), x * turn.sin() + y * turn.cos(), z], -1), label


def trained(steps: int) -> PointNet:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = PointNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    for step in range(steps):
        points, label = clouds(32, 64 + 16 * (step % 10), generator)
        loss = nn.functional.cross_entropy(model(points), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def exported(model: PointNet, unrolled: bool) -> onnx.ModelProto:
    """Return the model as PyTorch's tracing exporter writes it, for any number of clouds and points."""
    model.unrolled = unrolled
    written = io.BytesIO()
    sizes = {"points": {0: "clouds", 1: "points"}, "scores": {0: "clouds"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (torch.rand(2, 50, 3),), written, dynamo=False, opset_version=18,
            input_names=["points"], output_names=["scores"], dynamic_axes=sizes,
        )  # fmt: skip
    return onnx.load_from_string(written.getvalue())


def main(steps: int = 160) -> float:
    """Train, export and run; return the share of correct results on clouds of many sizes."""
    torch.set_num_threads(1)
    model = trained(steps)
    files = {name: exported(model, unrolled=name == "unrolled") for name in ("loop", "unrolled")}
    sessions = {name: sardonyx.Session(file, compile="wait") for name, file in files.items()}
    for name, file in files.items():
        loops = sum(node.op_type == "Loop" for node in file.graph.node)
        print(f"{name:8} {len(file.graph.node):4} nodes, {loops} of them Loop")
    generator, hits, answered = torch.Generator().manual_seed(1), 0, 0
    for count, points in ((8, 96), (1, 500), (40, 64), (3, 1000), (16, 257)):
        cloud, label = clouds(count, points, generator)
        with torch.no_grad():
            expected = model(cloud).numpy()
        for session in sessions.values():
            (scores,) = session.run(None, {"points": cloud})  # PyTorch's memory is read without a copy.
            np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-3)
        hits, answered = hits + int((scores.argmax(1) == label.numpy()).sum()), answered + count
    print(f"{hits} of {answered} clouds are correct, with and without the loop as in PyTorch")
    return hits / answered


if __name__ == "__main__":
    main()
