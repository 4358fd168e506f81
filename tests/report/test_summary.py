from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console

import sardonyx
from sardonyx import demo
from sardonyx.errors import EvaluationError
from sardonyx.report import latency, quantities
from sardonyx.report.summary_tables import summary_tables
from sardonyx.report.terminal_picture import Box, draw


def test_a_summary_holds_interface_operators_and_size() -> None:
    info = sardonyx.summary(demo.path("digits_classifier"))
    (image,), (probabilities,) = info.inputs, info.outputs
    assert (image.name, image.type, image.shape) == ("image", "float", ("batch", 1, 8, 8))
    assert probabilities.shape == ("batch", 10)
    proto = onnx.load(demo.path("digits_classifier"))
    assert info.nodes == sum(info.operators.values()) == len(proto.graph.node)
    assert info.opsets == {"": 17}
    assert info.file_bytes == demo.path("digits_classifier").stat().st_size


def test_macs_of_a_convolution_by_hand() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 3, 10, 10] x, float[8, 3, 3, 3] w) => (float[N, 8, 8, 8] y) { y = Conv(x, w) }"""
    )
    assert sardonyx.summary(proto).macs == f"{8 * 8 * 8 * 27}*N"
    assert sardonyx.summary(proto, sizes={"N": 5}).macs == 5 * 8 * 8 * 8 * 27


def test_memory_peak_by_hand() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N] x) => (float[N] y) { a = Neg(x) b = Exp(a) y = Abs(b) }"""
    )
    assert sardonyx.summary(proto, sizes={"N": 10}).peak_memory == 3 * 10 * 4


def test_the_depth_of_nested_bodies_is_counted() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[N] x) => (float[N] y) {
          y = If (c) <then_branch = t () => (float[N] a) { a = Relu(x) },
                      else_branch = e () => (float[N] b) { b = Neg(x) }>
        }"""
    )
    info = sardonyx.summary(proto)
    assert info.control_flow_depth == 1
    assert info.nodes == 3


def test_external_data_counts_as_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    sardonyx.save(sardonyx.load(demo.path("digits_classifier")), path, external_data=True)
    assert sardonyx.summary(path).file_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())


def test_a_model_in_memory_has_no_file_and_is_not_changed() -> None:
    model = sardonyx.load(demo.path("digits_classifier"))
    before = sardonyx.summary(model)
    assert before.file_bytes is None
    assert all(value.shape is None or "unk" not in str(value.shape) for node in model.graph for value in node.outputs)


def test_latency_is_measured_in_pairs_on_real_inputs() -> None:
    path = demo.path("digits_classifier")
    feeds = {"image": demo.inputs("digits_classifier")["image"][:4]}
    timing = latency.measure([path, path], feeds=feeds, budget=0.05)
    assert timing.sizes == {"batch": 4}
    assert timing.runs == len(timing.times[0]) == len(timing.times[1]) >= 5
    assert min(timing.seconds) > 0


def test_latency_draws_valid_inputs() -> None:
    timing = latency.measure([demo.path("digits_detector")] * 2, budget=0.05)
    assert set(timing.sizes) == {"batch", "height", "width"}


def test_latency_in_a_child_process_survives_a_crash_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = demo.path("digits_classifier")
    feeds = {"image": demo.inputs("digits_classifier")["image"][:4]}
    timing = latency.measure_in_child([path, path], feeds=feeds, budget=0.05)
    assert timing.sizes == {"batch": 4}
    assert timing.runs == len(timing.times[0]) == len(timing.times[1]) >= 5
    (tmp_path / "onnxruntime.py").write_text("import os\nos.abort()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EvaluationError, match="ended with code -6"):
        latency.measure_in_child([path, path], feeds=feeds, budget=0.05)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (1234, "1,234"), (12_300_000, "12.3 M"), (45 * 10**9, "45.0 G"), (None, "—")]
)
def test_numbers_are_formatted_for_readers(number: int | None, text: str) -> None:
    assert quantities.count(number) == text


def test_bytes_are_formatted_for_readers() -> None:
    assert [quantities.size(n) for n in (12, 2048, 3 << 20, 5 << 30)] == ["12 B", "2.00 KiB", "3.00 MiB", "5.00 GiB"]


def test_a_picture_shows_ink_and_boxes() -> None:
    image = np.zeros((16, 16), np.float32)
    image[4:12, 4:12] = 16
    lines = draw(image, [Box(4, 4, 12, 12, "7")]).plain.split("\n")
    assert len(lines) == 5
    assert lines[0].strip() == "┌7───┐"
    assert "█" in lines[1]


def test_a_model_without_weights_has_no_empty_list_of_types() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Neg(x) }'
    )
    console = Console(width=120, record=True, file=io.StringIO())
    quantities.print_all(console, *summary_tables("net.onnx", sardonyx.summary(proto)))
    text = console.export_text()
    assert "()" not in text
    assert re.search(r"weights +none", text)
