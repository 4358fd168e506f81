"""Random quantized graphs: one scale and several, equal and nearly equal, shared readers, limits and movement."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import sardonyx
from tests.rewrite.fuzz import GraphMaker, generator, run_many

SUITES = os.environ.get("SARDONYX_SUITES", "")


class Quantization:
    """Parameters drawn once and written as often as needed."""

    def __init__(self, g: GraphMaker, size: int | None = None, axis: int = 1) -> None:
        self.g = g
        self.kind = g.pick(["uint8", "int8"])
        count = () if size is None else (size,)
        scale = g.rng.uniform(0.01, 2.0, count).astype(np.float32)
        if g.chance(0.1):
            scale = np.asarray(scale * np.float32(g.pick([1e-44, 3e36])))
        self.scale = np.asarray(scale, np.float32)
        low, high = (0, 255) if self.kind == "uint8" else (-128, 127)
        self.zero = np.full(count, g.pick([0, low, high, g.int(low, high)])).astype(self.kind)
        self.axis = axis if size is not None else None
        self.absent = not self.zero.any() and self.kind == "uint8" and g.chance()

    def write(self, op: str, x: str) -> str:
        scale, zero = self.g.const(self.scale), None if self.absent else self.g.const(self.zero)
        result: str = self.g.node(op, x, scale, zero, axis=self.axis)
        return result


@generator("eliminate_dequantize_quantize", "fuse_quantized_movement")
def round_trips(g: GraphMaker) -> None:
    g.special = False
    shape = (g.int(1, 3), g.int(1, 3), g.int(1, 2))
    first = Quantization(g, shape[1] if g.chance(0.3) else None)
    second = first if g.chance(0.8) else Quantization(g)
    q = g.input(shape, first.kind, dynamic=g.chance(0.3))
    x = first.write("DequantizeLinear", q)
    g.read_again(x)
    moved = g.chance(0.6)
    if moved:
        op = g.pick(["Transpose", "Reshape", "Flatten", "Unsqueeze", "Concat", "Relu", "Gather"])
        match op:
            case "Transpose":
                x = g.node(op, x, perm=g.maybe([0, 2, 1]))
            case "Reshape":
                x = g.node(op, x, g.ints(shape[0], -1))
            case "Flatten" | "Relu":
                x = g.node(op, x)
            case "Unsqueeze":
                x = g.node(op, x, g.ints(0))
            case "Gather":
                x = g.node(op, x, g.ints(0), axis=2)
            case _:
                x = g.node(op, x, second.write("DequantizeLinear", g.input(shape, second.kind)), axis=0)
        g.read_again(x)
    y = second.write("QuantizeLinear", x) if second.axis is None or not moved else first.write("QuantizeLinear", x)
    g.read_again(y)
    g.output(g.node("Cast", y, to=6))


@generator("eliminate_limit_before_quantize")
def limits(g: GraphMaker) -> None:
    shape = (g.int(1, 3), g.int(1, 3))
    quantization = Quantization(g, shape[1] if g.chance(0.3) else None)
    x = g.input(shape)
    if g.chance(0.6):
        y = g.node("Relu", x)
    else:
        low, high = (
            g.const(np.float32(v)) if g.chance(0.8) else None for v in (g.pick([0.0, -300.0]), g.pick([6.0, 600.0]))
        )
        y = g.node("Clip", x, low, high)
    g.read_again(y)
    g.output(g.node("Cast", quantization.write("QuantizeLinear", y), to=6))


@generator("fold_quantized_weights")
def weights(g: GraphMaker) -> None:
    shape = (g.int(1, 3), g.int(1, 3))
    quantization = Quantization(g, shape[1] if g.chance(0.3) else None)
    q = quantization.write("QuantizeLinear", g.weight(shape))
    if g.chance(0.2):
        g.output(q)
    g.output(g.node("Add", g.input(shape), quantization.write("DequantizeLinear", q)))


LABELS = [
    "eliminate_dequantize_quantize",
    "eliminate_limit_before_quantize",
    "fold_quantized_weights",
    "fuse_quantized_movement",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 150)


def test_every_number_of_a_type_survives_the_round_trip() -> None:
    """The law behind ``eliminate_dequantize_quantize``, at the least and the largest scale that it takes."""
    tiny = np.finfo(np.float32).smallest_normal
    huge = np.nextafter(np.finfo(np.float32).max / np.float32(65535), np.float32(0))
    numbers = np.arange(-65535, 65536)
    for scale in np.array([tiny, tiny * np.float32(1.7), 0.1, 0.3, 1 / 3, np.pi, huge], np.float32):
        real = numbers.astype(np.float32) * scale
        assert np.array_equal(np.rint(real / scale), numbers)


@pytest.mark.skipif(not SUITES, reason="SARDONYX_SUITES does not name the folder of public models")
def test_quantized_mobilenet_needs_no_relu() -> None:
    after = sardonyx.optimize(Path(SUITES) / "real" / "mobilenet_qdq.onnx", verify=False).report.after
    assert "Relu" not in after.operators
