"""Cases of resizing and of grids."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.generators.draw import Case, Draw, ints
from tests.ops.generators.table import draws


@draws("Resize")
def resize(draw: Draw, name: str) -> Case:
    mode = draw.pick("nearest", "linear", "cubic")
    x = draw.array((draw.integer(1, 2), draw.integer(1, 2), draw.integer(2, 5), draw.integer(2, 5)), special=False)
    coordinates = draw.pick("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    options: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        options |= draw.options(nearest_mode=draw.pick("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    elif mode == "cubic":
        options |= draw.options(cubic_coeff_a=-0.5, exclude_outside=draw.integer(0, 1))
    if draw.chance(0.5):
        sizes = ints(*x.shape[:2], draw.integer(1, 8), draw.integer(1, 8))
        return Case(name, draw.pick(11, 13, 19), [x, np.zeros(0, np.float32), np.zeros(0, np.float32), sizes], options)
    scales = np.array([1, 1, draw.pick(0.5, 1.5, 2.0, 3.0), draw.pick(0.5, 1.0, 2.5)], np.float32)
    return Case(name, draw.pick(11, 13, 19), [x, np.zeros(0, np.float32), scales], options)


@draws("Upsample")
def upsample(draw: Draw, name: str) -> Case:
    x = draw.array((1, draw.integer(1, 2), draw.integer(2, 4), draw.integer(2, 4)), special=False)
    scales = np.array([1, 1, draw.pick(1.0, 2.0, 3.0), draw.pick(1.0, 2.0)], np.float32)
    return Case(name, 9, [x, scales], {"mode": draw.pick("nearest", "linear")})


@draws("GridSample")
def grid_sample(draw: Draw, name: str) -> Case:
    x = draw.array((draw.integer(1, 2), draw.integer(1, 2), draw.integer(2, 5), draw.integer(2, 5)), special=False)
    grid = draw.numbers.uniform(-1.3, 1.3, (x.shape[0], draw.integer(1, 3), draw.integer(1, 3), 2)).astype(np.float32)
    options = draw.options(
        align_corners=draw.integer(0, 1), mode=draw.pick("linear", "nearest", "cubic"),
        padding_mode=draw.pick("zeros", "border", "reflection"),
    )  # fmt: skip
    return Case(name, 20, [x, grid], options)


@draws("AffineGrid")
def affine_grid(draw: Draw, name: str) -> Case:
    batch, n = draw.integer(1, 2), draw.pick(2, 3)
    sizes = [draw.integer(1, 4) for _ in range(n)]
    theta = draw.array((batch, n, n + 1), special=False)
    return Case(name, 20, [theta, ints(batch, 1, *sizes)], draw.options(align_corners=draw.integer(0, 1)))
