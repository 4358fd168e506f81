from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from sardonyx import demo
from sardonyx.errors import OptionError

PAPER = 2.0


def session(name: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(demo.path(name), options, providers=["CPUExecutionProvider"])


def run(name: str, image: np.ndarray) -> dict[str, np.ndarray]:
    model = session(name)
    keys = [output.name for output in model.get_outputs()]
    return dict(zip(keys, model.run(keys, {"image": image}), strict=True))


def hits(detections: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> np.ndarray:
    """Return (detections, digits): same image, same label, intersection over union of at least one half."""
    a, b = detections["boxes"][:, None], truth["boxes"][None]
    size = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None)
    overlap = size.prod(-1)
    union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - overlap
    same = [detections[key][:, None] == truth[key][None] for key in ("labels", "image_index")]
    return (overlap >= 0.5 * union) & same[0] & same[1]


def f1(detections: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> float:
    matched = int(hits(detections, truth).any(axis=0).sum())
    return 2 * matched / (len(detections["labels"]) + len(truth["labels"]))


@pytest.mark.parametrize("name", demo.names())
def test_model_passes_the_full_checker(name: str) -> None:
    onnx.checker.check_model(onnx.load(demo.path(name)), full_check=True)


@pytest.mark.parametrize("name", demo.names())
def test_onnxruntime_computes_the_results_of_pytorch(name: str) -> None:
    expected = demo.outputs(name)
    actual = run(name, demo.inputs(name)["image"])
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert actual[key].dtype == value.dtype
        np.testing.assert_allclose(actual[key], value, rtol=1e-4, atol=1e-4 * np.abs(value).max())


@pytest.mark.parametrize("name", demo.names())
def test_arrays_are_named_and_shaped_as_the_graph_declares(name: str) -> None:
    graph = onnx.load(demo.path(name)).graph
    assert [value.name for value in graph.input] == list(demo.inputs(name))
    assert [value.name for value in graph.output] == list(demo.outputs(name))
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = demo.inputs(name)[value.name].shape
        assert len(dims) == len(shape)
        assert all(dim.dim_param or dim.dim_value == size for dim, size in zip(dims, shape, strict=True))


def test_classifier_recognizes_held_out_digits() -> None:
    predicted = run("digits_classifier", demo.inputs("digits_classifier")["image"])["probabilities"].argmax(axis=1)
    assert (predicted == demo.truth("digits_classifier")["labels"]).mean() >= 0.99


@pytest.mark.parametrize("batch", [1, 7])
def test_classifier_accepts_any_batch(batch: int) -> None:
    image = demo.inputs("digits_classifier")["image"][:batch]
    probabilities = run("digits_classifier", image)["probabilities"]
    np.testing.assert_allclose(probabilities.sum(axis=1), np.ones(batch), rtol=1e-5)
    np.testing.assert_allclose(probabilities, demo.outputs("digits_classifier")["probabilities"][:batch], atol=1e-5)


def test_detector_finds_held_out_digits() -> None:
    detections = run("digits_detector", demo.inputs("digits_detector")["image"])
    assert f1(detections, demo.truth("digits_detector")) >= 0.95


@pytest.mark.parametrize(("top", "left", "bottom", "right"), [(0, 0, 0, 0), (5, 9, 8, 12), (32, 0, 0, 61)])
def test_detector_finds_digits_in_padded_scenes(top: int, left: int, bottom: int, right: int) -> None:
    image = demo.inputs("digits_detector")["image"]
    padded = np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=np.float32(PAPER))
    truth = demo.truth("digits_detector")
    moved = {**truth, "boxes": truth["boxes"] + np.float32([left, top, left, top])}
    assert f1(run("digits_detector", padded), moved) >= 0.95


def test_detector_finds_digits_in_one_large_mosaic() -> None:
    image, truth = demo.inputs("digits_detector")["image"], demo.truth("digits_detector")
    height, width = image.shape[2:]
    mosaic = np.block([[image[row * 4 + column, 0] for column in range(4)] for row in range(2)])[None, None]
    scene = truth["image_index"]
    offset = np.stack([scene % 4 * width, scene // 4 * height], axis=1).astype(np.float32)
    moved = {**truth, "boxes": truth["boxes"] + np.tile(offset, 2), "image_index": np.zeros_like(scene)}
    assert f1(run("digits_detector", mosaic), moved) >= 0.95


def test_detector_finds_whole_digits_of_a_crop() -> None:
    image, truth = demo.inputs("digits_detector")["image"], demo.truth("digits_detector")
    top, left, height, width = 11, 20, 67, 85
    detections = run("digits_detector", image[:, :, top : top + height, left : left + width])
    boxes = truth["boxes"] - np.float32([left, top, left, top])
    whole = (boxes >= 2).all(axis=1) & (boxes <= np.float32([width - 2, height - 2] * 2)).all(axis=1)
    digits = {"boxes": boxes[whole], **{key: truth[key][whole] for key in ("labels", "image_index")}}
    assert whole.sum() >= 10
    assert hits(detections, digits).any(axis=0).mean() >= 0.95


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (33, 47), (300, 200)])
def test_detector_finds_nothing_on_paper(size: tuple[int, int]) -> None:
    detections = run("digits_detector", np.full((2, 1, *size), PAPER, np.float32))
    assert {key: value.shape for key, value in detections.items()} == {
        "boxes": (0, 4),
        "scores": (0,),
        "labels": (0,),
        "image_index": (0,),
    }


def test_models_are_not_optimized() -> None:
    used = {name: {node.op_type for node in onnx.load(demo.path(name)).graph.node} for name in demo.names()}
    assert {"Constant", "BatchNormalization", "Erf", "Reshape"} <= used["digits_classifier"]
    assert {"Constant", "BatchNormalization", "InstanceNormalization", "Shape", "Range", "Resize", "If"} <= used[
        "digits_detector"
    ]
    assert "NonMaxSuppression" in used["digits_detector"]


@pytest.mark.parametrize("name", demo.names())
def test_model_holds_no_path_or_metadata_of_the_exporting_machine(name: str) -> None:
    model = onnx.load(demo.path(name))
    for initializer in model.graph.initializer:
        initializer.ClearField("raw_data")
    assert not re.search(rb"\.py|/home/|/root/|/tmp/|/usr/|/opt/|site-packages", model.SerializeToString())
    assert not model.metadata_props
    assert not any(node.doc_string for node in model.graph.node)


def test_shipped_files_are_small() -> None:
    folder = demo.path("digits_classifier").parent
    assert sum(file.stat().st_size for file in folder.iterdir() if file.suffix in {".onnx", ".npz"}) < 1_500_000


def test_unknown_name_is_refused_with_the_known_names() -> None:
    with pytest.raises(OptionError, match="digits_classifier or digits_detector"):
        demo.path("../digits_classifier")


@pytest.mark.long
def test_script_retrains_the_classifier(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    script = Path(__file__).parents[2] / "examples" / "train_digits.py"
    subprocess.run([sys.executable, script, "--only", "classifier", "--out", tmp_path], check=True)
    with np.load(tmp_path / "digits_classifier.npz") as arrays:
        predicted = arrays["out::probabilities"].argmax(axis=1)
        assert (predicted == arrays["truth::labels"]).mean() >= 0.97
