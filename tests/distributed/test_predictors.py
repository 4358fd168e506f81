"""Predictors over batches: equal to the session, ragged rows included, and inside of Dask."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.distributed import Image, Predictor, make_predict_fn, map_blocks, map_partitions
from sardonyx.errors import FeedError, OptionError
from tests.distributed.networks import layers

ROWS = np.random.default_rng(0).standard_normal((40, 64), np.float32)


@pytest.fixture(scope="module")
def image() -> Image:
    return Image.compile(layers(2))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_IMAGES", str(tmp_path / "images"))


def expected(rows: np.ndarray = ROWS) -> np.ndarray:
    return np.asarray(Session(layers(2), compile="wait").run(["y"], {"x": rows})[0])


def test_a_batch_gets_the_outputs_as_columns(image: Image) -> None:
    batch = Predictor(image)({"x": ROWS, "label": np.arange(40)})
    assert set(batch) == {"x", "label", "y", "t1"}
    np.testing.assert_allclose(batch["y"], expected(), rtol=1e-5, atol=1e-6)
    renamed = Predictor(image, columns={"x": "image"}, outputs=["y"])({"image": ROWS})
    assert set(renamed) == {"image", "y"}
    with pytest.raises(FeedError, match="no column 'x'"):
        Predictor(image)({"z": ROWS})


def test_rows_of_several_sizes_are_grouped() -> None:
    graph = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> net (float[N, S] x) => (float[N, S] y, float[N] m)'
        " { y = Relu(x) m = ReduceMax<keepdims = 0>(x, axes) }".replace("(x, axes)", "(x, one)").replace(
            "{ y", "<int64[1] one = {1}> { y"
        )
    )
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal(size).astype(np.float32) for size in (3, 5, 3, 1, 5)]
    column = np.empty(5, object)
    column[:] = rows
    result = Predictor(Image.compile(graph))({"x": column})
    for row, output in zip(rows, result["y"], strict=True):
        np.testing.assert_array_equal(np.maximum(row, 0), output)
    np.testing.assert_array_equal(result["m"], [row.max() for row in rows])


def test_processes_of_a_machine_map_one_file(image: Image, tmp_path: Path) -> None:
    first, second = image.local_path(), image.local_path()
    assert first == second and first.read_bytes() == image.content
    before = first.stat().st_ino
    first.write_bytes(b"damaged")
    assert image.local_path().read_bytes() == image.content
    assert image.local_path().stat().st_ino != before
    predictors = Predictor(image), Predictor(image)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert image.digest in maps.read_text(), "the image is mapped"
    assert len(predictors) == 2


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_folder_of_others_is_refused(image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("SARDONYX_IMAGES", str(tmp_path / "open"))
    with pytest.raises(OptionError, match="only this user can write to"):
        image.local_path()


def test_the_function_for_spark_predicts_columns(image: Image) -> None:
    """Called as ``predict_batch_udf`` calls it."""
    np.testing.assert_allclose(make_predict_fn(image, "y")()(ROWS), expected(), rtol=1e-5, atol=1e-6)


def test_dask_maps_blocks(image: Image) -> None:
    array = pytest.importorskip("dask.array", reason="dask is not installed (extra: dask)")
    blocks = array.from_array(ROWS, chunks=(16, 64))
    answers = map_blocks(blocks, image)
    np.testing.assert_allclose(answers.compute(), expected(), rtol=1e-5, atol=1e-6)
    # A scheduler sends every task apart.
    sizes = [len(pickle.dumps(task)) for task in dict(answers.__dask_graph__()).values()]
    assert sum(size > len(image.content) for size in sizes) == 1, "the image is a task of its own"
    with pytest.raises(OptionError, match="chunks of whole rows"):
        map_blocks(array.from_array(ROWS, chunks=(16, 32)), image)


def test_columns_of_objects_and_empty_batches_are_read(image: Image) -> None:
    column = np.empty(40, object)
    column[:] = list(ROWS)
    np.testing.assert_allclose(Predictor(image)({"x": column})["y"], expected(), rtol=1e-5, atol=1e-6)
    assert Predictor(image)({"x": column[:0]})["y"].shape == (0, 64)
    for values in (["a"] * 40, np.array(["a"] * 40, object)):
        with pytest.raises(FeedError, match="x: the values cannot be read as float32"):
            Predictor(image)({"x": values})


def test_dask_maps_partitions_of_a_data_frame(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    dask = pytest.importorskip("dask.dataframe", reason="dask.dataframe is not installed (extra: dask)")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame({"rows": list(ROWS), "label": np.arange(40)}, index=np.arange(40) * 2)
    with pytest.raises(FeedError, match=r"rows: the column holds texts.*convert-string"):
        map_partitions(dask.from_pandas(table, 3), image, columns={"x": "rows"})
    monkeypatch.setitem(pytest.importorskip("dask.config").config, "dataframe", {"convert-string": False})
    frame = dask.from_pandas(table, 3)
    result = map_partitions(frame, image, columns={"x": "rows"})
    assert list(result.columns) == ["rows", "label", "y", "t1"]
    computed = result.compute(scheduler="synchronous")
    np.testing.assert_array_equal(computed.index, np.arange(40) * 2)
    np.testing.assert_allclose(np.stack(list(computed["y"])), expected(), rtol=1e-5, atol=1e-6)
    with pytest.raises(FeedError, match="no column 'x'"):
        map_partitions(frame, image)


def test_a_data_frame_of_scalars_gets_scalars() -> None:
    dask = pytest.importorskip("dask.dataframe", reason="dask.dataframe is not installed (extra: dask)")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> net (float[N] a, float[N] b) => (float[N] sum) { sum = Add(a, b) }'
    )
    frame = dask.from_pandas(pandas.DataFrame({"a": np.arange(10.0), "b": np.arange(10.0)}), 2)
    result = map_partitions(frame[frame["a"] > 6], model)  # The first partition is empty.
    assert result["sum"].dtype == np.float32
    assert result.compute(scheduler="synchronous")["sum"].tolist() == [14, 16, 18]


def test_an_output_without_axes_is_a_column_of_dask() -> None:
    dask = pytest.importorskip("dask.dataframe", reason="dask.dataframe is not installed (extra: dask)")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> net (float[N] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }'
    )
    frame = dask.from_pandas(pandas.DataFrame({"x": [1.0, 2.0, 3.0]}), npartitions=1)
    result = map_partitions(frame, model)
    assert result["y"].dtype == np.float32
    assert result.compute(scheduler="synchronous")["y"].tolist() == [6, 6, 6]
    with pytest.raises(OptionError, match="columns: expected a mapping"):
        map_partitions(frame, model, columns=["x"])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="frame: expected a data frame of Dask, got list"):
        map_partitions([1], model)


def test_columns_that_are_no_mapping_are_refused(image: Image) -> None:
    with pytest.raises(OptionError, match="columns: expected a mapping"):
        Predictor(image, ["x"])  # type: ignore[arg-type]


def test_a_data_frame_of_texts_feeds_texts() -> None:
    dask = pytest.importorskip("dask.dataframe", reason="dask.dataframe is not installed (extra: dask)")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> net (string[N] a, string[N] b) => (string[N] c)'
        " { c = StringConcat(a, b) }"
    )
    frame = dask.from_pandas(pandas.DataFrame({"a": ["x", "y", "z"], "b": ["1", "2", "3"]}), 2)
    result = map_partitions(frame, model).compute(scheduler="synchronous")
    assert result["c"].tolist() == ["x1", "y2", "z3"]
