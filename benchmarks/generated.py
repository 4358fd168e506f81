"""Generated models for benchmarks: tree ensembles, recurrent layers, a loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEATURES = 28
BATCHES = (1, 100, 10_000)
STEPS = 1000

GeneratedModel = tuple[str, Path, dict[str, np.ndarray]]
"""Name, file and feeds."""


def trees(folder: Path) -> list[GeneratedModel]:
    """Return scikit-learn's forests of 100 and 1,000 trees and gradient boosting, trained on seeded data."""
    import skl2onnx
    from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor

    random = np.random.default_rng(0)
    x = random.standard_normal((4000, FEATURES)).astype(np.float32)
    y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * random.standard_normal(4000)
    estimators = {
        "forest of 100": lambda: RandomForestRegressor(100, max_depth=12, random_state=0, n_jobs=1),
        "forest of 1,000": lambda: RandomForestRegressor(1000, max_depth=12, random_state=0, n_jobs=1),
        "gradient boosting": lambda: GradientBoostingRegressor(n_estimators=200, max_depth=5, random_state=0),
    }
    models = []
    for name, estimator in estimators.items():
        path = folder / f"{name.replace(' ', '_').replace(',', '')}.onnx"
        if not path.exists():
            fitted = estimator().fit(x, y)
            converted = skl2onnx.to_onnx(fitted, x[:1], target_opset={"": 17, "ai.onnx.ml": 3})
            path.write_bytes(converted.SerializeToString())
        rows = random.standard_normal((max(BATCHES), FEATURES)).astype(np.float32)
        models += [(f"{name}, batch {batch:,}", path, {"X": rows[:batch]}) for batch in BATCHES]
    return models


def recurrent(folder: Path) -> list[GeneratedModel]:
    """Return a bidirectional LSTM and a GRU over 100 steps."""
    return [recurrent_layer(folder, "LSTM", 256, 100, 1, 2), recurrent_layer(folder, "GRU", 256, 100, 1, 1)]


def recurrent_sizes(folder: Path) -> list[GeneratedModel]:
    """Return LSTMs and GRUs of many sizes: units, steps, batch, directions."""
    sizes = [(64, 128, 1, 1), (64, 128, 1, 2), (64, 64, 8, 1), (128, 1, 1, 1), (128, 128, 1, 2), (256, 32, 8, 2),
             (256, 32, 32, 1), (512, 64, 1, 1), (512, 32, 8, 1), (1024, 16, 1, 1)]  # fmt: skip
    return [
        (f"{operator}, {units} units, {steps} steps, batch {batch}{', both ways' * (directions - 1)}", path, feeds)
        for operator in ("LSTM", "GRU")
        for units, steps, batch, directions in sizes
        for _, path, feeds in [recurrent_layer(folder, operator, units, steps, batch, directions)]
    ]


def recurrent_layer(folder: Path, operator: str, units: int, steps: int, batch: int, directions: int) -> GeneratedModel:
    """Return a layer of seeded weights; its inputs have half as many elements as the layer has units."""
    random = np.random.default_rng(0)
    gates, width = {"LSTM": 4, "GRU": 3}[operator], units // 2
    shapes = {
        "w": (directions, gates * units, width),
        "r": (directions, gates * units, units),
        "b": (directions, 2 * gates * units),
    }
    weights = [
        numpy_helper.from_array((random.standard_normal(shape) * units**-0.5).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    direction = "bidirectional" if directions == 2 else "forward"
    node = helper.make_node(operator, ["x", *shapes], ["y"], hidden_size=units, direction=direction)
    sequence = helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, batch, width])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [steps, directions, batch, units])
    graph = helper.make_graph([node], operator, [sequence], [result], weights)
    path = folder / f"{operator.lower()}_{units}_{steps}_{batch}_{directions}.onnx"
    save(graph, path)
    return operator, path, {"x": random.standard_normal((steps, batch, width)).astype(np.float32)}


def loop(folder: Path) -> list[GeneratedModel]:
    """Return a ``Loop`` with a small body."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        loop (float[16] x) => (float[16] y) <int64 n = {{{STEPS}}}, bool go = {{1}}> {{
            y = Loop (n, go, x) <body = step (int64 i, bool c, float[16] s) => (bool d, float[16] t) {{
                d = Identity(c)
                half = Constant <value = float {{0.5}}> ()
                h = Mul(s, half)
                k = Tanh(h)
                t = Add(k, half)
            }}>
        }}"""
    )
    path = folder / "loop.onnx"
    onnx.save(model, path)
    return [(f"Loop of {STEPS:,} steps", path, {"x": np.linspace(-1, 1, 16, dtype=np.float32)})]


def save(graph: onnx.GraphProto, path: Path) -> None:
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
