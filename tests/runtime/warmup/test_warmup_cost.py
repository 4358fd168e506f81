"""What a first call is estimated to be of, and who is to answer it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.model import load
from sardonyx.runtime.warmup.warmup_cost import Work, work


def model(nodes: str, inputs: str, **weights: tuple[int, ...]) -> Any:
    text = f'<ir_version: 9, opset_import: ["": 18]> net ({inputs}) => (float[?] y) {{ {nodes} }}'
    made = onnx.parser.parse_model(text)
    for name, shape in weights.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    return load(made.SerializeToString())


IMAGE = "float[1, 4, H, W] x"
FILTERS = {"w": (8, 4, 3, 3), "v": (8, 8, 3, 3)}
TWO = "h = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w) {} y = Conv<pads = [1, 1, 1, 1]>({}, v)"


def multiplied(nodes: str, **weights: tuple[int, ...]) -> float:
    return work(model(nodes, IMAGE, **(weights or FILTERS)), {"x": (1, 4, 32, 16)}).multiplied


def test_strides_make_images_smaller() -> None:
    first, second = 8 * 4 * 9 * 16 * 8, 8 * 8 * 9 * 16 * 8
    assert multiplied(TWO.format("", "h")) == first + second
    assert multiplied(TWO.format("p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(h)", "p")) == first + second / 4
    assert multiplied(TWO.format("p = GlobalAveragePool(h)", "p")) == first + second / 128
    assert multiplied(TWO.format("r = Relu(h) s = Add(r, h)", "s")) == first + second


def test_windows_are_written_out_by_groups() -> None:
    held = model("h = Conv(x, w) y = Conv<group = 8>(h, v)", IMAGE, w=(8, 4, 3, 3), v=(8, 1, 5, 5))
    assert work(held, {"x": (1, 4, 32, 16)}).unrolled == (4 * 9 + 8 * 25) * 512


def test_transposed_convolutions_make_them_larger() -> None:
    nodes = "h = ConvTranspose<strides = [2, 2]>(x, u) y = Conv(h, v)"
    assert multiplied(nodes, u=(4, 8, 2, 2), v=(8, 8, 3, 3)) == 4 * 8 * 4 * 512 + 8 * 8 * 9 * 2048


def test_other_weights_are_multiplied_by_rows() -> None:
    held = model("y = MatMul(x, w)", "float[N, 8] x", w=(8, 4))
    assert work(held, {"x": (5, 8)}) == Work(1, 0, 160.0, 0.0, 128, True)
    tokens = model("e = Gather(t, i) y = MatMul(e, w)", "int64[N, S] i", t=(10, 8), w=(8, 4))
    assert work(tokens, {"i": (2, 3)}).multiplied == 6 * (80 + 32)


def test_states_of_recurrent_layers_are_no_sequence() -> None:
    nodes = """s = Squeeze(h, z) a, ah = GRU<hidden_size = 128>(x, w, r, , , s)
        b = Squeeze(a, o) y, yh = GRU<hidden_size = 128>(b, w2, r, , , s)"""
    held = model(nodes, "float[T, 1, 8] x, float[1, 1, 128, 1] h", w=(1, 384, 8), w2=(1, 384, 128), r=(1, 384, 128))
    assert work(held, {"x": (3, 1, 8), "h": (1, 1, 128, 1)}).steps == 2 * 3


@pytest.mark.parametrize(
    ("nodes", "side", "wanted"),
    [
        ("y = Conv(x, w)", 512, "all"),
        ("y = Conv(x, w)", 32, "none"),
        ("y = Conv(x, p)", 1024, "none"),
        ("h = Conv(x, w) y = MaxPool<kernel_shape = [2, 2]>(h)", 512, "all"),
        ("h = Conv(x, w) q = QuantizeLinear(h, s) y = DequantizeLinear(q, s)", 512, "none"),
    ],
)
def test_what_onnxruntime_optimizes(nodes: str, side: int, wanted: str) -> None:
    held = model(nodes, IMAGE, w=(64, 64, 3, 3), p=(64, 64, 1, 1), s=())
    assert work(held, {"x": (1, 64, side, side)}).optimization == wanted


def test_what_is_imported_need_not_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Work(nodes=50, steps=0, multiplied=0.0, unrolled=0.0, held=0, keeps=True)
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    assert not small.is_worth_loading
    monkeypatch.setitem(sys.modules, "onnxruntime", np)
    assert small.is_worth_loading
