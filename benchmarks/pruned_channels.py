"""Measure the speed-up of removed channels against that of the products.

    python benchmarks/pruned_channels.py MODEL … --share 0.5

Runs of the original and of the pruned model alternate; the ratio is that of the least times. The goal is a speed-up of
0.8 of that of the products (multiplications of layers with weights). The cost model's speed-up beside it counts the
bytes that kernels move too, which fall with the channels, products with their square.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import onnx_ir as ir

import sardonyx
from sardonyx.compress.quantization.placement import find_placement
from sardonyx.compress.quantization.sensitivity import multiplications
from sardonyx.compress.search.figures import estimate
from sardonyx.model import load
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.optimize import optimize


def products(model: ir.Model) -> float:
    """Return the multiplications of one run; open sizes count as 1."""
    optimized = optimize(copy_model(model), verify=False).model
    infer_shapes(optimized)
    return multiplications(find_placement(optimized).sites)


def _size(declared: object, axis: int, image: int) -> int:
    if isinstance(declared, int) and declared > 0:
        return declared
    return image if axis > 1 else 1


def feeds_of(session: sardonyx.Session, size: int) -> dict[str, Any]:
    """Return random feeds; open sizes are 1, those of images `size`."""
    rng = np.random.default_rng(0)
    shapes = {
        info.name: [_size(one, axis, size) for axis, one in enumerate(info.shape or [])]
        for info in session.get_inputs()
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the speed-up of removed channels.")
    parser.add_argument("models", nargs="+", help="float32 models of images")
    parser.add_argument("--share", type=float, default=0.5, help="the share of channels to remove")
    parser.add_argument("--size", type=int, default=224, help="the size of images where it is open")
    parser.add_argument("--runs", type=int, default=200, help="runs of each model")
    options = parser.parse_args()
    for path in options.models:
        original = load(path)
        pruned = sardonyx.prune(path, channels=options.share).model
        sessions = [sardonyx.Session(model, compile="wait") for model in (original, pruned)]
        feeds = feeds_of(sessions[0], options.size)
        least = [float("inf")] * 2
        for _ in range(options.runs):
            for index, session in enumerate(sessions):
                start = time.perf_counter()
                session.run(None, feeds)
                least[index] = min(least[index], time.perf_counter() - start)
        work, speed = products(original) / products(pruned), least[0] / least[1]
        first, second = (estimate(session, feeds)[0] for session in sessions)
        print(
            f"{path}: products x {work:.2f}, cost model x {first / second:.2f}, speed x {speed:.2f} "
            f"({speed / work:.2f} of the products), {1e3 * least[0]:.2f} -> {1e3 * least[1]:.2f} ms", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
