"""Random assignments to slices, spelled as ScatterND with index grids."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many


@generator("eliminate_scatter_of_slice")
def assignments(g: GraphMaker) -> None:
    rank = g.int(1, 3)
    shape = [g.int(1, 4) for _ in range(rank)]
    dtype = g.pick(["float32", "float32", "int64", "float64"])
    x = g.input(shape, dtype, dynamic=g.chance(0.1))
    depth = g.int(1, rank)
    box = []
    for axis in range(depth):
        low = g.int(0, shape[axis] - 1)
        box.append((low, g.int(low + 1, shape[axis])) if g.chance(0.6) else (0, shape[axis]))
    grid = np.stack(np.meshgrid(*[np.arange(a, b) for a, b in box], indexing="ij"), axis=-1)
    if g.chance(0.1):
        grid = grid - np.array(shape[:depth])  # negative indices
    if g.chance(0.15):
        grid = grid.reshape(-1, depth)
        grid = grid[::-1] if g.chance() else grid[g.rng.permutation(len(grid))]
    if g.chance(0.1):
        flat = grid.reshape(-1, depth).copy()
        flat[-1] = flat[0]  # an index twice, another missing
        grid = flat
    grid = np.ascontiguousarray(grid.astype(np.int64))
    if g.chance(0.3):
        indices = g.node("Add", g.const(grid - 1), g.const(np.int64(1)))
    else:
        indices = g.const(grid)
    updates = g.input((*grid.shape[:-1], *shape[depth:]), dtype, dynamic=False)
    reduction = g.pick(["add", "none"]) if g.opset >= 16 and g.chance(0.2) else None
    y = g.node("ScatterND", x, indices, updates, reduction=reduction)
    g.read_again(y)
    g.output(g.node("Identity", y))


@pytest.mark.parametrize("label", ["eliminate_scatter_of_slice"])
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)
