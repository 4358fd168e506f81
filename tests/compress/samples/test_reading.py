"""Samples of every source fit the model, are read one by one, and bad ones are refused by name."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx.compress.samples import read_samples, split_samples
from sardonyx.errors import ModelFileError, OptionError, SardonyxError

ONE = '<ir_version: 9, opset_import: ["": 17]> n (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }'
TWO = '<ir_version: 9, opset_import: ["": 17]> n (float[N] a, int64[2] b) => (float[N] y) { y = Relu(a) }'


def model_of(text: str) -> ir.Model:
    return sardonyx.load(onnx.parser.parse_model(text))


def test_mappings_arrays_tuples_and_tensors_are_samples() -> None:
    one, two = model_of(ONE), model_of(TWO)
    x, a, b = np.ones((2, 3), np.float32), np.ones(4, np.float32), np.zeros(2, np.int64)
    assert [sorted(sample) for sample in read_samples({"x": x}, one)] == [["x"]]
    assert [sample["x"].shape for sample in read_samples([x, x[:1]], one)] == [(2, 3), (1, 3)]
    assert [sorted(sample) for sample in read_samples([(a, b)], two)] == [["a", "b"]]

    class Tensor:
        def numpy(self) -> np.ndarray:
            return x

    assert [sample["x"].tolist() for sample in read_samples(iter([Tensor()]), one)] == [x.tolist()]


def test_an_array_of_the_rank_of_the_input_has_a_sample_in_each_row() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert [sample["x"].tolist() for sample in read_samples(x, model_of(ONE))] == [[row] for row in x.tolist()]
    pairs = model_of(ONE.replace("N", "2"))
    assert [sample["x"].tolist() for sample in read_samples(x, pairs)] == [x[:2].tolist(), x[2:].tolist()]
    with pytest.raises(OptionError, match="multiple of 2 rows"):
        list(read_samples(x[:3], pairs))
    prepared = read_samples(x, model_of(ONE), lambda row: row[None])  # Items are the preprocessing's own.
    assert [sample["x"].tolist() for sample in prepared] == [[row] for row in x.tolist()]


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_archive_is_read_row_by_row(tmp_path: Path, compressed: bool, order: Any) -> None:
    x = np.asarray(np.arange(24, dtype=np.float32).reshape(8, 3), order=order)
    (np.savez_compressed if compressed else np.savez)(tmp_path / "data.npz", x=x)
    samples = list(read_samples(tmp_path / "data.npz", model_of(ONE)))
    assert [sample["x"].tolist() for sample in samples] == [[row] for row in x.tolist()]


def test_bfloat16_of_archives_and_folders_keeps_its_type(tmp_path: Path) -> None:
    model = model_of(ONE.replace("float[", "bfloat16["))
    x = np.ones((2, 3), ml_dtypes.bfloat16)
    (tmp_path / "folder").mkdir()
    np.savez(tmp_path / "data.npz", x=x)
    np.save(tmp_path / "folder" / "0.npy", x[:1])
    for source in ("data.npz", "folder"):
        sample = next(iter(read_samples(tmp_path / source, model)))
        np.testing.assert_array_equal(sample["x"], x[:1], strict=True)


def test_an_archive_with_a_fixed_batch_has_several_rows_a_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", a=np.ones(3, np.float32), b=np.arange(6))
    samples = list(read_samples(tmp_path / "data.npz", model_of(TWO)))
    assert [sample["b"].tolist() for sample in samples] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.zeros(0, np.float32), np.zeros(0, np.int64), "each array: 'a' has 0, 'b' has 0"),
        (np.zeros(3, np.float32), np.zeros(4, np.int64), "each array: 'a' has 3, 'b' has 2"),
        (np.zeros((), np.float32), np.zeros(2, np.int64), "each array: 'a' has 0, 'b' has 1"),
    ],
)
def test_an_archive_without_equal_numbers_of_samples_is_refused(
    tmp_path: Path, a: np.ndarray, b: np.ndarray, message: str
) -> None:
    np.savez(tmp_path / "data.npz", a=a, b=b)
    with pytest.raises(OptionError, match=f"expected at least one sample, and as many in axis 0 of {message}"):
        list(read_samples(tmp_path / "data.npz", model_of(TWO)))


def test_names_of_an_archive_that_lacks_an_input_are_quoted(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", z=np.ones(3, np.float32))
    with pytest.raises(OptionError, match=r"missing input 'x'\. The file has: 'z'\."):
        list(read_samples(tmp_path / "data.npz", model_of(ONE)))


def test_folders_of_images_need_a_preprocessing(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(3):
        image.fromarray(np.full((4, 5, 3), 80 * number, np.uint8)).save(tmp_path / f"{number}.png")
    means = read_samples(tmp_path, model_of(ONE), lambda array: array.mean((0, 1), dtype=np.float32)[None])
    assert [sample["x"].tolist() for sample in means] == [[[0.0] * 3], [[80.0] * 3], [[160.0] * 3]]
    text = """<ir_version: 9, opset_import: ["": 18]> n (uint8[h, w, 3] image) => (float[1, 3] x)
        <int64[2] axes = {0, 1}, int64[1] first = {0}>
        { f = Cast<to=1>(image) m = ReduceMean<keepdims=0>(f, axes) x = Unsqueeze(m, first) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "prepare.onnx")
    by_model = read_samples(tmp_path, model_of(ONE), tmp_path / "prepare.onnx")
    assert [sample["x"][0, 0] for sample in by_model] == [0.0, 80.0, 160.0]
    with pytest.raises(OptionError, match=r"data, sample 0: expected FLOAT .* got uint8 \[4, 5, 3\].* by `preprocess`"):
        list(read_samples(tmp_path, model_of(ONE)))


def test_samples_that_hold_the_input_are_not_preprocessed_by_a_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.ones((2, 3), np.float32))
    text = '<ir_version: 9, opset_import: ["": 18]> n (float[N, 3] item) => (float[N, 3] x) { x = Add(item, item) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "prepare.onnx")
    stored = read_samples(tmp_path / "inputs.npz", model_of(ONE), tmp_path / "prepare.onnx")
    assert [sample["x"].tolist() for sample in stored] == [[[1.0] * 3]] * 2
    items = read_samples([np.ones((1, 3), np.float32)], model_of(ONE), tmp_path / "prepare.onnx")
    assert [sample["x"].tolist() for sample in items] == [[[2.0] * 3]]


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_folders_of_audio_give_frames_and_their_rate(tmp_path: Path, width: int) -> None:
    with wave.open(str(tmp_path / "a.wav"), "wb") as stream:
        stream.setnchannels(2)
        stream.setsampwidth(width)
        stream.setframerate(8000)
        half = b"\xc0" if width == 1 else b"\0" * (width - 1) + b"\x40"
        stream.writeframes(half * 6)
    seen: list[tuple[np.ndarray, int]] = []

    def prepare(frames: np.ndarray, rate: int) -> np.ndarray:
        seen.append((frames, rate))
        return frames[:1]

    (sample,) = read_samples(tmp_path, model_of(ONE), prepare)
    assert sample["x"].tolist() == [[0.5, 0.5, 0.5]]
    assert seen[0][0].shape == (2, 3) and seen[0][1] == 8000


BAD: dict[str, tuple[Any, str]] = {
    "number": (3, "expected feeds, an iterable or a path"),
    "wrong name": ([{"z": np.ones(3, np.float32)}], "unknown input z"),
    "wrong shape": ([np.ones((2, 4), np.float32)], "data, sample 0: expected"),
    "wrong type": ([np.ones((2, 3), np.int32)], r"Convert the array to float32\."),
    "second sample": ([np.ones((2, 3), np.float32), np.ones(3, np.float32)], "data, sample 1"),
    "two for one": ([(np.ones(3), np.ones(3))], "got 2 of type tuple"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_samples_are_refused_by_name(case: str) -> None:
    data, message = BAD[case]
    with pytest.raises(OptionError, match=message):
        list(read_samples(data, model_of(ONE)))


def test_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    model = model_of(ONE)
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04broken")
    np.savez(tmp_path / "named.npz", z=np.ones(3, np.float32))
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object))
    whole = tmp_path / "whole.npz"
    np.savez(whole, x=np.ones((100, 3), np.float32))
    (tmp_path / "cut.npz").write_bytes(whole.read_bytes()[:400])
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.wav").write_bytes(b"RIFF")
    for name in ("broken.npz", "named.npz", "objects.npz", "cut.npz", "text.txt", "empty", "folder", "missing.npz"):
        with pytest.raises((ModelFileError, OptionError), match=name):
            list(read_samples(tmp_path / name, model))


def test_every_fourth_sample_is_held_back_up_to_a_number() -> None:
    split = split_samples(({"x": number} for number in range(200)), most_judged=5)
    learned = [sample["x"] for sample in split.fitting()]
    assert [sample["x"] for sample in split.judged] == [3, 7, 11, 15, 19]
    assert len(learned) == 195 and split.count == 200 and split.is_held_out
    few = split_samples([{"x": 0}, {"x": 1}])
    assert [len(list(few.fitting())), len(few.judged), few.is_held_out] == [2, 2, False]
    with pytest.raises(OptionError, match="at least one sample"):
        split_samples([])


def test_samples_are_read_lazily() -> None:
    drawn: list[int] = []

    def endless() -> Iterator[np.ndarray]:
        for number in range(1 << 30):
            drawn.append(number)
            yield np.zeros((1, 3), np.float32)

    stream = read_samples(endless(), model_of(ONE))
    next(stream)
    assert len(drawn) == 1


def test_a_preprocessing_that_raises_is_not_swallowed() -> None:
    def fail(sample: object) -> None:
        raise KeyError("no such thing")

    with pytest.raises((KeyError, SardonyxError), match="no such thing"):
        list(read_samples([np.ones((1, 3), np.float32)], model_of(ONE), fail))
