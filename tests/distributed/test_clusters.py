"""Real local clusters: Ray Data, Ray Serve, Ray's compiled graphs, Dask's processes, and Spark."""

from __future__ import annotations

import json
import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx import Session
from sardonyx.distributed import Image, make_predict_fn, map_blocks, map_partitions
from sardonyx.errors import ExecutionError, FeedError, OptionError, RequestError, ShapeError
from tests.distributed.networks import layers

ROWS = np.random.default_rng(0).standard_normal((40, 64), np.float32)
PATIENCE = {"RAY_agent_register_timeout_ms": "300000", "RAY_worker_niceness": "0",
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
            "RAY_gcs_server_request_timeout_seconds": "300"}  # fmt: skip
"""Options of Ray by which its processes start on a busy machine: time, and the priority of others."""


@pytest.fixture(scope="module")
def image() -> Image:
    return Image.compile(layers(2))


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_IMAGES", str(tmp_path_factory.getbasetemp() / "images"))


def expected(rows: np.ndarray = ROWS) -> np.ndarray:
    return np.asarray(Session(layers(2), compile="wait").run(["y"], {"x": rows})[0])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="ray is not installed (extra: ray)")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PATIENCE.items():
            patch.setenv(name, value)
        for attempt in range(3):  # Ray waits 30 s for its processes, which a busy machine may need longer for.
            try:
                ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
                break
            except Exception:
                ray.shutdown()
                if attempt == 2:
                    raise
        yield ray
        ray.shutdown()


def test_ray_data_predicts_with_two_actors(cluster: Any, image: Image) -> None:
    from sardonyx.distributed.ray import map_batches

    data = cluster.data.from_numpy(ROWS).rename_columns({"data": "x"})
    rows = map_batches(data, image, actors=2, batch_size=8).take_all()
    actual = np.stack([row["y"] for row in rows])
    order = [int(np.flatnonzero((row["x"] == ROWS).all(1))[0]) for row in rows]
    np.testing.assert_allclose(actual, expected()[order], rtol=1e-5, atol=1e-6)


def test_a_late_result_is_named_as_late(monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions = pytest.importorskip("ray.exceptions", reason="ray is not installed (extra: ray)")
    from sardonyx.distributed.ray_pipeline import PipelineAnswer

    def late(reference: object) -> None:
        raise exceptions.RayChannelTimeoutError("System error")

    monkeypatch.setattr("ray.get", late)
    with pytest.raises(ExecutionError, match="no result in the time that Ray allows"):
        PipelineAnswer(object(), ["y"]).result()


@pytest.mark.parametrize(
    "options", [{"actors": {"nonsense": 1}}, {"actors": 5}, {"actors": [1]}, {"actors": [{}]}, {"most_requests": 0}]
)
def test_wrong_options_of_a_pipeline_are_refused_by_name(cluster: Any, options: dict[str, Any]) -> None:
    from sardonyx.distributed.ray_pipeline import RayPipeline

    with pytest.raises(OptionError, match=f"{next(iter(options))}: expected"):
        RayPipeline(sardonyx.split(layers(4), 2), **options)


def test_a_split_model_runs_on_a_compiled_graph(cluster: Any) -> None:
    from sardonyx.distributed.ray_pipeline import RayPipeline

    whole = Session(layers(6, skip=True), compile="wait")
    split = sardonyx.split(layers(6, skip=True), 3)
    feeds = [{"x": ROWS[:rows]} for rows in (1, 7, 40, 3, 40, 2, 1, 9, 5, 4)]
    with RayPipeline(split, most_requests=3, actors={"num_cpus": 0}) as pipeline:
        answers = [pipeline.submit(feed) for feed in feeds]
        for feed, answer in zip(feeds, answers, strict=True):
            for ours, theirs in zip(answer.result(), whole.run(None, feed), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        with pytest.raises(FeedError, match="expected the inputs x, got z"):
            pipeline.submit({"z": ROWS})
        with pytest.raises(ShapeError, match="expected"):
            pipeline.run({"x": ROWS[:, :3]})
        assert len(pipeline.run(feeds[0])) == len(split.outputs)
    with pytest.raises(ExecutionError, match="is closed"):
        pipeline.submit(feeds[0])
    with pytest.raises(OptionError, match="options of 3 actors"):
        RayPipeline(split, actors=[{}])


def test_a_pipeline_waits_for_parts_longer_than_the_limit_of_ray(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.dag.context import DAGContext

    from sardonyx.distributed.ray_pipeline import RayPipeline

    for name in ("get_timeout", "submit_timeout"):
        monkeypatch.setattr(DAGContext.get_current(), name, 0)
    with RayPipeline(sardonyx.split(layers(4), 2), most_requests=2) as pipeline:
        answers = [pipeline.submit({"x": ROWS}) for _ in range(6)]
        assert [len(answer.result()) for answer in answers] == [2] * 6


def test_a_pipeline_whose_part_ends_fails_by_name(cluster: Any) -> None:
    from sardonyx.distributed.ray_pipeline import RayPipeline

    names = [{"num_cpus": 0, "name": f"part{index}"} for index in range(2)]
    with RayPipeline(sardonyx.split(layers(4), 2), actors=names) as pipeline:
        assert len(pipeline.run({"x": ROWS})) == 2
        cluster.kill(cluster.get_actor("part1"))
        with pytest.raises(ExecutionError, match="part of the pipeline has ended"):
            pipeline.run({"x": ROWS})


@pytest.mark.long
def test_ways_on_ray_compute_a_model_together(cluster: Any) -> None:
    from sardonyx.distributed.ray_tensor_parallel import RayTensorParallel

    whole = Session(layers(4), compile="wait")
    split = sardonyx.split_tensors(layers(4), 2)
    with RayTensorParallel(split, actors={"num_cpus": 0}) as parallel:
        for rows in (1, 7, 40):
            expected = whole.run(None, {"x": ROWS[:rows]})
            for ours, theirs in zip(parallel.run({"x": ROWS[:rows]}), expected, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        with pytest.raises(FeedError, match="expected the inputs x, got z"):
            parallel.run({"z": ROWS})
        with pytest.raises(ShapeError, match="expected"):
            parallel.run({"x": ROWS[:, :3]})
        # Requests of several threads are computed one after another.
        requests = [ROWS[first : first + 5] for first in range(0, 40, 5)]
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda rows: parallel.run({"x": rows}), requests))
        for rows, answer in zip(requests, answers, strict=True):
            for ours, theirs in zip(answer, whole.run(None, {"x": rows}), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    with pytest.raises(ExecutionError, match="are closed"):
        parallel.run({"x": ROWS})
    with pytest.raises(OptionError, match="options of 2 actors"):
        RayTensorParallel(split, actors=[{}])
    with pytest.raises(OptionError, match="options of Ray's actors"):
        RayTensorParallel(split, actors={"color": 1})


@pytest.mark.long
def test_a_request_to_ways_has_the_time_that_it_needs(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.dag import DAGContext

    from sardonyx.distributed.ray_tensor_parallel import RayTensorParallel

    monkeypatch.setattr(DAGContext.get_current(), "get_timeout", 0)
    with RayTensorParallel(sardonyx.split_tensors(layers(2), 2), actors={"num_cpus": 0}) as parallel:
        for _ in range(2):
            np.testing.assert_allclose(parallel.run({"x": ROWS})[0], expected(), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_actors_that_do_not_start_are_named_and_the_others_ended(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.distributed import ray_tensor_parallel

    class Damaged:  # Local, so that Ray sends its text.
        @staticmethod
        def compile(model: Any, threads: int) -> Damaged:
            return Damaged()

        def open(self) -> None:
            raise ExecutionError("the image is damaged.")

    monkeypatch.setattr(ray_tensor_parallel, "Image", Damaged)
    killed: list[Any] = []
    monkeypatch.setattr(cluster, "kill", killed.append)
    with pytest.raises(ExecutionError, match="a way has ended"):
        ray_tensor_parallel.RayTensorParallel(sardonyx.split_tensors(layers(2), 2), actors={"num_cpus": 0})
    assert len(killed) == 2


def test_a_ray_deployment_answers_and_updates_weights(cluster: Any) -> None:
    from ray import serve

    from sardonyx.distributed.ray import deployment

    def ask(**options: Any) -> dict[str, Any]:
        handle = serve.run(deployment(layers(2).SerializeToString(), **options), route_prefix=None)
        answer: dict[str, Any] = handle.remote({"inputs": {"x": ROWS[:2].tolist()}}).result()
        return answer

    serve.start(proxy_location="Disabled")
    weights = {f"w{index}": np.zeros((64, 64)).tolist() for index in range(2)}
    answers = [ask()] + [ask(user_config={"weights": {name: weight}}) for name, weight in weights.items()]
    np.testing.assert_allclose(answers[0]["outputs"]["y"], expected(ROWS[:2]), rtol=1e-4, atol=1e-5)
    assert not np.any(answers[1]["outputs"]["y"])
    # A replica that was started anew has one edit only, and the first weights.
    assert [answer["revision"] for answer in answers] == [0, 1, 2], "one replica, edited while it runs"
    serve.shutdown()


def test_dask_predicts_in_processes(image: Image) -> None:
    distributed = pytest.importorskip("distributed", reason="distributed is not installed (dask's scheduler)")
    array = pytest.importorskip("dask.array", reason="dask is not installed (extra: dask)")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as workers,
        distributed.Client(workers),
    ):
        blocks = array.from_array(ROWS, chunks=(16, 64))
        np.testing.assert_allclose(map_blocks(blocks, image).compute(), expected(), rtol=1e-5, atol=1e-6)
        frame = pytest.importorskip("dask.dataframe", reason="dask.dataframe is not installed")
        pandas = pytest.importorskip("pandas", reason="pandas is not installed")
        with pytest.importorskip("dask").config.set({"dataframe.convert-string": False}):
            rows = map_partitions(frame.from_pandas(pandas.DataFrame({"x": list(ROWS)}), 3), image).compute()
        np.testing.assert_allclose(np.stack(list(rows["y"])), expected(), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs java")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        yield session
        session.stop()


@pytest.mark.long
def test_spark_predicts_columns_of_arrays(spark: Any, image: Image) -> None:
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    classify = predict_batch_udf(
        make_predict_fn(image, "y"), return_type=ArrayType(FloatType()), batch_size=7, input_tensor_shapes=[[64]]
    )
    frame = spark.createDataFrame([(index, row.tolist()) for index, row in enumerate(ROWS)], ["number", "x"])
    rows = frame.repartition(2).withColumn("y", classify("x")).collect()
    actual = np.array([row.y for row in sorted(rows, key=lambda row: row.number)])
    np.testing.assert_allclose(actual, expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_model_of_mlflow_is_a_function_of_spark(spark: Any, tmp_path: Any) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed (extra: mlflow)")
    import sardonyx.mlflow as flavor

    flavor.save_model(layers(2), tmp_path / "saved")
    frame = spark.createDataFrame([(index, row.tolist()) for index, row in enumerate(ROWS)], ["number", "x"])
    predict = mlflow.pyfunc.spark_udf(
        spark, str(tmp_path / "saved"), result_type="y: array<float>, t1: array<float>", env_manager="local"
    )
    rows = frame.withColumn("outputs", predict("x")).collect()
    actual = np.array([row.outputs.y for row in sorted(rows, key=lambda row: row.number)])
    np.testing.assert_allclose(actual, expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_ray_deployment_answers_over_http(cluster: Any) -> None:
    from ray import serve

    from sardonyx.distributed.ray import deployment

    serve.start(http_options={"host": "127.0.0.1", "port": 18765})
    serve.run(deployment(layers(2).SerializeToString()), route_prefix="/net")
    body = json.dumps({"inputs": {"x": ROWS[:2].tolist()}}).encode()
    with urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:18765/net", body), timeout=60) as reply:
        answer = json.load(reply)
    np.testing.assert_allclose(answer["outputs"]["y"], expected(ROWS[:2]), rtol=1e-4, atol=1e-5)
    serve.shutdown()


@pytest.mark.long
def test_a_ray_deployment_speaks_the_open_inference_protocol(cluster: Any) -> None:
    from ray import serve

    from sardonyx.distributed.ray import server_deployment
    from sardonyx.serve.client import Client

    serve.start(http_options={"host": "127.0.0.1", "port": 18766})
    models = {"net": layers(2).SerializeToString(), "other": layers(3).SerializeToString()}
    client = Client("http://127.0.0.1:18766/oip")
    for revision, config in enumerate([None, {"weights": {"net": {"w0": np.zeros((64, 64)).tolist()}}}]):
        serve.run(server_deployment(models, user_config=config), route_prefix="/oip")
        answer = client.infer("net", {"x": ROWS[:3]})
        outputs = expected(ROWS[:3]) if not revision else np.zeros((3, 64))
        np.testing.assert_allclose(answer.outputs["y"], outputs, rtol=1e-4, atol=1e-5)
        assert answer.revision == revision, "one replica, edited while it runs"
        if not revision:  # Later, a thread proves the edited model.
            assert client.get("/v2/models/net")["parameters"]["sardonyx_batching"] == "sound"
    assert client.get("/v2/health/ready") == {"ready": True}
    with pytest.raises(RequestError, match="unknown model"):
        client.infer("none", {"x": ROWS})
    serve.shutdown()
