"""Predictors over batches: equal to the session, ragged rows included, and inside of real engines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.distributed import Image, Predictor, make_predict_fn, map_blocks
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
    np.testing.assert_allclose(map_blocks(blocks, image).compute(), expected(), rtol=1e-5, atol=1e-6)
    with pytest.raises(OptionError, match="chunks of whole rows"):
        map_blocks(array.from_array(ROWS, chunks=(16, 32)), image)


@pytest.fixture(scope="module")
def cluster() -> Any:
    ray = pytest.importorskip("ray", reason="ray is not installed (extra: ray)")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    yield ray
    ray.shutdown()


def test_ray_data_predicts_with_two_actors(cluster: Any, image: Image) -> None:
    from sardonyx.distributed.ray import map_batches

    data = cluster.data.from_numpy(ROWS).rename_columns({"data": "x"})
    rows = map_batches(data, image, actors=2, batch_size=8).take_all()
    actual = np.stack([row["y"] for row in rows])
    order = [int(np.flatnonzero((row["x"] == ROWS).all(1))[0]) for row in rows]
    np.testing.assert_allclose(actual, expected()[order], rtol=1e-5, atol=1e-6)


def test_a_ray_deployment_answers_and_updates_weights(cluster: Any) -> None:
    from ray import serve

    from sardonyx.distributed.ray import deployment

    zeros = {"weights": {"w0": np.zeros((64, 64)).tolist()}}
    handle = serve.run(deployment(layers(2).SerializeToString()), route_prefix=None)
    answer = handle.remote({"inputs": {"x": ROWS[:2].tolist()}}).result()
    np.testing.assert_allclose(answer["outputs"]["y"], expected(ROWS[:2]), rtol=1e-4, atol=1e-5)
    handle = serve.run(deployment(layers(2).SerializeToString(), user_config=zeros), route_prefix=None)
    answer = handle.remote({"inputs": {"x": ROWS[:2].tolist()}}).result()
    assert not np.any(answer["outputs"]["y"])
    serve.shutdown()
